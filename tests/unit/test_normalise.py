"""Pages and an engine's table into readings: the captured pages, and the ways in which pages have misled people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from tailkeeper_exporter import catalog, counters
from tailkeeper_exporter.counters import CounterMemory
from tailkeeper_exporter.engines.base import Engine, Source
from tailkeeper_exporter.engines.vllm import VLLM
from tailkeeper_exporter.exposition import PageParser, Reason
from tailkeeper_exporter.normalise import Normalised, normalise, wanted_by
from tailkeeper_exporter.readings import Status, bucket_quantile

SCRAPES = Path(__file__).parents[1] / "fixtures" / "scrapes"
M = {"model": "m"}


class Backend:
    """One backend's parser and memory over a row of pages, one per second."""

    def __init__(self, engine: Engine = VLLM) -> None:
        self.engine = engine
        self.memory = CounterMemory()
        self.parser = PageParser(wanted_by(engine))
        self.now = 0.0

    def read(self, text: str | bytes, after_s: float = 1.0) -> Normalised:
        self.now += after_s
        page = self.parser.parse(text if isinstance(text, bytes) else text.encode())
        return normalise(page, self.engine, self.memory, self.now)


def histogram_lines(
    name: str,
    counts: Sequence[float],
    total_s: float,
    bounds: Sequence[str] = ("0.1", "1", "+Inf"),
    labels: str = 'model_name="m"',
) -> str:
    buckets = "".join(f'{name}_bucket{{{labels},le="{le}"}} {count}\n' for le, count in zip(bounds, counts, strict=True))
    return buckets + f"{name}_sum{{{labels}}} {total_s}\n{name}_count{{{labels}}} {counts[-1]}\n"


CAPTURED = {
    "vllm-0.32.0.prom": {"ok": 65, "error": 0, "aborted": 6, "rejected": 0, "prompt": 4212, "generated": 15519, "preempted": 6},
    "vllm-0.32.0-idle.prom": {"ok": 0, "error": 0, "aborted": 0, "rejected": 0, "prompt": 0, "generated": 0, "preempted": 0},
    "vllm-0.32.0-preempted.prom": {
        "ok": 8,
        "error": 0,
        "aborted": 0,
        "rejected": 0,
        "prompt": 336,
        "generated": 7200,
        "preempted": 18,
    },
    # 16 requests were refused with 503: rejected once, and not errors as well.
    "vllm-0.32.0-lora-queue.prom": {
        "ok": 5,
        "error": 0,
        "aborted": 0,
        "rejected": 16,
        "prompt": 295,
        "generated": 1624,
        "preempted": 1,
    },
}


@pytest.mark.parametrize("name", CAPTURED)
def test_a_captured_page_gives_its_own_figures_and_lacks_nothing(name: str) -> None:
    result = Backend().read((SCRAPES / name).read_bytes())
    figures = {o: result.value(catalog.REQUESTS, model="tiny", outcome=o).value for o in catalog.OUTCOMES}
    figures |= {
        "prompt": result.value(catalog.PROMPT_TOKENS, model="tiny").value,
        "generated": result.value(catalog.GENERATED_TOKENS, model="tiny").value,
        "preempted": result.value(catalog.PREEMPTIONS, model="tiny").value,
    }
    assert figures == CAPTURED[name]
    assert result.missing == ()
    assert result.problems == {}
    assert result.models == ("tiny",)
    assert result.started_unix_s is not None
    assert result.cpu_s is not None


def test_a_captured_pages_histograms_keep_the_engines_buckets_count_and_sum() -> None:
    result = Backend().read((SCRAPES / "vllm-0.32.0.prom").read_bytes())
    expected = {
        catalog.LATENCY: (71, 242.43878030776978),
        catalog.TTFT: (71, 83.74110770225525),
        catalog.ITL: (15454, 158.76500682300184),
        catalog.QUEUE_TIME: (71, 77.02365471999724),
        catalog.PREFILL_TIME: (71, 2.4145407460002843),
        catalog.DECODE_TIME: (71, 158.76500682300184),
    }
    for metric, (count, total_s) in expected.items():
        histogram = result.histogram(metric, model="tiny").value
        assert histogram is not None
        assert histogram.count == count
        assert histogram.sum == pytest.approx(total_s)
        assert histogram.bounds[-1] == math.inf
    assert len(result.histograms) == len(expected)


@pytest.mark.parametrize("name", CAPTURED)
def test_the_vllm_table_has_no_row_that_no_captured_page_could_serve(name: str) -> None:
    offered = PageParser(wanted_by(VLLM)).parse((SCRAPES / name).read_bytes()).offered
    assert [source.names for source in VLLM.sources if source.expected and not offered & set(source.names)] == []


@pytest.mark.parametrize(
    ("page", "value"),
    [
        ('vllm:gpu_cache_usage_perc{model_name="m"} 0.4\n', 0.4),
        ('vllm:gpu_cache_usage_perc{model_name="m"} 0.4\nvllm:kv_cache_usage_perc{model_name="m"} 0.4\n', 0.4),
        ('vllm:kv_cache_usage_perc{model_name="m"} 0.4\n', 0.4),
        ('vllm:num_requests_running{model_name="m"} 1\n', None),
    ],
)
def test_a_renamed_metric_is_read_once_under_either_name_and_is_absent_without_both(page: str, value: float | None) -> None:
    result = Backend().read(page)
    reading = result.value(catalog.KV_USAGE, **M)
    assert reading.value == value
    assert reading.status is (Status.PRESENT if value is not None else Status.ABSENT)
    assert (catalog.KV_USAGE.name in result.missing) is (value is None)
    assert len([output for output in result.values if output[0] == catalog.KV_USAGE.name]) == (value is not None)


def test_two_data_parallel_engines_are_summed_except_for_ratios() -> None:
    lines = ""
    for engine, (running, usage, tokens) in enumerate([(3, 0.2, 100), (5, 0.7, 50)]):
        labels = f'engine="{engine}",model_name="m"'
        lines += f"vllm:num_requests_running{{{labels}}} {running}\nvllm:kv_cache_usage_perc{{{labels}}} {usage}\n"
        lines += f"vllm:generation_tokens_total{{{labels}}} {tokens}\n"
        lines += histogram_lines("vllm:time_to_first_token_seconds", [1, 2, 2 + engine], 1.5, labels=labels)
    result = Backend().read(lines)
    assert result.value(catalog.RUNNING, **M).value == 8
    assert result.value(catalog.KV_USAGE, **M).value == 0.7
    assert result.value(catalog.GENERATED_TOKENS, **M).value == 150
    histogram = result.histogram(catalog.TTFT, **M).value
    assert histogram is not None
    assert (histogram.counts, histogram.sum) == ((2, 4, 5), 3.0)


def test_seven_idle_processes_do_not_hide_the_one_whose_cache_is_filling() -> None:
    usages = [0.0] * 7 + [0.65]
    lines = "".join(f'vllm:kv_cache_usage_perc{{model_name="m",pid="{pid}"}} {usage}\n' for pid, usage in enumerate(usages))
    assert Backend().read(lines).value(catalog.KV_USAGE, **M).value == 0.65


@pytest.mark.parametrize("label", ["tp_rank", "pp_rank"])
def test_tensor_and_pipeline_ranks_repeat_a_fact_and_are_not_summed(label: str) -> None:
    lines = "".join(
        f'vllm:num_requests_running{{model_name="m",{label}="{rank}"}} 4\n'
        f'vllm:generation_tokens_total{{model_name="m",{label}="{rank}"}} {100 + rank}\n'
        + histogram_lines("vllm:time_to_first_token_seconds", [1, 2, 3], 1.0, labels=f'model_name="m",{label}="{rank}"')
        for rank in range(2)
    )
    result = Backend().read(lines)
    assert result.value(catalog.RUNNING, **M).value == 4
    assert result.value(catalog.GENERATED_TOKENS, **M).value == 101
    histogram = result.histogram(catalog.TTFT, **M).value
    assert histogram is not None
    assert histogram.counts == (1, 2, 3)


def test_one_nan_costs_its_own_reading_and_no_other() -> None:
    lines = 'vllm:num_requests_running{model_name="m"} NaN\nvllm:num_requests_waiting{model_name="m"} 2\n'
    result = Backend().read(lines + histogram_lines("vllm:time_to_first_token_seconds", [1, 2, 3], 1.0))
    assert result.value(catalog.RUNNING, **M).status is Status.INVALID
    assert result.value(catalog.RUNNING, **M).reason == "non_finite"
    assert result.value(catalog.WAITING, **M).value == 2
    assert result.histogram(catalog.TTFT, **M).is_present
    assert result.problems == {Reason.NON_FINITE: 1}
    assert catalog.RUNNING.name not in result.missing


def test_a_sum_with_an_unknown_part_is_unknown() -> None:
    lines = 'vllm:num_requests_running{engine="0",model_name="m"} 1\nvllm:num_requests_running{engine="1",model_name="m"} NaN\n'
    assert Backend().read(lines).value(catalog.RUNNING, **M).status is Status.INVALID


def test_a_bad_bucket_of_one_model_leaves_the_other_models_histogram() -> None:
    name = "vllm:time_to_first_token_seconds"
    good = histogram_lines(name, [1, 2, 3], 1.0, labels='model_name="good"')
    bad = histogram_lines(name, [1, math.nan, 3], 1.0, labels='model_name="bad"')
    result = Backend().read(good + bad)
    assert result.histogram(catalog.TTFT, model="good").is_present
    assert result.histogram(catalog.TTFT, model="bad").status is Status.INVALID


@pytest.mark.parametrize("value", [-0.1, 1.01, 40.0])
def test_a_ratio_outside_its_range_is_invalid_and_not_divided_by_a_guess(value: float) -> None:
    result = Backend().read(f'vllm:kv_cache_usage_perc{{model_name="m"}} {value}\n')
    assert result.value(catalog.KV_USAGE, **M).status is Status.INVALID
    assert result.problems == {Reason.OUT_OF_RANGE: 1}


def test_a_ratio_a_rounding_error_above_one_is_one() -> None:
    assert Backend().read('vllm:kv_cache_usage_perc{model_name="m"} 1.00005\n').value(catalog.KV_USAGE, **M).value == 1.0


def test_a_negative_queue_is_invalid() -> None:
    assert Backend().read('vllm:num_requests_waiting{model_name="m"} -1\n').value(catalog.WAITING, **M).status is Status.INVALID


def tokens(value: float, start_s: float | None = None, engine: str = "0") -> str:
    start = "" if start_s is None else f"process_start_time_seconds {start_s}\n"
    return f'{start}vllm:generation_tokens_total{{engine="{engine}",model_name="m"}} {value}\n'


@pytest.mark.parametrize(
    ("pages", "published", "restarts"),
    [
        ([tokens(100), tokens(150)], [100, 150], 0),
        ([tokens(100), tokens(7), tokens(20)], [100, 107, 120], 1),
        ([tokens(100, 1e9), tokens(120, 1e9 + 50)], [100, 220], 1),
        ([tokens(100, 1e9), tokens(120, 1e9 + 0.5)], [100, 120], 0),
        ([tokens(100, 1e9), tokens(7, 1e9 + 50), tokens(9, 1e9 + 50)], [100, 107, 109], 1),
        ([tokens(100, 1e9), tokens(110), tokens(120, 1e9)], [100, 110, 120], 0),
        ([tokens(100), tokens(100) + tokens(40, engine="1"), tokens(5) + tokens(50, engine="1")], [100, 140, 155], 1),
        ([tokens(100) + tokens(40, engine="1"), tokens(110), tokens(120) + tokens(3, engine="1")], [140, 150, 163], 1),
    ],
    ids=[
        "no restart",
        "the raw value fell",
        "only the start time changed",
        "the start time moved by a clock tick",
        "both",
        "the start time was missing once",
        "one of two ranks restarted",
        "a rank was gone for a page",
    ],
)
def test_a_counter_never_falls_and_a_restart_loses_nothing(pages: list[str], published: list[float], restarts: int) -> None:
    backend = Backend()
    results = [backend.read(page) for page in pages]
    assert [result.value(catalog.GENERATED_TOKENS, **M).value for result in results] == published
    assert sum(result.restarted for result in results) == restarts


def test_a_histogram_carries_on_over_a_restart() -> None:
    backend = Backend()
    name = "vllm:time_to_first_token_seconds"
    backend.read(histogram_lines(name, [10, 20, 21], 9.0))
    reading = backend.read(histogram_lines(name, [1, 1, 1], 0.05)).histogram(catalog.TTFT, **M)
    assert reading.value is not None
    assert reading.value.counts == (11, 21, 22)
    assert reading.value.sum == pytest.approx(9.05)


def test_a_histogram_whose_buckets_changed_with_the_restart_begins_anew() -> None:
    backend = Backend()
    name = "vllm:time_to_first_token_seconds"
    backend.read(histogram_lines(name, [10, 20, 21], 9.0))
    reading = backend.read(histogram_lines(name, [1, 2], 0.5, bounds=("0.5", "+Inf"))).histogram(catalog.TTFT, **M)
    assert reading.value is not None
    assert (reading.value.bounds, reading.value.counts) == ((0.5, math.inf), (1, 2))


def test_an_hour_unseen_is_forgotten_in_detail_and_kept_in_the_total() -> None:
    backend = Backend()
    backend.read(tokens(100) + tokens(40, engine="1"))
    for _ in range(70):
        result = backend.read(tokens(110), after_s=60)
    assert result.value(catalog.GENERATED_TOKENS, **M).value == 150
    assert backend.memory._part_count == 1
    result = backend.read(tokens(120) + tokens(3, engine="1"))
    assert result.value(catalog.GENERATED_TOKENS, **M).value == 163


def test_what_is_gone_altogether_leaves_nothing_behind() -> None:
    backend = Backend()
    backend.read(tokens(100))
    for _ in range(70):
        result = backend.read('vllm:num_requests_running{model_name="m"} 0\n', after_s=60)
    assert backend.memory._totals == {}
    assert result.value(catalog.GENERATED_TOKENS, **M).status is Status.ABSENT


def test_more_series_than_can_be_tracked_are_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "MAX_PARTS", 10)
    lines = "".join(tokens(1, engine=str(engine)) for engine in range(11))
    result = Backend().read(lines)
    assert result.value(catalog.GENERATED_TOKENS, **M).reason == "too_many_series"
    assert result.problems == {Reason.TOO_MANY_SERIES: 1}


def test_model_names_beyond_the_catalogues_bound_become_other() -> None:
    count = catalog.MODEL.bound + 5
    lines = "".join(f'vllm:num_requests_running{{model_name="m{i}"}} 1\n' for i in range(count))
    backend = Backend()
    for _ in range(2):
        result = backend.read(lines)
        models = {dict(labels)["model"] for _, labels in result.values}
        assert len(models) == catalog.MODEL.bound + 1
        assert result.value(catalog.RUNNING, model="other").value == 5


def test_a_model_that_is_gone_for_an_hour_makes_room_for_another() -> None:
    backend = Backend()
    for i in range(catalog.MODEL.bound):
        backend.read(f'vllm:num_requests_running{{model_name="m{i}"}} 1\n')
    page = 'vllm:num_requests_running{model_name="new"} 1\n'
    assert backend.read(page).value(catalog.RUNNING, model="other").value == 1
    backend.read(page, after_s=4_000)
    assert backend.read(page).value(catalog.RUNNING, model="new").value == 1


TTFT_PAGE = "vllm:time_to_first_token_seconds"
GOOD = histogram_lines(TTFT_PAGE, [1, 2, 3], 1.0)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (histogram_lines(TTFT_PAGE, [5, 3, 9], 1.0), "not_monotone"),
        (histogram_lines(TTFT_PAGE, [1, 2], 1.0, bounds=("0.1", "1")), "incomplete"),
        (GOOD.replace('_count{model_name="m"} 3', '_count{model_name="m"} 4'), "count_mismatch"),
        ("".join(line for line in GOOD.splitlines(keepends=True) if "_sum" not in line), "incomplete"),
        ("".join(line for line in GOOD.splitlines(keepends=True) if "_bucket" not in line), "incomplete"),
        (
            histogram_lines(TTFT_PAGE, [1, 2, 3], 1.0, labels='engine="0",model_name="m"')
            + histogram_lines(TTFT_PAGE, [1, 2], 1.0, ("1", "+Inf"), labels='engine="1",model_name="m"'),
            "bounds_differ",
        ),
    ],
)
def test_a_histogram_that_cannot_be_one_is_invalid_with_its_reason(lines: str, reason: str) -> None:
    result = Backend().read(lines)
    reading = result.histogram(catalog.TTFT, **M)
    assert (reading.status, reading.reason) == (Status.INVALID, reason)
    assert result.problems == {Reason(reason): 1}


def test_buckets_are_ordered_by_number_and_not_by_text() -> None:
    bounds = ("+Inf", "10", "2.5", "1e-1")
    lines = histogram_lines("vllm:time_to_first_token_seconds", [9, 8, 4, 1], 20.0, bounds).replace(
        '_count{model_name="m"} 1', '_count{model_name="m"} 9'
    )
    histogram = Backend().read(lines).histogram(catalog.TTFT, **M).value
    assert histogram is not None
    assert (histogram.bounds, histogram.counts) == ((0.1, 2.5, 10.0, math.inf), (1, 4, 8, 9))


def test_with_only_an_infinite_bucket_the_mean_is_known_and_no_quantile_is() -> None:
    reading = (
        Backend()
        .read(histogram_lines("vllm:time_to_first_token_seconds", [4], 2.0, bounds=("+Inf",)))
        .histogram(catalog.TTFT, **M)
    )
    assert reading.value is not None
    assert (reading.value.count, reading.value.sum) == (4, 2.0)
    assert bucket_quantile(reading.value, 0.99) is None


def test_latencies_of_an_impossible_size_are_left_out_and_later_ones_are_not() -> None:
    backend = Backend()
    name = "vllm:e2e_request_latency_seconds"
    backend.read(histogram_lines(name, [10, 20, 20], 9.0))
    poisoned = backend.read(histogram_lines(name, [10, 20, 21], 9.0 + 1.2e6))
    assert poisoned.problems == {Reason.IMPLAUSIBLE: 1}
    after = backend.read(histogram_lines(name, [11, 21, 22], 9.5 + 1.2e6))
    assert after.problems == {}
    histogram = after.histogram(catalog.LATENCY, **M).value
    assert histogram is not None
    assert histogram.counts == (11, 21, 21)
    assert histogram.sum == pytest.approx(9.5)


@pytest.mark.parametrize("added_s", [-5.0, 1.2e6])
def test_one_impossible_latency_among_many_good_ones_is_found(added_s: float) -> None:
    backend = Backend()
    name = "vllm:e2e_request_latency_seconds"
    backend.read(histogram_lines(name, [10, 20, 20], 9.0))
    assert backend.read(histogram_lines(name, [10, 50, 51], 9.0 + added_s)).problems == {Reason.IMPLAUSIBLE: 1}


def test_an_hour_long_answer_above_the_last_bucket_is_believed() -> None:
    backend = Backend()
    name = "vllm:e2e_request_latency_seconds"
    backend.read(histogram_lines(name, [10, 20, 20], 9.0))
    result = backend.read(histogram_lines(name, [10, 20, 21], 3609.0))
    assert result.problems == {}
    assert result.histogram(catalog.LATENCY, **M).is_present


def requests(finished: dict[str, int], http_5xx: int | None = None, rejected: int | None = None) -> str:
    lines = "".join(f'vllm:request_success_total{{model_name="m",finished_reason="{why}"}} {n}\n' for why, n in finished.items())
    if http_5xx is not None:
        lines += f'http_requests_total{{handler="/v1/completions",method="POST",status="5xx"}} {http_5xx}\n'
        lines += 'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 99\n'
        lines += 'http_requests_total{handler="/scale_elastic_ep",method="POST",status="5xx"} 7\n'
    if rejected is not None:
        lines += f'vllm:admission_rejections_total{{model_name="m",reason="max_num_queued_reqs"}} {rejected}\n'
    return lines


@pytest.mark.parametrize(
    ("page", "outcomes"),
    [
        (requests({"stop": 3, "length": 4, "abort": 2, "error": 1}), {"ok": 7, "aborted": 2, "error": 1, "rejected": None}),
        (requests({"stop": 3}), {"ok": 3, "aborted": 0, "error": 0, "rejected": None}),
        (requests({"stop": 3, "error": 1}, http_5xx=5), {"ok": 3, "aborted": 0, "error": 6, "rejected": None}),
        (requests({"stop": 3}, http_5xx=20, rejected=16), {"ok": 3, "aborted": 0, "error": 4, "rejected": 16}),
        (requests({"stop": 3, "error": 2}, rejected=16), {"ok": 3, "aborted": 0, "error": 2, "rejected": 16}),
    ],
)
def test_every_request_is_counted_under_one_outcome(page: str, outcomes: dict[str, float | None]) -> None:
    result = Backend().read(page)
    assert {o: result.value(catalog.REQUESTS, outcome=o, **M).value for o in outcomes} == outcomes


def test_errors_do_not_fall_while_a_refusal_is_counted_before_its_answer() -> None:
    backend = Backend()
    pages = [requests({"stop": 1}, 20, 16), requests({"stop": 1}, 20, 18), requests({"stop": 1}, 23, 18)]
    published = [backend.read(page).value(catalog.REQUESTS, outcome="error", **M).value for page in pages]
    assert published == [4, 4, 5]


def test_a_renamed_label_makes_its_counters_missing_and_not_zero() -> None:
    result = Backend().read('vllm:request_success_total{model_name="m",why="stop"} 9\n')
    assert result.value(catalog.REQUESTS, outcome="ok", **M).status is Status.ABSENT
    assert catalog.REQUESTS.name in result.missing


def test_a_series_without_a_model_belongs_to_the_only_model_or_to_none() -> None:
    one = Backend().read(requests({"error": 1}, http_5xx=2))
    assert one.value(catalog.REQUESTS, outcome="error", **M).value == 3
    two = Backend().read(requests({"error": 1}, http_5xx=2) + 'vllm:num_requests_running{model_name="n"} 0\n')
    assert two.value(catalog.REQUESTS, outcome="error", **M).value == 1
    assert two.value(catalog.REQUESTS, outcome="error").value == 2


def test_a_page_without_any_model_gives_readings_without_the_label() -> None:
    result = Backend().read("vllm:num_requests_running 2\n")
    assert result.value(catalog.RUNNING).value == 2
    assert result.models == ()


def test_a_row_in_milliseconds_is_published_in_seconds() -> None:
    engine = Engine(
        name="ms",
        metrics_path="/metrics",
        health_path="/health",
        sources=(Source(catalog.TTFT, ("first_ms",), scale=0.001), Source(catalog.PROMPT_TOKENS, ("kilotokens",), scale=1_000)),
    )
    lines = histogram_lines("first_ms", [1, 2, 3], 1_500.0, bounds=("250", "1000", "+Inf")) + 'kilotokens{model_name="m"} 2\n'
    result = Backend(engine).read(lines)
    histogram = result.histogram(catalog.TTFT, **M).value
    assert histogram is not None
    assert (histogram.bounds, histogram.sum) == ((0.25, 1.0, math.inf), 1.5)
    assert result.value(catalog.PROMPT_TOKENS, **M).value == 2_000


def test_a_page_of_another_program_gives_no_reading_and_misses_everything() -> None:
    result = Backend().read("node_cpu_seconds_total 5\n")
    assert result.values == {}
    assert result.histograms == {}
    assert set(result.missing) == {source.metric.name for source in VLLM.sources if source.expected}


def test_readings_carry_the_time_they_were_taken() -> None:
    backend = Backend()
    reading = backend.read('vllm:num_requests_running{model_name="m"} 1\n', after_s=42.0).value(catalog.RUNNING, **M)
    assert reading.taken_s == 42.0
