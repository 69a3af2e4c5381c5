"""Gateways that come in wheels (extra `real`), and what stands between one of them and its actuator in a test.

Programs are started by their own files here; this has what they share.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.real_programs import free_port

TOKEN = "of-the-administrator"


def from_wheel(name: str, package: str) -> str:
    """The path of a program that a wheel installs, or the end of this test: skipped, or failed under ``TAILKEEPER_REAL=1``."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is not None:
        return found
    message = f"{name} is missing; pip install {package}"
    if os.environ.get("TAILKEEPER_REAL") == "1":
        pytest.fail(message)
    pytest.skip(message)


@dataclass
class AdminProxy:
    """Before an administration interface: wants a bearer token, counts calls at once, and notes what ``look`` sees at each.

    Where ``answer`` is set it is what every call gets instead.
    """

    port: int
    look: Callable[[], tuple[float, str]]
    url: str = ""
    seen: list[tuple[float, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    most_at_once: int = 0
    answer: bytes | None = None
    _at_once: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.paths.append(head.split(b" ")[1].decode())
            if self.look() != self.seen[-1]:
                self.seen.append(self.look())
            writer.write(await self._answer(head))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # The client hung up.
        finally:
            self._at_once -= 1
            writer.close()

    async def _answer(self, head: bytes) -> bytes:
        if self.answer is not None:
            return self.answer
        if f"authorization: bearer {TOKEN}".encode() not in head.lower():
            return b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        try:
            theirs, to_them = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        to_them.write(head.replace(b"onnection: keep-alive", b"onnection: close"))
        answer = await theirs.read(-1)
        to_them.close()
        return answer


@asynccontextmanager
async def admin_proxy(port: int, look: Callable[[], tuple[float, str]]) -> AsyncIterator[AdminProxy]:
    proxy = AdminProxy(port, look, seen=[look()])
    listen = free_port()
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", listen)
    proxy.url = f"http://127.0.0.1:{listen}"
    async with server:
        yield proxy
