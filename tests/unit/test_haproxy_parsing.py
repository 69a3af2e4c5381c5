"""HAProxy's words: a real answer of 2.6.12, and whatever else may come. A parser gives a value or a CallError, nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailkeeper_watchdog.actuators.calls import CallError, excerpt
from tailkeeper_watchdog.actuators.contract import ErrorKind, ServerState
from tailkeeper_watchdog.actuators.haproxy import (
    ServerRow,
    check_success,
    is_server_name,
    parse_read,
    parse_servers_state,
    parse_sessions,
)
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob
from tests.unit.outcomes import outcome

REAL = (Path(__file__).parents[1] / "fixtures/gateways/haproxy-2.6.12-servers-state-and-stat.txt").read_text()

SEEN = {
    # server: (weight as a share, admission, in service)
    "llm/a": (0.25, SERVE, True),
    "llm/b": (1.0, DRAIN, True),
    "llm/dead": (1.0, SERVE, False),
    "llm/dis": (1.0, SERVE, False),
    "llm/w1": (1.0, SERVE, True),
    "llm/w7": (0.0, SERVE, False),
    "llm/w0": (None, SERVE, False),
    "llm/w256": (1.0, SERVE, False),
    "llm/tr": (1.0, SERVE, False),
    "st/a": (1.0, SERVE, True),
}


@pytest.mark.parametrize("server", SEEN)
def test_a_real_answer_is_read(server: str) -> None:
    rows, sessions = parse_read(REAL)
    weight, admission, in_service = SEEN[server]
    values = {Knob.ADMISSION: admission} | ({} if weight is None else {Knob.WEIGHT: weight})

    assert set(rows) == set(SEEN)
    assert rows[server].state(sessions[server]) == ServerState(values, in_service, sessions=0, normal_weight=1.0)


def test_columns_are_found_by_name_and_not_by_place() -> None:
    text = "1\n# be_id srv_iweight srv_uweight srv_admin_state new srv_op_state srv_name be_name\n1 100 50 8 x 2 a llm\n\n"
    assert parse_servers_state(text) == {"llm/a": ServerRow(50, 100, 8, 2)}
    assert parse_sessions("# pxname,new,scur,svname,\nllm,x,7,a,\nllm,x,,b,\n\n") == {"llm/a": 7}


def test_a_quoted_field_with_a_line_break_does_not_split_a_row() -> None:
    text = '# pxname,svname,last_chk,scur\nllm,a,"said: ""no"",\n\nllm,b,x,9",3\nllm,b,ok,4\n\n'
    assert parse_sessions(text) == {"llm/a": 3, "llm/b": 4}


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_real_answer_cut_anywhere_near_its_end_is_not_taken_for_a_whole_one(cut: int) -> None:
    with pytest.raises(CallError):
        parse_read(REAL[:-cut])


@given(st.integers(0, len(REAL) - 1))
def test_no_part_of_an_answer_is_taken_for_all_of_it(length: int) -> None:
    with pytest.raises(CallError) as caught:
        parse_read(REAL[:length])
    assert caught.value.kind is ErrorKind.PROTOCOL


def garbled(text: str) -> st.SearchStrategy[str]:
    """``text`` with up to five pieces of it replaced by anything."""
    edit = st.tuples(st.integers(0, len(text)), st.integers(0, 40), st.text(max_size=40))

    def apply(edits: list[tuple[int, int, str]]) -> str:
        result = text
        for at, length, new in edits:
            result = result[:at] + new + result[at + length :]
        return result

    return st.lists(edit, min_size=1, max_size=5).map(apply)


@given(st.one_of(st.text(), garbled(REAL)))
@example(
    "1\n# be_id be_name srv_name srv_op_state srv_admin_state srv_uweight srv_iweight\n1 llm a 2 0 " + "9" * 5_000 + " 1\n\n"
)
@example("# pxname,svname,scur\nllm,a," + "9" * 5_000 + "\n\n")
@example("# pxname\nllm\n\n")
def test_anything_at_all_is_read_or_is_a_call_error(text: str) -> None:
    for parse in (parse_read, parse_servers_state, parse_sessions, check_success):
        result = outcome(lambda parse=parse: parse(text))  # type: ignore[misc]
        assert not isinstance(result, CallError) or (len(result.message) < 500 and result.message.isprintable())


@given(st.text())
def test_a_name_that_passes_cannot_end_or_extend_a_command(name: str) -> None:
    if is_server_name(name):
        assert name.isascii()
        assert not set(name) & set(" \t\r\n;\\\"'#@$")


@pytest.mark.parametrize("name", ["llm/a", "be-1.x:y_z/srv-1.x:y_z", "a/" + "b" * 256])
def test_every_name_that_haproxy_allows_passes(name: str) -> None:
    assert is_server_name(name)


@given(st.text())
def test_an_excerpt_is_one_short_printable_line(text: str) -> None:
    assert len(excerpt(text)) <= 201
    assert excerpt(text).isprintable()
