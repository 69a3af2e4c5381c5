"""Loki's query API over a `Store`: a test double. Lines and metrics over a range, an instant, labels and their values.

After Loki's documentation ("Loki HTTP API"): times are nanoseconds, or seconds with or without a fraction, ``limit`` is 100,
``direction`` backward: the newest lines come first. With the header ``X-Loki-Response-Encoding-Flags: categorize-labels``, which
Grafana sends, structured metadata and parsed labels stand beside each line; without it they are labels of its stream.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tools.doubles.lexing import QueryError, seconds
from tools.doubles.logql import FOLDS, Line, LogQuery, Metric, RangeQuery, parse
from tools.doubles.store import Store

LIMIT, MOST, POINTS = 100, 5_000, 11_000
"""Lines by default and at most, as Loki is set up from the start; and the most points of a series."""
CATEGORIZE = "categorize-labels"
_NS = 1_000_000_000
Labels = tuple[tuple[str, str], ...]


def query_range(store: Store, query: Mapping[str, str], flags: str = "") -> dict[str, Any]:
    """``/loki/api/v1/query_range``. Raises QueryError."""
    end_ns = _time_ns(query, "end", time.time_ns())
    start_ns = _time_ns(query, "start", end_ns - 3_600 * _NS)
    wanted = parse(query.get("query", ""))
    if isinstance(wanted, LogQuery):
        return _streams(store, wanted, start_ns, end_ns, query, CATEGORIZE in flags)
    step_s = _step_s(query.get("step", ""), (end_ns - start_ns) / _NS)
    count = int((end_ns - start_ns) / _NS / step_s) + 1
    if count > POINTS:
        raise QueryError(f"step: {step_s:g} s gives {count} points; at most {POINTS} are answered")
    times = [start_ns + round(number * step_s * _NS) for number in range(count)]
    series: dict[Labels, list[list[Any]]] = {}
    for at_ns in times:
        for labels, value in _at(store, wanted, at_ns).items():
            series.setdefault(labels, []).append([at_ns / _NS, f"{value:g}"])
    return _answer("matrix", [{"metric": dict(labels), "values": values} for labels, values in sorted(series.items())])


def query_instant(store: Store, query: Mapping[str, str]) -> dict[str, Any]:
    """``/loki/api/v1/query``, for metric queries alone, as Loki has it. Raises QueryError."""
    wanted = parse(query.get("query", ""))
    if isinstance(wanted, LogQuery):
        raise QueryError("log queries are not supported as an instant query type, please change your query to a range query type")
    at_ns = _time_ns(query, "time", time.time_ns())
    found = sorted(_at(store, wanted, at_ns).items())
    return _answer("vector", [{"metric": dict(labels), "value": [at_ns / _NS, f"{value:g}"]} for labels, value in found])


def label_names(store: Store, query: Mapping[str, str]) -> dict[str, Any]:
    rows = store.lines(*_whole_range(query))
    return {"status": "success", "data": sorted({name for row in rows for name in row.labels})}


def label_values(store: Store, name: str, query: Mapping[str, str]) -> dict[str, Any]:
    rows = store.lines(*_whole_range(query))
    return {"status": "success", "data": sorted({row.labels[name] for row in rows if name in row.labels})}


def _whole_range(query: Mapping[str, str]) -> tuple[int, int]:
    end_ns = _time_ns(query, "end", time.time_ns())
    return _time_ns(query, "start", end_ns - 6 * 3_600 * _NS), end_ns


def _answer(kind: str, result: Sequence[object], **more: object) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": kind, "result": list(result), "stats": {}, **more}}


def _time_ns(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, "")
    try:
        return int(text) if len(text) > 12 and text.isdigit() else round(float(text) * _NS) if text else default
    except (ValueError, OverflowError):
        raise QueryError(f"{name}: is {text[:64]!r}; nanoseconds or seconds since 1970 are wanted") from None


def _step_s(text: str, range_s: float) -> float:
    try:
        step_s = (seconds(text) or float(text)) if text else max(1.0, range_s // 250)
    except ValueError:
        step_s = 0.0
    if not 0 < step_s < float("inf"):
        raise QueryError(f"step: is {text[:64]!r}; seconds or a duration above 0 are wanted")
    return step_s


def _lines(store: Store, wanted: LogQuery, start_ns: int, end_ns: int) -> Iterable[Line]:
    return (line for row in store.lines(start_ns, end_ns) if (line := wanted.of(row)) is not None)


def _streams(
    store: Store, wanted: LogQuery, start_ns: int, end_ns: int, query: Mapping[str, str], categorized: bool
) -> dict[str, Any]:
    text = query.get("limit", "") or str(LIMIT)
    if not text.isdigit() or not 0 < int(text) <= MOST:
        raise QueryError(f"limit: is {text[:64]!r}; 1 to {MOST} are allowed")
    forward = query.get("direction", "backward").lower() == "forward"
    lines = sorted(_lines(store, wanted, start_ns, end_ns), key=lambda line: line.row.at_ns, reverse=not forward)
    streams: dict[Labels, list[list[Any]]] = {}
    for line in lines[: int(text)]:
        value: list[Any] = [str(line.row.at_ns), line.text]
        if categorized:
            beside = {"structuredMetadata": dict(line.row.metadata), "parsed": dict(line.parsed)}
            value.append({kind: labels for kind, labels in beside.items() if labels})
        labels = line.row.labels if categorized else line.labels()
        streams.setdefault(tuple(sorted(labels.items())), []).append(value)
    result = [{"stream": dict(labels), "values": values} for labels, values in streams.items()]
    return _answer("streams", result, **({"encodingFlags": [CATEGORIZE]} if categorized else {}))


def _at(store: Store, wanted: Metric, at_ns: int) -> dict[Labels, float]:
    """The values of a metric query at one time, by labels."""
    if isinstance(wanted, RangeQuery):
        # A range leaves out its start and takes in its end; what is given out is the other way round.
        lines = _lines(store, wanted.query, at_ns - round(wanted.range_s * _NS) + 1, at_ns + 1)
        numbers: dict[Labels, list[float]] = {}
        for line in lines:
            if (number := wanted.query.number_of(line)) is not None:
                numbers.setdefault(_kept(line.labels(), wanted.by), []).append(number)
        return {labels: wanted.fold(values) for labels, values in numbers.items()}
    groups: dict[Labels, list[float]] = {}
    for labels, value in _at(store, wanted.inner, at_ns).items():
        groups.setdefault(_kept(dict(labels), wanted.by) if wanted.by else (), []).append(value)
    return {labels: FOLDS[wanted.function](values) for labels, values in groups.items()}


def _kept(labels: Mapping[str, str], names: tuple[str, ...]) -> Labels:
    """The labels of these names, those that are there; all where no name is given."""
    return tuple(sorted((name, value) for name, value in labels.items() if value and (not names or name in names)))
