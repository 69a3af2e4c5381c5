"""A change has one name, wherever people read of it."""

from __future__ import annotations

from math import inf

import pytest

from tailkeeper_watchdog.knob_words import done, setting, shown
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, KnobValue


@pytest.mark.parametrize(
    ("value", "said"), [(128.0, "128"), (0.0, "0"), (0.123456, "0.1235"), (123_456.0, "123456"), ("", "none"), (inf, "inf")]
)
def test_a_value_is_told_without_powers_of_ten(value: KnobValue, said: str) -> None:
    assert shown(value) == said


@pytest.mark.parametrize(
    ("knob", "value", "normal", "wanted", "in_force"),
    [
        (Knob.ADMISSION, DRAIN, SERVE, "admission drain", "drained"),
        (Knob.ADMISSION, SERVE, SERVE, "admission serve", "admission serve"),
        (Knob.WEIGHT, 0.25, 1.0, "weight 25%", "weight 25%"),
        (Knob.WEIGHT, 25.0, 100.0, "weight 25%", "weight 25%"),
        (Knob.WEIGHT, 0.25, 0.0, "weight 0.25", "weight 0.25"),
        (Knob.BATCH_WINDOW_S, 0.125, 0.05, "batch_window_s 0.125", "batch_window_s 0.125"),
        (Knob.TAINT, "", "", "taint none", "taint none"),
    ],
)
def test_a_change_has_one_name(knob: Knob, value: KnobValue, normal: KnobValue, wanted: str, in_force: str) -> None:
    assert (setting(knob, value, normal), done(knob, value, normal)) == (wanted, in_force)
