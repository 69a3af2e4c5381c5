"""Replicas merged: one state only where all agree, and every way to differ, to fail or to be silent said in words."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from tailkeeper_watchdog.actuators import replicas as module
from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind, ServerState, Support
from tailkeeper_watchdog.actuators.replicas import Answer, ReplicatedActuator, merge, replicated
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, KnobValue

UP = ServerState({Knob.WEIGHT: 1.0, Knob.ADMISSION: SERVE}, sessions=2)
LIGHT = ServerState({Knob.WEIGHT: 0.5, Knob.ADMISSION: SERVE}, sessions=3)
OUT = ServerState({Knob.WEIGHT: 1.0, Knob.ADMISSION: SERVE}, in_service=False)
ERROR = ActuatorError(ErrorKind.TIMEOUT, "edge#2", "*", "no answer")

MERGES: dict[str, tuple[Answer, Answer, Mapping[Knob, KnobValue], tuple[float, bool, int | None, str]]] = {
    # first, second, last written; weight, in service, sessions, words in the doubt
    "agreeing": (UP, UP, {}, (1.0, True, 4, "")),
    "differing, nothing written yet": (UP, LIGHT, {}, (0.5, True, 5, "weight differs: edge#1 1.0, edge#2 0.5")),
    "differing, the first is as written": (UP, LIGHT, {Knob.WEIGHT: 1.0}, (0.5, True, 5, "weight differs")),
    "differing, the second is as written": (UP, LIGHT, {Knob.WEIGHT: 0.5}, (1.0, True, 5, "weight differs")),
    "out of service at one": (UP, OUT, {}, (1.0, False, None, "")),
    "one not read": (UP, ERROR, {}, (1.0, True, None, "edge#2 was not read: edge#2/*: no answer")),
    "one does not know it": (None, UP, {}, (1.0, True, None, "edge#1 knows no such server")),
    "one without a weight": (ServerState({Knob.ADMISSION: SERVE}), UP, {}, (1.0, True, None, "weight differs: edge#1 None")),
    "one in doubt": (UP, ServerState(UP.values, doubt="hm"), {}, (1.0, True, None, "edge#2: hm")),
}


@pytest.mark.parametrize("case", MERGES)
def test_two_answers_become_one_state(case: str) -> None:
    first, second, written, (weight, in_service, sessions, words) = MERGES[case]
    state = merge({"edge#1": first, "edge#2": second}, written)
    assert (state.values[Knob.WEIGHT], state.in_service, state.sessions) == (weight, in_service, sessions)
    assert words in state.doubt
    assert bool(words) == bool(state.doubt)


@dataclass
class Scripted:
    """One address: answers reads with ``answer``, takes writes unless ``error`` or ``hangs``."""

    name: str
    answer: ServerState | ActuatorError | None = UP
    error: ActuatorError | None = None
    hangs: bool = False
    kind: str = "scripted"
    written: list[Mapping[Knob, KnobValue]] = field(default_factory=list)
    closed: bool = False

    def supports(self, knob: Knob) -> Support:
        return Support(knob is Knob.WEIGHT, "no")

    async def read(self, servers: tuple[str, ...], deadline_s: float) -> Mapping[str, ServerState]:
        if isinstance(self.answer, ActuatorError):
            raise self.answer
        return {} if self.answer is None else dict.fromkeys(servers, self.answer)

    async def write(self, server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
        if self.hangs or deadline_s < 0.01:
            await asyncio.sleep(deadline_s)
            raise ActuatorError(ErrorKind.TIMEOUT, self.name, server, "no answer")
        if self.error is not None:
            raise self.error
        self.written.append(values)

    async def close(self) -> None:
        self.closed = True


def pair(first: Scripted, second: Scripted) -> ReplicatedActuator:
    return ReplicatedActuator("edge", {"edge#1": first, "edge#2": second})


def fails(kind: ErrorKind) -> Scripted:
    return Scripted("x", error=ActuatorError(kind, "x", "a", "why"))


KINDS = [
    ((ErrorKind.UNREACHABLE, None), ErrorKind.PROTOCOL, False),  # Something was sent, so it must be read before anything else.
    ((None, ErrorKind.UNAUTHORIZED), ErrorKind.UNAUTHORIZED, False),
    ((ErrorKind.UNREACHABLE, ErrorKind.UNREACHABLE), ErrorKind.UNREACHABLE, False),
    ((ErrorKind.TIMEOUT, ErrorKind.REFUSED), ErrorKind.REFUSED, True),
    ((ErrorKind.UNREACHABLE, ErrorKind.TIMEOUT), ErrorKind.TIMEOUT, True),
    ((None, ErrorKind.PROTOCOL), ErrorKind.PROTOCOL, True),
]


@pytest.mark.parametrize(("errors", "kind", "may_be_done"), KINDS)
async def test_a_write_that_fails_somewhere_fails_with_the_kind_that_people_must_hear_of(
    errors: tuple[ErrorKind | None, ErrorKind | None], kind: ErrorKind, may_be_done: bool
) -> None:
    replicas = [Scripted("x") if error is None else fails(error) for error in errors]
    with pytest.raises(ActuatorError, match="why") as caught:
        await pair(replicas[0], replicas[1]).write("a", {Knob.WEIGHT: 0.5}, 1.0)
    assert caught.value.kind is kind
    assert caught.value.may_be_done is may_be_done
    assert caught.value.gateway == "edge"
    assert all(bool(replica.written) == (replica.error is None) for replica in replicas)


async def test_a_hung_replica_leaves_the_next_one_its_part_of_the_time() -> None:
    second = Scripted("edge#2")
    with pytest.raises(ActuatorError, match="the other 1 succeeded"):
        await pair(Scripted("edge#1", hangs=True), second).write("a", {Knob.WEIGHT: 0.5}, 0.05)
    assert second.written == [{Knob.WEIGHT: 0.5}]


async def test_what_was_last_written_decides_which_of_two_readings_is_told() -> None:
    second = Scripted("edge#2", answer=ServerState({Knob.WEIGHT: 1.0, Knob.ADMISSION: DRAIN}))
    both = pair(Scripted("edge#1"), second)
    for wanted, told in ((DRAIN, SERVE), (SERVE, DRAIN)):
        await both.write("a", {Knob.ADMISSION: wanted}, 1.0)
        state = (await both.read(("a",), 1.0))["a"]
        assert state.values[Knob.ADMISSION] == told
        assert state.doubt


async def test_a_server_is_not_unknown_to_a_gateway_of_which_a_replica_could_not_be_asked() -> None:
    state = (await pair(Scripted("edge#1", answer=ERROR), Scripted("edge#2", answer=None)).read(("a",), 1.0))["a"]
    assert state.values == {}
    assert "edge#1 was not read" in state.doubt


async def test_what_was_written_is_remembered_of_a_bounded_number_of_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WRITTEN", 3)
    both = ReplicatedActuator("edge", {"edge#1": Scripted("edge#1"), "edge#2": Scripted("edge#2")})
    for server in ("a", "b", "c", "a", "d", "e"):
        await both.write(server, {Knob.WEIGHT: 0.5}, 1.0)
    assert [server for server, _ in both._written] == ["a", "d", "e"], "the last written ones"


async def test_a_server_that_no_replica_knows_is_left_out_and_a_read_fails_only_where_all_fail() -> None:
    assert await pair(Scripted("edge#1", answer=None), Scripted("edge#2", answer=None)).read(("a",), 1.0) == {}
    with pytest.raises(ActuatorError) as caught:
        await pair(Scripted("edge#1", answer=ERROR), Scripted("edge#2", answer=ERROR)).read(("a",), 1.0)
    assert (caught.value.gateway, caught.value.kind) == ("edge", ErrorKind.TIMEOUT)


async def test_the_rest_is_the_replicas_own_and_closing_closes_all() -> None:
    replicas = Scripted("edge#1"), Scripted("edge#2")
    both = pair(*replicas)
    assert (both.kind, both.supports(Knob.WEIGHT).enforceable, both.supports(Knob.TAINT).why_not) == ("scripted", True, "no")
    await both.close()
    assert all(replica.closed for replica in replicas)


def test_one_address_needs_no_merging_and_secrets_in_a_url_do_not_get_into_names() -> None:
    def one(name: str, address: str) -> Scripted:
        return Scripted(name)

    single = replicated("edge", ("/run/a", "/run/a"), one)
    several = replicated("edge", ("/run/a", "http://me:secret@gate:1/x?token=t"), one)
    assert (type(single), single.name) == (Scripted, "edge")
    assert isinstance(several, ReplicatedActuator)
    assert list(several.replicas) == ["edge#1(/run/a)", "edge#2(gate:1/x)"]


def test_a_doubt_about_one_knob_keeps_no_other_from_being_given_back() -> None:
    told = {
        replica: ServerState({Knob.WEIGHT: weight, Knob.ADMISSION: SERVE}) for replica, weight in (("one", 0.5), ("two", 1.0))
    }
    state = merge(told, {})
    assert "weight differs" in state.doubt_of(Knob.WEIGHT, giving_back=True)
    assert state.doubt_of(Knob.ADMISSION, giving_back=True) == ""


def test_a_replica_that_does_not_know_the_server_has_nothing_to_give_back_and_much_to_doubt_else() -> None:
    state = merge({"one": ServerState({Knob.ADMISSION: SERVE}), "two": None}, {})
    assert state.doubt_of(Knob.ADMISSION, giving_back=True) == ""
    assert state.doubt_of(Knob.ADMISSION, giving_back=False) == "two knows no such server"


def test_a_replica_that_was_not_read_is_a_doubt_about_everything() -> None:
    error = ActuatorError(ErrorKind.TIMEOUT, "edge", "a", "no answer")
    state = merge({"one": ServerState({Knob.ADMISSION: SERVE}), "two": error}, {})
    assert "was not read" in state.doubt_of(Knob.ADMISSION, giving_back=True)


def test_the_replica_that_gives_a_server_least_counts_for_the_cap_whatever_the_others_give() -> None:
    told = {
        "one": ServerState({Knob.WEIGHT: 0.2, Knob.ADMISSION: SERVE}),
        "two": ServerState({Knob.WEIGHT: 1.0, Knob.ADMISSION: DRAIN}),
    }
    state = merge(told, {})
    assert (state.least(Knob.WEIGHT), state.least(Knob.ADMISSION)) == (0.2, DRAIN)
    assert merge({"one": told["one"], "two": told["one"]}, {}).least(Knob.WEIGHT) == 0.2
