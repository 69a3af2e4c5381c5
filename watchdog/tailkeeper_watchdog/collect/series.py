"""A series as a Prometheus server names it, as a key of a metrics page. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isnan

from tailkeeper_exporter.catalog import BY_NAME, Kind
from tailkeeper_exporter.exposition import Part, SeriesKey, canonical

OURS: Mapping[str, Kind] = {name: metric.kind for name, metric in BY_NAME.items()}
_SUFFIXES = {"_bucket": Part.BUCKET, "_sum": Part.SUM, "_count": Part.COUNT}


def key_of(labels: Mapping[str, str], kinds: Mapping[str, Kind]) -> SeriesKey | None:
    """The key of the series with these labels, ``__name__`` among them; None where it is none of ``kinds``."""
    name = canonical(labels.get("__name__", ""))
    rest = tuple(sorted((k, v) for k, v in labels.items() if k not in ("__name__", "le")))
    kind = kinds.get(name)
    if kind is not None and kind is not Kind.HISTOGRAM:
        return SeriesKey(name, rest, kind)
    for suffix, part in _SUFFIXES.items():
        family = name.removesuffix(suffix)
        if family != name and kinds.get(family) is Kind.HISTOGRAM:
            le = _bound(labels.get("le", "")) if part is Part.BUCKET else None
            return None if part is Part.BUCKET and le is None else SeriesKey(family, rest, Kind.HISTOGRAM, part, le)
    return None


def _bound(text: str) -> float | None:
    """Prometheus 2 keeps ``1``, Prometheus 3 writes ``1.0``: a bound is a number, never a text. None where it is none."""
    try:
        bound = inf if text == "+Inf" else float(text)
    except ValueError:
        return None
    return None if isnan(bound) else bound


def names_matching(kinds: Mapping[str, Kind]) -> str:
    """A regular expression for the names of all series of ``kinds``, whatever stood where they are written with ``_``."""
    parts = [f"{name}_(bucket|sum|count)" if kind is Kind.HISTOGRAM else name for name, kind in sorted(kinds.items())]
    return "|".join(part.replace("_", ".") for part in parts)
