"""Drift baselines of a fleet as one document: by backend, and by model for fleets of equal engines. Pure; files are the caller's.

    {"version": 1, "backends": {"a": [BASELINE, ...]}, "models": {"llama-3-8b": [BASELINE, ...]}}

At most one baseline of each form (request rows, bucket counts) under a key. A backend's own comes before its model's. Other
keys of the document are for people and are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from tailkeeper_watchdog.drift import Baseline, BucketBaseline, bucket_baseline_from_document, from_document

VERSION = 1
MAX_KEYS = 20_000
"""Two for each backend of the largest fleet."""


class Form(StrEnum):
    """What a baseline is of. The value is the ``kind`` of its document."""

    ROWS = "block_e"
    BUCKETS = "bucket_e"


AnyBaseline = Baseline | BucketBaseline
_EMPTY: Mapping[tuple[str, Form], AnyBaseline] = MappingProxyType({})


def form_of(baseline: AnyBaseline) -> Form:
    return Form.ROWS if isinstance(baseline, Baseline) else Form.BUCKETS


@dataclass(frozen=True, slots=True)
class BaselineSet:
    """Baselines by the name of a backend or a model, and form."""

    backends: Mapping[tuple[str, Form], AnyBaseline] = field(default_factory=lambda: _EMPTY)
    models: Mapping[tuple[str, Form], AnyBaseline] = field(default_factory=lambda: _EMPTY)

    def of(self, backend: str, models: Iterable[str], form: Form) -> AnyBaseline | None:
        """The backend's own, else that of the first of its models in the alphabet that has one."""
        own = self.backends.get((backend, form))
        if own is not None:
            return own
        return next((self.models[m, form] for m in sorted(models) if (m, form) in self.models), None)

    def document(self) -> dict[str, Any]:
        """Plain JSON, as ``parse`` takes it."""
        return {"version": VERSION, "backends": _section(self.backends), "models": _section(self.models)}


def _section(baselines: Mapping[tuple[str, Form], AnyBaseline]) -> dict[str, list[dict[str, Any]]]:
    section: dict[str, list[dict[str, Any]]] = {}
    for (name, _), baseline in baselines.items():
        section.setdefault(name, []).append(baseline.document())
    return section


def parse(document: Any) -> BaselineSet:
    """The baselines of a document. Raises ValueError naming the place that is wrong and what is allowed there."""
    if not isinstance(document, Mapping):
        raise ValueError(f"must be an object with version, backends and models, not {type(document).__name__}")
    if document.get("version") != VERSION or isinstance(document.get("version"), bool):
        raise ValueError(f"version must be {VERSION}, not {str(document.get('version'))[:40]!r}")
    return BaselineSet(_parsed(document, "backends"), _parsed(document, "models"))


def _parsed(document: Mapping[str, Any], section: str) -> dict[tuple[str, Form], AnyBaseline]:
    given = document.get(section, {})
    if not isinstance(given, Mapping) or len(given) > MAX_KEYS:
        raise ValueError(f"{section} must be an object of at most {MAX_KEYS} names, each with a list of baselines")
    found: dict[tuple[str, Form], AnyBaseline] = {}
    for name, entries in given.items():
        if not isinstance(entries, list) or not 1 <= len(entries) <= len(Form):
            raise ValueError(f"{section}.{name} must be a list of one or two baselines")
        for index, entry in enumerate(entries):
            baseline = _one(entry, f"{section}.{name}[{index}]")
            if (name, form_of(baseline)) in found:
                raise ValueError(f"{section}.{name}[{index}] is a second baseline of the kind {form_of(baseline)}")
            found[name, form_of(baseline)] = baseline
    return found


def _one(entry: Any, path: str) -> AnyBaseline:
    kind = entry.get("kind") if isinstance(entry, Mapping) else None
    try:
        if kind == Form.ROWS:
            return from_document(entry)
        if kind == Form.BUCKETS:
            return bucket_baseline_from_document(entry)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    raise ValueError(f"{path}.kind must be one of {', '.join(Form)}, not {str(kind)[:40]!r}")
