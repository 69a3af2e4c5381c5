"""The watchdog's own ``/metrics``: its series from the last tick. What is unknown is not emitted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf, isfinite

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from tailkeeper_exporter.catalog import SIGNALS, Kind
from tailkeeper_exporter.catalog import Metric as Declared
from tailkeeper_exporter.readings import Histogram
from tailkeeper_watchdog import metrics
from tailkeeper_watchdog.api.documents import known_p99
from tailkeeper_watchdog.detectors import DETECTORS
from tailkeeper_watchdog.model import DRAIN, Backend, Finding, Knob, Outcome, Situation, TickRecord
from tailkeeper_watchdog.plan import RETURN_POLICY
from tailkeeper_watchdog.policies import POLICIES

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
ACCEPT_LIMIT_CHARS = 4_096
"""Ten times Prometheus 3's header."""

Value = float | Histogram | None
Series = tuple[Declared, Sequence[tuple[tuple[str, ...], Value]]]
"""A gauge, a counter or a histogram, and its values by labels; what is None is not emitted."""


class TickDurations:
    """Histogram of tick durations since the start."""

    def __init__(self) -> None:
        self.counts = [0] * (len(metrics.TICK_BUCKETS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self.sum += seconds
        for index, bound in enumerate((*metrics.TICK_BUCKETS, float("inf"))):
            if seconds <= bound:
                self.counts[index] += 1


def _gauge(declared: Declared, rows: Iterable[tuple[tuple[str, ...], Value]]) -> Metric:
    family = GaugeMetricFamily(declared.name, declared.help, labels=declared.label_names)
    for labels, value in rows:
        if isinstance(value, int | float) and isfinite(value):
            family.add_metric(labels, value)
    return family


def _family(declared: Declared, rows: Iterable[tuple[tuple[str, ...], Value]]) -> Metric:
    """As ``_gauge``, and a counter or a histogram for what is declared as one."""
    if declared.kind is Kind.HISTOGRAM:
        return _histogram(declared, rows)
    if declared.kind is not Kind.COUNTER:
        return _gauge(declared, rows)
    family = CounterMetricFamily(declared.name.removesuffix("_total"), declared.help, labels=declared.label_names)
    for labels, value in rows:
        if isinstance(value, int | float):
            family.add_metric(labels, value)
    return family


def _histogram(declared: Declared, rows: Iterable[tuple[tuple[str, ...], Value]]) -> Metric:
    family = HistogramMetricFamily(declared.name, declared.help, labels=declared.label_names)
    for labels, value in rows:
        if isinstance(value, Histogram):
            bounds = [*(str(bound) for bound in value.bounds[:-1]), "+Inf"]
            family.add_metric(labels, list(zip(bounds, value.counts, strict=True)), value.sum)
    return family


class WatchdogCollector(Collector):
    """One page from one record. Copies what the loop goes on counting, so that a page may be written beside it.

    ``paused`` None means that the switch cannot be read. ``more`` are series beside those of the record, asked for once.
    """

    def __init__(
        self,
        record: TickRecord | None,
        durations: TickDurations,
        counts: Mapping[tuple[str, Knob, Outcome], int],
        paused: bool | None,
        more: Iterable[Series] = (),
    ) -> None:
        self._record, self._paused, self._more = record, paused, more
        self._durations, self._duration_sum = tuple(durations.counts), durations.sum
        self._counts = dict(counts)

    def collect(self) -> Iterator[Metric]:
        yield _gauge(metrics.PAUSED, [((), None if self._paused is None else float(self._paused))])
        yield self._tick_duration()
        yield self._decisions()
        if self._record is not None:
            yield from _of_backends(self._record)
        for declared, rows in self._more:
            yield _family(declared, rows)

    def _tick_duration(self) -> Metric:
        bounds = (*metrics.TICK_BUCKETS, inf)
        return _histogram(metrics.TICK_DURATION, [((), Histogram(bounds, self._durations, self._duration_sum))])

    def _decisions(self) -> Metric:
        """Every combination exists at 0 from the start, so that the first decision of a kind is seen to rise."""
        declared = metrics.DECISIONS
        family = CounterMetricFamily(declared.name.removesuffix("_total"), declared.help, labels=declared.label_names)
        turned = [(policy.name, knob) for policy in POLICIES for knob in policy.knobs] + [(RETURN_POLICY, Knob.WEIGHT)]
        known = {(policy, knob, outcome) for policy, knob in turned for outcome in Outcome}
        for key in sorted(known | set(self._counts)):
            family.add_metric([key[0], key[1].value, key[2].value], self._counts.get(key, 0))
        return family


def _of_backends(record: TickRecord) -> Iterator[Metric]:
    situation = record.situation
    names = [b.name for b in situation.snapshot.backends]
    scores, seen = situation.scores, situation.snapshot.observations
    yield _gauge(metrics.HSCORE, (((n,), scores[n].hscore) for n in names if n in scores))
    known = [(n, scores[n]) for n in names if n in scores and scores[n].hscore is not None]
    yield _gauge(metrics.HSCORE_CONFIDENCE, (((n,), score.confidence) for n, score in known))
    yield _gauge(metrics.HSCORE_FACTOR, (((n, f.name), f.goodness) for n in names if n in scores for f in scores[n].factors))
    yield _gauge(
        metrics.DOMINANT_FACTOR, (((n, worst), 1.0) for n in names if n in scores and (worst := scores[n].dominant_factor))
    )
    yield _gauge(
        metrics.BACKEND_P99,
        (((n, s), q.value if (q := known_p99(situation, n, s)) else None) for n in names for s in SIGNALS),
    )
    yield _gauge(metrics.OBSERVATION_AGE, (((n,), seen[n].age_s) for n in names if n in seen))
    yield _gauge(metrics.DESIRED_WEIGHT, _desired_weights(record, names))
    yield _gauge(metrics.ACTUAL_WEIGHT, (((b.name,), _actual_weight(situation, b)) for b in situation.snapshot.backends))
    yield _gauge(metrics.DRIFT_ACTIVE, _drift(names, record.findings))


def _desired_weights(record: TickRecord, names: list[str]) -> Iterator[tuple[tuple[str, ...], float]]:
    """Normal where no policy wants anything. A tick that failed asked no policy, so nothing is known of their wishes."""
    if record.error is not None:
        return
    wanted = dict.fromkeys(names, 1.0)
    for wish in record.desired:
        if wish.knob is Knob.WEIGHT:
            wanted[wish.backend] = min(wanted.get(wish.backend, 1.0), float(wish.value))
        elif wish.knob is Knob.ADMISSION and wish.value == DRAIN:
            wanted[wish.backend] = 0.0
    for name in names:
        yield (name,), wanted[name]


def _actual_weight(situation: Situation, backend: Backend) -> float | None:
    """None where no gateway tells, or the normal weight is 0: then there is nothing to be a share of."""
    if situation.is_drained(backend):
        return 0.0
    weight = situation.knob(backend, Knob.WEIGHT)
    if weight is None or not float(weight.prior) > 0:
        return None
    return float(weight.actual) / float(weight.prior)


def _drift(names: list[str], findings: tuple[Finding, ...]) -> Iterator[tuple[tuple[str, ...], float]]:
    """Every backend × signal × detector that looks at what users get, so that a board can tell quiet from not looked at.

    A signal that is no latency (whether requests are answered at all) is the empty one.
    """
    active = {(f.backend, f.signal, f.kind) for f in findings}
    drifting = [(d.name, kind, signal) for d in DETECTORS for kind in d.kinds if d.name == kind.value for signal in d.signals]
    for name in names:
        for detector, kind, signal in drifting:
            yield (name, signal, detector), float((name, signal, kind) in active)


def render(collector: Collector, accept: str) -> tuple[bytes, str]:
    """Body and content type in the dialect that ``accept`` asks for."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    if wants_openmetrics(accept):
        return generate_openmetrics(registry), OPENMETRICS  # type: ignore[no-untyped-call]
    return generate_latest(registry), TEXT


def wants_openmetrics(accept: str) -> bool:
    """Whether OpenMetrics 1.0 is asked for, by name and no less than plain text. Everything else gets the text that every
    scraper reads; the header is never echoed, and garbage in it never fails."""
    best = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for entry in accept[:ACCEPT_LIMIT_CHARS].lower().split(","):
        media, *rest = (word.strip() for word in entry.split(";"))
        params = dict(word.split("=", 1) for word in rest if "=" in word)
        if media == "application/openmetrics-text" and params.get("version", "1.0.0") not in ("1.0.0", "0.0.1"):
            continue
        if media in best:
            best[media] = max(best[media], _quality(params.get("q", "1")))
    return best["application/openmetrics-text"] > 0 and best["application/openmetrics-text"] >= best["text/plain"]


def _quality(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0.0 <= value <= 1.0 else 0.0
