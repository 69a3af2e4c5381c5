"""Findings, decisions and alerts: their shapes, their filters, and that they are strict JSON whatever is in them."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_watchdog.api.received import MAX_ALERTS_KEPT
from tailkeeper_watchdog.api.strict import encode
from tailkeeper_watchdog.baseline_set import BaselineSet, parse
from tailkeeper_watchdog.model import EMPTY, Finding, FindingKind, Knob, Outcome, Severity
from tests.unit.watchdog_http import (
    ALERT,
    DECISION,
    FINDING,
    asked,
    has_shape,
    sick_fleet,
    world_at,
)

# Findings


async def test_findings_have_the_contracts_shape_and_the_newest_is_first(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    await sick_fleet(world)
    async with asked(world, ticks_s=0) as ask:
        rows = await ask.get("/api/v1/findings?open=true")
    assert {(row["kind"], row["backend"]) for row in rows} == {("hung", "a"), ("telemetry_lost", "c")}
    for row in rows:
        has_shape(row, FINDING)
        assert row["severity"] in {"page", "ticket", "info"}
        assert row["until"] is None
    assert [row["since"] for row in rows] == sorted((row["since"] for row in rows), reverse=True)


async def test_a_closed_finding_keeps_its_end_and_is_no_longer_open(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    await sick_fleet(world)
    world.sick["c"].silent = False
    await world.run(10)
    async with asked(world, ticks_s=0) as ask:
        found = {query: await ask.get(f"/api/v1/findings{query}") for query in ("", "?open=true", "?open=false")}
    kinds = {query: {row["kind"] for row in rows} for query, rows in found.items()}
    assert kinds == {"": {"hung", "telemetry_lost"}, "?open=true": {"hung"}, "?open=false": {"telemetry_lost"}}
    (closed,) = found["?open=false"]
    assert closed["until"] > closed["since"]


async def test_evidence_that_json_cannot_say_becomes_null_and_costs_no_answer(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    await world.run(2)
    evidence = {"p99_s": nan, "limit": inf, "n": np.int64(3), "q": [np.float32(0.5), -inf], "why": "half \ud800", "more": EMPTY}
    finding = Finding("x", FindingKind.GROWTH, "a", Severity.INFO, 1.0, "s", evidence)
    world.loop.memory = replace(world.loop.memory, book=replace(world.loop.memory.book, closed=(finding,)))
    async with asked(world, ticks_s=0) as ask:
        (row,) = await ask.get("/api/v1/findings")
    assert row["evidence"] == {"p99_s": None, "limit": None, "n": 3, "q": [0.5, None], "why": "half ?", "more": {}}


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner) | st.frozensets(st.integers()),
)


@given(JSON_LIKE)
def test_whatever_a_detector_notes_leaves_as_strict_json(content: object) -> None:
    text = encode(content).decode("utf-8")
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_evidence_that_refers_to_itself_is_cut() -> None:
    loop: list[object] = []
    loop.append(loop)
    assert encode(loop).startswith(b"[[[")


# Decisions


async def test_decisions_have_the_contracts_shape_newest_first(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    await sick_fleet(world)
    async with asked(world, ticks_s=0) as ask:
        rows = await ask.get("/api/v1/decisions")
    for row in rows:
        has_shape(row, DECISION)
        assert row["verdict"] in {outcome.value for outcome in Outcome}
        assert row["knob"] in {knob.value for knob in Knob}
    assert [row["id"] for row in rows] == sorted((row["id"] for row in rows), reverse=True)
    drained = next(row for row in rows if row["backend"] == "a" and row["verdict"] == "applied")
    assert (drained["from"], drained["to"], drained["policy"]) == ("serve", "drain", "gpu_health_gate")
    assert drained["lease_expires"] > drained["time"]


async def test_decisions_are_filtered_by_backend_time_and_number(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    await sick_fleet(world)
    async with asked(world, ticks_s=0) as ask:
        every = await ask.get("/api/v1/decisions")
        of_b = await ask.get("/api/v1/decisions?backend=b")
        newest = await ask.get("/api/v1/decisions?limit=1")
        recent = await ask.get(f"/api/v1/decisions?since={every[0]['time']}")
        later = await ask.get(f"/api/v1/decisions?since={world.clock.wall() + 1}")
        none = await ask.get("/api/v1/decisions?backend=d")
    assert of_b == [row for row in every if row["backend"] == "b"] != []
    assert newest == every[:1]
    assert recent == [row for row in every if row["time"] >= every[0]["time"]]
    assert later == none == []


async def test_a_backend_that_is_gone_from_the_configuration_keeps_its_history(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    await world.run(1)
    world.ledger.record(1.0, 1, "p", "gone", Knob.WEIGHT, 1.0, 0.5, Outcome.APPLIED, "r")
    async with asked(world, ticks_s=0) as ask:
        (row,) = await ask.get("/api/v1/decisions?backend=gone")
        assert await ask.get("/api/v1/decisions?backend=gone&since=2") == []
    assert row["from"] == 1.0


# Alerts


def _webhook(*alerts: object) -> dict[str, object]:
    return {"version": "4", "status": "firing", "receiver": "tailkeeper", "alerts": list(alerts)}


def _alert(fingerprint: str = "f1", status: str = "firing", **more: object) -> dict[str, object]:
    return {
        "status": status,
        "labels": {"alertname": "BackendHung", "backend": "a"},
        "annotations": {},
        "startsAt": "2026-08-23T03:12:00Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "fingerprint": fingerprint,
        **more,
    }


async def test_alerts_are_kept_once_an_incident_with_their_latest_status(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    async with asked(world) as ask:
        for _ in range(3):
            assert await ask.send("POST", "/api/v1/alerts", _webhook(_alert(), _alert("f2"))) == {"taken": 2, "refused": 0}
        await ask.send("POST", "/api/v1/alerts", _webhook(_alert(status="resolved")))
        rows = await ask.get("/api/v1/alerts")
    for row in rows:
        has_shape(row, ALERT)
    assert [(row["fingerprint"], row["status"]) for row in rows] == [("f1", "resolved"), ("f2", "firing")]
    assert rows[0]["received"] == world.clock.wall()
    assert rows[0]["starts_at"] == "2026-08-23T03:12:00Z"


async def test_alerts_are_information_and_never_a_command(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    async with asked(world) as ask:
        for _ in range(200):
            await ask.send("POST", "/api/v1/alerts", _webhook(_alert()))
        await world.run(5)
        assert await ask.get("/api/v1/decisions") == []
    assert world.gateway.writes == []


async def test_what_is_no_alert_is_counted_and_costs_the_others_nothing(tmp_path: Path) -> None:
    bad: list[object] = [None, 7, {}, _alert(status="acked"), _alert(fingerprint=""), _alert(fingerprint="x" * 65)]
    odd = _alert("odd", labels={"n": 5, **{f"l{i}": "v" * 999 for i in range(99)}}, startsAt=3)
    async with asked(world_at(tmp_path)) as ask:
        assert await ask.send("POST", "/api/v1/alerts", _webhook(*bad, odd, _alert())) == {"taken": 2, "refused": len(bad)}
        rows = await ask.get("/api/v1/alerts")
    assert [row["fingerprint"] for row in rows] == ["f1", "odd"]
    assert len(rows[1]["labels"]) == 32
    assert rows[1]["labels"]["n"] == "5"
    assert max(len(value) for value in rows[1]["labels"].values()) == 256


async def test_only_the_newest_alerts_are_kept(tmp_path: Path) -> None:
    async with asked(world_at(tmp_path)) as ask:
        for start in range(0, MAX_ALERTS_KEPT + 100, 100):
            await ask.send("POST", "/api/v1/alerts", _webhook(*(_alert(f"f{i}") for i in range(start, start + 100))))
        rows = await ask.get("/api/v1/alerts")
    assert len(rows) == MAX_ALERTS_KEPT
    assert rows[0]["fingerprint"] == f"f{MAX_ALERTS_KEPT + 99}"
    assert rows[-1]["fingerprint"] == "f100"


# Baselines


async def test_baselines_are_a_file_that_the_watchdog_takes_and_say_what_is_still_missing(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    await world.run(30)
    async with asked(world, ticks_s=0) as ask:
        document = await ask.get("/api/v1/baselines")
    assert parse(document) == BaselineSet()
    assert set(document["gathering"]) == set(world.sick)
    assert "a baseline needs 20,000 requests and 40 min" in document["gathering"]["a"]["why"]
