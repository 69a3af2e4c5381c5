"""HTTP to one gateway, without a gateway: what is opened, and how often."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httpx
import pytest

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind
from tailkeeper_watchdog.actuators.http_calls import HttpCalls
from tailkeeper_watchdog.actuators.webhook import WebhookActuator
from tests.unit.loopback import reply, serving


async def test_calls_that_begin_at_once_share_one_client_which_close_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[httpx.AsyncClient] = []

    class Client(httpx.AsyncClient):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            made.append(self)

    monkeypatch.setattr(httpx, "AsyncClient", Client)
    calls = HttpCalls(Auth(), 1_000)
    answers = await asyncio.gather(*(calls.call("GET", "https://127.0.0.1:1/") for _ in range(8)), return_exceptions=True)
    await calls.close()

    assert [answer.kind for answer in answers if isinstance(answer, CallError)] == [ErrorKind.UNREACHABLE] * 8
    assert [client.is_closed for client in made] == [True]


async def test_a_call_searches_the_disk_for_no_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is missing is looked for anew at each import of it: httpx's is half of what a call costs."""
    searched: list[str] = []

    class Recorder:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            searched.append(name)

    async with serving(reply(200)) as server:
        calls = HttpCalls(Auth(), 1_000)
        await calls.call("GET", server.url)
        monkeypatch.setattr(sys, "meta_path", [Recorder(), *sys.meta_path])
        await calls.call("GET", server.url)
        await calls.close()
    assert searched == [], "install what pyproject.toml lists"


@pytest.mark.parametrize("address", ["http://xn--a:1", "http://a..b:1", "http://[::1%25lo]:1"])
async def test_an_address_that_no_client_can_call_is_unreachable(address: str) -> None:
    calls = HttpCalls(Auth(), 1_000)
    with pytest.raises(CallError) as caught:
        await calls.call("GET", f"{address}/")
    await calls.close()
    assert caught.value.kind is ErrorKind.UNREACHABLE

    webhook = WebhookActuator("edge", address, Auth())
    with pytest.raises(ActuatorError) as refused:
        await webhook.read(("a",), 2.0)
    await webhook.close()
    assert refused.value.kind is ErrorKind.UNREACHABLE
