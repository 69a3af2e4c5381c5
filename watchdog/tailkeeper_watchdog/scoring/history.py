"""What each backend did lately: differences of counters and buckets over a window. Pure.

A history keeps one sample every ``SPACING_S`` for ``WINDOW_S``, so its size is bounded (14 samples) whatever the tick.
Nothing is averaged over a gap: a sample that cannot be compared (other buckets, a counter that fell) starts anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Histogram, Quantile, bucket_quantile
from tailkeeper_watchdog.model import EMPTY, BackendObservation, Window

WINDOW_S = 60.0
RECENT_S = 10.0
SPACING_S = 5.0

_QUANTILES = (0.5, 0.95, 0.99)
_QUANTILE_HISTOGRAMS = {**{s: m.name for s, m in catalog.SIGNAL_HISTOGRAMS.items()}, "preprocess": catalog.PREPROCESS_TIME.name}
_MEANS = tuple(m.name for m in catalog.CATALOG if m.kind is catalog.Kind.HISTOGRAM)
_OUTCOME = {outcome: f"{catalog.REQUESTS.name}{{{outcome}}}" for outcome in catalog.OUTCOMES}
_COUNTERS = (
    *_OUTCOME.values(),
    catalog.GENERATED_TOKENS.name,
    catalog.PREEMPTIONS.name,
    catalog.KV_QUERIES.name,
    catalog.KV_HITS.name,
)


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters and histograms of one backend at one time."""

    at: float
    counters: Mapping[str, float]
    histograms: Mapping[str, Histogram]


@dataclass(frozen=True, slots=True)
class History:
    """Samples of one backend, oldest first. The last is always the newest seen."""

    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True)
class Windows:
    """The history of every backend, as a value that the loop owns."""

    histories: Mapping[str, History] = field(default_factory=lambda: EMPTY)


def take_sample(seen: BackendObservation, now: float) -> Sample:
    counters = {name: value for name in _COUNTERS if (value := seen.value(name)) is not None}
    return Sample(now, counters, seen.histograms)


def add(history: History, sample: Sample) -> History:
    """The history with ``sample`` as its newest, old ones thinned to the spacing and dropped past the window."""
    kept = [s for s in history.samples if sample.at - s.at <= WINDOW_S + SPACING_S and s.at < sample.at]
    if len(kept) >= 2 and kept[-1].at - kept[-2].at < SPACING_S:
        kept.pop()
    if kept and _went_back(kept[-1], sample):
        kept = []
    return History((*kept, sample))


def _went_back(earlier: Sample, later: Sample) -> bool:
    return any(later.counters.get(name, value) < value for name, value in earlier.counters.items())


def over(history: History, seconds: float, uptime_ratio: float | None = None) -> Window:
    """What happened between the newest sample and the one at least ``seconds`` before it (or the oldest there is)."""
    if len(history.samples) < 2:
        return Window(0.0, uptime_ratio=uptime_ratio)
    newest = history.samples[-1]
    older = [s for s in history.samples[:-1] if newest.at - s.at >= seconds]
    start = older[-1] if older else history.samples[0]
    span = newest.at - start.at
    deltas = {n: v - start.counters[n] for n, v in newest.counters.items() if n in start.counters}
    differences = {
        name: d for name, h in newest.histograms.items() if name in start.histograms and (d := h.minus(start.histograms[name]))
    }
    finished, failed = _finished(deltas)
    return Window(
        seconds=span,
        quantiles=_quantiles(differences),
        mean_s={n: differences[n].sum / differences[n].count for n in _MEANS if n in differences and differences[n].count > 0},
        error_ratio=failed / finished if finished else None,
        requests=finished,
        generated_tokens_per_s=_per_second(deltas.get(catalog.GENERATED_TOKENS.name), span),
        preemptions_per_s=_per_second(deltas.get(catalog.PREEMPTIONS.name), span),
        kv_miss_ratio=_miss_ratio(deltas),
        uptime_ratio=uptime_ratio,
    )


def _per_second(delta: float | None, span: float) -> float | None:
    return None if delta is None or span <= 0 else delta / span


def _finished(deltas: Mapping[str, float]) -> tuple[float | None, float]:
    """(finished, failed) requests. Aborted ones are the client's choice: neither good nor bad."""
    counted = [deltas[_OUTCOME[o]] for o in ("ok", "error", "rejected") if _OUTCOME[o] in deltas]
    if not counted or _OUTCOME["ok"] not in deltas:
        return None, 0.0
    return sum(counted), sum(deltas.get(_OUTCOME[o], 0.0) for o in ("error", "rejected"))


def _miss_ratio(deltas: Mapping[str, float]) -> float | None:
    queries, hits = deltas.get(catalog.KV_QUERIES.name), deltas.get(catalog.KV_HITS.name)
    if not queries or hits is None:
        return None
    return min(1.0, max(0.0, 1.0 - hits / queries))


def _quantiles(differences: Mapping[str, Histogram]) -> dict[tuple[str, float], Quantile]:
    found: dict[tuple[str, float], Quantile] = {}
    for signal, name in _QUANTILE_HISTOGRAMS.items():
        histogram = differences.get(name)
        if histogram is None:
            continue
        for q in _QUANTILES:
            quantile = bucket_quantile(histogram, q)
            if quantile is not None:
                found[(signal, q)] = quantile
    return found
