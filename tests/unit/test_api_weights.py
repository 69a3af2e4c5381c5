"""The weights of the HScore over HTTP: what they are, who changed them, how they are changed and what is refused."""

from __future__ import annotations

import json
import sqlite3
from math import inf
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.scenario.world import WEIGHTS, World
from tests.unit.watchdog_http import TOKEN, Asked, asked, by_name, world_at

PATH = "/api/v1/hscorer/config"
EVEN = {"latency": 0.25, "error_rate": 0.25, "cpu_usage": 0.25, "uptime": 0.25}
ALL_LATENCY = {"latency": 1.0, "error_rate": 0.0, "cpu_usage": 0.0, "uptime": 0.0}


async def put(ask: Asked, weights: object, by: object = "maria", status: int = 200, **more: Any) -> Any:
    return await ask.send("PUT", PATH, {"weights": weights, "by": by}, status, **more)


async def test_at_first_the_weights_are_the_files_and_nobody_changed_them(tmp_path: Path) -> None:
    async with asked(world_at(tmp_path)) as ask:
        assert await ask.get(PATH) == {"weights": WEIGHTS, "history": []}


async def test_a_change_is_answered_with_what_is_in_force_and_its_history(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    async with asked(world) as ask:
        first = await put(ask, EVEN)
        world.clock.now += 60
        second = await put(ask, ALL_LATENCY, "joe")
        assert await ask.get(PATH) == second
    made = {"time": world.clock.wall() - 60, "by": "maria", "from": WEIGHTS, "to": EVEN}
    assert first == {"weights": EVEN, "history": [made]}
    newest = {"time": world.clock.wall(), "by": "joe", "from": EVEN, "to": ALL_LATENCY}
    assert second == {"weights": ALL_LATENCY, "history": [newest, made]}


async def test_a_change_outlives_a_restart(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    async with asked(world) as ask:
        before = await put(ask, EVEN)
    world.start()
    async with asked(world) as ask:
        assert await ask.get(PATH) == before


async def test_a_change_applies_at_the_next_tick(tmp_path: Path) -> None:
    world = await _slow(tmp_path)
    async with asked(world, ticks_s=0) as ask:
        before = by_name(await ask.get("/api/v1/fleet"))["a"]
        await put(ask, ALL_LATENCY)
        assert by_name(await ask.get("/api/v1/fleet"))["a"] == before, "the last tick is what it was"
        await world.run(0.5)
        after = by_name(await ask.get("/api/v1/fleet"))["a"]
    assert after["factors"]["latency"]["weight"] == 1.0
    assert after["hscore"] == pytest.approx(after["factors"]["latency"]["goodness"])
    assert after["hscore"] < before["hscore"]


async def _slow(tmp_path: Path) -> World:
    """a answers at twice the SLO, so that its factors differ."""
    world = world_at(tmp_path)
    world.sick["a"].ttft_s = 2.0
    await world.run(60)
    return world


@pytest.mark.parametrize("weights", [WEIGHTS, EVEN, ALL_LATENCY], ids=["default", "even", "latency alone"])
async def test_the_series_of_score_and_factors_agree_with_the_weights_of_the_same_tick(
    tmp_path: Path, weights: dict[str, float]
) -> None:
    world = await _slow(tmp_path)
    async with asked(world, ticks_s=0) as ask:
        await put(ask, weights)
        await world.run(0.5)
        page = (await ask.client.get("/metrics")).text
        rows = by_name(await ask.get("/api/v1/fleet"))
    series: dict[str, dict[str, float]] = {}
    scores: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == "tailkeeper_hscore_factor":
                series.setdefault(sample.labels["backend"], {})[sample.labels["factor"]] = sample.value
            elif sample.name == "tailkeeper_hscore":
                scores[sample.labels["backend"]] = sample.value
    assert set(scores) == set(rows)
    for name, row in rows.items():
        assert {f: v["goodness"] for f, v in row["factors"].items()} == pytest.approx(series[name])
        known = sum(weights[f] for f in series[name])
        expected = sum(weights[f] / known * goodness for f, goodness in series[name].items())
        assert scores[name] == pytest.approx(row["hscore"]) == pytest.approx(expected)


async def test_the_fleet_tells_how_much_a_score_rests_on(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    world.sick["b"].silent = True
    await world.run(60)
    async with asked(world, ticks_s=0) as ask:
        rows = by_name(await ask.get("/api/v1/fleet"))
    assert rows["a"]["confidence"] == pytest.approx(0.85), "this fleet tells nothing of its CPU"
    assert (rows["b"]["hscore"], rows["b"]["confidence"]) == (None, 0.0)


LONG = "x" * 129
REFUSED: list[tuple[object, object, list[str], str]] = [
    ({**EVEN, "latency": 0.2}, "m", ["weights"], "weights sum to 0.95; they must sum to 1"),
    ({**EVEN, "latency": 0.2500011}, "m", ["weights"], "weights sum to 1.0000011; they must sum to 1"),
    ({**EVEN, "latency": -0.1}, "m", ["weights", "latency"], "-0.1 is refused; allowed is a number from 0 to 1"),
    ({**EVEN, "latency": "0.25"}, "m", ["weights", "latency"], "'0.25' is refused; allowed is a number from 0 to 1"),
    ({**EVEN, "latency": True}, "m", ["weights", "latency"], "True is refused; allowed is a number from 0 to 1"),
    ({**EVEN, "latency": None}, "m", ["weights", "latency"], "None is refused; allowed is a number from 0 to 1"),
    ({**EVEN, "latency": 10**400}, "m", ["weights", "latency"], "... is refused; allowed is a number from 0 to 1"),
    ({"latency": 1}, "m", ["weights"], "cpu_usage, error_rate, uptime missing; allowed are numbers for all of"),
    ({**EVEN, "speed": 0}, "m", ["weights"], "unknown: speed; allowed: cpu_usage, error_rate, latency, uptime"),
    ([0.25] * 4, "m", ["weights"], "[0.25, 0.25, 0.25, 0.25] is refused; allowed are numbers for all of"),
    (EVEN, "", ["by"], "'' is refused; allowed is a name of 1 to 128 printable characters"),
    (EVEN, LONG, ["by"], "... is refused; allowed is a name of 1 to 128 printable characters"),
    (EVEN, "a\nb", ["by"], "is refused; allowed is a name of 1 to 128 printable characters"),
    (EVEN, 7, ["by"], "7 is refused; allowed is a name of 1 to 128 printable characters"),
    (EVEN, "file", ["by"], "'file' is refused; it stands for the configuration file"),
]


@pytest.mark.parametrize(("weights", "by", "where", "said"), REFUSED, ids=[f"{r[2][-1]}: {r[3][:30]}" for r in REFUSED])
async def test_what_is_refused_says_where_what_and_what_is_allowed(
    tmp_path: Path, weights: object, by: object, where: list[str], said: str
) -> None:
    async with asked(world_at(tmp_path)) as ask:
        (problem,) = (await put(ask, weights, by, 422))["detail"]
        assert problem["loc"] == ["body", *where]
        assert said in problem["msg"]
        assert await ask.get(PATH) == {"weights": WEIGHTS, "history": []}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not strict JSON"),
        (b"{", "not strict JSON"),
        (json.dumps({"weights": {**EVEN, "latency": inf}, "by": "m"}).encode(), "Infinity is no JSON"),
        (b'{"by": "m", "by": "n"}', "the key 'by' is there twice"),
        (b"[1]", "valid dictionary"),
        (b'{"weights": {}, "by": "m", "force": true}', "unknown: force; allowed: by, weights"),
        (b"\xff", "not UTF-8"),
    ],
)
async def test_what_is_no_strict_json_of_this_shape_is_refused(tmp_path: Path, body: bytes, said: str) -> None:
    async with asked(world_at(tmp_path)) as ask:
        answer = await ask.client.put(PATH, content=body)
    assert answer.status_code == 422
    assert said in answer.json()["detail"][0]["msg"]


async def test_a_change_needs_the_token_and_a_look_does_not(tmp_path: Path) -> None:
    async with asked(world_at(tmp_path), TOKEN) as ask:
        await put(ask, EVEN, status=401)
        assert (await ask.get(PATH))["weights"] == WEIGHTS
        done = await put(ask, EVEN, headers={"authorization": f"Bearer {TOKEN}"})
        assert done["weights"] == EVEN


async def test_a_change_that_cannot_be_written_down_is_refused_and_not_in_force(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    async with asked(world) as ask:
        world.ledger._db.execute("PRAGMA busy_timeout=1")
        other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert "locked" in (await put(ask, EVEN, status=503))["detail"]
        other.execute("ROLLBACK")
        other.close()
        assert await ask.get(PATH) == {"weights": WEIGHTS, "history": []}
