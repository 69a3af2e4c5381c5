"""The visual language of every board: colours, states in words, units from the catalogue, thresholds. Pure values.

A state is always a colour and a word. The base colour of anything is neutral: green is earned by data, so a panel
without data is never green.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.models.dashboard import (
    DashboardRangeMapOptions,
    DashboardRegexMapOptions,
    DashboardSpecialValueMapOptions,
    FieldColorModeId,
    RangeMap,
    RegexMap,
    SpecialValueMap,
    SpecialValueMatch,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMapping,
    ValueMappingResult,
)

from tailkeeper_exporter.catalog import Kind, Metric, Unit
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.metrics import HSCORE, HSCORE_FACTOR, SCORE_BAND_SEVERITY

NEUTRAL = "text"
GREY = "#8e8e8e"
GREEN, YELLOW, ORANGE, RED, DARK_RED = "green", "yellow", "orange", "red", "dark-red"
BLUE, PURPLE = "blue", "purple"

SCORE_DECIMALS = 2
SCORES = (HSCORE, HSCORE_FACTOR)
"""Shown as 0.93 and not as 93 %: the bands of the alerts and the console speak of 0.6, 0.4 and 0.2."""

_UNITS: Mapping[Unit, str] = {
    Unit.SECONDS: "s",
    Unit.BYTES: "bytes",
    Unit.RATIO: "percentunit",
    Unit.TOKENS: "short",
    Unit.REQUESTS: "short",
    Unit.CELSIUS: "celsius",
    Unit.WATTS: "watt",
    Unit.HERTZ: "hertz",
    Unit.TOKENS_PER_SECOND: "count:tok/s",
    Unit.ONE: "short",
}
_RATES: Mapping[Unit, str] = {Unit.REQUESTS: "reqps", Unit.TOKENS: "count:tok/s", Unit.ONE: "ops"}
RATIO_UNIT = _UNITS[Unit.RATIO]
COUNT_UNIT = _UNITS[Unit.ONE]
MONEY_UNIT = "none"
"""Of a price that somebody types in: in which currency is theirs to know."""


def unit_of(metric: Metric) -> str:
    """Grafana's unit of the metric's own values."""
    return "none" if metric in SCORES else _UNITS[metric.unit]


def rate_unit_of(metric: Metric) -> str:
    """Grafana's unit of ``rate()`` over a counter. Raises ValueError for another kind: a rate of a gauge means nothing."""
    if metric.kind is not Kind.COUNTER:
        raise ValueError(f"{metric.name}: is a {metric.kind}; rate() wants a counter")
    return _RATES[metric.unit]


@dataclass(frozen=True, slots=True)
class StateStyle:
    """One backend state. ``rank`` is how much it should worry us; graphs need a number and people want the worst on top."""

    name: State
    color: str
    rank: int


STATES: tuple[StateStyle, ...] = (
    StateStyle(State.SERVING, GREEN, 1),
    StateStyle(State.BUSY, YELLOW, 2),
    StateStyle(State.STARTING, BLUE, 3),
    StateStyle(State.UNKNOWN, GREY, 4),
    StateStyle(State.MISCONFIGURED, PURPLE, 5),
    StateStyle(State.HUNG, RED, 6),
    StateStyle(State.DOWN, DARK_RED, 7),
)

OUTCOME_COLORS: Mapping[str, str] = {"ok": GREEN, "error": RED, "rejected": ORANGE, "aborted": YELLOW}
VERDICT_COLORS: Mapping[str, str] = {"applied": BLUE, "refused": ORANGE, "failed": RED}


def value_map(texts: Mapping[str, tuple[str, str]]) -> ValueMap:
    """Value → (word, colour)."""
    return ValueMap(
        {
            value: ValueMappingResult(text=text, color=color, index=index)
            for index, (value, (text, color)) in enumerate(texts.items())
        }
    )


def range_map(low: float, high: float, text: str, color: str) -> RangeMap:
    """Values from ``low`` to ``high`` → (word, colour)."""
    return RangeMap(DashboardRangeMapOptions(low, high, ValueMappingResult(text=text, color=color, index=0)))


def short_ids() -> RegexMap:
    """A GPU's UUID as its first eight and last four characters; what links are given stays whole."""
    result = ValueMappingResult(text="$1…$2", color=NEUTRAL, index=0)
    return RegexMap(DashboardRegexMapOptions("/^(.{8}).+(.{4})$/", result))


def state_names() -> list[ValueMapping]:
    """For columns that hold a state's name."""
    return [value_map({state.name: (state.name, state.color) for state in STATES})]


def state_ranks() -> list[ValueMapping]:
    """For graphs that hold a state's rank."""
    return [value_map({str(state.rank): (state.name, state.color) for state in STATES})]


def missing(word: str) -> SpecialValueMap:
    """NaN and null as a grey word, since 'last not null' would show them as a number or in the base colour."""
    result = ValueMappingResult(text=word, color=GREY, index=0)
    return SpecialValueMap(DashboardSpecialValueMapOptions(SpecialValueMatch.NULL_AND_NAN, result))


def steps(*bounds: tuple[float, str]) -> dashboard_builders.ThresholdsConfig:
    """Absolute thresholds above a neutral base."""
    levels = [Threshold(value=None, color=NEUTRAL), *(Threshold(value=value, color=color) for value, color in bounds)]
    return dashboard_builders.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(levels)


QUANTILE_COLORS: Mapping[str, str] = {"P50": "#557f8c", "P95": "#4499b3", "P99": "#2fb6de"}
"""Three strengths of one hue that both themes show, where the quantiles of one thing stand together."""
STAGE_COLORS: Mapping[str, str] = {"queue": "#b8860b", "prefill": "#3ba0bd", "decode": "#6b7fa8"}
"""Of one request, in the order in which they happen."""

MARK = QUANTILE_COLORS["P95"]
"""Of the one request that is looked at, on every graph."""
SCORE_STEPS = tuple(zip((0.0, *map(float, SCORE_BAND_SEVERITY)), (DARK_RED, RED, ORANGE, GREEN), strict=True))
"""The alert bands as colours."""


def color_by(mode: FieldColorModeId) -> dashboard_builders.FieldColor:
    return dashboard_builders.FieldColor().mode(mode)


def seconds_in_query(seconds: float) -> str:
    """A number as every query language reads it: no exponent."""
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


def seconds_text(seconds: float) -> str:
    """Milliseconds below one second, seconds above: 800 ms, 1.2 s."""
    return f"{seconds * 1_000:g} ms" if seconds < 1 else f"{seconds:g} s"
