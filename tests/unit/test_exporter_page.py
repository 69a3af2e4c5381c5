"""Our own page: one dialect for each Accept header, only catalogue names, nothing unknown, and strict parsers agree."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import Metric as Family
from prometheus_client.openmetrics import parser as open_metrics_parser
from prometheus_client.parser import text_string_to_metric_families as text_families

from tailkeeper_exporter import catalog
from tailkeeper_exporter.evidence import TAP_STALE_S
from tailkeeper_exporter.gpu import DeviceId, DeviceState, GpuSample, GpuSnapshot, XidEvent
from tailkeeper_exporter.liveness import Liveness
from tailkeeper_exporter.metrics_page import Dialect, MetricsPage, negotiate
from tailkeeper_exporter.otlp.counts import Counts
from tailkeeper_exporter.otlp.counts import Outcome as OtlpOutcome
from tailkeeper_exporter.page import Reason
from tailkeeper_exporter.probe import ProbeResult
from tailkeeper_exporter.probe_answer import Outcome
from tailkeeper_exporter.readings import Histogram, Reading, Status, absent, invalid, present
from tailkeeper_exporter.requests_ring import RequestRecord, RequestRing
from tailkeeper_exporter.series import Series, bounded, series_of
from tailkeeper_exporter.settings import BackendSettings
from tailkeeper_exporter.state import State
from tailkeeper_exporter.tap.watch import TapNumbers
from tailkeeper_exporter.views import REASONS, BackendView, Output, Source, SourceView

# The strict parser has no types of its own.
open_metrics_families: Callable[[str], Iterable[Family]] = open_metrics_parser.text_string_to_metric_families

NOW = 1000.0
MODEL = (("model", "tiny"),)
HISTOGRAM = Histogram((0.1, 1.0, 10.0, math.inf), (3.0, 8.0, 9.0, 10.0), 12.5)

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROMETHEUS_WITH_PROTOBUF = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6," + PROMETHEUS_3
)
ACCEPTS = [
    (None, Dialect.TEXT),
    ("", Dialect.TEXT),
    ("*/*", Dialect.TEXT),
    ("text/plain", Dialect.TEXT),
    ("text/*;q=0.3", Dialect.TEXT),
    ("text/html,application/xhtml+xml,*/*;q=0.8", Dialect.TEXT),
    (PROMETHEUS_2, Dialect.OPEN_METRICS),
    (PROMETHEUS_3, Dialect.OPEN_METRICS),
    (PROMETHEUS_WITH_PROTOBUF, Dialect.OPEN_METRICS),
    ("application/openmetrics-text", Dialect.OPEN_METRICS),
    ("application/openmetrics-text; version=1.0.0; charset=utf-8", Dialect.OPEN_METRICS),
    ("application/openmetrics-text;version=0.0.1", Dialect.OPEN_METRICS_OLD),
    ("application/openmetrics-text;version=9.0.0", Dialect.TEXT),
    ("application/openmetrics-text;q=0.3,text/plain;q=0.7", Dialect.TEXT),
    ("APPLICATION/OPENMETRICS-TEXT;VERSION=1.0.0", Dialect.OPEN_METRICS),
    ("application/openmetrics-text;q=0", Dialect.TEXT),
    ("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited", Dialect.TEXT),
    ("application/json", Dialect.TEXT),
    (";;;,,,=;q=q,\x00\xff", Dialect.TEXT),
    ("application/openmetrics-text;q=nan", Dialect.TEXT),
    ("application/openmetrics-text;q=1e9", Dialect.TEXT),
    ("," * 100_000, Dialect.TEXT),
]


@pytest.mark.parametrize(("accept", "expected"), ACCEPTS)
def test_each_accept_header_gets_one_dialect(accept: str | None, expected: Dialect) -> None:
    assert negotiate(accept) is expected


@settings(deadline=None)
@given(st.text())
def test_no_accept_header_raises(accept: str) -> None:
    assert negotiate(accept) in Dialect


def a_view(**changes: Any) -> BackendView:
    settings = BackendSettings.model_validate(
        {"name": "a", "engine": "vllm", "url": "http://h:1", "model": "configured", "gpus": ["0"]} | changes.pop("settings", {})
    )
    whole = BackendView(
        settings,
        Liveness(State.SERVING, (), (), 0.0),
        asked=True,
        up=True,
        counters=MappingProxyType(
            {(catalog.GENERATED_TOKENS.name, MODEL): 15519.0, (catalog.REQUESTS.name, (*MODEL, ("outcome", "ok"))): 65.0}
        ),
        histograms=MappingProxyType({(catalog.LATENCY.name, MODEL): HISTOGRAM, (catalog.TTFT.name, MODEL): HISTOGRAM}),
        gauges=MappingProxyType({(catalog.RUNNING.name, MODEL): present(3.0, NOW - 1)}),
        sources=MappingProxyType({Source.ENGINE: SourceView(True, 0.01, NOW - 1, NOW - 1)}),
        invalid=MappingProxyType({"timeout": 2}),
        probes=MappingProxyType({Outcome.ANSWERED: 4}),
        probe=ProbeResult(Outcome.ANSWERED, NOW - 2, NOW - 1.9, 0.1, True, 200),
    )
    return replace(whole, **changes)


def gpu_snapshot(**sample: Any) -> GpuSnapshot:
    values = {"utilization_ratio": present(0.7, NOW), "memory_total_bytes": present(1e11, NOW), **sample}
    state = DeviceState(
        DeviceId(0, "GPU-1", "H200"),
        GpuSample(**values),
        NOW - 0.5,
        xid_totals=MappingProxyType({31: 2}),
        last_xid=XidEvent(31, 1.0),
    )
    return GpuSnapshot((state,), NOW)


def page(
    *views: BackendView, gpus: GpuSnapshot | None = None, dialect: Dialect = Dialect.TEXT, ring: RequestRing | None = None
) -> str:
    return MetricsPage(ring or RequestRing()).render(views or (a_view(),), gpus or GpuSnapshot(), NOW, dialect).decode()


@pytest.mark.parametrize("dialect", Dialect)
def test_series_of_the_exporter_as_a_whole_stand_on_the_page_without_a_backend(dialect: Dialect) -> None:
    counts = Counts()
    counts.spans[OtlpOutcome.SENT] = 7
    text = MetricsPage(RequestRing(), counts.series).render((a_view(),), GpuSnapshot(), NOW, dialect).decode()
    parse = open_metrics_families if dialect.is_open_metrics else text_families
    found = {sample.labels["outcome"]: sample.value for f in parse(text) for sample in f.samples if "otlp_spans" in sample.name}
    assert found == {**dict.fromkeys(OtlpOutcome, 0.0), OtlpOutcome.SENT: 7.0}
    assert MetricsPage(RequestRing(), counts.series).render((), GpuSnapshot(), NOW, dialect), "also with no backend at all"


def samples(text: str, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for family in text_families(text)
        for sample in family.samples
        if sample.name == name
    }


def one(text: str, name: str, **labels: str) -> float | None:
    wanted = set(labels.items())
    found = [value for key, value in samples(text, name).items() if wanted <= set(key)]
    assert len(found) <= 1
    return found[0] if found else None


def families(parsed: Iterable[Family]) -> dict[str, Family]:
    return {family.name: family for family in parsed}


def test_both_dialects_hold_the_same_samples_for_strict_parsers() -> None:
    gpus = gpu_snapshot(ecc_single_bit_total=present(2.0, NOW), throttle_reasons=present(frozenset({"sw_power_cap"}), NOW))
    text = families(text_families(page(gpus=gpus)))
    strict = families(open_metrics_families(page(gpus=gpus, dialect=Dialect.OPEN_METRICS)))
    assert set(text) == set(strict)
    for name, family in strict.items():
        assert [(s.name, s.labels, s.value) for s in family.samples] == [(s.name, s.labels, s.value) for s in text[name].samples]
        assert family.type == text[name].type
        assert family.documentation == text[name].documentation


def test_only_open_metrics_ends_with_eof_and_names_counters_without_total() -> None:
    text, strict = page(), page(dialect=Dialect.OPEN_METRICS)
    assert "# EOF" not in text
    assert strict.endswith("# EOF\n")
    assert "# TYPE llm_requests_total counter" in text
    assert "# TYPE llm_requests counter" in strict
    assert "# UNIT llm_time_to_first_token_seconds seconds" in strict
    assert "# UNIT" not in text


def test_every_emitted_metric_and_label_is_in_the_catalogue() -> None:
    text = page(gpus=gpu_snapshot())
    for family in text_families(text):
        name = family.name + "_total" if family.type == "counter" else family.name
        metric = catalog.BY_NAME[name]
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.label_names), sample


def test_a_series_that_the_catalogue_does_not_know_is_an_error_not_a_line() -> None:
    with pytest.raises((AssertionError, KeyError)):
        page(a_view(gauges=MappingProxyType({("llm_surprise", MODEL): present(1.0, NOW)})))


def test_families_are_contiguous_and_no_series_is_there_twice() -> None:
    text = page(a_view(), a_view(settings={"name": "b"}))
    lines = [line.rsplit(" ", 1)[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) == len(set(lines))
    heads = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(heads) == len(set(heads))


@pytest.mark.parametrize("state", list(State))
def test_exactly_one_of_the_seven_states_is_1(state: State) -> None:
    found = samples(page(a_view(liveness=Liveness(state, (), (), 0.0))), "llm_backend_state")
    assert len(found) == 7
    assert [dict(key)["state"] for key, value in found.items() if value == 1] == [state.value]


@pytest.mark.parametrize(
    ("reading", "value"),
    [
        (present(3.0, NOW - 1), 3.0),
        (present(0.0, NOW), 0.0),
        (present(3.0, NOW - 5.1), None),  # stale: three intervals of 1 s and a time-out of 2 s
        (absent(), None),
        (invalid("out_of_range"), None),
    ],
)
def test_a_gauge_is_there_only_while_it_is_present_and_fresh(reading: Reading[float], value: float | None) -> None:
    text = page(a_view(gauges=MappingProxyType({(catalog.RUNNING.name, MODEL): reading})))
    assert one(text, "llm_requests_running", backend="a") == value


def test_counters_and_histograms_stay_when_the_page_is_lost_and_its_age_grows() -> None:
    lost = SourceView(False, 2.0, NOW - 300, NOW - 1, "timeout")
    text = page(a_view(sources=MappingProxyType({Source.ENGINE: lost}), gauges=MappingProxyType({})))
    assert one(text, "llm_generated_tokens_total", backend="a") == 15519
    assert one(text, "llm_time_to_first_token_seconds_count", backend="a") == 10
    assert one(text, "tailkeeper_exporter_scrape_age_seconds", source="engine") == 300
    assert one(text, "tailkeeper_exporter_scrape_success", source="engine") == 0


def test_an_engine_known_not_to_run_has_all_its_counters_and_buckets_at_0() -> None:
    dead = a_view(idle_counters=True, counters=MappingProxyType({}), histograms=MappingProxyType({}))
    text = page(dead)
    assert {dict(k)["outcome"]: v for k, v in samples(text, "llm_requests_total").items()} == dict.fromkeys(catalog.OUTCOMES, 0.0)
    assert one(text, "llm_generated_tokens_total", model="configured") == 0
    buckets = samples(text, "llm_time_to_first_token_seconds_bucket")
    assert {dict(key)["le"] for key in buckets} == {*map(str, catalog.TTFT.buckets), "+Inf"}
    assert set(buckets.values()) == {0.0}
    assert one(text, "llm_kv_cache_usage_ratio", backend="a") is None, "a gauge at 0 would say empty"


def test_an_engine_of_which_nothing_is_known_has_no_counters_at_all() -> None:
    text = page(a_view(counters=MappingProxyType({}), histograms=MappingProxyType({}), gauges=MappingProxyType({})))
    assert "llm_generated_tokens" not in text
    assert "llm_requests_total" not in text


def test_the_pages_own_model_replaces_the_configured_one_without_a_phantom() -> None:
    assert {dict(key)["model"] for key in samples(page(), "llm_generated_tokens_total")} == {"tiny"}
    nameless = a_view(counters=MappingProxyType({(catalog.GENERATED_TOKENS.name, ()): 1.0}))
    assert {dict(key)["model"] for key in samples(page(nameless), "llm_generated_tokens_total")} == {"configured"}


def test_outcomes_not_counted_yet_stand_at_0_beside_the_others() -> None:
    found = {dict(key)["outcome"]: value for key, value in samples(page(), "llm_requests_total").items()}
    assert found == {"ok": 65.0, "error": 0.0, "aborted": 0.0, "rejected": 0.0}


def test_quantization_and_canary_come_from_the_configuration() -> None:
    view = a_view(settings={"quantization": "int4", "labels": {"canary_revision": "v2"}})
    assert one(page(view), "llm_inference_latency_seconds_count", quantization="int4") == 10
    assert one(page(view), "llm_requests_total", outcome="ok", canary_revision="v2") == 65


def test_every_reason_and_probe_outcome_is_there_from_the_start() -> None:
    text = page()
    reasons = {dict(key)["reason"]: value for key, value in samples(text, "tailkeeper_exporter_invalid_samples_total").items()}
    assert set(reasons) == set(REASONS) >= {reason.value for reason in Reason}
    assert reasons["timeout"] == 2
    outcomes = {dict(key)["outcome"]: value for key, value in samples(text, "tailkeeper_exporter_probes_total").items()}
    assert set(outcomes) == {outcome.value for outcome in Outcome}
    assert outcomes["answered"] == 4
    assert len(reasons) <= catalog.REASON.bound
    assert len(outcomes) <= catalog.PROBE_OUTCOME.bound


def test_bounds_are_written_with_a_decimal_point() -> None:
    assert 'le="1.0"' in page()
    assert 'le="10.0"' in page()
    assert 'le="1"' not in page()


def test_gpu_series_carry_the_uuid_and_leave_out_what_the_device_does_not_support() -> None:
    text = page(
        gpus=gpu_snapshot(throttle_reasons=present(frozenset({"sw_power_cap"}), NOW), ecc_double_bit_total=present(0.0, NOW))
    )
    assert one(text, "llm_gpu_utilization_ratio", gpu="GPU-1") == 0.7
    assert "llm_gpu_temperature_celsius" not in text
    assert one(text, "llm_gpu_throttled", reason="sw_power_cap") == 1
    assert one(text, "llm_gpu_throttled", reason="hw_slowdown") == 0
    assert one(text, "llm_gpu_xid_events_total", xid="31") == 2
    assert one(text, "llm_gpu_ecc_errors_total", kind="double_bit") == 0
    assert one(text, "tailkeeper_exporter_scrape_success", source="gpu") == 1


def test_a_gpu_whose_samples_are_old_keeps_its_age_and_its_counters_only() -> None:
    old = replace(gpu_snapshot(ecc_single_bit_total=present(1.0, NOW)).devices[0], taken_s=NOW - 60)
    text = page(gpus=GpuSnapshot((old,), NOW))
    assert one(text, "llm_gpu_sample_age_seconds", gpu="GPU-1") == 60
    assert "llm_gpu_utilization_ratio" not in text
    assert one(text, "llm_gpu_ecc_errors_total", kind="single_bit") == 1
    assert one(text, "tailkeeper_exporter_scrape_success", source="gpu") == 0


def test_a_configured_gpu_that_is_not_there_is_a_failed_source_and_no_series() -> None:
    text = page(gpus=GpuSnapshot())
    assert one(text, "tailkeeper_exporter_scrape_success", source="gpu") == 0
    assert "llm_gpu_utilization" not in text


HOSTILE_NAMES = [
    "no",
    "0123",
    "1e3",
    "a: b",
    "{{ $labels.x }}",
    'say "hi"',
    "back\\slash",
    "two\nlines",
    "Qwen/Qwen2.5",
    "ü",
    "x" * 128,
]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
@pytest.mark.parametrize("dialect", [Dialect.TEXT, Dialect.OPEN_METRICS])
def test_hostile_names_survive_the_way_through_the_page(name: str, dialect: Dialect) -> None:
    view = a_view(settings={"name": name, "model": name}, counters=MappingProxyType({(catalog.GENERATED_TOKENS.name, ()): 1.0}))
    parse = open_metrics_families if dialect.is_open_metrics else text_families
    found = families(parse(page(view, dialect=dialect)))["llm_generated_tokens"].samples
    assert [(s.labels["backend"], s.labels["model"]) for s in found] == [(name, name)]


@settings(deadline=None)
@given(st.text(min_size=1, max_size=40).filter(lambda name: "\r" not in name), st.floats(0, 1e18))
def test_any_name_and_value_parse_strictly_in_open_metrics(name: str, value: float) -> None:
    view = a_view(counters=MappingProxyType({(catalog.GENERATED_TOKENS.name, (("model", name),)): value}))
    found = families(open_metrics_families(page(view, dialect=Dialect.OPEN_METRICS)))["llm_generated_tokens"].samples
    assert [(s.labels["model"], s.value) for s in found] == [(name, value)]


def test_label_values_beyond_their_bound_become_other_and_add_up() -> None:
    many = {(catalog.GENERATED_TOKENS.name, (("model", f"m{n}"),)): 1.0 for n in range(100)}
    found = samples(page(a_view(counters=MappingProxyType(many))), "llm_generated_tokens_total")
    assert len(found) == catalog.MODEL.bound
    assert sum(found.values()) == 100
    assert next(value for key, value in found.items() if ("model", "other") in key) == 100 - (catalog.MODEL.bound - 1)


def test_beyond_its_bound_a_ratio_is_the_largest_and_a_histogram_the_sum() -> None:
    gauges = {(catalog.KV_USAGE.name, (("model", f"m{n}"),)): present(n / 100, NOW) for n in range(100)}
    text = page(a_view(gauges=MappingProxyType(gauges)))
    assert one(text, "llm_kv_cache_usage_ratio", model="other") == 0.99
    histograms = {(catalog.TTFT.name, (("model", f"m{n}"),)): HISTOGRAM for n in range(40)}
    text = page(a_view(histograms=MappingProxyType(histograms)))
    assert one(text, "llm_time_to_first_token_seconds_count", model="other") == 10 * 9


def test_within_the_bounds_nothing_is_touched() -> None:
    whole = list(series_of(a_view(), gpu_snapshot(), NOW))
    again = [series for _, members in bounded(whole) for series in members]
    assert sorted(map(repr, again)) == sorted(map(repr, whole))
    assert all(isinstance(series, Series) for series in again)


TRACE = "8efff798038103d269b633813fc703a1"


def ring_with(**record: Any) -> RequestRing:
    ring = RequestRing()
    known: dict[str, Any] = {"trace_id": TRACE, "request_id": "r1", "start": 1.7e9, "ttft_s": 0.5, "e2e_s": 2.0}
    ring.append(RequestRecord("a", **(known | record)))
    return ring


def test_exemplars_are_in_open_metrics_only_and_on_the_bucket_that_holds_their_value() -> None:
    ring = ring_with()
    assert "trace_id" not in page(ring=ring)
    strict = families(open_metrics_families(page(ring=ring, dialect=Dialect.OPEN_METRICS)))
    marked = [s for s in strict["llm_time_to_first_token_seconds"].samples if s.exemplar is not None]
    assert [(s.labels["le"], s.exemplar.labels, s.exemplar.value) for s in marked if s.exemplar] == [
        ("1.0", {"trace_id": TRACE, "request_id": "r1"}, 0.5)
    ]
    # The request ended 2 s after its start.
    assert all(s.exemplar is not None and float(s.exemplar.timestamp or 0) == 1.7e9 + 2 for s in marked)
    assert all(s.exemplar is None for family in strict.values() if family.type != "histogram" for s in family.samples)


@pytest.mark.parametrize(
    ("trace_id", "expected"),
    [
        ("008EFFF798038103D269B633813FC703", "008efff798038103d269b633813fc703"),
        ("8efff798038103d269b633813fc703", "008efff798038103d269b633813fc703"),
        ("4bf92f3577b34da6", "0000000000000000" + "4bf92f3577b34da6"),
        ("0" * 32, None),
        ("xyz", None),
        ("", None),
        (None, None),
        ("f" * 33, None),
    ],
)
def test_trace_ids_are_spelt_one_way_or_give_no_exemplar(trace_id: str | None, expected: str | None) -> None:
    text = page(ring=ring_with(trace_id=trace_id), dialect=Dialect.OPEN_METRICS)
    found = re.findall(r'trace_id="([^"]*)"', text)
    assert set(found) == ({expected} if expected else set())
    list(open_metrics_families(text))


def test_a_request_id_that_is_too_long_for_an_exemplar_is_left_out() -> None:
    text = page(ring=ring_with(request_id="r" * 200), dialect=Dialect.OPEN_METRICS)
    assert "trace_id" in text
    assert "request_id" not in text
    list(open_metrics_families(text))


def test_an_exemplar_never_stands_on_a_bucket_without_an_observation() -> None:
    empty = Histogram(HISTOGRAM.bounds, (0.0,) * 4, 0.0)
    view = a_view(histograms=MappingProxyType({(catalog.TTFT.name, MODEL): empty}))
    assert "trace_id" not in page(view, ring=ring_with(), dialect=Dialect.OPEN_METRICS)


def test_the_newest_request_of_a_bucket_is_its_exemplar() -> None:
    ring = ring_with()
    ring.append(RequestRecord("a", request_id="r2", trace_id="1" * 32, ttft_s=0.6))
    text = page(ring=ring, dialect=Dialect.OPEN_METRICS)
    assert "1" * 32 in text
    assert 'request_id="r1"} 0.5' not in text


@pytest.mark.parametrize(
    ("outcome", "marked"),
    [
        ("ok", {catalog.TTFT.name, catalog.LATENCY.name}),
        ("aborted", {catalog.TTFT.name}),
        ("error", set()),
        ("rejected", set()),
    ],
)
def test_a_failed_request_is_no_example_of_a_fast_one(outcome: str, marked: set[str]) -> None:
    assert set(ring_with(outcome=outcome).exemplars("a")) == marked


@pytest.mark.parametrize(("age_s", "value"), [(0.5, 7.0), (TAP_STALE_S + 0.1, None)])
def test_a_taps_gauge_goes_with_the_tap_however_seldom_the_page_is_read(age_s: float, value: float | None) -> None:
    running: Mapping[Output, Reading[float]] = MappingProxyType({(catalog.RUNNING.name, MODEL): present(7.0, NOW - age_s)})
    view = a_view(gauges=MappingProxyType({}), tap=TapNumbers(gauges=running), stale_after_s=180.0)
    assert one(page(view), "llm_requests_running", model="tiny") == value


@pytest.mark.parametrize(("by_tap", "marked"), [(True, True), (False, False)])
def test_a_taps_queue_is_no_example_of_the_engines(by_tap: bool, marked: bool) -> None:
    queue: Mapping[Output, Histogram] = MappingProxyType({(catalog.QUEUE_TIME.name, MODEL): HISTOGRAM})
    view = a_view(
        settings={"tap": {"listen": "127.0.0.1:9500"}},
        histograms=MappingProxyType({}) if by_tap else queue,
        tap=TapNumbers(histograms=queue) if by_tap else TapNumbers(),
    )
    assert ("trace_id" in page(view, ring=ring_with(queue_s=0.5), dialect=Dialect.OPEN_METRICS)) is marked


def test_the_page_of_a_node_with_eight_backends_takes_milliseconds() -> None:
    bounds = (*[i / 10 for i in range(1, 25)], math.inf)
    wide = Histogram(bounds, tuple(float(i) for i in range(25)), 1.0)
    names = [metric.name for metric in catalog.CATALOG if metric.kind is catalog.Kind.HISTOGRAM]
    views = [
        a_view(settings={"name": f"b{n}"}, histograms=MappingProxyType({(name, MODEL): wide for name in names})) for n in range(8)
    ]
    writer = MetricsPage(RequestRing())
    times = []
    for _ in range(5):
        started = time.perf_counter()
        writer.render(views, gpu_snapshot(), NOW, Dialect.OPEN_METRICS)
        times.append(time.perf_counter() - started)
    assert min(times) < 0.05, "measured 4 ms on a quiet machine"


def test_a_status_that_is_no_value_never_becomes_a_line() -> None:
    for status in (Status.ABSENT, Status.INVALID, Status.STALE):
        reading: Reading[float] = Reading(status, 7.0, NOW)
        assert (
            one(page(a_view(gauges=MappingProxyType({(catalog.RUNNING.name, MODEL): reading}))), "llm_requests_running") is None
        )


def test_rendering_does_not_need_an_event_loop() -> None:
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
    assert page()
