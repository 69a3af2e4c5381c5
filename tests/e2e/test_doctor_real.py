"""`tailkeeper doctor` against real programs: HAProxy, Prometheus, Alertmanager, Envoy, the exporter.

Each mistake is planted as a person would make it; and a set-up of the same programs in which all is well has no finding.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tailkeeper.cli import app
from tailkeeper.config import parse
from tailkeeper.doctor import Also, examine
from tailkeeper.doctor.findings import Finding, Mistake, Severity
from tailkeeper.init import on_machine
from tests.contract.envoy_world import assignment, endpoint, envoy
from tests.e2e.exporter_process import engine_process, exporter_process
from tests.e2e.real_programs import HaproxyServer, HttpProgram, RealPrograms, free_port, running, wait_until
from tests.e2e.tiny_servers import answer, serving

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]
NOBODY = 65_534
RULES = (ROOT / "alerts" / "generated" / "tailkeeper.rules.yml").read_text()


def found(document: Mapping[str, Any], prometheus: str | None = None) -> dict[Mistake, Finding]:
    report = examine(parse(document), lambda done, of: None, None if prometheus is None else Also(prometheus))
    return {finding.mistake: finding for finding in report.findings}


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def whole(tmp_path: Path, url: str, **more: Any) -> dict[str, Any]:
    """One engine, and nothing else that anybody would have to be asked for."""
    watchdog = {"listen": f"127.0.0.1:{free_port()}", "state": str(tmp_path / "tailkeeper.db")}
    watchdog |= {"source": {"kind": "exporter", "urls": [f"http://127.0.0.1:{free_port()}"]}} | more.pop("watchdog", {})
    backend = {"name": "a", "engine": "vllm", "url": url, **more.pop("backend", {})}
    return {"backends": [backend], "watchdog": watchdog, **more}


@pytest.fixture
def engine() -> Iterator[str]:
    with engine_process(tokens_per_page=1) as process:
        yield process.url


# HAProxy


def behind(tmp_path: Path, url: str, socket: str, server: str = "llm/gpu-a") -> dict[str, Any]:
    gateways = [{"name": "edge", "kind": "haproxy", "socket": socket}]
    return whole(tmp_path, url, gateways=gateways, backend={"gateway": {"name": "edge", "server": server}})


GATEWAY = frozenset(mistake for mistake in Mistake if mistake.value.startswith(("gateway", "replicas")))


def test_a_haproxy_that_is_set_up_well_has_no_finding_and_is_left_as_it_is(
    programs: RealPrograms, tmp_path: Path, engine: str
) -> None:
    edge = programs.haproxy([HaproxyServer("gpu-a", port_of(engine))])
    before = edge.ask("show servers state").splitlines()[2].split()[:9]
    assert not GATEWAY & found(behind(tmp_path, engine, edge.socket)).keys()
    assert not GATEWAY & found(behind(tmp_path, engine, edge.tcp_socket)).keys()
    assert edge.ask("show servers state").splitlines()[2].split()[:9] == before


@pytest.mark.parametrize("level", ["operator", "user"])
def test_a_socket_without_the_right_to_change_anything_is_told(
    programs: RealPrograms, tmp_path: Path, engine: str, level: str
) -> None:
    edge = programs.haproxy([HaproxyServer("gpu-a", port_of(engine))])
    finding = found(behind(tmp_path, engine, getattr(edge, f"{level}_socket")))[Mistake.GATEWAY_READ_ONLY]
    assert (finding.where, f"level {level}" in finding.what) == ("gateways.0.socket", True)


def test_a_server_in_another_case_is_told_with_the_name_that_is_meant(
    programs: RealPrograms, tmp_path: Path, engine: str
) -> None:
    edge = programs.haproxy([HaproxyServer("gpu-a", port_of(engine))])
    finding = found(behind(tmp_path, engine, edge.socket, "llm/GPU-a"))[Mistake.GATEWAY_SERVER_UNKNOWN]
    assert "is 'llm/gpu-a' meant?" in finding.do


@contextmanager
def as_nobody(tmp_path: Path) -> Iterator[None]:
    """Whoever runs the test gives up its rights on files for the time being, where it has them."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_socket_that_this_user_may_not_open_is_told_with_its_owner(programs: RealPrograms, tmp_path: Path, engine: str) -> None:
    edge = programs.haproxy([HaproxyServer("gpu-a", port_of(engine))])
    edge.folder.chmod(0o755)
    with as_nobody(tmp_path):
        finding = found(behind(tmp_path, engine, edge.socket))[Mistake.GATEWAY_SOCKET_PERMISSION]
    assert finding.where == "gateways.0.socket"
    assert "belongs to root:root, mode 600, and user nobody may not open it" in finding.what
    assert "mode 660 group GROUP" in finding.do
    edge.folder.chmod(0o700)
    with as_nobody(tmp_path):
        inside = found(behind(tmp_path, engine, edge.socket))
    assert Mistake.GATEWAY_SOCKET_PERMISSION in inside


def test_envoys_folder_that_this_user_may_not_write_into_is_told(programs: RealPrograms, tmp_path: Path, engine: str) -> None:
    with envoy(tmp_path, json.dumps(assignment([endpoint(port_of(engine))]))) as edge:
        entry = {"name": "edge", "kind": "envoy", "eds_file": str(edge.file), "cluster": "llm", "admin_url": edge.admin_url}
        document = whole(tmp_path, engine, gateways=[entry], backend={"gateway": {"name": "edge"}})
        assert not GATEWAY & found(document).keys()
        for folder in (edge.file.parent, edge.file.parent.parent):
            folder.chmod(0o755)
        with as_nobody(tmp_path):
            assert found(document)[Mistake.GATEWAY_READ_ONLY].where == "gateways.0.eds_file"


# Prometheus


def scraping(programs: RealPrograms, *targets: str, interval: str = "1s", rules: Mapping[str, str] | None = None) -> HttpProgram:
    config = {
        "global": {"scrape_interval": interval, "scrape_timeout": "1s"},
        "scrape_configs": [
            {"job_name": "llm", "static_configs": [{"targets": [url.removeprefix("http://") for url in targets]}]}
        ],
    }
    return programs.prometheus(config, rules)


def scraped(server: HttpProgram, url: str) -> bool:
    rows = server.get("/api/v1/query", query=f'up{{instance="{url.removeprefix("http://")}"}}')["data"]["result"]
    return bool(rows)


PROMETHEUS = frozenset({Mistake.CLOCK_SKEW, Mistake.EXEMPLAR_STORAGE_OFF, Mistake.RULES_FAIL, Mistake.RULES_NOT_LOADED})
PROMETHEUS |= {Mistake.PROMETHEUS_UNREACHABLE, Mistake.PROMETHEUS_NOT_SCRAPING, Mistake.STALE_LIMIT_TOO_SMALL}


def reading(server: HttpProgram, interval_s: float) -> dict[str, Any]:
    return {"source": {"kind": "prometheus", "url": server.url, "interval_s": interval_s}}


def test_a_prometheus_that_scrapes_the_engine_as_often_as_is_said_has_no_finding_but_those_of_its_flags(
    programs: RealPrograms, tmp_path: Path, engine: str
) -> None:
    server = scraping(programs, engine, rules={"tailkeeper.rules.yml": RULES})
    wait_until(lambda: scraped(server, engine), "the engine scraped")
    told = found(whole(tmp_path, engine, watchdog=reading(server, 1)))
    assert PROMETHEUS & told.keys() == {Mistake.EXEMPLAR_STORAGE_OFF}
    assert told[Mistake.EXEMPLAR_STORAGE_OFF].severity is Severity.WARNING


def test_a_target_that_is_down_one_that_is_none_and_rules_that_are_not_loaded_are_told(
    programs: RealPrograms, tmp_path: Path, engine: str
) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    server = scraping(programs, dead)
    wait_until(lambda: scraped(server, dead), "the dead target tried")
    down = found(whole(tmp_path, engine, backend={"metrics_url": f"{dead}/metrics"}, watchdog=reading(server, 1)))
    assert "is down" in down[Mistake.PROMETHEUS_NOT_SCRAPING].what
    assert "connection refused" in down[Mistake.PROMETHEUS_NOT_SCRAPING].what
    none = found(whole(tmp_path, engine, watchdog=reading(server, 1)))
    assert "has no target" in none[Mistake.PROMETHEUS_NOT_SCRAPING].what
    assert Mistake.RULES_NOT_LOADED in none


def test_a_prometheus_that_scrapes_more_rarely_than_is_said_is_told_with_the_interval_to_set(
    programs: RealPrograms, tmp_path: Path, engine: str
) -> None:
    server = scraping(programs, engine, interval="30s")
    wait_until(lambda: server.get("/api/v1/targets")["data"]["activeTargets"] != [], "the target known")
    finding = found(whole(tmp_path, engine, watchdog=reading(server, 5)))[Mistake.STALE_LIMIT_TOO_SMALL]
    assert finding.where == "watchdog.source.interval_s"
    assert "watchdog.source.interval_s: 30" in finding.do


def test_a_prometheus_beside_is_asked_for_our_exporter(programs: RealPrograms, tmp_path: Path, engine: str) -> None:
    server = scraping(programs, engine)
    without = found(whole(tmp_path, engine), server.url)
    assert without[Mistake.PROMETHEUS_NOT_SCRAPING].where == "--prometheus"
    assert without[Mistake.PROMETHEUS_NOT_SCRAPING].severity is Severity.WARNING


def test_a_prometheus_whose_clock_is_a_minute_ahead_is_told(tmp_path: Path, engine: str) -> None:
    """No clock of this machine is turned for it: a double answers as a server of tomorrow would."""

    def ahead(handler: Any) -> None:
        result: dict[str, Any] = {"resultType": "vector", "result": []}
        if "time%28%29" in handler.path:
            result = {"resultType": "scalar", "result": [time.time() + 60, str(time.time() + 60)]}
        answer(handler, 200 if "/query" in handler.path else 404, json.dumps({"status": "success", "data": result}).encode())

    with serving(ahead) as port:
        source = {"kind": "prometheus", "url": f"http://127.0.0.1:{port}", "interval_s": 15}
        finding = found(whole(tmp_path, engine, watchdog={"source": source}))[Mistake.CLOCK_SKEW]
    assert finding.severity is Severity.WRONG
    assert "ahead of this machine's" in finding.what


# Alertmanager


@pytest.mark.parametrize(
    ("receiver", "mistake"),
    [
        ({"name": "none"}, Mistake.NO_RECEIVER),
        ({"name": "people", "webhook_configs": [{"url": "http://127.0.0.1:9/pager"}]}, None),
    ],
)
def test_a_real_alertmanager_is_asked_whether_it_tells_people(
    programs: RealPrograms, tmp_path: Path, engine: str, receiver: dict[str, Any], mistake: Mistake | None
) -> None:
    server = programs.alertmanager({"route": {"receiver": receiver["name"]}, "receivers": [receiver]})
    told = found(whole(tmp_path, engine, watchdog={"alertmanager": {"url": server.url}}))
    alerting = {m for m in told if m.value.startswith("alertmanager") or m is Mistake.NO_RECEIVER}
    assert alerting == ({mistake} if mistake else set())


# The exporter, with an engine of its own


def test_a_real_exporter_has_its_backends_and_no_exemplars_without_a_tap(tmp_path: Path, engine: str) -> None:
    with exporter_process([{"name": "a", "engine": "vllm", "url": engine}]) as exporter:
        document = whole(tmp_path, engine, watchdog={"source": {"kind": "exporter", "urls": [exporter.url], "interval_s": 0.2}})
        told = found(document)
        assert set(told) == {Mistake.NO_EXEMPLARS, Mistake.ALERTMANAGER_NOT_SET}
        document["backends"].append({"name": "b", "engine": "vllm", "url": engine})
        assert found(document)[Mistake.BACKEND_NOT_EXPORTED].backend == "b"


# As a newcomer: a simulated fleet, `init`, `doctor`


def test_what_init_writes_of_a_simulated_fleet_behind_haproxy_has_nothing_wrong(
    programs: RealPrograms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = tmp_path / "fleet.json"
    argv = [sys.executable, "-m", "tailkeeper_demo.fleet", "--engines", "2", "--model", "tiny", "--seed", "1"]
    argv += ["--gpu-file", str(tmp_path / "gpus.json"), "--ready-file", str(ready), "--parent-pid", str(os.getpid())]
    with running(argv, tmp_path / "log", ready.exists):
        wait_until(lambda: ready.read_text().endswith("}"), "the fleet's document written")
        engines = [(engine["name"], port_of(engine["url"])) for engine in json.loads(ready.read_text())["engines"]]
        edge = programs.haproxy([HaproxyServer(name, port) for name, port in engines])
        local = tuple(("127.0.0.1", port) for _, port in [*engines, ("front", port_of(edge.url))])
        monkeypatch.setattr(on_machine, "listening_ports", lambda: local)
        monkeypatch.setattr(on_machine, "haproxy_sockets", lambda: (edge.socket,))
        monkeypatch.chdir(tmp_path)
        init = CliRunner().invoke(app, ["init"])
        assert init.exit_code == 0, init.output
        doctor = CliRunner().invoke(app, ["doctor", "-c", "tailkeeper.yaml", "--json"])
        assert doctor.exit_code == 0, doctor.output
    document = json.loads(doctor.stdout)
    assert document["wrong"] == 0
    assert {row["id"] for row in document["findings"]} <= {"exporter-not-running", "alertmanager-not-set"}
    assert {check["area"] for check in document["checks"]} >= {"backends", "gateways"}
