"""What is worked out beside the ticks, as it is asked for: additional documents and their series."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailkeeper_exporter import catalog
from tailkeeper_watchdog.api.security import Gate
from tailkeeper_watchdog.insights import Insights
from tests.scenario.world import World
from tests.unit.watchdog_http import Asked, application, client_of, insights_of, world_at


async def watched(world: World, seconds: float) -> Insights:
    insights = insights_of(world)
    for _ in range(int(seconds / 2)):
        await world.run(2)
        assert world.loop.latest is not None
        insights.note(world.loop.latest)
    return insights


async def ask(world: World, insights: Insights, path: str) -> Any:
    api = application(world, insights=insights)
    async with client_of(Gate(api, None)) as client:
        return await Asked(client, world, api).get(path)


async def page(world: World, insights: Insights) -> dict[str, float]:
    async with client_of(Gate(application(world, insights=insights), None)) as client:
        text = (await client.get("/metrics")).text
    rows = [line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in rows}


async def test_the_slo_document_says_what_was_promised_and_what_came_of_it(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    insights = await watched(world, 36)
    document = await ask(world, insights, "/api/v1/slo")
    assert document["source"] == "histograms"
    assert "buckets" in document["note"]
    default = {t["tier"]: t for t in document["tiers"]}["default"]
    assert (default["limit_s"], default["objective"]) == (1.2, 0.995)
    assert [w["window"] for w in default["windows"]] == ["1h", "1d", "30d"]
    hour = default["windows"][0]
    assert hour["requests"] > 0
    assert (hour["compliance"], hour["weighted"], hour["budget_left"]) == (1.0, 1.0, 1.0)
    assert 0 < hour["coverage"] < 0.05  # half a minute of an hour was seen
    text = {t["tier"]: t for t in document["tiers"]}["default-text"]
    assert (text["limit_s"], text["discomfort_s"], text["match"]) == (0.8, 2.1, {"modality": "text"})
    assert text["windows"][0]["compliance"] is None


async def test_a_slow_backend_costs_budget_and_the_series_say_so(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    insights = await watched(world, 12)
    for sick in world.sick.values():
        sick.ttft_s = 5.0
    for _ in range(20):
        await world.run(2)
        assert world.loop.latest is not None
        insights.note(world.loop.latest)
    series = await page(world, insights)
    assert series['tailkeeper_slo_compliance_ratio{tier="default",window="1h"}'] < 0.6
    assert series['tailkeeper_slo_error_budget_left_ratio{tier="default",window="30d"}'] == 0.0
    assert 0 < series['tailkeeper_slo_coverage_ratio{window="30d"}'] < 1e-4
    of_text = {name: value for name, value in series.items() if "default-text" in name}
    assert not any("_ratio" in name for name in of_text)  # nobody asked: no share, and no 100 %
    assert set(of_text.values()) == {0.0}  # its waits stand at 0 from the start, so that the first one is a rise


@pytest.mark.parametrize("path", ["/api/v1/slo"])
async def test_before_the_first_tick_everything_is_unknown_and_nothing_fails(tmp_path: Path, path: str) -> None:
    world = world_at(tmp_path)
    document = await ask(world, insights_of(world), path)
    assert document["source"] is None


async def test_the_capacity_document_has_a_row_for_each_backend_and_null_for_what_nobody_knows(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    for sick in world.sick.values():
        sick.extra = {catalog.RUNNING.name: 0.0, catalog.TOKEN_EFFICIENCY.name: 900.0}
    insights = await watched(world, 24)
    document = await ask(world, insights, "/api/v1/capacity")
    assert [row["backend"] for row in document["backends"]] == ["a", "b", "c", "d"]
    row = document["backends"][0]
    assert (row["idle_ratio"], row["token_efficiency"]) == (1.0, 900.0)
    assert (row["gpu_hours_per_1000_requests"], row["consolidate"], row["tpot_per_rps"]) == (None, None, None)
    assert document["candidates"] == []
    assert document["free_memory"] == {"nodes": {}, "spread_bytes": None, "goal_bytes": None}
    series = await page(world, insights)
    assert series['tailkeeper_capacity_idle_ratio{backend="a"}'] == 1.0
    assert not any("gpu_seconds_per_request" in name for name in series)


async def test_a_backend_that_left_the_fleet_leaves_no_row(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    insights = await watched(world, 24)
    world.find("a", "b", "c")
    await world.run(2)
    assert world.loop.latest is not None
    insights.note(world.loop.latest)
    world.find("a", "b", "c", "d")  # another d: nothing of the old one is said of it
    await world.run(10)
    insights.note(world.loop.latest)
    rows = (await ask(world, insights, "/api/v1/capacity"))["backends"]
    assert {row["backend"]: row["observed_s"] > 15 for row in rows} == {"a": True, "b": True, "c": True, "d": False}


@pytest.mark.parametrize("path", ["/api/v1/capacity", "/api/v1/forecast"])
async def test_what_is_said_of_backends_is_not_known_before_the_first_tick(tmp_path: Path, path: str) -> None:
    world = world_at(tmp_path)
    async with client_of(Gate(application(world), None)) as client:
        assert (await client.get(path)).status_code == 503


async def test_the_forecast_document_says_why_there_is_none_and_when_memory_will_be_full(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    for sick in world.sick.values():
        sick.ok_per_tick = 5.0
    insights = insights_of(world)
    for number in range(80):
        world.sick["a"].extra = {catalog.KV_USAGE.name: 0.2 + 0.005 * number}
        await world.run(2)
        assert world.loop.latest is not None
        insights.note(world.loop.latest)
    document = await ask(world, insights, "/api/v1/forecast")
    assert (document["horizon_s"], document["training_error"]) == (30.0, None)
    rows = {row["backend"]: row for row in document["backends"]}
    assert rows["a"]["memory_exhaustion"]["method"] == "trend"
    assert rows["a"]["memory_exhaustion"]["seconds"] == pytest.approx(0.4 / 0.0025, rel=0.1)
    assert rows["b"]["memory_exhaustion"] is None
    assert (rows["b"]["state"], rows["b"]["p99_s"], rows["b"]["error_bound_s"]) == ("learning", None, None)
    assert "not trained yet" in rows["b"]["why"]
    assert rows["b"]["last_value_s"] == pytest.approx(0.5, rel=0.1)  # of buckets that end at 0.1 and 0.5 s
    series = await page(world, insights)
    assert series['tailkeeper_memory_exhaustion_seconds{backend="a"}'] == pytest.approx(160, rel=0.1)
    assert not any("tailkeeper_forecast" in name for name in series)
