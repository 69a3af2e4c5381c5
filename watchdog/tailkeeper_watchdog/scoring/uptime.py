"""Share of the last hour in which a backend took work. Pure. Unobserved time is not downtime: it is left out."""

from __future__ import annotations

from dataclasses import dataclass

from tailkeeper_exporter.state import State

HOUR_S = 3_600.0
BIN_S = 60.0
MAX_STEP_S = 30.0
"""A longer gap between two observations is unobserved, not lived through."""


@dataclass(frozen=True, slots=True)
class Uptime:
    """(start of the minute, seconds observed, seconds taking work), oldest first; 61 entries at most."""

    bins: tuple[tuple[float, float, float], ...] = ()
    last_at: float | None = None

    def ratio(self) -> float | None:
        observed = sum(b[1] for b in self.bins)
        return sum(b[2] for b in self.bins) / observed if observed > 0 else None


def observe(uptime: Uptime, state: State, now: float) -> Uptime:
    """Account for the time since the last observation; nothing is added while the state is unknown or starting."""
    if state in (State.UNKNOWN, State.STARTING, State.MISCONFIGURED):
        return Uptime(uptime.bins, None)
    if uptime.last_at is None or now - uptime.last_at > MAX_STEP_S:
        return Uptime(uptime.bins, now)
    step = max(0.0, now - uptime.last_at)
    up = step if state.takes_work else 0.0
    start = now - now % BIN_S
    bins = [b for b in uptime.bins if b[0] > now - HOUR_S - BIN_S]
    if bins and bins[-1][0] == start:
        bins[-1] = (start, bins[-1][1] + step, bins[-1][2] + up)
    else:
        bins.append((start, step, up))
    return Uptime(tuple(bins), now)
