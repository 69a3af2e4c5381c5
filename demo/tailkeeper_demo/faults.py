"""Faults that can be injected into a simulated engine: their names, their parameters, and how a request for one is read.

Pure: documents in, values out. What a fault does is in `engine_driver` (hang, flap, slow, throttle, oom), `engine_server`
(errors, restart, blind) and `gpu_file` (throttle, blind).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

MAX_DURATION_S = 3600.0
OOM_CLIMB_S = 4.0
"""Time the leak takes to fill the pool: within seconds, yet slow enough that a 1 s scrape sees it climb."""
OOM_FLOOR_RATIO = 0.95
"""Share of the KV pool the leak holds once it has climbed. The rest, 204 of 4,096 blocks, fits one longest demo request, so the
engine crawls and never stands still: a stuck engine would be a hang."""
OOM_SWELL_RATIO, OOM_SWELL_PERIOD_S = 0.035, 3.0
"""On top, the leak swells for half of every period and evicts who came in between: at the default load KV use stays above 0.97
nine tenths of the time, and some ten to twenty requests are preempted before the kill."""
OOM_KILL_AFTER_S = 20.0
"""Seconds under memory pressure with work in flight after which the engine is killed, as by an out-of-memory killer."""

FLAP_BAD_S, FLAP_GOOD_S = 9.0, 7.0
"""A flapping engine hangs and answers in turn. Nine seconds are enough to be found hung once nothing has moved for five; seven
good ones are enough to look healed to whoever waits for less."""
THROTTLE_HEAT_S, THROTTLE_FALL_S = 4.0, 3.0
"""An overheating GPU keeps its clock while it heats up, then loses it over a few seconds."""


class FaultKind(StrEnum):
    """Faults that can be injected."""

    HANG = "hang"
    """No iteration ends any more; requests are accepted and get nothing; /health and /metrics still answer."""
    SLOW = "slow"
    """Every iteration takes `factor` times as long."""
    OOM = "oom"
    """Something else eats the GPU memory until the engine is killed."""
    ERRORS = "errors"
    """A share `ratio` of completions is answered 500 at once."""
    RESTART = "restart"
    """The process dies and comes back with its counters at zero; `duration_s` is the time it is down."""
    FLAP = "flap"
    """It hangs for `FLAP_BAD_S` and answers for `FLAP_GOOD_S`, in turn."""
    THROTTLE = "throttle"
    """The GPU overheats and its clock falls to 1 / `factor`; every iteration takes as much longer."""
    BLIND = "blind"
    """The engine serves as ever; its /metrics page is never answered and its GPU gives no readings."""


_DEFAULT_DURATION_S: Mapping[FaultKind, float] = {
    FaultKind.HANG: 20.0,
    FaultKind.SLOW: 20.0,
    FaultKind.OOM: 40.0,
    FaultKind.ERRORS: 20.0,
    FaultKind.RESTART: 3.0,
    FaultKind.FLAP: 60.0,
    FaultKind.THROTTLE: 40.0,
    FaultKind.BLIND: 20.0,
}


class FaultError(ValueError):
    """A fault request that cannot be met; the message says what was wrong and what is allowed."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault to inject. It ends by itself `duration_s` seconds after it began."""

    kind: FaultKind
    duration_s: float
    factor: float = 5.0
    """Only `slow` and `throttle` read it. Five times turns 22 ms a token into about 110 ms before any queue forms; it is a clock
    of some 0.4 GHz, within what hardware slowdown does to a GPU near its shut-down temperature."""
    ratio: float = 0.6
    """Only `errors` reads it."""


def parse_fault(document: object) -> tuple[str, Fault]:
    """Read `{"engine", "fault", "duration_s"?, "factor"?, "ratio"?}`; returns engine name and fault. Raises `FaultError`."""
    if not isinstance(document, dict):
        raise FaultError('a fault is a JSON object like {"engine": "sim-a", "fault": "hang", "duration_s": 20}')
    unknown = sorted(set(document) - {"engine", "fault", "duration_s", "factor", "ratio"})
    if unknown:
        raise FaultError(f"unknown key {unknown[0]!r}; allowed: engine, fault, duration_s, factor, ratio")
    engine = document.get("engine")
    if not isinstance(engine, str):
        raise FaultError("engine: the name of a simulated engine is needed")
    kind = parse_kind(document.get("fault"))
    return engine, Fault(
        kind,
        duration_s=_number(document, "duration_s", _DEFAULT_DURATION_S[kind], 0.1, MAX_DURATION_S),
        factor=_number(document, "factor", 5.0, 1.0, 100.0),
        ratio=_number(document, "ratio", 0.6, 0.0, 1.0),
    )


def parse_kind(name: object) -> FaultKind:
    """The fault called `name`. Raises `FaultError`."""
    try:
        return FaultKind(str(name))
    except ValueError as error:
        raise FaultError(f"fault {name!r} is unknown; available: {', '.join(FaultKind)}") from error


def _number(document: Mapping[str, object], key: str, default: float, low: float, high: float) -> float:
    value = document.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not low <= value <= high:
        raise FaultError(f"{key}: {value!r} is not a number between {low:g} and {high:g}")
    return float(value)


def oom_reserved_ratio(elapsed_s: float) -> float:
    """Share of the KV pool the leak holds `elapsed_s` seconds after it began."""
    if elapsed_s < OOM_CLIMB_S:
        return OOM_FLOOR_RATIO * max(0.0, elapsed_s) / OOM_CLIMB_S
    swell = max(0.0, math.sin(2 * math.pi * (elapsed_s - OOM_CLIMB_S) / OOM_SWELL_PERIOD_S))
    return OOM_FLOOR_RATIO + OOM_SWELL_RATIO * swell


def flap_phase(elapsed_s: float) -> tuple[bool, float]:
    """Whether a flapping engine hangs `elapsed_s` seconds after it began, and seconds until that changes."""
    into_s = elapsed_s % (FLAP_BAD_S + FLAP_GOOD_S)
    if into_s < FLAP_BAD_S:
        return True, FLAP_BAD_S - into_s
    return False, FLAP_BAD_S + FLAP_GOOD_S - into_s


def throttled_clock_ratio(elapsed_s: float, factor: float) -> float:
    """Share of its clock an overheating GPU has left `elapsed_s` seconds after it began; from 1 down to 1 / `factor`."""
    fallen = min(1.0, max(0.0, (elapsed_s - THROTTLE_HEAT_S) / THROTTLE_FALL_S))
    return 1.0 - (1.0 - 1.0 / factor) * fallen
