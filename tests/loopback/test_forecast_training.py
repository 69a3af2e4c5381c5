"""A real training: scikit-learn in a process of its own, with its bounds."""

from __future__ import annotations

import pytest

from tailkeeper_watchdog.forecast.features import Rows
from tailkeeper_watchdog.forecast.linear import read
from tailkeeper_watchdog.forecast.worker import train
from tests.unit.test_forecast import BACKENDS, insights, latency, situation

ROWS = (Rows(tuple((float(n % 7), float(n)) for n in range(100)), tuple(2.0 * (n % 7) + 1 for n in range(100))),)


async def test_a_training_finds_the_line_in_a_process_of_its_own() -> None:
    (document,) = await train(ROWS)
    model = read(document, 2)
    assert model is not None
    assert model.intercept == pytest.approx(1, abs=0.1)
    assert model.coefficients == (pytest.approx(2, abs=0.05), pytest.approx(0, abs=0.01))  # type: ignore[comparison-overlap]


async def test_what_was_learned_from_the_ticks_forecasts_the_next_ones() -> None:
    made = insights(train)
    await made.train()
    assert made.forecast.training_error is None
    made.forecast.note(situation(101, latency(101)))
    assert made.forecast.view(BACKENDS)[0].predicted_s == pytest.approx(latency(103), rel=0.02)
