"""What is special about LiteLLM: no database, no weights, other strategies, and a normal weight that only a note keeps.

Against a FAKE proxy with a database (``litellm_world``); what a proxy without one answers is captured from LiteLLM 1.108.7.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tailkeeper_watchdog.actuators import Actuator, litellm
from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind
from tailkeeper_watchdog.actuators.litellm import NOTE, LitellmActuator
from tailkeeper_watchdog.gateways import LitellmGateway
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, KnobValue
from tests.contract import test_sick_gateways as sick_gateways
from tests.contract.litellm_world import deployment, fake_litellm
from tests.contract.test_sick_gateways import Behave, dripping, hanging_up, http, never_ending, saying, silent

DEADLINE_S = 5.0


async def refused(call: Awaitable[object]) -> ActuatorError:
    with pytest.raises(ActuatorError) as caught:
        await call
    return caught.value


async def test_the_normal_weight_is_noted_with_the_first_change_and_the_note_goes_with_the_last() -> None:
    async with fake_litellm(deployment("a", 200), deployment("b", 200)) as (fake, actuator):
        for share, units, note in ((0.25, 50, 200), (0.5, 100, 200), (1.0, 200, 0)):
            for _ in range(2):
                await actuator.write("a", {Knob.WEIGHT: share}, DEADLINE_S)
            assert fake.row("a")["litellm_params"]["weight"] == units
            assert fake.row("a")["model_info"] == {"id": "a", "db_model": True, "blocked": False, NOTE: note}
            state = (await actuator.read(("a",), DEADLINE_S))["a"]
            assert (state.values[Knob.WEIGHT], state.normal_weight) == (share, 1.0)
        assert len(fake.history) == 3
        assert fake.chosen() == {"a": 0.5, "b": 0.5}


async def test_a_drain_blocks_the_deployment_and_the_others_get_its_requests() -> None:
    async with fake_litellm(deployment("a"), deployment("b"), deployment("c", 200)) as (fake, actuator):
        await actuator.write("a", {Knob.ADMISSION: DRAIN}, DEADLINE_S)
        assert fake.chosen() == {"b": 100 / 300, "c": 200 / 300}
        assert fake.history == [{"blocked": True}]
        await actuator.write("a", {Knob.ADMISSION: SERVE}, DEADLINE_S)
        assert fake.chosen()["a"] == 0.25


async def test_one_change_carries_weight_and_admission_together() -> None:
    async with fake_litellm(deployment("a"), deployment("b")) as (fake, actuator):
        await actuator.write("a", {Knob.WEIGHT: 0.18, Knob.ADMISSION: DRAIN}, DEADLINE_S)
        info = {"id": "a", "db_model": True, NOTE: 100}
        assert fake.history == [{"litellm_params": {"weight": 18}, "model_info": info, "blocked": True}]


CANNOT: list[tuple[str, list[dict[str, Any]], str, set[Knob], str]] = [
    ("of the file", [deployment("a", in_database=False)], "simple-shuffle", {Knob.WEIGHT, Knob.ADMISSION}, "config.yaml"),
    ("another strategy", [deployment("a")], "latency-based-routing", {Knob.WEIGHT}, "is latency-based-routing"),
    ("no strategy told", [deployment("a")], "", {Knob.WEIGHT}, "not told"),
    ("no weight", [deployment("a", None)], "simple-shuffle", {Knob.WEIGHT}, "a has none"),
    ("a peer without", [deployment("a"), deployment("b", None)], "simple-shuffle", {Knob.WEIGHT}, "b has none"),
    ("weight 0", [deployment("a", 0)], "simple-shuffle", {Knob.WEIGHT}, "configured weight is 0"),
]


@pytest.mark.parametrize(("_", "rows", "strategy", "knobs", "why_not"), CANNOT, ids=[case[0] for case in CANNOT])
async def test_what_a_deployment_turns_out_not_to_have_is_said_and_refused(
    _: str, rows: list[dict[str, Any]], strategy: str, knobs: set[Knob], why_not: str
) -> None:
    async with fake_litellm(*rows) as (fake, actuator):
        fake.strategy = strategy
        state = (await actuator.read(("a",), DEADLINE_S))["a"]
        assert set(state.cannot) == knobs
        for knob in knobs:
            assert why_not in state.cannot[knob]
            error = await refused(actuator.write("a", {knob: DRAIN if knob is Knob.ADMISSION else 0.5}, DEADLINE_S))
            assert error.kind is ErrorKind.REFUSED
            assert why_not in str(error)
        assert fake.history == []


async def test_deployments_of_another_model_need_no_weight() -> None:
    async with fake_litellm(deployment("a"), deployment("b", None, group="other")) as (fake, actuator):
        await actuator.write("a", {Knob.WEIGHT: 0.5}, DEADLINE_S)
        assert fake.row("a")["litellm_params"]["weight"] == 50


async def test_a_proxy_that_lost_its_database_refuses_in_its_own_words() -> None:
    async with fake_litellm(deployment("a"), deployment("b")) as (fake, actuator):
        fake.database = False
        error = await refused(actuator.write("a", {Knob.WEIGHT: 0.5}, DEADLINE_S))
        assert (error.kind, error.retryable) == (ErrorKind.REFUSED, False)
        assert "DB not connected" in str(error)


async def test_without_a_database_by_the_settings_nothing_is_enforceable_and_nothing_is_sent() -> None:
    async with fake_litellm(deployment("a")) as (fake, _):
        actuator = LitellmActuator(LitellmGateway(name="edge", kind="litellm", url=fake.server.url, database=False))
        for knob in Knob:
            assert not actuator.supports(knob).enforceable
        assert "database: false" in actuator.supports(Knob.ADMISSION).why_not
        error = await refused(actuator.write("a", {Knob.ADMISSION: DRAIN}, DEADLINE_S))
        assert error.kind is ErrorKind.REFUSED
        assert fake.server.requests == []
        await actuator.close()


WEIGHTS: list[tuple[float, KnobValue, float | None]] = [
    (1, 0.5, None),
    (1, 1.0, 1),
    (1, 2.0, 2),
    (3, 0.18, None),
    (10, 0.5, 5),
    (100, 0.005, None),
    (100, 0.0, 0),
    (0.8, 0.5, 0.4),
    (1e6, 2.0, None),
]


@pytest.mark.parametrize(("normal", "share", "units"), WEIGHTS)
def test_a_share_becomes_whole_units_or_is_refused(normal: float, share: KnobValue, units: float | None) -> None:
    if units is not None:
        assert litellm.units_for(share, normal) == units
        return
    with pytest.raises(CallError) as caught:
        litellm.units_for(share, normal)
    assert caught.value.kind is ErrorKind.REFUSED


async def test_a_litellm_that_says_yes_and_does_nothing_is_found_out_by_reading() -> None:
    async with fake_litellm(deployment("a"), deployment("b")) as (fake, actuator):
        fake.lying = True
        await actuator.write("a", {Knob.WEIGHT: 0.5, Knob.ADMISSION: DRAIN}, DEADLINE_S)
        state = (await actuator.read(("a",), DEADLINE_S))["a"]
        assert dict(state.values) == {Knob.WEIGHT: 1.0, Knob.ADMISSION: SERVE}


SICK: dict[str, tuple[Behave, ErrorKind]] = {
    "silent": (silent, ErrorKind.TIMEOUT),
    "dripping": (dripping(b"HTTP/1.1 200 OK\r\nX: "), ErrorKind.TIMEOUT),
    "hanging up": (hanging_up, ErrorKind.PROTOCOL),
    "never ending": (never_ending, ErrorKind.PROTOCOL),
    "HTML": (saying(http(b"<html>502</html>")), ErrorKind.PROTOCOL),
    "cut short": (saying(http(b'{"data": []}', length=500)), ErrorKind.PROTOCOL),
    "no list": (saying(http(b'{"data": 3}')), ErrorKind.PROTOCOL),
    "a row that is no deployment": (
        saying(http(b'{"data": [{"litellm_params": {"api_key": "sk-s3cret"}}]}')),
        ErrorKind.PROTOCOL,
    ),
    "a weight that is no number": (
        saying(http(b'{"data": [{"model_info": {"id": "a"}, "litellm_params": {"weight": "x"}}]}')),
        ErrorKind.PROTOCOL,
    ),
    "a negative weight": (
        saying(http(b'{"data": [{"model_info": {"id": "a"}, "litellm_params": {"weight": -1}}]}')),
        ErrorKind.PROTOCOL,
    ),
    "a redirect": (
        saying(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"),
        ErrorKind.REFUSED,
    ),
    "no rights": (saying(b"HTTP/1.1 401 No\r\nContent-Length: 9\r\n\r\nsk-s3cret"), ErrorKind.UNAUTHORIZED),
}
CALLS: dict[str, Callable[[Actuator, float], Awaitable[object]]] = {
    "read": lambda actuator, deadline_s: actuator.read(("a",), deadline_s),
    "write": lambda actuator, deadline_s: actuator.write("a", {Knob.ADMISSION: DRAIN}, deadline_s),
}


@pytest.mark.parametrize("case", SICK)
@pytest.mark.parametrize("call", CALLS)
async def test_a_sick_litellm_costs_one_deadline_and_is_never_believed(
    case: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(port: int) -> LitellmActuator:
        return LitellmActuator(LitellmGateway(name="edge", kind="litellm", url=f"http://127.0.0.1:{port}"))

    monkeypatch.setitem(sick_gateways.ACTUATORS, "litellm", ("a", made))
    monkeypatch.setattr(litellm, "ANSWER_LIMIT_BYTES", 200_000)
    behave, kind = SICK[case]
    async with sick_gateways.sick("litellm", behave) as gateway:
        error = await refused(CALLS[call](gateway.actuator, 0.3 if kind is ErrorKind.TIMEOUT else DEADLINE_S))
    assert error.kind is kind
    assert "s3cret" not in str(error)
    assert len(str(error)) < 500
