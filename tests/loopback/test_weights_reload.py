"""The command ``tailkeeper watchdog`` follows the weights in its file within five seconds, beside what people set over HTTP."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

PATH = "/api/v1/hscorer/config"
DEADLINE_S = 5.0
START_S = 30.0
A = {"latency": 0.35, "error_rate": 0.4, "cpu_usage": 0.15, "uptime": 0.1}
B = {"latency": 0.25, "error_rate": 0.25, "cpu_usage": 0.25, "uptime": 0.25}
C = {"latency": 0.0, "error_rate": 0.0, "cpu_usage": 0.0, "uptime": 1.0}
WRONG = {**B, "uptime": 0.5}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Place:
    """A folder with a configuration and a ledger, at which watchdogs are started one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, free_port()
        self.file = folder / "tailkeeper.yaml"
        self.log = folder / "log"

    def text(self, weights: dict[str, float]) -> str:
        listed = ", ".join(f"{name}: {weight}" for name, weight in weights.items())
        return (
            "backends:\n  - {name: a, engine: vllm, url: 'http://127.0.0.1:9'}\n"
            f"watchdog: {{listen: '127.0.0.1:{self._port}', tick_s: 0.5, state: {self._folder / 'tailkeeper.db'}}}\n"
            f"hscore:\n  weights: {{{listed}}}\n"
        )

    def write(self, weights: dict[str, float]) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(self.text(weights))
        os.replace(new, self.file)

    @asynccontextmanager
    async def watchdog(self) -> AsyncIterator[httpx.AsyncClient]:
        with self.log.open("ab") as log:
            command = (sys.executable, "-m", "tailkeeper.cli", "--log-format", "json", "watchdog", "-c", str(self.file))
            process = await asyncio.create_subprocess_exec(*command, stderr=log)
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self._port}", trust_env=False) as client:
                await self._answering(client, process)
                yield client
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()

    async def _answering(self, client: httpx.AsyncClient, process: asyncio.subprocess.Process) -> None:
        ends_at = time.monotonic() + START_S
        while time.monotonic() < ends_at and process.returncode is None:
            try:
                await client.get("/livez")
            except httpx.TransportError:
                await asyncio.sleep(0.05)
            else:
                return
        raise AssertionError(self.log.read_text())

    def complaints(self) -> int:
        return self.log.read_text().count("are not taken")


async def config(client: httpx.AsyncClient) -> dict[str, Any]:
    document: dict[str, Any] = (await client.get(PATH)).json()
    return document


async def in_force(client: httpx.AsyncClient, weights: dict[str, float]) -> None:
    ends_at = time.monotonic() + DEADLINE_S
    while (await config(client))["weights"] != weights:
        assert time.monotonic() < ends_at, f"not in force within {DEADLINE_S} s"
        await asyncio.sleep(0.05)


async def test_the_file_a_person_and_a_restart_take_turns(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.write(A)
    async with place.watchdog() as client:
        assert await config(client) == {"weights": A, "history": []}
        place.write(B)
        await in_force(client, B)
        await client.put(PATH, json={"weights": C, "by": "maria"})
        os.utime(place.file)
        await asyncio.sleep(2)
        assert (await config(client))["weights"] == C, "a file that was only touched takes nothing back"
    async with place.watchdog() as client:
        assert (await config(client))["weights"] == C, "the file says what it said when that was set"
        place.write(A)
        await in_force(client, A)
        place.write(B)
        await in_force(client, B)
    place.write(A)
    async with place.watchdog() as client:
        document = await config(client)
    assert document["weights"] == A, "the file has changed while nobody watched"
    assert [(row["by"], row["to"]) for row in document["history"]] == [
        *(("file", A), ("file", B), ("file", A)),
        *(("maria", C), ("file", B)),
    ]


async def test_a_file_that_is_wrong_or_half_written_changes_nothing_and_is_said_once(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.write(A)
    async with place.watchdog() as client:
        place.write(WRONG)
        await asyncio.sleep(3)
        assert await config(client) == {"weights": A, "history": []}
        assert place.complaints() == 1
        assert "weights sum to 1.25; they must sum to 1" in place.log.read_text()
        whole = place.text(B)
        for end in range(0, len(whole), len(whole) // 20):
            place.file.write_text(whole[:end])
            await asyncio.sleep(0.1)
        assert (await config(client))["weights"] == A
        place.file.write_text(whole)
        await in_force(client, B)
        assert [row["by"] for row in (await config(client))["history"]] == ["file"]
        assert place.complaints() == 1
