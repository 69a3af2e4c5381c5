"""Recorded latencies, token rates and tiers: what boards, notebooks and people query again and again. No alerts here."""

from __future__ import annotations

from tailkeeper_alerts.model import Group, Input, QueryCase, Recording, RuleSettings
from tailkeeper_alerts.promql import CLUSTER, LE, by, count, eq, quantile, series
from tailkeeper_alerts.promql import bucket as bucket_of
from tailkeeper_alerts.slo import budget
from tailkeeper_exporter.catalog import BACKEND, GENERATED_TOKENS, ITL, LATENCY, MODEL, PROMPT_TOKENS, TTFT, Metric
from tailkeeper_watchdog.metrics import SLO_COMPLIANCE, SLO_FIRST_OUTPUT, TIER
from tailkeeper_watchdog.metrics import WINDOW as SPAN

WINDOW = "5m"
"""Long enough for some hundred requests on a quiet backend, short enough to follow an incident."""

HISTOGRAMS = (TTFT, ITL, LATENCY)
QUANTILES = (0.5, 0.95, 0.99)
BY = (CLUSTER, BACKEND, MODEL)
TIER_SPANS = ("1h", "1d", "30d")


def quantile_record(metric: Metric, q: float) -> str:
    """The recorded name of a quantile, for example ``llm:time_to_first_token_seconds:p99_5m``."""
    return f"llm:{metric.name.removeprefix('llm_')}:p{q * 100:g}_{WINDOW}"


def rate_record(metric: Metric) -> str:
    """The recorded name of a rate per second, for example ``llm:generated_tokens:rate1m``."""
    return f"llm:{metric.name.removeprefix('llm_').removesuffix('_total')}:rate1m"


def tier_quantile_record(q: float) -> str:
    """The recorded name of how long a tier waits, for example ``tailkeeper:slo_first_output_seconds:p99_5m``."""
    return f"tailkeeper:{SLO_FIRST_OUTPUT.name.removeprefix('tailkeeper_')}:p{q * 100:g}_{WINDOW}"


def tier_record(span: str) -> str:
    """The recorded name of how fast a tier spends its error budget."""
    return f"tailkeeper:slo_burn:rate{span}"


def group(settings: RuleSettings) -> Group:
    """Quantiles and token rates by backend and model; for tiers quantiles and rates of burning, of what the watchdog counts."""
    quantiles = tuple(_quantile(metric, q) for metric in HISTOGRAMS for q in QUANTILES)
    rates = tuple(_rate(metric) for metric in (GENERATED_TOKENS, PROMPT_TOKENS))
    waits = tuple(_tier_quantile(q) for q in QUANTILES)
    tiers = (*waits, *(_tier(span, budget(settings)) for span in TIER_SPANS))
    return Group("tailkeeper-latency", (*quantiles, *rates, *tiers), queries=_queries(budget(settings)))


def _quantile(metric: Metric, q: float) -> Recording:
    meaning = f"P{q * 100:g} over {WINDOW}; nothing where nothing was observed. {metric.help}"
    return Recording(quantile_record(metric, q), quantile(q, metric, BY, WINDOW), meaning)


def _rate(metric: Metric) -> Recording:
    # Two exporters of one backend tell the same twice, so the larger counts and not the sum.
    return Recording(rate_record(metric), by("max", BY, f"rate({series(metric)}[1m])"), f"Per second. {metric.help}")


def _tier_quantile(q: float) -> Recording:
    # Of several watchdogs the standby ones count the same requests; they are one tier's, so the sum changes no quantile.
    meaning = f"P{q * 100:g} of a tier over {WINDOW}; nothing where nothing was observed. {SLO_FIRST_OUTPUT.help}"
    return Recording(tier_quantile_record(q), quantile(q, SLO_FIRST_OUTPUT, (CLUSTER, TIER), WINDOW), meaning)


def _tier(span: str, allowed: str) -> Recording:
    kept = by("min", (CLUSTER, TIER), series(SLO_COMPLIANCE, eq(SPAN, span)))
    meaning = f"How many times faster than allowed a tier spent its error budget over {span}, as the watchdog counted it."
    return Recording(tier_record(span), f"(1 - {kept}) / {allowed}", meaning)


# The cases: one set of series for all of them.

BUSY, IDLE, ASKED_AT = "Qwen/Qwen2.5-7B", "idle", "6m"


def _histogram(metric: Metric, model: str, increase: int, cluster: str) -> tuple[Input, ...]:
    """Buckets in which all observations lie between 1 s and 2 s, in both spellings of a whole bound."""
    at = (eq(CLUSTER, cluster), eq(BACKEND, "a"), eq(MODEL, model))
    bounds = {"1": 0, "2.0": increase, "+Inf": increase}
    buckets = tuple(Input(bucket_of(metric, *at, eq(LE, bound)), f"0+{step}x30") for bound, step in bounds.items())
    return (*buckets, Input(count(metric, *at), f"0+{increase}x30"))


def _inputs() -> tuple[Input, ...]:
    models = ((BUSY, 30, ""), (BUSY, 30, "eu"), (IDLE, 0, ""))
    histograms = (item for metric in HISTOGRAMS for of in models for item in _histogram(metric, *of))
    tokens = series(GENERATED_TOKENS, eq(BACKEND, "a"), eq(MODEL, "m"))
    pair = (Input(tokens.replace("}", f',instance="exporter-{n}:9400"}}'), "0+150x30") for n in (1, 2))
    waits = (
        *(
            Input(bucket_of(SLO_FIRST_OUTPUT, eq(TIER, tier), eq(LE, bound)), f"0+{step}x30")
            for tier, rise in (("gold", 30), ("idle", 0))
            for bound, step in {"1": 0, "2.0": rise, "+Inf": rise}.items()
        ),
        *(Input(count(SLO_FIRST_OUTPUT, eq(TIER, tier)), f"0+{rise}x30") for tier, rise in (("gold", 30), ("idle", 0))),
    )
    return (*histograms, *pair, *waits, Input(series(SLO_COMPLIANCE, eq(TIER, "gold"), eq(SPAN, "1h")), "0.98x30"))


def _queries(allowed: str) -> tuple[QueryCase, ...]:
    inputs = _inputs()

    def case(name: str, record: str, *samples: tuple[str, float]) -> QueryCase:
        # What is computed has no name of its own.
        named = "" if "(" in record else record
        return QueryCase(name, record, inputs, ASKED_AT, tuple((f"{named}{{{labels}}}", value) for labels, value in samples))

    def at_both(value: float) -> tuple[tuple[str, float], ...]:
        labels = f'backend="a", model="{BUSY}"'
        return ((labels, value), (f'cluster="eu", {labels}', value))

    rate = f"round({rate_record(GENERATED_TOKENS)}, 0.01)"
    return (
        *(
            case(
                f"P99 of {m.name} is where the requests are, of an idle one it is nothing",
                quantile_record(m, 0.99),
                *at_both(1.99),
            )
            for m in HISTOGRAMS
        ),
        case("the median is in the middle of its bucket", quantile_record(TTFT, 0.5), *at_both(1.5)),
        case("two exporters of one backend do not make twice the tokens", rate, ('backend="a", model="m"', 10.0)),
        case(
            "P99 of a tier is where its requests are, of an idle one it is nothing",
            tier_quantile_record(0.99),
            ('tier="gold"', 1.99),
        ),
        case("a tier burns by what the watchdog counted", tier_record("1h"), ('tier="gold"', (1 - 0.98) / float(allowed))),
        case("a tier without a request does not burn", tier_record("1d")),
    )
