"""What only Consul can show, on a fake of it: keys come and go, nobody is overwritten, and what we wrote dies with us."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators.consul import ConsulActuator
from tailkeeper_watchdog.actuators.consul_keys import OURS
from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind
from tailkeeper_watchdog.gateways import ConsulGateway
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, KnobValue
from tests.contract.consul_world import TTL_S, actuator_with
from tests.contract.fake_consul import FakeConsul, fake_consul

DEADLINE_S = 5.0
WEIGHT, ADMISSION, USAGE = "service/a/weight", "service/a/admission", "service/a/kv_usage_ratio"
NORMAL: dict[Knob, KnobValue] = {Knob.WEIGHT: 1.0, Knob.ADMISSION: SERVE, Knob.ANNOTATION: ""}
TURNED: dict[Knob, KnobValue] = {Knob.WEIGHT: 0.18, Knob.ADMISSION: DRAIN, Knob.ANNOTATION: "kv_usage_ratio=0.82"}


@pytest.fixture
def consul() -> Iterator[FakeConsul]:
    with fake_consul() as consul:
        yield consul


def started(consul: FakeConsul) -> ConsulActuator:
    """The actuator of a watchdog that has just begun."""
    return ConsulActuator("edge", consul.url, Auth(), TTL_S)


async def write(consul: FakeConsul, values: dict[Knob, KnobValue]) -> None:
    actuator = started(consul)
    try:
        await actuator.write("a", values, DEADLINE_S)
    finally:
        await actuator.close()


async def failing(consul: FakeConsul, values: dict[Knob, KnobValue]) -> ActuatorError:
    with pytest.raises(ActuatorError) as caught:
        await write(consul, values)
    return caught.value


def texts(consul: FakeConsul) -> dict[str, str]:
    return {name: key.value.decode() for name, key in consul.keys.items()}


async def test_the_policys_numbers_stand_where_the_product_says_and_are_taken_away_again(consul: FakeConsul) -> None:
    actuator = started(consul)
    await actuator.write("a", TURNED, DEADLINE_S)
    assert texts(consul) == {WEIGHT: "0.18", ADMISSION: "drain", USAGE: "0.82"}
    state = (await actuator.read(("a",), DEADLINE_S))["a"]
    assert (state.values, state.doubt) == (TURNED, "")

    await actuator.write("a", NORMAL, DEADLINE_S)
    assert texts(consul) == {}
    assert (await actuator.read(("a",), DEADLINE_S))["a"].values == NORMAL
    await actuator.close()


async def test_a_key_with_a_query_in_its_name_is_taken_away_alone(consul: FakeConsul) -> None:
    consul.by_hand("service/a/owner", "me")
    consul.by_hand("service/a/o?recurse=true", "x")
    consul.keys["service/a/o?recurse=true"] = replace(consul.keys["service/a/o?recurse=true"], flags=OURS)
    await write(consul, NORMAL)
    assert texts(consul) == {"service/a/owner": "me"}


async def test_a_key_of_an_operator_gets_its_value_and_its_flags_back_and_is_never_taken_away(consul: FakeConsul) -> None:
    consul.by_hand(WEIGHT, "1")
    consul.by_hand(ADMISSION, "serve\n")
    consul.keys[WEIGHT].flags = 42
    await write(consul, {Knob.WEIGHT: 0.5, Knob.ADMISSION: DRAIN})
    assert texts(consul) == {WEIGHT: "0.5", ADMISSION: "drain"}
    assert [(key.flags, key.session) for key in consul.keys.values()] == [(42, ""), (0, "")]

    await write(consul, {Knob.WEIGHT: 1.0, Knob.ADMISSION: SERVE})
    assert texts(consul) == {WEIGHT: "1", ADMISSION: "serve"}
    assert consul.keys[WEIGHT].flags == 42


async def test_every_change_is_a_check_and_set_on_what_was_read(consul: FakeConsul) -> None:
    await write(consul, TURNED)
    await write(consul, TURNED | {Knob.WEIGHT: 0.3})
    await write(consul, NORMAL)
    changes = [asked for asked in consul.asked if "/v1/kv/" in asked and not asked.startswith("GET")]
    assert all("cas=" in asked or "acquire=" in asked for asked in changes)
    assert all("consistent" in asked for asked in consul.asked if asked.startswith("GET"))


@pytest.mark.parametrize("before", [None, "0.9"])
async def test_who_changes_a_key_at_the_same_moment_is_not_overwritten(
    consul: FakeConsul, before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if before is not None:
        consul.by_hand(WEIGHT, before)
    read = ConsulActuator._entries

    async def read_and_be_late(self: ConsulActuator, server: str) -> object:
        entries = await read(self, server)
        consul.by_hand(WEIGHT, "0.7")
        return entries

    monkeypatch.setattr(ConsulActuator, "_entries", read_and_be_late)
    error = await failing(consul, {Knob.WEIGHT: 0.18})
    assert error.kind is ErrorKind.PROTOCOL
    assert error.retryable
    assert texts(consul) == {WEIGHT: "0.7"}


async def test_what_we_wrote_vanishes_when_the_watchdog_has_stopped_for_good_and_nothing_else_does(consul: FakeConsul) -> None:
    consul.by_hand("service/a/owner", "team x")
    consul.by_hand(ADMISSION, "serve")
    await write(consul, TURNED)
    (session,) = consul.sessions
    assert consul.sessions[session]["TTL"] == "300s"
    assert consul.sessions[session]["Behavior"] == "delete"
    assert consul.sessions[session]["Name"] == "tailkeeper edge"
    consul.end(session)
    assert texts(consul) == {"service/a/owner": "team x", ADMISSION: "drain"}


async def test_each_read_keeps_the_session_alive_and_a_restart_takes_it_over(consul: FakeConsul) -> None:
    await write(consul, TURNED)
    (session,) = consul.sessions
    restarted = started(consul)
    for _ in range(3):
        await restarted.read(("a", "b"), DEADLINE_S)
    assert consul.renewed == [session], "renewed at once, and then not before a third of the TTL is over"
    await restarted.write("b", {Knob.WEIGHT: 0.5}, DEADLINE_S)
    await restarted.close()
    assert set(consul.sessions) == {session}
    assert consul.keys["service/b/weight"].session == session


async def test_a_key_of_ours_that_somebody_changed_by_hand_does_not_vanish_while_we_live(
    consul: FakeConsul, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailkeeper_watchdog.actuators.consul.RENEWALS_PER_TTL", 1e9)
    actuator = started(consul)
    await actuator.write("a", {Knob.WEIGHT: 0.5}, DEADLINE_S)
    consul.by_hand(WEIGHT, "0.25")
    await actuator.read(("a",), DEADLINE_S)
    await actuator.close()
    assert consul.renewed == list(consul.sessions)


async def test_a_session_that_cannot_be_renewed_is_a_doubt_about_what_it_holds_alone(consul: FakeConsul) -> None:
    await write(consul, TURNED)
    consul.failing = "session/renew"
    actuator = started(consul)
    states = await actuator.read(("a", "b"), DEADLINE_S)
    await actuator.close()
    assert states["a"].values == TURNED
    assert "cannot be renewed" in states["a"].doubt
    assert states["b"].doubt == ""


async def test_without_a_session_nothing_is_written(consul: FakeConsul) -> None:
    consul.failing = "session/create"
    assert (await failing(consul, TURNED)).kind is ErrorKind.PROTOCOL
    assert consul.keys == {}


async def test_a_key_that_no_session_holds_is_in_doubt_and_is_bound_by_writing_it_again(consul: FakeConsul) -> None:
    consul.failing = "acquire="
    assert (await failing(consul, {Knob.WEIGHT: 0.18})).retryable
    actuator = started(consul)
    state = (await actuator.read(("a",), DEADLINE_S))["a"]
    assert state.values[Knob.WEIGHT] == 0.18
    assert "would outlive us" in state.doubt

    consul.failing = ""
    await actuator.write("a", {Knob.WEIGHT: 0.18}, DEADLINE_S)
    assert (await actuator.read(("a",), DEADLINE_S))["a"].doubt == ""
    await actuator.close()
    assert consul.keys[WEIGHT].session in consul.sessions


async def test_a_session_that_has_ended_is_replaced(consul: FakeConsul) -> None:
    actuator = started(consul)
    await actuator.write("a", {Knob.WEIGHT: 0.18}, DEADLINE_S)
    (first,) = consul.sessions
    consul.end(first)
    with pytest.raises(ActuatorError, match="invalid session"):
        await actuator.write("a", {Knob.WEIGHT: 0.18}, DEADLINE_S)
    await actuator.write("a", {Knob.WEIGHT: 0.18}, DEADLINE_S)
    await actuator.close()
    assert consul.keys[WEIGHT].session in consul.sessions


async def test_a_part_that_fails_leaves_the_part_before_it_and_says_so_by_reading(consul: FakeConsul) -> None:
    consul.failing = "PUT /v1/kv/service/a/weight"
    assert (await failing(consul, {Knob.WEIGHT: 0.18, Knob.ADMISSION: DRAIN})).kind is ErrorKind.PROTOCOL
    assert texts(consul) == {ADMISSION: "drain"}


async def test_a_consul_that_says_yes_and_does_nothing_is_found_out_by_reading(consul: FakeConsul) -> None:
    consul.lying = True
    actuator = started(consul)
    await actuator.write("a", {Knob.ADMISSION: DRAIN}, DEADLINE_S)
    assert (await actuator.read(("a",), DEADLINE_S))["a"].values[Knob.ADMISSION] == SERVE
    await actuator.close()


async def test_a_list_that_acls_have_thinned_out_is_no_absence(consul: FakeConsul, tmp_path: Path) -> None:
    await write(consul, TURNED)
    consul.tokens = {"blind": "none"}
    actuator = actuator_with(consul, tmp_path, "blind")
    with pytest.raises(ActuatorError) as caught:
        await actuator.read(("a",), DEADLINE_S)
    await actuator.close()
    assert caught.value.kind is ErrorKind.UNAUTHORIZED
    assert "key:read" in str(caught.value)


async def test_a_token_is_taken_as_bearer_too_and_stands_in_no_message(consul: FakeConsul, tmp_path: Path) -> None:
    consul.tokens = {"s3cret": "write", "s3cret-reader": "read"}
    file = tmp_path / "token"
    file.write_text("s3cret")
    actuator = ConsulActuator("edge", consul.url, Auth(bearer_file=file), TTL_S)
    await actuator.write("a", TURNED, DEADLINE_S)
    file.write_text("s3cret-reader")
    with pytest.raises(ActuatorError) as caught:
        await actuator.write("a", NORMAL, DEADLINE_S)
    await actuator.close()
    assert caught.value.kind is ErrorKind.UNAUTHORIZED
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "value",
    ["x", "=1", "a=", "a=1,", "a=1,a=2", "b=1,a=2", "weight=3", "admission=serve", "a/b=1", "a=é",
     ",".join(f"k{n:02}=1" for n in range(17))],
)  # fmt: skip
async def test_an_annotation_that_cannot_be_a_key_is_refused_and_nothing_is_written(consul: FakeConsul, value: str) -> None:
    assert (await failing(consul, {Knob.ANNOTATION: value})).kind is ErrorKind.REFUSED
    assert consul.keys == {}


async def test_annotations_replace_each_other_and_leave_those_of_others(consul: FakeConsul) -> None:
    consul.by_hand("service/a/owner", "x")
    await write(consul, {Knob.ANNOTATION: "kv_usage_ratio=0.82,model=tiny"})
    await write(consul, {Knob.ANNOTATION: "kv_usage_ratio=0.45"})
    assert texts(consul) == {"service/a/owner": "x", USAGE: "0.45"}
    assert (await failing(consul, {Knob.ANNOTATION: "owner=me"})).kind is ErrorKind.REFUSED
    assert texts(consul) == {"service/a/owner": "x", USAGE: "0.45"}


@pytest.mark.parametrize("text", ["", "heavy", "-1", "nan", "inf", "1e99"])
async def test_a_value_of_others_that_cannot_be_understood_is_in_doubt_and_never_a_number(consul: FakeConsul, text: str) -> None:
    consul.by_hand(WEIGHT, text)
    consul.by_hand(ADMISSION, "maybe")
    actuator = started(consul)
    state = (await actuator.read(("a",), DEADLINE_S))["a"]
    await actuator.close()
    assert state.values == {Knob.ANNOTATION: ""}
    assert "weight" in state.doubt
    assert "admission" in state.doubt


async def test_keys_of_ours_are_marked_and_those_further_down_are_not_looked_at(consul: FakeConsul) -> None:
    consul.by_hand("service/a/deep/weight", "0.1")
    consul.by_hand("service/ab/weight", "0.1")
    await write(consul, {Knob.WEIGHT: 0.5})
    assert consul.keys[WEIGHT].flags == OURS
    actuator = started(consul)
    assert (await actuator.read(("a",), DEADLINE_S))["a"].values == NORMAL | {Knob.WEIGHT: 0.5}
    await actuator.close()


@pytest.mark.parametrize(("ttl_s", "good"), [(9.9, False), (10, True), (86_400, True), (86_401, False)])
def test_the_ttl_keeps_to_consuls_bounds(ttl_s: float, good: bool) -> None:
    document = {"name": "c", "kind": "consul", "url": "http://127.0.0.1:8500", "session_ttl_s": ttl_s}
    if good:
        assert ConsulGateway.model_validate(document).session_ttl_s == ttl_s
    else:
        with pytest.raises(ValidationError, match="session_ttl_s"):
            ConsulGateway.model_validate_json(json.dumps(document))


async def test_a_change_by_hand_to_a_key_of_ours_is_theirs_from_then_on(consul: FakeConsul) -> None:
    """`consul kv put` takes our flags away, and with them the mark by which we would have taken the key away."""
    await write(consul, {Knob.WEIGHT: 0.5})
    consul.by_hand(WEIGHT, "0.25")
    actuator = started(consul)
    state = (await actuator.read(("a",), DEADLINE_S))["a"]
    await actuator.close()
    assert state == replace(state, values=NORMAL | {Knob.WEIGHT: 0.25}, doubt="")
