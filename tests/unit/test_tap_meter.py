"""What the tap's finished requests become: which outcome counts where, under which labels, and within which bounds."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailkeeper_exporter import catalog
from tailkeeper_exporter.catalog import Metric
from tailkeeper_exporter.readings import Histogram
from tailkeeper_exporter.tap.exchange import Exchange
from tailkeeper_exporter.tap.meter import Meter, asks_for_work
from tailkeeper_exporter.tap.ownership import TAP_HISTOGRAMS
from tests.unit.tap_exchanges import exchange, gaps

STAGES = {catalog.TTFT, catalog.QUEUE_TIME, catalog.PREFILL_TIME, catalog.ITL}
ALL = {*STAGES, catalog.LATENCY, catalog.DECODE_TIME}


def metered(*exchanges: Exchange, model: str = "configured", canary: str = "v1") -> Meter:
    meter = Meter(model, canary)
    for finished in exchanges:
        meter.take(finished)
    return meter


def histogram(meter: Meter, metric: Metric, model: str = "configured") -> Histogram:
    return meter.histograms()[(metric.name, (("model", model),))]


def requests(meter: Meter, outcome: str = "ok", canary: str = "v1", model: str = "configured") -> float | None:
    labels = (("canary_revision", canary), ("model", model), ("outcome", outcome))
    return meter.counters().get((catalog.REQUESTS.name, labels))


def observed(meter: Meter) -> set[Metric]:
    return {metric for metric in TAP_HISTOGRAMS if histogram(meter, metric).count > 0}


def test_everything_is_there_at_zero_before_the_first_request() -> None:
    meter = metered()
    assert [requests(meter, outcome) for outcome in catalog.OUTCOMES] == [0.0] * 4
    assert {name for name, _ in meter.histograms()} == {metric.name for metric in TAP_HISTOGRAMS}
    assert all(h.count == 0 and h.bounds[-1] == math.inf for h in meter.histograms().values())
    assert meter.counters()[(catalog.GENERATED_TOKENS.name, (("model", "configured"),))] == 0.0


def test_a_good_stream_counts_everywhere_with_its_own_times() -> None:
    meter = metered(exchange())
    assert requests(meter) == 1.0
    assert meter.counters()[(catalog.PROMPT_TOKENS.name, (("model", "configured"),))] == 10.0
    assert meter.counters()[(catalog.GENERATED_TOKENS.name, (("model", "configured"),))] == 3.0
    expected = {
        catalog.LATENCY: (1, 0.9),
        catalog.TTFT: (1, 0.3),
        catalog.QUEUE_TIME: (1, 0.05),
        catalog.PREFILL_TIME: (1, 0.25),
        catalog.DECODE_TIME: (1, 0.5),
        catalog.ITL: (2, 0.5),
    }
    for metric, (count, total) in expected.items():
        found = histogram(meter, metric)
        assert found.count == count, metric.name
        assert found.sum == pytest.approx(total), metric.name
        assert found.bounds == (*metric.buckets, math.inf)


def test_a_value_on_a_bound_belongs_to_that_bounds_bucket_as_prometheus_has_it() -> None:
    found = histogram(metered(exchange(end_s=0.64)), catalog.LATENCY)
    assert dict(zip(found.bounds, found.counts, strict=True))[0.64] == 1.0
    assert dict(zip(found.bounds, found.counts, strict=True))[0.32] == 0.0


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"outcome": "ok"}, ALL),
        ({"outcome": "aborted"}, STAGES),
        ({"outcome": "aborted", "first_token_s": None, "last_token_s": None, "gaps": ()}, set()),
        ({"outcome": "error", "status": 500}, set()),
        ({"outcome": "error", "status": 500, "end_s": 0.001, "first_token_s": None, "gaps": ()}, set()),
        ({"outcome": "rejected", "status": 429, "end_s": 0.001, "sent_s": None, "first_token_s": None, "gaps": ()}, set()),
        ({"cache_hit": True, "sent_s": None, "first_token_s": 0.0001}, set()),
        ({"streaming": False, "first_token_s": None, "last_token_s": None, "gaps": ()}, {catalog.LATENCY, catalog.QUEUE_TIME}),
        # Whoever calls the whole answer its first token would turn latencies into times to the first token.
        ({"streaming": False, "first_token_s": 0.9, "last_token_s": 0.9, "gaps": ()}, {catalog.LATENCY, catalog.QUEUE_TIME}),
    ],
)
def test_each_outcome_enters_only_the_histograms_of_which_it_knows(changes: dict[str, Any], expected: set[Metric]) -> None:
    meter = metered(exchange(**changes))
    assert observed(meter) == expected
    assert requests(meter, changes.get("outcome", "ok")) == 1.0


def test_a_failed_request_never_makes_the_quantiles_better() -> None:
    slow = [exchange(end_s=8.0, first_token_s=4.0, last_token_s=7.9) for _ in range(3)]
    failed = [exchange(outcome=o, end_s=0.002, first_token_s=None, gaps=()) for o in ("error", "rejected", "aborted")] * 50
    assert metered(*slow, *failed).histograms() == metered(*slow).histograms()


def test_tokens_count_whatever_became_of_the_request_but_not_from_the_taps_own_cache() -> None:
    meter = metered(exchange(outcome="aborted"), exchange(outcome="error"), exchange(cache_hit=True))
    assert meter.counters()[(catalog.GENERATED_TOKENS.name, (("model", "configured"),))] == 6.0


def test_tokens_that_no_answer_tells_are_unknown_and_not_0() -> None:
    meter = Meter("m", "")
    key = (catalog.PROMPT_TOKENS.name, (("model", "m"),))
    assert meter.counters()[key] == 0.0, "nothing was asked yet"
    meter.take(exchange(prompt_tokens=None, generated_tokens=None))
    assert key not in meter.counters()
    meter.take(exchange(prompt_tokens=7, generated_tokens=2))
    meter.take(exchange(prompt_tokens=None, generated_tokens=None))
    assert meter.counters()[key] == 7.0, "what has been told was made"


@pytest.mark.parametrize("value", [-1.0, catalog.MAX_REQUEST_S * 2, math.nan, math.inf])
def test_a_time_that_cannot_be_is_left_out_and_the_request_is_counted(value: float) -> None:
    meter = metered(exchange(end_s=value, sent_s=value, first_token_s=value, last_token_s=value, gap_sum_s=value))
    assert observed(meter) == set()
    assert requests(meter) == 1.0


def test_gaps_in_other_buckets_than_ours_are_not_taken() -> None:
    assert histogram(metered(exchange(gaps=(1, 2, 3))), catalog.ITL).count == 0


def test_the_models_name_is_the_pages_else_the_configured_one_and_never_the_clients() -> None:
    meter = metered(exchange(model="invented"))
    assert requests(meter) == 1.0
    meter.name_models(("real",))
    meter.take(exchange(model="invented"))
    assert requests(meter, model="real") == 1.0
    meter.name_models(("real", "lora"))
    meter.take(exchange(model="lora"))
    meter.take(exchange(model="invented"))
    assert (requests(meter, model="lora"), requests(meter)) == (1.0, 2.0)
    assert {dict(labels)["model"] for _, labels in meter.counters()} == {"configured", "real", "lora"}


def test_a_backend_without_any_models_name_has_none() -> None:
    assert all("model" not in dict(labels) for _, labels in metered(exchange(model="x"), model="").counters())


def test_a_requests_own_canary_revision_beats_the_configured_one() -> None:
    meter = metered(exchange(), exchange(canary_revision="v2"))
    assert (requests(meter, canary="v1"), requests(meter, canary="v2")) == (1.0, 1.0)
    assert requests(meter, outcome="error", canary="v2") == 0.0, "so that its first failure is an increase"


def test_a_client_that_sends_a_new_name_each_time_costs_no_memory() -> None:
    meter = metered(*(exchange(canary_revision=f"c{n}", model=f"m{n}") for n in range(1000)))
    counted = {labels: v for (name, labels), v in meter.counters().items() if name == catalog.REQUESTS.name}
    assert len({dict(labels)["canary_revision"] for labels in counted}) == catalog.CANARY.bound
    assert sum(counted.values()) == 1000.0
    assert requests(meter, canary="other") == 1000.0 - (catalog.CANARY.bound - 2)


def test_a_page_with_other_models_each_time_costs_no_memory() -> None:
    meter = metered()
    for n in range(1000):
        meter.name_models((f"m{n}",))
        meter.take(exchange())
    counted = {labels: v for (name, labels), v in meter.counters().items() if name == catalog.PROMPT_TOKENS.name}
    assert len(counted) <= catalog.MODEL.bound + 1
    assert sum(counted.values()) == 10_000.0


@pytest.mark.parametrize(("method", "expected"), [("POST", True), ("post", True), ("GET", False), ("HEAD", False), ("", False)])
def test_only_a_post_asks_for_work(method: str, expected: bool) -> None:
    assert asks_for_work(exchange(method=method)) is expected


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/apply-template", "/v1/messages/count_tokens", "/tokenize/"])
def test_what_the_front_door_answers_alone_is_no_work(path: str) -> None:
    assert not asks_for_work(exchange(method="POST", path=path))
    assert asks_for_work(exchange(method="POST", path="/v1/chat/completions"))


EXCHANGES = st.builds(
    exchange,
    outcome=st.sampled_from([*catalog.OUTCOMES, "unheard of"]),
    end_s=st.floats(),
    sent_s=st.none() | st.floats(),
    first_token_s=st.none() | st.floats(),
    last_token_s=st.none() | st.floats(),
    streaming=st.none() | st.booleans(),
    cache_hit=st.booleans(),
    canary_revision=st.none() | st.text(max_size=200),
    prompt_tokens=st.none() | st.integers(-5, 10_000),
    generated_tokens=st.none() | st.integers(-5, 10_000),
)


@settings(deadline=None)
@given(st.lists(st.tuples(EXCHANGES, st.lists(st.text(max_size=3), max_size=3)), max_size=20))
def test_whatever_comes_nothing_falls_and_every_request_is_counted_once(drawn: list[tuple[Exchange, list[str]]]) -> None:
    meter = metered()
    seen: dict[Any, float] = {}
    for number, (finished, models) in enumerate(drawn, 1):
        meter.name_models(tuple(models))
        meter.take(finished)
        counters = meter.counters()
        assert sum(v for (name, _), v in counters.items() if name == catalog.REQUESTS.name) == number
        assert all(counters.get(output, 0.0) >= value for output, value in seen.items() if value > 0)
        seen = counters
    for found in meter.histograms().values():
        assert list(found.counts) == sorted(found.counts)
        assert math.isfinite(found.sum)
        assert found.sum >= 0


def test_the_sum_of_gaps_agrees_with_their_buckets() -> None:
    found = histogram(metered(exchange(**gaps(0.0005, 0.02, 20.0))), catalog.ITL)
    assert (found.counts[0], found.count) == (1.0, 3.0)
    assert found.sum == pytest.approx(20.0205)
