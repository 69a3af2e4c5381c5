"""The watchdog's own ``/metrics``: its series from the last tick. What is unknown is not emitted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from tailkeeper_exporter.catalog import SIGNALS
from tailkeeper_exporter.catalog import Metric as Declared
from tailkeeper_watchdog import metrics
from tailkeeper_watchdog.detectors import DETECTORS
from tailkeeper_watchdog.model import Finding, Knob, Outcome, TickRecord
from tailkeeper_watchdog.policies import POLICIES


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


def _gauge(declared: Declared, rows: Iterable[tuple[tuple[str, ...], float | None]]) -> Metric:
    family = GaugeMetricFamily(declared.name, declared.help, labels=declared.label_names)
    for labels, value in rows:
        if value is not None:
            family.add_metric(labels, value)
    return family


class WatchdogCollector(Collector):
    """One page from one record."""

    def __init__(
        self,
        record: TickRecord | None,
        durations: TickDurations,
        counts: Mapping[tuple[str, Knob, Outcome], int],
        paused: bool,
    ) -> None:
        self._record, self._durations, self._counts, self._paused = record, durations, counts, paused

    def collect(self) -> Iterator[Metric]:
        yield _gauge(metrics.PAUSED, [((), float(self._paused))])
        yield self._tick_duration()
        yield self._decisions()
        if self._record is not None:
            yield from self._of_backends(self._record)

    def _tick_duration(self) -> Metric:
        declared = metrics.TICK_DURATION
        family = HistogramMetricFamily(declared.name, declared.help)
        bounds = [*(str(b) for b in metrics.TICK_BUCKETS), "+Inf"]
        family.add_metric([], list(zip(bounds, self._durations.counts, strict=True)), self._durations.sum)
        return family

    def _decisions(self) -> Metric:
        """Every combination exists at 0 from the start, so that the first decision of a kind is seen to rise."""
        declared = metrics.DECISIONS
        family = CounterMetricFamily(declared.name.removesuffix("_total"), declared.help, labels=declared.label_names)
        known = {(p.name, knob, outcome) for p in POLICIES for knob in p.knobs for outcome in Outcome}
        for key in sorted(known | set(self._counts)):
            family.add_metric([key[0], key[1].value, key[2].value], self._counts.get(key, 0))
        return family

    def _of_backends(self, record: TickRecord) -> Iterator[Metric]:
        situation = record.situation
        names = [b.name for b in situation.snapshot.backends]
        scores = situation.scores
        yield _gauge(metrics.HSCORE, (((n,), scores[n].hscore) for n in names if n in scores))
        yield _gauge(metrics.HSCORE_FACTOR, (((n, f.name), f.goodness) for n in names if n in scores for f in scores[n].factors))
        yield _gauge(
            metrics.BACKEND_P99,
            (((n, s), q.value if (q := situation.p99(n, s)) else None) for n in names for s in SIGNALS),
        )
        seen = situation.snapshot.observations
        yield _gauge(metrics.OBSERVATION_AGE, (((n,), seen[n].age_s) for n in names if n in seen))
        wanted = dict.fromkeys(names, 1.0)
        for wish in record.desired:
            if wish.knob is Knob.WEIGHT:
                wanted[wish.backend] = min(wanted.get(wish.backend, 1.0), float(wish.value))
            elif wish.knob is Knob.ADMISSION:
                wanted[wish.backend] = 0.0
        yield _gauge(metrics.DESIRED_WEIGHT, (((n,), wanted[n]) for n in names))
        yield _gauge(metrics.DRIFT_ACTIVE, self._drift(names, record.findings))

    @staticmethod
    def _drift(names: list[str], findings: tuple[Finding, ...]) -> Iterator[tuple[tuple[str, ...], float]]:
        active = {(f.backend, f.signal, f.kind) for f in findings}
        drifting = [(d, kind) for d in DETECTORS for kind in d.kinds if d.name == kind.value]
        for name in names:
            for detector, kind in drifting:
                yield (name, "ttft", detector.name), float((name, "ttft", kind) in active)


def render(collector: WatchdogCollector, accept: str) -> tuple[bytes, str]:
    """Body and content type in the dialect that ``accept`` asks for."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type
