"""SLOBurnFast, SLOBurnSlow, SLOTrickle: the month's error budget goes too fast, or few users get next to nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tailkeeper_alerts.burn import BURN_STEADY, FAST, SLOW, TRICKLE, conditions, is_capped, share
from tailkeeper_alerts.model import (
    BACKEND_TEMPLATE,
    DURATION_TEMPLATE,
    PERCENT_TEMPLATE,
    Alert,
    Case,
    Expected,
    Group,
    Input,
    RuleSettings,
    Severity,
)
from tailkeeper_alerts.promql import CLUSTER, LE, bucket, count, duration, eq, series
from tailkeeper_alerts.slo import Promise, budget, promises
from tailkeeper_exporter.catalog import BACKEND, MODEL, OUTCOME, REQUESTS
from tailkeeper_watchdog.alert_terms import ROOT_CAUSE_BOARD_UID
from tailkeeper_watchdog.metrics import BURN_BAD_LONG, BURN_FAST, BURN_SLOW, BURN_TRICKLE, TRICKLE_BAD, BurnWindows, trickle_share

TEST_INTERVAL_S = 60
CAUSES = {
    "": "The engine fails or refuses work: out of memory, overloaded, a bad deploy, or requests that it cannot serve.",
    "ttft": "More work than it can carry, longer prompts, or a slower engine: clocks, heat, a neighbour, a deploy.",
    "itl": "Too many requests in the batch, preemptions, or a slower GPU: clocks, heat, a neighbour.",
}


def group(settings: RuleSettings) -> Group:
    alerts = tuple(alert for p in promises(settings) for alert in (_fast(p, settings), _trickle(p, settings), _slow(p, settings)))
    return Group("tailkeeper-slo-burn", (*conditions(settings), *alerts), _cases(settings), test_interval_s=TEST_INTERVAL_S)


def percent(ratio: float) -> str:
    return f"{100 * ratio:.3g} %"


def _labels(promise: Promise) -> dict[str, str]:
    return {"signal": promise.signal} if promise.signal else {}


def _loose(windows: BurnWindows, settings: RuleSettings) -> str:
    """Why a loose SLO tells of nearly all requests only (field report D5)."""
    if not is_capped(windows, settings):
        return ""
    return f" An SLO of {percent(settings.objective)} leaves no share that is {windows.rate:g} times too much."


def _fast(promise: Promise, settings: RuleSettings) -> Alert:
    limit = percent(share(BURN_FAST, settings))
    return Alert(
        name="SLOBurnFast",
        expr=promise.burn(FAST),
        severity=Severity.PAGE,
        keep_firing_for_s=120,
        labels=_labels(promise),
        strategy="slo_guardian",
        board=ROOT_CAUSE_BOARD_UID,
        summary=f"{BACKEND_TEMPLATE}: {promise.what}; at this rate the month's error budget is gone in {DURATION_TEMPLATE}",
        impact=(
            f"Users of {BACKEND_TEMPLATE} {promise.users}: at least {limit} of the {promise.unit} of the last hour, and now. "
            f"{percent(float(budget(settings)))} are allowed.{_loose(BURN_FAST, settings)}"
        ),
        causes=CAUSES[promise.signal],
        actions="One backend: hold it out of its pool. All of them: shed or add capacity; taking backends out makes it worse.",
        when=f"at least {limit} of {promise.unit} {promise.word}, over 1 h and 5 min; {BURN_BAD_LONG} at least",
    )


def _slow(promise: Promise, settings: RuleSettings) -> Alert:
    limit, least = percent(share(BURN_SLOW, settings)), percent(share(BURN_STEADY, settings))
    return Alert(
        name="SLOBurnSlow",
        expr=promise.burn(SLOW),
        severity=Severity.TICKET,
        keep_firing_for_s=60,
        labels=_labels(promise),
        board=ROOT_CAUSE_BOARD_UID,
        summary=f"{BACKEND_TEMPLATE}: {promise.what}; at this rate the month's error budget is gone in {DURATION_TEMPLATE}",
        impact=(
            f"Users of {BACKEND_TEMPLATE} {promise.users}, too often for the SLO to hold to the end of the month."
            f"{_loose(BURN_SLOW, settings)}"
        ),
        causes=CAUSES[promise.signal],
        actions="Handle it by day. Compare the hours: load that returns daily wants capacity, not a restart.",
        when=(
            f"at least {limit} of {promise.unit} {promise.word} over 6 h and 30 min, or {least} over 3 days and 6 h; "
            f"{BURN_BAD_LONG} at least"
        ),
    )


def _trickle(promise: Promise, settings: RuleSettings) -> Alert:
    limit = percent(trickle_share(float(budget(settings))))
    span = duration(BURN_TRICKLE.long_s)
    return Alert(
        name="SLOTrickle",
        expr=promise.burn(TRICKLE),
        severity=Severity.PAGE,
        keep_firing_for_s=60,
        labels=_labels(promise),
        board=ROOT_CAUSE_BOARD_UID,
        summary=f"{BACKEND_TEMPLATE}: {promise.what}, {PERCENT_TEMPLATE} of the few in {span}",
        impact=f"Users of {BACKEND_TEMPLATE} are few, and most of them {promise.users}.",
        causes=CAUSES[promise.signal],
        actions="Send it one request by hand. If that fails too, hold it out of its pool and restart it; its log says why.",
        when=f"at least {limit} of {promise.unit} {promise.word} over 6 h and 1 h; {TRICKLE_BAD} at least",
    )


# The cases. Each backend is one situation and is called by it; all are judged at the same times. A phase is some minutes with
# so many good and so many bad ones in each.

Phase = tuple[int, int, int]
JUDGED_AT, QUIET_AT = "3h10m", "25m"
FEW: tuple[Phase, ...] = (((9, 0, 0), (1, 0, 1)) * 5 + ((9, 0, 0), (1, 1, 0))) * 4
SITUATIONS: Mapping[str, tuple[Phase, ...]] = {
    "well": ((200, 10, 0),),
    "idle": ((200, 0, 0),),
    "half are bad since 70 min": ((120, 10, 0), (80, 5, 5)),
    "a burst is over since 20 min": ((160, 10, 0), (10, 5, 5), (30, 10, 0)),
    "it ended four minutes ago": ((160, 200, 0), (26, 5, 20), (14, 20, 1)),
    "a burst began a minute ago": ((189, 10, 0), (11, 0, 300)),
    "5 of 100 are bad for hours": ((30, 100, 0), (170, 95, 5)),
    "1 of 100 is bad": ((200, 99, 1),),
    "most of few are bad": FEW,
    "few and good": ((9, 0, 0), (1, 1, 0)) * 20,
    "one bad at night": ((188, 0, 0), (1, 0, 1), (11, 0, 0)),
    "four bad at night": ((46, 0, 0), (1, 0, 1)) * 4 + ((12, 0, 0),),
    "a cold engine": ((187, 0, 0), (1, 0, 30), (12, 1, 0)),
}
FAST_IN, TRICKLE_IN, SLOW_IN = "half are bad since 70 min", "most of few are bad", "5 of 100 are bad for hours"
ONE_ANSWER = "one long answer with slow tokens"


def _counter(steps: list[tuple[int, int]]) -> str:
    """Promtool's notation of a counter that rises by so much in each of so many minutes."""
    words, value = ["0"], 0
    for minutes, step in steps:
        words.append(f"{value + step}+{step}x{minutes - 1}")
        value += step * minutes
    return " ".join(words)


def _traffic(promise: Promise, backend: str, phases: tuple[Phase, ...], cluster: str = "") -> tuple[Input, ...]:
    """Requests, or the buckets of a latency: good ones end within the SLO, bad ones long after it."""
    at = (*((eq(CLUSTER, cluster),) if cluster else ()), eq(BACKEND, backend), eq(MODEL, "m"))
    good, bad = _counter([(m, g) for m, g, _ in phases]), _counter([(m, b) for m, _, b in phases])
    if promise.histogram is None:
        return tuple(Input(series(REQUESTS, *at, eq(OUTCOME, name)), v) for name, v in (("ok", good), ("error", bad)))
    both = _counter([(m, g + b) for m, g, b in phases])
    bounds = {f"{promise.limit_s:g}": good, "100": both, "+Inf": both}
    buckets = tuple(Input(bucket(promise.histogram, *at, eq(LE, bound)), values) for bound, values in bounds.items())
    return (*buckets, Input(count(promise.histogram, *at), both))


def _all_traffic(settings: RuleSettings) -> tuple[Input, ...]:
    """The situations for every promise, the same name in two clusters, and a thousand slow tokens that are one request."""
    failed, _, slow_tokens = promises(settings)
    situations = (_traffic(p, name, phases) for p in promises(settings) for name, phases in SITUATIONS.items())
    clusters = (_traffic(failed, "twin", ((30, 5, 0), (170, 5, bad)), name) for name, bad in (("eu", 5), ("us", 0)))
    answer = (
        _traffic(slow_tokens, ONE_ANSWER, ((179, 0, 0), (21, 20, 80))),
        _traffic(failed, ONE_ANSWER, ((179, 0, 0), (1, 1, 0), (20, 0, 0))),
    )
    return tuple(item for items in (*situations, *clusters, *answer) for item in items)


def _cases(settings: RuleSettings) -> tuple[Case, ...]:
    inputs = _all_traffic(settings)
    twin = Expected(_fast(promises(settings)[0], settings), "7h 12m 0s", "twin", cluster="eu")
    expected = {
        "SLOBurnFast": (*(Expected(_fast(p, settings), "7h 12m 0s", FAST_IN) for p in promises(settings)), twin),
        "SLOTrickle": tuple(Expected(_trickle(p, settings), "84.21%", TRICKLE_IN) for p in promises(settings)),
        "SLOBurnSlow": tuple(Expected(_slow(p, settings), "3d 13h 30m 0s", SLOW_IN) for p in promises(settings)),
    }
    told = tuple(Case("each situation is told once, or not at all", name, inputs, JUDGED_AT, e) for name, e in expected.items())
    return (*told, *(Case("before it all", name, inputs, QUIET_AT) for name in expected))


def steady_cases(settings: RuleSettings) -> tuple[Case, ...]:
    """For a test that has a sample in a quarter of an hour: three days are long."""
    failed = promises(settings)[0]
    slow = _slow(failed, settings)
    traffic = (
        *(_traffic(failed, name, ((290, good, bad),)) for name, good, bad in (("2 of 100", 49, 1), ("1 of 250", 249, 1))),
        tuple(replace(item, values=f"_x240 {item.values}") for item in _traffic(failed, "half a day old", ((50, 49, 1),))),
    )
    inputs = tuple(item for items in traffic for item in items)
    expected = (Expected(slow, "7d 12h 0m 0s", "2 of 100"),)
    return (Case("more than the SLO allows for three days is a ticket, less is not", slow.name, inputs, "3d", expected),)
