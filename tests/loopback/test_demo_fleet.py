"""The programs as programs: the fleet's admin API in process, and fleet, gateway and load started and ended for real."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from tailkeeper_demo import fleet as fleet_module
from tailkeeper_demo import gateway as gateway_module
from tailkeeper_demo.fleet import Fleet


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    running = Fleet(engines=3, model="tiny", seed=1, gpu_path=tmp_path / "gpu.json")
    await running.start(host="127.0.0.1", base_port=0, admin_port=0)
    yield running
    await running.stop()


@pytest.fixture
async def admin(fleet: Fleet) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=fleet.admin_url, timeout=5) as client:
        yield client


async def test_engines_are_named_by_letter_each_with_a_port_and_a_gpu_of_its_own(fleet: Fleet, tmp_path: Path) -> None:
    ready = fleet.ready()
    engines = ready["engines"]
    assert isinstance(engines, list)
    assert [engine["name"] for engine in engines] == ["sim-a", "sim-b", "sim-c"]
    assert len({engine["url"] for engine in engines}) == 3
    on_file = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    assert [gpu["uuid"] for gpu in on_file["gpus"]] == [engine["gpu_uuid"] for engine in engines]


async def test_a_fault_is_injected_listed_and_cleared_on_one_engine_only(fleet: Fleet, admin: httpx.AsyncClient) -> None:
    answer = await admin.post("/faults", json={"engine": "sim-b", "fault": "slow", "duration_s": 20})
    assert answer.status_code == 200
    listed = (await admin.get("/faults")).json()["engines"]
    assert [row["fault"] for row in listed] == [None, "slow", None]
    assert (await admin.delete("/faults/sim-b")).status_code == 200
    assert fleet.engines["sim-b"].fault is None


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"engine": "sim-z", "fault": "hang"}, "sim-z.*sim-a, sim-b, sim-c"),
        ({"engine": "sim-a", "fault": "fire"}, "available: .*throttle, blind"),
        ({"engine": "sim-a", "fault": "hang", "duration_s": -1}, "duration_s"),
    ],
)
async def test_a_fault_that_cannot_be_injected_is_a_400_with_the_reason(
    fleet: Fleet, admin: httpx.AsyncClient, document: dict[str, object], message: str
) -> None:
    answer = await admin.post("/faults", json=document)
    assert answer.status_code == 400
    assert re.search(message, answer.json()["error"])
    assert all(engine.fault is None for engine in fleet.engines.values())


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("POST", "/faults", 400), ("DELETE", "/faults/nobody", 400), ("GET", "/", 404), ("PUT", "/faults", 404)],
)
async def test_other_admin_calls_are_refused(fleet: Fleet, admin: httpx.AsyncClient, method: str, path: str, status: int) -> None:
    assert (await admin.request(method, path, content=b"no json")).status_code == status


async def test_the_gpu_file_is_written_again_and_again(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    first = path.stat().st_mtime_ns
    async with asyncio.timeout(5):
        while path.stat().st_mtime_ns == first:  # noqa: ASYNC110  a file has no event to wait for
            await asyncio.sleep(0.05)
    assert json.loads(path.read_text(encoding="utf-8"))["gpus"][0]["utilization_ratio"] == 0.0


async def test_a_blind_engine_serves_and_neither_its_page_nor_its_gpu_can_be_read(
    fleet: Fleet, admin: httpx.AsyncClient, tmp_path: Path
) -> None:
    url = fleet.engines["sim-b"].url
    await admin.post("/faults", json={"engine": "sim-b", "fault": "blind", "duration_s": 20})
    async with httpx.AsyncClient(base_url=url, timeout=0.3) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.get("/metrics")
        body = {"model": "tiny", "prompt": "hello", "max_tokens": 2}
        answers = [await client.get("/health"), await client.post("/v1/completions", json=body, timeout=5)]
        assert [answer.status_code for answer in answers] == [200, 200]
        blocked = await _blocked(tmp_path / "gpu.json", 1)
        assert blocked == [0, 1, 0], "nobody else's GPU is touched"
        await admin.delete("/faults/sim-b")
        assert (await client.get("/metrics")).status_code == 200


async def _blocked(path: Path, wanted: int) -> list[int]:
    """Which GPUs block their readers, once so many do."""
    async with asyncio.timeout(5):
        while True:
            gpus = json.loads(path.read_text(encoding="utf-8"))["gpus"]  # noqa: ASYNC240  a small file in a test
            blocked = [int(gpu["hang_s"] > 0) for gpu in gpus]
            if sum(blocked) == wanted:
                return blocked
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("count", ["0", "27"])
def test_a_fleet_of_impossible_size_ends_with_exit_code_2(count: str) -> None:
    with pytest.raises(SystemExit) as ended:
        fleet_module.main(["--engines", count])
    assert ended.value.code == 2


@pytest.mark.parametrize(
    "server",
    ["a", "a=ftp://x:1", "=http://x:1", "a=http://x:1/path", "a=http://x:1 b=http://x:2"],
    ids=lambda s: s.replace("/", "|"),
)
def test_a_gateway_with_a_wrong_server_ends_with_exit_code_2(server: str) -> None:
    with pytest.raises(SystemExit) as ended:
        gateway_module.main(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--server", server])
    assert ended.value.code == 2


# -- as programs ------------------------------------------------------------------------------------------------------------


class Programs:
    """Child processes that are ended with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"tailkeeper_demo.{module}", *arguments]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.running.append(process)
        return process

    def read(self, name: str, deadline_s: float = 15.0) -> dict[str, object]:
        path = self.folder / name
        deadline = time.monotonic() + deadline_s
        while not path.exists():
            assert time.monotonic() < deadline, f"{name} was not written"
            time.sleep(0.02)
        document = json.loads(path.read_text(encoding="utf-8"))
        assert isinstance(document, dict)
        return document

    def stop(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    children = Programs(tmp_path)
    yield children
    children.stop()


def test_load_through_the_gateway_onto_the_fleet_and_everything_ends_on_sigterm(programs: Programs) -> None:
    folder = programs.folder
    fleet = programs.start("fleet", "--engines", "2", "--gpu-file", f"{folder}/gpu.json", "--ready-file", f"{folder}/fleet.json")
    engines = programs.read("fleet.json")["engines"]
    assert isinstance(engines, list)
    servers = [part for engine in engines for part in ("--server", f"{engine['name']}={engine['url']}")]
    gateway = programs.start(
        "gateway", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--ready-file", f"{folder}/gateway.json", *servers
    )
    target = str(programs.read("gateway.json")["url"])
    limits = ["--max-output-tokens", "10", "--max-prompt-tokens", "200"]
    load = programs.start(
        "load", "--target", target, "--rate", "20", "--duration", "2", "--stats-file", f"{folder}/load.json", *limits
    )
    assert load.wait(15) == 0
    stats = programs.read("load.json")
    totals = stats["totals"]
    assert isinstance(totals, dict)
    assert stats["done"] is True
    assert (totals["sent"], totals["ok"]) == (40, 40)
    for process in (fleet, gateway):
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_a_program_ends_when_its_parent_is_gone(programs: Programs) -> None:
    parent = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    ready = f"{programs.folder}/fleet.json"
    fleet = programs.start("fleet", "--engines", "1", "--ready-file", ready, "--parent-pid", str(parent.pid))
    programs.read("fleet.json")
    assert fleet.poll() is None
    parent.communicate()
    assert fleet.wait(10) == 0


def test_a_taken_port_is_a_message_and_exit_code_1(programs: Programs) -> None:
    ready = f"{programs.folder}/fleet.json"
    programs.start("fleet", "--engines", "1", "--ready-file", ready)
    engines = programs.read("fleet.json")["engines"]
    assert isinstance(engines, list)
    port = engines[0]["url"].rsplit(":", 1)[1]
    second = programs.start("fleet", "--engines", "1", "--base-port", port)
    _, complaint = second.communicate(timeout=15)
    assert second.returncode == 1
    assert b"cannot start" in complaint
    assert port.encode() in complaint
    assert os.linesep.encode() * 2 not in complaint, "one line, no traceback"
