"""YAML text that every reader reads alike: each string value in quotes, expressions as blocks, keys in our order.

YAML readers disagree on what an unquoted ``no``, ``1e3`` or ``0123`` is, so nothing is left to them. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import yaml

Yaml = Mapping[str, "Yaml"] | Sequence["Yaml"] | str | int | float | bool | None

HEADER = "# Written by `tailkeeper generate`; change alerts/tailkeeper_alerts and run it again.\n"


class _Value(str):
    """A string value, as opposed to a key."""


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        del indentless  # Lists are indented under their key, as Prometheus' own documents do it.
        super().increase_indent(flow, False)


def _represent(dumper: yaml.SafeDumper, value: _Value) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(value), style="|" if "\n" in value else '"')


_Dumper.add_representer(_Value, _represent)


def _prepared(value: Yaml) -> object:
    if isinstance(value, str):
        return _Value(value)
    if isinstance(value, Mapping):
        return {key: _prepared(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_prepared(item) for item in value]
    return value


def to_yaml(value: Yaml) -> str:
    """The document with its header, always the same text for the same value."""
    body = yaml.dump(_prepared(value), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=4_096)
    return HEADER + str(body)
