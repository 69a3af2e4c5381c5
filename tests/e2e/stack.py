"""A whole small installation for tests: simulated engines, real HAProxy, Prometheus and Alertmanager, our own commands.

Everything runs as users run it: separate processes, a configuration file, HTTP between them.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.e2e.real_programs import Haproxy, HaproxyServer, HttpProgram, RealPrograms, free_port, running
from tests.e2e.tiny_servers import WebhookReceiver

RULES = Path(__file__).parents[2] / "alerts" / "generated" / "tailkeeper.rules.yml"
MODEL = "llama-3-8b"


def until(what: str, holds: Callable[[], bool], limit_s: float, every_s: float = 0.05) -> float:
    """Wait; returns the monotonic time at which it held. Raises AssertionError."""
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, f"not within {limit_s:g} s: {what}"
        time.sleep(every_s)
    return time.monotonic()


@dataclass
class Stack:
    """Addresses and handles. ``watchdog`` is the running process, replaced by ``restart_watchdog``."""

    folder: Path
    haproxy: Haproxy
    alertmanager: HttpProgram
    receiver: WebhookReceiver
    prometheus: HttpProgram | None
    exporter_url: str
    watchdog_url: str
    admin_url: str
    names: tuple[str, ...]
    client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=5.0, trust_env=False))
    watchdog: subprocess.Popen[bytes] | None = None

    def inject(self, engine: str, fault: str, duration_s: float = 600.0) -> None:
        body = {"engine": engine, "fault": fault, "duration_s": duration_s}
        self.client.post(f"{self.admin_url}/faults", json=body).raise_for_status()

    def clear(self, engine: str) -> None:
        self.client.delete(f"{self.admin_url}/faults/{engine}").raise_for_status()

    def api(self, path: str) -> Any:
        return self.client.get(f"{self.watchdog_url}/api/v1/{path}").raise_for_status().json()

    def backend(self, name: str) -> Mapping[str, Any]:
        row: Mapping[str, Any] = next(b for b in self.api("fleet")["backends"] if b["backend"] == name)
        return row

    def says(self, name: str, state: str) -> bool:
        """Whether the exporter's page reports this state now."""
        page = self.client.get(f"{self.exporter_url}/metrics").text
        line = f'llm_backend_state{{backend="{name}",state="{state}"}} 1'
        return any(x.startswith(line) for x in page.splitlines())

    def server(self, name: str) -> tuple[str, int]:
        """(status, weight) of a server as HAProxy's ``show stat`` has it."""
        rows = self.haproxy.ask(f"show stat {self.haproxy.backend} 4 -1").splitlines()
        header = rows[0].lstrip("# ").split(",")
        row = next(r.split(",") for r in rows[1:] if r.split(",")[header.index("svname")] == name)
        return row[header.index("status")], int(row[header.index("weight")])

    def drained(self, name: str) -> bool:
        return self.server(name)[0].startswith("DRAIN")

    def start_watchdog(self) -> None:
        command = [sys.executable, "-m", "tailkeeper.cli", "watchdog", "-c", str(self.folder / "tailkeeper.yaml")]
        with (self.folder / "watchdog.log").open("ab") as log:
            self.watchdog = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        until("the watchdog ready", lambda: _ok(f"{self.watchdog_url}/readyz"), 20)

    def kill_watchdog(self) -> None:
        assert self.watchdog is not None
        self.watchdog.send_signal(signal.SIGKILL)
        self.watchdog.wait()
        self.watchdog = None

    def stop_watchdog(self) -> None:
        """SIGTERM, as ``docker stop`` does; it must end by itself."""
        if self.watchdog is not None:
            self.watchdog.terminate()
            assert self.watchdog.wait(10) == 0, (self.folder / "watchdog.log").read_text()[-3000:]
            self.watchdog = None


def _ok(url: str) -> bool:
    try:
        return httpx.get(url, timeout=1.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


@contextmanager
def whole_stack(
    programs: RealPrograms, folder: Path, *, mode: str = "enforce", source: str = "exporter", engines: int = 4, rate: float = 8.0
) -> Iterator[Stack]:
    """Start everything; ``source`` exporter or prometheus. Ends it all again."""
    with ExitStack() as stack:
        ready = folder / "fleet.json"
        gpus = folder / "gpus.json"
        fleet = [sys.executable, "-m", "tailkeeper_demo.fleet", "--engines", str(engines), "--model", MODEL]
        stack.enter_context(
            running([*fleet, "--gpu-file", str(gpus), "--ready-file", str(ready)], folder / "fleet.log", ready.exists)
        )
        document = json.loads(ready.read_text())
        names = tuple(e["name"] for e in document["engines"])
        ports = [int(e["url"].rpartition(":")[2]) for e in document["engines"]]
        haproxy = programs.haproxy([HaproxyServer(n, p, "weight 100 check inter 1s") for n, p in zip(names, ports, strict=True)])
        receiver = programs.webhook_receiver()
        alertmanager = programs.alertmanager(_alertmanager(receiver.url))
        exporter_port, watchdog_port = free_port(), free_port()
        prometheus = programs.prometheus(
            _prometheus(exporter_port, watchdog_port, alertmanager.url), {"tailkeeper.rules.yml": RULES.read_text()}
        )
        config = _config(folder, document["engines"], haproxy, exporter_port, watchdog_port, alertmanager.url, mode)
        if source == "prometheus":
            config["watchdog"]["source"] = {"kind": "prometheus", "url": prometheus.url, "interval_s": 1}
        (folder / "tailkeeper.yaml").write_text(yaml.safe_dump(config))
        exporter = [sys.executable, "-m", "tailkeeper.cli", "exporter", "-c", str(folder / "tailkeeper.yaml")]
        url = f"http://127.0.0.1:{exporter_port}"
        stack.enter_context(running(exporter, folder / "exporter.log", lambda: _ok(f"{url}/readyz")))
        load = [sys.executable, "-m", "tailkeeper_demo.load", "--target", haproxy.url, "--rate", str(rate), "--timeout", "8"]
        stats = folder / "load.json"
        stack.enter_context(running([*load, "--stats-file", str(stats)], folder / "load.log", stats.exists))
        made = Stack(
            folder,
            haproxy,
            alertmanager,
            receiver,
            prometheus,
            url,
            f"http://127.0.0.1:{watchdog_port}",
            document["admin_url"],
            names,
        )
        made.start_watchdog()
        try:
            yield made
        finally:
            if made.watchdog is not None:
                made.watchdog.kill()
                made.watchdog.wait()
            made.client.close()


def _alertmanager(receiver: str) -> dict[str, Any]:
    return {
        "route": {
            "receiver": "hook",
            "group_by": ["alertname", "backend"],
            "group_wait": "0s",
            "group_interval": "1s",
            "repeat_interval": "1h",
        },
        "receivers": [{"name": "hook", "webhook_configs": [{"url": receiver, "send_resolved": True}]}],
    }


def _prometheus(exporter_port: int, watchdog_port: int, alertmanager: str) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager.removeprefix("http://")]}]}]},
        "scrape_configs": [
            {"job_name": "tailkeeper-exporter", "static_configs": [{"targets": [f"127.0.0.1:{exporter_port}"]}]},
            {"job_name": "tailkeeper-watchdog", "static_configs": [{"targets": [f"127.0.0.1:{watchdog_port}"]}]},
        ],
    }


def _config(
    folder: Path,
    engines: list[dict[str, Any]],
    haproxy: Haproxy,
    exporter_port: int,
    watchdog_port: int,
    alertmanager: str,
    mode: str,
) -> dict[str, Any]:
    return {
        "defaults": {"engine": "vllm", "model": MODEL, "hang": {"no_progress_s": 3}, "probe": {"interval_s": 3}},
        "backends": [
            {
                "name": e["name"],
                "url": e["url"],
                "gpus": [e["gpu_uuid"]],
                "gateway": {"name": "edge", "server": f"{haproxy.backend}/{e['name']}"},
            }
            for e in engines
        ],
        "gateways": [{"name": "edge", "kind": "haproxy", "socket": haproxy.socket}],
        "exporter": {
            "listen": f"127.0.0.1:{exporter_port}",
            "scrape_interval_s": 0.5,
            "gpu": {"source": "file", "file": str(folder / "gpus.json")},
        },
        "watchdog": {
            "listen": f"127.0.0.1:{watchdog_port}",
            "tick_s": 0.5,
            "source": {"kind": "exporter", "urls": [f"http://127.0.0.1:{exporter_port}"]},
            "state": str(folder / "tailkeeper.db"),
            "alertmanager": {"url": alertmanager},
        },
        "policies": {"gpu_health_gate": {"mode": mode}},
        "guards": {"cooldown_s": 3, "return_ramp_s": 4, "lease_s": 30},
    }
