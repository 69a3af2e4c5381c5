"""The metrics page of a simulated engine: vLLM 0.32.0's names, help texts, labels, order of buckets and `_created` twins.

Everything here was copied from a captured page; `tests/fixtures/scrapes/vllm-0.32.0.prom` is that page and a test compares
the two. Only families the simulation can fill are printed: a series nobody feeds would be a lie told in zeros.
Pure: counters and gauges in, text out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tailkeeper_demo.engine_stats import EngineStats, Histogram
from tailkeeper_demo.engine_types import EngineParams, Gauges

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"

_BLOCK_BYTES = 2 * 32 * 8 * 128 * 2 * 16
"""Keys and values of 16 tokens of an 8B model: 2 · 32 layers · 8 KV heads · 128 dimensions · 2 bytes."""


@dataclass(frozen=True, slots=True)
class PageIdentity:
    """What does not change while the engine process lives."""

    model: str
    params: EngineParams
    started_unix_s: float


HttpCounts = Mapping[tuple[str, str, str], int]
"""Answered requests by handler, method and status class (`2xx`)."""


def render(stats: EngineStats, gauges: Gauges, identity: PageIdentity, http: HttpCounts) -> bytes:
    """The whole page."""
    page = _Page(identity)
    page.process(stats)
    page.scheduler(stats, gauges)
    page.histograms(stats)
    page.cache_config()
    page.http(http)
    return page.text()


def _number(value: float) -> str:
    return repr(float(value)) if abs(value) < 1e16 else f"{value:.17g}"


def _labels(**labels: str) -> str:
    """Label set in the alphabetical order prometheus_client prints."""
    escaped = {k: v.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for k, v in labels.items()}
    return "{" + ",".join(f'{name}="{escaped[name]}"' for name in sorted(escaped)) + "}"


class _Page:
    def __init__(self, identity: PageIdentity) -> None:
        self._identity = identity
        self._model = _labels(engine="0", model_name=identity.model)
        self._lines: list[str] = []

    def text(self) -> bytes:
        return ("\n".join(self._lines) + "\n").encode()

    def _head(self, name: str, kind: str, help_text: str) -> None:
        self._lines.append(f"# HELP {name} {help_text}")
        self._lines.append(f"# TYPE {name} {kind}")

    def _gauge(self, name: str, help_text: str, samples: Mapping[str, float]) -> None:
        self._head(name, "gauge", help_text)
        self._lines.extend(f"{name}{labels} {_number(value)}" for labels, value in samples.items())

    def _counter(self, name: str, help_text: str, samples: Mapping[str, float]) -> None:
        """A counter and its `_created` twin, which prometheus_client prints as a gauge family of its own."""
        self._head(name, "counter", help_text)
        self._lines.extend(f"{name}{labels} {_number(value)}" for labels, value in samples.items())
        twin = name.removesuffix("_total") + "_created"
        self._gauge(twin, help_text, dict.fromkeys(samples, self._identity.started_unix_s))

    def _by(self, label: str, values: Mapping[str, float]) -> dict[str, float]:
        return {_labels(engine="0", model_name=self._identity.model, **{label: k}): v for k, v in values.items()}

    def process(self, stats: EngineStats) -> None:
        started = self._identity.started_unix_s
        name = "process_start_time_seconds"
        self._gauge(name, "Start time of the process since unix epoch in seconds.", {"": started})
        name = "process_cpu_seconds_total"
        self._head(name, "counter", "Total user and system CPU time spent in seconds.")
        self._lines.append(f"{name} {_number(stats.cpu_s)}")

    def scheduler(self, stats: EngineStats, gauges: Gauges) -> None:
        for name, help_text, value in _scheduler_gauges(gauges):
            self._gauge(name, help_text, {self._model: value})
        self._gauge("vllm:num_requests_waiting_by_reason", _WAITING_HELP, self._by("reason", _waiting_by_reason(gauges)))
        self._gauge("vllm:engine_sleep_state", _SLEEP_HELP, self._by("sleep_state", _AWAKE))
        for name, help_text, value in _counters(stats):
            self._counter(name, help_text, {self._model: value})
        finished = {str(reason): float(count) for reason, count in stats.finished.items()}
        name = "vllm:request_success_total"
        self._counter(name, "Count of successfully processed requests.", self._by("finished_reason", finished))
        by_reason = {"max_num_queued_reqs": float(stats.rejected_queue_full), "max_num_queued_tokens": 0.0}
        rejected = {_labels(model_name=self._identity.model, reason=reason): n for reason, n in by_reason.items()}
        name = "vllm:admission_rejections_total"
        self._counter(name, "Number of admission attempts rejected by a queue limit, by reason.", rejected)

    def histograms(self, stats: EngineStats) -> None:
        for name, help_text, histogram in _histograms(stats):
            self._histogram(name, help_text, histogram)

    def _histogram(self, name: str, help_text: str, histogram: Histogram) -> None:
        self._head(name, "histogram", help_text)
        bounds = [_number(bound) for bound in histogram.bounds] + ["+Inf"]
        model = self._model.removeprefix('{engine="0",').removesuffix("}")
        prefix = f'{name}_bucket{{engine="0",le="'
        for bound, value in zip(bounds, histogram.cumulative(), strict=True):
            self._lines.append(f'{prefix}{bound}",{model}}} {value}.0')
        self._lines.append(f"{name}_count{self._model} {histogram.count}.0")
        self._lines.append(f"{name}_sum{self._model} {_number(histogram.total)}")
        self._gauge(f"{name}_created", help_text, {self._model: self._identity.started_unix_s})

    def cache_config(self) -> None:
        """Only the labels whose value is true of this engine; vLLM prints some twenty more about its own options."""
        params = self._identity.params
        labels = _labels(
            block_size=str(params.block_tokens),
            enable_prefix_caching="True",
            engine="0",
            gpu_memory_utilization="0.9",
            kv_cache_memory_bytes=str(params.kv_blocks * _BLOCK_BYTES),
            kv_cache_size_tokens=str(params.kv_blocks * params.block_tokens),
            num_gpu_blocks=str(params.kv_blocks),
        )
        self._gauge("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", {labels: 1.0})

    def http(self, counts: HttpCounts) -> None:
        samples = {_labels(handler=h, method=m, status=s): float(n) for (h, m, s), n in counts.items()}
        self._counter("http_requests_total", "Total number of requests by method, status and handler.", samples)


_WAITING_HELP = (
    "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; 'deferred' = deferred"
    " by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all reasons equals vllm:num_requests_waiting."
)
_SLEEP_HELP = (
    "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; weights_offloaded = 1 means"
    " sleep level 1; discard_all = 1 means sleep level 2."
)
_AWAKE = {"awake": 1.0, "weights_offloaded": 0.0, "discard_all": 0.0}


def _waiting_by_reason(gauges: Gauges) -> dict[str, float]:
    return {"capacity": float(gauges.waiting), "deferred": 0.0}


def _scheduler_gauges(gauges: Gauges) -> Iterator[tuple[str, str, float]]:
    yield "vllm:num_requests_running", "Number of requests in model execution batches.", gauges.running
    yield "vllm:num_requests_waiting", "Number of requests waiting to be processed.", gauges.waiting
    yield "vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", gauges.kv_usage_ratio


def _counters(stats: EngineStats) -> Iterator[tuple[str, str, float]]:
    queries = "Prefix cache queries, in terms of number of queried tokens."
    yield "vllm:prefix_cache_queries_total", queries, stats.prefix_queries_tokens
    yield "vllm:prefix_cache_hits_total", "Prefix cache hits, in terms of number of cached tokens.", stats.prefix_hits_tokens
    yield "vllm:num_preemptions_total", "Cumulative number of preemption from the engine.", stats.preemptions
    yield "vllm:prompt_tokens_total", "Number of prefill tokens processed.", stats.prompt_tokens
    yield "vllm:generation_tokens_total", "Number of generation tokens processed.", stats.generation_tokens


def _histograms(stats: EngineStats) -> Iterator[tuple[str, str, Histogram]]:
    yield "vllm:iteration_tokens_total", "Histogram of number of tokens per engine_step.", stats.step_tokens
    yield "vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", stats.ttft_s
    yield "vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", stats.itl_s
    tpot = "Histogram of time_per_output_token_seconds per request."
    yield "vllm:request_time_per_output_token_seconds", tpot, stats.tpot_s
    yield "vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", stats.e2e_s
    yield "vllm:request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", stats.queue_s
    yield "vllm:request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", stats.inference_s
    yield "vllm:request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", stats.prefill_s
    yield "vllm:request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", stats.decode_s
