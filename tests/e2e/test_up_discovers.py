"""`tailkeeper up` over a fleet that changes: one discovery for both parts, and nothing of ours stays where a backend was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.webhook_gateway import NORMAL, webhook_gateway
from tests.e2e.exporter_process import answers, engine_process, get
from tests.e2e.real_programs import free_port, wait_until

pytestmark = pytest.mark.real


def write_targets(file: Path, **addresses: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(json.dumps([{"targets": [a.removeprefix("http://")], "labels": {"backend": n}} for n, a in addresses.items()]))
    os.replace(new, file)


@contextmanager
def up(folder: Path, **document: Any) -> Iterator[str]:
    """`tailkeeper up` as a process, with short times; the watchdog's URL."""
    page, console = free_port(), free_port()
    parts = {
        "exporter": {"listen": f"127.0.0.1:{page}", "scrape_interval_s": 0.2, "scrape_timeout_s": 0.3, "gpu": {"source": "none"}},
        "watchdog": {
            "listen": f"127.0.0.1:{console}",
            "tick_s": 0.2,
            "source": {"kind": "exporter", "urls": [f"http://127.0.0.1:{page}"]},
        },
        "policies": {"gpu_health_gate": {"mode": "enforce"}},
        "guards": {"cooldown_s": 1, "return_ramp_s": 0},
    }
    file = folder / "tailkeeper.yaml"
    file.write_text(yaml.safe_dump({**parts, **document}))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "tailkeeper.cli", "up", "-c", str(file)], stderr=log, cwd=folder)
        try:
            url = f"http://127.0.0.1:{console}"
            wait_until(lambda: process.poll() is not None or answers(url + "/readyz") == 200, "the watchdog ready")
            assert process.poll() is None, (folder / "log").read_text()
            yield url
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
        finally:
            process.kill()
            process.wait()


def states(url: str) -> dict[str, str]:
    return {row["backend"]: row["state"] for row in json.loads(get(url + "/api/v1/fleet")[2])["backends"]}


def newest_decision(url: str) -> tuple[str, str]:
    newest = json.loads(get(url + "/api/v1/decisions?backend=found&limit=1")[2])[0]
    return newest["verdict"], newest["reason"]


def test_a_found_backend_is_watched_drained_and_gone_and_its_gateway_is_as_before(tmp_path: Path) -> None:
    sd = tmp_path / "sd.json"
    with (
        engine_process(tokens_per_page=5) as well,
        engine_process(tokens_per_page=5) as ill,
        webhook_gateway({"listed": dict(NORMAL), "found": dict(NORMAL)}) as gateway,
    ):
        write_targets(sd)
        document = {
            "backends": [{"name": "listed", "url": well.url, "gateway": {"name": "hook", "server": "listed"}}],
            "defaults": {"engine": "vllm", "gateway": {"name": "hook"}},
            "discovery": [{"kind": "file_sd", "files": [str(sd)], "interval_s": 1}],
            "gateways": [{"name": "hook", "kind": "webhook", "url": gateway.url}],
        }
        with up(tmp_path, **document) as url:
            assert list(states(url)) == ["listed"]
            write_targets(sd, found=ill.url)
            wait_until(lambda: states(url) == {"listed": "serving", "found": "serving"}, "the found one watched", 10)
            ill.process.kill()
            wait_until(lambda: gateway.documents["found"]["admission"] == "drain", "the dead one drained", 10)
            write_targets(sd)
            wait_until(lambda: states(url) == {"listed": "serving"}, "the found one gone", 10)
            # Its drain is ours until it has been given back, and is shown so long.
            wait_until(lambda: 'backend="found"' not in get(url + "/metrics")[2], "no series of it left", 10)
            wait_until(lambda: gateway.documents["found"] == NORMAL, "its traffic given back", 10)
            about = [f for f in json.loads(get(url + "/api/v1/findings")[2]) if f["backend"] == "found"]
            assert "the backend is gone" in {f["evidence"].get("closed_because") for f in about}
            assert all(f["until"] is not None for f in about)
            over = ("released", "the backend is gone; prior value read back")
            wait_until(lambda: newest_decision(url) == over, "that said in the decision log", 5)
