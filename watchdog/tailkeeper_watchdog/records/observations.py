"""One backend's observation as the difference to the one before, and back, bit for bit. Pure.

A backend's page has hundreds of numbers, and most of them stand still or move by whole requests: what is as it was is not
written, and a bucket is written as by how much it rose. Keys are one letter, because they are written for each backend:
``s`` state, ``a`` age, ``e`` error, ``k`` when the readings were taken, ``v`` values, ``x`` readings that are gone,
``h`` histograms, ``hx`` those that are gone, ``g`` GPUs, ``y`` reasons, ``z`` fields that were added later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from math import isfinite
from operator import add, eq, sub
from typing import Any, get_type_hints

from tailkeeper_exporter.readings import Histogram, Reading, Status
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.model import BackendObservation, GpuObservation
from tailkeeper_watchdog.records.plain import from_plain, to_plain

_OWN = frozenset({"backend", "state", "age_s", "error", "readings", "histograms", "gpus", "reasons"})
_TYPES = get_type_hints(BackendObservation)
_LATER = tuple(f.name for f in fields(BackendObservation) if f.init and f.name not in _OWN)
Readings = Mapping[str, Reading[float]]
_BLANK = BackendObservation("", State.UNKNOWN, None)


def difference(seen: BackendObservation, before: BackendObservation | None) -> dict[str, Any]:
    """What to write of ``seen``, given what was written last."""
    known = before or _BLANK
    line: dict[str, Any] = {"a": seen.age_s}
    if seen.state is not known.state or before is None:
        line["s"] = seen.state.value
    if seen.error != known.error:
        line["e"] = seen.error
    if seen.reasons != known.reasons:
        line["y"] = list(seen.reasons)
    if seen.readings is not known.readings:
        line.update(_readings(seen.readings, known.readings))
    if seen.histograms is not known.histograms:
        line.update(_histograms(seen.histograms, known.histograms))
    if seen.gpus is not known.gpus and (seen.gpus or known.gpus):
        line["g"] = [to_plain(gpu) for gpu in seen.gpus]
    later = {name: to_plain(v) for name in _LATER if (v := getattr(seen, name)) != getattr(known, name)}
    return line | ({"z": later} if later else {})


def _readings(seen: Readings, before: Readings) -> dict[str, Any]:
    taken = next((r.taken_s for r in seen.values()), None)
    values: dict[str, Any] = {}
    for name, reading in seen.items():
        if reading.status is not Status.PRESENT or reading.taken_s != taken or reading.reason is not None:
            values[name] = [reading.status.value, reading.value, reading.taken_s, reading.reason]
            continue
        known = before.get(name)
        if known is None or not known.is_present or known.value != reading.value:
            values[name] = reading.value
    gone = [name for name in before if name not in seen]
    return {"k": taken, "v": values} | ({"x": gone} if gone else {})


def _histograms(seen: Mapping[str, Histogram], before: Mapping[str, Histogram]) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for name, histogram in seen.items():
        known = before.get(name)
        if known is not None and (known is histogram or known == histogram):
            continue
        rises = None if known is None or known.bounds != histogram.bounds else _rises(known.counts, histogram.counts)
        if rises is None:
            written[name] = {"b": list(histogram.bounds), "c": list(histogram.counts), "s": histogram.sum}
        else:
            written[name] = [histogram.sum, *rises]
    gone = [name for name in before if name not in seen]
    return ({"h": written} if written else {}) | ({"hx": gone} if gone else {})


def _rises(before: Sequence[float], counts: Sequence[float]) -> list[int] | None:
    """By how much each bucket rose, where that is whole and gives back exactly these counts."""
    risen = list(map(sub, counts, before))
    if not isfinite(sum(risen)):  # models of one backend, each near the end of what a double can hold, make infinity together
        return None
    rises = list(map(int, risen))
    return rises if all(map(eq, map(add, before, rises), counts)) else None


def patched(name: str, line: Mapping[str, Any], before: BackendObservation | None) -> BackendObservation:
    """The observation of which ``line`` is the difference to ``before``. Raises ValueError, KeyError or TypeError."""
    known = before or replace(_BLANK, backend=name)
    changed: dict[str, Any] = {"age_s": line["a"], "backend": name}
    if "s" in line:
        changed["state"] = State(line["s"])
    if "e" in line:
        changed["error"] = line["e"]
    if "y" in line:
        changed["reasons"] = tuple(line["y"])
    if "v" in line:
        changed["readings"] = _patched_readings(line, known.readings)
    if "h" in line or "hx" in line:
        changed["histograms"] = _patched_histograms(line, known.histograms)
    if "g" in line:
        changed["gpus"] = tuple(from_plain(GpuObservation, gpu) for gpu in line["g"])
    changed.update({k: from_plain(_TYPES[k], v) for k, v in line.get("z", {}).items() if k in _LATER})
    return replace(known, **changed)


def _patched_readings(line: Mapping[str, Any], before: Readings) -> Readings:
    taken, gone = line["k"], frozenset(line.get("x", ()))
    values = line["v"]
    found = {
        name: Reading(Status.PRESENT, reading.value, taken)
        for name, reading in before.items()
        if name not in values and name not in gone
    }
    for name, value in values.items():
        if isinstance(value, list):
            status, inner, at, reason = value
            found[name] = Reading(Status(status), inner, at, reason)
        else:
            found[name] = Reading(Status.PRESENT, value, taken)
    return found


def _patched_histograms(line: Mapping[str, Any], before: Mapping[str, Histogram]) -> Mapping[str, Histogram]:
    found = {name: histogram for name, histogram in before.items() if name not in line.get("hx", ())}
    for name, value in line.get("h", {}).items():
        if isinstance(value, dict):
            found[name] = Histogram(tuple(value["b"]), tuple(value["c"]), value["s"])
        else:
            known = before[name]
            found[name] = Histogram(known.bounds, tuple(map(add, known.counts, value[1:])), value[0])
    return found
