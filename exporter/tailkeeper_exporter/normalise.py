"""An engine's page and its table into readings under the catalogue's names.

Page and table in, ``Normalised`` out; the only thing changed is the ``CounterMemory`` passed in. No I/O, no clock, no
GPU, no engine's name. Absent is never 0: what the page does not offer is not in the result.

How series become one reading: rows of the table are resolved to the first of their names that the page offers; series
are kept where the row's labels match; replicas of one fact (``REPLICA_LABELS``) count once; the rest (engine, pid,
data-parallel rank and whatever else) is merged by the catalogue's rule. Several rows of one metric with the same fixed
labels add up; one with a negative scale is taken off the row above it, and left out where the page does not offer that
row; ``Source.given`` ties others to the row above. A series without a model label belongs to the page's only model, or to
none where there are several.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from types import MappingProxyType

from tailkeeper_exporter import catalog
from tailkeeper_exporter.catalog import Kind, Merge, Metric, Unit
from tailkeeper_exporter.counters import MAX_MODEL_CHARS, CounterMemory, Output
from tailkeeper_exporter.engines.base import Engine, Given, Source
from tailkeeper_exporter.exposition import Page, Part, Reason, SeriesKey
from tailkeeper_exporter.readings import Histogram, Reading, Status, absent, invalid, present

START_TIME = "process_start_time_seconds"
CPU_TIME = "process_cpu_seconds_total"
REPLICA_LABELS = frozenset({"tp_rank", "pp_rank"})
"""Tensor and pipeline ranks of one engine see the same requests: each repeats the fact, none holds a share of it."""
_RATIO_SLACK = 1.0001
"""Rounding in the engine; beyond it the value is a percentage or nonsense."""


@dataclass(frozen=True, slots=True)
class Normalised:
    """Readings of one page. Keys are catalogue name and sorted labels without ``backend``.

    ``missing`` are catalogue names that a page of this engine should offer and this one does not. ``restarted`` says
    that a counter fell or the start time changed since the page before. ``cpu_s`` is the CPU time of the process that
    serves the page, in seconds since its start; ``started_unix_s`` is wall-clock time.
    """

    values: Mapping[Output, Reading[float]]
    histograms: Mapping[Output, Reading[Histogram]]
    missing: tuple[str, ...]
    problems: Mapping[Reason, int]
    started_unix_s: float | None
    cpu_s: float | None
    models: tuple[str, ...]
    restarted: bool = False
    progress: Mapping[str, float] = field(default_factory=dict)
    """The engine's counters of steps by their own name: evidence of work, not published."""

    def value(self, metric: Metric, **labels: str) -> Reading[float]:
        """The reading of one counter or gauge; ABSENT where the page does not offer it."""
        return self.values.get((metric.name, tuple(sorted(labels.items()))), absent())

    def histogram(self, metric: Metric, **labels: str) -> Reading[Histogram]:
        """The reading of one histogram; ABSENT where the page does not offer it."""
        missing: Reading[Histogram] = Reading(Status.ABSENT, reason="not offered")
        return self.histograms.get((metric.name, tuple(sorted(labels.items()))), missing)


@dataclass(slots=True)
class _Gathered:
    """The series that make one reading: their value and scale, and why they cannot make it."""

    metric: Metric
    parts: dict[SeriesKey, tuple[float, float]] = field(default_factory=dict)
    objection: Reason | None = None


def wanted_by(engine: Engine) -> dict[str, Kind]:
    """What the page parser must keep for this engine: canonical names and kinds."""
    wanted = {name: source.metric.kind for source in engine.sources for name in source.names}
    wanted |= {progress.name: Kind.COUNTER for progress in engine.progress}
    return wanted | {START_TIME: Kind.GAUGE, CPU_TIME: Kind.COUNTER}


def normalise(page: Page, engine: Engine, memory: CounterMemory, now: float) -> Normalised:
    """Readings of ``page``, taken at monotonic time ``now`` (seconds)."""
    offered = _by_name(page)
    resets = memory.resets
    started = _of_the_process(START_TIME, offered)
    memory.note_start(started)
    rows = _rows(engine, offered)
    models = _models(engine, (key for _, name in rows if name for key, _ in offered[name]))
    outputs: dict[Output, _Gathered] = {}
    for source, name in rows:
        if name is not None:
            _gather(source, offered[name], engine, models, memory, now, outputs)
    problems = Counter(page.problems)
    values = {output: _value(output, got, memory, now, problems) for output, got in _of(outputs, histograms=False)}
    histograms = {output: _histogram(output, got, memory, now, problems) for output, got in _of(outputs, histograms=True)}
    progress = _progress(engine, offered, memory, now)
    memory.prune(now)
    return Normalised(
        values=MappingProxyType(values),
        histograms=MappingProxyType(histograms),
        missing=_missing(rows),
        problems=MappingProxyType(dict(+problems)),
        started_unix_s=started,
        cpu_s=_of_the_process(CPU_TIME, offered),
        models=tuple(name[:MAX_MODEL_CHARS] for name in models[: catalog.MODEL.bound]),
        restarted=memory.resets != resets,
        progress=MappingProxyType(progress),
    )


_Offered = dict[str, list[tuple[SeriesKey, float | Reason]]]


def _by_name(page: Page) -> _Offered:
    offered: _Offered = {}
    for key, value in page.samples:
        offered.setdefault(key.name, []).append((key, value))
    for key, reason in page.dropped:
        offered.setdefault(key.name, []).append((key, reason))
    return offered


def _of(outputs: dict[Output, _Gathered], histograms: bool) -> list[tuple[Output, _Gathered]]:
    return [(output, got) for output, got in outputs.items() if (got.metric.kind is Kind.HISTOGRAM) is histograms]


def _of_the_process(name: str, offered: _Offered) -> float | None:
    """A ``process_…`` value where the page has exactly one; of several processes none is the engine."""
    values = [value for _, value in offered.get(name, [])]
    return values[0] if len(values) == 1 and isinstance(values[0], float) else None


def _offered_name(source: Source, offered: _Offered) -> str | None:
    """The first of the row's names that the page offers with the labels that the row filters on.

    A family whose label was renamed must not read as a counter at 0.
    """
    for name in source.names:
        series = offered.get(name, [])
        if any(all(key.label(label) for label, _ in source.where) for key, _ in series):
            return name
    return None


def _rows(engine: Engine, offered: _Offered) -> list[tuple[Source, str | None]]:
    """Each row of the table with the name under which the page offers it, None where it does not."""
    rows: list[tuple[Source, str | None]] = []
    for source in engine.sources:
        rows.append((source, _offered_name(source, offered) if _counts(source, rows) else None))
    return rows


def _counts(source: Source, rows: list[tuple[Source, str | None]]) -> bool:
    """Whether the row counts, given whether the page offers the row above it."""
    above = bool(rows) and rows[-1][1] is not None
    if source.given is Given.ABOVE_FOUND or source.scale < 0:
        return above
    return source.given is Given.ALWAYS or not above


def _progress(engine: Engine, offered: _Offered, memory: CounterMemory, now: float) -> dict[str, float]:
    """The counters of steps that the page offers, each summed over its series and carried over restarts."""
    found: dict[str, float] = {}
    for progress in engine.progress:
        output = (progress.name, ())
        for key, value in offered.get(progress.name, []):
            if isinstance(value, float) and _matches(key, progress.where):
                memory.advance(output, key, (value,), now)
                found[progress.name] = memory.counter(output)
    return found


def _missing(rows: list[tuple[Source, str | None]]) -> tuple[str, ...]:
    found = {(source.metric.name, source.fixed) for source, name in rows if name is not None}
    lacking = [source for source, name in rows if name is None and source.expected]
    return tuple(dict.fromkeys(s.metric.name for s in lacking if (s.metric.name, s.fixed) not in found))


def _model_of(engine: Engine, key: SeriesKey) -> str:
    return next((value for label in engine.model_labels if (value := key.label(label))), "")


def _models(engine: Engine, keys: Iterable[SeriesKey]) -> tuple[str, ...]:
    return tuple(sorted({model for key in keys if (model := _model_of(engine, key))}))


def _gather(
    source: Source,
    series: list[tuple[SeriesKey, float | Reason]],
    engine: Engine,
    models: tuple[str, ...],
    memory: CounterMemory,
    now: float,
    outputs: dict[Output, _Gathered],
) -> None:
    """Sort the row's series into the readings they belong to."""
    for key, value in series:
        model = _model_of(engine, key) or (models[0] if len(models) == 1 else "")
        matches = _matches(key, source.where)
        # A family that is there without this label value has counted none of it yet: its counter stands at 0.
        if not matches and source.metric.kind is not Kind.COUNTER:
            continue
        labels = source.fixed + ((("model", memory.model(model, now)),) if model else ())
        got = outputs.setdefault((source.metric.name, tuple(sorted(labels))), _Gathered(source.metric))
        if not matches:
            continue
        if isinstance(value, Reason):
            got.objection = value
            continue
        identity = _without_replicas(key)
        before = got.parts.get(identity)
        got.parts[identity] = (value if before is None else max(value, before[0]), source.scale)


def _matches(key: SeriesKey, where: tuple[tuple[str, tuple[str, ...]], ...]) -> bool:
    """Whether each label has one of its values; any but an empty one where none is given."""
    return all(key.label(label) in allowed if allowed else key.label(label) for label, allowed in where)


def _without_replicas(key: SeriesKey) -> SeriesKey:
    if not any(name in REPLICA_LABELS for name, _ in key.labels):
        return key
    rest = tuple(pair for pair in key.labels if pair[0] not in REPLICA_LABELS)
    return SeriesKey(key.name, rest, key.kind, key.part, key.le)


def _value(output: Output, got: _Gathered, memory: CounterMemory, now: float, problems: Counter[Reason]) -> Reading[float]:
    """A counter or a gauge. Missing one part the sum would be a lie, so a bad part makes the reading INVALID."""
    if got.objection is not None:
        return invalid(got.objection.value, now)
    if got.metric.kind is Kind.COUNTER:
        for key, (raw, scale) in got.parts.items():
            if memory.advance(output, key, (raw,), now, scale=scale) is None:
                problems[Reason.TOO_MANY_SERIES] += 1
                return invalid(Reason.TOO_MANY_SERIES.value, now)
        return present(memory.counter(output), now)
    return _gauge(got, now, problems)


def _gauge(got: _Gathered, now: float, problems: Counter[Reason]) -> Reading[float]:
    parts = [value * scale for value, scale in got.parts.values()]
    is_ratio = got.metric.unit is Unit.RATIO
    if min(parts) < 0 or (is_ratio and max(parts) > _RATIO_SLACK):
        problems[Reason.OUT_OF_RANGE] += 1
        return invalid(Reason.OUT_OF_RANGE.value, now)
    # NONE says that there is only ever one series; should there be more, the largest is the careful reading.
    merged = sum(parts) if got.metric.merge is Merge.SUM else max(parts)
    return present(min(merged, 1.0) if is_ratio else merged, now)


@dataclass(slots=True)
class _Series:
    """One source histogram while its lines are put together."""

    buckets: dict[float, float] = field(default_factory=dict)
    sum: float | None = None
    count: float | None = None


def _histogram(
    output: Output, got: _Gathered, memory: CounterMemory, now: float, problems: Counter[Reason]
) -> Reading[Histogram]:
    """One published histogram from its source histograms; INVALID as soon as one of them is."""
    reason = got.objection or _take_histograms(output, got, memory, now, problems)
    if isinstance(reason, Reason):
        if reason is not got.objection:
            problems[reason] += 1
        return Reading(Status.INVALID, None, now, reason.value)
    total = memory.total(output, reason)
    return present(Histogram(reason, total[:-1], total[-1]), now)


def _take_histograms(
    output: Output, got: _Gathered, memory: CounterMemory, now: float, problems: Counter[Reason]
) -> Reason | tuple[float, ...]:
    """Bucket bounds shared by all source histograms, or why there is nothing to publish."""
    checked = {key: _checked(series, _scale(got)) for key, series in _assembled(got).items()}
    for outcome in checked.values():
        if isinstance(outcome, Reason):
            return outcome
    whole = {key: outcome for key, outcome in checked.items() if isinstance(outcome, Histogram)}
    shapes = {histogram.bounds for histogram in whole.values()}
    if len(shapes) != 1:
        return Reason.BOUNDS_DIFFER
    for key, histogram in whole.items():
        raw = (*histogram.counts, histogram.sum)
        check = partial(_is_implausible, bounds=histogram.bounds)
        counted = memory.advance(output, key, raw, now, shape=histogram.bounds, implausible=check)
        if counted is None:
            return Reason.TOO_MANY_SERIES
        problems[Reason.IMPLAUSIBLE] += not counted
    return shapes.pop()


def _scale(got: _Gathered) -> float:
    return next(iter(got.parts.values()))[1]


def _assembled(got: _Gathered) -> dict[SeriesKey, _Series]:
    histograms: dict[SeriesKey, _Series] = {}
    for key, (value, _) in got.parts.items():
        series = histograms.setdefault(SeriesKey(key.name, key.labels, Kind.HISTOGRAM), _Series())
        if key.part is Part.BUCKET and key.le is not None:
            series.buckets[key.le] = value
        elif key.part is Part.SUM:
            series.sum = value
        elif key.part is Part.COUNT:
            series.count = value
    return histograms


def _checked(series: _Series, scale: float) -> Histogram | Reason:
    """The histogram in base units, or why it is none. Without finite buckets it still has a mean."""
    bounds = sorted(series.buckets)
    counts = [series.buckets[bound] for bound in bounds]
    if not bounds or bounds[-1] != math.inf or series.sum is None:
        return Reason.INCOMPLETE
    if any(lower > upper for lower, upper in pairwise(counts)):
        return Reason.NOT_MONOTONE
    if series.count is not None and series.count != counts[-1]:
        return Reason.COUNT_MISMATCH
    return Histogram(tuple(bound * scale for bound in bounds), tuple(counts), series.sum * scale)


def _is_implausible(growth: tuple[float, ...], bounds: tuple[float, ...]) -> bool:
    """Whether what was observed since the last page cannot be latencies (field report A7).

    No observation exceeds its bucket's bound or a day, so the sum has an upper limit. One more finite bound is allowed,
    because engines raise sum and bucket one after the other and a page may fall between the two.
    """
    counts, added_s = growth[:-1], growth[-1]
    in_bucket = [upper - lower for lower, upper in zip((0.0, *counts), counts, strict=False)]
    limit_s = sum(count * min(bound, catalog.MAX_REQUEST_S) for count, bound in zip(in_bucket, bounds, strict=True))
    finite = [bound for bound in bounds if math.isfinite(bound)]
    slack_s = finite[-1] if finite else catalog.MAX_REQUEST_S
    return added_s > limit_s + slack_s or added_s < -1e-6
