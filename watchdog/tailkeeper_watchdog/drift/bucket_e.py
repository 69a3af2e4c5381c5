"""``block_e`` over histogram bucket counts, for a backend of which only Prometheus knows. Pure.

Of each block it takes the share of requests above the bucket bound nearest to each anchor, as log odds, less what the
block's load explains; the rest is the evidence of `evidence.py`. Buckets are coarse, so it is slower than the form over requests.
The dead band is read between two bounds. A share above 1.1 × bound is then at most the share above the bound itself, so it errs
towards silence.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, log, log1p
from typing import Any

import numpy as np

from tailkeeper_exporter.readings import Histogram
from tailkeeper_watchdog.drift.baseline import MIN_LOADED_SHARE
from tailkeeper_watchdog.drift.blocks import DECIMALS
from tailkeeper_watchdog.drift.bucket_blocks import MOST_BOUNDS, BucketBlock, BucketCutter, BucketReading
from tailkeeper_watchdog.drift.collector import REQUESTS, SECONDS
from tailkeeper_watchdog.drift.design import BLOCK_E, DESIGNS, MIN_BASELINE_BLOCKS, Design
from tailkeeper_watchdog.drift.document import Fields
from tailkeeper_watchdog.drift.evidence import Evidence

VERSION = 1
FEATURES = 4
"""1, mean running, logarithm of mean waiting, thousands of tokens a second."""
CAPACITY_BLOCKS = 4_000
"""Eleven hours of ten-second blocks; a backend that has not made its requests by then forgets the oldest."""
MOST_LOG_ODDS = 50.0


@dataclass(frozen=True, slots=True)
class BucketBaseline:
    """What no drift looks like in buckets. One entry of ``limits_s``, ``weights`` and ``statistics`` for each anchor."""

    design: Design
    model_id: str
    created_at_s: float
    requests: int
    fit_ratio: float | None
    """Share of the variance of the log odds that the load explains, mean over the anchors; None where load was unknown."""
    bounds_s: tuple[float, ...]
    limits_s: tuple[float, ...]
    """The bounds nearest to the anchors."""
    weights: tuple[tuple[float, ...], ...]
    most_load: tuple[float, ...]
    """Running, waiting and tokens per second beyond which the load was never seen; empty where load was unknown."""
    statistics: tuple[tuple[float, ...], ...]
    min_requests: int

    @property
    def is_raw(self) -> bool:
        """Takes no account of load: to be observed, never acted on."""
        return self.fit_ratio is None

    def document(self) -> dict[str, Any]:
        """Plain JSON; the last bound is infinite and left out."""
        head = {"version": VERSION, "kind": "bucket_e", "design": self.design.name, "block_s": self.design.block_s}
        own = {n: getattr(self, n) for n in ("model_id", "created_at_s", "requests", "fit_ratio", "min_requests")}
        lists = {n: list(getattr(self, n)) for n in ("limits_s", "most_load")} | {"bounds_s": list(self.bounds_s[:-1])}
        tables = {n: [list(line) for line in getattr(self, n)] for n in ("weights", "statistics")}
        return head | own | lists | tables


def bucket_baseline(
    blocks: Sequence[BucketBlock], *, model_id: str, created_at_s: float, design: Design = BLOCK_E
) -> BucketBaseline:
    """Fit on blocks of one set of bounds. Raises ValueError with what is missing."""
    if len(blocks) < MIN_BASELINE_BLOCKS:
        raise ValueError(f"a baseline of {len(blocks)} blocks is too short: at least {MIN_BASELINE_BLOCKS} are needed")
    loaded = [block for block in blocks if block.load is not None]
    has_load = len(loaded) >= max(MIN_BASELINE_BLOCKS, MIN_LOADED_SHARE * len(blocks))
    blocks = loaded if has_load else blocks
    bounds_s = blocks[0].histogram.bounds
    limits_s = tuple(_nearest_bound(blocks, anchor) for anchor in design.anchors)
    loads = [block.load for block in loaded if block.load is not None]
    seen = np.array([_seen(load) for load in loads]) if has_load else np.eye(1, FEATURES).repeat(len(blocks), axis=0)
    counts = np.array([block.histogram.count for block in blocks])
    weights, statistics, ratios = [], [], []
    for limit_s in limits_s:
        odds = np.array([log_odds(block.histogram, limit_s) for block in blocks])
        root = np.sqrt(counts)
        fitted, *_ = np.linalg.lstsq(seen * root[:, None], odds * root, rcond=None)
        left = odds - seen @ fitted
        weights.append(tuple(fitted.tolist()))
        statistics.append(tuple(sorted(round(value, DECIMALS) for value in left.tolist())))
        ratios.append(1.0 - float(left.var() / odds.var()) if odds.var() > 0 else 0.0)
    most = np.quantile(np.array(loads), design.envelope, axis=0).tolist() if has_load else []
    least = max(1, design.block_rows, int(design.min_block_share * float(np.median(counts))))
    fit_ratio = max(0.0, float(np.mean(ratios))) if has_load else None
    head = (design, model_id, created_at_s, int(counts.sum()), fit_ratio, bounds_s, limits_s)
    return BucketBaseline(*head, tuple(weights), tuple(most), tuple(statistics), least)


def log_odds(histogram: Histogram, limit_s: float) -> float:
    """Of a request being above ``limit_s``; half a request on each side keeps it finite.

    A page whose lower bucket rose by more than all of them says that none is above, and cannot end the tick.
    """
    count = histogram.count
    above = min(count, max(0.0, count - _count_up_to(histogram, limit_s)))
    return log((above + 0.5) / (count - above + 0.5))


def _count_up_to(histogram: Histogram, limit_s: float) -> float:
    """Linear in ln(seconds) between two bounds; above the last finite bound nobody knows, so all are counted below."""
    bounds, counts = histogram.bounds, histogram.counts
    index = bisect_right(bounds, limit_s) - 1
    if index < 0:
        return counts[0] * min(1.0, limit_s / bounds[0])
    if bounds[index] == limit_s or index + 1 >= len(bounds):
        return counts[index]
    if not isfinite(bounds[index + 1]):
        return counts[index + 1]
    share = log(limit_s / bounds[index]) / log(bounds[index + 1] / bounds[index])
    return counts[index] + share * (counts[index + 1] - counts[index])


def _nearest_bound(blocks: Sequence[BucketBlock], quantile: float) -> float:
    """The finite bound whose share of requests is nearest, in log odds, to the anchor's."""
    finite = [i for i, bound in enumerate(blocks[0].histogram.bounds) if isfinite(bound)]
    totals = np.array([block.histogram.counts for block in blocks]).sum(axis=0)
    shares = np.clip(totals / max(totals[-1], 1.0), 1e-6, 1 - 1e-6)
    away = np.abs(np.log(shares / (1 - shares)) - log(quantile / (1 - quantile)))
    return blocks[0].histogram.bounds[min(finite, key=lambda i: float(away[i]))]


def _seen(load: tuple[float, float, float]) -> tuple[float, ...]:
    """What the load model sees of a block."""
    running, waiting, tokens_per_s = load
    return (1.0, running, log1p(waiting), tokens_per_s * 1e-3)


def bucket_baseline_from_document(document: Mapping[str, Any]) -> BucketBaseline:
    """What ``document()`` wrote. Raises ValueError naming the field that cannot be right."""
    fields = Fields(document, "baseline")
    fields.equals("version", VERSION)
    fields.equals("kind", "bucket_e")
    design = DESIGNS.get(fields.text("design"))
    if design is None:
        raise fields.error("design", f"one of {', '.join(sorted(DESIGNS))}")
    fields.equals("block_s", design.block_s)
    anchors = len(design.anchors)
    fit_ratio = fields.optional_number("fit_ratio", 0, 1)
    limits_s = fields.numbers("limits_s", anchors, 1e-9, 1e9)
    bounds_s = (*fields.any_numbers("bounds_s", 1, MOST_BOUNDS - 1, 1e-9, 1e9, ascending=True), float("inf"))
    if not set(limits_s) <= set(bounds_s):
        raise fields.error("limits_s", "some of bounds_s")
    return BucketBaseline(
        design,
        fields.text("model_id"),
        fields.number("created_at_s", 0, 1e11),
        int(fields.number("requests", 1, 1e15)),
        fit_ratio,
        bounds_s,
        limits_s,
        fields.number_lists("weights", anchors, FEATURES, FEATURES, -1e9, 1e9),
        fields.numbers("most_load", 0 if fit_ratio is None else FEATURES - 1, 0, 1e12),
        fields.number_lists("statistics", anchors, MIN_BASELINE_BLOCKS, 100_000, -MOST_LOG_ODDS, MOST_LOG_ODDS, ascending=True),
        int(fields.number("min_requests", 1, 1e9)),
    )


class BucketCollector:
    """Gathers the blocks of one backend's baseline; begins again where the bounds change."""

    def __init__(self, *, design: Design = BLOCK_E, requests: int = REQUESTS, seconds: float = SECONDS) -> None:
        self._design, self._need, self._need_s = design, requests, seconds
        self._cutter = BucketCutter(design.block_s, max(1, design.block_rows))
        self._blocks: deque[BucketBlock] = deque(maxlen=CAPACITY_BLOCKS)

    def add(self, reading: BucketReading) -> None:
        block = self._cutter.add(reading)
        if block is None:
            return
        if self._blocks and self._blocks[0].histogram.bounds != block.histogram.bounds:
            self._blocks.clear()
        self._blocks.append(block)

    def missing(self) -> str | None:
        """What is still missing, in words; None when nothing is."""
        requests = sum(block.histogram.count for block in self._blocks)
        observed_s = len(self._blocks) * self._design.block_s
        if requests >= self._need and observed_s >= self._need_s:
            return None
        return (
            f"a baseline needs {self._need:,} requests and {self._need_s / 60:.0f} min; "
            f"so far {requests:,.0f} and {observed_s / 60:.0f} min"
        )

    def fit(self, *, model_id: str, created_at_s: float) -> BucketBaseline:
        """Raises ValueError with what is missing."""
        missing = self.missing()
        if missing is not None:
            raise ValueError(missing)
        return bucket_baseline(tuple(self._blocks), model_id=model_id, created_at_s=created_at_s, design=self._design)


class BucketE:
    """The running test of one backend, over readings of its histogram."""

    def __init__(self, baseline: BucketBaseline) -> None:
        self.baseline = baseline
        self.evidence = Evidence(baseline.statistics, baseline.design)
        self.abstained = 0
        """Blocks under a load that the baseline never saw."""
        self.unknown = 0
        """Blocks of unknown load, or of other bounds than the baseline's."""
        self._cutter = BucketCutter(baseline.design.block_s, baseline.min_requests)

    @property
    def broken(self) -> int:
        return self._cutter.broken

    def update(self, reading: BucketReading) -> float | None:
        """The evidence at which this reading raised an alarm, if it did."""
        block = self._cutter.add(reading)
        if block is None:
            return None
        statistics = self._statistics(block)
        return None if statistics is None else self.evidence.add(statistics)

    def _statistics(self, block: BucketBlock) -> tuple[float, ...] | None:
        baseline = self.baseline
        load = (0.0, 0.0, 0.0) if baseline.is_raw else block.load
        if load is None or block.histogram.bounds != baseline.bounds_s:
            self.unknown += 1
            return None
        if not baseline.is_raw and any(value > most for value, most in zip(load, baseline.most_load, strict=True)):
            self.abstained += 1
            return None
        seen = _seen(load)
        ratio = baseline.design.dead_band_ratio
        return tuple(
            round(log_odds(block.histogram, limit_s * ratio) - sum(a * b for a, b in zip(seen, weights, strict=True)), DECIMALS)
            for limit_s, weights in zip(baseline.limits_s, baseline.weights, strict=True)
        )
