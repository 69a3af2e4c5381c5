"""What a replayed period was like, gathered tick by tick: who was seen, what users felt, what was found and done. Pure.

Time counts between two ticks as the earlier one saw it; over a gap nothing is known and nothing counts. What users felt is
the P99 of the last minute against the SLO, and of each request whether its first token came in time, from the buckets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Histogram
from tailkeeper_watchdog.loop import Loop
from tailkeeper_watchdog.model import Decision, Finding, Severity, Situation, Slo, TickRecord
from tailkeeper_watchdog.samples import OUTCOME_SLOT

MIN_SAMPLES = 20
"""A P99 of fewer requests is an anecdote."""
GRAVITY = (Severity.PAGE, Severity.TICKET, Severity.INFO)
"""The gravest first."""
MAX_FINDINGS = 10_000
MAX_DECISIONS = 10_000
MAX_BREACHES = 1_000
"""Kept of one backend; beyond them only counts go on."""
MAX_GAP_TICKS = 3
"""A longer pause between two ticks is unobserved time."""
LIMITS: Mapping[str, str] = {"ttft": "ttft_p99_s", "itl": "itl_p99_s", "e2e": "e2e_p99_s"}
"""Signal → field of the SLO."""


@dataclass(slots=True)
class Breach:
    """Time in which users waited longer than promised. Epoch seconds; ``until`` is when it was last seen."""

    signal: str
    since: float
    until: float
    worst_s: float


@dataclass(slots=True)
class BackendStory:
    """One backend over the period. Seconds."""

    seen_s: float = 0.0
    unseen_s: float = 0.0
    states: dict[str, float] = field(default_factory=dict)
    judged_s: float = 0.0
    """Time with enough requests for a P99."""
    over_s: float = 0.0
    """Of it, with a P99 over the SLO."""
    worst_p99_s: float | None = None
    outcomes: dict[str, float] = field(default_factory=dict)
    first_tokens: Histogram | None = None
    """What was observed of the first token over the period, where the buckets stayed the same."""
    breaches: list[Breach] = field(default_factory=list)
    why_unseen: Counter[str] = field(default_factory=Counter)
    judged: dict[str, tuple[float, float]] = field(default_factory=dict)
    """At the newest tick, by signal: P99 and limit, in seconds."""
    last_tokens: Histogram | None = None
    last_counts: dict[str, float] = field(default_factory=dict)

    def requests(self) -> float:
        """Finished ones; those that the client gave up are left out."""
        return sum(n for outcome, n in self.outcomes.items() if outcome != "aborted")

    def failed(self) -> float:
        return self.outcomes.get("error", 0.0) + self.outcomes.get("rejected", 0.0)

    def late_share(self, limit_s: float) -> float | None:
        """Share of first tokens that came later than ``limit_s``, by linear interpolation in the bucket; None is unknown."""
        return None if self.first_tokens is None else share_above(self.first_tokens, limit_s)


def share_above(histogram: Histogram, limit: float) -> float | None:
    """Share of observations above ``limit``; None without any, or where it lies above the last finite bound."""
    total = histogram.count
    if total <= 0 or len(histogram.bounds) < 2 or limit > histogram.bounds[-2]:
        return None
    points = [(0.0, 0.0), *zip(histogram.bounds, histogram.counts, strict=True)]
    for (low, below), (high, upto) in pairwise(points):
        if limit <= high:
            share = 1.0 if high <= low else (limit - low) / (high - low)
            return 1.0 - (below + share * (upto - below)) / total
    return None


class Story:
    """Gathers. ``take`` every tick's record in its order."""

    def __init__(self, slo: Slo, tick_s: float) -> None:
        self.slo = slo
        self._tick_s = tick_s
        self.backends: dict[str, BackendStory] = {}
        self.findings: dict[str, Finding] = {}
        self.decisions: list[Decision] = []
        self.more_decisions = 0
        self.ticks = 0
        self.failed_ticks: Counter[str] = Counter()
        self.first_unix_s: float | None = None
        self.last_unix_s: float | None = None
        self._before: TickRecord | None = None
        self._open: set[str] = set()

    def pace(self, tick_s: float) -> None:
        """From now on ticks follow each other so fast."""
        self._tick_s = tick_s

    def take(self, record: TickRecord, loop: Loop) -> None:
        self.ticks += 1
        self.first_unix_s = record.time_unix_s if self.first_unix_s is None else self.first_unix_s
        self.last_unix_s = record.time_unix_s
        if record.error is not None:
            self.failed_ticks[record.error] += 1
        self._account(record.situation.snapshot.now)
        self._before = record if record.error is None else None
        for backend in record.situation.snapshot.backends:
            self._look(backend.name, record)
        self._find(record, loop)
        room = MAX_DECISIONS - len(self.decisions)
        self.decisions.extend(record.decisions[:room])
        self.more_decisions += max(0, len(record.decisions) - room)

    def add(self, findings: Mapping[str, Finding]) -> None:
        """Findings that another eye than the loop's has."""
        self.findings.update(findings)

    def _account(self, now: float) -> None:
        """The time since the tick before, as that one saw it."""
        before = self._before
        if before is None:
            return
        seconds = now - before.situation.snapshot.now
        if not 0 < seconds <= MAX_GAP_TICKS * self._tick_s:
            return
        for backend in before.situation.snapshot.backends:
            _account(self.backends[backend.name], backend.name, before.situation, seconds)

    def _look(self, name: str, record: TickRecord) -> None:
        story = self.backends.setdefault(name, BackendStory())
        seen = record.situation.fresh(name)
        story.judged = {} if seen is None else over_limit(record.situation, name)
        if seen is None:
            return
        counts = {o: v for o, slot in OUTCOME_SLOT.items() if (v := seen.value(slot)) is not None}
        for outcome, value in counts.items():
            rise = max(0.0, value - story.last_counts.get(outcome, value))
            story.outcomes[outcome] = story.outcomes.get(outcome, 0.0) + rise
        story.last_counts = counts
        _add_tokens(story, seen.histograms.get(catalog.TTFT.name))
        for signal, (p99, limit) in story.judged.items():
            if signal == "ttft":
                story.worst_p99_s = max(p99, story.worst_p99_s or 0.0)
            if p99 > limit:
                _breached(story, signal, record.time_unix_s, p99, 2 * MAX_GAP_TICKS * self._tick_s)

    def _find(self, record: TickRecord, loop: Loop) -> None:
        now = {finding.id: finding for finding in record.findings}
        closed = {f.id: f for f in loop.memory.book.closed[-200:]} if self._open - set(now) else {}
        for name in self._open - set(now):
            if name in closed:
                self.findings[name] = at_its_gravest(self.findings.get(name), closed[name])
        for name, finding in now.items():
            if name in self.findings or len(self.findings) < MAX_FINDINGS:
                self.findings[name] = at_its_gravest(self.findings.get(name), finding)
        self._open = set(now)


def at_its_gravest(known: Finding | None, finding: Finding) -> Finding:
    """The finding with the severity, and the words, of when it was first so grave: that is what people would have been told.

    What its end looks like would not do: a finding closes when it has become harmless, and would read so.
    """
    if known is None or GRAVITY.index(finding.severity) < GRAVITY.index(known.severity):
        return finding
    return replace(finding, severity=known.severity, summary=known.summary)


def over_limit(situation: Situation, name: str) -> dict[str, tuple[float, float]]:
    """P99 and limit by signal, where there are enough requests."""
    found: dict[str, tuple[float, float]] = {}
    for signal, limit in LIMITS.items():
        quantile = situation.p99(name, signal)
        if quantile is not None and quantile.samples >= MIN_SAMPLES:
            found[signal] = (quantile.value, getattr(situation.slo, limit))
    return found


def _account(story: BackendStory, name: str, situation: Situation, seconds: float) -> None:
    seen = situation.fresh(name)
    if seen is None:
        story.unseen_s += seconds
        known = situation.snapshot.observations.get(name)
        story.why_unseen[(known.error if known else None) or situation.snapshot.source_error or "no evidence"] += 1
        return
    story.seen_s += seconds
    story.states[seen.state.value] = story.states.get(seen.state.value, 0.0) + seconds
    if story.judged:
        story.judged_s += seconds
        story.over_s += seconds * any(p99 > limit for p99, limit in story.judged.values())


def _add_tokens(story: BackendStory, now: Histogram | None) -> None:
    before, story.last_tokens = story.last_tokens, now
    added = None if now is None or before is None else now.minus(before)
    if added is None:
        return
    total = story.first_tokens
    if total is None or total.bounds != added.bounds:
        story.first_tokens = added
    else:
        counts = tuple(a + b for a, b in zip(total.counts, added.counts, strict=True))
        story.first_tokens = Histogram(total.bounds, counts, total.sum + added.sum)


def _breached(story: BackendStory, signal: str, at: float, p99_s: float, gap_s: float) -> None:
    last = next((b for b in reversed(story.breaches) if b.signal == signal), None)
    if last is not None and at - last.until <= gap_s:
        last.until, last.worst_s = at, max(last.worst_s, p99_s)
    elif len(story.breaches) < MAX_BREACHES:
        story.breaches.append(Breach(signal, at, at, p99_s))
