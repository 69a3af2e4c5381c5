"""What only HAProxy can show: its real traffic, coarse weights, maintenance by other hands, replicas that differ."""

from __future__ import annotations

import asyncio
import urllib.request

import pytest

from tailkeeper_watchdog.actuators import Actuator, build_actuator
from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind
from tailkeeper_watchdog.actuators.haproxy import HaproxyActuator
from tailkeeper_watchdog.gateways import HaproxyGateway
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob
from tests.e2e.real_programs import Haproxy, HaproxyServer, RealPrograms, free_port, open_url, wait_until
from tests.e2e.tiny_servers import TinyBackend

pytestmark = pytest.mark.real
DEADLINE_S = 5.0
REQUESTS = 60


def get(url: str | urllib.request.Request) -> str:
    with open_url(url, timeout=10) as response:
        return str(response.read().decode())


def two_backends(programs: RealPrograms) -> tuple[TinyBackend, TinyBackend, Haproxy, Actuator]:
    a, b = programs.backend("a"), programs.backend("b")
    haproxy = programs.haproxy([HaproxyServer("a", a.port), HaproxyServer("b", b.port)])
    return a, b, haproxy, build_actuator(HaproxyGateway(name="edge", kind="haproxy", socket=haproxy.socket))


def send(haproxy: Haproxy) -> None:
    for _ in range(REQUESTS):
        get(f"{haproxy.url}/work")


async def test_a_drain_stops_new_requests_at_once_while_a_stream_in_flight_ends_in_full(programs: RealPrograms) -> None:
    a, b, haproxy, actuator = two_backends(programs)
    await actuator.write("llm/b", {Knob.ADMISSION: DRAIN}, DEADLINE_S)
    stream = asyncio.create_task(asyncio.to_thread(get, f"{haproxy.url}/stream"))
    assert await asyncio.to_thread(a.streaming.wait, DEADLINE_S)

    await actuator.write("llm/b", {Knob.ADMISSION: SERVE}, DEADLINE_S)
    await actuator.write("llm/a", {Knob.ADMISSION: DRAIN}, DEADLINE_S)
    before = a.requests
    await asyncio.to_thread(send, haproxy)

    assert a.requests == before == 1
    assert b.requests == REQUESTS
    assert (await actuator.read(("llm/a",), DEADLINE_S))["llm/a"].sessions == 1
    assert not stream.done()
    a.release.set()
    assert await stream == "a first\na last\n"
    async with asyncio.timeout(DEADLINE_S):  # the client has its last byte a moment before HAProxy counts the session out
        while (await actuator.read(("llm/a",), DEADLINE_S))["llm/a"].sessions:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_client_bound_to_a_server_by_cookie_still_reaches_it_after_a_drain(programs: RealPrograms) -> None:
    """A limit of HAProxy that the documentation of this actuator states; should it ever change, the words must too."""
    a, b = programs.backend("a"), programs.backend("b")
    servers = [HaproxyServer(backend.name, backend.port, f"weight 100 cookie {backend.name}") for backend in (a, b)]
    haproxy = programs.haproxy(servers, more="  cookie SERVER insert indirect")
    await HaproxyActuator("edge", haproxy.socket).write("llm/a", {Knob.ADMISSION: DRAIN}, DEADLINE_S)

    bound = urllib.request.Request(f"{haproxy.url}/work", headers={"Cookie": "SERVER=a"})
    assert await asyncio.to_thread(get, bound) == "a"
    assert await asyncio.to_thread(get, f"{haproxy.url}/work") == "b"


async def test_the_share_of_traffic_follows_the_weight(programs: RealPrograms) -> None:
    a, b, haproxy, actuator = two_backends(programs)
    await actuator.write("llm/a", {Knob.WEIGHT: 0.25}, DEADLINE_S)

    await asyncio.to_thread(send, haproxy)

    assert a.requests + b.requests == REQUESTS
    assert abs(a.requests - REQUESTS / 5) <= 2  # 0.25 : 1 is one in five


async def test_the_tcp_address_and_the_socket_are_the_same_gateway(programs: RealPrograms) -> None:
    _, _, haproxy, actuator = two_backends(programs)
    await HaproxyActuator("edge", haproxy.tcp_socket).write("llm/a", {Knob.WEIGHT: 0.5}, DEADLINE_S)
    assert (await actuator.read(("llm/a",), DEADLINE_S))["llm/a"].values[Knob.WEIGHT] == 0.5


async def test_reading_needs_no_more_than_a_socket_of_level_user(programs: RealPrograms) -> None:
    _, _, haproxy, _ = two_backends(programs)
    reader = HaproxyActuator("edge", haproxy.user_socket)
    assert set(await reader.read(("llm/a", "llm/b"), DEADLINE_S)) == {"llm/a", "llm/b"}
    with pytest.raises(ActuatorError, match="level admin"):
        await reader.write("llm/a", {Knob.WEIGHT: 0.5}, DEADLINE_S)


COARSE = [
    # configured weight, share, units in force afterwards (None: refused)
    ("", 0.5, None),
    ("", 0.0, 0),
    ("", 1.0, 1),
    ("weight 7", 0.5, None),
    ("weight 7", 0.57, 4),
    ("weight 10", 0.18, None),
    ("weight 10", 0.2, 2),
    ("weight 10", 0.05, None),
    ("weight 0", 0.5, None),
    ("weight 0", 0.0, 0),
    ("weight 100", 0.003, 1),
    ("weight 100", 1.5, 150),
    ("weight 100", 3.0, None),
    ("weight 256", 0.5, 128),
]


@pytest.mark.parametrize(("options", "share", "units"), COARSE)
async def test_a_share_becomes_the_nearest_weight_or_is_refused_with_what_to_configure(
    programs: RealPrograms, options: str, share: float, units: int | None
) -> None:
    haproxy = programs.haproxy([HaproxyServer("a", free_port(), options)])
    actuator = HaproxyActuator("edge", haproxy.socket)
    before = haproxy.ask("get weight llm/a")
    if units is None:
        with pytest.raises(ActuatorError) as caught:
            await actuator.write("llm/a", {Knob.WEIGHT: share}, DEADLINE_S)
        assert caught.value.kind is ErrorKind.REFUSED
        assert "set `weight 100`" in str(caught.value) or "limit of 256" in str(caught.value)
        assert haproxy.ask("get weight llm/a") == before
    else:
        await actuator.write("llm/a", {Knob.WEIGHT: share}, DEADLINE_S)
        assert haproxy.ask("get weight llm/a").startswith(f"{units} (initial")


async def test_a_drain_happens_even_where_the_weight_beside_it_must_be_refused(programs: RealPrograms) -> None:
    haproxy = programs.haproxy([HaproxyServer("a", free_port(), "")])
    actuator = HaproxyActuator("edge", haproxy.socket)
    with pytest.raises(ActuatorError) as caught:
        await actuator.write("llm/a", {Knob.WEIGHT: 0.5, Knob.ADMISSION: DRAIN}, DEADLINE_S)
    assert caught.value.kind is ErrorKind.REFUSED
    assert (await actuator.read(("llm/a",), DEADLINE_S))["llm/a"].values[Knob.ADMISSION] == DRAIN

    with pytest.raises(ActuatorError):
        await actuator.write("llm/a", {Knob.WEIGHT: 0.5, Knob.ADMISSION: SERVE}, DEADLINE_S)
    assert (await actuator.read(("llm/a",), DEADLINE_S))["llm/a"].values[Knob.ADMISSION] == DRAIN


async def test_a_static_balance_takes_all_or_nothing_and_says_what_to_use_instead(programs: RealPrograms) -> None:
    haproxy = programs.haproxy([HaproxyServer("a", free_port(), "weight 100")], balance="static-rr")
    actuator = HaproxyActuator("edge", haproxy.socket)
    with pytest.raises(ActuatorError, match="balance roundrobin") as caught:
        await actuator.write("llm/a", {Knob.WEIGHT: 0.5}, DEADLINE_S)
    assert caught.value.kind is ErrorKind.REFUSED
    for share in (0.0, 1.0):
        await actuator.write("llm/a", {Knob.WEIGHT: share}, DEADLINE_S)
        assert (await actuator.read(("llm/a",), DEADLINE_S))["llm/a"].values[Knob.WEIGHT] == share


async def test_maintenance_by_another_hand_is_out_of_service_and_is_never_ended_by_us(programs: RealPrograms) -> None:
    haproxy = programs.haproxy([HaproxyServer("a", free_port(), "weight 100")])
    actuator = HaproxyActuator("edge", haproxy.socket)
    assert haproxy.ask("set server llm/a state maint") == "\n"

    state = (await actuator.read(("llm/a",), DEADLINE_S))["llm/a"]
    assert not state.in_service
    assert state.values[Knob.ADMISSION] == SERVE
    with pytest.raises(ActuatorError, match="maintenance") as caught:
        await actuator.write("llm/a", {Knob.ADMISSION: DRAIN}, DEADLINE_S)
    assert caught.value.kind is ErrorKind.REFUSED
    await actuator.write("llm/a", {Knob.ADMISSION: SERVE, Knob.WEIGHT: 0.5}, DEADLINE_S)

    assert ",MAINT," in haproxy.ask("show stat llm 4 -1")
    assert haproxy.ask("get weight llm/a").startswith("50 ")


async def test_servers_that_get_no_traffic_for_any_other_reason_are_out_of_service(programs: RealPrograms) -> None:
    alive = programs.backend("alive")
    servers = [
        HaproxyServer("alive", alive.port),
        HaproxyServer("dead", free_port()),
        HaproxyServer("disabled", alive.port, "weight 100 disabled"),
        HaproxyServer("tracking", alive.port, "weight 100 track llm/alive"),
        HaproxyServer("unchecked", alive.port, "weight 100"),
    ]
    haproxy = programs.haproxy(servers)
    actuator = HaproxyActuator("edge", haproxy.socket)
    await asyncio.to_thread(wait_until, lambda: ",DOWN," in haproxy.ask("show stat llm 4 -1"), "the dead one going down")
    names = tuple(f"llm/{server.name}" for server in servers)

    async def in_service() -> set[str]:
        return {name for name, state in (await actuator.read(names, DEADLINE_S)).items() if state.in_service}

    assert await in_service() == {"llm/alive", "llm/tracking", "llm/unchecked"}
    # What was disabled in haproxy.cfg keeps a bit that says so after it was enabled; it takes traffic all the same.
    assert haproxy.ask("set server llm/disabled state ready") == "\n"
    # A drain is inherited by servers that track; theirs is not our own drain, so it is not an admission of theirs.
    await actuator.write("llm/alive", {Knob.ADMISSION: DRAIN}, DEADLINE_S)
    assert await in_service() == {"llm/alive", "llm/disabled", "llm/unchecked"}
    tracking = (await actuator.read(("llm/tracking",), DEADLINE_S))["llm/tracking"]
    assert tracking.values[Knob.ADMISSION] == SERVE


async def test_ten_servers_are_read_in_one_round_trip_and_the_others_are_not_told(programs: RealPrograms) -> None:
    haproxy = programs.haproxy([HaproxyServer(f"s{n}", free_port(), "weight 100") for n in range(10)])
    states = await HaproxyActuator("edge", haproxy.socket).read(("llm/s3", "other/s3", "llm/BACKEND"), DEADLINE_S)
    assert set(states) == {"llm/s3"}


async def test_replicas_are_all_written_and_one_that_differs_is_named_until_it_is_written_again(programs: RealPrograms) -> None:
    port = programs.backend("a").port
    first, second = (programs.haproxy([HaproxyServer("a", port)]) for _ in range(2))
    actuator = build_actuator(HaproxyGateway(name="edge", kind="haproxy", socket=first.socket, replicas=(second.socket,)))
    await actuator.write("llm/a", {Knob.WEIGHT: 0.5, Knob.ADMISSION: DRAIN}, DEADLINE_S)
    agreed = (await actuator.read(("llm/a",), DEADLINE_S))["llm/a"]
    assert (agreed.values, agreed.doubt) == ({Knob.WEIGHT: 0.5, Knob.ADMISSION: DRAIN}, "")

    for haproxy in (first, second):
        assert haproxy.ask("set server llm/a state ready") == "\n"
        differing = (await actuator.read(("llm/a",), DEADLINE_S))["llm/a"]
        assert differing.values[Knob.ADMISSION] == SERVE
        assert haproxy is second or "admission differs: edge#1(" in differing.doubt
    await actuator.write("llm/a", {Knob.ADMISSION: DRAIN}, DEADLINE_S)
    assert (await actuator.read(("llm/a",), DEADLINE_S))["llm/a"].values[Knob.ADMISSION] == DRAIN


async def test_a_dead_replica_is_named_and_does_not_keep_the_living_one_from_being_drained(programs: RealPrograms) -> None:
    port = programs.backend("a").port
    living, dead = (programs.haproxy([HaproxyServer("a", port)]) for _ in range(2))
    settings = HaproxyGateway(name="edge", kind="haproxy", socket=dead.socket, replicas=(living.socket,))
    actuator = build_actuator(settings)
    dead.process.terminate()
    dead.process.wait()

    with pytest.raises(ActuatorError) as caught:
        await actuator.write("llm/a", {Knob.ADMISSION: DRAIN}, DEADLINE_S)
    state = (await actuator.read(("llm/a",), DEADLINE_S))["llm/a"]

    assert caught.value.kind is ErrorKind.PROTOCOL
    assert f"edge#1({dead.socket})" in str(caught.value)
    assert ",DRAIN," in living.ask("show stat llm 4 -1")
    assert state.values[Knob.ADMISSION] == DRAIN
    assert f"edge#1({dead.socket}) was not read" in state.doubt
    living.process.terminate()
    living.process.wait()
    with pytest.raises(ActuatorError) as caught:
        await actuator.read(("llm/a",), DEADLINE_S)
    assert caught.value.kind is ErrorKind.UNREACHABLE
