"""Which commands HAProxy is sent, decided as values: played on a model of a server they lead where they should, safely."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.contract import ErrorKind
from tailkeeper_watchdog.actuators.haproxy import FORCED_DRAIN, FORCED_MAINTENANCE, MAX_UNITS, ServerRow, commands, units_for
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, KnobValue
from tests.unit.outcomes import outcome

ROWS = st.builds(
    ServerRow,
    units=st.integers(0, MAX_UNITS),
    initial_units=st.integers(0, MAX_UNITS),
    admin_bits=st.integers(0, 0x7F),
    operational=st.integers(0, 3),
)
VALUES: st.SearchStrategy[dict[Knob, KnobValue]] = st.fixed_dictionaries(
    {}, optional={Knob.WEIGHT: st.floats(0, 3), Knob.ADMISSION: st.sampled_from([SERVE, DRAIN])}
)


def play(row: ServerRow, values: dict[Knob, KnobValue]) -> tuple[list[ServerRow], CallError | None]:
    """The row after each command, as HAProxy 2.6 was seen to change it, and what ended the sequence early."""
    rows = [row]
    try:
        for command in commands("llm/a", row, values):
            what, how = command.removeprefix("set server llm/a ").split()
            last = rows[-1]
            units = int(how) if what == "weight" else last.units
            clear = last.admin_bits & ~(FORCED_DRAIN | FORCED_MAINTENANCE)
            bits = last.admin_bits if what == "weight" else clear | (FORCED_DRAIN if how == "drain" else 0)
            rows.append(ServerRow(units, last.initial_units, bits, last.operational))
    except CallError as error:
        return rows, error
    return rows, None


@given(ROWS, VALUES)
def test_the_commands_lead_to_what_was_asked_or_to_a_refusal(row: ServerRow, values: dict[Knob, KnobValue]) -> None:
    rows, error = play(row, values)
    if error is not None:
        assert error.kind is ErrorKind.REFUSED
        return
    end = rows[-1].state(None).values
    assert Knob.ADMISSION not in values or end[Knob.ADMISSION] == values[Knob.ADMISSION]
    if Knob.WEIGHT in values:
        assert rows[-1].units == units_for(values[Knob.WEIGHT], row.initial_units)


@given(ROWS, VALUES)
def test_traffic_is_never_let_in_before_the_weight_is_set(row: ServerRow, values: dict[Knob, KnobValue]) -> None:
    rows, _ = play(row, values)
    for before, after in itertools.pairwise(rows):
        if before.drained and not after.drained:
            assert after.units == rows[-1].units
            assert after is rows[-1]


@given(ROWS, VALUES)
def test_a_maintenance_of_somebody_else_outlives_everything_that_we_send(row: ServerRow, values: dict[Knob, KnobValue]) -> None:
    rows, _ = play(row, values)
    assert all(after.admin_bits & FORCED_MAINTENANCE == row.admin_bits & FORCED_MAINTENANCE for after in rows)


@given(ROWS, VALUES)
def test_writing_again_sends_nothing(row: ServerRow, values: dict[Knob, KnobValue]) -> None:
    rows, error = play(row, values)
    if error is None:
        assert list(commands("llm/a", rows[-1], values)) == []


@given(ROWS, VALUES)
def test_an_asked_drain_comes_first_whatever_becomes_of_the_weight(row: ServerRow, values: dict[Knob, KnobValue]) -> None:
    in_maintenance = row.admin_bits & FORCED_MAINTENANCE
    if values.get(Knob.ADMISSION) == DRAIN and not row.drained and not in_maintenance:
        rows, _ = play(row, values)
        assert rows[1].drained


@given(st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False), st.integers(0, MAX_UNITS))
def test_a_positive_share_never_becomes_zero_and_is_never_far_off(share: float, initial: int) -> None:
    units = outcome(lambda: units_for(share, initial))
    if isinstance(units, CallError):
        assert units.kind is ErrorKind.REFUSED
        return
    assert 1 <= units <= MAX_UNITS
    assert abs(units / initial - share) <= max(0.1 * share, 1 / 100) + 1e-9


@given(st.integers(0, MAX_UNITS), st.integers(1, MAX_UNITS))
def test_any_weight_that_was_read_can_be_written_back_exactly(units: int, initial: int) -> None:
    assert units_for(units / initial, initial) == units


@pytest.mark.parametrize("share", [math.nan, math.inf, -math.inf, -1e-9, "0.5", True])
def test_what_is_no_share_is_refused(share: KnobValue) -> None:
    with pytest.raises(CallError) as caught:
        units_for(share, 100)
    assert caught.value.kind is ErrorKind.REFUSED
