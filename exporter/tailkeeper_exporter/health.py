"""`/healthz`: can this backend serve now, check by check, as strict JSON. Pure: views and time in, documents out.

``fail`` is a state of down, hung or starting, or a configured check that fails; ``warn`` is busy; ``unknown`` is blind or
misconfigured. Only ``fail`` is 503: blind is not dead. A check that is not configured is left out; one that has no fresh
evidence is ``unknown`` and does not fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from tailkeeper_exporter.engines import engine_named
from tailkeeper_exporter.evidence import ALIVE, TAP_STALE_S, Answer
from tailkeeper_exporter.state import State
from tailkeeper_exporter.views import BackendView, Source

MIN_HEADROOM_RATIO = 0.15
"""Of GPU memory, against the warm baseline for engines that take all at start (product description 2.4)."""
MAX_KV_PING_S = 0.2
"""A KV-cache service slower than this costs more than it saves (product description 2.4)."""
KV_STALE_S = 10.0
"""Five PINGs missed: what the last one said is no longer about now."""


class Status(StrEnum):
    PASS = "pass"  # noqa: S105  not a password  # nosec B105
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """One check. ``value`` and ``age_s`` are None while nothing is known; ``reason`` says what is wrong, in one word."""

    status: Status
    value: float | None
    threshold: float | None
    unit: str
    age_s: float | None
    reason: str | None = None

    def document(self) -> dict[str, object]:
        found: dict[str, object] = {
            "status": self.status.value,
            "value": _rounded(self.value),
            "threshold": self.threshold,
            "unit": self.unit,
            "age_s": _rounded(self.age_s),
        }
        return found if self.reason is None else {**found, "reason": self.reason}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


_BY_STATE = {
    State.SERVING: Status.PASS,
    State.BUSY: Status.WARN,
    State.STARTING: Status.FAIL,
    State.HUNG: Status.FAIL,
    State.DOWN: Status.FAIL,
    State.MISCONFIGURED: Status.UNKNOWN,
    State.UNKNOWN: Status.UNKNOWN,
}


def backend_health(view: BackendView, now: float) -> dict[str, object]:
    """One element of the list in `/healthz`; all of `/healthz/{backend}`."""
    checks = {name: check for name, make in _CHECKS.items() if (check := make(view, now)) is not None}
    failing = [name for name, check in checks.items() if check.status is Status.FAIL]
    status = Status.FAIL if failing else _BY_STATE[view.state]
    return {
        "backend": view.name,
        "state": view.state.value,
        "status": status.value,
        "reasons": list(dict.fromkeys([*(why.value for why in view.liveness.reasons), *failing])),
        "checks": {name: check.document() for name, check in checks.items()},
    }


def fleet_health(views: Iterable[BackendView], now: float) -> dict[str, object]:
    """The document of `/healthz`. Its status is the worst of its backends', and ``fail`` is worse than ``unknown``."""
    backends = [backend_health(view, now) for view in views]
    found = {backend["status"] for backend in backends}
    worst = next((s for s in (Status.FAIL, Status.UNKNOWN, Status.WARN) if s.value in found), Status.PASS)
    return {"status": worst.value, "backends": backends}


def http_status(document: dict[str, object]) -> int:
    """503 for ``fail``; everything else is 200."""
    return 503 if document["status"] == Status.FAIL.value else 200


def _gpu_memory(view: BackendView, now: float) -> Check | None:
    if not view.settings.gpus:
        return None
    reading = view.memory_headroom
    value = None if reading is None else reading.at(now, view.gpu_stale_after_s).value
    if reading is None or value is None:
        reason = "not_read_yet" if reading is None else "stale" if reading.is_present else reading.reason
        return Check(Status.UNKNOWN, None, MIN_HEADROOM_RATIO, "ratio", None, reason)
    status = Status.PASS if value >= MIN_HEADROOM_RATIO else Status.FAIL
    return Check(status, value, MIN_HEADROOM_RATIO, "ratio", reading.age_s(now), None if status is Status.PASS else "low")


def _kv_cache(view: BackendView, now: float) -> Check | None:
    if view.settings.kv_service is None:
        return None
    ping = view.kv_ping
    if ping is None or now - ping.ended_s > KV_STALE_S:
        return Check(Status.UNKNOWN, None, MAX_KV_PING_S, "s", None, "not_read_yet")
    age = now - ping.ended_s
    if ping.reason is not None:
        return Check(Status.FAIL, None, MAX_KV_PING_S, "s", age, ping.reason)
    status = Status.PASS if ping.took_s < MAX_KV_PING_S else Status.FAIL
    return Check(status, ping.took_s, MAX_KV_PING_S, "s", age, None if status is Status.PASS else "slow")


def _semantic_probe(view: BackendView, now: float) -> Check | None:
    limit = view.settings.probe.first_token_timeout_s
    if not view.settings.probe.enabled or engine_named(view.settings.engine).probe is None:
        return None
    probe = view.probe
    if probe is None:
        return Check(Status.UNKNOWN, None, limit, "s", None, "not_asked_yet")
    age, answer = now - probe.ended_s, probe.seen().answer
    if answer is Answer.OK and not _overdue(view, now):
        reason = "degenerate" if probe.degenerate else None
        return Check(Status.PASS if reason is None else Status.WARN, probe.first_token_s, limit, "s", age, reason)
    late = answer in (Answer.OK, Answer.LATE, Answer.SILENT)
    reason = "timeout" if late else probe.code or probe.outcome.value
    return Check(_probe_status(view, now, answer), None if answer is Answer.OK else probe.first_token_s, limit, "s", age, reason)


def _overdue(view: BackendView, now: float) -> bool:
    """Whether the probe that is open now is already later than it may be."""
    sent = view.open_probe_s
    return sent is not None and now - sent > view.settings.probe.first_token_timeout_s


def _probe_status(view: BackendView, now: float, answer: Answer) -> Status:
    """Two failures in a row fail the check, unless they say nothing about the engine or traffic has proved life since."""
    if answer in (Answer.DENIED, Answer.UNUSABLE, Answer.UNREACHABLE):
        return Status.UNKNOWN
    moving = view.progress_s is not None and now - view.progress_s <= view.settings.hang.no_progress_s
    queued = answer in (Answer.SILENT, *ALIVE)
    # A full engine answers its users and lets a probe wait its turn: busy is not dead.
    if answer is Answer.OVERLOADED or (queued and moving):
        return Status.WARN
    # One failure is a warning: a probe at exactly its limit must not make a load balancer flap (field report C4).
    return Status.FAIL if view.bad_probes + _overdue(view, now) >= 2 else Status.WARN


def _engine(view: BackendView, now: float) -> Check | None:
    if not view.has_page:
        return None
    seen = view.sources.get(Source.ENGINE)
    limit = view.stale_after_s
    if seen is None:
        return Check(Status.UNKNOWN, None, limit, "s", None, "not_read_yet")
    age = now - seen.good_s
    if seen.success and age <= limit:
        return Check(Status.PASS, age, limit, "s", age)
    # Without its page the exporter is blind, and the engine may well be serving.
    return Check(Status.UNKNOWN, age, limit, "s", age, seen.code or "stale")


def _page_is_fresh(view: BackendView, now: float) -> bool:
    seen = view.sources.get(Source.ENGINE)
    return seen is not None and now - seen.good_s <= view.stale_after_s


def _tap_is_fresh(view: BackendView, now: float) -> bool:
    seen = view.sources.get(Source.TAP)
    return seen is not None and now - seen.good_s <= TAP_STALE_S


def _progress(view: BackendView, now: float) -> Check | None:
    if not view.has_page and view.settings.tap is None:
        return None
    limit = view.settings.hang.no_progress_s
    age = None if view.progress_s is None else now - view.progress_s
    stalled = None if view.stalled_since_s is None else now - view.stalled_since_s
    if view.in_flight is None:
        return Check(Status.UNKNOWN, None, limit, "s", age, "not_read_yet")
    page_is_fresh = _page_is_fresh(view, now)
    if not page_is_fresh and not _tap_is_fresh(view, now):
        # Work that stood on the last page may have moved since: nobody has looked, and blind is not dead.
        return Check(Status.UNKNOWN, None, limit, "s", age, "stale")
    if stalled is not None and stalled >= limit:
        # A busy state here means that our probe was answered in the standstill: a long prefill, not a dead engine.
        status = Status.WARN if view.state is State.BUSY else Status.FAIL
        if not page_is_fresh and view.state is not State.HUNG:
            # To the tap alone an answer in one piece, a full engine and a frozen one look the same.
            status = Status.UNKNOWN
        return Check(status, stalled, limit, "s", age, "no_progress")
    return Check(Status.PASS, stalled if stalled is not None else 0.0, limit, "s", age)


_CHECKS: dict[str, Callable[[BackendView, float], Check | None]] = {
    "gpu_memory": _gpu_memory,
    "kv_cache": _kv_cache,
    "semantic_probe": _semantic_probe,
    "engine": _engine,
    "progress": _progress,
}
