"""The same as ``slo_counts`` over hours and days, evaluated once a minute: long windows are dear, and slow by nature.

Three days are the sum of their hours: reading three days of every counter again and again would cost a large fleet's
Prometheus more than all its other rules together.
"""

from __future__ import annotations

from tailkeeper_alerts.burn import BURN_STEADY
from tailkeeper_alerts.groups.slo_burn import steady_cases
from tailkeeper_alerts.groups.slo_counts import HOUR_S, counts, ratios
from tailkeeper_alerts.model import Group, Input, QueryCase, Recording, RuleSettings
from tailkeeper_alerts.promql import duration, eq, series
from tailkeeper_alerts.slo import Promise, promises
from tailkeeper_exporter.catalog import BACKEND, MODEL, OUTCOME, REQUESTS
from tailkeeper_watchdog.metrics import BURN_SLOW

INTERVAL_S = 60
TEST_INTERVAL_S = 900
SIX_HOURS_S = BURN_SLOW.long_s
THREE_DAYS_S = BURN_STEADY.long_s


def group(settings: RuleSettings) -> Group:
    rules = tuple(rule for promise in promises(settings) for rule in _recordings(promise))
    return Group("tailkeeper-slo-hours", rules, steady_cases(settings), _queries(settings), INTERVAL_S, TEST_INTERVAL_S)


def _recordings(promise: Promise) -> tuple[Recording, ...]:
    """The counts of three days mean what those of the other windows do."""
    window = f"[{duration(THREE_DAYS_S)}:{duration(HOUR_S)}]"
    sums = (Recording(name(THREE_DAYS_S), f"sum_over_time({name(HOUR_S)}{window})") for name in (promise.bad, promise.counted))
    return (*counts(promise, (SIX_HOURS_S,)), *sums, *ratios(promise, (SIX_HOURS_S, THREE_DAYS_S)))


def _queries(settings: RuleSettings) -> tuple[QueryCase, ...]:
    failed = promises(settings)[0]
    rising = {
        "a quarter": ("0+3x290", "0+1x290"),
        "idle": ("0x290", "0x290"),
        "one bad day": ("0x96 0+4x194", "0+4x96 384x194"),
    }
    inputs = tuple(
        Input(series(REQUESTS, eq(BACKEND, backend), eq(MODEL, "m"), eq(OUTCOME, name)), values)
        for backend, both in rising.items()
        for name, values in zip(("ok", "error"), both, strict=True)
    )
    over_days, over_hours = failed.ratio(THREE_DAYS_S), failed.ratio(SIX_HOURS_S)

    def case(name: str, record: str, **by_backend: float) -> QueryCase:
        # What is computed has no name of its own.
        named = record if record == over_hours else ""
        samples = tuple((f'{named}{{backend="{backend.replace("_", " ")}"}}', value) for backend, value in by_backend.items())
        return QueryCase(name, record, inputs, "3d", samples)

    return (
        case("three days remember what six hours have forgotten", over_hours, a_quarter=0.25, one_bad_day=0.0),
        case("hours without requests weigh nothing", f"round({over_days}, 0.01)", a_quarter=0.25, one_bad_day=0.33),
    )
