"""The engines' own admin routes: found out at run time, asked only, and a paused or sleeping engine counts as out of service.

Answers are those of vLLM 0.32 as captured; an engine without the routes answers 404, as that vLLM does without its development
mode. That nothing is ever sent but a GET is part of every test here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tailkeeper_exporter.settings import Auth
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators import Actuator
from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind
from tailkeeper_watchdog.actuators.engine import WHY_NOT, EngineActuator
from tailkeeper_watchdog.decision_log import DecisionLog
from tailkeeper_watchdog.model import DRAIN, SERVE, Backend, Knob, Outcome, Target
from tailkeeper_watchdog.reconcile import Reconciler
from tests.contract.test_actuators import HOSTILE_NAMES
from tests.e2e.real_programs import free_port
from tests.e2e.tiny_servers import answer, serving
from tests.scenario.world import World

DEADLINE_S = 5.0


@dataclass
class FakeEngine:
    """``routes`` are its answers by path; a path that is not there is 404. ``asked`` is every request."""

    routes: dict[str, bytes] = field(
        default_factory=lambda: {"/is_paused": b'{"is_paused":false}', "/is_sleeping": b'{"is_sleeping":false}'}
    )
    status: int = 200
    delay_s: float = 0.0
    url: str = ""
    asked: list[str] = field(default_factory=list)

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append(f"{handler.command} {handler.path}")
        time.sleep(self.delay_s)
        body = self.routes.get(handler.path)
        answer(handler, 404 if body is None else self.status, body or b'{"detail":"Not Found"}')


@contextmanager
def fake_engines(count: int) -> Iterator[list[FakeEngine]]:
    engines = [FakeEngine() for _ in range(count)]
    with ExitStack() as stack:
        for engine in engines:
            engine.url = f"http://127.0.0.1:{stack.enter_context(serving(engine.handle))}"
        yield engines
        assert all(request.startswith("GET ") for engine in engines for request in engine.asked)


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with fake_engines(1) as (engine,):
        yield engine


async def test_an_engine_that_takes_work_is_in_service(engine: FakeEngine) -> None:
    actuator = EngineActuator("engines", Auth())
    seen = (await actuator.read((engine.url,), DEADLINE_S))[engine.url]
    await actuator.close()

    assert (seen.values, seen.in_service, seen.doubt) == ({}, True, "")


@pytest.mark.parametrize(
    ("paused", "sleeping", "words"),
    [(True, False, "paused"), (False, True, "asleep"), (True, True, "paused and asleep")],
)
async def test_a_paused_or_sleeping_engine_is_out_of_service_whoever_did_it(
    engine: FakeEngine, paused: bool, sleeping: bool, words: str
) -> None:
    engine.routes = {
        "/is_paused": f'{{"is_paused":{str(paused).lower()}}}'.encode(),
        "/is_sleeping": f'{{"is_sleeping":{str(sleeping).lower()}}}'.encode(),
    }
    actuator = EngineActuator("engines", Auth())
    seen = (await actuator.read((engine.url,), DEADLINE_S))[engine.url]
    await actuator.close()

    assert not seen.in_service
    assert f"it says that it is {words}:" in seen.doubt


async def test_routes_that_are_not_there_are_said_to_be_missing_and_are_not_asked_for_at_every_tick(engine: FakeEngine) -> None:
    engine.routes = {}
    actuator = EngineActuator("engines", Auth())
    for _ in range(5):
        seen = (await actuator.read((engine.url,), DEADLINE_S))[engine.url]
    await actuator.close()

    assert seen.in_service
    assert "does not tell" in seen.doubt
    assert sorted(engine.asked) == ["GET /is_paused", "GET /is_sleeping"]


async def test_one_route_is_enough(engine: FakeEngine) -> None:
    del engine.routes["/is_paused"]
    actuator = EngineActuator("engines", Auth())
    for _ in range(3):
        seen = (await actuator.read((engine.url,), DEADLINE_S))[engine.url]
    await actuator.close()

    assert (seen.in_service, seen.doubt) == (True, "")
    assert engine.asked.count("GET /is_paused") == 1
    assert engine.asked.count("GET /is_sleeping") == 3


async def test_an_engine_that_was_away_is_asked_anew_because_it_may_be_another_one(engine: FakeEngine) -> None:
    engine.routes = {}
    actuator = EngineActuator("engines", Auth())
    await actuator.read((engine.url,), DEADLINE_S)
    actuator._forget(engine.url)
    engine.routes = FakeEngine().routes | {"/is_paused": b'{"is_paused":true}'}
    seen = (await actuator.read((engine.url,), DEADLINE_S))[engine.url]
    await actuator.close()

    assert not seen.in_service


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"is_paused":"no"}', b'{"is_paused":0}', b"<html>", b'{"is_paused":NaN}'])
async def test_what_is_no_answer_is_an_error_and_never_a_state(engine: FakeEngine, body: bytes) -> None:
    engine.routes["/is_paused"] = body
    actuator = EngineActuator("engines", Auth())
    with pytest.raises(ActuatorError) as caught:
        await actuator.read((engine.url,), DEADLINE_S)
    await actuator.close()

    assert caught.value.kind is ErrorKind.PROTOCOL


@pytest.mark.parametrize(
    ("status", "kind"), [(401, ErrorKind.UNAUTHORIZED), (403, ErrorKind.UNAUTHORIZED), (500, ErrorKind.PROTOCOL)]
)
async def test_an_engine_that_does_not_let_us_ask_says_why(engine: FakeEngine, status: int, kind: ErrorKind) -> None:
    engine.status = status
    actuator = EngineActuator("engines", Auth())
    with pytest.raises(ActuatorError) as caught:
        await actuator.read((engine.url,), DEADLINE_S)
    await actuator.close()

    assert caught.value.kind is kind


async def test_engines_that_hang_or_are_gone_keep_nobody_waiting() -> None:
    with fake_engines(3) as (well, hung, paused):
        hung.delay_s = 1.5
        paused.routes["/is_paused"] = b'{"is_paused":true}'
        gone = f"http://127.0.0.1:{free_port()}"
        actuator = EngineActuator("engines", Auth())
        started = time.monotonic()
        seen = await actuator.read((well.url, hung.url, paused.url, gone), 1.0)
        took_s = time.monotonic() - started
        await actuator.close()

    assert (seen[well.url].in_service, seen[well.url].doubt) == (True, "")
    assert not seen[paused.url].in_service
    assert "before the deadline" in seen[hung.url].doubt
    assert "cannot connect" in seen[gone].doubt
    assert took_s < 1.0


async def test_a_paused_engine_that_falls_silent_does_not_come_into_service_by_that(engine: FakeEngine) -> None:
    engine.routes["/is_paused"] = b'{"is_paused":true}'
    actuator = EngineActuator("engines", Auth())
    await actuator.read((engine.url,), DEADLINE_S)
    engine.status = 500
    silent = (await actuator.read((engine.url,), DEADLINE_S))[engine.url]
    engine.status, engine.routes = 200, FakeEngine().routes
    resumed = (await actuator.read((engine.url,), DEADLINE_S))[engine.url]
    await actuator.close()

    assert not silent.in_service
    assert "500" in silent.doubt
    assert (resumed.in_service, resumed.doubt) == (True, "")


async def test_where_nobody_answers_the_read_fails() -> None:
    actuator = EngineActuator("engines", Auth())
    with pytest.raises(ActuatorError) as caught:
        await actuator.read(tuple(f"http://127.0.0.1:{free_port()}" for _ in range(2)), DEADLINE_S)
    await actuator.close()

    assert caught.value.kind is ErrorKind.UNREACHABLE


@pytest.mark.parametrize("knob", list(Knob))
async def test_nothing_can_be_turned_and_each_knob_says_why(engine: FakeEngine, knob: Knob) -> None:
    actuator = EngineActuator("engines", Auth())
    support = actuator.supports(knob)
    with pytest.raises(ActuatorError) as caught:
        await actuator.write(engine.url, {knob: DRAIN}, DEADLINE_S)
    await actuator.close()

    assert (support.enforceable, support.why_not) == (False, WHY_NOT[knob])
    assert caught.value.kind is ErrorKind.REFUSED
    assert support.why_not in str(caught.value)
    assert engine.asked == []


@pytest.mark.parametrize("name", [*HOSTILE_NAMES, "http://", "file:///etc/passwd", "http://user:secret@127.0.0.1"])
async def test_what_is_no_address_is_left_out_and_refused(name: str) -> None:
    actuator = EngineActuator("engines", Auth())
    assert await actuator.read((name,), DEADLINE_S) == {}
    with pytest.raises(ActuatorError) as caught:
        await actuator.write(name, {Knob.ADMISSION: DRAIN}, DEADLINE_S)
    await actuator.close()

    assert caught.value.kind is ErrorKind.NOT_FOUND


async def test_a_credential_is_sent_and_stands_in_no_message(engine: FakeEngine, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken-of-the-engine\n")
    engine.status = 403
    actuator = EngineActuator("engines", Auth(bearer_file=tmp_path / "token"))
    with pytest.raises(ActuatorError) as caught:
        await asyncio.wait_for(actuator.read((engine.url,), DEADLINE_S), DEADLINE_S)
    await actuator.close()

    assert "t0ken" not in str(caught.value)


class WorldWithEngines(World):
    """The scenarios' world, with an engine behind each server that the watchdog asks by its own routes."""

    engines: Mapping[str, FakeEngine]
    looking: EngineActuator

    def backend(self, name: str, server: str = "", url: str = "") -> Backend:
        of_edge = super().backend(name, server, url)
        return replace(of_edge, targets=(*of_edge.targets, Target("engines", self.engines[name].url, "all")))

    def start(self) -> None:
        super().start()
        both: dict[str, Actuator] = {"edge": self.gateway, "engines": self.looking}
        log = DecisionLog(self.ledger, self.clock.wall)
        reconciler = Reconciler(both, self.ledger, log, self._guards.lease_s, self.clock.wall)
        self.loop.parts = replace(self.loop.parts, reconciler=reconciler)


@pytest.mark.parametrize("resumed", [False, True])
async def test_while_a_trainer_has_one_engine_paused_no_second_one_is_taken_out(tmp_path: Path, resumed: bool) -> None:
    names = ("a", "b", "c", "d")
    with fake_engines(len(names)) as engines:
        WorldWithEngines.engines = dict(zip(names, engines, strict=True))
        WorldWithEngines.looking = EngineActuator("engines", Auth())
        world = WorldWithEngines(tmp_path / "ledger.db", names)
        world.engines["a"].routes["/is_paused"] = b'{"is_paused":true}'
        await world.run(2)
        world.sick["b"].state = State.HUNG
        await world.run(2)
        while_paused = world.admission("b")
        refused = [d for d in world.ledger.decisions() if d.verdict is Outcome.REFUSED]
        if resumed:
            world.engines["a"].routes["/is_paused"] = b'{"is_paused":false}'
        await world.run(2)
        await world.looking.close()
        world.ledger.close()

    assert while_paused == SERVE
    assert "1 of 4 out already (a)" in refused[0].reason
    assert world.admission("b") == (DRAIN if resumed else SERVE)
