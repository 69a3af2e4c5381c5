"""HScore: figures from the contract, and properties that must always hold."""

from __future__ import annotations

from math import exp
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Quantile, present
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.model import BackendObservation, HealthScore, Slo
from tailkeeper_watchdog.scoring.hscore import cpu_goodness, error_goodness, latency_goodness, score
from tailkeeper_watchdog.window import Window

WEIGHTS = {"latency": 0.35, "error_rate": 0.40, "cpu_usage": 0.15, "uptime": 0.10}
SLO = Slo(ttft_p99_s=1.2)


class Measured(Window):
    """A window whose figures are given instead of computed from samples."""

    __slots__ = ("_errors", "_p95", "_requests")
    _errors: float | None
    _p95: Quantile | None
    _requests: int

    def __init__(self, p95: Quantile | None, errors: float | None, uptime: float | None, requests: int) -> None:
        super().__init__(uptime_ratio=uptime)
        object.__setattr__(self, "_p95", p95)
        object.__setattr__(self, "_errors", errors)
        object.__setattr__(self, "_requests", requests)

    def quantile(self, signal: str, q: float) -> Quantile | None:
        return self._p95

    @property
    def finished(self) -> tuple[float, float] | None:
        return None if self._errors is None else (self._requests, self._errors * self._requests)


def scored(
    p95_s: float | None = None,
    errors: float | None = None,
    cpu: float | None = None,
    uptime: float | None = None,
    state: State = State.SERVING,
    samples: int = 100,
    saturated: bool = False,
) -> HealthScore:
    readings = {} if cpu is None else {catalog.CPU_USAGE.name: present(cpu, 0.0)}
    p95 = None if p95_s is None else Quantile(p95_s, samples, saturated)
    window = Measured(p95, errors, uptime, samples)
    return score(BackendObservation("a", state, 0.0, None, readings), window, WEIGHTS, SLO, "a")


@pytest.mark.parametrize(
    ("p95_s", "goodness"), [(0.0, 1.0), (1.2, 1.0), (2.4, 0.5), (12.0, 0.1)], ids=["idle", "at the SLO", "twice", "ten times"]
)
def test_latency_goodness_is_slo_over_p95(p95_s: float, goodness: float) -> None:
    assert latency_goodness(p95_s, 1.2) == pytest.approx(goodness)


@pytest.mark.parametrize(("ratio", "goodness"), [(0.0, 1.0), (0.01, 0.5 * (1 + exp(-4))), (1.0, 0.0)])
def test_error_goodness_is_the_contracts_sigmoid(ratio: float, goodness: float) -> None:
    assert error_goodness(ratio) == pytest.approx(goodness, abs=1e-6)


@pytest.mark.parametrize(("usage", "goodness"), [(0.5, 1.0), (0.85, 1.0), (0.90, exp(-1)), (1.0, exp(-3))])
def test_cpu_costs_nothing_up_to_85_percent_and_then_exponentially(usage: float, goodness: float) -> None:
    assert cpu_goodness(usage) == pytest.approx(goodness)


def test_a_negative_cpu_usage_is_no_measurement() -> None:
    assert "cpu_usage" in scored(cpu=-0.2, uptime=1.0).unknown_factors


def test_a_perfect_backend_scores_one_and_nothing_dominates() -> None:
    result = scored(0.1, 0.0, 0.2, 1.0)
    assert result.hscore == pytest.approx(1.0)
    assert result.dominant_factor is None


def test_the_dominant_factor_is_the_one_that_costs_most() -> None:
    result = scored(2.4, 0.5, 0.2, 1.0)
    assert result.dominant_factor == "error_rate"
    assert result.hscore == pytest.approx(0.35 * 0.5 + 0.15 + 0.10, abs=1e-3)


def test_unknown_factors_are_named_and_their_weight_is_shared() -> None:
    result = scored(p95_s=2.4)
    assert result.hscore == pytest.approx(0.5)
    assert set(result.unknown_factors) == {"error_rate", "cpu_usage", "uptime"}


def test_all_unknown_is_none_and_not_zero() -> None:
    assert scored().hscore is None
    assert score(None, None, WEIGHTS, SLO, "a").hscore is None


@pytest.mark.parametrize("state", [State.HUNG, State.DOWN])
def test_a_dead_backend_is_zero_whatever_the_sum(state: State) -> None:
    result = scored(0.1, 0.0, 0.1, 1.0, state)
    assert (result.hscore, result.dominant_factor) == (0.0, state.value)


@pytest.mark.parametrize(
    ("value_s", "goodness"), [(0.5, None), (1.2, None), (2.4, 0.5)], ids=["below the SLO", "at the SLO", "above the SLO"]
)
def test_a_p95_that_is_at_least_so_much_is_known_only_above_the_slo(value_s: float, goodness: float | None) -> None:
    """The top bucket says no more: below the SLO everything may be well, or nothing."""
    result = scored(p95_s=value_s, saturated=True)
    assert result.hscore == (None if goodness is None else pytest.approx(goodness))
    assert ("latency" in result.unknown_factors) == (goodness is None)


@pytest.mark.parametrize(
    ("known", "confidence"),
    [
        ({"p95_s": 0.1, "errors": 0.0, "cpu": 0.1, "uptime": 1.0}, 1.0),
        ({"p95_s": 0.1, "errors": 0.0, "uptime": 1.0}, 0.85),
        ({"p95_s": 0.1, "errors": 0.0, "cpu": 0.1, "uptime": 1.0, "samples": 10}, 0.35 * 0.5 + 0.40 * 0.1 + 0.25),
        ({"p95_s": 0.1, "errors": 0.0, "samples": 1}, 0.35 * 0.05 + 0.40 * 0.01),
        ({"cpu": 0.1}, 0.15),
        ({"uptime": 1.0}, 0.10),
        ({}, 0.0),
        ({"state": State.HUNG}, 1.0),
    ],
    ids=["all", "no CPU", "ten requests", "one request", "CPU alone", "uptime alone", "nothing", "dead"],
)
def test_confidence_is_the_weight_that_is_known_less_where_samples_are_few(known: dict[str, Any], confidence: float) -> None:
    assert scored(**known).confidence == pytest.approx(confidence)


def test_without_evidence_there_is_no_confidence() -> None:
    assert score(None, None, WEIGHTS, SLO, "a").confidence == 0.0


ratio = st.none() | st.floats(0, 1)


@given(st.none() | st.floats(0, 1e6), ratio, ratio, ratio, st.integers(0, 1_000))
def test_a_score_lies_between_zero_and_one_and_its_weights_sum_to_one(
    p95_s: float | None, errors: float | None, cpu: float | None, uptime: float | None, samples: int
) -> None:
    result = scored(p95_s, errors, cpu, uptime, samples=samples)
    assert 0.0 <= result.confidence <= 1.0
    if result.hscore is not None:
        assert 0.0 <= result.hscore <= 1.0
        assert sum(f.weight for f in result.factors) == pytest.approx(1.0)


@given(st.floats(0, 1), st.floats(0, 1))
def test_more_errors_never_improve_a_score(a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert (scored(0.5, low).hscore or 0.0) >= (scored(0.5, high).hscore or 0.0)
