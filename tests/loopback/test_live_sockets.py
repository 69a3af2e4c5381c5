"""The stream over real sockets: somebody who never reads delays neither the loop nor the others, nor the end of the server."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx
import pytest
import yaml

from tailkeeper_exporter.serving import STOP_S
from tailkeeper_watchdog.api import live as live_module
from tailkeeper_watchdog.api.live import Live
from tests.e2e.real_programs import free_port, wait_until
from tests.scenario.world import World
from tests.served import served
from tests.unit.watchdog_http import gated

NAMES = tuple(f"vllm-{i:04}" for i in range(1_000))
"""A picture of 0.8 MB: more than the kernel keeps for one who does not read."""


async def _pictures(answer: httpx.Response, lengths: list[int]) -> None:
    async for line in answer.aiter_lines():
        if line.startswith('data: {"fleet"'):
            lengths.append(len(line))


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110 - what is waited for is counted elsewhere
            await asyncio.sleep(0.01)


def _deaf(port: int) -> socket.socket:
    """One that asks for the stream and reads nothing; its kernel keeps little for it."""
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    deaf.connect(("127.0.0.1", port))
    deaf.sendall(b"GET /api/v1/stream HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    return deaf


async def test_one_who_never_reads_delays_nobody_and_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "SEND_LIMIT_S", 1.0)
    monkeypatch.setattr(live_module, "SPACING_S", 0.0)
    world, live, lengths = World(":memory:", NAMES), Live(), list[int]()
    await world.run(1)
    async with served(gated(world, live=live), live.end) as (port, _), httpx.AsyncClient(trust_env=False, timeout=30) as client:
        with closing(_deaf(port)):
            url = f"http://127.0.0.1:{port}/api/v1/stream"
            async with client.stream("GET", url, headers={"accept-encoding": "gzip"}) as answer:
                reading = asyncio.create_task(_pictures(answer, lengths))
                await _until(lambda: live.open == 2 and len(lengths) > 0)
                for _tick in range(30):
                    seen = len(lengths)
                    await world.run(0.5)
                    await _until(lambda seen=seen: len(lengths) > seen)  # type: ignore[misc]
                    if live.open == 1:
                        break
                reading.cancel()
                assert live.open == 1, "it kept its place"
    assert min(lengths) > 600_000


async def test_an_open_stream_does_not_hold_up_the_end_of_the_server() -> None:
    world, live = World(":memory:"), Live()
    await world.run(1)
    async with served(gated(world, live=live), live.end) as (port, server), httpx.AsyncClient(trust_env=False) as client:
        async with client.stream("GET", f"http://127.0.0.1:{port}/api/v1/stream") as answer:
            lines = answer.aiter_lines()
            while not (await anext(lines)).startswith("data: "):
                pass
            began = time.monotonic()
            server.should_exit = True
            rest = [line async for line in lines]
        assert not any(line.startswith("data: ") for line in rest)
        assert time.monotonic() - began < STOP_S / 2


def test_a_watchdog_process_ends_at_once_while_consoles_listen(tmp_path: Path) -> None:
    port = free_port()
    document = {
        "backends": [{"name": "a", "engine": "vllm", "url": "http://127.0.0.1:9"}],
        "watchdog": {
            "tick_s": 0.5,
            "state": str(tmp_path / "t.db"),
            "source": {"kind": "exporter", "urls": ["http://127.0.0.1:9"]},
        },
    }
    config = tmp_path / "t.yaml"
    config.write_text(yaml.safe_dump(document))
    argv = [sys.executable, "-m", "tailkeeper.cli", "watchdog", "-c", str(config), "--listen", f"127.0.0.1:{port}"]
    log = tmp_path / "log"
    with log.open("wb") as out, subprocess.Popen(argv, stdout=out, stderr=out) as process:
        try:
            wait_until(lambda: _ready(port), "it ticks", 30)
            with httpx.stream("GET", f"http://127.0.0.1:{port}/api/v1/stream", trust_env=False, timeout=10) as answer:
                lines = answer.iter_lines()
                while not next(lines).startswith('data: {"fleet"'):
                    pass
                began = time.monotonic()
                process.terminate()
                assert not [line for line in lines if line.startswith("event: trouble")]
            assert process.wait(10) == 0
            assert time.monotonic() - began < 1.9, f"the server gives open answers {STOP_S} s"
        finally:
            process.kill()
    assert "timeout graceful shutdown exceeded" not in log.read_text()


def _ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", trust_env=False, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
