"""When the error budget goes too fast: the conditions of SLOBurnFast, SLOBurnSlow and SLOTrickle as recorded series. Pure text.

The rules and numbers are those of the watchdog's detector ``slo_burn``. Two windows must agree, the long one that it matters and
the short one that it still goes on; too few bad ones are no share of anything; and what was bad must be older than the latest
moments and go on in them, so that one burst is no incident. Of one promise only the loudest holds. Prometheus alone remembers
three days, so a burn of just over the budget is told from here only.
"""

from __future__ import annotations

from tailkeeper_alerts.model import Recording, RuleSettings
from tailkeeper_alerts.promql import on
from tailkeeper_alerts.slo import PLACE, Promise, budget, promises, requests_counted
from tailkeeper_watchdog.metrics import (
    BURN_BAD_BEFORE,
    BURN_BAD_LONG,
    BURN_BAD_SHORT,
    BURN_FAST,
    BURN_MOST,
    BURN_SLOW,
    BURN_TRICKLE,
    TRICKLE_BAD,
    BurnWindows,
    trickle_share,
)

MONTH_S = 2_592_000.0
"""30 days, over which the SLO holds."""
BURN_STEADY = BurnWindows(1.0, 259_200.0, 21_600.0, 3_600.0)
"""The whole month's budget in a month: nobody is woken, but at the end of the month the SLO is broken. A ticket."""
KNOWN_FOR = "1d"
"""A backend that is known for less is not judged by three days."""
FAST, SLOW, TRICKLE = "fast", "slow", "trickle"


def share(windows: BurnWindows, settings: RuleSettings) -> float:
    """The share of bad requests at which the rule holds."""
    return min(BURN_MOST, windows.rate * float(budget(settings)))


def is_capped(windows: BurnWindows, settings: RuleSettings) -> bool:
    """Whether the SLO is too loose for that rate."""
    return windows.rate * float(budget(settings)) > BURN_MOST


def conditions(settings: RuleSettings) -> tuple[Recording, ...]:
    """For each promise the three, loudest first. Fast and slow record how long the month's budget lasts at this rate, in
    seconds; a trickle records its share of bad ones."""
    return tuple(rule for promise in promises(settings) for rule in _of(promise, settings))


def _of(promise: Promise, settings: RuleSettings) -> tuple[Recording, ...]:
    louder = f"unless {on(*PLACE)} {promise.burn(FAST)}"
    known = f"and {on(*PLACE)} {promise.counted(BURN_STEADY.short_s)} offset {KNOWN_FOR} >= 0"
    slow = f"({_burns(promise, BURN_SLOW, settings)}\nor {on(*PLACE)} {_burns(promise, BURN_STEADY, settings)}\n{known})"
    lasts = f"How long the month's budget lasts at this rate, while too many {promise.unit} {promise.did}; seconds."
    most = f"Share of {promise.unit} of six hours that {promise.did}, while it is most of few."
    return (
        Recording(promise.burn(FAST), _burns(promise, BURN_FAST, settings), lasts),
        Recording(promise.burn(TRICKLE), f"{_trickles(promise, settings)}\n{louder}", most),
        Recording(promise.burn(SLOW), f"{slow}\n{louder}\nunless {on(*PLACE)} {promise.burn(TRICKLE)}", lasts),
    )


def _burns(promise: Promise, windows: BurnWindows, settings: RuleSettings) -> str:
    limit = share(windows, settings)
    spent = f"({promise.ratio(windows.long_s)} >= {limit:.12g})"
    # Whole minutes: nobody plans by the second, and the last digit of a quotient is noise.
    value = f"round({MONTH_S * float(budget(settings)):.12g} / {spent}, 60)"
    return _all_hold(value, promise, windows, limit, (BURN_BAD_LONG, BURN_BAD_SHORT))


def _trickles(promise: Promise, settings: RuleSettings) -> str:
    limit = trickle_share(float(budget(settings)))
    value = f"({promise.ratio(BURN_TRICKLE.long_s)} >= {limit:g})"
    return _all_hold(value, promise, BURN_TRICKLE, limit, (TRICKLE_BAD, 1))


def _all_hold(value: str, promise: Promise, windows: BurnWindows, limit: float, least: tuple[int, int]) -> str:
    bad_long, bad_latest = promise.bad(windows.long_s), promise.bad(windows.latest_s)
    held = [
        f"{promise.ratio(windows.short_s)} >= {limit:.12g}",
        f"{bad_long} >= {least[0]}",
        f"{promise.bad(windows.short_s)} >= {least[1]}",
        f"({bad_latest} >= {limit:.12g} * {promise.counted(windows.latest_s)}) >= 1",
        f"{bad_long} - {bad_latest} >= {BURN_BAD_BEFORE}",
        *_enough_requests(promise, windows, least[0]),
    ]
    return "\n".join([value, *(f"and {on(*PLACE)} {condition}" for condition in held)])


def _enough_requests(promise: Promise, windows: BurnWindows, least: int) -> tuple[str, ...]:
    """One long answer has hundreds of tokens, and is one request: where tokens are counted, requests are the traffic."""
    if promise.unit == "requests":
        return ()
    return (f"({requests_counted(windows.long_s)}) >= {least}",)
