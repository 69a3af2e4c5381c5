"""Every metric that Tailkeeper's exporter publishes: the single source of names, units, labels and merge rules.

Exporter, watchdog, boards, rules and docs refer to these objects and never retype a name. Standard library only.
The names are fixed by the public contract; a change is a new name beside the old one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Merge(StrEnum):
    """How several series of one engine (processes, data-parallel ranks) become one.

    SUM for work that is split between them, MAX for ratios and for replicas of the same fact, NONE where there is
    only ever one series.
    """

    SUM = "sum"
    MAX = "max"
    NONE = "none"


class Unit(StrEnum):
    SECONDS = "seconds"
    BYTES = "bytes"
    RATIO = "ratio"
    TOKENS = "tokens"
    REQUESTS = "requests"
    CELSIUS = "celsius"
    WATTS = "watts"
    HERTZ = "hertz"
    TOKENS_PER_SECOND = "tokens_per_second"
    ONE = "1"


@dataclass(frozen=True, slots=True)
class Label:
    """A label with the largest number of values it may take for one backend; above it values become ``other``."""

    name: str
    bound: int
    meaning: str


@dataclass(frozen=True, slots=True)
class Metric:
    """One exported metric. ``buckets`` are upper bounds in the metric's base unit, without +Inf."""

    name: str
    kind: Kind
    unit: Unit
    help: str
    labels: tuple[Label, ...]
    merge: Merge = Merge.NONE
    buckets: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if ":" in self.name:
            raise ValueError(f"{self.name}: no ':' in exported names; Prometheus keeps it for recording rules")
        if self.kind is Kind.COUNTER and not self.name.endswith("_total"):
            raise ValueError(f"{self.name}: a counter's name ends in _total")
        if any(a >= b for a, b in pairwise(self.buckets)):
            raise ValueError(f"{self.name}: buckets must rise")

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(label.name for label in self.labels)


BACKEND = Label("backend", 2_000, "name of the backend in the configuration")
MODEL = Label("model", 32, "model name on the engine's page, else the configured one")
QUANTIZATION = Label("quantization", 4, "precision as configured, for example fp16 or int4")
OUTCOME = Label("outcome", 4, "ok, error, aborted or rejected")
CANARY = Label("canary_revision", 16, "canary revision as configured or as sent by the client")
STATE = Label("state", 7, "starting, serving, busy, hung, misconfigured, down or unknown")
GPU = Label("gpu", 64, "GPU UUID")
THROTTLE = Label("reason", 12, "why the clocks are held back")
ECC_KIND = Label("kind", 2, "single_bit or double_bit")
XID = Label("xid", 64, "NVIDIA XID number")
SOURCE = Label("source", 8, "engine page, gpu, probe, health, kv_service or tap")
REASON = Label("reason", 24, "why a sample was not used")
METRIC = Label("metric", 64, "catalogue name")
PROBE_OUTCOME = Label("outcome", 13, "how a probe ended")
SIGNAL = Label("signal", 3, "ttft, itl or e2e")
OTLP_OUTCOME = Label("outcome", 12, "what became of it")

OTHER = "other"
"""Takes the place of label values beyond a label's bound."""
MAX_REQUEST_S = 86_400.0
"""No request lasts a day: a longer time is a mistake of the source (an engine reported its host's uptime as a latency)."""
OUTCOMES = ("ok", "error", "aborted", "rejected")
SIGNALS = ("ttft", "itl", "e2e")

# 10 ms doubling eight times (product description 2.1), then on to the range that an SLO of 30 s needs. An engine that
# publishes its own buckets keeps them: they are facts, and re-bucketing would invent observations.
LATENCY_BUCKETS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
# Inter-token latencies are tens of milliseconds; the same doubling starts ten times lower.
TOKEN_BUCKETS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.5, 5.0, 10.0)

_M = (BACKEND, MODEL)
_G = (BACKEND, GPU)


def _histogram(name: str, text: str, labels: tuple[Label, ...] = _M, buckets: tuple[float, ...] = LATENCY_BUCKETS) -> Metric:
    return Metric(name, Kind.HISTOGRAM, Unit.SECONDS, text, labels, Merge.SUM, buckets)


def _counter(name: str, unit: Unit, text: str, labels: tuple[Label, ...] = _M) -> Metric:
    return Metric(name, Kind.COUNTER, unit, text, labels, Merge.SUM)


def _gauge(name: str, unit: Unit, text: str, labels: tuple[Label, ...], merge: Merge = Merge.NONE) -> Metric:
    return Metric(name, Kind.GAUGE, unit, text, labels, merge)


LATENCY = _histogram("llm_inference_latency_seconds", "Whole request, from arrival to the last token.", (*_M, QUANTIZATION))
TTFT = _histogram("llm_time_to_first_token_seconds", "From arrival to the first content token.")
ITL = _histogram("llm_inter_token_latency_seconds", "Time between two tokens of one answer.", buckets=TOKEN_BUCKETS)
QUEUE_TIME = _histogram("llm_queue_time_seconds", "Waiting for a place in the batch.")
PREFILL_TIME = _histogram("llm_prefill_time_seconds", "Computing the prompt.")
DECODE_TIME = _histogram("llm_decode_time_seconds", "From the first to the last token.")
PREPROCESS_TIME = _histogram("llm_preprocess_time_seconds", "Tokenising and image decoding on the CPU.")
STEP_TIME = _histogram("llm_step_time_seconds", "One iteration of the engine.", buckets=TOKEN_BUCKETS)

REQUESTS = _counter(
    "llm_requests_total", Unit.REQUESTS, "Finished requests by outcome; probes are not counted.", (*_M, OUTCOME, CANARY)
)
PROMPT_TOKENS = _counter("llm_prompt_tokens_total", Unit.TOKENS, "Prompt tokens taken in.")
GENERATED_TOKENS = _counter("llm_generated_tokens_total", Unit.TOKENS, "Tokens generated.")
PREEMPTIONS = _counter("llm_preemptions_total", Unit.REQUESTS, "Requests put back into the queue for want of KV memory.")
KV_QUERIES = _counter("llm_kv_cache_queries_total", Unit.TOKENS, "Prompt tokens looked up in the prefix cache.")
KV_HITS = _counter("llm_kv_cache_hits_total", Unit.TOKENS, "Prompt tokens found in the prefix cache.")

RUNNING = _gauge("llm_requests_running", Unit.REQUESTS, "Requests in the batch now.", _M, Merge.SUM)
WAITING = _gauge("llm_requests_waiting", Unit.REQUESTS, "Requests waiting for a place in the batch.", _M, Merge.SUM)
KV_USAGE = _gauge("llm_kv_cache_usage_ratio", Unit.RATIO, "Share of KV blocks in use, the fullest rank.", _M, Merge.MAX)
KV_HIT_RATIO = _gauge("llm_kv_cache_hit_ratio", Unit.RATIO, "Prefix cache hits per query over the last minute.", _M)
BACKEND_UP = _gauge("llm_backend_up", Unit.ONE, "1 when the engine answered its last check, 0 when it did not.", (BACKEND,))
BACKEND_STATE = _gauge("llm_backend_state", Unit.ONE, "Exactly one state is 1.", (BACKEND, STATE))
CPU_USAGE = _gauge(
    "llm_cpu_usage_ratio", Unit.RATIO, "CPU use of the engine's node, or of its process where only that is known.", (BACKEND,)
)
TOKEN_EFFICIENCY = _gauge(
    "llm_token_efficiency_tokens_per_second",
    Unit.TOKENS_PER_SECOND,
    "Tokens per second divided by the share of GPU memory in use.",
    (BACKEND,),
)
VRAM_PRESSURE = _gauge(
    "llm_vram_pressure_ratio",
    Unit.RATIO,
    "How near the backend is to running out of memory: KV use, headroom lost since warm-up, preemptions.",
    (BACKEND,),
)

GPU_UTILIZATION = _gauge("llm_gpu_utilization_ratio", Unit.RATIO, "Share of time in which a kernel ran.", _G)
GPU_MEMORY_USED = _gauge("llm_gpu_memory_used_bytes", Unit.BYTES, "GPU memory in use.", _G)
GPU_MEMORY_FREE = _gauge("llm_gpu_memory_free_bytes", Unit.BYTES, "GPU memory free.", _G)
GPU_MEMORY_TOTAL = _gauge("llm_gpu_memory_total_bytes", Unit.BYTES, "GPU memory installed.", _G)
GPU_MEMORY_COPY = _gauge(
    "llm_gpu_memory_copy_utilization_ratio", Unit.RATIO, "Share of time in which GPU memory was read or written.", _G
)
GPU_FRAGMENTATION = _gauge(
    "llm_gpu_memory_fragmentation_ratio", Unit.RATIO, "1 minus largest free block divided by free memory.", _G
)
GPU_TEMPERATURE = _gauge("llm_gpu_temperature_celsius", Unit.CELSIUS, "GPU core temperature.", _G)
GPU_POWER = _gauge("llm_gpu_power_watts", Unit.WATTS, "Power drawn.", _G)
GPU_SM_CLOCK = _gauge("llm_gpu_sm_clock_hertz", Unit.HERTZ, "Clock of the streaming multiprocessors.", _G)
GPU_RETIRED_PAGES = _gauge("llm_gpu_retired_pages", Unit.ONE, "Memory pages retired or rows remapped.", _G)
GPU_PCIE = _gauge("llm_gpu_pcie_utilization_ratio", Unit.RATIO, "PCIe throughput as a share of the link.", _G)
GPU_NVLINK = _gauge("llm_gpu_nvlink_utilization_ratio", Unit.RATIO, "NVLink throughput as a share of the links.", _G)
GPU_THROTTLED = _gauge("llm_gpu_throttled", Unit.ONE, "1 while the clocks are held back for this reason.", (*_G, THROTTLE))
GPU_SAMPLE_AGE = _gauge("llm_gpu_sample_age_seconds", Unit.SECONDS, "Age of the last good sample of this device.", _G)
GPU_ECC_ERRORS = _counter(
    "llm_gpu_ecc_errors_total", Unit.ONE, "Memory errors, corrected (single_bit) or not (double_bit).", (*_G, ECC_KIND)
)
GPU_XID_EVENTS = _counter("llm_gpu_xid_events_total", Unit.ONE, "XID events by number.", (*_G, XID))

SCRAPE_SUCCESS = _gauge(
    "tailkeeper_exporter_scrape_success", Unit.ONE, "1 when the last read of this source gave readings.", (BACKEND, SOURCE)
)
SCRAPE_DURATION = _gauge(
    "tailkeeper_exporter_scrape_duration_seconds", Unit.SECONDS, "How long the last read took.", (BACKEND, SOURCE)
)
SCRAPE_AGE = _gauge(
    "tailkeeper_exporter_scrape_age_seconds", Unit.SECONDS, "Time since this source last gave readings.", (BACKEND, SOURCE)
)
INVALID_SAMPLES = _counter(
    "tailkeeper_exporter_invalid_samples_total", Unit.ONE, "Samples and pages not used, by reason.", (BACKEND, REASON)
)
MISSING_METRICS = _gauge(
    "tailkeeper_exporter_missing_metrics",
    Unit.ONE,
    "1 for a metric that this engine should offer and does not.",
    (BACKEND, METRIC),
)
PROBES = _counter("tailkeeper_exporter_probes_total", Unit.ONE, "Semantic probes by outcome.", (BACKEND, PROBE_OUTCOME))
PROBE_DURATION = _gauge(
    "tailkeeper_exporter_probe_duration_seconds", Unit.SECONDS, "Time to the first token of the last probe.", (BACKEND,)
)
QUANTILE_SATURATED = _gauge(
    "tailkeeper_exporter_quantile_saturated",
    Unit.ONE,
    "1 when P99 lies above the engine's last finite bucket and can only be called 'at least'.",
    (BACKEND, SIGNAL),
)

OTLP_SPANS = _counter(
    "tailkeeper_exporter_otlp_spans_total",
    Unit.ONE,
    "Spans by what became of them: received and read as requests or not; offered to the collector, sent, dropped, refused.",
    (OTLP_OUTCOME,),
)
OTLP_LOGS = _counter(
    "tailkeeper_exporter_otlp_logs_total", Unit.ONE, "Access-log records by what became of them.", (OTLP_OUTCOME,)
)

CATALOG: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
BY_NAME: dict[str, Metric] = {metric.name: metric for metric in CATALOG}

SIGNAL_HISTOGRAMS: dict[str, Metric] = {"ttft": TTFT, "itl": ITL, "e2e": LATENCY}
