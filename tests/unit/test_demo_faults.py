"""Requests for a fault: what is understood, what is refused and how the refusal reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_demo.faults import (
    FLAP_BAD_S,
    FLAP_GOOD_S,
    OOM_FLOOR_RATIO,
    OOM_SWELL_RATIO,
    THROTTLE_FALL_S,
    THROTTLE_HEAT_S,
    Fault,
    FaultError,
    FaultKind,
    flap_phase,
    oom_reserved_ratio,
    parse_fault,
    throttled_clock_ratio,
)


@pytest.mark.parametrize("kind", list(FaultKind))
def test_every_simulated_fault_is_read_with_its_defaults(kind: FaultKind) -> None:
    engine, fault = parse_fault({"engine": "sim-b", "fault": str(kind)})
    assert engine == "sim-b"
    assert fault == Fault(kind, fault.duration_s, 5.0, 0.6)
    assert fault.duration_s > 0


def test_parameters_are_taken_over() -> None:
    document = {"engine": "sim-a", "fault": "slow", "duration_s": 12, "factor": 3.5, "ratio": 0.25}
    assert parse_fault(document) == ("sim-a", Fault(FaultKind.SLOW, 12.0, 3.5, 0.25))


def test_the_faults_are_those_of_the_public_contract() -> None:
    assert set(FaultKind) == {"hang", "slow", "oom", "errors", "restart", "flap", "throttle", "blind"}


def test_an_unknown_fault_is_refused_with_what_there_is() -> None:
    with pytest.raises(FaultError, match=r"fire.*hang, slow, oom, errors, restart, flap, throttle, blind"):
        parse_fault({"engine": "sim-a", "fault": "fire"})


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "JSON object"),
        ({"fault": "hang"}, "engine"),
        ({"engine": "sim-a"}, "None.*unknown"),
        ({"engine": "sim-a", "fault": "explode"}, "explode.*unknown"),
        ({"engine": "sim-a", "fault": ["hang"]}, "unknown"),
        ({"engine": "sim-a", "fault": "hang", "seconds": 3}, "unknown key 'seconds'"),
        ({"engine": "sim-a", "fault": "hang", "duration_s": 0}, "duration_s: 0 is not"),
        ({"engine": "sim-a", "fault": "hang", "duration_s": "20"}, "duration_s"),
        ({"engine": "sim-a", "fault": "hang", "duration_s": True}, "duration_s"),
        ({"engine": "sim-a", "fault": "hang", "duration_s": float("nan")}, "duration_s"),
        ({"engine": "sim-a", "fault": "slow", "factor": 0.5}, "factor"),
        ({"engine": "sim-a", "fault": "errors", "ratio": 1.5}, "ratio: 1.5 is not a number between 0 and 1"),
    ],
)
def test_a_wrong_request_is_refused_with_the_key_and_what_is_allowed(document: object, message: str) -> None:
    with pytest.raises(FaultError, match=message):
        parse_fault(document)


@given(st.floats(-10, 10_000, allow_nan=False))
def test_the_leak_never_takes_the_whole_pool_nor_less_than_nothing(elapsed_s: float) -> None:
    assert 0.0 <= oom_reserved_ratio(elapsed_s) <= OOM_FLOOR_RATIO + OOM_SWELL_RATIO < 1.0


@given(st.floats(0, 10_000))
def test_a_flap_is_bad_for_its_time_then_good_for_its_time_and_says_when_that_ends(elapsed_s: float) -> None:
    hung, left_s = flap_phase(elapsed_s)
    assert 0 < left_s <= (FLAP_BAD_S if hung else FLAP_GOOD_S)
    assert flap_phase(elapsed_s + left_s + 0.001)[0] is not hung


@pytest.mark.parametrize(
    ("elapsed_s", "ratio"),
    [(0.0, 1.0), (THROTTLE_HEAT_S, 1.0), (THROTTLE_HEAT_S + THROTTLE_FALL_S / 2, 0.6), (THROTTLE_HEAT_S + 100, 0.2)],
)
def test_an_overheating_gpu_heats_up_first_and_then_loses_its_clock(elapsed_s: float, ratio: float) -> None:
    assert throttled_clock_ratio(elapsed_s, 5.0) == pytest.approx(ratio)


@given(st.floats(-10, 1000), st.floats(1, 100))
def test_a_clock_never_rises_above_its_own_nor_falls_below_the_factor(elapsed_s: float, factor: float) -> None:
    assert 1 / factor - 1e-12 <= throttled_clock_ratio(elapsed_s, factor) <= 1.0
