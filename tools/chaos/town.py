"""The whole installation that is broken: who is there, at which address, with which configuration.

Real are HAProxy, Prometheus, Alertmanager and our own commands; simulated are the engines (one process each, so that each can be
killed) and their GPUs. Everything is on loopback and in one folder.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from tailkeeper_alerts.render import render as render_rules
from tailkeeper_demo.gpu_file import gpu_uuid
from tailkeeper_demo.processes import free_port
from tools.chaos.programs import Program, wait_ready

MODEL = "llama-3-8b"
ENGINES = 7
"""With 30 % of them two may be out at once, so that the cap is at work."""
FIRST_EXPORTER = 4
"""So many backends are the first exporter's, the rest the second one's: when one is gone, half of the fleet is seen."""
TICK_S, SHADOW_TICK_S = 0.5, 2.0
SCRAPE_S = 0.5
LEASE_S, COOLDOWN_S, RAMP_S = 30.0, 1.0, 4.0
STATE_BYTES = 48 * 1024 * 1024
READY_S = 90.0
WEIGHT = 100
BACKEND = "llm"

_HAPROXY = """global
  stats socket {socket} mode 600 level admin
  maxconn 4000
defaults
  mode http
  timeout connect 2s
  timeout client 90s
  timeout server 90s
  retries 2
  retry-on conn-failure empty-response 502 503
  option redispatch 1
frontend edge
  bind 127.0.0.1:{port}
  default_backend {backend}
backend {backend}
  balance roundrobin
  option httpchk GET /health
{servers}
"""


@dataclass(frozen=True, slots=True)
class Addresses:
    """URLs, and paths of sockets and files."""

    exporters: tuple[str, ...]
    watchdog: str
    shadow: str
    prometheus: str
    alertmanager: str
    front: str
    haproxy: str
    """HAProxy's own socket; ``gate`` is the one that the watchdog has."""
    gate: str
    ledger: str
    admins: Mapping[str, str]
    """Where faults of each engine are ordered."""


@dataclass
class Town:
    """``programs`` by name, in the order of their start. ``left_out`` are faults that this machine cannot do, and why."""

    folder: Path
    names: tuple[str, ...]
    at: Addresses
    programs: dict[str, Program] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=2.0, trust_env=False))

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def clock(self, whose: str) -> Path:
        """The file with the step of the wall clock of ``whose``: watchdog, or exporter for the first one."""
        return self.folder / f"clock-{whose}"

    def control(self, spoils: Mapping[str, str], gate: bool) -> None:
        """Tell the middle."""
        write(self.folder / "control.json", json.dumps({"spoils": dict(spoils), "gate": gate}))

    def start(self) -> None:
        """Start everything at once, and wait for it. Raises RuntimeError."""
        for program in self.programs.values():
            program.start()
        wait_ready(tuple(self.programs.values()), READY_S)

    def end(self) -> dict[str, int | None]:
        """End everything, last started first; exit codes by name."""
        codes = {name: program.end() for name, program in reversed(self.programs.items())}
        self.client.close()
        for life in (life for program in self.programs.values() for life in program.lives):
            for left in (f"faketime_shm_{life.pid}", f"sem.faketime_sem_{life.pid}"):  # by one that was killed
                Path("/dev/shm", left).unlink(missing_ok=True)  # faketime's own place  # nosec B108
        if os.path.ismount(self.state):
            subprocess.run(["umount", "--lazy", str(self.state)], check=False)
        return codes

    def answers(self, url: str) -> bool:
        try:
            return self.client.get(url).status_code == 200
        except httpx.HTTPError:
            return False


def write(path: Path, text: str) -> None:
    """All or nothing, as whoever reads it needs it."""
    made = path.with_name(path.name + ".new")
    made.write_text(text)
    made.replace(path)


def build(folder: Path, receiver: str, seed: int, rate: float) -> Town:
    """Everything written down and nothing started. Raises RuntimeError where a program is missing."""
    names = tuple(f"e{number + 1}" for number in range(ENGINES))
    wanted = (*names, *(f"{n}-admin" for n in names), *(f"{n}-page" for n in names), *_OTHERS)
    free: dict[int, None] = {}
    while len(free) < len(wanted):
        free[free_port()] = None
    ports = dict(zip(wanted, free, strict=True))
    town = Town(folder, names, _addresses(folder, names, ports))
    _mount(town)
    for whose in ("watchdog", "exporter"):
        write(town.clock(whose), "+0")
    town.control({}, gate=True)
    _write_configurations(town, ports, receiver)
    for program in _programs(town, ports, seed, rate):
        town.programs[program.name] = program
    return town


_OTHERS = ("exporter-1", "exporter-2", "watchdog", "shadow", "prometheus", "alertmanager", "front")


def _addresses(folder: Path, names: tuple[str, ...], ports: Mapping[str, int]) -> Addresses:
    url = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    return Addresses(
        (url["exporter-1"], url["exporter-2"]),
        url["watchdog"],
        url["shadow"],
        url["prometheus"],
        url["alertmanager"],
        url["front"],
        str(folder / "haproxy.sock"),
        str(folder / "gate.sock"),
        str(folder / "state" / "tailkeeper.db"),
        {name: url[f"{name}-admin"] for name in names},
    )


def _mount(town: Town) -> None:
    """A small disk of its own for the watchdog's state, so that it can be filled."""
    town.state.mkdir()
    size = ["-o", f"size={STATE_BYTES}"]
    done = subprocess.run(["mount", "-t", "tmpfs", *size, "tmpfs", str(town.state)], capture_output=True, text=True)
    if done.returncode != 0:
        town.left_out["disk full"] = f"a tmpfs cannot be mounted here: {done.stderr.strip()}"


def faketime(town: Town, whose: str) -> dict[str, str]:
    """The environment of a process whose wall clock can be set; empty where libfaketime is missing."""
    found = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1") + glob.glob("/usr/lib/faketime/libfaketimeMT.so.1")
    if not found:
        town.left_out["clock step"] = "libfaketime is missing; apt-get install -y --no-install-recommends faketime"
        return {}
    return {
        "LD_PRELOAD": found[0],
        "FAKETIME_TIMESTAMP_FILE": str(town.clock(whose)),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
        # With its fix for old systems every wait of a thread is wrong, and Python's threads hand over to each other no more.
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
    }


def _write_configurations(town: Town, ports: Mapping[str, int], receiver: str) -> None:
    folder, at = town.folder, town.at
    servers = "\n".join(f"  server {n} 127.0.0.1:{ports[n]} weight {WEIGHT} check inter 1s fall 3 rise 2" for n in town.names)
    haproxy = _HAPROXY.format(socket=at.haproxy, port=ports["front"], backend=BACKEND, servers=servers)
    (folder / "haproxy.cfg").write_text(haproxy)
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(_alertmanager(receiver)))
    rules = {Path(path).name: text for path, text in render_rules().items() if path.endswith(".rules.yml")}
    for name, text in rules.items():
        (folder / name).write_text(text)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(_prometheus(at, sorted(rules))))
    (folder / "tailkeeper.yaml").write_text(yaml.safe_dump(configuration(town, ports)))
    (folder / "shadow.yaml").write_text(yaml.safe_dump(_shadow(configuration(town, ports), town)))
    pages = {name: (ports[f"{name}-page"], ports[name]) for name in town.names}
    middle = {"pages": pages, "gate": at.gate, "haproxy": at.haproxy, "ledger": at.ledger}
    more = {"control": str(folder / "control.json"), "events": str(folder / "events.jsonl")}
    (folder / "middle.json").write_text(json.dumps({**middle, **more}))


def _alertmanager(receiver: str) -> dict[str, Any]:
    route = {"receiver": "hook", "group_by": ["alertname", "backend"], "group_wait": "0s", "group_interval": "1s"}
    return {
        "route": {**route, "repeat_interval": "1h"},
        "receivers": [{"name": "hook", "webhook_configs": [{"url": receiver, "send_resolved": True}]}],
    }


def _prometheus(at: Addresses, rules: list[str]) -> dict[str, Any]:
    def job(name: str, *urls: str) -> dict[str, Any]:
        return {"job_name": name, "static_configs": [{"targets": [url.removeprefix("http://") for url in urls]}]}

    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "2s"},
        "rule_files": rules,
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [at.alertmanager.removeprefix("http://")]}]}]},
        "scrape_configs": [job("tailkeeper-exporter", *at.exporters), job("tailkeeper-watchdog", at.watchdog)],
    }


def configuration(town: Town, ports: Mapping[str, int]) -> dict[str, Any]:
    """As a user would have it, with shorter times, so that in an hour much happens."""
    backends = [
        {
            "name": name,
            "url": f"http://127.0.0.1:{ports[name]}",
            "metrics_url": f"http://127.0.0.1:{ports[f'{name}-page']}/metrics",
            "gpus": [gpu_uuid(index)],
            "gateway": {"name": "edge", "server": f"{BACKEND}/{name}"},
        }
        for index, name in enumerate(town.names)
    ]
    return {
        "defaults": {"engine": "vllm", "model": MODEL, "hang": {"no_progress_s": 3}, "probe": {"interval_s": 3}},
        "backends": backends,
        "gateways": [{"name": "edge", "kind": "haproxy", "socket": town.at.gate}],
        "exporter": {
            "listen": f"127.0.0.1:{ports['exporter-1']}",
            "scrape_interval_s": SCRAPE_S,
            "gpu": {"source": "file", "file": str(town.folder / "gpus.json"), "interval_s": 0.5},
        },
        "watchdog": {
            "listen": f"127.0.0.1:{ports['watchdog']}",
            "tick_s": TICK_S,
            "source": {"kind": "exporter", "urls": list(town.at.exporters)},
            "state": town.at.ledger,
            "records": {"max_bytes": STATE_BYTES // 4},
            "alertmanager": {"url": town.at.alertmanager},
        },
        "policies": {"gpu_health_gate": {"mode": "enforce"}, "memory_breaker": {"mode": "enforce"}},
        "guards": {"cooldown_s": COOLDOWN_S, "return_ramp_s": RAMP_S, "lease_s": LEASE_S, "quarantine_after": 1_000},
    }


def _shadow(config: dict[str, Any], town: Town) -> dict[str, Any]:
    """A second watchdog, which reads Prometheus and only observes: so Prometheus' faults meet a watchdog too."""
    config["watchdog"] |= {
        "listen": town.at.shadow.removeprefix("http://"),
        "tick_s": SHADOW_TICK_S,
        "source": {"kind": "prometheus", "url": town.at.prometheus, "interval_s": 1},
        "state": str(town.folder / "shadow.db"),
        "alertmanager": {"url": None},
    }
    config["policies"] = {}
    return config


def _binary(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise RuntimeError(f"{name} is missing; apt-get install -y --no-install-recommends {name}")
    return found


def _programs(town: Town, ports: Mapping[str, int], seed: int, rate: float) -> list[Program]:
    folder, at = town.folder, town.at

    def one(name: str, argv: list[str], ready: str, ours: bool = True, clock: str | None = None) -> Program:
        environment = {} if clock is None else faketime(town, clock)
        return Program(name, argv, folder / f"{name}.log", lambda: _is_ready(town, ready), ours, environment)

    python = [sys.executable, "-m"]
    ours = [*python, "tailkeeper.cli"]
    mine = str(folder / "tailkeeper.yaml")
    files = ["--seed", str(seed), "--stats-file", str(folder / "load.json")]
    halves = (town.names[:FIRST_EXPORTER], town.names[FIRST_EXPORTER:])
    prometheus = ["--web.listen-address", at.prometheus.removeprefix("http://"), "--storage.tsdb.path", str(folder / "tsdb")]
    alertmanager = ["--web.listen-address", at.alertmanager.removeprefix("http://"), "--storage.path", str(folder / "am")]
    return [
        *(_engine(town, ports, index, name, seed) for index, name in enumerate(town.names)),
        one("middle", [*python, "tools.chaos.middle", str(folder / "middle.json")], at.gate, ours=False),
        one("haproxy", [_binary("haproxy"), "-db", "-f", str(folder / "haproxy.cfg")], at.haproxy, ours=False),
        one(
            "alertmanager",
            [
                _binary("prometheus-alertmanager"),
                f"--config.file={folder}/alertmanager.yml",
                *alertmanager,
                "--cluster.listen-address=",
            ],
            f"{at.alertmanager}/-/ready",
            ours=False,
        ),
        one(
            "prometheus",
            [_binary("prometheus"), f"--config.file={folder}/prometheus.yml", *prometheus],
            f"{at.prometheus}/-/ready",
            ours=False,
        ),
        *(
            one(
                f"exporter-{number}",
                [*ours, "exporter", "-c", mine, "--listen", url.removeprefix("http://"), *_chosen(half)],
                f"{url}/readyz",
                clock="exporter" if number == 1 else None,  # faketime 0.9.10 breaks the sleep by which a GPU hangs
            )
            for number, (url, half) in enumerate(zip(at.exporters, halves, strict=True), 1)
        ),
        one("watchdog", [*ours, "watchdog", "-c", mine], f"{at.watchdog}/livez", clock="watchdog"),
        one("shadow", [*ours, "watchdog", "-c", str(folder / "shadow.yaml")], f"{at.shadow}/livez"),
        one(
            "load",
            [*python, "tailkeeper_demo.load", "--target", at.front, "--rate", f"{rate:g}", "--timeout", "8", *files],
            str(folder / "load.json"),
            ours=False,
        ),
    ]


def _chosen(names: tuple[str, ...]) -> list[str]:
    return [part for name in names for part in ("--backend", name)]


def _is_ready(town: Town, what: str) -> bool:
    return town.answers(what) if what.startswith("http") else Path(what).exists()


def _engine(town: Town, ports: Mapping[str, int], index: int, name: str, seed: int) -> Program:
    """A fleet of one, so that it can be killed alone. Its GPU file is put together with the others' by the harness."""
    argv = [sys.executable, "-m", "tailkeeper_demo.fleet", "--engines", "1", "--model", MODEL, "--seed", str(seed + index)]
    argv += ["--base-port", str(ports[name]), "--admin-port", str(ports[f"{name}-admin"])]
    argv += ["--gpu-file", str(town.folder / f"gpu-{name}.json")]
    url = f"{town.at.admins[name]}/faults"
    return Program(name, argv, town.folder / f"{name}.log", lambda: town.answers(url), ours=False)
