"""What only Envoy can show: its real traffic, whole-number weights, files that it rejects, panic, other hands in its file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators import Actuator, build_actuator
from tailkeeper_watchdog.actuators.config_file import ConfigFile
from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind, ServerState
from tailkeeper_watchdog.actuators.envoy import EnvoyActuator
from tailkeeper_watchdog.gateways import EnvoyGateway, EnvoyReplica
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob
from tests.contract.envoy_world import TYPES, Envoy, assignment, endpoint, envoy, rename_into
from tests.e2e.real_programs import RealPrograms, free_port, open_url, wait_until
from tests.e2e.tiny_servers import TinyBackend

pytestmark = pytest.mark.real
DEADLINE_S = 5.0
REQUESTS = 20
PEOPLE_WROTE = """\
# of the edge
resources:
- "@type": {type}
  clusterName: llm
  endpoints:
  - lbEndpoints:
    - endpoint: {{address: {{socketAddress: {{address: 127.0.0.1, portValue: {a}}}}}}}  # the old one
    - endpoint:
        address:
          socketAddress:
            address: 127.0.0.1
            portValue: {b}
      loadBalancingWeight: 2  # twice as big
"""
GARBAGE = ["", "{", "[]", '{"resources": 7}', '{"resources": [{"cluster_name": "llm", "endpoints": [7]}]}', "\x00"]


class Pool:
    """An Envoy before some small backends, and its actuator."""

    def __init__(self, stack: AsyncExitStack, started: Envoy, backends: Sequence[TinyBackend]) -> None:
        self.envoy = started
        self.backends = backends
        self.actuator: Actuator = EnvoyActuator("edge", "llm", started.file, started.admin_url, Auth())
        stack.push_async_callback(self.actuator.close)
        self.names = tuple(f"127.0.0.1:{backend.port}" for backend in backends)

    async def states(self) -> list[ServerState]:
        found = await self.actuator.read(self.names, DEADLINE_S)
        return [found[name] for name in self.names]

    async def drain(self, n: int, admission: str = DRAIN) -> None:
        await self.actuator.write(self.names[n], {Knob.ADMISSION: admission}, DEADLINE_S)

    async def weigh(self, n: int, weight: float) -> None:
        await self.actuator.write(self.names[n], {Knob.WEIGHT: weight}, DEADLINE_S)

    async def traffic(self, requests: int = REQUESTS) -> list[int]:
        before = [backend.requests for backend in self.backends]
        await asyncio.to_thread(lambda: [get(f"{self.envoy.url}/work") for _ in range(requests)])
        return [backend.requests - then for backend, then in zip(self.backends, before, strict=True)]


def get(url: str) -> str:
    with open_url(url, timeout=10) as response:
        return str(response.read().decode())


@pytest_asyncio.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest_asyncio.fixture
async def pool(programs: RealPrograms, stack: AsyncExitStack) -> Pool:
    """Two backends whose weights are left out, as most people have it: 1 each."""
    backends = [programs.backend(name) for name in "ab"]
    text = json.dumps(assignment([endpoint(backend.port, None) for backend in backends]))
    return Pool(stack, stack.enter_context(envoy(programs.tmp_path, text)), backends)


async def test_a_weight_of_one_can_be_parted_and_traffic_follows_and_the_file_comes_back_as_it_was(pool: Pool) -> None:
    before = pool.envoy.file.read_bytes()
    await pool.weigh(0, 0.18)
    assert await pool.traffic(59) == [9, 50]
    assert [state.values[Knob.WEIGHT] for state in await pool.states()] == [0.18, 1.0]
    await pool.weigh(0, 1.0)
    assert pool.envoy.file.read_bytes() == before
    assert [pool.envoy.host(backend.port) for backend in pool.backends] == [(1, "healthy")] * 2


async def test_a_drain_stops_new_requests_at_once_while_a_stream_in_flight_ends_in_full(pool: Pool) -> None:
    a = pool.backends[0]
    await pool.drain(1)
    stream = asyncio.create_task(asyncio.to_thread(get, f"{pool.envoy.url}/stream"))
    assert await asyncio.to_thread(a.streaming.wait, DEADLINE_S)
    await pool.drain(1, SERVE)
    await pool.drain(0)

    assert await pool.traffic() == [0, REQUESTS]
    assert (await pool.states())[0].sessions == 1
    assert not stream.done()
    await pool.weigh(0, 0.5)  # the scale of the whole pool changes under the stream
    await pool.weigh(0, 1.0)
    a.release.set()
    assert await stream == "a first\na last\n"


async def test_a_new_actuator_knows_what_was_normal_from_envoy_itself(pool: Pool, stack: AsyncExitStack) -> None:
    before = pool.envoy.file.read_bytes()
    await pool.weigh(0, 0.25)
    await pool.drain(0)
    again = Pool(stack, pool.envoy, pool.backends)
    assert (await again.states())[0].values == {Knob.WEIGHT: 0.25, Knob.ADMISSION: DRAIN}
    await again.drain(0, SERVE)
    await again.weigh(0, 1.0)
    assert pool.envoy.file.read_bytes() == before


async def test_the_last_one_is_never_drained_because_envoy_would_panic_and_serve_from_all(pool: Pool) -> None:
    await pool.drain(0)
    before = pool.envoy.file.read_bytes()
    for act in (pool.drain(1), pool.weigh(1, 0.0)):
        with pytest.raises(ActuatorError, match="last one of its pool") as caught:
            await act
        assert caught.value.kind is ErrorKind.REFUSED
    assert pool.envoy.file.read_bytes() == before
    assert await pool.traffic() == [0, REQUESTS]


async def test_two_of_three_drained_are_no_panic_and_two_of_three_unhealthy_are_and_a_drain_is_doubted_then(
    programs: RealPrograms, stack: AsyncExitStack
) -> None:
    backends = [programs.backend(name) for name in "abc"]
    rows = [endpoint(backend.port, None) for backend in backends]
    pool = Pool(stack, stack.enter_context(envoy(programs.tmp_path, json.dumps(assignment(rows)))), backends)
    await pool.drain(1)
    await pool.drain(2)
    assert await pool.traffic() == [REQUESTS, 0, 0]
    assert [state.doubt for state in await pool.states()] == [""] * 3

    rows = [
        endpoint(b.port, None, health_status=health)
        for b, health in zip(backends, ("UNHEALTHY", "DRAINING", "HEALTHY"), strict=True)
    ]
    rows += [endpoint(free_port(), None, health_status="UNHEALTHY")]
    rename_into(pool.envoy.file, json.dumps(assignment(rows)))
    wait_until(lambda: "draining" in pool.envoy.host(backends[1].port)[1], "the file of another hand")
    doubts = [state.doubt for state in await pool.states()]
    assert "1 of 3 endpoints that are not drained are healthy, below Envoy's panic threshold of 50 %" in doubts[1]
    assert doubts[0] == doubts[2] == ""


async def test_what_others_have_in_the_file_stays_and_so_do_their_drains(programs: RealPrograms, stack: AsyncExitStack) -> None:
    backends = [programs.backend(name) for name in "abc"]
    a, b, c = (backend.port for backend in backends)
    rows = [
        endpoint(a, 7, metadata={"filter_metadata": {"envoy.lb": {"canary": True}}}, health_status="HEALTHY"),
        endpoint(b, None, health_status="DRAINING"),
    ]
    document = assignment(rows)
    more = {"locality": {"zone": "z2"}, "priority": 0, "lb_endpoints": [endpoint(c, 3)], "load_balancing_weight": 5}
    document["resources"][0]["endpoints"].append(more)
    document = {"version_info": "7", **document}
    before = json.dumps(document, indent=2)
    pool = Pool(stack, stack.enter_context(envoy(programs.tmp_path, before)), backends)
    assert [state.values for state in await pool.states()] == [
        {Knob.WEIGHT: 1.0, Knob.ADMISSION: SERVE},
        {Knob.WEIGHT: 1.0, Knob.ADMISSION: DRAIN},
        {Knob.WEIGHT: 1.0, Knob.ADMISSION: SERVE},
    ]

    await pool.weigh(0, 0.5)
    there = pool.envoy.listed(a)
    assert there["load_balancing_weight"] == 350
    assert there["metadata"]["filter_metadata"]["envoy.lb"] == {"canary": True}
    assert pool.envoy.host(c)[0] == 300
    await pool.drain(0)
    await pool.drain(0, SERVE)
    await pool.weigh(0, 1.0)
    assert pool.envoy.file.read_text() == before
    await pool.drain(1, SERVE)
    assert "health_status" not in pool.envoy.listed(b)


async def test_yaml_with_comments_and_the_other_spelling_of_fields_is_changed_in_place(
    programs: RealPrograms, stack: AsyncExitStack
) -> None:
    backends = [programs.backend(name) for name in "ab"]
    a, b = (backend.port for backend in backends)
    text = PEOPLE_WROTE.format(type=f"{TYPES}.config.endpoint.v3.ClusterLoadAssignment", a=a, b=b)
    pool = Pool(stack, stack.enter_context(envoy(programs.tmp_path, text, ".yaml")), backends)
    await pool.weigh(0, 0.5)
    await pool.drain(1)
    assert [pool.envoy.host(port) for port in (a, b)] == [(50, "healthy"), (200, "/eds_status_draining")]
    assert "# twice as big" in pool.envoy.file.read_text()
    await pool.drain(1, SERVE)
    await pool.weigh(0, 1.0)
    assert pool.envoy.file.read_text() == text


async def test_a_file_that_envoy_rejects_is_put_back_as_it_was(pool: Pool) -> None:
    """Wrong before us, by an edit in place that Envoy has not seen: our rename would publish it."""
    document = json.loads(pool.envoy.file.read_text())
    document["resources"][0]["endpoints"][0]["lb_endpoints"][1]["load_balancing_weight"] = 0
    theirs = json.dumps(document)
    pool.envoy.file.write_text(theirs)
    with pytest.raises(ActuatorError, match=r"Envoy rejected .* it was put back as it was") as caught:
        await pool.drain(0)
    assert caught.value.kind is ErrorKind.REFUSED
    assert pool.envoy.file.read_text() == theirs
    assert [state.values[Knob.ADMISSION] for state in await pool.states()] == [SERVE, SERVE]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"resources": 7}', '{"resources": [{"cluster_name": "llm", "endpoints": [7]}]}', "\x00"]
)
async def test_garbage_in_the_file_is_said_and_not_touched_and_envoy_is_still_read(pool: Pool, text: str) -> None:
    pool.envoy.file.write_text(text)
    with pytest.raises(ActuatorError) as caught:
        await pool.drain(0)
    assert caught.value.kind is ErrorKind.PROTOCOL
    assert pool.envoy.file.read_text() == text
    assert [state.values[Knob.ADMISSION] for state in await pool.states()] == [SERVE, SERVE]


async def test_a_cluster_that_is_not_there_is_a_mistake_in_the_configuration(pool: Pool) -> None:
    actuator = EnvoyActuator("edge", "nobody", pool.envoy.file, pool.envoy.admin_url, Auth())
    with pytest.raises(ActuatorError, match="check `cluster`") as caught:
        await actuator.read(pool.names, DEADLINE_S)
    await actuator.close()
    assert caught.value.kind is ErrorKind.NOT_FOUND


async def test_a_dead_envoy_is_unreachable_and_its_file_is_not_touched(pool: Pool) -> None:
    before = pool.envoy.file.read_bytes()
    pool.envoy.process.kill()
    pool.envoy.process.wait()
    with pytest.raises(ActuatorError) as caught:
        await pool.drain(0)
    assert caught.value.kind is ErrorKind.UNREACHABLE
    assert pool.envoy.file.read_bytes() == before


async def test_an_envoy_that_dies_while_it_is_written_leaves_the_effect_unknown(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    actuator = pool.actuator
    assert isinstance(actuator, EnvoyActuator)
    whole = ConfigFile.changed

    async def then_dies(*given: Any, **more: Any) -> Any:
        written = await whole(*given, **more)
        pool.envoy.process.kill()
        pool.envoy.process.wait()
        return written

    monkeypatch.setattr(ConfigFile, "changed", then_dies)
    with pytest.raises(ActuatorError) as caught:
        await pool.drain(0)
    assert caught.value.kind is ErrorKind.PROTOCOL
    assert caught.value.retryable
    assert pool.envoy.listed(pool.backends[0].port)["health_status"] == "DRAINING"


async def test_a_file_that_is_not_the_one_of_envoy_is_put_back_when_it_is_not_taken(pool: Pool, tmp_path: Path) -> None:
    """What came into force after it was given up would be nobody's."""
    other = tmp_path / "other.json"
    other.write_bytes(pool.envoy.file.read_bytes())
    actuator = EnvoyActuator("edge", "llm", other, pool.envoy.admin_url, Auth())
    with pytest.raises(ActuatorError, match=r"watched_directory.*put back as it was") as caught:
        await actuator.write(pool.names[0], {Knob.ADMISSION: DRAIN}, 0.6)
    await actuator.close()
    assert caught.value.kind is ErrorKind.TIMEOUT
    assert other.read_bytes() == pool.envoy.file.read_bytes()


async def test_a_change_that_stands_in_the_file_and_was_never_noticed_is_published_again(pool: Pool) -> None:
    await pool.drain(0)
    drained = pool.envoy.file.read_text()
    await pool.drain(0, SERVE)
    pool.envoy.file.write_text(drained)  # in place, which Envoy does not see
    assert (await pool.states())[0].values[Knob.ADMISSION] == SERVE
    await pool.drain(0)
    assert (await pool.states())[0].values[Knob.ADMISSION] == DRAIN
    assert pool.envoy.file.read_text() == drained


async def test_an_endpoint_that_another_hand_adds_is_brought_to_the_scale_of_the_others(
    pool: Pool, programs: RealPrograms
) -> None:
    await pool.weigh(0, 0.5)
    new = programs.backend("c").port
    document = json.loads(pool.envoy.file.read_text())
    document["resources"][0]["endpoints"][0]["lb_endpoints"].append(endpoint(new, None))
    rename_into(pool.envoy.file, json.dumps(document))
    wait_until(lambda: f"127.0.0.1:{new}::weight::1\n" in pool.envoy.ask("/clusters"), "the new endpoint")
    await pool.weigh(0, 0.4)
    assert pool.envoy.host(new)[0] == 100
    await pool.weigh(0, 1.0)
    assert "load_balancing_weight" not in pool.envoy.listed(new)


async def test_hosts_that_envoys_own_checks_keep_away_are_out_of_service_and_nobody_to_rely_on(
    programs: RealPrograms, stack: AsyncExitStack
) -> None:
    backends = [programs.backend(name) for name in "ab"]
    text = json.dumps(assignment([endpoint(backends[0].port, None), endpoint(free_port(), None)]))
    checks = {
        "timeout": "1s",
        "interval": "0.1s",
        "no_traffic_interval": "0.1s",
        "unhealthy_threshold": 1,
        "healthy_threshold": 1,
    }
    health = {**checks, "http_health_check": {"path": "/health"}}
    pool = Pool(stack, stack.enter_context(envoy(programs.tmp_path, text, health_checks=[health])), backends[:1])
    wait_until(lambda: "failed_active_hc" in pool.envoy.ask("/clusters"), "Envoy's own check")
    with pytest.raises(ActuatorError, match="last one"):
        await pool.drain(0)
    dead = next(line.split("::")[1] for line in pool.envoy.ask("/clusters").splitlines() if "failed_active_hc" in line)
    state = (await pool.actuator.read((dead,), DEADLINE_S))[dead]
    assert not state.in_service
    assert state.values[Knob.ADMISSION] == SERVE


async def test_a_random_balance_has_no_weights_and_says_so(programs: RealPrograms, stack: AsyncExitStack) -> None:
    backends = [programs.backend(name) for name in "ab"]
    text = json.dumps(assignment([endpoint(backend.port) for backend in backends]))
    pool = Pool(stack, stack.enter_context(envoy(programs.tmp_path, text, lb_policy="RANDOM")), backends)
    state = (await pool.states())[0]
    assert "RANDOM" in state.cannot[Knob.WEIGHT]
    assert Knob.WEIGHT not in state.values
    with pytest.raises(ActuatorError, match="ROUND_ROBIN") as caught:
        await pool.weigh(0, 0.5)
    assert caught.value.kind is ErrorKind.REFUSED
    await pool.drain(0)
    assert await pool.traffic() == [0, REQUESTS]


async def test_two_envoys_are_both_written_each_by_its_own_file(programs: RealPrograms, stack: AsyncExitStack) -> None:
    backends = [programs.backend(name) for name in "ab"]
    text = json.dumps(assignment([endpoint(backend.port) for backend in backends]))
    first, second = (stack.enter_context(envoy(programs.tmp_path, text)) for _ in range(2))
    replica = EnvoyReplica(admin_url=second.admin_url, eds_file=second.file)
    actuator = build_actuator(
        EnvoyGateway(
            name="edge", kind="envoy", eds_file=first.file, cluster="llm", admin_url=first.admin_url, replicas=(replica,)
        )
    )
    name = f"127.0.0.1:{backends[0].port}"
    await actuator.write(name, {Knob.ADMISSION: DRAIN}, DEADLINE_S)
    state = (await actuator.read((name,), DEADLINE_S))[name]
    assert (state.values[Knob.ADMISSION], state.doubt) == (DRAIN, "")
    assert [e.host(backends[0].port)[1] for e in (first, second)] == ["/eds_status_draining"] * 2
    await actuator.close()


async def test_a_cluster_that_came_by_cds_is_the_same(programs: RealPrograms, stack: AsyncExitStack) -> None:
    backends = [programs.backend(name) for name in "ab"]
    text = json.dumps(assignment([endpoint(backend.port, None) for backend in backends]))
    pool = Pool(stack, stack.enter_context(envoy(programs.tmp_path, text, by_cds=True)), backends)
    await pool.weigh(0, 0.18)
    await pool.drain(1)
    assert [state.values for state in await pool.states()] == [
        {Knob.WEIGHT: 0.18, Knob.ADMISSION: SERVE},
        {Knob.WEIGHT: 1.0, Knob.ADMISSION: DRAIN},
    ]
    await pool.drain(1, SERVE)
    await pool.weigh(0, 1.0)
    assert pool.envoy.file.read_text() == text


def test_the_settings_refuse_a_file_of_another_format() -> None:
    with pytest.raises(ValueError, match=r"must end in \.json or \.yaml"):
        EnvoyGateway(name="e", kind="envoy", eds_file=Path("eds.pb"), cluster="llm", admin_url="http://127.0.0.1:1")
