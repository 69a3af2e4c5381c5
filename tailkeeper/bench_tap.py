"""``bench tap``: the same streams straight from an engine, through the tap, and through HAProxy alone, in turns, in one run.

Engine, client and what lies between are a process each. ``paced`` is what users see: each stream gets a token every ``GAP_S``.
``unpaced`` is what the tap can carry: tokens as fast as they are taken, so that the slowest of the three, or the machine, is the
limit; where there are fewer cores than processes the tap takes its share from the engine and the client. HAProxy, which knows
nothing of tokens, is left out where there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tailkeeper.bench import summary
from tailkeeper.bench_processes import cpu_s
from tailkeeper.bench_tap_haproxy import haproxy_before
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


DIRECT, TAPPED, HAPROXY = "direct", "tapped", "haproxy"


@dataclass(slots=True)
class _Way:
    """To the engine: the process in between, if any, and what the clients that went this way saw."""

    port: int
    pid: int | None
    seen: list[dict[str, Any]] = field(default_factory=list)
    cpu_s: float = 0.0

    async def one_round(self, streams: int, seconds: float, seed: int) -> None:
        before_s = 0.0 if self.pid is None else cpu_s(self.pid)
        self.seen.append(await _client(self.port, streams, seconds, seed))
        self.cpu_s += 0.0 if self.pid is None else cpu_s(self.pid) - before_s

    @property
    def tokens(self) -> int:
        return max(1, sum(int(part["tokens"]) for part in self.seen))

    @property
    def first_token_s(self) -> dict[str, float]:
        return summary([s for part in self.seen for s in part["first_s"]])

    @property
    def tokens_per_second(self) -> float:
        return float(sum(part["tokens"] for part in self.seen) / sum(part["seconds"] for part in self.seen))


async def _case(streams: int, seconds: float, rounds: int, seed: int, gap_s: float, tokens: int) -> dict[str, Any]:
    async with _engine(gap_s, tokens) as engine_port, haproxy_before(engine_port) as haproxy:
        backend = BackendSettings(
            name="bench", engine="generic", url=f"http://127.0.0.1:{engine_port}", tap=TapSettings(listen="127.0.0.1:0")
        )
        async with TapHost((backend,), lambda exchange: None).running() as host:
            await host.ready()
            tap_port = int(host.addresses["bench"].rpartition(":")[2])
            ways = {DIRECT: _Way(engine_port, None), TAPPED: _Way(tap_port, host.pid)}
            if haproxy is not None:
                ways[HAPROXY] = _Way(haproxy.port, haproxy.pid)
            for number in range(rounds):
                for way in ways.values():
                    await way.one_round(streams, seconds, seed + number)
    return _figures(ways, gap_s)


def _figures(ways: Mapping[str, _Way], gap_s: float) -> dict[str, Any]:
    """First tokens in milliseconds. CPU covers the streams' start too, so it is a little too high."""
    first = {name: way.first_token_s for name, way in ways.items()}
    rates = {name: way.tokens_per_second for name, way in ways.items()}

    def against(name: str) -> dict[str, Any]:
        added_s = {key: first[name][key] - first[DIRECT][key] for key in ("p50", "p99")}
        return {
            "added_first_token_ms": {key: round(1000 * value, 3) for key, value in added_s.items()},
            "throughput_ratio": round(rates[name] / rates[DIRECT], 4),
            "cpu_us_per_event": round(1e6 * ways[name].cpu_s / ways[name].tokens, 1),
        }

    tapped = against(TAPPED)
    return {
        "token_gap_s": gap_s,
        "first_token_ms": {name: {key: round(1000 * s, 3) for key, s in of_way.items()} for name, of_way in first.items()},
        "tokens_per_second": {name: round(rate) for name, rate in rates.items()},
        "added_first_token_ms": tapped["added_first_token_ms"],
        "throughput_ratio": tapped["throughput_ratio"],
        "tap_cpu_us_per_event": tapped["cpu_us_per_event"],
        "haproxy_alone": against(HAPROXY) if HAPROXY in ways else None,
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
