"""The watchdog's HTTP reads have exactly the shapes of the public contract, in every state of a fleet."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tailkeeper_exporter import catalog
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import ErrorKind
from tailkeeper_watchdog.api.trends import POINTS, SPACING_S, Trends
from tailkeeper_watchdog.api.why import WHY_LIMIT_CHARS
from tailkeeper_watchdog.core import PolicySetting
from tailkeeper_watchdog.ledger import LedgerError
from tailkeeper_watchdog.model import Mode
from tailkeeper_watchdog.settings import PoliciesSettings
from tests.scenario.world import World
from tests.unit.watchdog_http import (
    BACKEND,
    FACTOR,
    FLEET,
    asked,
    by_name,
    has_shape,
    sick_fleet,
    world_at,
)

# Fleet


async def test_the_fleet_has_the_contracts_shape_in_every_state(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    await sick_fleet(world)
    async with asked(world, ticks_s=0) as ask:
        fleet = await ask.get("/api/v1/fleet")
    has_shape(fleet, FLEET)
    for row in fleet["backends"]:
        has_shape(row, BACKEND)
        assert {"weight", "admission"} <= set(row["desired"])
        assert {"weight", "admission"} <= set(row["actual"])
        assert row["actuation"] in {"enforced", "observed", "not_enforceable"}
        assert row["why"]
        for factor in row["factors"].values():
            has_shape(factor, FACTOR)
    assert {name: row["state"] for name, row in by_name(fleet).items()} == {
        "a": "hung",
        "b": "serving",
        "c": "unknown",
        "d": "serving",
    }


async def test_a_hung_backend_is_told_with_its_lease_and_scores_zero(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    await sick_fleet(world)
    async with asked(world, ticks_s=0) as ask:
        row = by_name(await ask.get("/api/v1/fleet"))["a"]
    assert (row["hscore"], row["dominant_factor"]) == (0.0, "hung")
    assert row["desired"] == {"weight": 1.0, "admission": "drain"}
    assert row["actual"]["admission"] == "drain"
    (lease,) = row["leases"]
    assert (lease["knob"], lease["prior"], lease["written"], lease["confirmed"]) == ("admission", "serve", "drain", True)
    assert lease["expires"] > world.clock.wall()
    assert row["why"].startswith("drained: hung: 3 in flight")


async def test_a_slow_backend_is_told_with_half_its_weight(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    await sick_fleet(world)
    async with asked(world, ticks_s=0) as ask:
        row = by_name(await ask.get("/api/v1/fleet"))["b"]
    assert row["desired"] == {"weight": 0.5, "admission": "serve"}
    assert (row["actual"]["weight"], row["actual"]["admission"]) == (0.5, "serve")
    assert row["why"].startswith("weight 50%: ")


async def test_of_a_silent_backend_everything_is_null_and_nothing_is_zero(tmp_path: Path) -> None:
    world = world_at(tmp_path, "a", "b", "c", "d")
    world.sick["c"].silent = True
    async with asked(world) as ask:
        row = by_name(await ask.get("/api/v1/fleet"))["c"]
    unknown = ("hscore", "dominant_factor", "p99_s", "age_s", "running", "waiting", "kv_usage_ratio", "gpu_utilization_ratio")
    assert [row[name] for name in unknown] == [None] * len(unknown)
    assert (row["state"], row["samples"], row["factors"]) == ("unknown", 0, {})
    assert row["unknown_factors"] == ["latency", "error_rate", "cpu_usage", "uptime"]
    assert "does not answer" in row["why"]
    assert row["desired"] == {"weight": 1.0, "admission": "serve"}


async def test_a_backend_that_fell_silent_has_no_p99_of_the_past(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    await world.run(30)
    world.sick["c"].silent = True
    async with asked(world, ticks_s=10) as ask:
        row = by_name(await ask.get("/api/v1/fleet"))["c"]
    assert (row["p99_s"], row["samples"], row["age_s"]) == (None, 0, 10.0)


async def test_a_quantile_stands_beside_its_samples(tmp_path: Path) -> None:
    async with asked(world_at(tmp_path), ticks_s=30) as ask:
        row = by_name(await ask.get("/api/v1/fleet"))["a"]
    assert 0.1 < row["p99_s"] <= 0.5
    assert row["samples"] > 50
    assert row["p99_saturated"] is False


async def test_load_is_told_where_it_is_known(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    world.sick["a"].extra = {catalog.KV_USAGE.name: 0.0, catalog.WAITING.name: 4.0}
    async with asked(world) as ask:
        row = by_name(await ask.get("/api/v1/fleet"))["a"]
    assert (row["running"], row["waiting"], row["kv_usage_ratio"]) == (3.0, 4.0, 0.0)
    assert row["gpu_utilization_ratio"] is None


async def test_a_gateway_that_does_not_answer_leaves_what_is_in_force_unknown(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    world.gateway.fails = ErrorKind.UNREACHABLE
    async with asked(world) as ask:
        fleet = await ask.get("/api/v1/fleet")
    assert fleet["gateway_errors"] == {"edge": "edge/*: told to fail"}
    assert all(row["actual"]["weight"] is None and row["actual"]["admission"] is None for row in fleet["backends"])


@pytest.mark.parametrize("mode", list(Mode))
async def test_the_mode_and_the_reach_follow_the_configuration(tmp_path: Path, mode: Mode) -> None:
    world = world_at(tmp_path, mode=mode)
    world.sick["a"].state = State.HUNG
    async with asked(world) as ask:
        fleet = await ask.get("/api/v1/fleet")
    row = by_name(fleet)["a"]
    assert fleet["mode"] == mode.value
    assert row["actuation"] == ("enforced" if mode is Mode.ENFORCE else "observed")
    assert row["desired"]["admission"] == "drain"
    if mode is not Mode.ENFORCE:
        assert row["why"].startswith(f"would be drained ({mode.value} only): hung")
        assert row["actual"]["admission"] == "serve"


async def test_what_a_guard_refused_is_the_reason_why_nothing_happened(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    await world.run(2)
    world.switches.pause("paused by a test")
    world.sick["a"].state = State.HUNG
    async with asked(world) as ask:
        fleet = await ask.get("/api/v1/fleet")
    assert (fleet["paused"], fleet["paused_because"]) == (True, "paused by a test")
    assert by_name(fleet)["a"]["why"].startswith("paused: the kill switch is on (paused by a test); wanted because hung")


async def test_a_reason_that_names_a_whole_fleet_is_cut(tmp_path: Path) -> None:
    world = world_at(tmp_path, *(f"backend-with-a-long-name-{i:03}" for i in range(200)))
    await world.run(2)
    for name in list(world.sick)[:90]:
        world.sick[name].state = State.HUNG
    async with asked(world) as ask:
        fleet = await ask.get("/api/v1/fleet")
    longest = max((row["why"] for row in fleet["backends"]), key=len)
    assert "and 55 more" in longest
    assert len(longest) <= WHY_LIMIT_CHARS


async def test_before_the_first_tick_the_fleet_is_not_known_yet(tmp_path: Path) -> None:
    async with asked(world_at(tmp_path), ticks_s=0) as ask:
        assert (await ask.get("/api/v1/fleet", 503))["detail"] == "the first tick has not ended yet"


async def test_a_tick_that_failed_is_told_and_wishes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_at(tmp_path)
    await world.run(2)
    monkeypatch.setattr(world, "collect", None)
    await world.loop.tick()
    async with asked(world, ticks_s=0) as ask:
        fleet = await ask.get("/api/v1/fleet")
        ready = await ask.get("/readyz", 503)
    assert "TypeError" in fleet["error"]
    assert "TypeError" in ready["reason"]
    for row in fleet["backends"]:
        has_shape(row, BACKEND)
        assert row["state"] == "unknown"
        assert row["desired"] == {"weight": None, "admission": None}


async def test_a_fleet_of_a_thousand_is_told_in_less_than_a_tick(tmp_path: Path) -> None:
    world = World(":memory:", tuple(f"b{i:04}" for i in range(1_000)))
    await world.run(1)
    for i in range(0, 1_000, 10):
        world.sick[f"b{i:04}"].state = State.HUNG
    async with asked(world, ticks_s=2) as ask:
        started = time.process_time()
        fleet = await ask.get("/api/v1/fleet")
        took_s = time.process_time() - started
    assert len(fleet["backends"]) == 1_000
    assert sum(row["actual"]["admission"] == "drain" for row in fleet["backends"]) == 100
    assert took_s < 1.0, "about 30 ms of CPU, however busy the machine is"


# Trends


async def test_trends_are_noted_oldest_first_and_null_where_nothing_is_known(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    world.sick["c"].silent = True
    trends = Trends()
    for _ in range(3):
        await world.run(SPACING_S)
        assert world.loop.latest is not None
        trends.note(world.loop.latest)
    points = trends.document()["p99_s"]
    assert points["c"] == [None, None, None]
    assert points["a"][-1] == pytest.approx(0.496)


async def test_trends_keep_five_minutes_and_only_of_backends_there_are(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    await world.run(5)
    trends, latest = Trends(), world.loop.latest
    assert latest is not None
    for _ in range(POINTS + 50):
        trends.note(latest)
    assert {name: len(points) for name, points in trends.document()["p99_s"].items()} == dict.fromkeys("abcd", POINTS)
    snapshot = replace(latest.situation.snapshot, backends=latest.situation.snapshot.backends[:1])
    trends.note(replace(latest, situation=replace(latest.situation, snapshot=snapshot)))
    assert list(trends.document()["p99_s"]) == ["a"]
    assert POINTS * SPACING_S == 300


async def test_trends_follow_while_the_application_is_served(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    async with asked(world, ticks_s=5) as ask:
        assert (await ask.get("/api/v1/trends")) == {"spacing_s": SPACING_S, "p99_s": {}}
        async with ask.api.router.lifespan_context(ask.api):
            await asyncio.sleep(0)
            document = await ask.get("/api/v1/trends")
    assert set(document["p99_s"]) == {"a", "b", "c", "d"}


# Policies


EVERY_POLICY = {name: PolicySetting(s.mode, s.params) for name, s in PoliciesSettings() if name != "gpu_health_gate"}


async def test_the_support_table_says_for_every_policy_and_backend_how_far_it_goes(tmp_path: Path) -> None:
    async with asked(world_at(tmp_path, policies=EVERY_POLICY)) as ask:
        table = await ask.get("/api/v1/policies")
    assert {row["policy"] for row in table} == {
        "adaptive_batch_window",
        "memory_breaker",
        "context_length_routing",
        "token_rate_weighting",
        "gpu_health_gate",
        "cache_offload",
        "slo_guardian",
    }
    for policy in table:
        assert [cell["backend"] for cell in policy["backends"]] == ["a", "b", "c", "d"]
        for cell in policy["backends"]:
            assert cell["actuation"] in {"enforced", "observed", "not_enforceable"}
            assert cell["why"] or cell["actuation"] == "enforced"
    (gate,) = [row for row in table if row["policy"] == "gpu_health_gate"]
    assert (gate["mode"], gate["backends"][0]["actuation"]) == ("enforce", "enforced")


# Own state


async def test_live_is_not_ready(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    async with asked(world, ticks_s=0) as ask:
        assert await ask.get("/livez") == {"status": "pass"}
        assert await ask.get("/readyz", 503) == {"status": "fail", "reason": "no tick yet"}
        await world.run(1)
        assert await ask.get("/readyz") == {"status": "pass", "reason": ""}
        world.clock.now += 4
        late = await ask.get("/readyz", 503)
    assert late["reason"] == "the last tick was 4.0 s ago, limit 3 s"


async def test_a_ledger_that_cannot_be_read_is_named_and_costs_no_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise LedgerError("ledger.db: disk I/O error")

    world = world_at(tmp_path)
    async with asked(world) as ask:
        monkeypatch.setattr(world.ledger, "_run", broken)
        for path in ("/api/v1/fleet", "/api/v1/decisions"):
            assert "disk I/O error" in (await ask.get(path, 503))["detail"]
        for method, path in (("POST", "/api/v1/pause"), ("POST", "/api/v1/release")):
            assert "disk I/O error" in (await ask.send(method, path, status=503))["detail"]
        page = await ask.client.get("/metrics")
    assert page.status_code == 200
    assert "tailkeeper_paused 0.0" not in page.text


async def test_no_read_changes_anything(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    await sick_fleet(world)
    before = (list(world.gateway.writes), world.ledger.leases(), world.ledger.decisions())
    async with asked(world, ticks_s=0) as ask:
        for path in ("fleet", "findings", "decisions", "policies", "alerts", "hscorer/config"):
            await ask.get(f"/api/v1/{path}")
    assert before == (list(world.gateway.writes), world.ledger.leases(), world.ledger.decisions())


async def test_the_description_at_openapi_json_names_every_call(tmp_path: Path) -> None:
    async with asked(world_at(tmp_path)) as ask:
        paths = (await ask.get("/openapi.json"))["paths"]
    assert {(method, path) for path, calls in paths.items() for method in calls} == {
        ("get", "/api/v1/fleet"),
        ("get", "/api/v1/findings"),
        ("get", "/api/v1/decisions"),
        ("get", "/api/v1/policies"),
        ("get", "/api/v1/baselines"),
        ("get", "/api/v1/trends"),
        ("get", "/api/v1/stream"),
        ("get", "/api/v1/hscorer/config"),
        ("put", "/api/v1/hscorer/config"),
        ("get", "/api/v1/slo"),
        ("get", "/api/v1/capacity"),
        ("get", "/api/v1/forecast"),
        ("post", "/api/v1/pause"),
        ("post", "/api/v1/resume"),
        ("post", "/api/v1/release"),
        ("post", "/api/v1/backends/{backend}/hold"),
        ("delete", "/api/v1/backends/{backend}/hold"),
        ("post", "/api/v1/alerts"),
        ("get", "/api/v1/alerts"),
        ("get", "/metrics"),
        ("get", "/livez"),
        ("get", "/readyz"),
    }


async def test_many_readers_beside_a_ticking_loop_all_get_whole_answers(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    async with asked(world) as ask:

        async def read(path: str) -> None:
            for _ in range(20):
                answer = await ask.client.get(path)
                assert answer.status_code == 200, answer.text

        async def tick() -> None:
            for i in range(40):
                world.sick["a"].state = State.HUNG if i % 8 < 4 else State.SERVING
                await world.run(0.5)
                await asyncio.sleep(0)

        paths = ("/api/v1/fleet", "/metrics", "/api/v1/decisions", "/api/v1/findings")
        await asyncio.gather(tick(), *(read(path) for path in paths))
