"""The way from the demo to one's own engine in the compose stack, as the comments in .env and deploy/own say it.

The engine is a simulated vLLM, on this machine outside the stack's network as a user's own would be: it listens at docker0's
address, and the stack reaches it as host.docker.internal. Standard library only; run by compose_probe.py.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.compose_stack import StepError, compose, docker, published, query

ROOT = Path(__file__).parents[2]
NAME, PORT_THERE = "vllm-a", 8000
DEMO = ("load", "haproxy", "fleet")
UP_S = 120


@contextmanager
def own_engine() -> Iterator[None]:
    """The stack without its demo and with this engine in its configuration; the only edit is the engine's port."""
    address = docker("network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Gateway}}").strip()
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind((address, 0))
        port = probe.getsockname()[1]
        probe.close()
        written(Path(folder), port)
        ident = _engine(address, port)
        try:
            compose("rm", "--stop", "--force", *DEMO)
            os.environ |= {"COMPOSE_PROFILES": "", "TAILKEEPER_CONFIG_DIR": folder}
            compose("up", "-d", "--wait", "--no-build", "--pull", "never", "exporter", "watchdog", limit_s=UP_S)
            yield
        finally:
            docker("rm", "--force", ident)


def written(folder: Path, port: int) -> None:
    """The folder of deploy/own with the engine's port, readable for the containers' user."""
    text = (ROOT / "deploy/own/tailkeeper.yaml").read_text(encoding="utf-8")
    edited = text.replace(f"host.docker.internal:{PORT_THERE}", f"host.docker.internal:{port}")
    if edited == text:
        raise StepError(f"deploy/own/tailkeeper.yaml: no engine at host.docker.internal:{PORT_THERE}")
    folder.chmod(0o755)
    (folder / "tailkeeper.yaml").write_text(edited, encoding="utf-8")


def _engine(address: str, port: int) -> str:
    image = docker("inspect", compose("ps", "-q", "watchdog").strip(), "--format", "{{.Config.Image}}").strip()
    command = ("-m", "tailkeeper_demo.fleet", "--engines", "1", "--host", address, "--base-port", str(port))
    return docker("run", "-d", "--network", "host", "--user", "10001", "--entrypoint", "python", image, *command).strip()


def is_watched() -> tuple[bool, object]:
    """At the console, with a reason for everything that is not done, and in Prometheus."""
    rows = published("watchdog", 8088, "/api/v1/fleet")["backends"]
    up = {series["metric"]["backend"]: series["value"][1] for series in query("llm_backend_up")}
    seen = [(row["backend"], row["state"], row["actuation"], row["why"]) for row in rows]
    good = [row[:2] for row in seen] == [(NAME, "serving")] and all(row[3] for row in seen) and up.get(NAME) == "1"
    return good, (seen, up)


def is_probed() -> tuple[bool, object]:
    """Our own request got a token out of it, so the way there works for more than the page."""
    answered = query(f'tailkeeper_exporter_probes_total{{backend="{NAME}",outcome="answered"}} > 0')
    return bool(answered), answered
