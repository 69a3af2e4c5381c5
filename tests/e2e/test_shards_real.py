"""Three shards over twelve pools of a real HAProxy, as processes: each pool is watched and acted on by exactly one of them.

The exporter is a fake (labelled so): a page that says what each backend's state is.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tailkeeper_watchdog.ledger import Ledger
from tailkeeper_watchdog.shard import owner_of
from tests.e2e.real_programs import binary, free_port, running, wait_until
from tests.e2e.tiny_servers import answer, serving

pytestmark = pytest.mark.real

OF = 3
POOLS = tuple(f"pool{number}" for number in range(12))
SERVERS = ("a", "b", "c")
COMMAND = [sys.executable, "-m", "tailkeeper.cli"]
LIMIT_S = 60.0
"""Five processes start here; on two cores that others load as well they took 20 s for what takes 3 s."""


@dataclass
class FakeExporter:
    """Every backend serves, but for those in ``hung``."""

    hung: set[str] = field(default_factory=set)

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        if handler.path.startswith("/metrics"):
            states = {name: "hung" if name in self.hung else "serving" for name in NAMES}
            lines = [f'llm_backend_state{{backend="{name}",state="{state}"}} 1' for name, state in states.items()]
            answer(handler, 200, ("\n".join(lines) + "\n").encode(), Content_Type="text/plain; version=0.0.4")
        elif handler.path.startswith("/api/v1/requests"):
            answer(handler, 200, b'{"next": 0, "dropped": 0, "requests": []}', Content_Type="application/json")
        else:
            answer(handler, 200, b'{"status": "pass", "backends": []}', Content_Type="application/json")


NAMES = tuple(f"{pool}-{server}" for pool in POOLS for server in SERVERS)


@contextmanager
def haproxy_of_pools(folder: Path) -> Iterator[Path]:
    """Gives its stats socket."""
    socket = folder / "h"
    sections = "".join(
        f"backend {pool}\n" + "".join(f"  server {server} 127.0.0.1:9 weight 100\n" for server in SERVERS) for pool in POOLS
    )
    timeouts = "defaults\n  mode http\n  timeout connect 1s\n  timeout client 9s\n  timeout server 9s\n"
    front = f"frontend front\n  bind 127.0.0.1:{free_port()}\n  default_backend pool0\n"
    (folder / "haproxy.cfg").write_text(f"global\n  stats socket {socket} mode 600 level admin\n{timeouts}{front}{sections}")
    with running([binary("haproxy"), "-db", "-f", str(folder / "haproxy.cfg")], folder / "haproxy.log", socket.exists):
        yield socket


def drained(socket: Path) -> set[str]:
    """By a client that shares no code with ours."""
    import socket as sockets

    with sockets.socket(sockets.AF_UNIX) as client:
        client.connect(str(socket))
        client.sendall(b"show servers state\n")
        text = b"".join(iter(lambda: client.recv(65_536), b"")).decode()
    rows = [line.split() for line in text.splitlines() if line.startswith(tuple("0123456789")) and " pool" in line]
    return {f"{row[1]}-{row[3]}" for row in rows if int(row[6]) & 0x08}  # SRV_ADMF_FDRAIN


@dataclass
class Watchdogs:
    """Processes by their port."""

    stack: ExitStack
    config: Path
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, shard: str) -> int:
        port = free_port()
        argv = [*COMMAND, "watchdog", "-c", str(self.config), "--shard", shard, "--listen", f"127.0.0.1:{port}"]
        log = self.config.parent / f"{port}.log"
        self.processes[port] = self.stack.enter_context(running(argv, log, lambda: True))
        return port

    def kill(self, port: int) -> None:
        self.processes[port].send_signal(signal.SIGKILL)
        self.processes[port].wait(10)


def ask(port: int, path: str) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=5.0, trust_env=False)


def ready(port: int) -> str | None:
    """None where it leads and ticks, else why not."""
    try:
        return None if (told := ask(port, "/readyz")).status_code == 200 else str(told.json()["reason"])
    except httpx.HTTPError as error:
        return str(error)


def applied(port: int) -> list[str]:
    return [d["backend"] for d in ask(port, "/api/v1/decisions?limit=1000").json() if d["verdict"] == "applied"]


@pytest.fixture
def exporter() -> Iterator[tuple[FakeExporter, str]]:
    fake = FakeExporter()
    with serving(fake.handle) as port:
        yield fake, f"http://127.0.0.1:{port}"


def configured(folder: Path, socket: Path, exporter: str) -> Path:
    document: dict[str, Any] = {
        "backends": [
            {"name": f"{pool}-{server}", "engine": "vllm", "url": f"http://127.0.0.1:{9_000 + number}", "gateway": place}
            for number, (pool, server) in enumerate((pool, server) for pool in POOLS for server in SERVERS)
            for place in ({"name": "edge", "server": f"{pool}/{server}"},)
        ],
        "gateways": [{"name": "edge", "kind": "haproxy", "socket": str(socket)}],
        "policies": {"gpu_health_gate": {"mode": "enforce"}},
        "guards": {"cooldown_s": 1, "return_ramp_s": 1},
        "watchdog": {"tick_s": 0.5, "state": str(folder / "t.db"), "source": {"kind": "exporter", "urls": [exporter]}},
    }
    (folder / "t.yaml").write_text(yaml.safe_dump(document))
    for index in range(OF):  # as after an earlier start: else nothing is done for half a minute
        ledger = Ledger(folder / f"t-{index}.db")
        ledger.set_meta("shards", f"{OF} 0")
        ledger.close()
    return folder / "t.yaml"


def test_each_pool_is_watched_and_acted_on_by_one_shard_and_a_dead_leader_is_followed(
    tmp_path: Path, exporter: tuple[FakeExporter, str]
) -> None:
    fake, url = exporter
    homes = {pool: owner_of(f"edge:{pool}", OF) for pool in POOLS}
    first = homes["pool0"]
    with ExitStack() as stack:
        socket = stack.enter_context(haproxy_of_pools(tmp_path))
        watchdogs = Watchdogs(stack, configured(tmp_path, socket, url))
        leaders = [watchdogs.start(f"{index}/{OF}") for index in range(OF)]
        wait_until(lambda: [ready(port) for port in leaders] == [None] * OF, "all lead", LIMIT_S)
        standby, other = watchdogs.start(f"{first}/{OF}"), watchdogs.start("0/2")

        _watched_by_one(leaders, homes)
        fake.hung = {f"{pool}-a" for pool in POOLS}
        wait_until(lambda: drained(socket) == fake.hung, "one of each pool is out", LIMIT_S)
        assert [{name.partition("-")[0] for name in applied(port)} for port in leaders] == [
            {pool for pool, home in homes.items() if home == index} for index in range(OF)
        ]
        assert sorted(name for port in leaders for name in applied(port)) == sorted(fake.hung), "once, and by one of them"

        wait_until(_says(standby, f"t-{first}.db.lock"), "the second of a shard stands by", LIMIT_S)
        wait_until(_says(other, "this fleet is watched by 3 shards"), "another number of shards stands by", LIMIT_S)
        watchdogs.kill(leaders[first])
        wait_until(lambda: ready(standby) is None, "the other one leads", LIMIT_S)
        fake.hung = {"pool0-b"}
        wait_until(lambda: drained(socket) == {"pool0-b"}, "it gives back what the dead one took out, and acts", LIMIT_S)
        assert "pool0-b" in applied(standby)
        others = [port for index, port in enumerate(leaders) if index != first]
        assert not any("pool0-b" in applied(port) for port in others)
        assert "watched by 3 shards" in str(ready(other))

        argv = [
            *COMMAND,
            "release-all",
            "-c",
            str(watchdogs.config),
            "--shard",
            f"{first}/{OF}",
            "--listen",
            f"127.0.0.1:{standby}",
        ]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stdout + done.stderr
        assert drained(socket) == set()


def _watched_by_one(leaders: list[int], homes: dict[str, int]) -> None:
    fleets = [ask(port, "/api/v1/fleet").json() for port in leaders]
    watched = [[one["backend"] for one in fleet["backends"]] for fleet in fleets]
    assert sorted(name for names in watched for name in names) == sorted(NAMES)
    for index, (fleet, names) in enumerate(zip(fleets, watched, strict=True)):
        assert {name.partition("-")[0] for name in names} == {pool for pool, home in homes.items() if home == index}
        assert fleet["shard"] == {"index": index, "of": OF, "elsewhere": len(NAMES) - len(names), "split_pools": []}


def _says(port: int, words: str) -> Callable[[], bool]:
    return lambda: words in str(ready(port))


def test_up_watches_reads_and_serves_its_own_part_alone(tmp_path: Path) -> None:
    """Exporter and watchdog in one process: the engines of the others are not even asked."""
    asked: set[str] = set()

    def engine(handler: BaseHTTPRequestHandler) -> None:
        asked.add(handler.path.split("/")[1])
        answer(handler, 200, b"vllm:num_requests_running 0\n", Content_Type="text/plain; version=0.0.4")

    with serving(engine) as port:
        names = [f"{pool}-a" for pool in POOLS]
        backends = [
            {"name": name, "engine": "vllm", "url": f"http://127.0.0.1:{port}/{name}", "gateway": {"name": "edge", "pool": pool}}
            for name, pool in zip(names, POOLS, strict=True)
        ]
        listens = [free_port(), free_port()]
        document = {
            "backends": backends,
            "gateways": [{"name": "edge", "kind": "haproxy", "socket": str(tmp_path / "none")}],
            "exporter": {"listen": f"127.0.0.1:{listens[0]}", "gpu": {"source": "none"}},
            "watchdog": {
                "listen": f"127.0.0.1:{listens[1]}",
                "state": str(tmp_path / "t.db"),
                "source": {"kind": "exporter", "urls": [f"http://127.0.0.1:{listens[0]}"]},
            },
        }
        file = tmp_path / "t.yaml"
        file.write_text(json.dumps(document))
        own = {name for name, pool in zip(names, POOLS, strict=True) if owner_of(f"edge:{pool}", 2) == 1}
        argv = [*COMMAND, "up", "-c", str(file), "--shard", "1/2"]
        with running(argv, tmp_path / "log", lambda: ready(listens[1]) is None):
            told = ask(listens[0], "/healthz").json()["backends"]
            assert {one["backend"] for one in told} == own
            status = subprocess.run(
                [*COMMAND, "status", "--url", f"http://127.0.0.1:{listens[1]}"], capture_output=True, text=True, timeout=30
            )
            assert f"; shard 1/2, {len(names) - len(own)} backends watched by the others" in status.stdout
            wait_until(lambda: asked >= own, "its engines are asked", LIMIT_S)
        assert asked == own
