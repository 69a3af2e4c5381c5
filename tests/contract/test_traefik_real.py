"""What only Traefik can show: its real traffic, both forms of weights, files that it does not take, other hands in its file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators import Actuator, build_actuator
from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.config_file import ConfigFile
from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind, ServerState
from tailkeeper_watchdog.actuators.traefik import TraefikActuator, parse_services
from tailkeeper_watchdog.gateways import TraefikGateway, TraefikReplica
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob
from tests.contract.envoy_world import rename_into
from tests.contract.traefik_world import WEIGHTED, Traefik, traefik
from tests.e2e.real_programs import RealPrograms, free_port, open_url, wait_until
from tests.e2e.tiny_servers import TinyBackend

pytestmark = pytest.mark.real
DEADLINE_S = 5.0
REQUESTS = 20
SERVERS = """\
http:
  routers:
    front: {{rule: "PathPrefix(`/`)", service: llm, entryPoints: [web]}}
  services:
    llm:
      loadbalancer:   # any case is Traefik's
        strategy: {strategy}
        servers:
        - {{url: "http://127.0.0.1:{a}", weight: 3}}
        - url: "http://127.0.0.1:{b}"
"""


class Pool:
    """A Traefik before some small backends, and its actuator."""

    def __init__(self, stack: AsyncExitStack, started: Traefik, backends: Sequence[TinyBackend]) -> None:
        self.traefik = started
        self.backends = backends
        self.actuator: Actuator = TraefikActuator("edge", "llm", started.file, started.api_url, Auth())
        stack.push_async_callback(self.actuator.close)
        self.names = tuple(f"http://127.0.0.1:{backend.port}" for backend in backends)

    async def states(self) -> list[ServerState]:
        found = await self.actuator.read(self.names, DEADLINE_S)
        return [found[name] for name in self.names]

    async def drain(self, n: int, admission: str = DRAIN, deadline_s: float = DEADLINE_S) -> None:
        await self.actuator.write(self.names[n], {Knob.ADMISSION: admission}, deadline_s)

    async def weigh(self, n: int, weight: float) -> None:
        await self.actuator.write(self.names[n], {Knob.WEIGHT: weight}, DEADLINE_S)

    async def traffic(self, requests: int = REQUESTS) -> list[int]:
        before = [backend.requests for backend in self.backends]
        await asyncio.to_thread(lambda: [get(f"{self.traefik.url}/work") for _ in range(requests)])
        return [backend.requests - then for backend, then in zip(self.backends, before, strict=True)]


def get(url: str) -> str:
    with open_url(url, timeout=10) as response:
        return str(response.read().decode())


@pytest_asyncio.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


def started(programs: RealPrograms, stack: AsyncExitStack, text: str, **values: Any) -> Pool:
    backends = [programs.backend(name) for name in "ab"]
    made = text.format(a=backends[0].port, b=backends[1].port, **values)
    return Pool(stack, stack.enter_context(traefik(programs.tmp_path, made)), backends)


@pytest_asyncio.fixture
async def pool(programs: RealPrograms, stack: AsyncExitStack) -> Pool:
    return started(programs, stack, WEIGHTED, weight=1)


async def test_a_weight_of_one_can_be_parted_and_traffic_follows_and_the_file_comes_back_as_it_was(pool: Pool) -> None:
    before = pool.traefik.file.read_bytes()
    await pool.weigh(0, 0.18)
    assert await pool.traffic(59) == [9, 50]
    assert [state.values[Knob.WEIGHT] for state in await pool.states()] == [0.18, 1.0]
    assert b"# the first" in pool.traefik.file.read_bytes()
    await pool.weigh(0, 1.0)
    assert pool.traefik.file.read_bytes() == before
    assert pool.traefik.weights() == {"a": 1, "b": 1}


async def test_servers_of_one_load_balancer_have_weights_too(programs: RealPrograms, stack: AsyncExitStack) -> None:
    pool = started(programs, stack, SERVERS, strategy="wrr")
    before = pool.traefik.file.read_bytes()
    assert await pool.traffic(40) == [30, 10]
    await pool.weigh(0, 0.5)
    assert await pool.traffic(50) == [30, 20]
    await pool.drain(1)
    assert await pool.traffic() == [REQUESTS, 0]
    with pytest.raises(ActuatorError, match="last one of its pool"):
        await pool.drain(0)
    await pool.drain(1, SERVE)
    await pool.weigh(0, 1.0)
    assert pool.traefik.file.read_bytes() == before


async def test_a_drain_stops_new_requests_at_once_while_a_stream_in_flight_ends_in_full(pool: Pool) -> None:
    a = pool.backends[0]
    await pool.drain(1)
    stream = asyncio.create_task(asyncio.to_thread(get, f"{pool.traefik.url}/stream"))
    assert await asyncio.to_thread(a.streaming.wait, DEADLINE_S)
    await pool.drain(1, SERVE)
    await pool.drain(0)

    assert await pool.traffic() == [0, REQUESTS]
    assert not stream.done()
    a.release.set()
    assert await stream == "a first\na last\n"


async def test_a_new_actuator_knows_what_was_normal_from_traefik_itself(pool: Pool, stack: AsyncExitStack) -> None:
    before = pool.traefik.file.read_bytes()
    await pool.weigh(0, 0.25)
    await pool.drain(0)
    again = Pool(stack, pool.traefik, pool.backends)
    assert (await again.states())[0].values == {Knob.WEIGHT: 0.25, Knob.ADMISSION: DRAIN}
    await again.drain(0, SERVE)
    await again.weigh(0, 1.0)
    assert pool.traefik.file.read_bytes() == before


async def test_a_script_that_loads_and_dumps_the_file_takes_nothing_from_us(pool: Pool) -> None:
    normal = yaml.safe_load(pool.traefik.file.read_text())
    await pool.weigh(0, 0.25)
    await pool.drain(0)
    rename_into(pool.traefik.file, yaml.safe_dump(yaml.safe_load(pool.traefik.file.read_text())))
    await pool.drain(0, SERVE)
    assert (await pool.states())[0].values == {Knob.WEIGHT: 0.25, Knob.ADMISSION: SERVE}
    await pool.weigh(0, 1.0)
    assert yaml.safe_load(pool.traefik.file.read_text()) == normal


async def test_a_template_that_renders_the_file_anew_ends_what_was_ours(pool: Pool) -> None:
    before = pool.traefik.file.read_text()
    await pool.weigh(0, 0.25)
    await pool.drain(0)
    rename_into(pool.traefik.file, before.replace("weight: 1", "weight: 5"))
    wait_until(lambda: pool.traefik.weights() == {"a": 5, "b": 5}, "the new file")
    assert [state.values for state in await pool.states()] == [{Knob.WEIGHT: 1.0, Knob.ADMISSION: SERVE}] * 2


async def test_the_last_one_is_never_drained_because_traefik_would_answer_503(pool: Pool) -> None:
    await pool.weigh(0, 0.0)
    before = pool.traefik.file.read_bytes()
    for act in (pool.drain(1), pool.weigh(1, 0.0)):
        with pytest.raises(ActuatorError, match="last one of its pool") as caught:
            await act
        assert caught.value.kind is ErrorKind.REFUSED
    assert pool.traefik.file.read_bytes() == before
    assert await pool.traffic() == [0, REQUESTS]


@pytest.mark.parametrize("strategy", ["p2c", "hrw"])
async def test_a_strategy_that_does_not_keep_to_weights_is_said(
    programs: RealPrograms, stack: AsyncExitStack, strategy: str
) -> None:
    pool = started(programs, stack, SERVERS, strategy=strategy)
    state = (await pool.states())[0]
    assert state.values == {}
    assert {knob for knob, why in state.cannot.items() if strategy in why} == {Knob.WEIGHT, Knob.ADMISSION}
    before = pool.traefik.file.read_bytes()
    with pytest.raises(ActuatorError, match=f"strategy: {strategy}") as caught:
        await pool.drain(0)
    assert caught.value.kind is ErrorKind.REFUSED
    assert pool.traefik.file.read_bytes() == before


GARBAGE = ["", "http: [", "[]", "http: 7", "http: {services: {llm: {weighted: {services: [7]}}}}", "{{ range }}", "\x00"]


@pytest.mark.parametrize("text", GARBAGE)
async def test_garbage_in_the_file_is_said_and_not_touched_and_traefik_is_still_read(pool: Pool, text: str) -> None:
    pool.traefik.file.write_text(text)
    with pytest.raises(ActuatorError) as caught:
        await pool.drain(0, deadline_s=1.0)
    assert caught.value.kind in (ErrorKind.PROTOCOL, ErrorKind.NOT_FOUND)
    assert pool.traefik.file.read_text() == text


async def test_what_traefik_does_not_take_is_put_back_because_it_would_be_nobodys_later(pool: Pool) -> None:
    """A wrong field elsewhere in the file: Traefik keeps the old configuration and says so only in its log."""
    theirs = pool.traefik.file.read_text() + "    wrong: {nothing: {}}\n"
    rename_into(pool.traefik.file, theirs)
    with pytest.raises(ActuatorError, match="put back as it was") as caught:
        await pool.drain(0, deadline_s=0.8)
    assert caught.value.kind is ErrorKind.TIMEOUT
    assert pool.traefik.file.read_text() == theirs
    assert (await pool.states())[0].values[Knob.ADMISSION] == SERVE


async def test_a_dead_traefik_is_unreachable_and_its_file_is_not_touched(pool: Pool) -> None:
    before = pool.traefik.file.read_bytes()
    pool.traefik.process.kill()
    pool.traefik.process.wait()
    with pytest.raises(ActuatorError) as caught:
        await pool.drain(0)
    assert caught.value.kind is ErrorKind.UNREACHABLE
    assert pool.traefik.file.read_bytes() == before


async def test_a_traefik_that_dies_while_it_is_written_leaves_the_effect_unknown(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    actuator = pool.actuator
    assert isinstance(actuator, TraefikActuator)
    whole = ConfigFile.changed

    async def then_dies(*given: Any, **more: Any) -> Any:
        pool.traefik.process.kill()
        pool.traefik.process.wait()
        return await whole(*given, **more)

    monkeypatch.setattr(ConfigFile, "changed", then_dies)
    with pytest.raises(ActuatorError) as caught:
        await pool.drain(0)
    assert caught.value.kind is ErrorKind.PROTOCOL
    assert "llm-tailkeeper-drained" in pool.traefik.file.read_text()


async def test_with_traefiks_own_throttle_an_isolated_change_is_quick(programs: RealPrograms, stack: AsyncExitStack) -> None:
    backends = [programs.backend(name) for name in "ab"]
    text = WEIGHTED.format(weight=1, a=backends[0].port, b=backends[1].port)
    pool = Pool(stack, stack.enter_context(traefik(programs.tmp_path, text, throttle="2s")), backends)
    await asyncio.sleep(2.5)  # Traefik's rest after its own start
    clock = asyncio.get_running_loop().time
    began = clock()
    await pool.drain(0)
    assert clock() - began < 1.0


async def test_a_child_that_is_down_is_out_of_service_only_where_traefik_keeps_it_away(
    programs: RealPrograms, stack: AsyncExitStack
) -> None:
    """Without `healthCheck: {}` at the weighted service it gets its share of requests, and answers them with 503."""
    alive = programs.backend("a")
    text = WEIGHTED.format(weight=1, a=alive.port, b=free_port())
    text = text.replace("}]}}\n", "}], healthCheck: {path: /health, interval: 500ms, timeout: 400ms}}}\n")
    without, text = text, text.replace("      weighted:\n", "      weighted:\n        healthCheck: {}\n")
    pool = Pool(stack, stack.enter_context(traefik(programs.tmp_path, text)), [alive])
    dead = pool.traefik.service("b")["loadBalancer"]["servers"][0]["url"]
    wait_until(lambda: pool.traefik.service("b")["serverStatus"][dead] == "DOWN", "Traefik's own check")
    assert not (await pool.actuator.read((dead,), DEADLINE_S))[dead].in_service
    assert await pool.traffic() == [REQUESTS]
    with pytest.raises(ActuatorError, match="last one"):
        await pool.drain(0)

    rename_into(pool.traefik.file, without)
    wait_until(lambda: "healthCheck" not in pool.traefik.service()["weighted"], "the file without it")
    assert (await pool.actuator.read((dead,), DEADLINE_S))[dead].in_service


async def test_a_child_with_two_servers_is_not_one_server(programs: RealPrograms, stack: AsyncExitStack) -> None:
    a, b, c = (programs.backend(name) for name in "abc")
    text = WEIGHTED.format(weight=1, a=a.port, b=b.port)
    text = text.replace(
        f'{{url: "http://127.0.0.1:{a.port}"}}', f'{{url: "http://127.0.0.1:{a.port}"}}, {{url: "http://127.0.0.1:{c.port}"}}'
    )
    pool = Pool(stack, stack.enter_context(traefik(programs.tmp_path, text)), [a, b, c])
    assert set(await pool.actuator.read(pool.names, DEADLINE_S)) == {pool.names[1]}
    with pytest.raises(ActuatorError, match="a child service of its own") as caught:
        await pool.drain(0)
    assert caught.value.kind is ErrorKind.NOT_FOUND


async def test_two_traefiks_are_both_written_each_by_its_own_file(programs: RealPrograms, stack: AsyncExitStack) -> None:
    backends = [programs.backend(name) for name in "ab"]
    text = WEIGHTED.format(weight=1, a=backends[0].port, b=backends[1].port)
    first, second = (stack.enter_context(traefik(programs.tmp_path, text)) for _ in range(2))
    replica = TraefikReplica(api_url=second.api_url, file=second.file)
    one = {"name": "edge", "kind": "traefik", "file": first.file, "service": "llm@file", "api_url": first.api_url}
    actuator = build_actuator(TraefikGateway.model_validate({**one, "replicas": (replica,)}))
    stack.push_async_callback(actuator.close)
    name = f"127.0.0.1:{backends[0].port}"
    await actuator.write(name, {Knob.ADMISSION: DRAIN}, DEADLINE_S)
    state = (await actuator.read((name,), DEADLINE_S))[name]
    assert (state.values[Knob.ADMISSION], state.doubt) == (DRAIN, "")
    assert [t.weights() for t in (first, second)] == [{"a": 0, "b": 1}] * 2


def test_the_settings_refuse_a_file_of_another_format() -> None:
    with pytest.raises(ValueError, match=r"must end in \.yaml or \.yml"):
        TraefikGateway(name="t", kind="traefik", file=Path("dynamic.toml"), service="llm", api_url="http://127.0.0.1:1")


def test_a_list_of_services_that_is_none_is_an_error_and_never_a_state() -> None:
    unnamed = json.loads('[{"name": "x@file"}]')
    hostile: tuple[Any, ...] = (7, {}, [7], [{}], [{"name": "llm@file", "weighted": {"services": 7}}], unnamed)
    for answer in hostile:
        with pytest.raises(CallError) as caught:
            parse_services(answer, "llm")
        assert caught.value.kind in (ErrorKind.PROTOCOL, ErrorKind.NOT_FOUND)
