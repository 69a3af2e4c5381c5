"""A watchdog's HTTP side over a `World`: the whole application with its gate, asked without a socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.api.app import build_api
from tailkeeper_watchdog.api.live import Live
from tailkeeper_watchdog.api.page import TickDurations
from tailkeeper_watchdog.api.security import Gate
from tailkeeper_watchdog.api.shard import Part
from tailkeeper_watchdog.insights import Insights
from tailkeeper_watchdog.model import Mode
from tailkeeper_watchdog.slo.tiers import tiers_of
from tests.scenario.world import TICK_S, World

TOKEN = "correct horse battery staple"
BASE = "http://127.0.0.1:8088"


def gated(world: World, token: str | None = None, durations: TickDurations | None = None, live: Live | None = None) -> Gate:
    """The application over ``world``, as the watchdog serves it."""
    return Gate(application(world, durations, live=live, has_token=token is not None), token)


def insights_of(world: World) -> Insights:
    """What is worked out beside the ticks of ``world``; it has noted none."""
    slo = world.loop.parts.rules.slo
    return Insights(tiers_of((), slo), slo.objective)


def application(
    world: World,
    durations: TickDurations | None = None,
    insights: Insights | None = None,
    live: Live | None = None,
    part: Part | None = None,
    *,
    has_token: bool = False,
) -> FastAPI:
    """The same without the gate; of a watchdog that keeps records and has lost none."""
    modes: Mapping[str, Mode] = {name: setting.mode for name, setting in world.loop.parts.rules.policies.items()}
    decisions, told = world.loop.parts.decisions, insights or insights_of(world)
    durations = durations or TickDurations()
    parts = (world.loop, world.ledger, decisions, world.switches)
    return build_api(*parts, durations, modes, TICK_S, told, live=live, part=part, unrecorded=lambda: 0, has_token=has_token)


@dataclass
class Asked:
    """A client of one watchdog. Every JSON answer is read strictly: NaN and Infinity are no JSON."""

    client: httpx.AsyncClient
    world: World
    api: FastAPI

    async def get(self, path: str, status: int = 200) -> Any:
        return self._read(await self.client.get(path), status)

    async def send(self, method: str, path: str, body: object = None, status: int = 200, **more: Any) -> Any:
        given: dict[str, Any] = {} if body is None else {"json": body}
        return self._read(await self.client.request(method, path, **given, **more), status)

    @staticmethod
    def _read(answer: httpx.Response, status: int) -> Any:
        assert answer.status_code == status, f"{answer.status_code}: {answer.text}"
        assert answer.headers["content-type"] == "application/json"
        return json.loads(answer.content, parse_constant=lambda name: _refuse(name))


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@asynccontextmanager
async def asked(world: World, token: str | None = None, *, ticks_s: float = 2.0) -> AsyncIterator[Asked]:
    """``world`` after ``ticks_s`` seconds of ticks, and a client."""
    await world.run(ticks_s)
    api = application(world)
    async with client_of(Gate(api, token)) as client:
        yield Asked(client, world, api)


def client_of(app: Gate) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=BASE)


def world_at(path: Path, *names: str, **more: Any) -> World:
    return World(path / "ledger.db", names or ("a", "b", "c", "d"), **more)


NUMBER = (int, float)
FLEET = {"time": NUMBER, "tick": int, "mode": str, "paused": bool, "backends": list}
BACKEND = {
    "backend": str,
    "state": str,
    "hscore": (*NUMBER, type(None)),
    "dominant_factor": (str, type(None)),
    "factors": dict,
    "p99_s": (*NUMBER, type(None)),
    "samples": int,
    "age_s": (*NUMBER, type(None)),
    "desired": dict,
    "actual": dict,
    "actuation": str,
    "why": str,
}
FACTOR = {"goodness": NUMBER, "weight": NUMBER, "value": NUMBER, "unit": str}
FINDING = {
    "id": str,
    "kind": str,
    "backend": str,
    "severity": str,
    "since": NUMBER,
    "until": (*NUMBER, type(None)),
    "evidence": dict,
    "shares": list,
}
DECISION = {
    "id": int,
    "time": NUMBER,
    "tick": int,
    "policy": str,
    "backend": str,
    "knob": str,
    "from": (*NUMBER, str, type(None)),
    "to": (*NUMBER, str),
    "verdict": str,
    "reason": str,
    "lease_expires": (*NUMBER, type(None)),
}
ALERT = {"fingerprint": str, "starts_at": str, "status": str, "labels": dict, "received": NUMBER}


def has_shape(document: dict[str, Any], shape: dict[str, Any]) -> None:
    """Every field of the contract with its type; more fields are allowed, a bool is no number."""
    for name, kinds in shape.items():
        assert name in document, f"{name} is missing in {sorted(document)}"
        value = document[name]
        assert isinstance(value, kinds), f"{name}: {value!r}"
        assert not isinstance(value, bool) or kinds is bool, f"{name}: {value!r}"


def by_name(fleet: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["backend"]: row for row in fleet["backends"]}


async def sick_fleet(world: World) -> None:
    """a hung and drained, b slow at half weight, c silent, d well."""
    await world.run(12)
    world.sick["a"].state = State.HUNG
    world.sick["b"].itl_s = 0.2
    world.sick["c"].silent = True
    await world.run(12)
