"""The demo under a fault, with its spans and logs going to the doubles: what boards are looked at and tested on.

Real are the programs that a user runs (exporter, watchdog, gateway, Prometheus with our rules, Alertmanager); simulated are the
engines, and Tempo and Loki are doubles that answer from what the demo sent them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from tailkeeper_alerts.render import render as render_rules
from tailkeeper_dashboards.request_tables import AROUND_MS
from tailkeeper_dashboards.settings import BACKEND_UID, ROOT_CAUSE_UID
from tailkeeper_demo.processes import Processes, free_port
from tailkeeper_demo.stack import Addresses, start
from tools.boards.server import Sources
from tools.doubles.server import Doubles, doubles

PROVISIONED = Path(__file__).parents[2] / "deploy/grafana/provisioning/datasources/tailkeeper.yml"
SCRAPE_S = 1.0
"""The demo's Prometheus scrapes once a second."""
SEED = 7
REVISIONS = {"sim-a": "v1", "sim-b": "v1", "sim-c": "v2", "sim-d": "v1"}
"""The one whose GPU is made too hot is the canary: then something is to be seen of it."""
SPANS_S = 30.0
"""Spans are sent a second later; this is for a loaded machine."""


@dataclass(frozen=True, slots=True)
class World:
    """A running demo. ``request`` asks one of its parts for JSON."""

    addresses: Addresses
    doubles: Doubles
    folder: Path
    client: httpx.Client

    @property
    def sources(self) -> Sources:
        prometheus = self.addresses.prometheus
        if prometheus is None:
            raise FileNotFoundError("prometheus is missing; apt-get install -y --no-install-recommends prometheus")
        return Sources(prometheus, self.doubles.url, self.doubles.url, SCRAPE_S, *provisioned_links())

    def get(self, url: str, **query: str) -> Any:
        return self.client.get(url, params=query).raise_for_status().json()

    def inject(self, engine: str, fault: str, duration_s: float) -> None:
        body = {"engine": engine, "fault": fault, "duration_s": duration_s}
        self.client.post(f"{self.addresses.admin}/faults", json=body).raise_for_status()

    def requests(self) -> list[Mapping[str, Any]]:
        """What the exporter's ring has of finished requests, oldest first."""
        found: list[Mapping[str, Any]] = self.get(f"{self.addresses.exporter}/api/v1/requests", since="0", limit="10000")[
            "requests"
        ]
        return found


def provisioned_links() -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Where exemplars and log lines lead, from the data sources that we provision for Grafana."""
    text = PROVISIONED.read_text(encoding="utf-8").replace("$$", "$")  # what Grafana does when it reads the file
    settings = {source["type"]: source.get("jsonData", {}) for source in yaml.safe_load(text)["datasources"]}
    return settings["prometheus"].get("exemplarTraceIdDestinations", []), settings["loki"].get("derivedFields", [])


@contextmanager
def demo(folder: Path) -> Iterator[World]:
    """Start everything in ``folder``; end it with the block. Raises ProcessEndedError where a part does not start."""
    rules = {Path(path).name: text for path, text in render_rules().items() if path.endswith(".rules.yml")}
    processes = Processes(folder)
    with doubles() as telemetry, httpx.Client(timeout=5.0, trust_env=False) as client:
        try:
            addresses = start(processes, folder, free_port(), SEED, rules, otlp=telemetry.url, revisions=REVISIONS)
            yield World(addresses, telemetry, folder, client)
        finally:
            processes.stop()


def unhappiest(world: World) -> Mapping[str, Any]:
    """The finished request that waited longest for its first token, once its spans have come. Raises TimeoutError."""
    waited = [one for one in world.requests() if one["ttft_s"] is not None and one["trace_id"] is not None]
    found = max(waited, key=lambda one: float(one["ttft_s"]))
    end = time.monotonic() + SPANS_S
    while not world.doubles.store.trace(found["trace_id"]):
        if time.monotonic() > end:
            raise TimeoutError(f"no span of {found['trace_id']} came within {SPANS_S:g} s")
        time.sleep(0.1)
    return found


def asked_about(uid: str, request: Mapping[str, Any]) -> dict[str, str]:
    """The variables and the time with which board ``uid`` is looked at, as after a click: the root cause of ``request``, the
    last minutes of the backend that it was on, or those of the whole fleet."""
    its = {"var-backend": request["backend"]}
    if uid != ROOT_CAUSE_UID:
        return {**(its if uid == BACKEND_UID else {}), "from": "now-3m", "to": "now"}
    chosen = {"var-request_id": request["request_id"], "var-trace_id": request["trace_id"], "var-gpu": request["gpu"]}
    return {**chosen, **its, "time": str(int(request["start"] * 1_000)), "time.window": str(AROUND_MS)}
