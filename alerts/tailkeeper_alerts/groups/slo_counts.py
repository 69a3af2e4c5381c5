"""Recorded: how many requests counted and how many were bad, by backend, over windows of up to an hour. No alerts here."""

from __future__ import annotations

from collections.abc import Mapping

from tailkeeper_alerts.model import Group, Input, QueryCase, Recording, RuleSettings
from tailkeeper_alerts.promql import LE, bucket, count, eq, series
from tailkeeper_alerts.slo import Promise, bad_in, counted_in, late_total, promises
from tailkeeper_exporter.catalog import BACKEND, MODEL, OUTCOME, REQUESTS, TTFT
from tailkeeper_watchdog.metrics import BURN_FAST, BURN_SLOW

HOUR_S = BURN_FAST.long_s
WINDOWS_S = (BURN_FAST.latest_s, BURN_FAST.short_s, BURN_SLOW.latest_s, BURN_SLOW.short_s, HOUR_S)
RATIO_WINDOWS_S = (BURN_FAST.short_s, BURN_SLOW.short_s, HOUR_S)
"""What happened in the very latest minutes is compared as numbers, so it needs no ratio."""


def group(settings: RuleSettings) -> Group:
    rules = tuple(rule for promise in promises(settings) for rule in _recordings(promise))
    return Group("tailkeeper-slo", rules, queries=_queries(settings))


def _recordings(promise: Promise) -> tuple[Recording, ...]:
    total = () if promise.histogram is None else (Recording(promise.total, late_total(promise), _late(promise)),)
    return (*total, *counts(promise, WINDOWS_S), *ratios(promise, RATIO_WINDOWS_S))


def _late(promise: Promise) -> str:
    return f"Counter of {promise.unit} surely later than {promise.limit_s:g} s, by scraped series."


def counts(promise: Promise, windows_s: tuple[float, ...]) -> tuple[Recording, ...]:
    """Bad and counted ones for each window."""
    rules: list[Recording] = []
    for w in windows_s:
        rules.append(Recording(promise.bad(w), bad_in(promise, w), f"How many {promise.unit} {promise.did} within that time."))
        rules.append(Recording(promise.counted(w), counted_in(promise, w), f"How many {promise.unit} count within that time."))
    return tuple(rules)


def ratios(promise: Promise, windows_s: tuple[float, ...]) -> tuple[Recording, ...]:
    """The share of bad ones for each window; nothing where nothing counted, for 0 ÷ 0 is no number."""
    meaning = f"Share of {promise.unit} that {promise.did} within that time; nothing without any."
    return tuple(Recording(promise.ratio(w), f"{promise.bad(w)} / ({promise.counted(w)} > 0)", meaning) for w in windows_s)


# The cases: each backend is one situation and is called by it.

LASTS = 24
ASKED_AT = "5m"
FIVE_S = BURN_FAST.short_s


def _told(backend: str, more: str = "", **by_outcome: str) -> tuple[Input, ...]:
    at = (eq(BACKEND, backend), eq(MODEL, "m"))
    return tuple(Input(series(REQUESTS, *at, eq(OUTCOME, name)).replace("}", f"{more}}}"), v) for name, v in by_outcome.items())


def _first_tokens(backend: str, by_bound: Mapping[str, str]) -> tuple[Input, ...]:
    at = (eq(BACKEND, backend), eq(MODEL, "m"))
    buckets = tuple(Input(bucket(TTFT, *at, eq(LE, bound)), values) for bound, values in by_bound.items())
    return (*buckets, Input(count(TTFT, *at), by_bound["+Inf"]))


def _rising(step: int) -> str:
    return f"0+{step}x{LASTS}"


NEVER = _rising(0)
BUCKETS: Mapping[str, tuple[Mapping[str, str], float]] = {
    "0.7 s keep an SLO of 1.2 s": ({"0.64": NEVER, "1.28": _rising(4), "+Inf": _rising(4)}, 0.0),
    "bounds spelt as Prometheus 2 does": ({"1": NEVER, "2": _rising(1), "5": _rising(4), "+Inf": _rising(4)}, 0.75),
    "bounds spelt as Prometheus 3 does": ({"1.0": NEVER, "2.0": _rising(1), "5.0": _rising(4), "+Inf": _rising(4)}, 0.75),
    "a bound at the SLO": ({"1": NEVER, "1.2": _rising(1), "5.0": _rising(4), "+Inf": _rising(4)}, 0.75),
    "all bounds below the SLO": ({"0.5": NEVER, "1.0": NEVER, "+Inf": _rising(4)}, 0.0),
    "an engine that restarts": ({"1.28": "0+1x10 0+1x14", "5": "0+2x10 0+2x14", "+Inf": "0+2x10 0+2x14"}, 0.5),
}
"""The buckets of first tokens, and the share that is late."""


def _queries(settings: RuleSettings) -> tuple[QueryCase, ...]:
    failed, ttft, _ = promises(settings)
    ratio, bad, counted = failed.ratio(FIVE_S), failed.bad(FIVE_S), failed.counted(FIVE_S)
    exporters = (_told("two exporters", f',instance="exporter-{n}:9400"', ok=_rising(1), error=_rising(2)) for n in (1, 2))
    inputs = tuple(
        item
        for items in (
            _told("mixed", ok=_rising(2), error=_rising(1), rejected=_rising(1), aborted=_rising(7)),
            *exporters,
            _told("idle", ok=f"5x{LASTS}", error=f"3x{LASTS}"),
            _told("tells no answers", error=_rising(1)),
            # Published as 0 from the start, so that its first one is a rise (field report D2).
            _told("fails once", ok=_rising(1), error="0x12 1x12"),
            *(_first_tokens(name, buckets) for name, (buckets, _) in BUCKETS.items()),
        )
        for item in items
    )

    def samples(name: str, values: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
        return tuple((f'{name}{{backend="{backend}"}}', value) for backend, value in values.items())

    shares = samples(ratio, {"mixed": 0.5, "two exporters": 2 / 3, "fails once": 1 / 21})
    late = samples(ttft.ratio(FIVE_S), {name: share for name, (_, share) in BUCKETS.items()})
    numbers = samples(counted, {"mixed": 80.0, "two exporters": 60.0, "fails once": 21.0, "idle": 0.0})
    return (
        QueryCase(
            "what fails, of what was not given up; nothing without traffic or without answers told",
            ratio,
            inputs,
            ASKED_AT,
            shares,
        ),
        QueryCase("two exporters are one backend", counted, inputs, ASKED_AT, numbers),
        QueryCase(
            "a first failure is seen", f'{bad}{{backend="fails once"}}', inputs, ASKED_AT, samples(bad, {"fails once": 1.0})
        ),
        QueryCase("what is surely late, by any bounds", ttft.ratio(FIVE_S), inputs, ASKED_AT, late),
    )
