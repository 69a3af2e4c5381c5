"""``bench tap``: the same streams straight from an engine and through the tap, in turns, in one run.

Engine, tap and client are a process each. ``paced`` is what users see: each stream gets a token every ``GAP_S``. ``unpaced``
is what the tap can carry: tokens as fast as they are taken, so that the slowest of the three, or the machine, is the limit;
where there are fewer cores than processes the tap takes its share from the engine and the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tailkeeper.bench import summary
from tailkeeper_exporter.settings import BackendSettings, TapSettings
from tailkeeper_exporter.tap.host import TapHost

GAP_S = 0.04
"""25 tokens a second for each user: faster than anybody reads."""
TOKENS = 50
UNPACED_TOKENS = 200


async def run(streams: int, seconds: float, rounds: int, seed: int) -> dict[str, Any]:
    """Figures of all cases. Raises RuntimeError where a byte arrived where it does not belong, or a stream was lost."""
    return {
        "streams": streams,
        "cores": len(os.sched_getaffinity(0)),
        "one_stream": await _case(1, seconds / 2, rounds, seed, 0.002, 2),
        "paced": await _case(streams, seconds, rounds, seed, GAP_S, TOKENS),
        "unpaced": await _case(streams, seconds, rounds, seed, 0.0, UNPACED_TOKENS),
    }


async def _case(streams: int, seconds: float, rounds: int, seed: int, gap_s: float, tokens: int) -> dict[str, Any]:
    direct: list[dict[str, Any]] = []
    tapped: list[dict[str, Any]] = []
    cpu_s = 0.0
    async with _engine(gap_s, tokens) as engine_port:
        backend = BackendSettings(
            name="bench", engine="generic", url=f"http://127.0.0.1:{engine_port}", tap=TapSettings(listen="127.0.0.1:0")
        )
        async with TapHost((backend,), lambda exchange: None).running() as host:
            await host.ready()
            tap_port = int(host.addresses["bench"].rpartition(":")[2])
            for number in range(rounds):
                direct.append(await _client(engine_port, streams, seconds, seed + number))
                before_s = _cpu_s(host.pid)
                tapped.append(await _client(tap_port, streams, seconds, seed + number))
                cpu_s += _cpu_s(host.pid) - before_s
    return _figures(direct, tapped, cpu_s, gap_s)


def _figures(direct: list[dict[str, Any]], tapped: list[dict[str, Any]], cpu_s: float, gap_s: float) -> dict[str, Any]:
    """First tokens in milliseconds. CPU covers the streams' start too, so it is a little too high."""
    first = [summary([s for part in parts for s in part["first_s"]]) for parts in (direct, tapped)]
    rates = [sum(part["tokens"] for part in parts) / sum(part["seconds"] for part in parts) for parts in (direct, tapped)]
    return {
        "token_gap_s": gap_s,
        "first_token_ms": {
            name: {key: round(1000 * value, 3) for key, value in figures.items()}
            for name, figures in zip(("direct", "tapped"), first, strict=True)
        },
        "added_first_token_ms": {key: round(1000 * (first[1][key] - first[0][key]), 3) for key in ("p50", "p99")},
        "tokens_per_second": {"direct": round(rates[0]), "tapped": round(rates[1])},
        "throughput_ratio": round(rates[1] / rates[0], 4),
        "tap_cpu_us_per_event": round(1e6 * cpu_s / max(sum(part["tokens"] for part in tapped), 1), 1),
    }


@contextlib.asynccontextmanager
async def _engine(gap_s: float, tokens: int) -> AsyncIterator[int]:
    command = (sys.executable, "-m", "tailkeeper.bench_tap_ends", "engine", str(gap_s), str(tokens))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield int(await process.stdout.readline())
    finally:
        process.terminate()
        await process.wait()


async def _client(port: int, streams: int, seconds: float, seed: int) -> dict[str, Any]:
    command = (sys.executable, "-m", "tailkeeper.bench_tap_ends", "client", str(port), str(streams), str(seconds), str(seed))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the client ended with {process.returncode}")
    seen: dict[str, Any] = json.loads(output)
    if seen["foreign"] or seen["lost"]:
        raise RuntimeError(f"{seen['foreign']} tokens of other streams arrived, and {seen['lost']} connections were lost")
    return seen


def _cpu_s(pid: int | None) -> float:
    """User and system time of a process of this machine. Seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
