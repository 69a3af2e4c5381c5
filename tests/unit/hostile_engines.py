"""Hostile engines in a process of their own, so that what they cost is not taken for the exporter's. Prints their URLs.

Ends when its standard input is closed, so it never outlives the test.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from tests.unit.loopback import Handler, head, reply, serving, silence, stream

_BIG_LINE = b'x{a="' + b"y" * 50_000 + b'"} 1\n'


async def _endless(seen: object, writer: asyncio.StreamWriter) -> None:
    writer.write(head(200))
    for _ in range(500):
        writer.write(_BIG_LINE)
        await writer.drain()


def _new_series() -> bytes:
    """Just below the cap, every line a series that was never seen before."""
    return b"".join(b'vllm:num_requests_running{engine="%d"} 1\n' % number for number in range(180_000))


HANDLERS: tuple[Handler, ...] = (
    silence,
    stream(*[piece for _ in range(200) for piece in (b"#", 0.05)]),
    _endless,
    reply(200, b'x{a="1"} 1\n' * 190_000),
    reply(200, _new_series()),
    reply(200, b"x" * 25_000_000),
    reply(200, "<html>502</html>\n"),
    reply(200, b'"# HELP x y\\nx 1\\n"'),
    reply(307, b"", "location: /metrics"),
    reply(500, b"no"),
    reply(501, b"no"),
)


async def _serve() -> None:
    async with AsyncExitStack() as stack:
        for handler in HANDLERS:
            print((await stack.enter_async_context(serving(handler))).url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


@contextmanager
def hostile_engines() -> Iterator[list[str]]:
    """Their URLs, while the block lasts."""
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.unit.hostile_engines"], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield [process.stdout.readline().strip() for _ in HANDLERS]
    finally:
        process.communicate()


if __name__ == "__main__":
    asyncio.run(_serve())
