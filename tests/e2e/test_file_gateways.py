"""The main job at gateways that are switched by a file, Envoy and Traefik: drained on a hang, given back byte for byte."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.contract.envoy_world import assignment, endpoint, envoy
from tests.contract.traefik_world import traefik
from tests.e2e.real_programs import answers_200, free_port, running
from tests.e2e.stack import MODEL, until

pytestmark = pytest.mark.real
NAMES = ("sim-a", "sim-b", "sim-c")
Begin = Callable[[ExitStack, Path, list[int]], "Started"]
Started = tuple[str, dict[str, Any], Path, Callable[[], list[float]]]
"""URL of the front, the entry under `gateways`, the file, and what share of its weight each server has now (0: drained)."""


def before_envoy(stack: ExitStack, folder: Path, ports: list[int]) -> Started:
    text = json.dumps(assignment([endpoint(port, None) for port in ports]), indent=2) + "\n"
    edge = stack.enter_context(envoy(folder, text))

    def shares() -> list[float]:
        found = [edge.host(port) for port in ports]
        most = max(weight for weight, _ in found)
        return [weight / most if flags == "healthy" else 0.0 for weight, flags in found]

    gateway = {"name": "edge", "kind": "envoy", "eds_file": str(edge.file), "cluster": "llm", "admin_url": edge.admin_url}
    return edge.url, gateway, edge.file, shares


def before_traefik(stack: ExitStack, folder: Path, ports: list[int]) -> Started:
    services: dict[str, Any] = {
        name: {"loadBalancer": {"servers": [{"url": f"http://127.0.0.1:{port}"}]}}
        for name, port in zip(NAMES, ports, strict=True)
    }
    services["llm"] = {"weighted": {"services": [{"name": name} for name in NAMES]}}
    front = {"rule": "PathPrefix(`/`)", "service": "llm", "entryPoints": ["web"]}
    text = "# by hand\n" + yaml.safe_dump({"http": {"routers": {"front": front}, "services": services}})
    edge = stack.enter_context(traefik(folder, text))

    def shares() -> list[float]:
        weights = edge.weights()
        return [weights[name] / max(weights.values()) for name in NAMES]

    gateway = {"name": "edge", "kind": "traefik", "file": str(edge.file), "service": "llm", "api_url": edge.api_url}
    return edge.url, gateway, edge.file, shares


@contextmanager
def installation(folder: Path, begin: Begin) -> Iterator[tuple[Started, str, str, Path]]:
    """Engines, gateway, load, and the configuration; gives the URLs of the faults and of the watchdog to come."""
    with ExitStack() as stack:
        ready = folder / "fleet.json"
        fleet = [sys.executable, "-m", "tailkeeper_demo.fleet", "--engines", "3", "--model", MODEL, "--ready-file", str(ready)]
        stack.enter_context(running(fleet, folder / "fleet.log", ready.exists))
        document = json.loads(ready.read_text())
        engines = document["engines"]
        assert tuple(engine["name"] for engine in engines) == NAMES
        started = begin(stack, folder, [int(engine["url"].rpartition(":")[2]) for engine in engines])
        load = [sys.executable, "-m", "tailkeeper_demo.load", "--target", started[0], "--rate", "6", "--timeout", "8"]
        stats = folder / "load.json"
        stack.enter_context(running([*load, "--stats-file", str(stats)], folder / "load.log", stats.exists))
        exporter, watchdog = (f"127.0.0.1:{free_port()}" for _ in range(2))
        config = {
            "defaults": {"engine": "vllm", "model": MODEL, "hang": {"no_progress_s": 3}, "probe": {"interval_s": 3}},
            # No `server`: it follows from the URL.
            "backends": [{"name": e["name"], "url": e["url"], "gateway": {"name": "edge"}} for e in engines],
            "gateways": [started[1]],
            "exporter": {"listen": exporter, "scrape_interval_s": 0.5, "gpu": {"source": "none"}},
            "watchdog": {
                "listen": watchdog,
                "tick_s": 0.5,
                "state": str(folder / "tailkeeper.db"),
                "source": {"kind": "exporter", "urls": [f"http://{exporter}"]},
            },
            "policies": {"gpu_health_gate": {"mode": "enforce"}},
            "guards": {"cooldown_s": 3, "return_ramp_s": 4, "lease_s": 30},
        }
        (folder / "tailkeeper.yaml").write_text(yaml.safe_dump(config))
        yield started, document["admin_url"], f"http://{watchdog}", folder / "tailkeeper.yaml"


def tailkeeper(*words: str) -> list[str]:
    return [sys.executable, "-m", "tailkeeper.cli", *words]


def states(url: str) -> list[str]:
    return [b["state"] for b in httpx.get(f"{url}/api/v1/fleet", timeout=5, trust_env=False).json()["backends"]]


@pytest.mark.parametrize("begin", [before_envoy, before_traefik], ids=["envoy", "traefik"])
def test_a_hang_is_drained_and_brought_back_and_the_file_is_as_it_was(tmp_path: Path, begin: Begin) -> None:
    with installation(tmp_path, begin) as ((_, gateway, file, shares), faults, url, config):
        before = file.read_bytes()
        checked = subprocess.run(tailkeeper("check-config", "-c", str(config)), capture_output=True, text=True, timeout=60)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        line = next(line for line in checked.stdout.splitlines() if "gpu_health_gate" in line)
        assert "enforced" in line, checked.stdout
        up = tailkeeper("up", "-c", str(config))
        with running(up, tmp_path / "up.log", lambda: answers_200(f"{url}/readyz")):
            until("all serving", lambda: states(url) == ["serving"] * 3, 30)
            assert file.read_bytes() == before
            body = {"engine": "sim-b", "fault": "hang", "duration_s": 600}
            httpx.post(f"{faults}/faults", json=body, trust_env=False).raise_for_status()
            until(f"the drain at {gateway['kind']}", lambda: shares()[1] == 0, 30, 0.02)
            assert shares()[0] == shares()[2] == 1.0
            httpx.delete(f"{faults}/faults/sim-b", trust_env=False).raise_for_status()
            seen: list[float] = []

            def back() -> bool:
                share = shares()[1]
                if share and (not seen or seen[-1] != share):
                    seen.append(share)
                return file.read_bytes() == before

            until("the file as it was", back, 60, 0.02)
            assert seen[:2] == [0.25, 0.5]
            until("the weights as they were", lambda: shares() == [1.0] * 3, 5)
