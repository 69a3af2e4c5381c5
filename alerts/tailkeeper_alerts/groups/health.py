"""Backends that still answer and should worry us: HealthDegraded by score band, LatencyDrift, MemoryPressure in two levels."""

from __future__ import annotations

from collections.abc import Mapping

from tailkeeper_alerts.model import (
    BACKEND_TEMPLATE,
    FACTOR_TEMPLATE,
    PERCENT_TEMPLATE,
    SCORE_TEMPLATE,
    Alert,
    Case,
    Expected,
    Group,
    Input,
    QueryCase,
    Recording,
    RuleSettings,
    Severity,
)
from tailkeeper_alerts.promql import CLUSTER, Matcher, by, eq, on, regex, series
from tailkeeper_alerts.slo import PLACE
from tailkeeper_exporter.catalog import BACKEND, BACKEND_STATE, SIGNAL, STATE, VRAM_PRESSURE, Label
from tailkeeper_watchdog.alert_terms import ROOT_CAUSE_BOARD_UID
from tailkeeper_watchdog.metrics import (
    ALERT_MIN_CONFIDENCE,
    DETECTOR,
    DRIFT_ACTIVE,
    DRIFT_DETECTOR,
    FACTOR,
    HSCORE,
    HSCORE_CONFIDENCE,
    HSCORE_FACTOR,
    MEMORY_RISK_AFTER_S,
    MEMORY_STOP_AFTER_S,
    SCORE_BAND_SEVERITY,
)

DOMINANT = "tailkeeper:dominant_factor:loss"
DOMINANT_FACTOR = Label("dominant_factor", 8, "the factor that costs most, or the state where it vetoes the score")
SCORE_BANDS: Mapping[str, Severity] = {band: Severity(level) for band, level in reversed(SCORE_BAND_SEVERITY.items())}
"""Upper bounds of the bands, the contract's label values. Each is shouted more often than the one before."""


def group(settings: RuleSettings) -> Group:
    degraded = tuple(_degraded(band, severity) for band, severity in SCORE_BANDS.items())
    ticket = _pressure(settings.pressure_ticket, MEMORY_RISK_AFTER_S, Severity.TICKET)
    page = _pressure(settings.pressure_page, MEMORY_STOP_AFTER_S, Severity.PAGE)
    dominant = Recording(DOMINANT, _dominant_expr(settings.weights), "What the factor that costs most takes off the score.")
    drift = _drift()
    return Group(
        "tailkeeper-health",
        (dominant, *degraded, drift, ticket, page),
        (*_degraded_cases(degraded), *_drift_cases(drift), *_pressure_cases(ticket, page)),
        (_one_factor(),),
    )


def _named(expression: str, label: Label) -> str:
    return by("max", (*PLACE, DOMINANT_FACTOR), f'label_replace({expression}, "dominant_factor", "$1", "{label.name}", "(.+)")')


def _dominant_expr(weights: Mapping[str, float]) -> str:
    """Exactly one factor a backend: its state where that vetoes the score, else the costliest, else ``unknown``.

    The outer topk keeps it at one even while two exporters disagree, since two would break the join of the alert.
    """
    veto = _named(f"{series(BACKEND_STATE, regex(STATE, 'hung|down'))} == 1", STATE)
    losses = " or ".join(f"(1 - {series(HSCORE_FACTOR, eq(FACTOR, name))}) * {weight:g}" for name, weight in weights.items())
    unknown = f'label_replace({by("max", PLACE, series(HSCORE))} * 0, "dominant_factor", "unknown", "", "")'
    costliest = by("topk", PLACE, f"{_named(f'({losses})', FACTOR)} > 0", "1")
    return by("topk", PLACE, f"{veto}\n  or {on(*PLACE)} {costliest}\n  or {on(*PLACE)} {unknown}", "1")


def _degraded(band: str, severity: Severity) -> Alert:
    unsure = f"{by('max', PLACE, series(HSCORE_CONFIDENCE))} < {ALERT_MIN_CONFIDENCE:g}"
    score = f"{by('max', PLACE, series(HSCORE))} < {band} unless {on(*PLACE)} {unsure}"
    return Alert(
        name="HealthDegraded",
        expr=f"({score})\n* {on(*PLACE)} group_left (dominant_factor) ({DOMINANT} * 0 + 1)",
        severity=severity,
        for_s=30,
        # A score that swings around a bound is one incident, not one a minute.
        keep_firing_for_s=60,
        labels={"score_band": band},
        by_factor=True,
        summary=f"{BACKEND_TEMPLATE} has a health score of {SCORE_TEMPLATE} (below {band}), mostly because of {FACTOR_TEMPLATE}",
        impact=f"Users served by {BACKEND_TEMPLATE} wait longer or get errors more often than the SLO allows.",
        causes=f"Largest loss: {FACTOR_TEMPLATE}.",
        actions="Compare it with a sibling of the same model, and see what the watchdog did about it.",
        when=f"health score below {band}",
        score=SCORE_TEMPLATE,
    )


def _pressure(threshold: float, for_s: float, severity: Severity) -> Alert:
    return Alert(
        name="MemoryPressure",
        expr=f"{by('max', PLACE, series(VRAM_PRESSURE))} >= {threshold:g}",
        severity=severity,
        for_s=int(for_s),
        keep_firing_for_s=60,
        strategy="memory_breaker",
        summary=f"{BACKEND_TEMPLATE} is running out of memory for requests (pressure {PERCENT_TEMPLATE}, limit {threshold:.0%})",
        impact=f"Users of {BACKEND_TEMPLATE} queue for KV memory; at the end requests are preempted or fail.",
        causes="Long prompts, too many requests at once, or memory lost since warm-up.",
        actions="Send new work elsewhere or lower its concurrency limit; look for a leak when traffic did not grow.",
        when=f"memory pressure at {threshold:.0%}",
    )


def _drift() -> Alert:
    by_backend = by("max", (*PLACE, SIGNAL), series(DRIFT_ACTIVE, eq(DETECTOR, DRIFT_DETECTOR)))
    return Alert(
        name="LatencyDrift",
        expr=f"{by_backend} == 1",
        severity=Severity.TICKET,
        # The detector has looked at minutes of evidence before it says so, and closes its finding on fresh evidence only.
        keep_firing_for_s=60,
        board=ROOT_CAUSE_BOARD_UID,
        summary=f"{BACKEND_TEMPLATE} is slower than it used to be, and more than its load explains",
        impact=f"Users of {BACKEND_TEMPLATE} wait longer for the first token than they did at the same load.",
        causes="Clocks, heat or a neighbour on its node, a deploy, another kind of prompts, or a leak.",
        actions="Compare it with its siblings. It alone: hold it out and restart it; all of them: look for what changed.",
        when="the watchdog's load-normalised drift test holds a finding open",
    )


def _drift_cases(drift: Alert) -> tuple[Case, ...]:
    def seen(detector: str, values: str, *more: Matcher) -> Input:
        return Input(series(DRIFT_ACTIVE, *more, eq(BACKEND, "a"), eq(SIGNAL, "ttft"), eq(DETECTOR, detector)), values)

    two = tuple(seen(DRIFT_DETECTOR, values, eq(CLUSTER, name)) for name, values in (("eu", "1x20"), ("us", "0x20")))
    return (
        Case(
            "drift is a ticket",
            drift.name,
            (seen(DRIFT_DETECTOR, "0x3 1x20"),),
            "2m",
            (Expected(drift, "1", "a", signal="ttft"),),
        ),
        Case("of two clusters", drift.name, two, "2m", (Expected(drift, "1", "a", signal="ttft", cluster="eu"),)),
        Case("a backend as fast as ever is quiet", drift.name, (seen(DRIFT_DETECTOR, "0x20"),), "2m"),
        Case("what is for the boards only is quiet", drift.name, (seen("growth", "1x20"), seen("slo_burn", "1x20")), "2m"),
        Case("drift that is over is quiet", drift.name, (seen(DRIFT_DETECTOR, "1x4 0x20"),), "5m"),
    )


def _score(value: str) -> Input:
    return Input(series(HSCORE, eq(BACKEND, "a")), value)


def _factor(name: str, value: str) -> Input:
    return Input(series(HSCORE_FACTOR, eq(BACKEND, "a"), eq(FACTOR, name)), value)


def _state(value: str) -> Input:
    return Input(series(BACKEND_STATE, eq(BACKEND, "a"), eq(STATE, value)), "1x20")


def _one_factor() -> QueryCase:
    inputs = (_score("0x20"), _factor("latency", "0.1x20"), _state("hung"), _state("down"))
    name = "two exporters that disagree give one dominant factor, or the alert's join would fail"
    return QueryCase(name, f"count by (cluster, backend) ({DOMINANT})", inputs, "3m", (('{backend="a"}', 1.0),))


def _degraded_cases(alerts: tuple[Alert, ...]) -> tuple[Case, ...]:
    name = alerts[0].name
    # A goodness of 0.5 costs 0.4 · 0.5 for errors and 0.35 · 0.5 for latency, so the weights decide between the two.
    factors = (_factor("latency", "0.5x20"), _factor("error_rate", "0.5x20"), _factor("cpu_usage", "1x20"))
    return (
        Case(
            "a weak backend raises its band and names the factor that costs most",
            name,
            (_score("0.55x20"), *factors),
            "3m",
            (Expected(alerts[0], "0.55", "a", "error_rate"),),
        ),
        Case(
            "a very weak backend raises every band it fell through",
            name,
            (_score("0.3x20"), *factors),
            "3m",
            tuple(Expected(alert, "0.30", "a", "error_rate") for alert in alerts[:2]),
        ),
        Case(
            "a dead backend names its state, not a factor",
            name,
            (_score("0x20"), *factors, _state("hung")),
            "3m",
            tuple(Expected(alert, "0.00", "a", "hung") for alert in alerts),
        ),
        Case(
            "a score without known factors still alerts",
            name,
            (_score("0.5x20"),),
            "3m",
            (Expected(alerts[0], "0.50", "a", "unknown"),),
        ),
        Case(
            "a score that rests on CPU and uptime alone is silent: nobody is served",
            name,
            (_score("0.4x20"), *factors, Input(series(HSCORE_CONFIDENCE, eq(BACKEND, "a")), "0.25x20")),
            "3m",
        ),
        Case("a good score is silent", name, (_score("0.6x20"), *factors), "3m"),
        Case("one bad tick is silent", name, (_score("0.9x8 0.1 0.9x20"), *factors), "2m15s"),
        Case("an unknown score is silent", name, factors, "3m"),
    )


def _pressure_cases(ticket: Alert, page: Alert) -> tuple[Case, ...]:
    def at(values: str) -> tuple[Input, ...]:
        return (Input(series(VRAM_PRESSURE, eq(BACKEND, "a")), values),)

    both = (Expected(ticket, "95%", "a"), Expected(page, "95%", "a"))
    return (
        Case("level 1 is a ticket after 30 s", ticket.name, at("0.5x3 0.85x20"), "2m", (Expected(ticket, "85%", "a"),)),
        Case("level 2 pages", ticket.name, at("0.5x3 0.95x20"), "2m", both),
        Case("a peak of 15 s is silent", ticket.name, at("0.5x6 0.85x1 0.5x20"), "2m"),
        Case("a backend below both levels is silent", ticket.name, at("0.79x20"), "3m"),
    )
