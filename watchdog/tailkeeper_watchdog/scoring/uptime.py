"""Share of the last hour in which a backend took work. Pure. Unobserved time is not downtime: it is left out."""

from __future__ import annotations

from dataclasses import dataclass

from tailkeeper_exporter.state import State

HOUR_S = 3_600.0
BIN_S = 60.0
MAX_STEP_S = 30.0
"""A longer gap between two observations is unobserved, not lived through."""


Bin = tuple[float, float, float]
"""A minute: its start, the seconds of it that were observed, and those in which work was taken."""
_SAYS_NOTHING = (State.UNKNOWN, State.STARTING, State.MISCONFIGURED)


@dataclass(slots=True)
class Uptime:
    """``minutes`` that are over, oldest first, 60 or so, with their sums: most ticks only add to the one that runs.

    Nobody changes it. It is not frozen, because to make a frozen one takes three times as long, and each backend has a new one at
    each tick.
    """

    minutes: tuple[Bin, ...] = ()
    running: Bin | None = None
    last_at: float | None = None
    observed_s: float = 0.0
    """Of ``minutes``, as is ``up_s``."""
    up_s: float = 0.0

    def ratio(self) -> float | None:
        if self.running is None:
            return None
        observed = self.observed_s + self.running[1]
        return (self.up_s + self.running[2]) / observed if observed > 0 else None


def observe(uptime: Uptime, state: State, now: float) -> Uptime:
    """Account for the time since the last observation; nothing is added while the state is unknown or starting."""
    if state in _SAYS_NOTHING:
        return _seen_at(uptime, None)
    if uptime.last_at is None or now - uptime.last_at > MAX_STEP_S:
        return _seen_at(uptime, now)
    step = max(0.0, now - uptime.last_at)
    up = step if state.takes_work else 0.0
    start = now - now % BIN_S
    running = uptime.running
    if running is None or running[0] != start:
        return _turned(uptime, (start, step, up), now)
    return Uptime(uptime.minutes, (start, running[1] + step, running[2] + up), now, uptime.observed_s, uptime.up_s)


def _seen_at(uptime: Uptime, at: float | None) -> Uptime:
    if uptime.last_at == at:
        return uptime
    return Uptime(uptime.minutes, uptime.running, at, uptime.observed_s, uptime.up_s)


def _turned(uptime: Uptime, running: Bin, now: float) -> Uptime:
    """A minute is over; those that began more than an hour before it are forgotten."""
    over = uptime.minutes if uptime.running is None else (*uptime.minutes, uptime.running)
    minutes = tuple([b for b in over if b[0] > now - HOUR_S - BIN_S])
    return Uptime(minutes, running, now, sum([b[1] for b in minutes]), sum([b[2] for b in minutes]))
