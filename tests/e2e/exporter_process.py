"""The exporter and an engine as processes of their own, for tests that stop and kill them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.real_programs import free_port, open_url, wait_until

ROOT = Path(__file__).parents[2]

_ENGINE = """
import asyncio, sys
from tests.unit.fake_engine import FakeEngine
from tests.unit.loopback import serving_at

async def main():
    fake = FakeEngine(tokens_per_page=float(sys.argv[2]), running=float(sys.argv[3]))
    async with serving_at(fake.handle, int(sys.argv[1])):
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""

_EXPORTER = """
import asyncio, json, sys
from tailkeeper_exporter.app import serve
from tailkeeper_exporter.settings import BackendSettings, ExporterSettings

document = json.loads(sys.argv[1])
backends = tuple(BackendSettings.model_validate(backend) for backend in document["backends"])
asyncio.run(serve(backends, ExporterSettings.model_validate(document["exporter"])))
"""


@dataclass(frozen=True)
class Running:
    url: str
    process: subprocess.Popen[bytes]


@contextmanager
def _process(code: str, arguments: Sequence[str], url: str, path: str) -> Iterator[Running]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: process.poll() is not None or answers(url + path) is not None, f"{url} answering")
        assert process.poll() is None
        yield Running(url, process)
    finally:
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def answers(url: str) -> int | None:
    """The status, whatever it is; None where nobody answers."""
    try:
        return get(url)[0]
    except OSError:
        return None


def get(url: str, accept: str = "*/*") -> tuple[int, str, str]:
    """Status, content type and text at ``url``."""
    import urllib.error
    import urllib.request

    request = urllib.request.Request(url, headers={"Accept": accept})
    try:
        with open_url(request, timeout=5) as response:
            return response.status, response.headers["content-type"], response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["content-type"], error.read().decode()


@contextmanager
def engine_process(port: int | None = None, tokens_per_page: float = 0, running: float = 0) -> Iterator[Running]:
    """A fake vLLM in a process of its own."""
    port = port or free_port()
    arguments = [str(port), str(tokens_per_page), str(running)]
    with _process(_ENGINE, arguments, f"http://127.0.0.1:{port}", "/health") as running_engine:
        yield running_engine


@contextmanager
def exporter_process(backends: Sequence[Mapping[str, Any]], **settings: Any) -> Iterator[Running]:
    """`serve`, as the command line runs it."""
    port = free_port()
    exporter = {"listen": f"127.0.0.1:{port}", "scrape_interval_s": 0.2, "scrape_timeout_s": 0.3, "gpu": {"source": "none"}}
    document = {"backends": [dict(backend) for backend in backends], "exporter": exporter | settings}
    with _process(_EXPORTER, [json.dumps(document)], f"http://127.0.0.1:{port}", "/livez") as running_exporter:
        yield running_exporter


def backend_state(exporter: Running, name: str = "a") -> str:
    return str(json.loads(get(f"{exporter.url}/healthz/{name}")[2])["state"])


def seconds_until(holds: Callable[[], bool], what: str, limit_s: float = 15.0) -> float:
    started = time.monotonic()
    wait_until(holds, what, limit_s)
    return time.monotonic() - started
