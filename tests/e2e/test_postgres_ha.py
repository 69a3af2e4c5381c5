"""Two `tailkeeper up` as on two machines, with nothing in common but a real HAProxy and a ledger on a real PostgreSQL server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.postgres_server import PASSWORD, PostgresServer, postgres_server
from tests.e2e.real_programs import Haproxy, HaproxyServer, RealPrograms, free_port, running
from tests.e2e.stack import MODEL, until

pytestmark = pytest.mark.real
LEASE_S = 10
"""Of the leader's row, the least that is allowed."""
COMMAND = [sys.executable, "-m", "tailkeeper.cli"]


@dataclass
class Machine:
    """One watchdog with its exporter, its own folder and its own ports."""

    folder: Path
    port: int = field(default_factory=free_port)
    exporter_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def config(self) -> Path:
        return self.folder / "tailkeeper.yaml"

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            argv = [*COMMAND, "up", "-c", str(self.config)]
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        until("it lives", lambda: self.status("livez") == 200, 30)

    def end(self, by: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(by)
            self.process.wait(20)
            self.process = None

    def ask(self, path: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.port}/{path}", timeout=5.0, trust_env=False)

    def status(self, path: str) -> int:
        try:
            return self.ask(path).status_code
        except httpx.HTTPError:
            return 0

    def leads(self) -> bool:
        return self.status("readyz") == 200

    def api(self, path: str) -> Any:
        return self.ask(f"api/v1/{path}").raise_for_status().json()

    def said(self) -> str:
        return (self.folder / "log").read_text(errors="replace")


@dataclass
class Site:
    """What the machines share."""

    haproxy: Haproxy
    postgres: PostgresServer
    admin_url: str
    machines: tuple[Machine, Machine]

    def drained(self, name: str) -> bool:
        rows = self.haproxy.ask(f"show stat {self.haproxy.backend} 4 -1").splitlines()
        header = rows[0].lstrip("# ").split(",")
        row = next(r.split(",") for r in rows[1:] if r.split(",")[header.index("svname")] == name)
        return row[header.index("status")].startswith("DRAIN")

    def leases(self) -> list[tuple[Any, ...]]:
        return self.postgres.run("SELECT backend, knob, confirmed, outcome FROM tailkeeper.leases ORDER BY id")


def _config(machine: Machine, site: Site, engines: list[dict[str, Any]], secret: Path) -> dict[str, Any]:
    backends = [
        {"name": e["name"], "url": e["url"], "gateway": {"name": "edge", "server": f"{site.haproxy.backend}/{e['name']}"}}
        for e in engines
    ]
    return {
        "defaults": {"engine": "vllm", "model": MODEL, "hang": {"no_progress_s": 2}, "probe": {"interval_s": 2}},
        "backends": backends,
        "gateways": [{"name": "edge", "kind": "haproxy", "socket": site.haproxy.socket}],
        "exporter": {"listen": f"127.0.0.1:{machine.exporter_port}", "scrape_interval_s": 0.5, "gpu": {"source": "none"}},
        "watchdog": {
            "listen": f"127.0.0.1:{machine.port}",
            "tick_s": 0.5,
            "source": {"kind": "exporter", "urls": [f"http://127.0.0.1:{machine.exporter_port}"]},
            "state": str(machine.folder / "tailkeeper.db"),
            "ledger": {"url": site.postgres.url, "password_file": str(secret), "lease_s": LEASE_S},
        },
        "policies": {"gpu_health_gate": {"mode": "enforce"}},
        "guards": {"cooldown_s": 600, "return_ramp_s": 2, "lease_s": 60},
    }


@contextmanager
def site(programs: RealPrograms, folder: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        postgres = stack.enter_context(postgres_server())
        ready = folder / "fleet.json"
        fleet = [sys.executable, "-m", "tailkeeper_demo.fleet", "--engines", "3", "--model", MODEL, "--ready-file", str(ready)]
        stack.enter_context(running(fleet, folder / "fleet.log", ready.exists))
        document = json.loads(ready.read_text())
        engines = document["engines"]
        servers = [HaproxyServer(e["name"], int(e["url"].rpartition(":")[2]), "weight 100 check inter 1s") for e in engines]
        haproxy = programs.haproxy(servers)
        load = [sys.executable, "-m", "tailkeeper_demo.load", "--target", haproxy.url, "--rate", "6", "--timeout", "8"]
        stats = folder / "load.json"
        stack.enter_context(running([*load, "--stats-file", str(stats)], folder / "load.log", stats.exists))
        secret = folder / "password"
        secret.write_text(f"{PASSWORD}\n")
        machines = Machine(folder / "one"), Machine(folder / "two")
        made = Site(haproxy, postgres, document["admin_url"], machines)
        for machine in machines:
            machine.folder.mkdir()
            machine.config.write_text(yaml.safe_dump(_config(machine, made, engines, secret)))
        try:
            yield made
        finally:
            for machine in machines:
                machine.end(signal.SIGKILL)


def test_the_second_machine_inherits_what_the_first_one_did_and_a_release_gives_it_back(
    programs: RealPrograms, tmp_path: Path
) -> None:
    with site(programs, tmp_path) as shared:
        one, two = shared.machines
        one.start()
        until("the first leads", one.leads, 20)
        two.start()
        until("the second to know", lambda: "another watchdog leads" in two.ask("readyz").text, 20)
        assert f"at 127.0.0.1:{one.port}" in two.ask("readyz").json()["reason"]
        until("all serving", lambda: all(b["state"] == "serving" for b in one.api("fleet")["backends"]), 30)

        httpx.post(f"{shared.admin_url}/faults", json={"engine": "sim-b", "fault": "hang", "duration_s": 600.0}, trust_env=False)
        until("the drain at HAProxy", lambda: shared.drained("sim-b"), 30)
        until("the lease in the database", lambda: shared.leases() == [("sim-b", "admission", 1, None)], 10)
        one.end(signal.SIGKILL)
        until("the second leads", two.leads, LEASE_S + 15)
        assert shared.drained("sim-b")
        (decision,) = [d for d in two.api("decisions?backend=sim-b") if d["verdict"] == "applied"]
        assert (decision["knob"], decision["to"]) == ("admission", "drain"), "made by the first"

        shared.postgres.kill()
        until("it to be said", lambda: "nothing is changed: the ledger at" in two.ask("readyz").text, 20)
        assert two.status("livez") == 200
        assert "tailkeeper_ledger_writable 0.0" in two.ask("metrics").text
        tick = two.api("fleet")["tick"]
        until("ticks to go on", lambda: two.api("fleet")["tick"] > tick + 2, 15)
        assert shared.drained("sim-b")
        shared.postgres.start()
        until("it to be well again", two.leads, 20)

        two.end(signal.SIGTERM)
        assert shared.leases() == [("sim-b", "admission", 1, None)]
        done = subprocess.run([*COMMAND, "release-all", "-c", str(one.config)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 of 1 change given back" in done.stdout
        assert not shared.drained("sim-b")
        assert shared.leases() == [("sim-b", "admission", 1, "released")]
        assert PASSWORD not in one.said() + two.said() + done.stdout + done.stderr
