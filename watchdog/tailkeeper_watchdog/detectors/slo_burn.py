"""How fast a backend spends its error budget: requests over the SLO's latencies, and requests that failed. Pure.

Absolute, whatever the load and whatever was usual: this is what ``block_e``, which forgives what load explains, leaves out.
Two windows must agree, the long one that it matters and the short one that it still goes on (Google's SRE workbook, chapter
5): burn 14.4 over an hour and five minutes pages (2 % of a month's budget gone in an hour), burn 6 over six hours and
thirty minutes is a ticket (5 % in six hours). Shares of few requests mean little, so a rule needs 10 bad requests, 2 of them
in its short window and 2 before its latest moments: neither one failed request at night nor one burst of a cold engine wakes
anybody. Where there are too few requests for that, most of them must have failed over six hours, and still fail: 90 %
failures at a trickle do page. And where of the latest requests a quarter failed, five at least, that is a ticket at once: the
breaker takes such a backend out before more have failed, and people are to know why. Nothing is told for the first time without
a bad request since the last look: what has healed meanwhile calls nobody any more.

What was refused counts as failed, but not at a backend where a change of ours has requests refused (a drain, a limit, a degrade
level): that is what was wanted of it, and an alarm that it kept up would be of our own making.

Late requests are counted from request records where a backend has them, else from its buckets. A bound inside a bucket is
taken as the bucket's upper end: only requests that were surely late are counted, and the evidence says so. Records have one
inter-token latency for each request, buckets one for each token. Aborted requests are the clients' choice and not counted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import nan

import numpy as np
from numpy.typing import NDArray

from tailkeeper_exporter import catalog
from tailkeeper_watchdog.columns import Columns, columns
from tailkeeper_watchdog.detectors.base import Detector, Symptom, is_latency
from tailkeeper_watchdog.forgetting import without
from tailkeeper_watchdog.metrics import (
    BREAKER_ERROR_RATIO,
    BREAKER_FAILURES,
    BREAKER_REQUESTS,
    BURN_BAD_BEFORE,
    BURN_BAD_LONG,
    BURN_BAD_SHORT,
    BURN_FAST,
    BURN_MOST,
    BURN_SLOW,
    BURN_TRICKLE,
    TRICKLE_BAD,
    trickle_share,
)
from tailkeeper_watchdog.model import EMPTY, FindingKind, Knob, RequestRecord, Severity, Situation, Slo
from tailkeeper_watchdog.samples import OUTCOME_SLOT, SIGNAL_HISTOGRAM
from tailkeeper_watchdog.table import Table

MINUTE_S, HOUR_S = 60.0, 3_600.0
SPACING_S = 10.0
"""Between two looks at the fleet's counters. They lose nothing meanwhile, and the shortest window is five minutes."""
RECORDS_FRESH_S = 60.0
"""For so long after a backend's last record its buckets are not counted: both tell of the same requests."""
FAILED = ""
"""The signal of what is no latency: whether requests are answered at all."""
SIGNALS = (*catalog.SIGNALS, FAILED)

REFUSING = frozenset({Knob.ADMISSION, Knob.CONCURRENCY_LIMIT, Knob.DEGRADE_LEVEL})
"""Knobs by which a tap refuses requests."""

WIDTH = 2 * len(SIGNALS)
Counts = NDArray[np.float64]
"""One line for each backend, and for each signal how many requests were bad, and how many were counted."""


class Burn(StrEnum):
    """The rules, as the evidence and the alerts name them."""

    FAST = "fast"
    SLOW = "slow"
    TRICKLE = "trickle"
    SURGE = "surge"


@dataclass(frozen=True, slots=True)
class Rule:
    """The windows and rates of ``metrics``, which Prometheus' own rules have as well."""

    name: Burn
    rate: float
    long_s: float
    short_s: float
    latest_s: float
    severity: Severity


FAST = Rule(Burn.FAST, *BURN_FAST, Severity.PAGE)
SLOW = Rule(Burn.SLOW, *BURN_SLOW, Severity.TICKET)
TRICKLE = Rule(Burn.TRICKLE, *BURN_TRICKLE, Severity.PAGE)
RULES = (FAST, TRICKLE, SLOW)
"""Loudest first: of one signal only the first rule that holds is told."""
KEPT_S = SLOW.long_s
_SPACINGS_S = ((5 * MINUTE_S, MINUTE_S), (HOUR_S, 5 * MINUTE_S), (KEPT_S, 30 * MINUTE_S))
"""Snapshots up to this age are this far apart: some thirty of them, whatever the tick. A window is longer by that at most."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    at: float
    counts: Counts


@dataclass(frozen=True, slots=True)
class Memory:
    """``counts`` has a line for each of ``names``, from 0 at its first sight; ``snapshots`` are the same lines earlier."""

    names: tuple[str, ...] = ()
    counts: Counts = field(default_factory=lambda: np.zeros((0, WIDTH)))
    raw: Counts = field(default_factory=lambda: np.zeros((0, WIDTH + 1)))
    """The backends' own counters when they were last seen, and last in the line what they refused; NaN where not published."""
    snapshots: tuple[Snapshot, ...] = ()
    told_at: Mapping[str, float] = field(default_factory=lambda: EMPTY)
    """When each backend with request records last told of one."""
    taken_at: float = float("-inf")
    found: tuple[Symptom, ...] = ()
    """What the last look at the counters found."""
    ordered_at: Mapping[str, float] = field(default_factory=lambda: EMPTY)
    """When a change of ours last had requests refused at a backend, as far as it matters still; monotonic seconds."""


def detect(situation: Situation, memory: Memory) -> tuple[Memory, tuple[Symptom, ...]]:
    now = situation.snapshot.now
    due = now - memory.taken_at >= SPACING_S
    if not due and not situation.records:
        return memory, memory.found
    fleet = columns(situation)
    memory = _with_records(_with_new(memory, fleet.names), situation)
    memory = replace(memory, ordered_at=_ordered(memory, situation))
    if not due:
        return memory, _with_surges(situation, _failing(situation), memory)
    raw = Table(fleet.names, _raw(fleet, situation.slo)).of(memory.names, (nan,) * (WIDTH + 1))
    has_records = np.array(
        [now - memory.told_at.get(name, float("-inf")) <= RECORDS_FRESH_S for name in memory.names], dtype=bool
    )
    ours = np.array([name in memory.ordered_at for name in memory.names], dtype=bool)
    counts = memory.counts + _rise(memory.raw, raw, has_records, ours)
    snapshots = (*(memory.snapshots or (Snapshot(now, np.zeros_like(counts)),)), Snapshot(now, counts))
    found = tuple(_symptoms(situation, memory, snapshots))
    raw = np.where(np.isnan(raw), memory.raw, raw)
    kept = thinned(snapshots, now)
    memory = replace(memory, counts=counts, raw=raw, snapshots=kept, taken_at=now, found=found)
    surging = _maybe_surging(fleet)
    return memory, _with_surges(situation, [name for name in memory.names if name in surging], memory)


def _ordered(memory: Memory, situation: Situation) -> dict[str, float]:
    """With those where it is so now. What was refused is in the counters and windows of the next two looks too."""
    now = situation.snapshot.now
    since = min(now, memory.taken_at) - 2 * SPACING_S
    kept = {name: at for name, at in memory.ordered_at.items() if at >= since}
    targets = {target for target, knob in situation.prior if knob in REFUSING}
    if targets:
        kept |= {b.name: now for b in situation.snapshot.backends if not targets.isdisjoint(b.targets)}
    return kept


def _with_records(memory: Memory, situation: Situation) -> Memory:
    """With the requests that were told of at this tick."""
    if not situation.records:
        return memory
    counts, told_at = memory.counts.copy(), dict(memory.told_at)
    row_of = {name: row for row, name in enumerate(memory.names)}
    for name, records in situation.records.items():
        counts[row_of[name]] += _of_records(records, situation.slo)
        told_at[name] = situation.snapshot.now
    return replace(memory, counts=counts, told_at=told_at)


def _with_new(memory: Memory, fleet: tuple[str, ...]) -> Memory:
    """With a line for every backend; a new one has counted nothing so far, earlier neither."""
    if memory.names == fleet:
        return memory
    known = set(memory.names)
    new = tuple(name for name in fleet if name not in known)
    if not new:
        return memory
    lines = np.zeros((len(new), WIDTH))
    return replace(
        memory,
        names=(*memory.names, *new),
        counts=np.vstack((memory.counts, lines)),
        raw=np.vstack((memory.raw, np.full((len(new), WIDTH + 1), np.nan))),
        snapshots=tuple(Snapshot(s.at, np.vstack((s.counts, lines))) for s in memory.snapshots),
    )


def forget(memory: Memory, gone: frozenset[str]) -> Memory:
    """The memory without the lines of backends that are gone."""
    rows = [row for row, name in enumerate(memory.names) if name not in gone]
    if len(rows) == len(memory.names):
        return memory
    return replace(
        memory,
        names=tuple(memory.names[row] for row in rows),
        counts=memory.counts[rows],
        raw=memory.raw[rows],
        snapshots=tuple(Snapshot(s.at, s.counts[rows]) for s in memory.snapshots),
        told_at=without(memory.told_at, gone),
        ordered_at=without(memory.ordered_at, gone),
        found=tuple(symptom for symptom in memory.found if symptom.backend not in gone),
    )


# What is counted


def _bounds_s(slo: Slo) -> tuple[float, float, float]:
    """In the order of the catalogue's signals."""
    return slo.ttft_p99_s, slo.itl_p99_s, slo.e2e_p99_s


def _of_records(records: tuple[RequestRecord, ...], slo: Slo) -> Counts:
    line = np.zeros(WIDTH)
    for record in records:
        for index, bad in enumerate(_verdicts(record, slo)):
            if bad is not None:
                line[2 * index] += bad
                line[2 * index + 1] += 1
    # Whether requests fail is counted by the counters alone: a request refused at the door has no record.
    line[-2:] = 0
    return line


def _verdicts(record: RequestRecord, slo: Slo) -> Iterator[bool | None]:
    """For each latency whether it was late; None where it says nothing. An aborted one did see its first token."""
    ended = {"ok": (True, True, True), "aborted": (True, False, False)}.get(record.outcome or "", (False, False, False))
    latencies = (record.ttft_s, record.itl_s, record.e2e_s)
    for counts, value, bound_s in zip(ended, latencies, _bounds_s(slo), strict=True):
        yield value > bound_s if counts and value is not None and is_latency(value) else None


_BY_SIGNAL = tuple(SIGNAL_HISTOGRAM[signal] for signal in catalog.SIGNALS)
_OK, _ERROR, _REJECTED = (OUTCOME_SLOT[outcome] for outcome in ("ok", "error", "rejected"))


def _raw(fleet: Columns, slo: Slo) -> Counts:
    """A line for each backend's own counters: for each signal the bad ones and all of them, and last those refused; NaN where it
    is not known. Late ones are counted where they surely are.

    Unknown, too, where nobody tells which requests failed: an outcome that appears late is no burst of all that ever failed.
    """
    standing = fleet.standing
    late = [column for name, limit_s in zip(_BY_SIGNAL, _bounds_s(slo), strict=True) for column in standing.above(name, limit_s)]
    ok, errors = standing.of(_OK), standing.of(_ERROR)
    return np.column_stack((*late, np.where(np.isnan(ok), nan, errors), ok + errors, standing.of(_REJECTED)))


def _rise(before: Counts, after: Counts, has_records: NDArray[np.bool_], ours: NDArray[np.bool_]) -> Counts:
    """What the counters rose by. One that fell begins anew, and what it lost is not known; latencies that records told of
    are not counted a second time, and what was refused because of us, or is not told at both ends, not at all."""
    change = after - before
    rise, refused = change[:, :WIDTH], change[:, WIDTH:]
    rise[:, -2:] += np.where((refused > 0) & ~ours[:, np.newaxis], refused, 0.0)
    bad, counted = rise[:, ::2], rise[:, 1::2]
    good = (bad >= 0) & (bad <= counted) & np.isfinite(counted)
    good[has_records, :-1] = False
    return np.where(np.repeat(good, 2, axis=1), rise, 0.0)


# What it means


def thinned(snapshots: tuple[Snapshot, ...], now: float) -> tuple[Snapshot, ...]:
    """Older ones further apart, and of those beyond the longest window only the newest."""
    kept: list[Snapshot] = []
    for snapshot in snapshots:
        age = now - snapshot.at
        spacing = next((spacing for limit, spacing in _SPACINGS_S if age <= limit), None)
        if spacing is None:
            kept = [snapshot]
        elif not kept or snapshot.at - kept[-1].at >= spacing or snapshot is snapshots[-1]:
            kept.append(snapshot)
    return tuple(kept)


def _over(snapshots: tuple[Snapshot, ...], seconds: float) -> Counts:
    """What was counted in the last ``seconds``, or since the beginning where that is shorter."""
    newest = snapshots[-1]
    start = next((s for s in reversed(snapshots) if newest.at - s.at >= seconds), snapshots[0])
    return newest.counts - start.counts


def _share(rule: Rule, budget: float) -> float:
    """Of the requests that must be bad. An objective so loose that nobody could burn so fast needs nearly all of them."""
    return trickle_share(budget) if rule.name is Burn.TRICKLE else min(BURN_MOST, rule.rate * budget)


def _goes_on(counts: Counts, share: float) -> NDArray[np.bool_]:
    return np.asarray(counts[:, ::2] >= np.maximum(1, share * counts[:, 1::2]), dtype=np.bool_)


def _holds(rule: Rule, long: Counts, short: Counts, latest: Counts, budget: float) -> NDArray[np.bool_]:
    """For each backend and signal. ``latest`` is what was counted within the rule's ``latest_s``."""
    bad_long, all_long, bad_short, all_short = long[:, ::2], long[:, 1::2], short[:, ::2], short[:, 1::2]
    bad_latest = latest[:, ::2]
    least_long, least_short = (TRICKLE_BAD, 1) if rule.name is Burn.TRICKLE else (BURN_BAD_LONG, BURN_BAD_SHORT)
    share = _share(rule, budget)
    enough = (bad_long >= least_long) & (bad_short >= least_short)
    lasts = (bad_long - bad_latest >= BURN_BAD_BEFORE) & _goes_on(latest, share)
    return np.asarray(enough & lasts & (bad_long >= share * all_long) & (bad_short >= share * all_short), dtype=np.bool_)


def _symptoms(situation: Situation, memory: Memory, snapshots: tuple[Snapshot, ...]) -> Iterator[Symptom]:
    """``memory`` is that of the last look, ``snapshots`` end with this one."""
    budget, names, told_at = 1.0 - situation.slo.objective, memory.names, memory.told_at
    since_last_look = snapshots[-1].counts - snapshots[-2].counts
    going_on = {(symptom.backend, symptom.signal, symptom.evidence["rule"]) for symptom in memory.found}
    told: set[tuple[int, int]] = set()
    for rule in RULES:
        long, short, latest = (_over(snapshots, seconds) for seconds in (rule.long_s, rule.short_s, rule.latest_s))
        goes_on = _goes_on(since_last_look, _share(rule, budget))
        for row, index in np.argwhere(_holds(rule, long, short, latest, budget)).tolist():
            known = (names[row], SIGNALS[index], rule.name.value) in going_on
            if (row, index) not in told and (known or goes_on[row, index]):
                told.add((row, index))
                pair = slice(2 * index, 2 * index + 2)
                yield _symptom(situation, names[row], index, rule, (long[row, pair], short[row, pair]), names[row] in told_at)


def _with_surges(situation: Situation, names: Iterable[str], memory: Memory) -> tuple[Symptom, ...]:
    """What the last look found, and the surges among ``names``, where their failures are not told of louder already."""
    told = {symptom.backend for symptom in memory.found if symptom.signal == FAILED}
    surges = (s for name in names if name not in told for s in _surge(situation, name, name in memory.ordered_at))
    return (*memory.found, *surges)


def _maybe_surging(fleet: Columns) -> frozenset[str]:
    """Those of whose requests enough failed lately, refused ones among them."""
    _, failed = fleet.lately.finished()
    return frozenset(fleet.names[place] for place in np.flatnonzero(failed >= BREAKER_FAILURES))


def _failing(situation: Situation) -> list[str]:
    """Those of whose requests one was told to have failed at this tick: few, where a look at all would cost the tick."""
    return [n for n, told in situation.records.items() if any(r.outcome in ("error", "rejected") for r in told)]


def _surge(situation: Situation, name: str, ours: bool) -> Iterator[Symptom]:
    """In the short window that the breaker of ``gpu_health_gate`` looks at, and by what it has as its defaults."""
    window = situation.recent.get(name)
    finished = None if window is None else window.taken if ours else window.finished
    if window is None or finished is None:
        return
    counted, failed = finished
    if counted < BREAKER_REQUESTS or failed < max(BREAKER_FAILURES, BREAKER_ERROR_RATIO * counted):
        return
    evidence = {
        "rule": Burn.SURGE.value,
        "objective": situation.slo.objective,
        "burn": failed / counted / (1.0 - situation.slo.objective),
        "window_s": window.seconds,
        "bad": failed,
        "requests": counted,
    }
    summary = f"{name}: {failed:.0f} of {counted:.0f} requests failed in the last {window.seconds:.0f} s"
    yield Symptom(FindingKind.SLO_BURN, name, Severity.TICKET, summary, evidence, FAILED)


def _symptom(
    situation: Situation, name: str, index: int, rule: Rule, windows: tuple[Counts, Counts], has_records: bool
) -> Symptom:
    slo, signal = situation.slo, SIGNALS[index]
    (bad, counted), (bad_short, counted_short) = windows[0].tolist(), windows[1].tolist()
    evidence: dict[str, object] = {
        "rule": rule.name.value,
        "objective": slo.objective,
        "burn": bad / counted / (1.0 - slo.objective),
        "burn_short": bad_short / counted_short / (1.0 - slo.objective),
        "limit_burn": rule.rate or None,
        "window_s": rule.long_s,
        "bad": bad,
        "requests": counted,
        "short_window_s": rule.short_s,
        "bad_short": bad_short,
        "requests_short": counted_short,
    }
    what = "failed"
    if signal != FAILED:
        what = f"were later than {_bounds_s(slo)[index]:g} s ({signal})"
        evidence |= _counted_how(situation, name, signal, _bounds_s(slo)[index], has_records)
    share = f"{bad:.0f} of {counted:.0f} requests {what}"
    summary = f"{name}: {share} in the last {_span(rule.long_s)}, and it goes on; allowed are {1.0 - slo.objective:.2%}"
    return Symptom(FindingKind.SLO_BURN, name, rule.severity, summary, evidence, signal)


def _counted_how(situation: Situation, name: str, signal: str, bound_s: float, has_records: bool) -> dict[str, object]:
    if has_records:
        return {"bound_s": bound_s, "counted": "from request records"}
    seen = situation.snapshot.observations.get(name)
    histogram = seen.histograms.get(SIGNAL_HISTOGRAM[signal]) if seen else None
    index = bisect_left(histogram.bounds, bound_s) if histogram else 0
    if histogram is None or index >= len(histogram.bounds) - 1:
        return {"bound_s": bound_s, "counted": "from buckets"}
    edge_s = histogram.bounds[index]
    how = "from buckets" if edge_s == bound_s else f"from buckets: those up to {edge_s:g} s count as in time"
    return {"bound_s": bound_s, "bucket_bound_s": edge_s, "counted": how}


def _span(seconds: float) -> str:
    return "hour" if seconds == HOUR_S else f"{seconds / HOUR_S:g} hours"


DETECTOR = Detector("slo_burn", (FindingKind.SLO_BURN,), Memory, detect, close_after_s=60.0, forget=forget, signals=SIGNALS)
