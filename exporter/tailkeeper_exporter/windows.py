"""Values that need two moments: rates, hit ratio, saturation and memory pressure from a short history of one backend.

Pure: readings and time in, numbers or None out; None is unknown and never becomes 0. A window says nothing before its third
page, so that no ratio rests on a single interval, and nothing across a gap longer than itself.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from tailkeeper_exporter import catalog
from tailkeeper_exporter.catalog import Metric
from tailkeeper_exporter.page import Labels
from tailkeeper_exporter.readings import Histogram, bucket_quantile

Output = tuple[str, Labels]

RATIO_WINDOW_S = 60.0
"""A minute, as the contract says of the hit ratio: long enough for a few hundred lookups, short enough to be about now."""
RATE_WINDOW_S = 10.0
"""Token and preemption rates are for decisions made each second; ten pages smooth out the engine's batches."""
MAX_MARKS = 64
"""Marks kept per window. Faster scraping keeps every n-th page, never more."""
MIN_MARKS = 3
WARM_SAMPLES = 10
"""GPU samples with the engine at work before its free memory counts as the warm baseline; about ten seconds."""
MIN_WARM_SHARE = 0.005
"""Of installed memory. A baseline below it is all rounding, and dividing by it would only show noise."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The counters of one page."""

    at_s: float
    counters: Mapping[Output, float]
    histograms: Mapping[Output, Histogram]


class Window:
    """Marks of the last ``span_s`` seconds, the newest always among them."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._marks: deque[Mark] = deque()
        self._pages = 0

    def add(self, mark: Mark) -> None:
        if self._marks and mark.at_s - self._marks[-1].at_s > self._span_s:
            self.clear()
        self._pages += 1
        close = len(self._marks) >= 2 and mark.at_s - self._marks[-2].at_s < self._span_s / (MAX_MARKS - 2)
        if close:
            self._marks.pop()
        self._marks.append(mark)
        while len(self._marks) > 2 and mark.at_s - self._marks[0].at_s > self._span_s:
            self._marks.popleft()

    def clear(self) -> None:
        self._marks.clear()
        self._pages = 0

    def ends(self) -> tuple[Mark, Mark] | None:
        """The oldest and the newest mark, once there have been enough pages."""
        if self._pages < MIN_MARKS or self._marks[-1].at_s <= self._marks[0].at_s:
            return None
        return self._marks[0], self._marks[-1]

    def growth(self, metric: Metric) -> float | None:
        """What the counter's series that are at both ends have grown by; None where there is none."""
        ends = self.ends()
        if ends is None:
            return None
        first, last = ends
        grown = [
            value - first.counters[output]
            for output, value in last.counters.items()
            if output[0] == metric.name and output in first.counters
        ]
        return sum(grown) if grown else None

    def rate(self, metric: Metric) -> float | None:
        """Growth per second."""
        ends, grown = self.ends(), self.growth(metric)
        return None if ends is None or grown is None else grown / (ends[1].at_s - ends[0].at_s)

    def observed(self, metric: Metric) -> Histogram | None:
        """What the metric's histograms have observed within the window, all models together where their bounds agree."""
        ends = self.ends()
        if ends is None:
            return None
        first, last = ends
        parts = [
            part
            for output, histogram in last.histograms.items()
            if output[0] == metric.name and output in first.histograms
            if (part := histogram.minus(first.histograms[output])) is not None
        ]
        if not parts or len({part.bounds for part in parts}) != 1:
            return None
        counts = tuple(map(sum, zip(*(part.counts for part in parts), strict=True)))
        return Histogram(parts[0].bounds, counts, sum(part.sum for part in parts))


def hit_ratios(window: Window) -> dict[Output, float]:
    """Prefix cache hits per query by model over the window. A model without a query has no ratio."""
    ends = window.ends()
    if ends is None:
        return {}
    first, last = ends[0].counters, ends[1].counters
    ratios: dict[Output, float] = {}
    for name, labels in last:
        queries, hits = (name, labels), (catalog.KV_HITS.name, labels)
        if name != catalog.KV_QUERIES.name or not all(output in side for output in (queries, hits) for side in (first, last)):
            continue
        asked, found = last[queries] - first[queries], last[hits] - first[hits]
        if asked > 0 and 0 <= found <= asked:
            ratios[(catalog.KV_HIT_RATIO.name, labels)] = found / asked
    return ratios


def saturation(window: Window) -> dict[str, bool]:
    """Per signal, whether P99 of the window lies above the last finite bucket. No observation, no entry."""
    found: dict[str, bool] = {}
    for signal, metric in catalog.SIGNAL_HISTOGRAMS.items():
        observed = window.observed(metric)
        quantile = bucket_quantile(observed, 0.99) if observed is not None else None
        if quantile is not None:
            found[signal] = quantile.saturated
    return found


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Memory of one device of the backend, bytes."""

    uuid: str
    total: float
    used: float

    @property
    def free(self) -> float:
        return max(0.0, self.total - self.used)


@dataclass(slots=True)
class Warmth:
    """Free memory of each device once the engine had warmed up: what its later headroom is measured against."""

    _samples: dict[str, list[float]] = field(default_factory=dict)
    _baseline: dict[str, float] = field(default_factory=dict)

    def take(self, devices: tuple[GpuMemory, ...]) -> None:
        """One sample of each device while the engine serves. Only the first ``WARM_SAMPLES`` matter."""
        for device in devices:
            if device.uuid not in self._baseline:
                samples = self._samples.setdefault(device.uuid, [])
                samples.append(device.free)
                if len(samples) >= WARM_SAMPLES:
                    self._baseline[device.uuid] = statistics.median(samples)

    def forget(self) -> None:
        """The engine has started anew: so does its warm-up."""
        self._samples.clear()
        self._baseline.clear()

    def headroom(self, devices: tuple[GpuMemory, ...]) -> float | None:
        """Free memory now as a share of the warm baseline, of the worst device; None before the baseline is known."""
        shares = []
        for device in devices:
            warm = self._baseline.get(device.uuid)
            if warm is None or warm < MIN_WARM_SHARE * device.total:
                return None
            shares.append(min(1.0, device.free / warm))
        return min(shares) if shares else None


def memory_headroom(devices: tuple[GpuMemory, ...], warmth: Warmth, preallocates: bool) -> float | None:
    """Share of memory that is left, of the worst device: of the warm baseline for engines that take all at start."""
    if preallocates:
        return warmth.headroom(devices)
    return min((device.free / device.total for device in devices if device.total > 0), default=None)


def vram_pressure(
    devices: tuple[GpuMemory, ...],
    warmth: Warmth,
    preallocates: bool,
    kv_usage_ratio: float | None,
    preemptions_per_s: float | None,
) -> float | None:
    """``llm_vram_pressure_ratio``: how near to running out. Of what is unknown nothing is assumed."""
    if not preallocates:
        return max((device.used / device.total for device in devices if device.total > 0), default=None)
    headroom = warmth.headroom(devices)
    parts = [
        kv_usage_ratio,
        None if headroom is None else 1.0 - headroom,
        None if preemptions_per_s is None else min(1.0, max(0.0, preemptions_per_s)),
    ]
    return max((part for part in parts if part is not None), default=None)


def token_efficiency(devices: tuple[GpuMemory, ...], tokens_per_s: float | None) -> float | None:
    """Tokens per second divided by the share of GPU memory in use, all devices of the backend together."""
    total, used = sum(d.total for d in devices), sum(d.used for d in devices)
    if tokens_per_s is None or total <= 0 or used <= 0:
        return None
    return tokens_per_s / (used / total)
