"""The simulated engine's metrics page against a page captured from vLLM 0.32.0."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tailkeeper_demo.engine import Engine
from tailkeeper_demo.engine_page import PageIdentity, render
from tailkeeper_demo.engine_stats import FinishReason
from tailkeeper_demo.engine_types import Arrival, EngineParams

CAPTURE = Path(__file__).parents[1] / "fixtures" / "scrapes" / "vllm-0.32.0.prom"

REQUIRED = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "vllm:num_preemptions",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:request_success",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:request_inference_time_seconds",
    "vllm:iteration_tokens_total",
    "vllm:cache_config_info",
    "vllm:engine_sleep_state",
    "http_requests",
    "process_start_time_seconds",
    "process_cpu_seconds",
)


def a_page(model: str = "tiny") -> str:
    engine = Engine(EngineParams(), random.Random(1))
    now_s = 0.0
    for number in range(8):
        engine.submit(Arrival(str(number), 200, 5 + number, FinishReason.STOP, now_s))
    for _ in range(8):
        now_s += engine.begin(now_s) or 0.0
        engine.complete(now_s)
    http = {("/v1/completions", "POST", "2xx"): 8, ("/v1/completions", "POST", "5xx"): 3}
    return render(engine.stats, engine.gauges, PageIdentity(model, EngineParams(), 1.7e9), http).decode()


def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


OURS, THEIRS = families(a_page()), families(CAPTURE.read_text(encoding="utf-8"))


def label_sets(samples: Iterable[object], name: str) -> set[tuple[tuple[str, str], ...]]:
    return {tuple(sorted(sample.labels.items())) for sample in samples if sample.name == name}  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", REQUIRED)
def test_the_page_has_every_family_an_exporter_needs(name: str) -> None:
    assert name in OURS


@pytest.mark.parametrize("name", sorted(OURS))
def test_every_family_is_called_typed_and_explained_as_vllm_does(name: str) -> None:
    assert name in THEIRS
    assert OURS[name].type == THEIRS[name].type
    assert OURS[name].documentation == THEIRS[name].documentation


@pytest.mark.parametrize("name", sorted(set(OURS) - {"http_requests", "http_requests_created", "vllm:cache_config_info"}))
def test_every_series_has_vllms_labels_and_buckets(name: str) -> None:
    sample_names = {sample.name for sample in OURS[name].samples}
    assert sample_names == {sample.name for sample in THEIRS[name].samples}
    for sample_name in sample_names:
        ours = label_sets(OURS[name].samples, sample_name)
        assert ours == label_sets(THEIRS[name].samples, sample_name)


def test_request_counts_carry_handler_method_and_status_class() -> None:
    samples = {tuple(sorted(s.labels.items())): s.value for s in OURS["http_requests"].samples}
    key = (("handler", "/v1/completions"), ("method", "POST"), ("status", "5xx"))
    assert samples[key] == 3.0


def test_the_cache_configuration_names_pool_and_block_size() -> None:
    (sample,) = OURS["vllm:cache_config_info"].samples
    assert sample.labels["num_gpu_blocks"] == str(EngineParams().kv_blocks)
    assert sample.labels["block_size"] == "16"
    assert set(sample.labels) <= set(THEIRS["vllm:cache_config_info"].samples[0].labels)


def test_histograms_are_cumulative_and_end_at_their_count() -> None:
    for name, family in OURS.items():
        if family.type == "histogram":
            values = [s.value for s in family.samples if s.name == f"{name}_bucket"]
            count = next(s.value for s in family.samples if s.name == f"{name}_count")
            assert values == sorted(values)
            assert values[-1] == count


@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-7B-Instruct", 'a"b', "back\\slash", "line\nbreak", "{brace}"])
def test_any_model_name_survives_the_page(model: str) -> None:
    parsed = families(a_page(model))
    for name in ("vllm:num_requests_running", "vllm:time_to_first_token_seconds"):
        assert {sample.labels["model_name"] for sample in parsed[name].samples} == {model}
