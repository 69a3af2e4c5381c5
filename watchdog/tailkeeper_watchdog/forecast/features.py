"""What is known of a backend at a moment that may say how the next half minute will be. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, log1p

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Histogram
from tailkeeper_watchdog.forecast.linear import LOWEST_S
from tailkeeper_watchdog.model import BackendObservation
from tailkeeper_watchdog.samples import OUTCOME_SLOT

MIN_SAMPLES = 20
"""Fewer first tokens than this have no P99 worth the name."""
QUANTILE = 0.99
NAMES = ("ln_p99", "ln_p99_before", "ln_running", "ln_waiting", "arrivals_per_s", "prompt_ktokens_per_s", "kv_usage_ratio")
"""``ln_running`` and ``ln_waiting`` are of one more than there are, so that none is 0."""
Known = tuple[bool, ...]
"""Which of ``NAMES`` are known: backends that know the same are forecast alike."""
_FINISHED = tuple(OUTCOME_SLOT.values())
_TTFT = catalog.TTFT.name
_PROMPT_TOKENS, _GENERATED_TOKENS = catalog.PROMPT_TOKENS.name, catalog.GENERATED_TOKENS.name
_RUNNING, _WAITING, _KV_USAGE = catalog.RUNNING.name, catalog.WAITING.name, catalog.KV_USAGE.name


@dataclass(slots=True)
class Mark:
    """Counters and gauges of one backend at monotonic ``at``; None is not known. Nobody changes it; it is not frozen because
    to make a frozen one takes three times as long, and one is made for each backend at each step."""

    at: float
    first_tokens: Histogram | None
    finished: float | None
    prompt_tokens: float | None
    generated_tokens: float | None
    running: float | None
    waiting: float | None
    kv_usage: float | None


@dataclass(frozen=True, slots=True)
class Rows:
    """What one model is trained on: known features of each row, and what came of it."""

    rows: tuple[tuple[float, ...], ...]
    targets: tuple[float, ...]


def mark(seen: BackendObservation, at: float) -> Mark:
    value = seen.value
    finished = [known for slot in _FINISHED if (known := value(slot)) is not None]
    return Mark(
        at=at,
        first_tokens=seen.histograms.get(_TTFT),
        finished=sum(finished) if finished else None,
        prompt_tokens=value(_PROMPT_TOKENS),
        generated_tokens=value(_GENERATED_TOKENS),
        running=value(_RUNNING),
        waiting=value(_WAITING),
        kv_usage=value(_KV_USAGE),
    )


def rise(before: float | None, after: float | None) -> float | None:
    """By how much a counter rose; None where it is not known, or fell: an engine that restarted."""
    return None if before is None or after is None or after < before else after - before


def exact_p99_s(latencies_s: Sequence[float]) -> float | None:
    """The lower-rank P99 of these latencies; None with too few."""
    if len(latencies_s) < MIN_SAMPLES:
        return None
    return sorted(latencies_s)[int(QUANTILE * (len(latencies_s) - 1))]


def bucket_p99_s(before: Histogram | None, after: Histogram | None) -> float | None:
    """P99 of what came between two histograms, interpolated; None where it is not known, or only 'at least'.

    The same number as ``bucket_quantile`` of their difference, found without making that.
    """
    if before is None or after is None or before.bounds != after.bounds or len(after.bounds) < 2:
        return None
    early, late = before.counts, after.counts
    total = late[-1] - early[-1]
    if total < MIN_SAMPLES:
        return None
    rank, low, at = QUANTILE * total, 0, len(late) - 1
    while low < at:
        middle = (low + at) // 2
        if late[middle] - early[middle] >= rank:
            at = middle
        else:
            low = middle + 1
    if at == len(late) - 1:
        return None
    below_bound, below = (after.bounds[at - 1], late[at - 1] - early[at - 1]) if at else (0.0, 0.0)
    inside = late[at] - early[at] - below
    if below < 0 or inside <= 0:
        return None
    return below_bound + (after.bounds[at] - below_bound) * (rank - below) / inside


def vector(now: Mark, before: Mark, p99_s: float, p99_before_s: float) -> tuple[Known, tuple[float, ...]]:
    """The known features, in the order of ``NAMES``. ``before`` is the mark of one step ago."""
    seconds = now.at - before.at
    finished, prompts = rise(before.finished, now.finished), rise(before.prompt_tokens, now.prompt_tokens)
    in_flight = _sum(now.running, now.waiting), _sum(before.running, before.waiting)
    arrived = None
    if finished is not None and in_flight[0] is not None and in_flight[1] is not None:
        arrived = max(0.0, finished + in_flight[0] - in_flight[1])
    values = (
        log(max(LOWEST_S, p99_s)),
        log(max(LOWEST_S, p99_before_s)),
        None if now.running is None else log1p(max(0.0, now.running)),
        None if now.waiting is None else log1p(max(0.0, now.waiting)),
        None if arrived is None else arrived / seconds,
        None if prompts is None else prompts / seconds / 1e3,
        now.kv_usage,
    )
    return tuple([v is not None for v in values]), tuple([v for v in values if v is not None])


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
