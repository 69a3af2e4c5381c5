"""What was seen of one backend, and what is remembered of it: the input of the liveness state machine.

Three kinds of request are sent to an engine: its page (metrics), its health page and our own probe (one generated token);
where a tap stands before it, the tap says besides how users' requests fare. `remember` folds all this into a `Memory`;
`liveness` judges that memory. Pure: no clock, no I/O, never raises.

What counts as progress: generated or prompt tokens counted, a request finished well, a token time observed, KV use rising,
or a counter restart (a new engine). Errors, rejections and aborts are not progress: a frozen engine's front door counts
those too. An answered probe is proof of life by itself; the tokens that it cost are seen as progress but not as *traffic*
(`PageSeen.own_only`), so probing goes on at its pace and never confirms itself.

What a tap reports is about the moment of the token, not of the report, and only a fresh report says anything about what is
in flight: a tap whose process is gone is evidence of nothing, least of all of the engine's death.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

TAP_STALE_S = 3.0
"""A tap reports at least once a second; after this long without a word its process is gone or stuck."""
RISE = 1e-9  # a KV share that moved by less than this is rounding, not work


class Answer(StrEnum):
    """What one of our requests came to."""

    OK = "ok"
    LATE = "late"
    """A probe's token, after the time allowed for it."""
    OVERLOADED = "overloaded"
    LOADING = "loading"
    DENIED = "denied"
    """401, 403, 404 or TLS that fails: our credential, our path, or a certificate."""
    ERROR = "error"
    """5xx that is none of the above."""
    CUT_OFF = "cut_off"
    """A fresh connection over TLS, for which we show no certificate, ends without a word. From an address that has let us in
    before it is a refusal, by a proxy with nobody behind it; from another one perhaps the want of a certificate.
    What is remembered is the one or the other, and never this."""
    UNUSABLE = "unusable"
    """Answered, but not with what was asked for."""
    SILENT = "silent"
    """Accepted, then nothing until the deadline."""
    UNREACHABLE = "unreachable"
    """No connection and no refusal: a dead host, a lost network or a full accept queue."""
    REFUSED = "refused"
    """Connection refused or reset: nobody listens."""


ALIVE = frozenset({Answer.OK, Answer.LATE})
MUTE = frozenset({Answer.SILENT, Answer.UNREACHABLE})
GONE = frozenset({Answer.SILENT, Answer.UNREACHABLE, Answer.REFUSED})


@dataclass(frozen=True, slots=True)
class Work:
    """The numbers of one page that tell work from standstill; None is unknown.

    ``counters`` are those of progress by name, merged over ranks and models, and never fall (the normaliser sees to it).
    ``restarted`` says that the page is from another run of the engine than the page before.
    """

    running: float | None = None
    waiting: float | None = None
    kv_usage_ratio: float | None = None
    counters: tuple[tuple[str, float], ...] = ()
    restarted: bool = False

    @property
    def in_flight(self) -> float | None:
        """As far as the page tells: of engines that have one of the two only, that one."""
        if self.running is None and self.waiting is None:
            return None
        return (self.running or 0.0) + (self.waiting or 0.0)


@dataclass(frozen=True, slots=True)
class PageSeen:
    """The end of one page read. ``work`` only when the page was usable."""

    answer: Answer
    sent_s: float
    reason: str = ""
    work: Work | None = None
    on_engine_url: bool = True
    """Whether the page is served by the engine's own address, so that its refusal speaks for the engine."""
    own_only: bool = False
    """Every increment since the last page is explained by our own probes."""


@dataclass(frozen=True, slots=True)
class HealthSeen:
    answer: Answer
    sent_s: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ProbeSeen:
    answer: Answer
    sent_s: float
    reason: str = ""
    retry_after_s: float = 0.0
    """How long the engine asked to be left alone (Retry-After); bounded by whoever read it."""


@dataclass(frozen=True, slots=True)
class TapSeen:
    """One report of the tap before this backend. Times are monotonic seconds; None is never."""

    at_s: float
    running: int
    """Requests at the backend whose first content token has come."""
    waiting: int = 0
    """Requests at the backend whose first content token has not: queued there, in prefill, or answered in one piece."""
    progress_s: float | None = None
    """When the backend last sent a content token or finished an answer well."""
    answered_s: float | None = None
    """When it last sent any byte of an answer."""

    @property
    def in_flight(self) -> int:
        return self.running + self.waiting

    def is_fresh(self, now: float) -> bool:
        return now - self.at_s <= TAP_STALE_S


@dataclass(frozen=True, slots=True)
class Evidence:
    """What has come in since the last step; any part may be missing."""

    page: PageSeen | None = None
    health: HealthSeen | None = None
    probe: ProbeSeen | None = None
    tap: TapSeen | None = None


@dataclass(frozen=True, slots=True)
class Streak:
    """The last answer of one source, and for how long it has been the same."""

    answer: Answer | None = None
    count: int = 0
    reason: str = ""
    first_s: float = 0.0
    last_s: float = 0.0
    sent_s: float = 0.0

    def then(self, answer: Answer, reason: str, sent_s: float, now: float) -> Streak:
        if answer is self.answer:
            return replace(self, count=self.count + 1, reason=reason, last_s=now, sent_s=sent_s)
        return Streak(answer, 1, reason, now, now, sent_s)


@dataclass(frozen=True, slots=True)
class Memory:
    """All that the state machine knows of one backend. Times are monotonic seconds; None is never."""

    state: str = "unknown"
    state_since_s: float | None = None
    page: Streak = field(default_factory=Streak)
    health: Streak = field(default_factory=Streak)
    probe: Streak = field(default_factory=Streak)
    work: Work | None = None
    """As on the last usable page."""
    page_on_engine_url: bool = True
    progress_s: float | None = None
    """Last progress of any cause, a restart included."""
    traffic_s: float | None = None
    """Last progress that our own probes do not explain."""
    life_s: float | None = None
    """Last token counted or probe answered: what ends a hang. A restart is not yet life."""
    restarted_s: float | None = None
    stalled_since_s: float | None = None
    """Since when work has been in flight (the engine's, or a probe of ours) without progress."""
    answered_s: float | None = None
    """When the engine's address last answered anything, or its page, wherever that is, last showed progress."""
    mute_since_s: float | None = None
    """Since when the engine's address has answered nothing at all: when the first unanswered request was sent."""
    probe_silent_s: float | None = None
    """When the last probe was sent that was accepted and not answered, and with no sign of life after it was sent."""
    silent_probes: int = 0
    """Probes unanswered in a row."""
    slow_probes: int = 0
    """Probes not answered in time in a row."""
    failed_probes: int = 0
    """Probes without a token in a row: what the back-off counts."""
    probe_not_before_s: float = 0.0
    refusals: int = 0
    """Refusals in a row on the engine's own address."""
    refused_since_s: float | None = None
    let_in: bool = False
    """Whether the engine's address ever answered us with what we asked for."""
    queued_pages: int = 0
    """Pages in a row with a queue; negative: pages in a row without."""
    tap: TapSeen | None = None
    """The tap's last report."""

    def in_flight(self, now: float) -> float | None:
        """Requests at the engine: by its last page or by a fresh report of the tap, whichever knows of more."""
        counts = [] if self.work is None or self.work.in_flight is None else [self.work.in_flight]
        if self.tap is not None and self.tap.is_fresh(now):
            counts.append(float(self.tap.in_flight))
        return max(counts, default=None)

    @property
    def proof_s(self) -> float | None:
        """The last time that the engine was known to work: progress or an answered probe."""
        times = [t for t in (self.progress_s, self.life_s) if t is not None]
        return max(times) if times else None


def remember(memory: Memory, evidence: Evidence, now: float) -> Memory:
    """``memory`` with ``evidence`` folded in. The order is fixed: tap, page, health, probe."""
    evidence = _decided(evidence, memory.let_in)
    if evidence.tap is not None:
        memory = _with_tap(memory, evidence.tap, now)
    if evidence.page is not None:
        memory = _with_page(memory, evidence.page, now)
    if evidence.health is not None:
        seen = evidence.health
        memory = replace(memory, health=memory.health.then(seen.answer, seen.reason, seen.sent_s, now))
        memory = _with_reachability(memory, seen.answer, seen.sent_s, now)
    if evidence.probe is not None:
        memory = _with_probe(memory, evidence.probe, now)
    return memory


_Seen = TypeVar("_Seen", PageSeen, HealthSeen, ProbeSeen)


def _decided(evidence: Evidence, let_in: bool) -> Evidence:
    """``evidence`` with what `CUT_OFF` means from this address."""

    def meant(seen: _Seen | None, otherwise: Answer) -> _Seen | None:
        if seen is None or seen.answer is not Answer.CUT_OFF:
            return seen
        return replace(seen, answer=Answer.REFUSED if let_in else otherwise)

    return replace(
        evidence,
        page=meant(evidence.page, Answer.UNUSABLE),
        health=meant(evidence.health, Answer.DENIED),
        probe=meant(evidence.probe, Answer.DENIED),
    )


def advanced(before: Work, after: Work) -> bool:
    """Whether tokens or finished requests were counted, or KV use rose, between two pages."""
    earlier = dict(before.counters)
    if any(value > earlier.get(name, value) for name, value in after.counters):
        return True
    if before.kv_usage_ratio is None or after.kv_usage_ratio is None:
        return False
    return after.kv_usage_ratio > before.kv_usage_ratio + RISE


def _with_tap(memory: Memory, seen: TapSeen, now: float) -> Memory:
    """A report of the tap. One that is stale, or older than the last, changes nothing."""
    before = memory.tap
    if not seen.is_fresh(now) or (before is not None and seen.at_s < before.at_s):
        return memory
    memory = replace(memory, tap=seen)
    answered = _newer(seen.answered_s, None if before is None else before.answered_s)
    progress = _newer(seen.progress_s, None if before is None else before.progress_s)
    if answered is not None:
        memory = _answered(memory, min(answered, now))
    if progress is not None:
        memory = _moved(memory, min(progress, now))
    return _with_standstill(memory, now, seen.in_flight > 0)


def _newer(time_s: float | None, known_s: float | None) -> float | None:
    """The time, where it is later than the one that is known."""
    return time_s if time_s is not None and (known_s is None or time_s > known_s) else None


def _answered(memory: Memory, at_s: float) -> Memory:
    """The engine's address sent something at ``at_s``: silence and refusals that began before it are over."""
    memory = replace(memory, answered_s=_latest(memory.answered_s, at_s))
    if memory.mute_since_s is not None and memory.mute_since_s <= at_s:
        memory = replace(memory, mute_since_s=None)
    if memory.refused_since_s is not None and memory.refused_since_s <= at_s:
        memory = replace(memory, refusals=0, refused_since_s=None)
    return memory


def _moved(memory: Memory, at_s: float) -> Memory:
    """A user's token passed the tap at ``at_s``: as `_proved`, but for a moment that may lie before what else is known."""
    memory = replace(
        _answered(memory, at_s),
        progress_s=_latest(memory.progress_s, at_s),
        traffic_s=_latest(memory.traffic_s, at_s),
        life_s=_latest(memory.life_s, at_s),
    )
    if memory.stalled_since_s is not None and memory.stalled_since_s <= at_s:
        memory = replace(memory, stalled_since_s=None)
    if memory.probe_silent_s is not None and memory.probe_silent_s <= at_s:
        memory = replace(memory, probe_silent_s=None, silent_probes=0)
    return memory


def _latest(time_s: float | None, other_s: float) -> float:
    return other_s if time_s is None else max(time_s, other_s)


def _with_page(memory: Memory, seen: PageSeen, now: float) -> Memory:
    memory = replace(
        memory,
        page=memory.page.then(seen.answer, seen.reason, seen.sent_s, now),
        page_on_engine_url=seen.on_engine_url,
    )
    if seen.on_engine_url:
        memory = _with_reachability(memory, seen.answer, seen.sent_s, now)
    if seen.answer is not Answer.OK or seen.work is None:
        return memory
    return _with_queue(_with_work(memory, seen.work, seen.own_only, now), seen.work)


def _with_work(memory: Memory, work: Work, own_only: bool, now: float) -> Memory:
    before, memory = memory.work, replace(memory, work=work)
    if work.restarted:
        memory = _proved(replace(memory, restarted_s=now), now, traffic=not own_only, life=False)
    if before is not None and advanced(before, work):
        memory = _proved(memory, now, traffic=not own_only, life=True)
    return _with_standstill(memory, now, (memory.in_flight(now) or 0.0) > 0)


def _with_standstill(memory: Memory, now: float, working: bool) -> Memory:
    """The clock of standstill: it runs while work is in flight, from when that was first seen after the last progress."""
    if working:
        since = memory.stalled_since_s
        return replace(memory, stalled_since_s=now if since is None else since)
    # Nothing in flight: only a request of our own that is still unanswered keeps the clock running.
    idle = (memory.in_flight(now) or 0.0) <= 0 and memory.silent_probes == 0
    return replace(memory, stalled_since_s=None) if idle else memory


def _proved(memory: Memory, now: float, *, traffic: bool, life: bool) -> Memory:
    """Progress was seen: the clocks of standstill start anew, and a refusal before it no longer counts."""
    return replace(
        memory,
        progress_s=now,
        traffic_s=now if traffic else memory.traffic_s,
        life_s=now if life else memory.life_s,
        answered_s=now,
        stalled_since_s=None,
        mute_since_s=None,
        probe_silent_s=None,
        silent_probes=0,
        refusals=0,
        refused_since_s=None,
    )


def _with_queue(memory: Memory, work: Work) -> Memory:
    queued = (work.waiting or 0.0) > 0
    count = memory.queued_pages
    return replace(memory, queued_pages=max(count, 0) + 1 if queued else min(count, 0) - 1)


def _with_reachability(memory: Memory, answer: Answer, sent_s: float, now: float) -> Memory:
    """Refusals in a row, and since when the engine's address has been mute."""
    if answer is Answer.REFUSED:
        since = memory.refused_since_s
        return replace(memory, refusals=memory.refusals + 1, refused_since_s=now if since is None else since, mute_since_s=None)
    if answer not in MUTE:
        memory = replace(memory, let_in=memory.let_in or answer in ALIVE)
        return replace(memory, refusals=0, refused_since_s=None, mute_since_s=None, answered_s=now)
    # Only an accepted request starts the clock: no connection at all may be our own network. Later ones may find the
    # accept queue of a stopped process full, which is silence too.
    if answer is Answer.SILENT and memory.mute_since_s is None:
        return replace(memory, mute_since_s=_not_before(memory.answered_s, sent_s, now))
    return memory


def _not_before(time_s: float | None, sent_s: float, now: float) -> float:
    """When a request sent at ``sent_s`` began to say something that was not yet answered at ``time_s``."""
    return min(now, sent_s if time_s is None else max(sent_s, time_s))


def _with_probe(memory: Memory, seen: ProbeSeen, now: float) -> Memory:
    memory = replace(
        memory,
        probe=memory.probe.then(seen.answer, seen.reason, seen.sent_s, now),
        probe_not_before_s=now + seen.retry_after_s if seen.retry_after_s > 0 else 0.0,
    )
    memory = _with_reachability(memory, seen.answer, seen.sent_s, now)
    if seen.answer in ALIVE:
        slow = memory.slow_probes + 1 if seen.answer is Answer.LATE else 0
        return replace(
            memory,
            life_s=now,
            stalled_since_s=None,
            probe_silent_s=None,
            silent_probes=0,
            slow_probes=slow,
            failed_probes=0,
        )
    memory = replace(memory, failed_probes=memory.failed_probes + 1)
    if seen.answer is Answer.SILENT:
        memory = replace(memory, slow_probes=memory.slow_probes + 1)
        # A probe that was already open at the last sign of life is slow, but says nothing about the time since.
        return memory if seen.sent_s < (memory.proof_s or 0.0) else _with_silent_probe(memory, min(seen.sent_s, now))
    return memory if seen.answer is Answer.UNREACHABLE else replace(memory, silent_probes=0, probe_silent_s=None)


def _with_silent_probe(memory: Memory, sent_s: float) -> Memory:
    since = memory.stalled_since_s
    return replace(
        memory,
        silent_probes=memory.silent_probes + 1,
        probe_silent_s=sent_s,
        stalled_since_s=sent_s if since is None else since,
    )
