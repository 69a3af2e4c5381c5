"""What the API tells while backends come and go: the fleet as it is now, and of whoever is gone only its history."""

from __future__ import annotations

from pathlib import Path

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.api.trends import Trends
from tailkeeper_watchdog.fleet import GONE
from tests.scenario.world import TICK_S, World
from tests.unit.watchdog_http import asked, by_name, client_of, gated, world_at


async def without_b(world: World) -> None:
    """ "b" was hung, drained and held, and is gone since one tick."""
    await world.run(1)
    world.sick["b"].state = State.HUNG
    await world.run(1)
    world.switches.hold("b", "being debugged", 600)
    world.find("a", "c", "d", "e")
    await world.run(TICK_S)


async def test_the_fleet_and_the_policies_are_those_of_now(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    await without_b(world)
    async with asked(world, ticks_s=0) as ask:
        assert list(by_name(await ask.get("/api/v1/fleet"))) == ["a", "c", "d", "e"]
        table = await ask.get("/api/v1/policies")
    assert {tuple(row["backend"] for row in policy["backends"]) for policy in table} == {("a", "c", "d", "e")}


async def test_a_vanished_backend_has_no_series_from_the_next_tick_on(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    await world.run(2)
    async with client_of(gated(world)) as client:
        assert 'backend="b"' in (await client.get("/metrics")).text
        world.find("a", "c", "d")
        await world.run(TICK_S)
        assert 'backend="b"' not in (await client.get("/metrics")).text
        assert 'backend="a"' in (await client.get("/metrics")).text


async def test_findings_of_a_vanished_backend_are_listed_as_closed_with_the_reason(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    await without_b(world)
    async with asked(world, ticks_s=0) as ask:
        assert [f for f in await ask.get("/api/v1/findings?open=true") if f["backend"] == "b"] == []
        (hung,) = [f for f in await ask.get("/api/v1/findings") if (f["backend"], f["kind"]) == ("b", "hung")]
    assert hung["until"] == world.clock.wall()
    assert hung["evidence"]["closed_because"] == GONE


async def test_a_hold_is_for_backends_that_there_are(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    await without_b(world)
    async with asked(world, ticks_s=0) as ask:
        document = await ask.send("POST", "/api/v1/backends/b/hold", {"reason": "late", "for_s": 60}, 404)
        assert "'b'" in str(document)
        await ask.send("DELETE", "/api/v1/backends/b/hold", status=404)
        await ask.send("POST", "/api/v1/backends/e/hold", {"reason": "new", "for_s": 60})
    assert set(world.switches.holds()) == {"e"}


async def test_the_history_of_a_vanished_backend_can_be_asked_and_its_change_released(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    await without_b(world)
    async with asked(world, ticks_s=0) as ask:
        assert [d["verdict"] for d in await ask.get("/api/v1/decisions?backend=b")] == ["applied"]
        answer = await ask.send("POST", "/api/v1/release", {"backend": "b"})
    assert answer["failed"] == 0
    assert world.admission("b") == "serve"


async def test_another_backend_under_the_same_name_begins_its_own_line(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    await world.run(10)
    trends = Trends()
    for url in ("", "", "http://10.0.0.9:8000"):
        world.backends = tuple(world.backend("b", url=url) if b.name == "b" else b for b in world.backends)
        await world.run(TICK_S)
        assert world.loop.latest is not None
        trends.note(world.loop.latest)
    assert {name: len(line) for name, line in trends.document()["p99_s"].items()} == {"a": 3, "b": 1, "c": 3, "d": 3}
    world.find("a")
    await world.run(TICK_S)
    assert world.loop.latest is not None
    trends.note(world.loop.latest)
    assert list(trends.document()["p99_s"]) == ["a"]
