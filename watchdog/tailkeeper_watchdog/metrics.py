"""The watchdog's own series, declared with the exporter's catalogue classes. Boards and rules read this file and
nothing else of the watchdog. Standard library only."""

from __future__ import annotations

from typing import NamedTuple

from tailkeeper_exporter.catalog import BACKEND, LATENCY_BUCKETS, SIGNAL, Kind, Label, Merge, Metric, Unit

FACTOR = Label("factor", 4, "latency, error_rate, cpu_usage or uptime")
COST = Label("factor", 11, "latency, error_rate, cpu_usage, uptime, or the state that rules the score out")
DETECTOR = Label("detector", 8, "the detector that found it")
POLICY = Label("policy", 8, "the policy that wanted it; return is the way back")
KNOB = Label("knob", 9, "what was to be changed")
VERDICT = Label("verdict", 9, "applied, already, observed, advised, refused, failed, expired, released or contended")

OTLP_OUTCOME = Label("outcome", 4, "offered to the collector, sent, dropped (too much, or too old) or refused")
EVENT_OUTCOME = Label("outcome", 2, "written at its object, or dropped: too many at once, or the cluster did not take it")
TIER = Label("tier", 36, "a configured tier, default, or default- and a modality")
WINDOW = Label("window", 3, "1h, 1d or 30d")
FINDING_KIND = Label("kind", 13, "what kind of finding it is")
SEVERITY = Label("severity", 3, "page, ticket or info")
DIMENSION = Label(
    "dimension", 12, "what a share of a finding's cause is a share of: stage, resource, tenant, …; other for the rest"
)
VALUE = Label("value", 64, "which stage, resource or tenant, cut to 60 characters")

SHARD = Label("shard", 1, "which part of the fleet this watchdog is for, such as 0/3")
WHOSE = Label("whose", 2, "own or elsewhere")

TICK_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


def _gauge(name: str, unit: Unit, text: str, labels: tuple[Label, ...] = ()) -> Metric:
    return Metric(name, Kind.GAUGE, unit, text, labels, Merge.NONE)


HSCORE = _gauge("tailkeeper_hscore", Unit.RATIO, "Health score of a backend, 1 is best; absent while unknown.", (BACKEND,))
HSCORE_CONFIDENCE = _gauge(
    "tailkeeper_hscore_confidence",
    Unit.RATIO,
    "Share of the score's weight whose factors are known well; CPU and uptime of an idle backend alone are a quarter.",
    (BACKEND,),
)
HSCORE_FACTOR = _gauge("tailkeeper_hscore_factor", Unit.RATIO, "Goodness of one factor of the score.", (BACKEND, FACTOR))
DOMINANT_FACTOR = _gauge(
    "tailkeeper_dominant_factor",
    Unit.ONE,
    "1 for what costs a backend's score most; absent where nothing costs anything, or the score is unknown.",
    (BACKEND, COST),
)
BACKEND_P99 = _gauge("tailkeeper_backend_p99_seconds", Unit.SECONDS, "P99 over the window.", (BACKEND, SIGNAL))
DRIFT_ACTIVE = _gauge(
    "tailkeeper_drift_active",
    Unit.ONE,
    "1 while a detector holds a finding open; signal is empty for failed requests.",
    (BACKEND, SIGNAL, DETECTOR),
)
DESIRED_WEIGHT = _gauge(
    "tailkeeper_desired_weight", Unit.RATIO, "Share of its normal weight that the policies want a backend to have.", (BACKEND,)
)
ACTUAL_WEIGHT = _gauge(
    "tailkeeper_actual_weight",
    Unit.RATIO,
    "Share of its normal weight that a backend has at the first of its gateways that tells, 0 while drained; else absent.",
    (BACKEND,),
)
DECISIONS = Metric(
    "tailkeeper_decisions_total", Kind.COUNTER, Unit.ONE, "Decisions by how they ended.", (POLICY, KNOB, VERDICT), Merge.SUM
)
TICK_DURATION = Metric(
    "tailkeeper_tick_duration_seconds", Kind.HISTOGRAM, Unit.SECONDS, "One whole tick.", (), Merge.SUM, TICK_BUCKETS
)
TICKS_MISSED = Metric(
    "tailkeeper_ticks_missed_total",
    Kind.COUNTER,
    Unit.ONE,
    "Ticks that were due and did not take place: the one before took too long, or the process or its machine stood still.",
    (),
    Merge.SUM,
)
TICKS_FAILED = Metric(
    "tailkeeper_ticks_failed_total",
    Kind.COUNTER,
    Unit.ONE,
    "Ticks that ended in an error and changed nothing, as with a ledger that cannot be written.",
    (),
    Merge.SUM,
)
TICKS_UNRECORDED = Metric(
    "tailkeeper_ticks_unrecorded_total",
    Kind.COUNTER,
    Unit.ONE,
    "Ticks of which no record was kept: the disk did not take it, or not in time; absent where no records are kept.",
    (),
    Merge.SUM,
)
OBSERVATION_AGE = _gauge("tailkeeper_observation_age_seconds", Unit.SECONDS, "Age of the evidence about a backend.", (BACKEND,))
PAUSED = _gauge("tailkeeper_paused", Unit.ONE, "1 while the kill switch is on.")

LEDGER_WRITABLE = _gauge(
    "tailkeeper_ledger_writable", Unit.ONE, "1 while the ledger takes what is noted; at 0 nothing is changed at any gateway."
)

FINDINGS_OPEN = _gauge(
    "tailkeeper_findings_open",
    Unit.ONE,
    "Open findings; without a backend every kind and severity stands at 0 or more, and what is found of a pool has its name.",
    (BACKEND, FINDING_KIND, SEVERITY),
)
LEASES_IN_FORCE = _gauge(
    "tailkeeper_leases_in_force",
    Unit.ONE,
    "Changes of ours at gateways that are in force, or may be; without a backend every knob stands at 0.",
    (BACKEND, KNOB),
)
FINDING_SHARE = _gauge(
    "tailkeeper_finding_share",
    Unit.RATIO,
    "Share of an open finding that a cause explains: its five largest, and the rest as other, together 1.",
    (BACKEND, FINDING_KIND, SIGNAL, DIMENSION, VALUE),
)
FINDING_CONFIDENCE = _gauge(
    "tailkeeper_finding_confidence",
    Unit.RATIO,
    "How sure such a share is, 1 is certain; none for other.",
    (BACKEND, FINDING_KIND, SIGNAL, DIMENSION, VALUE),
)

SLO_COMPLIANCE = _gauge(
    "tailkeeper_slo_compliance_ratio",
    Unit.RATIO,
    "Share of a tier's requests that kept the promise; absent without a request.",
    (TIER, WINDOW),
)
SLO_WEIGHTED = _gauge(
    "tailkeeper_slo_weighted_compliance_ratio",
    Unit.RATIO,
    "The same, a late answer counted for what it was still worth.",
    (TIER, WINDOW),
)
SLO_BUDGET_LEFT = _gauge(
    "tailkeeper_slo_error_budget_left_ratio",
    Unit.RATIO,
    "Share of the window's error budget that is left, 0 when overspent.",
    (TIER, WINDOW),
)
SLO_COVERAGE = _gauge(
    "tailkeeper_slo_coverage_ratio",
    Unit.RATIO,
    "Share of the window in which the fleet was seen; the rest is unknown.",
    (WINDOW,),
)

SLO_FIRST_OUTPUT = Metric(
    "tailkeeper_slo_first_output_seconds",
    Kind.HISTOGRAM,
    Unit.SECONDS,
    "How long a tier's requests waited for what the tier promises: the first token, or the whole answer where it is not"
    " streamed. Of answered requests that are told one by one.",
    (TIER,),
    Merge.SUM,
    LATENCY_BUCKETS,
)

CAPACITY_IDLE = _gauge(
    "tailkeeper_capacity_idle_ratio", Unit.RATIO, "Share of the seen part of the last hour in which no request ran.", (BACKEND,)
)
CAPACITY_GPU_SECONDS = _gauge(
    "tailkeeper_capacity_gpu_seconds_per_request",
    Unit.SECONDS,
    "GPU time of a backend's devices divided by its finished requests, over the last hour.",
    (BACKEND,),
)
CAPACITY_TPOT_SLOPE = _gauge(
    "tailkeeper_capacity_tpot_slope_seconds",
    Unit.SECONDS,
    "How much longer a token takes for each request per second more, over the last hour.",
    (BACKEND,),
)
CAPACITY_CONSOLIDATE = _gauge(
    "tailkeeper_capacity_consolidation_candidate",
    Unit.ONE,
    "1 where the GPUs were used less than 20 % in the last hour.",
    (BACKEND,),
)
CAPACITY_FREE_SPREAD = _gauge(
    "tailkeeper_capacity_free_memory_spread_bytes", Unit.BYTES, "Standard deviation over nodes of the free GPU memory per device."
)

FORECAST_P99 = _gauge(
    "tailkeeper_forecast_p99_seconds",
    Unit.SECONDS,
    "P99 of the first token in the next 30 s; absent while its measured error is no better than the last value's.",
    (BACKEND,),
)
FORECAST_ERROR_BOUND = _gauge(
    "tailkeeper_forecast_error_bound_seconds",
    Unit.SECONDS,
    "99th percentile of the last forecasts' errors; there while the forecast is.",
    (BACKEND,),
)
MEMORY_EXHAUSTION = _gauge(
    "tailkeeper_memory_exhaustion_seconds",
    Unit.SECONDS,
    "Time until KV cache or GPU memory is full; absent while none is foreseen.",
    (BACKEND,),
)

OTLP_SPANS = Metric(
    "tailkeeper_watchdog_otlp_spans_total",
    Kind.COUNTER,
    Unit.ONE,
    "Spans of the watchdog's own ticks by what became of them on the way to the collector.",
    (OTLP_OUTCOME,),
    Merge.SUM,
)
OTLP_LOGS = Metric(
    "tailkeeper_watchdog_otlp_logs_total",
    Kind.COUNTER,
    Unit.ONE,
    "Records of the decision log by what became of them on the way to the collector.",
    (OTLP_OUTCOME,),
    Merge.SUM,
)
KUBERNETES_EVENTS = Metric(
    "tailkeeper_watchdog_kubernetes_events_total",
    Kind.COUNTER,
    Unit.ONE,
    "Events of our changes by what became of them on the way to the clusters that the gateways name.",
    (EVENT_OUTCOME,),
    Merge.SUM,
)

SHARDS = _gauge("tailkeeper_shards", Unit.ONE, "Shards that the fleet is shared out to; absent without shards.")
SHARD_BACKENDS = _gauge(
    "tailkeeper_shard_backends",
    Unit.ONE,
    "Backends that this shard watches, and those that it leaves to the others; absent without shards.",
    (SHARD, WHOSE),
)
SHARD_SPLIT = _gauge(
    "tailkeeper_shard_split_pools",
    Unit.ONE,
    "Pools whose found backends fall to several shards, so that no cap holds for the whole of them; absent without shards.",
    (SHARD,),
)

SCORE_BAND_SEVERITY: dict[str, str] = {"0.2": "page", "0.4": "page", "0.6": "ticket"}
"""Upper bounds of the score bands, lowest first, as the label ``score_band`` has them, and how loud each is. Said once,
because the same alert comes from the watchdog and from Prometheus' rules."""
ALERT_MIN_CONFIDENCE = 0.3
"""Of a score, for `HealthDegraded`: by its default weights, CPU and uptime alone make a quarter. An idle backend on a busy node
may have 0.4 by them, and nobody waits there."""
MEMORY_RISK_RATIO, MEMORY_RISK_AFTER_S = 0.80, 30.0
"""Memory pressure at which, and seconds after which, running out is a risk: ``memory_breaker``'s first level, a ticket."""
MEMORY_STOP_RATIO, MEMORY_STOP_AFTER_S = 0.90, 10.0
"""Likewise for the second level: new work stops, and Prometheus pages."""
MEMORY_PRESSURE_LIMIT_RATIO = 0.92
"""Memory pressure above which a backend counts as unhealthy, for the finding and as the policy's default."""
PREEMPTIONS_LIMIT_PER_S = 0.5
"""Preemptions above which they say the same as memory pressure, as the default of both policies that ask."""
BREAKER_FAILURES, BREAKER_REQUESTS, BREAKER_ERROR_RATIO = 5, 10, 0.25
"""So many failures, or so large a share of so many requests, open a backend's breaker by default, and make its ticket."""
DOWN_PAGES_AFTER_S = 30.0
"""An engine that is down for less may be one that is started anew, as in a rolling deploy."""
DRIFT_DETECTOR = "block_e"
"""The one detector of drift whose findings are told to people; the others are for the boards."""


class BurnWindows(NamedTuple):
    """Both windows must spend the error budget ``rate`` times as fast as would just use it up; seconds. Some of what was bad
    must be older than ``latest_s``, and it must be going on since."""

    rate: float
    long_s: float
    short_s: float
    latest_s: float


BURN_FAST = BurnWindows(14.4, 3_600.0, 300.0, 120.0)
"""2 % of a month's budget within an hour: a page (Google's SRE workbook, chapter 5)."""
BURN_SLOW = BurnWindows(6.0, 21_600.0, 1_800.0, 600.0)
"""5 % of it within six hours: a ticket."""
BURN_TRICKLE = BurnWindows(0.0, 21_600.0, 3_600.0, 3_600.0)
"""Too few requests for the others: judged by ``trickle_share``, not by rate."""
BURN_BAD_LONG, BURN_BAD_SHORT, BURN_BAD_BEFORE = 10, 2, 2
"""So many bad ones at least in the windows, and before ``latest_s``: one burst, as a cold engine gives, is one event."""
BURN_MOST = 0.9
"""A share of bad ones that holds whatever the SLO: one so loose that its budget cannot burn at a rule's rate (14.4 times 10 % is
more than all) would let nine failures of ten pass in silence."""
TRICKLE_BAD, TRICKLE_SHARE = 5, 0.5
"""The same for the trickle's long window, and the share of its requests that must be bad."""
LOOSEST_OBJECTIVE = 0.1
"""An SLO at or below it allows what ``BURN_MOST`` tells: whatever was told of it, the SLO would hold."""


def trickle_share(budget: float) -> float:
    """The share of few requests that must be bad where ``budget`` of them may be: half is no news where half are allowed."""
    return TRICKLE_SHARE if budget < TRICKLE_SHARE else BURN_MOST


WATCHDOG_CATALOG: tuple[Metric, ...] = (
    HSCORE,
    HSCORE_CONFIDENCE,
    HSCORE_FACTOR,
    DOMINANT_FACTOR,
    BACKEND_P99,
    DRIFT_ACTIVE,
    DESIRED_WEIGHT,
    ACTUAL_WEIGHT,
    DECISIONS,
    TICK_DURATION,
    TICKS_MISSED,
    TICKS_FAILED,
    TICKS_UNRECORDED,
    OBSERVATION_AGE,
    PAUSED,
    LEDGER_WRITABLE,
    FINDINGS_OPEN,
    LEASES_IN_FORCE,
    FINDING_SHARE,
    FINDING_CONFIDENCE,
    SLO_COMPLIANCE,
    SLO_WEIGHTED,
    SLO_BUDGET_LEFT,
    SLO_COVERAGE,
    SLO_FIRST_OUTPUT,
    CAPACITY_IDLE,
    CAPACITY_GPU_SECONDS,
    CAPACITY_TPOT_SLOPE,
    CAPACITY_CONSOLIDATE,
    CAPACITY_FREE_SPREAD,
    FORECAST_P99,
    FORECAST_ERROR_BOUND,
    MEMORY_EXHAUSTION,
    OTLP_SPANS,
    OTLP_LOGS,
    KUBERNETES_EVENTS,
    SHARDS,
    SHARD_BACKENDS,
    SHARD_SPLIT,
)
