"""One backend's view as labelled series of the catalogue: which exist, with which labels, and which are left out.

Pure. An unknown value is no series. ``bounded`` keeps each label within the catalogue's bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tailkeeper_exporter import catalog
from tailkeeper_exporter.catalog import BY_NAME, Kind, Merge, Metric
from tailkeeper_exporter.engines import engine_named
from tailkeeper_exporter.evidence import TAP_STALE_S
from tailkeeper_exporter.gpu import FIELDS, THROTTLE_REASONS, DeviceState, GpuSnapshot
from tailkeeper_exporter.gpu.sampler import OTHER_XID
from tailkeeper_exporter.page import Labels, Reason
from tailkeeper_exporter.probe_answer import Outcome
from tailkeeper_exporter.readings import Histogram
from tailkeeper_exporter.state import State
from tailkeeper_exporter.views import REASONS, BackendView, Source, SourceView

_INFINITY = float("inf")


@dataclass(frozen=True, slots=True)
class Series:
    """One series. ``labels`` are in the catalogue's order, ``backend`` first."""

    metric: Metric
    labels: Labels
    value: float | Histogram


def series_of(view: BackendView, gpus: GpuSnapshot, now: float) -> Iterator[Series]:
    """All series of one backend as things stand at ``now``, those of one metric together."""
    yield from _engine_series(view)
    yield from _gauges(view, now)
    yield from _state(view)
    yield from _gpu_series(view, gpus, now)
    yield from _about_itself(view, gpus, now)


def _labelled(view: BackendView, metric: Metric, labels: Labels, value: float | Histogram) -> Series:
    """The series with the labels that only the configuration knows. A page without a model name has the configured one."""
    given = dict(labels)
    known = {
        "backend": view.name,
        "model": view.settings.model or "",
        "quantization": view.settings.quantization,
        "canary_revision": view.settings.canary_revision,
    }
    return Series(metric, tuple((name, given[name] if name in given else known[name]) for name in metric.label_names), value)


def _engine_series(view: BackendView) -> Iterator[Series]:
    yield from _tap_series(view)
    if view.idle_counters:
        yield from _at_zero(view)
        return
    for (name, labels), value in view.counters.items():
        yield _labelled(view, BY_NAME[name], labels, value)
    yield from _other_outcomes(view)
    for (name, labels), histogram in view.histograms.items():
        yield _labelled(view, BY_NAME[name], labels, histogram)


def _tap_series(view: BackendView) -> Iterator[Series]:
    """What the tap has counted. None of it is among what the page tells."""
    for (name, labels), value in view.tap.counters.items():
        yield _labelled(view, BY_NAME[name], labels, value)
    for (name, labels), histogram in view.tap.histograms.items():
        yield _labelled(view, BY_NAME[name], labels, histogram)


def _other_outcomes(view: BackendView) -> Iterator[Series]:
    """Outcomes that the engine can tell and its page has not counted yet stand at 0, so that the first one is an increase."""
    seen = {labels for name, labels in view.counters if name == catalog.REQUESTS.name}
    for model in {tuple(pair for pair in labels if pair[0] != "outcome") for labels in seen}:
        for outcome in engine_named(view.settings.engine).outcomes:
            labels = tuple(sorted((*model, ("outcome", outcome))))
            if labels not in seen:
                yield _labelled(view, catalog.REQUESTS, labels, 0.0)


def _at_zero(view: BackendView) -> Iterator[Series]:
    """An engine that is known not to run has counted nothing. Its page's own model and buckets replace these later."""
    metrics = dict.fromkeys(source.metric for source in engine_named(view.settings.engine).sources)
    for metric in metrics:
        if metric is catalog.REQUESTS:
            for outcome in engine_named(view.settings.engine).outcomes:
                yield _labelled(view, metric, (("outcome", outcome),), 0.0)
        elif metric.kind is Kind.COUNTER:
            yield _labelled(view, metric, (), 0.0)
        elif metric.kind is Kind.HISTOGRAM:
            bounds = (*metric.buckets, _INFINITY)
            yield _labelled(view, metric, (), Histogram(bounds, (0.0,) * len(bounds), 0.0))


def _gauges(view: BackendView, now: float) -> Iterator[Series]:
    # A page may be read once a minute; a tap that has been silent for seconds is gone.
    for gauges, stale_after_s in ((view.gauges, view.stale_after_s), (view.tap.gauges, TAP_STALE_S)):
        for (name, labels), reading in gauges.items():
            value = reading.at(now, stale_after_s).value
            if value is not None:
                yield _labelled(view, BY_NAME[name], labels, value)


def _state(view: BackendView) -> Iterator[Series]:
    for state in State:
        value = 1.0 if state is view.state else 0.0
        yield Series(catalog.BACKEND_STATE, (("backend", view.name), ("state", state.value)), value)
    if view.up is not None:
        yield Series(catalog.BACKEND_UP, (("backend", view.name),), float(view.up))


def _gpu_series(view: BackendView, gpus: GpuSnapshot, now: float) -> Iterator[Series]:
    for device in gpus.match(view.settings.gpus).devices:
        state = gpus.of(device.uuid)
        if state is not None:
            yield from _device(view, state, now)


def _device(view: BackendView, state: DeviceState, now: float) -> Iterator[Series]:
    base = (("backend", view.name), ("gpu", state.device.uuid))
    age = state.age_s(now)
    if age is not None:
        yield Series(catalog.GPU_SAMPLE_AGE, base, age)
    fresh = age is not None and age <= view.gpu_stale_after_s
    for field in FIELDS if state.sample is not None else ():
        value = state.sample.number(field.name).value if state.sample is not None else None
        if value is not None and (fresh or field.metric.kind is Kind.COUNTER):
            yield Series(field.metric, (*base, *(field.labels or {}).items()), value)
    throttled = state.sample.throttle_reasons.value if state.sample is not None and fresh else None
    for reason in THROTTLE_REASONS if throttled is not None else ():
        yield Series(catalog.GPU_THROTTLED, (*base, ("reason", reason)), float(reason in (throttled or ())))
    for xid, total in state.xid_totals.items():
        yield Series(catalog.GPU_XID_EVENTS, (*base, ("xid", catalog.OTHER if xid == OTHER_XID else str(xid))), float(total))


def _about_itself(view: BackendView, gpus: GpuSnapshot, now: float) -> Iterator[Series]:
    backend = ("backend", view.name)
    for source, seen in {**view.sources, **_gpu_source(view, gpus, now)}.items():
        labels = (backend, ("source", source.value))
        yield Series(catalog.SCRAPE_SUCCESS, labels, float(seen.success))
        if seen.duration_s is not None:
            yield Series(catalog.SCRAPE_DURATION, labels, max(0.0, seen.duration_s))
        yield Series(catalog.SCRAPE_AGE, labels, max(0.0, now - seen.good_s))
    invalid = Counter(view.invalid) + Counter({Reason.OUT_OF_RANGE.value: _invalid_fields(view, gpus)})
    for reason in REASONS:
        yield Series(catalog.INVALID_SAMPLES, (backend, ("reason", reason)), float(invalid[reason]))
    for metric in view.missing:
        yield Series(catalog.MISSING_METRICS, (backend, ("metric", metric)), 1.0)
    for outcome in Outcome:
        yield Series(catalog.PROBES, (backend, ("outcome", outcome.value)), float(view.probes.get(outcome, 0)))
    if view.probe is not None and view.probe.first_token_s is not None:
        yield Series(catalog.PROBE_DURATION, (backend,), view.probe.first_token_s)
    for signal, reading in view.saturated.items():
        value = reading.at(now, view.stale_after_s).value
        if value is not None:
            yield Series(catalog.QUANTILE_SATURATED, (backend, ("signal", signal)), value)


def _invalid_fields(view: BackendView, gpus: GpuSnapshot) -> int:
    """Fields of the backend's GPUs whose value no device can have; a source repeats them with each sample, as a page does."""
    states = (gpus.of(device.uuid) for device in gpus.match(view.settings.gpus).devices)
    return sum(state.invalid_total for state in states if state is not None)


def _gpu_source(view: BackendView, gpus: GpuSnapshot, now: float) -> dict[Source, SourceView]:
    """How the reading of this backend's GPUs goes: good when every one of them has a fresh sample."""
    if not view.settings.gpus:
        return {}
    matched = gpus.match(view.settings.gpus)
    states = [state for device in matched.devices if (state := gpus.of(device.uuid)) is not None]
    taken = [state.taken_s for state in states if state.taken_s is not None]
    complete = bool(states) and not matched.problems and len(taken) == len(states)
    fresh = complete and all(now - at <= view.gpu_stale_after_s for at in taken)
    return {Source.GPU: SourceView(fresh, None, min(taken) if complete else view.started_s, now)}


def bounded(series: Iterable[Series]) -> Iterator[tuple[Metric, list[Series]]]:
    """The series by metric, each label's values within its bound; the rest is ``other``, merged by the metric's rule."""
    by_name: dict[str, list[Series]] = {}
    for item in series:
        by_name.setdefault(item.metric.name, []).append(item)
    for members in by_name.values():
        metric = members[0].metric
        allowed = _allowed(metric, members)
        yield metric, members if allowed is None else _merged(metric, members, allowed)


def _allowed(metric: Metric, members: list[Series]) -> list[dict[str, None]] | None:
    """Per label the values that it may keep; None where all of them are within bounds, which is nearly always."""
    if len(members) <= min(label.bound for label in metric.labels):
        return None
    kept: list[dict[str, None]] = []
    exceeded = False
    for position, label in enumerate(metric.labels):
        values = dict.fromkeys(member.labels[position][1] for member in members)
        if len(values) > label.bound:
            exceeded = True
            # One place of the bound is for ``other`` itself.
            values = dict.fromkeys([value for value in values if value != catalog.OTHER][: label.bound - 1])
        kept.append(values)
    return kept if exceeded else None


def _merged(metric: Metric, members: list[Series], allowed: list[dict[str, None]]) -> list[Series]:
    merged: dict[Labels, float | Histogram] = {}
    for member in members:
        labels = tuple(
            (name, value if value in kept else catalog.OTHER) for (name, value), kept in zip(member.labels, allowed, strict=True)
        )
        merged[labels] = _together(metric, merged[labels], member.value) if labels in merged else member.value
    return [Series(metric, labels, value) for labels, value in merged.items()]


def _together(metric: Metric, a: float | Histogram, b: float | Histogram) -> float | Histogram:
    if isinstance(a, Histogram) and isinstance(b, Histogram):
        if a.bounds != b.bounds:
            return a
        return Histogram(a.bounds, tuple(x + y for x, y in zip(a.counts, b.counts, strict=True)), a.sum + b.sum)
    assert isinstance(a, float)
    assert isinstance(b, float)
    return a + b if metric.merge is Merge.SUM or metric.kind is Kind.COUNTER else max(a, b)
