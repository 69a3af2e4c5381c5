"""A fall in P99 that is no good news: the waits got shorter while errors rise or the answers have gone empty. Pure.

A backend that fails fast, or answers with nothing, looks better in every latency. The last minute is compared with the
median of the backend's own minutes before (up to half an hour of them). While the symptom lasts they stay as they are, for
six hours at most: by then what was new is what is usual, and errors by themselves are ``slo_burn``'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, nan
from statistics import median

import numpy as np

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Quantile
from tailkeeper_watchdog.columns import Columns, columns
from tailkeeper_watchdog.detectors.base import Detector, Symptom
from tailkeeper_watchdog.many_windows import Mask
from tailkeeper_watchdog.model import EMPTY, FindingKind, Severity, Situation
from tailkeeper_watchdog.samples import OUTCOME_SLOT
from tailkeeper_watchdog.table import Matrix, Table
from tailkeeper_watchdog.window import Window

SPACING_S = 60.0
"""One reading a minute: windows of a minute that overlap would be one fact told many times."""
READINGS = 30
MIN_READINGS = 5
MIN_REQUESTS = 20
FALL_RATIO = 0.7
"""P99 below this share of its usual is a clear fall: two halves of one window differ by less."""
ERROR_RISE = 0.02
"""Four times the error budget of 99.5 %."""
MIN_FAILED = 5
TOKENS_RATIO = 0.3
"""Tokens per answered request below this share of the usual: the answers have vanished, not merely got shorter."""
HOLD_S = 6 * 3_600.0
SIGNAL = "ttft"


@dataclass(frozen=True, slots=True)
class Minute:
    """One minute of a backend. Unknown is None."""

    p99_s: float
    error_ratio: float | None
    """None where the engine does not tell which requests failed."""
    tokens_per_request: float | None


@dataclass(frozen=True, slots=True)
class Usual:
    """The minutes of one backend in one life of its engine, newest last, and when the newest was taken (monotonic)."""

    epoch: int = 0
    minutes: tuple[Minute, ...] = ()
    taken_at: float = float("-inf")
    broken_since: float | None = None

    def median(self) -> Minute | None:
        if len(self.minutes) < MIN_READINGS:
            return None
        tokens = [m.tokens_per_request for m in self.minutes if m.tokens_per_request is not None]
        errors = [m.error_ratio for m in self.minutes if m.error_ratio is not None]
        return Minute(
            median(m.p99_s for m in self.minutes),
            median(errors) if len(errors) >= MIN_READINGS else None,
            median(tokens) if len(tokens) >= MIN_READINGS else None,
        )


@dataclass(frozen=True, slots=True)
class Memory:
    usual: Mapping[str, Usual] = field(default_factory=lambda: EMPTY)
    latest: Table = field(default_factory=Table)
    """Of every backend what the cheap half of the question looks at: lines as ``_NEVER`` is one."""


_NEVER = (0.0, -inf, nan, 0.0)
"""The epoch of one's minutes, when the newest was taken, its tokens per request (NaN while too few minutes are known), and 1
while it is held to be broken."""


def _line(usual: Usual) -> tuple[float, float, float, float]:
    tokens = usual.minutes[-1].tokens_per_request if len(usual.minutes) >= MIN_READINGS else None
    return usual.epoch, usual.taken_at, nan if tokens is None else tokens, usual.broken_since is not None


def detect(situation: Situation, memory: Memory) -> tuple[Memory, tuple[Symptom, ...]]:
    fleet, now = columns(situation), situation.snapshot.now
    p99 = fleet.minute.quantile(SIGNAL, 0.99)
    lines, kept = memory.latest.of(fleet.names, _NEVER), dict(memory.usual)
    symptoms: list[Symptom] = []
    for place in np.flatnonzero(_may_have_changed(fleet, lines, now)).tolist():
        name = fleet.names[place]
        usual, epoch = kept.get(name) or Usual(), int(fleet.epoch[place])
        if usual.epoch != epoch:
            usual = Usual(epoch)
        window = situation.windows.get(name)
        kept[name], symptom = (usual, None) if window is None else _judge(name, window, p99.at(place), usual, now)
        lines[place] = _line(kept[name])
        if symptom is not None:
            symptoms.append(symptom)
    return Memory(kept, Table(fleet.names, lines)), tuple(symptoms)


def _may_have_changed(fleet: Columns, lines: Matrix, now: float) -> Mask:
    """Where a minute is over, where anything has got worse, and where it was before: of all others nothing is to be said."""
    epoch, taken_at, known_tokens, broken = lines.T
    finished, failed = fleet.minute.finished()
    ok = fleet.minute.of(OUTCOME_SLOT["ok"])
    tokens = fleet.minute.of(catalog.GENERATED_TOKENS.name) / np.where(ok != 0, ok, nan)
    worse = (tokens < 0.5 * known_tokens) | (failed / np.where(finished > 0, finished, nan) >= ERROR_RISE)
    return np.asarray((epoch != fleet.epoch) | (now - taken_at >= SPACING_S) | (broken > 0) | worse, dtype=np.bool_)


def _judge(name: str, window: Window, p99: Quantile | None, usual: Usual, now: float) -> tuple[Usual, Symptom | None]:
    due = now - usual.taken_at >= SPACING_S
    reference = usual.median() if (_may_have_broken if due else _may_be_broken)(window, usual) else None
    if reference is None and not due:
        return _healed(usual), None
    minute = _minute(window, p99)
    if minute is None:
        return _healed(usual), None
    broken = reference is not None and bool(_what_broke(minute, reference, window)) and _fell(minute, reference)
    since = (usual.broken_since if usual.broken_since is not None else now) if broken else None
    held = since is not None and now - since < HOLD_S
    if due and not held:
        usual = Usual(usual.epoch, (*usual.minutes, minute)[-READINGS:], now)
    usual = Usual(usual.epoch, usual.minutes, usual.taken_at, since)
    return usual, _symptom(name, minute, reference, window) if broken and reference is not None else None


def _healed(usual: Usual) -> Usual:
    return usual if usual.broken_since is None else Usual(usual.epoch, usual.minutes, usual.taken_at)


def _may_be_broken(window: Window, usual: Usual) -> bool:
    """Has anything got worse at all?"""
    if len(usual.minutes) < MIN_READINGS:
        return False
    errors, tokens = window.error_ratio, _tokens_per_request(window)
    known = usual.minutes[-1]
    fewer = tokens is not None and known.tokens_per_request is not None and tokens < 0.5 * known.tokens_per_request
    return usual.broken_since is not None or fewer or (errors is not None and errors >= ERROR_RISE)


def _may_have_broken(window: Window, usual: Usual) -> bool:
    """Whether a minute that is over can be worse than the median: errors have risen, or answers are short beside the longest."""
    errors, tokens = window.error_ratio, _tokens_per_request(window)
    most = max((m.tokens_per_request for m in usual.minutes if m.tokens_per_request is not None), default=0.0)
    return (errors is not None and errors >= ERROR_RISE) or (tokens is not None and tokens < TOKENS_RATIO * most)


def _minute(window: Window, p99: Quantile | None) -> Minute | None:
    requests = window.requests
    if requests is None or requests < MIN_REQUESTS:
        return None
    if p99 is None or p99.samples < MIN_REQUESTS:
        return None
    return Minute(p99.value, window.error_ratio, _tokens_per_request(window))


def _tokens_per_request(window: Window) -> float | None:
    """Of requests that ended well; None where either is not counted."""
    tokens, answered = window.increase(catalog.GENERATED_TOKENS.name), window.increase(OUTCOME_SLOT["ok"])
    return None if tokens is None or not answered else tokens / answered


def _fell(minute: Minute, usual: Minute) -> bool:
    return minute.p99_s < FALL_RATIO * usual.p99_s


def _what_broke(minute: Minute, usual: Minute, window: Window) -> list[str]:
    """In words what got worse; empty where nothing did."""
    broke: list[str] = []
    errors, known = minute.error_ratio, usual.error_ratio
    failed = window.finished[1] if window.finished is not None else 0.0
    if errors is not None and known is not None and errors >= known + ERROR_RISE and failed >= MIN_FAILED:
        broke.append(f"{errors:.1%} of the requests fail (usually {known:.1%})")
    now, before = minute.tokens_per_request, usual.tokens_per_request
    if now is not None and before is not None and now < TOKENS_RATIO * before:
        broke.append(f"answers have {now:.3g} tokens (usually {before:.3g})")
    return broke


def _symptom(name: str, minute: Minute, usual: Minute, window: Window) -> Symptom:
    broke = _what_broke(minute, usual, window)
    evidence = {
        "p99_s": minute.p99_s,
        "usual_p99_s": usual.p99_s,
        "error_ratio": minute.error_ratio,
        "usual_error_ratio": usual.error_ratio,
        "tokens_per_request": minute.tokens_per_request,
        "usual_tokens_per_request": usual.tokens_per_request,
        "requests": window.requests,
    }
    fall = f"P99 of the first token fell from {usual.p99_s:.3g} s to {minute.p99_s:.3g} s"
    return Symptom(
        FindingKind.IMPROVED_BUT_BROKEN, name, Severity.TICKET, f"{name}: {fall}, but {' and '.join(broke)}", evidence, SIGNAL
    )


DETECTOR = Detector("improved_but_broken", (FindingKind.IMPROVED_BUT_BROKEN,), Memory, detect, close_after_s=60.0)
