"""An actuator that only looks leaves everything as it is: no session renewed, no note forgotten."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from tailkeeper_watchdog.actuators import ACTUATORS, Actuator, build_actuator, build_looker
from tailkeeper_watchdog.actuators.consul_keys import OURS
from tailkeeper_watchdog.actuators.removed_workers import Removed, RemovedWorkers
from tailkeeper_watchdog.gateways import Gateway
from tailkeeper_watchdog.model import Knob
from tests.unit.loopback import Seen, reply, serving
from tests.unit.test_actuator_registry import EXAMPLES

GATEWAY: TypeAdapter[Gateway] = TypeAdapter(Gateway)


@pytest.mark.parametrize("kind", ACTUATORS)
def test_every_kind_can_be_looked_at(kind: str) -> None:
    assert build_looker(EXAMPLES[kind]).kind == kind


@pytest.mark.parametrize(("build", "methods"), [(build_looker, {"GET"}), (build_actuator, {"GET", "PUT"})])
async def test_consuls_sessions_are_left_to_run_out_by_who_only_looks(
    build: Callable[[Gateway], Actuator], methods: set[str]
) -> None:
    row = {"Key": "service/a/weight", "Value": "MC41", "Flags": OURS, "Session": "s-1", "ModifyIndex": 1}

    async def serve(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await reply(200, json.dumps([row]))(seen, writer)

    async with serving(serve) as server:
        actuator = build(GATEWAY.validate_python({"name": "c", "kind": "consul", "url": server.url}))
        states = await actuator.read(("a",), 2.0)
        await actuator.close()
        assert {request.method for request in server.requests} == methods
    assert states["a"].values[Knob.WEIGHT] == 0.5


def test_a_note_of_a_removed_worker_is_not_forgotten_by_who_only_looks(tmp_path: Path) -> None:
    note = Removed({"url": "http://w"}, 1.0, gone=True)
    RemovedWorkers(tmp_path / "removed.json").note("http://r", "http://w", note)
    looking = RemovedWorkers(tmp_path / "removed.json", looks_only=True)
    looking.forget("http://r", ["http://w"])
    assert looking.of("http://r") == {"http://w": note}
