"""The two policies that set weights: by room in the KV cache, and by measured token speed."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, KnobValue
from tailkeeper_watchdog.policies import context_length_routing, token_rate_weighting
from tailkeeper_watchdog.policies.token_rate_weighting import composite_load, latency_penalty
from tailkeeper_watchdog.policy_params import ContextLengthRoutingParams, TokenRateWeightingParams
from tailkeeper_watchdog.window import Window
from tests.unit.situations import Run, backend, seen, situation, window


def routing(**params: float) -> Run:
    return Run(context_length_routing.POLICY, ContextLengthRoutingParams(**params))


def weighting(**params: object) -> Run:
    return Run(token_rate_weighting.POLICY, TokenRateWeightingParams.model_validate(params))


# Room in the KV cache


@pytest.mark.parametrize(("usage", "weight"), [(0.82, 0.18), (0.45, 0.55), (0.12, 0.88), (0.97, 0.1), (1.0, 0.1), (1.7, 0.1)])
def test_the_weight_is_the_room_that_is_left_and_never_under_the_floor(usage: float, weight: float) -> None:
    assert routing().tick(situation(seen("a", kv_usage=usage))) == {("a", Knob.WEIGHT): pytest.approx(weight)}


def test_a_nearly_empty_cache_turns_nothing() -> None:
    assert routing().tick(situation(seen("a", kv_usage=0.04))) == {}


def test_who_does_not_tell_its_usage_gets_no_more_than_the_median_of_those_that_do() -> None:
    wants = routing().tick(situation(seen("a", kv_usage=0.8), seen("b", kv_usage=0.4), seen("c", kv_usage=0.6), seen("d")))

    assert wants["d", Knob.WEIGHT] == pytest.approx(0.4)


def test_where_nobody_tells_nobody_is_turned() -> None:
    assert routing().tick(situation(seen("a"), seen("b"))) == {}


def test_a_backend_of_which_nothing_fresh_is_heard_is_left_alone() -> None:
    wants = routing().tick(
        situation(seen("a", kv_usage=0.8, age_s=9.0), seen("b", State.UNKNOWN, kv_usage=0.9), seen("c", kv_usage=0.5))
    )

    assert set(wants) == {("c", Knob.WEIGHT)}


def test_the_usage_is_published_where_a_gateway_keeps_notes() -> None:
    wants = routing().tick(situation(seen("a", kv_usage=0.82), seen("b", kv_usage=0.5), knobs={("a", Knob.ANNOTATION): ""}))

    assert wants["a", Knob.ANNOTATION] == "kv_usage_ratio=0.82"
    assert ("b", Knob.ANNOTATION) not in wants


def test_a_usage_that_hardly_moves_is_published_already() -> None:
    run, knobs = routing(), {("a", Knob.ANNOTATION): ""}
    told = [run.tick(situation(seen("a", kv_usage=u), knobs=knobs))["a", Knob.ANNOTATION] for u in (0.50, 0.54, 0.55, 0.51)]

    assert told == [f"kv_usage_ratio={u}" for u in ("0.50", "0.50", "0.55", "0.55")]


# Token speed


def busy(itl_s: float, tokens: float = 5_000.0) -> Window:
    return window(itl={itl_s: tokens}, generated_tokens=tokens)


@pytest.mark.parametrize(("p99_s", "factor"), [(0.060, 1.0), (0.080, 1.0), (0.090, 0.9512), (0.180, 0.6065)])
def test_ten_milliseconds_over_the_baseline_cost_five_percent(p99_s: float, factor: float) -> None:
    assert latency_penalty(p99_s, 0.080) == pytest.approx(factor, abs=1e-4)


@pytest.mark.parametrize(
    ("parts", "load"),
    [
        ((1.0, 1.0, 1.0), 1.0),
        ((0.5, 0.2, 0.4), 0.4 * 0.5 + 0.35 * 0.2 + 0.25 * 0.4),
        ((0.5, None, None), 0.2),
        ((None, None, None), 0.0),
        ((7.0, -1.0, None), 0.4),
    ],
)
def test_the_composite_load_counts_what_is_known_and_only_that(
    parts: tuple[float | None, float | None, float | None], load: float
) -> None:
    assert composite_load(*parts) == pytest.approx(load)


def test_a_backend_at_half_the_speed_comes_to_half_the_weight_by_steps() -> None:
    run = weighting()
    weights = []
    for second in range(0, 20, 5):
        at = situation(
            seen("a", running=4), seen("b", running=4), now=1_000.0 + second, windows={"a": busy(0.01), "b": busy(0.02)}
        )
        weights.append(run.tick(at).get(("b", Knob.WEIGHT)))

    assert weights == [pytest.approx(w) for w in (0.8, 0.6, 0.5, 0.5)]


def test_between_two_corrections_the_weight_stays() -> None:
    run = weighting()
    windows = {"a": busy(0.01), "b": busy(0.02)}
    first = run.tick(situation(seen("a"), seen("b"), now=1_000.0, windows=windows))
    assert run.tick(situation(seen("a"), seen("b"), now=1_004.5, windows=windows)) == first


def test_until_a_correction_is_due_a_wish_stands_whatever_the_window_says_and_ends_with_it() -> None:
    run = weighting()
    first = run.tick(situation(seen("a"), seen("b"), now=1_000.0, windows={"a": busy(0.01), "b": busy(0.02)}))
    assert run.tick(situation(seen("a"), seen("b"), now=1_002.0)) == first
    assert run.tick(situation(seen("a"), seen("b"), now=1_005.0)) == {}


def test_models_and_precisions_are_not_compared_with_each_other() -> None:
    fleet = (backend("a"), backend("b", model="other"), backend("c", quantization="int4"))
    windows = {"a": busy(0.01), "b": busy(0.08), "c": busy(0.08)}

    assert weighting().tick(situation(*(seen(n) for n in "abc"), backends=fleet, windows=windows)) == {}


def test_hints_say_how_much_traffic_a_model_of_a_mixed_pool_is_meant_to_have() -> None:
    fleet = tuple(backend(n, model="llama3-70b") for n in "ab") + tuple(
        backend(n, model="phi-3-mini", quantization="int4") for n in "cd"
    )
    hints = {"llama3-70b-fp16": 30, "phi-3-mini-int4": 10}
    run = weighting(model_weights=hints, max_step=1.0)

    wants = run.tick(situation(*(seen(n) for n in "abcd"), backends=fleet, windows={n: busy(0.01) for n in "abcd"}))

    assert wants == {(n, Knob.WEIGHT): pytest.approx(1 / 3, abs=1e-3) for n in "cd"}


@pytest.mark.parametrize("quiet", [window(), window(itl={0.02: 10}, generated_tokens=10.0), window(itl={0.02: 500})])
def test_of_too_few_tokens_no_speed_is_made(quiet: Window) -> None:
    assert weighting().tick(situation(seen("a"), seen("b"), windows={"a": busy(0.01), "b": quiet})) == {}


def test_what_is_unknown_for_a_moment_is_taken_up_where_it_was_left() -> None:
    run = weighting()
    windows = {"a": busy(0.01), "b": busy(0.02)}
    run.tick(situation(seen("a"), seen("b"), now=1_000.0, windows=windows))
    assert run.tick(situation(seen("a"), seen("b", age_s=9.0), now=1_005.0, windows=windows)) == {}
    assert run.tick(situation(seen("a"), seen("b"), now=1_010.0, windows=windows))["b", Knob.WEIGHT] == pytest.approx(0.6)


def test_nobody_gains_by_being_silent_about_its_load() -> None:
    windows = {n: busy(0.01) for n in "ab"}
    told = seen("a", vram_pressure=0.9, running=2)

    assert weighting().tick(situation(told, seen("b", running=2), windows=windows)) == {}


def test_of_two_as_fast_as_each_other_the_fuller_gets_less() -> None:
    windows = {n: busy(0.01) for n in "ab"}
    wants = weighting(max_step=1.0).tick(
        situation(seen("a", vram_pressure=0.9, running=4), seen("b", vram_pressure=0.1, running=2), windows=windows)
    )

    assert wants == {("a", Knob.WEIGHT): pytest.approx((1 - 0.36 - 0.25) / (1 - 0.04 - 0.125), abs=1e-4)}


def test_a_hint_of_nothing_is_refused() -> None:
    with pytest.raises(ValidationError, match="greater than 0"):
        TokenRateWeightingParams.model_validate({"model_weights": {"m": 0}})


def test_a_small_difference_turns_no_weight_where_that_is_asked_for() -> None:
    windows = {"a": busy(0.01), "b": busy(0.013), "c": busy(0.03)}
    at = situation(*(seen(n) for n in "abc"), windows=windows)
    assert set(weighting().tick(at)) == {("b", Knob.WEIGHT), ("c", Knob.WEIGHT)}
    assert set(weighting(even_within_ratio=0.4).tick(at)) == {("c", Knob.WEIGHT)}


def test_a_drained_backend_is_not_compared_until_the_window_has_nothing_of_the_drain_in_it() -> None:
    run = weighting(max_step=1.0)

    def tick(now: float, admission: str) -> dict[tuple[str, Knob], KnobValue]:
        at = {"a": busy(0.05), "b": busy(0.01), "c": busy(0.01)}
        knobs: dict[tuple[str, Knob], KnobValue] = {("a", Knob.ADMISSION): admission}
        return run.tick(situation(*(seen(n) for n in "abc"), now=now, windows=at, knobs=knobs))

    assert tick(1_000.0, DRAIN) == {}
    assert tick(1_030.0, SERVE) == {}, "half of its minute is the drain's"
    assert tick(1_061.0, SERVE) == {("a", Knob.WEIGHT): pytest.approx(0.2)}
