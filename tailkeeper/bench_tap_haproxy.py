"""HAProxy alone before the engine of ``bench tap``: what a plain proxy in C adds, as a measure for what the tap adds.

One thread, because a tap is one process too; ``http-no-delay``, so that no token waits for the next; no checks, no logs.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from tailkeeper.bench_gateways import LOG_TAIL_BYTES, find, ready

_CONFIG = """
global
  nbthread 1
  maxconn 4096
defaults
  mode http
  option http-no-delay
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend in
  bind 127.0.0.1:{port}
  default_backend engine
backend engine
  server engine 127.0.0.1:{engine_port}
"""


@dataclass(frozen=True, slots=True)
class Running:
    """Where it listens, and its process."""

    port: int
    pid: int


@contextlib.asynccontextmanager
async def haproxy_before(engine_port: int) -> AsyncIterator[Running | None]:
    """HAProxy until the end of the block; None where there is none. Raises RuntimeError where it does not start."""
    from tailkeeper_demo.processes import free_port

    binary = find("haproxy")
    if binary is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="tk-") as name:
        folder = Path(name)
        port, config, log = free_port(), folder / "h.cfg", folder / "h.log"
        config.write_text(_CONFIG.format(port=port, engine_port=engine_port))
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(binary, "-db", "-f", str(config), stdout=output, stderr=output)

        async def started() -> bool:
            if process.returncode is not None:
                raise RuntimeError(f"haproxy: {log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors='replace')}")
            return await _listens(port)

        try:
            await ready(started, "HAProxy's start")
            yield Running(port, process.pid)
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
