"""The main job before a real router of SGLang: a backend that hangs leaves the router's list, and comes back as it was."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.contract.router_worlds import RouterProgram, router
from tests.e2e.real_programs import answers_200, free_port, running
from tests.e2e.stack import MODEL, until

pytestmark = pytest.mark.real
ENGINES = 2


@dataclass
class Loop:
    router: RouterProgram
    urls: dict[str, str]
    """Of the engines, by name."""
    config: Path
    watchdog_url: str
    admin_url: str
    client: httpx.Client
    watchdog: subprocess.Popen[bytes] | None = None

    def start_watchdog(self) -> None:
        command = [sys.executable, "-m", "tailkeeper.cli", "watchdog", "-c", str(self.config)]
        with self.config.with_name("watchdog.log").open("ab") as log:
            self.watchdog = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        until("the watchdog ready", lambda: answers_200(f"{self.watchdog_url}/readyz"), 20)

    def kill_watchdog(self) -> None:
        assert self.watchdog is not None
        self.watchdog.kill()
        self.watchdog.wait()

    def api(self, path: str) -> Any:
        return self.client.get(f"{self.watchdog_url}/api/v1/{path}").raise_for_status().json()

    def listed(self, name: str) -> bool:
        return self.urls[name] in self.router.workers()

    def inject(self, name: str, fault: str) -> None:
        body = {"engine": name, "fault": fault, "duration_s": 600.0}
        self.client.post(f"{self.admin_url}/faults", json=body).raise_for_status()

    def clear(self, name: str) -> None:
        self.client.delete(f"{self.admin_url}/faults/{name}").raise_for_status()


def configuration(
    folder: Path, engines: list[dict[str, Any]], program: RouterProgram, exporter: int, watchdog: int
) -> dict[str, Any]:
    """As a user writes it: the worker's URL at the router follows from the backend's."""
    return {
        "defaults": {"engine": "vllm", "model": MODEL, "hang": {"no_progress_s": 3}, "probe": {"interval_s": 3}},
        "backends": [{"name": e["name"], "url": e["url"], "gateway": {"name": "edge"}} for e in engines],
        "gateways": [{"name": "edge", "kind": program.kind, "url": program.url}],
        "exporter": {"listen": f"127.0.0.1:{exporter}", "scrape_interval_s": 0.5, "gpu": {"source": "none"}},
        "watchdog": {
            "listen": f"127.0.0.1:{watchdog}",
            "tick_s": 0.5,
            "source": {"kind": "exporter", "urls": [f"http://127.0.0.1:{exporter}"]},
            "state": str(folder / "tailkeeper.db"),
        },
        "policies": {"gpu_health_gate": {"mode": "enforce"}},
        "guards": {"cooldown_s": 3, "return_ramp_s": 2, "lease_s": 30},
    }


@contextmanager
def whole_loop(folder: Path, kind: str) -> Iterator[Loop]:
    with ExitStack() as stack:
        ready, stats = folder / "fleet.json", folder / "load.json"
        fleet = [sys.executable, "-m", "tailkeeper_demo.fleet", "--engines", str(ENGINES), "--model", MODEL]
        stack.enter_context(running([*fleet, "--ready-file", str(ready)], folder / "fleet.log", ready.exists))
        document = json.loads(ready.read_text())
        urls = {e["name"]: e["url"] for e in document["engines"]}
        program = stack.enter_context(router(kind, folder, *urls.values()))
        exporter, watchdog = free_port(), free_port()
        file = folder / "tailkeeper.yaml"
        file.write_text(yaml.safe_dump(configuration(folder, document["engines"], program, exporter, watchdog)))
        argv = [sys.executable, "-m", "tailkeeper.cli", "exporter", "-c", str(file)]
        page = f"http://127.0.0.1:{exporter}/readyz"
        stack.enter_context(running(argv, folder / "exporter.log", lambda: answers_200(page)))
        load = [sys.executable, "-m", "tailkeeper_demo.load", "--target", program.url, "--rate", "6", "--timeout", "8"]
        stack.enter_context(running([*load, "--stats-file", str(stats)], folder / "load.log", stats.exists))
        client = stack.enter_context(httpx.Client(timeout=5.0, trust_env=False))
        loop = Loop(program, urls, file, f"http://127.0.0.1:{watchdog}", document["admin_url"], client)
        loop.start_watchdog()
        try:
            yield loop
        finally:
            loop.kill_watchdog()


def applied(loop: Loop, backend: str) -> list[dict[str, Any]]:
    return [d for d in loop.api(f"decisions?backend={backend}") if d["verdict"] == "applied"]


def test_a_hung_backend_leaves_the_router_and_comes_back_as_it_was_although_the_watchdog_was_killed(tmp_path: Path) -> None:
    kind = "sglang_router"
    with whole_loop(tmp_path, kind) as loop:
        check = [sys.executable, "-m", "tailkeeper.cli", "check-config", "-c", str(loop.config)]
        said = subprocess.run(check, check=True, capture_output=True, text=True).stdout
        assert "gpu_health_gate" in said
        assert f"{kind.replace('_', '-')} has no weights" in said
        until("all serving", lambda: all(b["state"] == "serving" for b in loop.api("fleet")["backends"]), 30)
        sick, well = loop.urls
        before = loop.router.workers()[loop.urls[sick]]

        loop.inject(sick, "hang")
        until("the sick backend out of the router", lambda: not loop.listed(sick), 40)
        assert loop.listed(well)
        until("the decision to be written down", lambda: bool(applied(loop, sick)), 10)
        (decision,) = applied(loop, sick)
        assert (decision["knob"], decision["to"], decision["policy"]) == ("admission", "drain", "gpu_health_gate")
        assert loop.urls[sick] in (tmp_path / "tailkeeper.edge.removed.json").read_text()
        loop.kill_watchdog()
        assert not loop.listed(sick)
        loop.start_watchdog()

        loop.clear(sick)
        until("the backend back in the router", lambda: loop.listed(sick), 60)
        after = loop.router.workers()[loop.urls[sick]]
        varying = ("id", "load")
        assert {k: v for k, v in after.items() if k not in varying} == {k: v for k, v in before.items() if k not in varying}
        until("the lease to end", lambda: not any(b["leases"] for b in loop.api("fleet")["backends"]), 20)
        until("the note to be gone", lambda: loop.urls[sick] not in (tmp_path / "tailkeeper.edge.removed.json").read_text(), 20)
        assert loop.listed(well)
