"""The demo's parts as real programs with real configuration files: what a user would run, on loopback, in one folder.

load → gateway → a tap for each engine, in the exporter → engines. HAProxy, Prometheus and Alertmanager are used where their
binaries are on the PATH; else the small gateway behind the webhook contract, and the watchdog reads the exporter directly, as
it does in any case.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import httpx
import yaml

from tailkeeper_demo.mix import Mix
from tailkeeper_demo.policy_modes import ENFORCED, Policies
from tailkeeper_demo.processes import Processes, free_port

ENGINES = 4
REQUESTS_PER_S = 10.0
SLO_TTFT_S = 1.2
MODEL = "llama-3-8b"
TAPS = "taps"
"""The taps as a gateway: what the edge cannot do, limit, shed and answer from a cache, is turned there."""
START_DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the parts listen."""

    console: str
    exporter: str
    gateway: str
    admin: str
    gateway_kind: str
    prometheus: str | None
    alertmanager: str | None
    backends: tuple[str, ...]
    missing: tuple[str, ...] = field(default=())
    """Programs that were not on the PATH."""


def start(
    processes: Processes,
    folder: Path,
    console_port: int,
    seed: int,
    rules: Mapping[str, str],
    mix: Mix = Mix.ONLINE,
    policies: Policies = ENFORCED,
    otlp: str | None = None,
    revisions: Mapping[str, str] | None = None,
) -> Addresses:
    """Start everything and wait until each part answers.

    ``rules`` are Prometheus rule files by name. ``otlp`` is where spans and logs go, None for nowhere.
    ``revisions`` are the canary revisions of backends by name.
    """
    admin, engines = _start_fleet(processes, folder, seed)
    engines = [engine | {"tap": f"127.0.0.1:{free_port()}"} for engine in engines]
    gateway_url, gateway, server_prefix = _start_gateway(processes, folder, engines)
    alertmanager = _start_alertmanager(processes, folder, console_port)
    exporter_port = free_port()
    config = _configuration(folder, engines, gateway, server_prefix, exporter_port, console_port, alertmanager)
    config["policies"] = {name: dict(given) for name, given in policies.items()}
    if mix is not Mix.ONLINE:
        config["watchdog"]["baselines"] = None  # It knows users' traffic alone, and would take a batch's long prompts for drift.
    for backend in config["backends"]:
        if (revision := (revisions or {}).get(backend["name"])) is not None:
            backend["labels"] = {"canary_revision": revision}
    if otlp is not None:
        config["exporter"]["otlp"] = config["watchdog"]["otlp"] = {"endpoint": otlp, "logs": True}
    (folder / "tailkeeper.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    tailkeeper = [sys.executable, "-m", "tailkeeper.cli"]
    processes.start("exporter", [*tailkeeper, "exporter", "-c", "tailkeeper.yaml", "--log-format", "json"])
    processes.start("watchdog", [*tailkeeper, "watchdog", "-c", "tailkeeper.yaml", "--log-format", "json"])
    exporter, console = f"http://127.0.0.1:{exporter_port}", f"http://127.0.0.1:{console_port}"
    processes.wait_for("the exporter", lambda: _answers(f"{exporter}/readyz"), START_DEADLINE_S)
    processes.wait_for("the watchdog", lambda: _answers(f"{console}/readyz"), START_DEADLINE_S)
    prometheus = _start_prometheus(processes, folder, exporter_port, console_port, alertmanager, rules)
    _start_load(processes, folder, gateway_url, seed, mix)
    programs = {"haproxy": "haproxy", "prometheus": "prometheus", "alertmanager": _ALERTMANAGER}
    missing = tuple(name for name, binary in programs.items() if _which(binary) is None)
    names = tuple(str(e["name"]) for e in engines)
    return Addresses(console, exporter, gateway_url, admin, gateway["kind"], prometheus, alertmanager, names, missing)


_ALERTMANAGER = "prometheus-alertmanager"
"""Debian's name of the binary; elsewhere it is ``alertmanager``."""


def _which(name: str) -> str | None:
    found = shutil.which(name) or shutil.which(name.removeprefix("prometheus-"))
    return found or shutil.which(name, path="/usr/sbin:/usr/local/sbin")


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=1.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _start_fleet(processes: Processes, folder: Path, seed: int) -> tuple[str, list[dict[str, Any]]]:
    ready = folder / "fleet.json"
    command = [sys.executable, "-m", "tailkeeper_demo.fleet", "--engines", str(ENGINES), "--model", MODEL, "--seed", str(seed)]
    files = ["--gpu-file", str(folder / "gpus.json"), "--ready-file", str(ready)]
    processes.start("fleet", [*command, *files, "--parent-pid", str(os.getpid())])
    processes.wait_for("the simulated fleet", ready.exists, START_DEADLINE_S)
    document = json.loads(ready.read_text())
    return document["admin_url"], document["engines"]


def _start_gateway(processes: Processes, folder: Path, engines: list[dict[str, Any]]) -> tuple[str, dict[str, Any], str]:
    """URL for the load, the gateway's entry in the configuration, and what stands before a server's name there."""
    haproxy = _which("haproxy")
    port = free_port()
    if haproxy is not None:
        (folder / "haproxy.cfg").write_text(_haproxy_config(folder, port, engines))
        processes.start("haproxy", [haproxy, "-W", "-db", "-f", "haproxy.cfg"])
        socket = folder / "haproxy.sock"
        processes.wait_for("HAProxy", socket.exists, START_DEADLINE_S)
        return f"http://127.0.0.1:{port}", {"name": "edge", "kind": "haproxy", "socket": str(socket)}, "llm/"
    admin = free_port()
    servers = [part for e in engines for part in ("--server", f"{e['name']}=http://{e['tap']}")]
    listen = ["--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}", "--parent-pid", str(os.getpid())]
    processes.start("gateway", [sys.executable, "-m", "tailkeeper_demo.gateway", *listen, *servers])
    url = f"http://127.0.0.1:{admin}"
    processes.wait_for("the gateway", lambda: _answers(f"{url}/{engines[0]['name']}"), START_DEADLINE_S)
    return f"http://127.0.0.1:{port}", {"name": "edge", "kind": "webhook", "url": url}, ""


def _haproxy_config(folder: Path, port: int, engines: list[dict[str, Any]]) -> str:
    # The check asks /health by the way that requests go, through the tap, as most installations do: it stays green over a hung
    # engine, which is the point. Before an engine that is gone the tap answers 502 where the engine's port refused, so the
    # gateway tries another one then, too.
    servers = "\n".join(f"  server {e['name']} {e['tap']} weight 100 check inter 1s fall 3 rise 2" for e in engines)
    return f"""global
  stats socket {folder / "haproxy.sock"} mode 600 level admin
  maxconn 4000
defaults
  mode http
  timeout connect 2s
  timeout client 90s
  timeout server 90s
  retries 2
  retry-on conn-failure empty-response 502 503
  option redispatch 1
  option http-no-delay
frontend edge
  bind 127.0.0.1:{port}
  default_backend llm
backend llm
  balance roundrobin
  option httpchk GET /health
{servers}
"""


def _configuration(
    folder: Path,
    engines: list[dict[str, Any]],
    gateway: dict[str, Any],
    server_prefix: str,
    exporter_port: int,
    console_port: int,
    alertmanager: str | None,
) -> dict[str, Any]:
    """Shorter times than the defaults, so that a story fits into a minute; everything else as a user would have it."""
    return {
        "slo": {"latency": {"ttft_p99_s": SLO_TTFT_S}},
        "defaults": {
            "engine": "vllm",
            "model": MODEL,
            "quantization": "fp16",
            "hang": {"no_progress_s": 5},
            "probe": {"interval_s": 5},
        },
        "backends": [
            {
                "name": e["name"],
                "url": e["url"],
                "tap": {"listen": e["tap"]},
                "gpus": [e["gpu_uuid"]],
                "gateway": [
                    {"name": gateway["name"], "server": f"{server_prefix}{e['name']}"},
                    {"name": TAPS, "server": e["name"]},
                ],
            }
            for e in engines
        ],
        "gateways": [gateway, {"name": TAPS, "kind": "tap"}],
        "exporter": {
            "listen": f"127.0.0.1:{exporter_port}",
            "scrape_interval_s": 0.5,
            "gpu": {"source": "file", "file": str(folder / "gpus.json"), "interval_s": 0.5},
        },
        "watchdog": {
            "listen": f"127.0.0.1:{console_port}",
            "tick_s": 0.5,
            "source": {"kind": "exporter", "urls": [f"http://127.0.0.1:{exporter_port}"]},
            "state": str(folder / "tailkeeper.db"),
            "baselines": str(resources.files("tailkeeper_demo") / "baselines.json"),
            "alertmanager": {"url": alertmanager},
        },
        "guards": {"cooldown_s": 5, "return_ramp_s": 8, "lease_s": 60},
    }


def _start_alertmanager(processes: Processes, folder: Path, console_port: int) -> str | None:
    binary = _which(_ALERTMANAGER)
    if binary is None:
        return None
    port = free_port()
    config = {
        "route": {
            "receiver": "tailkeeper",
            "group_by": ["alertname", "backend"],
            "group_wait": "0s",
            "group_interval": "1s",
            "repeat_interval": "1h",
        },
        "receivers": [{"name": "tailkeeper", "webhook_configs": [{"url": f"http://127.0.0.1:{console_port}/api/v1/alerts"}]}],
    }
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(config, sort_keys=False))
    flags = [f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=", f"--storage.path={folder / 'alertmanager'}"]
    processes.start("alertmanager", [binary, "--config.file=alertmanager.yml", *flags])
    processes.wait_for("Alertmanager", lambda: _answers(f"http://127.0.0.1:{port}/-/ready"), START_DEADLINE_S)
    return f"http://127.0.0.1:{port}"


def _start_prometheus(
    processes: Processes,
    folder: Path,
    exporter_port: int,
    console_port: int,
    alertmanager: str | None,
    rules: Mapping[str, str],
) -> str | None:
    binary = _which("prometheus")
    if binary is None:
        return None
    port = free_port()
    for name, text in rules.items():
        (folder / name).write_text(text)
    config: dict[str, Any] = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "2s"},
        "rule_files": sorted(rules),
        "scrape_configs": [
            {"job_name": "tailkeeper-exporter", "static_configs": [{"targets": [f"127.0.0.1:{exporter_port}"]}]},
            {"job_name": "tailkeeper-watchdog", "static_configs": [{"targets": [f"127.0.0.1:{console_port}"]}]},
        ],
    }
    if alertmanager is not None:
        target = alertmanager.removeprefix("http://")
        config["scrape_configs"].append({"job_name": "alertmanager", "static_configs": [{"targets": [target]}]})
        config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [target]}]}]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config, sort_keys=False))
    flags = [f"--web.listen-address=127.0.0.1:{port}", f"--storage.tsdb.path={folder / 'prometheus'}"]
    processes.start("prometheus", [binary, "--config.file=prometheus.yml", *flags, "--enable-feature=exemplar-storage"])
    processes.wait_for("Prometheus", lambda: _answers(f"http://127.0.0.1:{port}/-/ready"), START_DEADLINE_S)
    return f"http://127.0.0.1:{port}"


def _start_load(processes: Processes, folder: Path, target: str, seed: int, mix: Mix) -> None:
    stats = folder / "load.json"
    command = [sys.executable, "-m", "tailkeeper_demo.load", "--target", target, "--rate", str(REQUESTS_PER_S)]
    files = ["--stats-file", str(stats), "--requests-file", str(folder / "requests.jsonl")]
    rest = ["--seed", str(seed), *files, "--slo-ttft", str(SLO_TTFT_S), "--parent-pid", str(os.getpid())]
    processes.start("load", [*command, "--mix", mix, *rest])
    processes.wait_for("the load", stats.exists, START_DEADLINE_S)
