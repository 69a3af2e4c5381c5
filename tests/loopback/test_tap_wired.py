"""The whole of it: a client, the tap's own process, an engine, and the exporter that watches them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailkeeper_exporter.app import Exporter, build, serve
from tailkeeper_exporter.clients import CredentialError
from tailkeeper_exporter.metrics_page import Dialect
from tailkeeper_exporter.settings import BackendSettings
from tailkeeper_exporter.state import State
from tailkeeper_exporter.tap.exchange import Exchange
from tailkeeper_exporter.tap.host import TapHost
from tailkeeper_exporter.views import Source
from tests.loopback.test_collector import QUIET, backend, settings, state, until, view
from tests.unit.fake_engine import TOKEN, FakeEngine, engine
from tests.unit.loopback import head

COMPLETIONS = "/v1/completions"
BODY = {"model": "m", "prompt": "hi", "stream": True}


@dataclass
class Whole:
    exporter: Exporter
    host: TapHost
    url: str
    """Of the tap."""

    async def complete(self, **headers: str) -> httpx.Response:
        async with httpx.AsyncClient(timeout=10) as client:
            return await client.post(self.url + COMPLETIONS, json=BODY, headers=headers)

    async def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Of the exporter."""
        transport = httpx.ASGITransport(app=self.exporter.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, **more)

    async def lines(self, start: str) -> list[str]:
        page = await self.ask("GET", "/metrics", headers={"accept": Dialect.OPEN_METRICS.value})
        return [line for line in page.text.splitlines() if line.startswith(start)]


@asynccontextmanager
async def whole(fake: FakeEngine, **more: Any) -> AsyncIterator[Whole]:
    hosts: list[TapHost] = []

    def make(backends: tuple[BackendSettings, ...], take: Callable[[Exchange], None]) -> TapHost:
        hosts.append(TapHost(backends, take, log=QUIET, stop_s=0.2))
        return hosts[0]

    watched = backend(fake.url, engine="generic", tap={"listen": "127.0.0.1:0"}, **more)
    async with build((watched,), settings(), log=QUIET, make_taps=make).running() as exporter:
        await exporter.ready()
        async with asyncio.timeout(20):
            await hosts[0].ready()
        yield Whole(exporter, hosts[0], f"http://{hosts[0].addresses['a']}")


async def test_a_request_through_the_tap_is_on_the_page_in_the_ring_and_an_exemplar() -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    async with engine() as fake, whole(fake) as world:
        answer = await world.complete(**{"x-request-id": "mine", "traceparent": f"00-{trace}-b7ad6b7169203331-01"})
        assert answer.status_code == 200
        await until(lambda: world.exporter.ring.since(0, 1).records)
        assert 'outcome="ok",canary_revision=""} 1.0' in (await world.lines("llm_requests_total"))[0]
        marked = [line for line in await world.lines("llm_time_to_first_token_seconds_bucket") if trace in line]
        assert len(marked) == 1
        assert 'request_id="mine"' in marked[0]
        record = (await world.ask("GET", "/api/v1/requests?since=0")).json()["requests"][0]
        assert (record["request_id"], record["trace_id"], record["outcome"]) == ("mine", trace, "ok")
        assert 0 < record["ttft_s"] <= record["e2e_s"]


async def test_a_knob_that_is_turned_over_http_is_in_force_and_its_refusals_are_counted_as_such() -> None:
    async with engine() as fake, whole(fake) as world:
        turned = await world.ask("PUT", "/api/v1/taps/a", json={"admission": "drain"})
        assert (turned.status_code, turned.json()["admission"]) == (200, "drain")
        assert (await world.complete()).status_code == 503
        await until(lambda: world.exporter.ring.since(0, 1).records)
        assert world.exporter.ring.since(0, 1).records[0].outcome == "rejected"
        assert (await world.lines("llm_time_to_first_token_seconds_count"))[0].endswith(" 0.0")


async def test_an_engine_that_freezes_in_the_middle_of_a_stream_is_hung_though_its_health_page_answers() -> None:
    frozen = asyncio.Event()

    async def tokens(seen: Any, writer: asyncio.StreamWriter) -> None:
        if frozen.is_set():
            await asyncio.sleep(3600)
        writer.write(head(200, "content-type: text/event-stream", "connection: close"))
        while not frozen.is_set():
            writer.write(TOKEN)
            await writer.drain()
            await asyncio.sleep(0.05)
        await asyncio.sleep(3600)

    async with engine() as fake, whole(fake) as world:
        await state(world.exporter, State.SERVING)
        fake.probe = tokens
        client = asyncio.create_task(world.complete())
        await until(lambda: world.host.statuses["a"].running == 1)
        async with httpx.AsyncClient() as balancer:
            frozen.set()
            started = time.monotonic()
            while view(world.exporter).state is not State.HUNG:
                assert time.monotonic() - started < 5, "a load balancer that asks for health through the tap is no progress"
                assert (await balancer.get(world.url + "/health")).status_code == 200
                await asyncio.sleep(0.1)
        assert time.monotonic() - started >= 0.9, "not before no_progress_s"
        client.cancel()
        await asyncio.gather(client, return_exceptions=True)


async def test_when_the_taps_process_dies_it_is_started_anew_and_the_backend_is_not_blamed() -> None:
    async with engine() as fake, whole(fake) as world:
        await state(world.exporter, State.SERVING)
        assert world.host.pid is not None
        before = world.host.pid
        os.kill(before, signal.SIGKILL)
        await until(lambda: world.host.restarts == 1 and world.host.pid not in (None, before), 10)
        assert (await world.complete()).status_code == 200
        await until(lambda: view(world.exporter).sources[Source.TAP].success, 10)
        assert view(world.exporter).state is State.SERVING


async def test_an_empty_token_file_is_named_before_anything_listens(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    tapped = backend("http://127.0.0.1:1", engine="generic", tap={"listen": "127.0.0.1:0"})
    with pytest.raises(CredentialError, match=r"exporter\.token_file: .*token is empty"):
        await serve((tapped,), settings(listen="127.0.0.1:0", token_file=tmp_path / "token"))


async def test_a_taps_address_that_is_taken_is_named_and_nothing_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        tapped = backend("http://127.0.0.1:1", engine="generic", tap={"listen": address})
        with pytest.raises(OSError, match=rf"backends\.a\.tap\.listen: {address}: Address already in use"):
            await serve((tapped,), settings(listen="127.0.0.1:0"))
