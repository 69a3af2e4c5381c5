"""The exporter's description of itself is of what it answers; whether the answers keep to it is asked by Schemathesis."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from tailkeeper_exporter.openapi import BEARER, PATHS
from tailkeeper_exporter.otlp.receiver import traces_route
from tailkeeper_exporter.requests_ring import RequestRing
from tailkeeper_exporter.server import make_app
from tailkeeper_exporter.tap.routes import tap_routes
from tests.taps_in_memory import TapsInMemory

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
CALLS = [(path, method) for path in PATHS for method in METHODS]


async def _nothing(*_: object) -> Any:
    raise NotImplementedError


def _app(token: str | None = "secret", *, taps: bool = True) -> ASGIApp:
    known: Any = SimpleNamespace(ring=RequestRing(), views={}, waiting_for=lambda: (), now=lambda: 0.0, gpu_snapshot=lambda: None)
    receiver: Any = SimpleNamespace(handle=_nothing)
    routes = tap_routes(TapsInMemory("a"), token, "127.0.0.1:1") if taps else []
    return make_app(known, [traces_route(receiver), *routes], has_token=token is not None)


async def _ask(app: ASGIApp, path: str, method: str = "GET") -> httpx.Response:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return await client.request(method, path)


@pytest.mark.parametrize(("path", "method"), CALLS)
async def test_what_is_described_may_be_called_and_nothing_else(path: str, method: str) -> None:
    answer = await _ask(_app(), path.replace("{backend}", "a"), method)
    described = {name.upper() for name in PATHS[path]}
    assert (answer.status_code != 405) == (method in described or (method == "HEAD" and "GET" in described))
    if answer.status_code == 405:
        assert described <= set(answer.headers["allow"].split(", ")) <= {*described, "HEAD"}


async def test_only_what_is_there_is_described_and_a_token_only_where_one_is_needed() -> None:
    whole = (await _ask(_app(), "/openapi.json")).json()
    assert set(whole["paths"]) == set(PATHS)
    assert whole["paths"]["/api/v1/taps/{backend}"]["put"]["security"] == [{BEARER: []}]
    free = (await _ask(_app(None), "/openapi.json")).json()
    assert "security" not in free["paths"]["/api/v1/taps/{backend}"]["put"]
    without = (await _ask(_app(taps=False), "/openapi.json")).json()
    assert set(PATHS) - set(without["paths"]) == {"/api/v1/taps", "/api/v1/taps/{backend}"}
