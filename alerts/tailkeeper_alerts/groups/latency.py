"""Recorded latencies and token rates: what boards, notebooks and people query again and again. No alerts here."""

from __future__ import annotations

from tailkeeper_alerts.model import Group, Input, QueryCase, Recording, RuleSettings
from tailkeeper_alerts.promql import LE, by, count, eq, quantile, series
from tailkeeper_alerts.promql import bucket as bucket_of
from tailkeeper_exporter.catalog import BACKEND, GENERATED_TOKENS, MODEL, TTFT

WINDOW = "5m"
"""Long enough for some hundred requests on a quiet backend, short enough to follow an incident."""

QUANTILES = (0.5, 0.95, 0.99)
GENERATED_RATE = "llm:generated_tokens:rate1m"
BY = (BACKEND, MODEL)


def ttft_record(q: float) -> str:
    """The recorded name of a TTFT quantile, for example ``llm:time_to_first_token_seconds:p99_5m``."""
    return f"llm:{TTFT.name.removeprefix('llm_')}:p{q * 100:g}_{WINDOW}"


def group(settings: RuleSettings) -> Group:
    """TTFT quantiles and token rate by backend and model."""
    del settings  # Nothing here has a threshold.
    quantiles = tuple(Recording(ttft_record(q), quantile(q, TTFT, BY, WINDOW)) for q in QUANTILES)
    rate = Recording(GENERATED_RATE, by("sum", BY, f"rate({series(GENERATED_TOKENS)}[1m])"))
    return Group("tailkeeper-latency", (*quantiles, rate), queries=_queries())


def _histogram(increase: int) -> tuple[Input, ...]:
    """Buckets in which all observations lie between 1 s and 2 s, in both spellings of a whole bound."""
    at = (eq(BACKEND, "a"), eq(MODEL, "Qwen/Qwen2.5-7B"))
    bounds = {"1": 0, "2.0": increase, "+Inf": increase}
    buckets = tuple(Input(bucket_of(TTFT, *at, eq(LE, bound)), f"0+{step}x60") for bound, step in bounds.items())
    return (*buckets, Input(count(TTFT, *at), f"0+{increase}x60"))


def _queries() -> tuple[QueryCase, ...]:
    p99, p50 = ttft_record(0.99), ttft_record(0.5)
    labels = 'backend="a", model="Qwen/Qwen2.5-7B"'
    tokens = Input(series(GENERATED_TOKENS, eq(BACKEND, "a"), eq(MODEL, "m")), "0+150x60")
    rates = ((f'{GENERATED_RATE}{{backend="a", model="m"}}', 10.0),)
    return (
        QueryCase("P99 lies where the requests are", p99, _histogram(30), "10m", ((f"{p99}{{{labels}}}", 1.99),)),
        QueryCase("the median lies in the middle of its bucket", p50, _histogram(30), "10m", ((f"{p50}{{{labels}}}", 1.5),)),
        QueryCase("an idle backend has no P99, rather than NaN or zero", p99, _histogram(0), "10m"),
        QueryCase("tokens per second", GENERATED_RATE, (tokens,), "10m", rates),
    )
