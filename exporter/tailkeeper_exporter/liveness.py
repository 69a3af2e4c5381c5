"""Is this backend alive? A pure state machine over what was seen: evidence and time in, one of seven states out.

*Dead is: work in flight, and no progress, and our own probe unanswered. Busy is not dead. Blind is not dead.* So:

* ``hung`` needs a standstill of ``no_progress_s`` with work in flight (the engine's, or two probes of ours in a row), and
  an accepted probe, sent in that time, without an answer. Without a page to look at it needs total silence: page, health
  page and probe, all of them, for all of that time (a stopped process), or a tap before it whose streams had begun and
  have stopped. Requests that wait at the backend for their first token do not count without a page: a full engine, a long
  prefill and an answer in one piece look the same from outside.
* ``down`` needs two refusals in a row on the engine's own address, or an engine that says itself that it is broken
  (health 5xx twice) and fails a probe. A lost metrics page never means down.
* An engine that has no page is judged by its probe, its health page and its tap alone. Without a tap full and frozen look
  the same there, so an unanswered probe with an answered health page is ``unknown``.
* Tokens that pass the tap are progress and life, whatever the page says. A tap that no longer reports says nothing.
* ``hung`` and ``down`` end with life only: tokens counted or a probe answered. A new engine passes through ``starting``.
* One failure never acts, and ``serving`` and ``busy`` change places at most once in ``dwell_s``.

No clock, no I/O, and no input raises. `evidence` says what is remembered; this file only judges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from tailkeeper_exporter.evidence import ALIVE, GONE, MUTE, Answer, Evidence, Memory, Streak, remember
from tailkeeper_exporter.state import State


class Why(StrEnum):
    """Why a backend is in its state. The value is for machines, the sentence for people."""

    NOTHING_YET = "nothing_yet"
    PAGE_LOST = "page_lost"
    REFUSED = "connection_refused"
    HEALTH_ERROR = "health_error"
    LOADING = "loading"
    WARMING_UP = "warming_up"
    NO_PROGRESS = "no_progress"
    PROBE_UNANSWERED = "probe_unanswered"
    ALL_SILENT = "all_silent"
    NOT_RECOVERED = "not_recovered"
    PROBE_DENIED = "probe_denied"
    HEALTH_DENIED = "health_denied"
    HEALTH_UNANSWERED = "health_unanswered"
    PROBE_FAILED = "probe_failed"
    PROBE_SLOW = "probe_slow"
    OVERLOADED = "overloaded"
    QUEUE = "queue"

    @property
    def sentence(self) -> str:
        return _SENTENCES[self]


_SENTENCES: dict[Why, str] = {
    Why.NOTHING_YET: "Nothing has answered yet.",
    Why.PAGE_LOST: "The metrics page cannot be read; that says nothing about the engine.",
    Why.REFUSED: "The engine's address refuses connections.",
    Why.HEALTH_ERROR: "The engine's own health page says that it is broken.",
    Why.LOADING: "The engine says that it is loading its model.",
    Why.WARMING_UP: "The engine answers again, and has not yet produced a token.",
    Why.NO_PROGRESS: "Work is in flight and no token, prompt or request has moved.",
    Why.PROBE_UNANSWERED: "Our own one-token request was accepted and got no answer.",
    Why.ALL_SILENT: "Metrics page, health page and probe are accepted and not answered.",
    Why.NOT_RECOVERED: "Neither a token nor a probe's answer has been seen since.",
    Why.PROBE_DENIED: "Our probe is refused with 401, 403 or 404, or TLS fails: check url, api_key_file and auth.",
    Why.HEALTH_DENIED: "The health page is refused with 401, 403 or 404, or TLS fails: check url, api_key_file and auth.",
    Why.HEALTH_UNANSWERED: "The health page does not answer.",
    Why.PROBE_FAILED: "Our probe is answered with an error.",
    Why.PROBE_SLOW: "Our probe's token comes later than probe.first_token_timeout_s.",
    Why.OVERLOADED: "The engine turns work away because it is full.",
    Why.QUEUE: "Requests are waiting for a place in the batch.",
}


class Signal(StrEnum):
    """Independent facts that the state rests on."""

    PAGE_READ = "page_read"
    TAP_REPORTS = "tap_reports"
    IN_FLIGHT = "in_flight"
    PROGRESS = "progress"
    OWN_PROGRESS_ONLY = "own_progress_only"
    """The only progress is our probes' own: life, but not users' traffic."""
    STANDSTILL = "standstill"
    PROBE_ANSWERED = "probe_answered"
    PROBE_UNANSWERED = "probe_unanswered"
    HEALTH_ANSWERED = "health_answered"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class LivenessSettings:
    """What the judgement depends on. Seconds; the first three come from the backend's configuration."""

    no_progress_s: float = 10.0
    probe_enabled: bool = True
    probe_interval_s: float = 10.0
    confirmations: int = 2
    """Failures in a row before one counts: one alone may be a lost packet or a request at exactly its time limit."""
    confirm_s: float = 0.5
    """A refusal must last this long, so that two refusals in one round of requests are not two observations."""
    dwell_s: float = 3.0
    """Shortest stay in serving or busy before the other; longer than two pages at the usual pace."""


@dataclass(frozen=True, slots=True)
class Liveness:
    """The verdict. ``since_s`` is the monotonic time of the change to ``state``."""

    state: State
    reasons: tuple[Why, ...]
    signals: tuple[Signal, ...]
    since_s: float


_Verdict = tuple[State, tuple[Why, ...]]
_Rule = Callable[[Memory, float, LivenessSettings], _Verdict | None]
_LOAD = (State.SERVING, State.BUSY)


def step(memory: Memory, evidence: Evidence, now: float, settings: LivenessSettings) -> tuple[Memory, Liveness]:
    """Fold ``evidence`` in and judge. ``now`` is monotonic seconds; an empty evidence only lets time pass."""
    memory = remember(memory, evidence, now)
    state, reasons = judge(memory, now, settings)
    if _too_soon(memory, state, now, settings):
        state = State(memory.state)
    if state != memory.state or memory.state_since_s is None:
        memory = replace(memory, state=state.value, state_since_s=now)
    since = now if memory.state_since_s is None else memory.state_since_s
    return memory, Liveness(state, reasons, _signals(memory, now, settings), since)


def judge(memory: Memory, now: float, settings: LivenessSettings) -> _Verdict:
    """The first rule that has something to say, hardest evidence first."""
    for rule in _RULES:
        verdict = rule(memory, now, settings)
        if verdict is not None:
            return verdict
    return State.UNKNOWN, (Why.NOTHING_YET,)


def _too_soon(memory: Memory, state: State, now: float, settings: LivenessSettings) -> bool:
    if memory.state_since_s is None or memory.state not in _LOAD or state not in _LOAD:
        return False
    return now - memory.state_since_s < settings.dwell_s


def _since(time_s: float | None, than_s: float | None) -> bool:
    """Whether something happened, and not before ``than_s``."""
    return time_s is not None and (than_s is None or time_s >= than_s)


def _recent(time_s: float | None, now: float, within_s: float) -> bool:
    return time_s is not None and now - time_s <= within_s


def _sighted(memory: Memory, settings: LivenessSettings) -> bool:
    """Whether the page can be relied on: read last time, or lost only just now."""
    if memory.page.answer is Answer.OK:
        return True
    return memory.work is not None and memory.page.count < settings.confirmations


def _tap_moves(memory: Memory, now: float, settings: LivenessSettings) -> bool:
    """Whether users' tokens have passed the tap lately: true whether or not the tap still reports."""
    return memory.tap is not None and _recent(memory.tap.progress_s, now, settings.no_progress_s)


def _working(memory: Memory, now: float, settings: LivenessSettings) -> bool:
    """Whether work is known to be in flight; without a page only a stream that had begun is work and no queue."""
    if _sighted(memory, settings):
        return (memory.in_flight(now) or 0.0) > 0
    return memory.tap is not None and memory.tap.is_fresh(now) and memory.tap.running > 0


def _down(memory: Memory, now: float, settings: LivenessSettings) -> _Verdict | None:
    refused_since = memory.refused_since_s
    if refused_since is not None and memory.refusals >= settings.confirmations and now - refused_since >= settings.confirm_s:
        return State.DOWN, (Why.REFUSED,)
    health, probe = memory.health, memory.probe
    if health.answer is not Answer.ERROR or health.count < settings.confirmations or _since(memory.proof_s, health.first_s):
        return None
    if not settings.probe_enabled:
        # One witness alone: it has to say so once more.
        return (State.DOWN, (Why.HEALTH_ERROR,)) if health.count > settings.confirmations else None
    failed = probe.answer is Answer.ERROR or probe.answer in GONE
    return (State.DOWN, (Why.HEALTH_ERROR, Why.PROBE_FAILED)) if failed and probe.last_s >= health.first_s else None


def _starting(memory: Memory, now: float, settings: LivenessSettings) -> _Verdict | None:
    newest = max((memory.health, memory.probe), key=lambda streak: streak.last_s if streak.answer else float("-inf"))
    if newest.answer is not Answer.LOADING or _since(memory.proof_s, newest.first_s):
        return None
    if memory.state in _LOAD and newest.count < settings.confirmations:
        return State(memory.state), (Why.LOADING,)
    return State.STARTING, (Why.LOADING,)


def _hung(memory: Memory, now: float, settings: LivenessSettings) -> _Verdict | None:
    stalled, mute, asked = memory.stalled_since_s, memory.mute_since_s, memory.probe_silent_s
    if asked is None or memory.probe.answer not in MUTE:
        return None
    sighted, working = _sighted(memory, settings), _working(memory, now, settings)
    still = stalled is not None and now - stalled >= settings.no_progress_s and asked >= stalled
    if still and working:
        return State.HUNG, (Why.NO_PROGRESS, Why.PROBE_UNANSWERED)
    if sighted:
        return (State.HUNG, (Why.PROBE_UNANSWERED,)) if still and memory.silent_probes >= settings.confirmations else None
    if mute is None or now - mute < settings.no_progress_s or asked < mute or memory.health.answer not in MUTE:
        return None
    return State.HUNG, (Why.ALL_SILENT, Why.PROBE_UNANSWERED)


def _unrecovered(memory: Memory, now: float, settings: LivenessSettings) -> _Verdict | None:
    """What was hung, down or starting stays so until life; a new engine, or one that answers again, is starting."""
    since = memory.state_since_s
    if memory.state not in (State.HUNG, State.DOWN, State.STARTING) or since is None or _since(memory.life_s, since):
        return None
    if memory.state == State.HUNG:
        if _tap_moves(memory, now, settings):
            return None  # The report came late: a token had passed when the engine was called hung.
        renewed = _since(memory.restarted_s, since)
        return (State.STARTING, (Why.WARMING_UP,)) if renewed else (State.HUNG, (Why.NOT_RECOVERED,))
    if not settings.probe_enabled:
        # No probe can prove life, so the engine's own word has to do, said twice.
        witnesses = (memory.page, memory.health)
        answered = any(_answers(streak, since) and streak.count >= settings.confirmations for streak in witnesses)
        return None if answered else (State(memory.state), (Why.NOT_RECOVERED,))
    if _spoke(memory.probe, since, settings):
        return None
    if memory.state == State.STARTING or _answers(memory.page, since) or _answers(memory.health, since):
        return State.STARTING, (Why.WARMING_UP,)
    return State.DOWN, (Why.NOT_RECOVERED,)


def _spoke(probe: Streak, since: float, settings: LivenessSettings) -> bool:
    """Whether the probe has had an answer that is no token, but settles the matter (refused credentials at once)."""
    if probe.answer is None or probe.answer in GONE or probe.last_s <= since:
        return False
    return probe.answer is Answer.DENIED or probe.count >= settings.confirmations


def _answers(streak: Streak, since: float) -> bool:
    return streak.answer is Answer.OK and streak.last_s > since


def _misconfigured(memory: Memory, now: float, settings: LivenessSettings) -> _Verdict | None:
    first_word = memory.state in (State.UNKNOWN, State.MISCONFIGURED, State.STARTING, State.DOWN)
    needed = 1 if first_word else settings.confirmations
    if memory.probe.answer is Answer.DENIED and memory.probe.count >= needed:
        return State.MISCONFIGURED, (Why.PROBE_DENIED,)
    # Traffic or an answered probe shows that only the health page's path is wrong, and it is not needed for a verdict.
    proved = memory.probe.answer in ALIVE or _recent(memory.traffic_s, now, settings.no_progress_s)
    if memory.health.answer is Answer.DENIED and memory.health.count >= needed and not proved:
        return State.MISCONFIGURED, (Why.HEALTH_DENIED,)
    return None


def _seen_working(memory: Memory, now: float, settings: LivenessSettings) -> _Verdict | None:
    """With a page or a tap to look at: progress is serving; a standstill is judged by the probe; idle, by whoever answered."""
    sighted = _sighted(memory, settings)
    if _tap_moves(memory, now, settings):
        state, reasons = _loaded(memory)
        return state, reasons if sighted or memory.page.answer is None else (*reasons, Why.PAGE_LOST)
    if not sighted:
        return None
    if _recent(memory.progress_s, now, settings.no_progress_s):
        return _loaded(memory)
    stalled = memory.stalled_since_s
    if (memory.in_flight(now) or 0.0) > 0 and stalled is not None and now - stalled >= settings.no_progress_s:
        if memory.probe.answer in ALIVE or memory.probe.answer is Answer.OVERLOADED:
            return State.BUSY, (Why.NO_PROGRESS,)
        return State.UNKNOWN, (Why.NO_PROGRESS,)
    return _by_answers(memory, now, settings)


def _seen_blind(memory: Memory, now: float, settings: LivenessSettings) -> _Verdict | None:
    """Without a page: only the probe can say serving; a first loss changes nothing yet."""
    if memory.page.answer is None:
        return _seen_without_page(memory, now, settings)
    fresh = _recent(memory.probe.last_s, now, 2 * settings.probe_interval_s + settings.no_progress_s)
    if fresh and (memory.probe.answer in ALIVE or memory.probe.answer is Answer.OVERLOADED):
        state, reasons = _by_answers(memory, now, settings)
        return state, (*reasons, Why.PAGE_LOST)
    once = memory.page.count < settings.confirmations or (memory.probe.answer in MUTE and memory.silent_probes == 1)
    if once and memory.state in _LOAD:
        return State(memory.state), (Why.PAGE_LOST,)
    return State.UNKNOWN, (Why.PAGE_LOST,)


def _seen_without_page(memory: Memory, now: float, settings: LivenessSettings) -> _Verdict | None:
    """No page was ever asked for: the answers decide, and where none comes for too long nothing is known."""
    probe, health, stalled = memory.probe, memory.health, memory.stalled_since_s
    if probe.answer is None and health.answer is None:
        return None
    waited = stalled is not None and now - stalled >= settings.no_progress_s
    forgotten = not _recent(memory.life_s, now, 2 * settings.probe_interval_s + settings.no_progress_s)
    if probe.answer in GONE and (waited or forgotten):
        return State.UNKNOWN, (Why.PROBE_UNANSWERED,)
    if probe.answer not in ALIVE and health.answer in GONE and health.count >= settings.confirmations:
        return State.UNKNOWN, (Why.HEALTH_UNANSWERED,)
    return _by_answers(memory, now, settings)


def _by_answers(memory: Memory, now: float, settings: LivenessSettings) -> _Verdict:
    """No traffic to go by: the probe's word, else the health page's."""
    probe = memory.probe.answer
    if probe in ALIVE:
        return _loaded(memory)
    if probe is Answer.OVERLOADED:
        return State.BUSY, (Why.OVERLOADED,)
    if probe is Answer.ERROR and memory.probe.count >= settings.confirmations:
        return State.UNKNOWN, (Why.PROBE_FAILED,)
    if probe in (None, Answer.UNUSABLE) and memory.health.answer is Answer.OK and not _first_look(memory, now, settings):
        return _loaded(memory)
    if memory.state in _LOAD:
        # Serving until shown otherwise: one failed probe, or a health page that is not asked while all is well.
        return State(memory.state), () if probe is None else (Why.PROBE_UNANSWERED,) if probe in GONE else (Why.PROBE_FAILED,)
    return State.UNKNOWN, (Why.NOTHING_YET,) if probe is None else (Why.PROBE_FAILED,)


def _first_look(memory: Memory, now: float, settings: LivenessSettings) -> bool:
    """Whether work is in flight and neither progress nor a probe has been seen since we started.

    A hung engine looks just so to an exporter that was restarted, and its health page says that all is well.
    """
    unproved = settings.probe_enabled and memory.probe.answer is None and memory.proof_s is None
    return unproved and (memory.in_flight(now) or 0.0) > 0


def _loaded(memory: Memory) -> _Verdict:
    """Serving or busy. A queue counts from its second page, and is over at the second page without."""
    queued = memory.queued_pages >= 2 or (memory.queued_pages >= 1 and memory.state == State.UNKNOWN)
    if queued or (memory.state == State.BUSY and memory.queued_pages in (-1, 1)):
        return State.BUSY, (Why.QUEUE,)
    return (State.BUSY, (Why.PROBE_SLOW,)) if memory.slow_probes >= 2 else (State.SERVING, ())


_RULES: tuple[_Rule, ...] = (_down, _starting, _hung, _unrecovered, _misconfigured, _seen_working, _seen_blind)


def _signals(memory: Memory, now: float, settings: LivenessSettings) -> tuple[Signal, ...]:
    moving = _recent(memory.progress_s, now, settings.no_progress_s)
    facts = {
        Signal.PAGE_READ: memory.page.answer is Answer.OK,
        Signal.TAP_REPORTS: memory.tap is not None and memory.tap.is_fresh(now),
        Signal.IN_FLIGHT: (memory.in_flight(now) or 0.0) > 0,
        Signal.PROGRESS: moving,
        Signal.OWN_PROGRESS_ONLY: moving and not _recent(memory.traffic_s, now, settings.no_progress_s),
        Signal.STANDSTILL: memory.stalled_since_s is not None and now - memory.stalled_since_s >= settings.no_progress_s,
        Signal.PROBE_ANSWERED: memory.probe.answer in ALIVE,
        Signal.PROBE_UNANSWERED: memory.probe.answer in MUTE,
        Signal.HEALTH_ANSWERED: memory.health.answer is Answer.OK,
        Signal.REFUSED: memory.refusals > 0,
    }
    return tuple(signal for signal, true in facts.items() if true)
