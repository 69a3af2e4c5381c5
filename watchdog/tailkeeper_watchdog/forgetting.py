"""Forget backends that are gone, in whatever a detector or a policy remembers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from tailkeeper_watchdog.table import Table


def without(mapping: Mapping[Any, Any], gone: frozenset[str]) -> Mapping[Any, Any]:
    """The mapping without keys that are, or begin with, the name of a backend in ``gone``."""
    return {key: value for key, value in mapping.items() if (key[0] if isinstance(key, tuple) and key else key) not in gone}


def forget(memory: Any, gone: frozenset[str]) -> Any:
    """A memory without these backends: a dataclass of tables, and of mappings with backends' names as keys, or tuples that begin
    with one.

    Anything else in it stays as it is. A memory of another shape brings its own way to forget.
    """
    if not is_dataclass(memory) or isinstance(memory, type):
        return memory
    held = {f.name: getattr(memory, f.name) for f in fields(memory)}
    tables = {name: value.without(gone) for name, value in held.items() if isinstance(value, Table)}
    return replace(memory, **tables, **{name: without(value, gone) for name, value in held.items() if isinstance(value, Mapping)})
