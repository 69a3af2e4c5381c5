"""The programs of ``bench loop``: a gateway, and an eye on it that is not the watchdog's. Started here, ended here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tailkeeper_watchdog.gateways import HaproxyGateway, WebhookGateway

LIMIT_S = 30.0
"""For a program to start, and for one trial."""
LOOK_EVERY_S = 0.005
LOG_TAIL_BYTES = 2_000

Look = Callable[[str], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Started:
    """A gateway that runs: how the watchdog reaches it, what stands before a server's name there, and the eye on it."""

    gateway: HaproxyGateway | WebhookGateway
    prefix: str
    names: tuple[str, ...]
    touched: Look
    """Whether a server gets less than its normal share, drained included."""


def find(name: str) -> str | None:
    """A program on the PATH, in Debian's place for daemons, or beside this interpreter; None where there is none."""
    here = str(Path(sys.executable).parent)
    return shutil.which(name) or shutil.which(name, path=f"/usr/sbin:/usr/local/sbin:{here}")


async def until(look: Look, server: str, wanted: bool, every_s: float = LOOK_EVERY_S) -> None:
    """Raises TimeoutError where it never comes about."""
    async with asyncio.timeout(LIMIT_S):
        while await look(server) is not wanted:  # noqa: ASYNC110  the eye is another program's, which tells nobody
            await asyncio.sleep(every_s)


async def ready(is_ready: Callable[[], Awaitable[bool]], what: str) -> None:
    """Raises RuntimeError where ``what`` does not come about in time."""
    try:
        async with asyncio.timeout(LIMIT_S):
            while not await is_ready():  # noqa: ASYNC110  as above
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise RuntimeError(f"{what} did not come about within {LIMIT_S:g} s") from None


def a_gateway(folder: Path, names: tuple[str, ...]) -> contextlib.AbstractAsyncContextManager[Started]:
    """HAProxy where there is one, else the demo's small gateway."""
    binary = find("haproxy")
    return _haproxy(folder, names, binary) if binary else _small_gateway(folder, names)


@contextlib.asynccontextmanager
async def _haproxy(folder: Path, names: tuple[str, ...], binary: str) -> AsyncIterator[Started]:
    socket, config = folder / "s", folder / "h.cfg"
    servers = "\n".join(f"  server {n} 127.0.0.1:1 weight 100" for n in names)
    config.write_text(
        f"global\n  stats socket {socket} mode 600 level admin\ndefaults\n  mode http\n  timeout connect 1s\n"
        f"  timeout client 1s\n  timeout server 1s\nbackend llm\n{servers}\nlisten idle\n  bind {folder}/l\n"
    )

    async def touched(name: str) -> bool:
        row = (await haproxy_rows(socket))["llm", name]
        return row["status"].startswith("DRAIN") or float(row["weight"]) < 100

    async with program([binary, "-db", "-f", str(config)], folder, socket.exists):
        yield Started(HaproxyGateway(name="edge", kind="haproxy", socket=str(socket)), "llm/", names, touched)


async def haproxy_rows(socket: Path) -> Mapping[tuple[str, str], Mapping[str, str]]:
    """What ``show stat`` says of each server, by proxy and server."""
    reader, writer = await asyncio.open_unix_connection(str(socket))
    writer.write(b"show stat -1 4 -1\n")
    rows = [line.split(",") for line in (await reader.read()).decode().splitlines() if line]
    writer.close()
    header = [name.lstrip("# ") for name in rows[0]]
    tables = [dict(zip(header, row, strict=False)) for row in rows[1:]]
    return {(row["pxname"], row["svname"]): row for row in tables}


@contextlib.asynccontextmanager
async def _small_gateway(folder: Path, names: tuple[str, ...]) -> AsyncIterator[Started]:
    import httpx

    from tailkeeper_demo.processes import free_port

    admin, listening = free_port(), folder / "ready"
    servers = [part for n in names for part in ("--server", f"{n}=http://127.0.0.1:1")]
    command = [sys.executable, "-m", "tailkeeper_demo.gateway", "--listen", f"127.0.0.1:{free_port()}"]
    command += ["--admin", f"127.0.0.1:{admin}", "--ready-file", str(listening), *servers]
    url = f"http://127.0.0.1:{admin}"
    async with program(command, folder, listening.exists), httpx.AsyncClient(trust_env=False) as client:

        async def touched(name: str) -> bool:
            document = json.loads((await client.get(f"{url}/{name}")).content)
            return bool(document["admission"] == "drain" or document["weight"] < 1.0)

        yield Started(WebhookGateway(name="edge", kind="webhook", url=url), "", names, touched)


@contextlib.asynccontextmanager
async def program(command: list[str], folder: Path, is_ready: Callable[[], bool]) -> AsyncIterator[None]:
    """Run ``command`` in ``folder`` until the end of the block. Raises RuntimeError, with the end of its log, where it ends."""
    log = folder / f"{time.monotonic_ns()}.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output, cwd=folder)
    try:
        async with asyncio.timeout(LIMIT_S):
            while not is_ready():
                if process.returncode is not None:
                    said = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
                    raise RuntimeError(f"{' '.join(command[:4])} ended with {process.returncode}: {said}")
                await asyncio.sleep(0.02)
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
