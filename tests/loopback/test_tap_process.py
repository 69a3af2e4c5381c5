"""The taps' own process: it serves, is turned, dies and comes back, and ends with its exporter or when its streams have."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tailkeeper import bench_tap
from tailkeeper.bench_gateways import find
from tailkeeper_exporter.settings import Auth, BackendSettings, TapSettings
from tailkeeper_exporter.tap import lines
from tailkeeper_exporter.tap.exchange import Exchange
from tailkeeper_exporter.tap.host import TapHost
from tailkeeper_exporter.tap.knobs import Knobs
from tailkeeper_exporter.tap.status import Taps
from tests.loopback.raw_engine import DONE, STREAM, Asked, RawEngine, Told, raw_engine, read_answer, says, token, until, whole
from tests.loopback.tap_world import CHAT, post
from tests.loopback.test_collector import QUIET

TLS = Path(__file__).parents[1] / "fixtures" / "tls"


@dataclass
class Parts:
    host: TapHost
    engine: RawEngine
    seen: list[Exchange]
    port: int

    async def ask(self, data: bytes) -> Told:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            async with asyncio.timeout(10):
                return await read_answer(reader)
        finally:
            writer.close()


def settings(url: str, listen: str = "127.0.0.1:0", **more: object) -> BackendSettings:
    return BackendSettings(name="a", engine="vllm", url=url, tap=TapSettings(listen=listen), **more)  # type: ignore[arg-type]


@asynccontextmanager
async def hosting(engine: RawEngine, backend: BackendSettings, stop_s: float = 0.5) -> AsyncIterator[Parts]:
    seen: list[Exchange] = []
    host = TapHost((backend,), seen.append, QUIET, stop_s=stop_s)
    async with asyncio.timeout(30), host.running():
        await host.ready()
        yield Parts(host, engine, seen, int(host.addresses["a"].rpartition(":")[2]))


async def _drip(asked: Asked) -> None:
    """A token every 50 ms for two seconds."""
    asked.send(STREAM)
    for number in range(40):
        asked.chunk(token(str(number)))
        await asked.writer.drain()
        await asyncio.sleep(0.05)
    asked.chunk(DONE)
    asked.end()


async def test_it_serves_reports_and_is_turned() -> None:
    async with raw_engine(says(whole(b"{}"))) as engine, hosting(engine, settings(engine.url)) as parts:
        assert (await parts.ask(post(CHAT))).status == 200
        await until(lambda: parts.seen)
        assert parts.seen[0].outcome == "ok"
        await until(lambda: parts.host.statuses["a"].progress_s is not None)
        wanted = Knobs(admission="drain", concurrency_limit=7)
        await parts.host.apply("a", wanted, 2.0)
        assert parts.host.statuses["a"].knobs == wanted
        assert (await parts.ask(post(CHAT))).status == 503
        with pytest.raises(KeyError):
            await parts.host.apply("b", wanted, 2.0)
        taps: Taps = parts.host
        assert taps.statuses["a"].queued == parts.host.bad_lines == parts.host.dropped == 0


async def test_a_killed_process_is_started_again_with_its_knobs_and_nobody_is_refused() -> None:
    async with raw_engine(says(whole(b"{}"))) as engine, hosting(engine, settings(engine.url)) as parts:
        await parts.host.apply("a", Knobs(degrade_level=1), 2.0)  # type: ignore[arg-type]
        before = parts.host.pid
        assert before is not None
        os.kill(before, signal.SIGKILL)
        await until(lambda: parts.host.pid != before)
        # The backlog keeps this one until the new process takes it; a low one is refused by the knobs it was given.
        assert (await parts.ask(post(CHAT))).status == 200
        assert (await parts.ask(post(CHAT, "x-priority: low"))).status == 503
        assert parts.host.restarts == 1


async def test_a_terminated_process_lets_its_streams_end_and_is_replaced() -> None:
    async with raw_engine(_drip) as engine, hosting(engine, settings(engine.url)) as parts:
        reader, writer = await asyncio.open_connection("127.0.0.1", parts.port)
        writer.write(post(CHAT))
        await reader.readuntil(b"data:")
        before = parts.host.pid
        assert before is not None
        os.kill(before, signal.SIGTERM)
        assert (await reader.read()).endswith(b"0\r\n\r\n")
        writer.close()
        await until(lambda: parts.host.pid not in (before, None))
        await parts.host.ready()
        assert parts.seen[-1].outcome == "ok"


async def test_a_knob_that_cannot_be_confirmed_says_so() -> None:
    async with raw_engine(says(whole(b"{}"))) as engine, hosting(engine, settings(engine.url)) as parts:
        assert parts.host.pid is not None
        os.kill(parts.host.pid, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            await parts.host.apply("a", Knobs(admission="drain"), 0.2)
        ordered = asyncio.create_task(parts.host.apply("a", Knobs(admission="drain"), 5.0))
        await asyncio.sleep(0.05)
        os.kill(parts.host.pid, signal.SIGKILL)
        with pytest.raises(OSError, match="before it confirmed"):
            await ordered


async def test_a_process_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    start, failed = asyncio.create_subprocess_exec, 0

    async def scarce(*command: str, **more: object) -> asyncio.subprocess.Process:
        nonlocal failed
        failed += 1
        if failed < 3:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return await start(*command, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", scarce)
    async with raw_engine(says(whole(b"{}"))) as engine, hosting(engine, settings(engine.url)) as parts:
        assert (await parts.ask(post(CHAT))).status == 200
        assert parts.host.restarts == 2


async def test_an_address_that_is_taken_is_found_at_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        backend = settings("http://127.0.0.1:1", f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(OSError, match=r"backends\.a\.tap\.listen"):
            TapHost((backend,), print, QUIET).open()


async def test_when_the_exporter_stops_streams_have_a_moment_and_are_then_cut() -> None:
    async with raw_engine(_drip) as engine:
        for stop_s, ends_well in ((4.0, True), (0.2, False)):
            async with hosting(engine, settings(engine.url), stop_s) as parts:
                reader, writer = await asyncio.open_connection("127.0.0.1", parts.port)
                writer.write(post(CHAT))
                await reader.readuntil(b"data:")
            rest = await reader.read()
            writer.close()
            assert rest.endswith(b"0\r\n\r\n") is ends_well
            assert parts.seen[-1].outcome == ("ok" if ends_well else "aborted")
            assert parts.host.pid is None


async def test_when_the_exporter_is_killed_the_address_is_free_and_the_stream_ends_well() -> None:
    """A new exporter takes over while the old one's answers end."""
    async with raw_engine(_drip) as engine:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            address = sock.getsockname()
            ours, process = await _orphan(sock.fileno(), engine.url)
        reader, writer = await asyncio.open_connection(*address)
        writer.write(post(CHAT))
        await reader.readuntil(b"data:")
        ours.close()
        again: list[socket.socket] = []

        def bound() -> bool:
            with contextlib.suppress(OSError):
                again.append(socket.create_server(address))
            return bool(again)

        assert await until(bound) < 1.0
        again[0].close()
        assert (await reader.read()).endswith(b"0\r\n\r\n")
        writer.close()
        assert await asyncio.wait_for(process.wait(), 5) == 0


async def _orphan(fd: int, url: str) -> tuple[socket.socket, asyncio.subprocess.Process]:
    """A taps' process whose exporter is this test."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = (sys.executable, "-m", "tailkeeper_exporter.tap.worker", str(theirs.fileno()))
        process = await asyncio.create_subprocess_exec(*command, pass_fds=(theirs.fileno(), fd))
    ours.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(ours, lines.plans_line((lines.TapPlan("a", url, fd),)))
    assert await loop.sock_recv(ours, 4096)
    return ours, process


async def test_a_parent_that_does_not_read_delays_nobody() -> None:
    async with raw_engine(says(whole(b"{}"))) as engine:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            address = sock.getsockname()
            ours, process = await _orphan(sock.fileno(), engine.url)
        reader, writer = await asyncio.open_connection(*address)
        for _ in range(3):
            writer.write(post(CHAT, "x-tenant: " + "t" * 100) * 30)
            for _ in range(30):
                assert (await read_answer(reader)).status == 200
        writer.close()
        ours.close()
        assert await asyncio.wait_for(process.wait(), 5) == 0


async def test_the_memory_of_a_stream_that_nobody_reads_stays_flat() -> None:
    piece = b": " + b"x" * 1_000_000 + b"\n\n"

    async def answer(asked: Asked) -> None:
        asked.send(STREAM)
        for _ in range(50):
            asked.chunk(piece)
            await asked.writer.drain()

    async with raw_engine(answer) as engine, hosting(engine, settings(engine.url)) as parts:
        before = _rss_bytes(parts.host.pid)
        readers = [await asyncio.open_connection("127.0.0.1", parts.port, limit=4096) for _ in range(8)]
        for _, writer in readers:
            writer.write(post(CHAT))
        await asyncio.sleep(1.0)
        grown = _rss_bytes(parts.host.pid) - before
        for _, writer in readers:
            writer.close()
        assert grown < 30_000_000
        await until(lambda: len(parts.seen) == 8)
        assert {seen.outcome for seen in parts.seen} == {"aborted"}


async def test_lines_that_make_no_sense_cost_themselves_only() -> None:
    async with raw_engine(says(whole(b"{}"))) as engine, hosting(engine, settings(engine.url)) as parts:
        deep = b"E" + b"[" * 100_000
        bad = (b"", b"X{}", b"E{}", b'E{"backend":"a"}', b"S[]", b'S{"taps":{"a":1},"dropped":0}', b"A{}", b"L1", deep)
        for line in bad:
            parts.host._line(line)
        assert parts.host.bad_lines == len(bad)
        assert (await parts.ask(post(CHAT))).status == 200
        await until(lambda: parts.seen)


@pytest.mark.parametrize("trusted", [True, False])
async def test_a_backend_behind_tls_is_checked_and_reached(trusted: bool) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "localhost.pem", TLS / "localhost.key")
    async with raw_engine(_one_token, tls=context) as engine:
        auth = Auth(ca_file=TLS / "localhost.pem") if trusted else Auth()
        async with hosting(engine, settings(f"https://localhost:{engine.port}", auth=auth)) as parts:
            told = await parts.ask(post(CHAT))
            await until(lambda: parts.seen)
            assert told.status == (200 if trusted else 502)
            assert parts.seen[0].outcome == ("ok" if trusted else "error")
            if not trusted:
                assert "tls_untrusted" in json.loads(told.body)["error"]["message"]


async def test_the_benchmark_measures_every_way_and_finds_no_stranger() -> None:
    figures = await bench_tap._case(4, 0.5, 1, 1, 0.01, 5)
    ways = {"direct", "tapped"} | ({"haproxy"} if find("haproxy") else set())
    assert set(figures["tokens_per_second"]) == ways
    assert all(100 < rate < 800 for rate in figures["tokens_per_second"].values())
    assert all(figures["first_token_ms"][way]["p50"] > 0 for way in ways)
    assert (figures["haproxy_alone"] is not None) == ("haproxy" in ways)


async def _one_token(asked: Asked) -> None:
    asked.send(STREAM)
    asked.chunk(token("a"), DONE)
    asked.end()


def _rss_bytes(pid: int | None) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024
