"""What stands at Consul, read and changed: whatever it answers, and whatever is to be written."""

from __future__ import annotations

import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.consul_keys import OURS, Entry, edits, parse_entries, state_of
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob

FIELDS = ("Key", "Value", "Flags", "ModifyIndex", "Session")
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.just("service/a/weight")
rows = st.lists(scalars | st.dictionaries(st.sampled_from(FIELDS), scalars, max_size=5), max_size=4)
texts = st.sampled_from(["0.18", "1", "drain", "serve", "nan", "-1", "", "x"]) | st.text(max_size=6)
keys = st.sampled_from(["weight", "admission", "kv_usage_ratio", "owner"])
entries = st.dictionaries(
    keys, st.builds(Entry, texts, st.integers(1, 99), st.sampled_from([0, OURS]), st.sampled_from(["", "s"]))
)


@given(rows | scalars)
def test_no_json_makes_reading_fail_otherwise(answer: object) -> None:
    with contextlib.suppress(CallError):
        state_of(parse_entries(answer, "a"))


@given(entries)
def test_what_is_read_is_a_value_that_could_be_written_or_it_is_left_out_with_a_doubt(there: dict[str, Entry]) -> None:
    state = state_of(there)
    weight, admission = state.values.get(Knob.WEIGHT), state.values.get(Knob.ADMISSION)
    assert admission in (SERVE, DRAIN, None)
    assert weight is None or 0 <= float(weight) <= 1e9
    assert state.doubt or None not in (weight, admission)


@given(entries, st.floats(0, 10), st.sampled_from([SERVE, DRAIN]))
def test_traffic_is_never_let_in_before_the_weight_is_set_nor_held_by_it(
    there: dict[str, Entry], weight: float, admission: str
) -> None:
    planned = list(edits({Knob.WEIGHT: weight, Knob.ADMISSION: admission}, there))
    assert [edit.key for edit in planned] == (["admission", "weight"] if admission == DRAIN else ["weight", "admission"])
    assert planned[-1 if admission == SERVE else 0].text == (None if admission == SERVE else DRAIN)


@given(entries, st.text(max_size=20))
def test_an_annotation_never_touches_a_key_that_is_not_ours(there: dict[str, Entry], note: str) -> None:
    with contextlib.suppress(CallError):
        for edit in edits({Knob.ANNOTATION: note}, there):
            assert edit.key not in there or there[edit.key].ours
            assert edit.key not in ("weight", "admission")


def test_a_row_as_the_documentation_shows_it_is_read() -> None:
    row = {"LockIndex": 1, "Key": "service/a/weight", "Flags": OURS, "Value": base64.b64encode(b"0.18").decode()}
    row |= {"Session": "adf4238a", "CreateIndex": 100, "ModifyIndex": 200}
    assert parse_entries([row], "a") == {"weight": Entry("0.18", 200, OURS, "adf4238a")}
    assert parse_entries([row | {"Value": None, "Flags": 0, "Session": None}], "a") == {"weight": Entry("", 200, 0, "")}


@pytest.mark.parametrize("share", [0.18, 1 / 3, 10.0, 123_456_789.125, 1e-9])
def test_a_weight_is_written_as_the_very_number_that_it_is(share: float) -> None:
    (edit,) = edits({Knob.WEIGHT: share}, {})
    assert edit.text is not None
    assert float(edit.text) == share
