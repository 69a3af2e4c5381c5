"""Requests for a fault: what is understood, what is refused and how the refusal reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_demo.faults import (
    OOM_FLOOR_RATIO,
    OOM_SWELL_RATIO,
    PLANNED_FAULTS,
    Fault,
    FaultError,
    FaultKind,
    oom_reserved_ratio,
    parse_fault,
    parse_kind,
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


@pytest.mark.parametrize("name", PLANNED_FAULTS)
def test_a_fault_that_is_not_simulated_yet_is_refused_with_what_there_is(name: str) -> None:
    with pytest.raises(FaultError, match=f"{name}.*not simulated yet.*hang, slow, oom, errors, restart"):
        parse_kind(name)


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
