"""HTTP to one gateway, without a gateway: what is opened, and how often."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.contract import ErrorKind
from tailkeeper_watchdog.actuators.http_calls import HttpCalls


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
