"""`tailkeeper init` beside real programs: Prometheus, HAProxy, Envoy, Traefik. What it writes is checked as a user would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tailkeeper.cli import app
from tailkeeper.config import Config, load
from tailkeeper.init import on_machine
from tests.contract.envoy_world import assignment, endpoint, envoy
from tests.contract.traefik_world import WEIGHTED, traefik
from tests.e2e.exporter_process import engine_process
from tests.e2e.real_programs import HaproxyServer, RealPrograms, wait_until

pytestmark = pytest.mark.real


def here(monkeypatch: pytest.MonkeyPatch, *urls: str, sockets: tuple[str, ...] = ()) -> None:
    """This machine as if nothing else ran on it."""
    ports = tuple(("127.0.0.1", int(url.rpartition(":")[2])) for url in urls)
    monkeypatch.setattr(on_machine, "listening_ports", lambda: ports)
    monkeypatch.setattr(on_machine, "haproxy_sockets", lambda: sockets)


def written(tmp_path: Path, *arguments: str) -> tuple[Config, str]:
    """What was written, found right by `check-config`, and what was said."""
    out = tmp_path / "tailkeeper.yaml"
    done = CliRunner().invoke(app, ["init", "--out", str(out), *arguments])
    assert done.exit_code == 0, done.output
    checked = CliRunner().invoke(app, ["check-config", "-c", str(out)])
    assert checked.exit_code == 0, checked.output
    return load(out), done.output


def test_engines_behind_haproxy_get_their_names_there_and_the_balancer_is_none(
    programs: RealPrograms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine_process() as a, engine_process() as b:
        servers = [HaproxyServer(name, int(e.url.rpartition(":")[2])) for name, e in (("gpu-a", a), ("gpu-b", b))]
        edge = programs.haproxy(servers)
        here(monkeypatch, a.url, b.url, edge.url, sockets=(edge.socket,))
        config, said = written(tmp_path)
    assert {backend.name: backend.url for backend in config.backends} == {"gpu-a": a.url, "gpu-b": b.url}
    assert [ref.server for backend in config.backends for ref in backend.gateway] == ["llm/gpu-a", "llm/gpu-b"]
    assert "2 servers known" in said


def test_a_haproxy_socket_that_may_not_be_opened_is_told(
    programs: RealPrograms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = programs.haproxy([])
    here(monkeypatch, sockets=(edge.socket,))

    async def denied(address: str, command: str) -> str:
        from tailkeeper_watchdog.actuators.calls import CallError
        from tailkeeper_watchdog.actuators.contract import ErrorKind

        raise CallError(ErrorKind.UNREACHABLE, "no") from PermissionError(13, "Permission denied")

    monkeypatch.setattr(on_machine, "ask", denied)
    config, said = written(tmp_path)
    assert "may not be opened" in said
    assert [gateway.kind for gateway in config.gateways] == ["haproxy"]


def test_a_prometheus_tells_its_engines_and_how_often_it_reads_them(
    programs: RealPrograms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here(monkeypatch)
    with engine_process(tokens_per_page=1) as engine:
        address = engine.url.removeprefix("http://")
        prometheus = programs.prometheus(
            {
                "global": {"scrape_interval": "1s"},
                "scrape_configs": [{"job_name": 'x"y: z\n#', "static_configs": [{"targets": [address], "labels": {"a": "b"}}]}],
            }
        )
        series = "vllm:num_requests_running"
        wait_until(lambda: prometheus.get("/api/v1/query", query=series)["data"]["result"] != [], "the engine scraped")
        config, _ = written(tmp_path, "--prometheus", prometheus.url)
    assert [(backend.url, backend.model) for backend in config.backends] == [(engine.url, "tiny")]
    text = (tmp_path / "tailkeeper.yaml").read_text()
    assert f'url: "{prometheus.url}", interval_s: 1.0' in text


def test_envoys_admin_interface_tells_all_of_its_entry(
    programs: RealPrograms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine_process() as engine:
        port = int(engine.url.rpartition(":")[2])
        with envoy(tmp_path, json.dumps(assignment([endpoint(port)]))) as edge:
            here(monkeypatch, engine.url, edge.admin_url)
            config, _ = written(tmp_path)
    (gateway,) = config.gateways
    assert gateway.kind == "envoy"
    assert (gateway.eds_file, gateway.admin_url) == (edge.file, edge.admin_url)
    assert config.backends[0].gateway[0].server == f"127.0.0.1:{port}"


def test_traefiks_api_tells_all_but_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_process() as a, engine_process() as b:
        ports = [int(engine.url.rpartition(":")[2]) for engine in (a, b)]
        with traefik(tmp_path, WEIGHTED.format(weight=100, a=ports[0], b=ports[1])) as edge:
            here(monkeypatch, a.url, b.url, edge.api_url)
            config, said = written(tmp_path)
    assert config.gateways == ()
    assert "2 servers known; to be filled in" in said
    text = (tmp_path / "tailkeeper.yaml").read_text()
    assert f'service: llm, api_url: "{edge.api_url}"' in text
    assert f'# gateway: {{name: traefik, server: "127.0.0.1:{ports[0]}"}}' in text
