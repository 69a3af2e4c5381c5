"""What one tick was computed from: everything that the loop read before it decided, and what came of acting. Values only, and
how long its steps took, which nothing is decided by.

A tick computed again from these inputs gives the same findings, wishes, verdicts and decisions: `records` keeps them and
`replay` feeds them to the same loop. Whatever a tick comes to look at beside these belongs in here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tailkeeper_watchdog.actuators.contract import Support
from tailkeeper_watchdog.collect.base import Collected
from tailkeeper_watchdog.happenings.names import Step
from tailkeeper_watchdog.model import EMPTY, Backend, Knob, Lease, Pending
from tailkeeper_watchdog.reconcile import Executed, GatewayReport


@dataclass(frozen=True, slots=True)
class TickInputs:
    """Inputs of one tick. ``started``, ``now``, ``acted`` and ``released_at`` are monotonic seconds."""

    tick: int
    started: float
    now: float
    time_unix_s: float
    backends: tuple[Backend, ...]
    """The very tuple that the provider of the fleet gave: while it is the same one, nothing has changed."""
    collected: Collected
    report: GatewayReport
    leases: tuple[Lease, ...] = ()
    """As the ledger has them, before they are adopted by backends that were renamed."""
    support: Mapping[tuple[str, Knob], Support] = field(default_factory=lambda: EMPTY)
    without_doors: frozenset[str] = frozenset()
    """Gateways that carry no traffic: to the guards their servers are no pool."""
    weights: Mapping[str, float] = field(default_factory=lambda: EMPTY)
    paused: str | None = None
    holds: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    """Backend → the operator's reason."""
    attempts: Mapping[str, int] = field(default_factory=lambda: EMPTY)
    released_at: Mapping[str, float] = field(default_factory=lambda: EMPTY)
    pending: Pending = field(default_factory=lambda: EMPTY)
    unwritten: str | None = None
    """Why the ledger cannot be written, where that lasts."""
    executed: Executed | None = None
    """What acting came to; None where the tick did not get that far."""
    acted: float = 0.0
    acted_unix_s: float = 0.0


@dataclass(slots=True)
class Laps:
    """When a tick began and when each of its steps ended, monotonic seconds. A tick that failed has those it came to."""

    started: float
    steps: list[tuple[Step, float]] = field(default_factory=list)
