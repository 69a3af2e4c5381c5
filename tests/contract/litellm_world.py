"""A FAKE LiteLLM proxy with a database, written from its documentation and source; no real one with a database was at hand.

Kept: ``GET /model/info`` and ``GET /router/settings`` in the shapes captured from LiteLLM 1.108.7; ``PATCH /model/ID/update``
merges what is given into the stored row, refuses a deployment of config.yaml (400) and answers 500 without a database, in the
captured words; ``blocked`` is for a proxy admin; what a ``model_info`` leaves out LiteLLM fills in, a new id among it.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators import Actuator
from tailkeeper_watchdog.actuators.litellm import LitellmActuator
from tailkeeper_watchdog.gateways import LitellmGateway
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, KnobValue
from tests.e2e.real_programs import RealPrograms
from tests.unit.loopback import Seen, Server, reply, serving

KEY = "sk-of-an-admin"
NO_DATABASE = {
    "detail": {
        "error": "DB not connected. This endpoint needs a database; set DATABASE_URL to a PostgreSQL connection string "
        "(postgresql://...) to enable it. See https://docs.litellm.ai/docs/proxy/virtual_keys"
    }
}
"""Captured from 1.108.7."""


def deployment(name: str, weight: float | None = 100, group: str = "fake", *, in_database: bool = True) -> dict[str, Any]:
    params = {
        "api_base": f"http://127.0.0.1:1/{name}",
        "model": "openai/fake",
        **({"weight": weight} if weight is not None else {}),
    }
    return {"model_name": group, "litellm_params": params, "model_info": {"id": name, "db_model": in_database, "blocked": False}}


@dataclass
class FakeLitellm:
    rows: list[dict[str, Any]]
    strategy: str = "simple-shuffle"
    database: bool = True
    lying: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)
    """Every change asked for."""
    states: list[tuple[float, str]] = field(default_factory=list)
    """Of the first row, after each change."""
    most_at_once: int = 0
    server: Server = field(default_factory=lambda: Server(""))
    _at_once: int = 0

    def row(self, name: str) -> dict[str, Any]:
        return next(row for row in self.rows if row["model_info"]["id"] == name)

    def state(self, name: str) -> tuple[float, str]:
        row = self.row(name)
        return row["litellm_params"]["weight"] / 100, DRAIN if row["model_info"]["blocked"] else SERVE

    def chosen(self) -> dict[str, float]:
        """The share of requests that each deployment gets, as simple-shuffle chooses; empty where every request fails."""
        there = [row for row in self.rows if not row["model_info"]["blocked"]]
        weights = [row["litellm_params"].get("weight", 0) for row in there]
        return {row["model_info"]["id"]: w / sum(weights) for row, w in zip(there, weights, strict=True)} if sum(weights) else {}

    async def handle(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        await asyncio.sleep(0)
        code, body = self._answer(seen)
        self._at_once -= 1
        await reply(code, body, "content-type: application/json")(seen, writer)

    def _answer(self, seen: Seen) -> tuple[int, Mapping[str, Any]]:
        if seen.headers.get("authorization") != f"Bearer {KEY}":
            return _error(401, "Authentication Error, Invalid proxy server token passed.")
        if seen.path == "/model/info":
            return 200, {"data": self.rows}
        if seen.path == "/router/settings":
            return 200, {"fields": [{"field_name": "routing_strategy", "field_type": "String", "field_value": self.strategy}]}
        _, model, name, update = seen.path.split("/")
        assert (seen.method, model, update) == ("PATCH", "model", "update")
        return self._update(name, seen.json)

    def _update(self, name: str, patch: dict[str, Any]) -> tuple[int, Mapping[str, Any]]:
        if not self.database:
            return 500, NO_DATABASE
        row = next((row for row in self.rows if row["model_info"]["id"] == name), None)
        if row is None:
            return _error(404, f"Model {name} not found on proxy.")
        if not row["model_info"]["db_model"]:
            return _error(400, "Cannot edit config-based model. Store model in DB via /model/new first.")
        self.history.append(patch)
        if not self.lying:
            row["litellm_params"] |= patch.get("litellm_params") or {}
            if info := patch.get("model_info"):
                row["model_info"] |= {"id": "a-new-one", "db_model": False, **info}
            row["model_info"]["blocked"] = patch.get("blocked", row["model_info"]["blocked"])
        self.states.append(self.state(self.rows[0]["model_info"]["id"]))
        return 200, row


def _error(code: int, message: str) -> tuple[int, Mapping[str, Any]]:
    return code, {"error": {"message": message, "type": "auth_error", "param": "None", "code": str(code)}}


@asynccontextmanager
async def fake_litellm(*rows: dict[str, Any]) -> AsyncIterator[tuple[FakeLitellm, LitellmActuator]]:
    fake = FakeLitellm([json.loads(json.dumps(row)) for row in rows])
    with tempfile.TemporaryDirectory() as folder:
        token = Path(folder) / "token"
        token.write_text(KEY)
        async with serving(fake.handle) as server:
            fake.server = server
            settings = LitellmGateway(name="edge", kind="litellm", url=server.url, auth=Auth(bearer_file=token))
            actuator = LitellmActuator(settings)
            yield fake, actuator
            await actuator.close()


@dataclass
class LitellmWorld:
    fake: FakeLitellm
    actuator: Actuator
    a: str = "a"
    b: str = "b"
    unknown: str = "nobody"
    normal: Mapping[Knob, KnobValue] = field(default_factory=lambda: {Knob.WEIGHT: 1.0, Knob.ADMISSION: SERVE})

    def truth(self, server: str) -> tuple[float, str]:
        return self.fake.state(server)

    def set_by_hand(self, server: str, weight: float) -> None:
        self.fake.row(server)["litellm_params"]["weight"] = round(weight * 100)

    def steps(self) -> list[tuple[float, str]]:
        return self.fake.states

    def most_at_once(self) -> int:
        return self.fake.most_at_once

    def without_rights(self) -> Actuator:
        return LitellmActuator(LitellmGateway(name="edge", kind="litellm", url=self.fake.server.url))


@asynccontextmanager
async def litellm_world(_: RealPrograms) -> AsyncIterator[LitellmWorld]:
    async with fake_litellm(deployment("a"), deployment("b")) as (fake, actuator):
        yield LitellmWorld(fake, actuator)
