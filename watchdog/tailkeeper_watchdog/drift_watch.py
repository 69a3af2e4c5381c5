"""One backend under ``block_e``: its watch over records or buckets, and what an alarm of it tells people. Pure.

The watch changes in place and belongs to the loop. Nothing here decides what a drift is (``drift/``) or who is watched
(``detectors/block_e.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp, log1p
from operator import mul
from typing import Any

import numpy as np

from tailkeeper_watchdog.baseline_set import AnyBaseline, Form
from tailkeeper_watchdog.drift import (
    BLOCK_E,
    Baseline,
    BlockE,
    BucketBaseline,
    BucketCollector,
    BucketE,
    BucketReading,
    Collector,
    Rows,
)
from tailkeeper_watchdog.drift.load import predict
from tailkeeper_watchdog.drift.rows import AT, LATENCY, has_latency, has_load
from tailkeeper_watchdog.model import EMPTY, Severity

RECENT_ROWS = 256
"""The latest requests of a backend, for what an alarm shows of them."""
WHATEVER_LOAD = (1.0, 0.0, 0.0, 0.0)
"""What a baseline is asked for that takes no account of load."""
GATHERED, CONFIGURED, RESTORED = "gathered here", "watchdog.baselines", "gathered here before the last start"


@dataclass(slots=True)
class Alarm:
    """What is known of a drift since it was found. Times in epoch seconds, but ``last_at``, which is monotonic."""

    began_unix_s: float
    found_unix_s: float
    first_at: float
    last_at: float
    evidence: float
    blocks: int
    page_evidence: float | None = None
    """What it took, where the pool's evidence said page."""
    seen: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    """What was slow when it was last proved: as numbers for people."""


@dataclass(slots=True)
class Watch:
    """One backend over one form, in one life of its engine: a collector until there is a test."""

    epoch: int
    collector: Collector | BucketCollector | None = None
    test: BlockE | BucketE | None = None
    source: str = GATHERED
    why_new: str = ""
    fed_at: float = float("-inf")
    calm_unix_s: float = 0.0
    calm_block: int = 0
    alarm: Alarm | None = None
    recent: deque[tuple[float | None, ...]] = field(default_factory=lambda: deque(maxlen=RECENT_ROWS))
    readings: deque[BucketReading] = field(default_factory=lambda: deque(maxlen=7))
    """The latest ones of the buckets: a minute, for what an alarm shows of them."""

    @property
    def baseline(self) -> AnyBaseline | None:
        return None if self.test is None else self.test.baseline


def told_of(name: str, form: Form, watch: Watch, alarm: Alarm, usual_after_s: float) -> tuple[Severity, str, dict[str, Any]]:
    """How loud an alarm is, its sentence, and its evidence. ``usual_after_s`` after it was found it is no news any more."""
    baseline = watch.baseline
    is_raw = baseline is None or baseline.is_raw
    severity = Severity.INFO if is_raw else Severity.PAGE if alarm.page_evidence is not None else Severity.TICKET
    design = BLOCK_E if baseline is None else baseline.design
    evidence: dict[str, Any] = {
        "form": "request records" if form is Form.ROWS else "histogram buckets",
        "evidence": alarm.evidence,
        "limit": design.alarm_evidence,
        "page_evidence": alarm.page_evidence,
        "rising_since": alarm.began_unix_s,
        "blocks": alarm.blocks,
        "design": design.name,
        "last_alarm": alarm.found_unix_s + alarm.last_at - alarm.first_at,
        "taken_for_usual_at": None if watch.source == CONFIGURED else alarm.found_unix_s + usual_after_s,
        **alarm.seen,
        **_of_test(watch),
    }
    if is_raw:
        evidence["observed_only"] = getattr(baseline, "why_raw", None) or "it is not known under what load the requests came"
    return severity, _summary(name, form, evidence), evidence


def _summary(name: str, form: Form, evidence: Mapping[str, Any]) -> str:
    ratio = evidence.get("ratio")
    if form is Form.ROWS and ratio is not None:
        return (
            f"{name}: the first token takes {evidence['seen_s']:.3g} s where its load explains {evidence['expected_s']:.3g} s"
            f" (× {ratio:.2g}), over {evidence['requests']} requests"
        )
    shares = evidence.get("shares_above")
    if shares:
        worst = max(shares, key=lambda share: float(share["seen"] - share["explained"]))
        seen, explained = worst["seen"], worst["explained"]
        return f"{name}: {seen:.0%} of first tokens take over {worst['limit_s']:g} s where the load explains {explained:.0%}"
    return f"{name}: the first token takes longer than its load explains"


def _of_test(watch: Watch) -> dict[str, Any]:
    test, baseline = watch.test, watch.baseline
    if test is None or baseline is None:
        return {}
    blocks = len(baseline.statistics[0])
    told: dict[str, Any] = {
        "baseline": {
            "from": watch.source,
            "created": baseline.created_at_s,
            "requests": baseline.requests,
            "blocks": blocks,
            "model": baseline.model_id,
            "fit_ratio": baseline.fit_ratio,
        },
        "blocks_judged": test.evidence.blocks,
    }
    if isinstance(test, BlockE):
        counts = test.counts
        return told | {"scored": counts.scored, "abstained": counts.abstained, "without_load": counts.without_load}
    return told | {"abstained_blocks": test.abstained, "unknown_blocks": test.unknown, "broken_blocks": test.broken}


def seen_of(watch: Watch, since_unix_s: float) -> Mapping[str, Any]:
    """What is slow now, in the numbers of its form; of requests those since the evidence began to rise."""
    return _seen_rows(watch, since_unix_s) if isinstance(watch.test, BlockE) else _seen_buckets(watch)


def _seen_rows(watch: Watch, since_unix_s: float) -> dict[str, Any]:
    """The latest requests against what the load model expects of them: medians, seconds."""
    if not isinstance(watch.baseline, Baseline) or not watch.recent:
        return {}
    table = Rows.of(watch.recent).table
    table = table[has_latency(table) & (has_load(table) | watch.baseline.is_raw) & (table[:, AT] >= since_unix_s)]
    if not len(table):
        return {}
    seen_s, expected_s = float(np.median(table[:, LATENCY])), float(np.median(predict(watch.baseline.model, table)))
    return {"requests": len(table), "seen_s": seen_s, "expected_s": expected_s, "ratio": seen_s / expected_s}


def _seen_buckets(watch: Watch) -> dict[str, Any]:
    """Of the last minute, the share above each bound that is judged, and the share that the load explains."""
    baseline, readings = watch.baseline, watch.readings
    if not isinstance(baseline, BucketBaseline) or len(readings) < 2:
        return {}
    first, last = readings[0], readings[-1]
    since = last.histogram.minus(first.histogram) if first.histogram and last.histogram else None
    if since is None or since.bounds != baseline.bounds_s or since.count <= 0:
        return {}
    told: dict[str, Any] = {"requests": since.count, "seconds": last.at_s - first.at_s}
    load = WHATEVER_LOAD if baseline.is_raw else _load_of(first, last)
    if load is None:
        return told
    shares = [
        {
            "limit_s": limit_s,
            "seen": 1.0 - since.counts[since.bounds.index(limit_s)] / since.count,
            "explained": 1.0 / (1.0 + exp(-sum(map(mul, weights, load)))),
        }
        for limit_s, weights in zip(baseline.limits_s, baseline.weights, strict=True)
    ]
    return told | {"shares_above": shares}


def _load_of(first: BucketReading, last: BucketReading) -> tuple[float, float, float, float] | None:
    """As the bucket form sees it: 1, running, logarithm of waiting, thousands of tokens a second; None where one is unknown."""
    if last.running is None or last.waiting is None or first.tokens_total is None or last.tokens_total is None:
        return None
    seconds, tokens = last.at_s - first.at_s, last.tokens_total - first.tokens_total
    return (1.0, last.running, log1p(last.waiting), tokens / seconds * 1e-3) if seconds > 0 and tokens >= 0 else None
