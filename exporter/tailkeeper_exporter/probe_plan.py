"""When to ask an engine for a token, and how long to wait for it. Pure: memory and time in, a plan out.

* Ordinary: one probe in ``interval_s``, and none while users' own traffic proves life and the last answer was a good one.
* Urgent: work in flight and nothing moves, or the page is lost: a probe well before ``no_progress_s`` is over, at most one
  in ``URGENT_GAP_S``, so that a hang is known when that time is over and not a probe later.
* Patient: after a probe that had no answer in time, the next one stays open until the standstill has lasted
  ``no_progress_s``. So an engine that is only slower than the limit answers late and is never called hung, and a frozen one
  gets one open request instead of one a second. A hung backend keeps one open too: whoever thaws answers at once.
* Trouble: after a failure the next probe comes after 1 s, then 1.5 times later each time, up to ``interval_s``; while
  users' own traffic moves, once in ``interval_s``: a full queue is not asked ten times in half a minute.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailkeeper_exporter.evidence import ALIVE, Answer, Memory
from tailkeeper_exporter.state import State

PROBE_ID_PREFIX = "tailkeeper-probe-"
"""Begins the ``x-request-id`` of every probe, so that nobody takes one for a user's request."""
URGENT_GAP_S = 2.0
"""A probe costs a token and a place in the batch; a stalled engine gets at most one in this time."""
URGENT_AFTER_S = 3.0
"""Long prefill steps last about this long; a standstill shorter than it is no reason to ask."""
RETRY_S = 1.0
BACK_OFF = 1.5
MAX_PATIENCE_S = 60.0
"""An open request is a resource of the engine; none stays open longer, however long ``no_progress_s`` is."""


@dataclass(frozen=True, slots=True)
class ProbeTiming:
    """Seconds, from the backend's configuration."""

    interval_s: float = 10.0
    first_token_timeout_s: float = 1.2
    no_progress_s: float = 10.0


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """The next probe: at monotonic time ``due_s``, given up ``deadline_s`` after it was sent."""

    due_s: float
    deadline_s: float
    urgent: bool = False


def plan_probe(memory: Memory, now: float, timing: ProbeTiming) -> ProbePlan:
    """The next probe as things stand at ``now``. It may lie in the past: then it is due."""
    due, urgent = _due(memory, now, timing)
    return ProbePlan(due, _deadline(memory, max(due, now), timing), urgent)


def _due(memory: Memory, now: float, timing: ProbeTiming) -> tuple[float, bool]:
    if memory.probe.answer is None:
        return now, False
    sent, ended = memory.probe.sent_s, memory.probe.last_s
    good = memory.probe.answer in ALIVE and memory.slow_probes == 0
    # A bad or late answer is asked about again though users' traffic moves, or it would be believed for as long as it does.
    candidates = [((_later(memory.traffic_s, sent) if good else sent) + timing.interval_s, False)]
    moved_since = memory.traffic_s is not None and memory.traffic_s > ended
    if memory.probe.answer not in ALIVE and not moved_since:
        candidates.append((ended + retry_after_s(memory.failed_probes, timing), False))
    if memory.probe.answer is Answer.SILENT and memory.silent_probes == 1 and not moved_since:
        candidates.append((max(ended, sent + URGENT_GAP_S), True))
    if _stalled(memory, now):
        candidates.append((max((memory.stalled_since_s or now) + urgent_after_s(timing), sent + URGENT_GAP_S), True))
    if memory.page.answer is not Answer.OK and memory.page.answer is not None and sent < memory.page.first_s:
        candidates.append((max(memory.page.first_s, sent + URGENT_GAP_S), True))
    if memory.restarted_s is not None and sent < memory.restarted_s:
        candidates.append((memory.restarted_s, True))
    if memory.state == State.STARTING and memory.health.answer is Answer.OK and sent < memory.health.first_s:
        candidates.append((memory.health.first_s, True))
    due, urgent = min(candidates)
    return max(due, memory.probe_not_before_s), urgent


def _later(time_s: float | None, other_s: float) -> float:
    return other_s if time_s is None else max(time_s, other_s)


def _stalled(memory: Memory, now: float) -> bool:
    """Work in flight, and no probe about this standstill yet (the ones after it go by the back-off)."""
    if memory.stalled_since_s is None or (memory.in_flight(now) or 0.0) <= 0:
        return False
    return memory.probe.sent_s < memory.stalled_since_s or memory.probe.answer in ALIVE


def retry_after_s(failures: int, timing: ProbeTiming) -> float:
    """Pause after the ``failures``-th probe in a row without a token: 1 s, 1.5 s, 2.25 s … up to ``interval_s``."""
    # Beyond 20 failures the power is above any interval that the settings allow.
    grown = RETRY_S * BACK_OFF ** min(max(failures - 1, 0), 30)
    return min(grown, max(timing.interval_s, RETRY_S))


def urgent_after_s(timing: ProbeTiming) -> float:
    """How long a standstill lasts before a probe asks: early enough to have its answer before ``no_progress_s`` is over."""
    in_time = timing.no_progress_s - timing.first_token_timeout_s
    return max(0.0, min(timing.no_progress_s / 2, URGENT_AFTER_S, in_time))


def _deadline(memory: Memory, sent_s: float, timing: ProbeTiming) -> float:
    if memory.state == State.HUNG:
        return max(timing.first_token_timeout_s, min(timing.no_progress_s, MAX_PATIENCE_S))
    if memory.silent_probes == 0:
        return timing.first_token_timeout_s
    starts = [since for since in (memory.stalled_since_s, memory.mute_since_s) if since is not None]
    until = max(starts, default=sent_s) + timing.no_progress_s
    return min(max(until - sent_s, timing.first_token_timeout_s), MAX_PATIENCE_S)
