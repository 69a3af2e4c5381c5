"""`tailkeeper doctor` against servers with one mistake each: it is found, under its name, at its key. Nothing is ever written."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tailkeeper.cli import app
from tailkeeper.config import parse
from tailkeeper.doctor import Also, Report, examined
from tailkeeper.doctor.findings import Finding, Mistake, Severity
from tailkeeper_exporter.settings import Auth
from tests.contract.webhook_gateway import NORMAL, WebhookGateway, webhook_gateway
from tests.e2e.real_programs import free_port
from tests.unit.fake_engine import FakeEngine
from tests.unit.loopback import Handler, Seen, reply, routes, silence, stream
from tests.unit.loopback import serving as serving_raw

TLS = Path(__file__).parents[1] / "fixtures" / "tls"
ALERTMANAGER = {"config": {"original": "receivers: [{name: people, slack_configs: [{channel: x}]}]"}}
EXPORTER_PAGE = """# TYPE llm_backend_up gauge
llm_backend_up{backend="a"} 1.0
# TYPE tailkeeper_exporter_scrape_success gauge
tailkeeper_exporter_scrape_success{backend="a",source="engine"} 1.0
# TYPE tailkeeper_exporter_scrape_age_seconds gauge
tailkeeper_exporter_scrape_age_seconds{backend="a",source="engine"} 0.4
# TYPE llm_time_to_first_token_seconds histogram
llm_time_to_first_token_seconds_bucket{backend="a",le="+Inf"} 1.0 # {trace_id="0af7651916cd43dd8448eb211c80319c"} 0.2
llm_time_to_first_token_seconds_count{backend="a"} 1.0
llm_time_to_first_token_seconds_sum{backend="a"} 0.2
# EOF
"""


def exporter(page: str = EXPORTER_PAGE) -> Handler:
    return routes({"/metrics": reply(200, page, "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8")})


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


class Fleet:
    """A healthy set-up: an engine, a webhook gateway that records, an exporter, an Alertmanager with a receiver. ``document`` is
    its configuration, for a test to spoil."""

    def __init__(self, state: Path, gateway: WebhookGateway, engine: FakeEngine, exporter_url: str, people_url: str) -> None:
        self.gateway, self.engine = gateway, engine
        self.document: dict[str, Any] = {
            "backends": [
                {"name": "a", "engine": "vllm", "url": engine.url, "model": "tiny", "gateway": {"name": "edge", "server": "a"}}
            ],
            "gateways": [{"name": "edge", "kind": "webhook", "url": gateway.url}],
            "exporter": {"gpu": {"source": "none"}, "listen": f"127.0.0.1:{free_port()}"},
            "watchdog": {
                "listen": f"127.0.0.1:{free_port()}",
                "state": str(state),
                "source": {"kind": "exporter", "urls": [exporter_url]},
                "alertmanager": {"url": people_url},
            },
        }

    @property
    def backend(self) -> dict[str, Any]:
        found: dict[str, Any] = self.document["backends"][0]
        return found

    async def examined(self, also: Also | None = None) -> Report:
        return await examined(parse(self.document), lambda done, of: None, also)

    async def found(self, also: Also | None = None) -> dict[Mistake, Finding]:
        return {finding.mistake: finding for finding in (await self.examined(also)).findings}


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    engine = FakeEngine()
    with webhook_gateway({"a": dict(NORMAL)}) as gateway:
        async with (
            serving_raw(engine.handle) as served,
            serving_raw(exporter()) as telling,
            serving_raw(routes({"/api/v2/status": reply(200, ALERTMANAGER)})) as people,
        ):
            engine.server = served
            yield Fleet(tmp_path / "tailkeeper.db", gateway, engine, telling.url, people.url)


async def test_where_all_is_well_nothing_is_found_and_nothing_is_written(fleet: Fleet, tmp_path: Path) -> None:
    before = files_in(tmp_path)
    report = await fleet.examined()
    assert report.findings == ()
    assert {check.area for check in report.checks} >= {"backends", "gateways", "exporters", "alertmanager", "this machine"}
    assert fleet.gateway.history == []
    assert fleet.gateway.documents == {"a": dict(NORMAL)}
    asked = [(request.method, request.path) for request in fleet.engine.server.requests]
    assert [method for method, path in asked if path != "/v1/completions"] == ["GET"] * (len(asked) - 1)
    assert files_in(tmp_path) == before


async def test_the_probe_is_one_token_and_marked_as_ours(fleet: Fleet) -> None:
    await fleet.examined()
    (probe,) = [request for request in fleet.engine.server.requests if request.method == "POST"]
    assert probe.json["max_tokens"] == 1
    assert probe.headers["x-request-id"].startswith("tailkeeper-probe")


HTML = reply(200, "<html>hello</html>", "content-type: text/html")
ENGINES: dict[str, tuple[Handler, Mistake, str]] = {
    "metrics-404": (routes({"/health": reply(200)}), Mistake.METRICS_OFF, "backends.0.url"),
    "metrics-501": (routes({"/health": reply(200), "/metrics": reply(501)}), Mistake.METRICS_OFF, "backends.0.url"),
    "metrics-html": (routes({"/health": reply(200), "/metrics": HTML}), Mistake.METRICS_OFF, "backends.0.url"),
    "metrics-empty": (routes({"/health": reply(200), "/metrics": reply(200)}), Mistake.METRICS_OFF, "backends.0.url"),
    "metrics-500": (routes({"/health": reply(200), "/metrics": reply(500, "boom")}), Mistake.METRICS_OFF, "backends.0.url"),
    "others-series": (
        routes({"/health": reply(200), "/metrics": reply(200, "node_load1 1\n")}),
        Mistake.METRICS_OFF,
        "backends.0.url",
    ),
    "other-engine": (
        routes({"/health": reply(200), "/metrics": reply(200, 'sglang:num_running_reqs{model_name="tiny"} 1\n')}),
        Mistake.WRONG_ENGINE,
        "backends.0.engine",
    ),
    "not-an-engine": (routes({}), Mistake.NOT_AN_ENGINE, "backends.0.url"),
    "loading": (routes({}, reply(503, {"status": "loading model"})), Mistake.BACKEND_NOT_READY, "backends.0.url"),
    "wants-a-key": (routes({}, reply(401, "no")), Mistake.TOKEN_MISSING, "backends.0.api_key_file"),
    "forbids": (routes({}, reply(403, "no")), Mistake.TOKEN_MISSING, "backends.0.api_key_file"),
}


@pytest.mark.parametrize("case", ENGINES)
async def test_an_engine_that_is_set_up_wrongly_is_named_at_its_key(fleet: Fleet, case: str) -> None:
    handler, mistake, where = ENGINES[case]
    async with serving_raw(handler) as server:
        fleet.backend["url"] = server.url
        found = await fleet.found()
    assert found[mistake].where == where
    assert found[mistake].backend == "a"


PROBES: dict[str, tuple[Handler, Mistake, str]] = {
    "wants-a-key": (reply(401, {"error": "no key"}), Mistake.TOKEN_MISSING, "backends.0.api_key_file"),
    "no-such-model": (reply(404, {"detail": "x"}), Mistake.PROBE_REFUSED, "backends.0.probe"),
    "fails": (reply(500, "boom"), Mistake.PROBE_REFUSED, "backends.0.probe"),
    "no-token": (reply(200, {"choices": []}), Mistake.PROBE_REFUSED, "backends.0.probe"),
    "full": (reply(429, "later"), Mistake.PROBE_REFUSED, "backends.0.probe"),
    "late": (
        stream(0.3, b'data: {"choices":[{"index":0,"text":" yes","finish_reason":null}]}\n\ndata: [DONE]\n\n'),
        Mistake.PROBE_SLOW,
        "backends.0.probe",
    ),
}


@pytest.mark.parametrize("case", PROBES)
async def test_a_probe_that_brings_no_token_is_told(fleet: Fleet, case: str) -> None:
    handler, mistake, where = PROBES[case]
    fleet.engine.probe = handler
    fleet.backend["probe"] = {"first_token_timeout_s": 0.2}
    found = await fleet.found()
    assert found[mistake].where == where
    assert (found[mistake].severity is Severity.WARNING) == (case == "full")


async def test_an_engine_without_any_page_is_judged_by_its_token(fleet: Fleet) -> None:
    """As Ollama and others that only have `/v1`; `init` writes them as generic."""
    fleet.engine.health = fleet.engine.page = reply(404)
    fleet.backend["engine"] = "generic"
    assert await fleet.found() == {}
    fleet.backend["probe"] = {"enabled": False}
    assert set(await fleet.found()) == {Mistake.NOT_AN_ENGINE}


async def test_an_engine_whose_probe_is_off_is_not_asked_for_a_token(fleet: Fleet) -> None:
    fleet.engine.probe = reply(500)
    fleet.backend["probe"] = {"enabled": False}
    assert await fleet.found() == {}
    assert fleet.engine.asked("/v1/completions") == 0


@pytest.mark.parametrize(
    ("url", "mistake", "said"),
    [
        ("http://127.0.0.1:{free}", Mistake.BACKEND_UNREACHABLE, "nothing listens there"),
        ("http://no-such-host.invalid:8000", Mistake.BACKEND_UNREACHABLE, "cannot be resolved"),
    ],
)
async def test_a_wrong_url_is_told_by_what_is_wrong_with_it(fleet: Fleet, url: str, mistake: Mistake, said: str) -> None:
    fleet.backend["url"] = url.format(free=free_port())
    finding = (await fleet.found())[mistake]
    assert said in finding.what
    assert finding.where == "backends.0.url"


async def test_a_certificate_that_is_not_trusted_is_told_and_trusted_where_its_authority_is_named(fleet: Fleet) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "localhost.pem", TLS / "localhost.key")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        fleet.backend["url"] = f"https://localhost:{server.sockets[0].getsockname()[1]}"
        fleet.backend["probe"] = {"enabled": False}
        finding = (await fleet.found())[Mistake.TLS_FAILED]
        assert "of no authority that is trusted here" in finding.what
        assert "backends.0.auth.ca_file" in finding.do
        fleet.backend["auth"] = {"ca_file": str(TLS / "localhost.pem")}
        assert Mistake.TLS_FAILED not in await fleet.found()


async def test_a_silent_engine_is_given_up_in_seconds_and_delays_no_other_check(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailkeeper.doctor.backends.ASK_S", 0.3)
    async with serving_raw(silence) as server:
        fleet.document["backends"].append({"name": "b", "engine": "vllm", "url": server.url})
        async with asyncio.timeout(5):
            found = await fleet.found()
    assert "does not answer within 0.3 s" in found[Mistake.BACKEND_UNREACHABLE].what
    assert found[Mistake.BACKEND_UNREACHABLE].backend == "b"


async def test_a_key_file_that_holds_no_key_is_told_without_its_content(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("first-secret\nsecond-secret\n")
    fleet.backend["api_key_file"] = str(tmp_path / "key")
    report = await fleet.examined()
    (finding,) = report.findings
    assert (finding.mistake, finding.where) == (Mistake.TOKEN_MISSING, "backends.0.api_key_file")
    assert "secret" not in f"{finding}"


async def test_an_authority_that_is_no_certificate_is_told_as_such_at_its_backend(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("not a certificate")
    fleet.backend["url"] = fleet.backend["url"].replace("http:", "https:")
    fleet.backend["auth"] = {"ca_file": str(tmp_path / "ca.pem")}
    finding = (await fleet.found())[Mistake.TOKEN_MISSING]
    assert (finding.backend, finding.where) == ("a", "backends.0.auth")
    assert str(tmp_path / "ca.pem") in finding.what
    assert "as PEM" in finding.do


async def test_a_clock_that_is_a_minute_behind_is_told(fleet: Fleet) -> None:
    async def late(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await reply(200, "", f"date: {formatdate(time.time() - 60, usegmt=True)}")(seen, writer)

    fleet.engine.health = late
    assert "behind this machine's" in (await fleet.found())[Mistake.CLOCK_SKEW].what


async def test_a_model_that_is_not_served_under_that_name_is_a_warning(fleet: Fleet) -> None:
    fleet.backend["model"] = "other"
    finding = (await fleet.found())[Mistake.WRONG_MODEL]
    assert "tiny" in finding.what
    assert finding.severity is Severity.WARNING


# Gateways


async def test_a_server_that_the_gateway_does_not_know_is_told_at_the_backend(fleet: Fleet) -> None:
    fleet.backend["gateway"] = {"name": "edge", "server": "A"}
    finding = (await fleet.found())[Mistake.GATEWAY_SERVER_UNKNOWN]
    assert finding.where == "backends.0.gateway.server"
    assert "'A'" in finding.what


async def test_a_gateway_that_wants_a_token_is_told_at_its_auth(fleet: Fleet) -> None:
    fleet.gateway.token = "secret"
    assert (await fleet.found())[Mistake.TOKEN_MISSING].where == "gateways.0.auth"


async def test_a_gateway_that_is_not_there_is_told(fleet: Fleet) -> None:
    fleet.document["gateways"][0]["url"] = f"http://127.0.0.1:{free_port()}"
    assert (await fleet.found())[Mistake.GATEWAY_UNREACHABLE].where == "gateways.0"


async def test_something_else_than_a_gateway_is_told(fleet: Fleet) -> None:
    async with serving_raw(HTML) as server:
        fleet.document["gateways"][0]["url"] = server.url
        assert (await fleet.found())[Mistake.GATEWAY_UNREADABLE].where == "gateways.0"


async def test_a_server_in_doubt_is_told(fleet: Fleet) -> None:
    async with serving_raw(routes({"/is_paused": reply(200, {"is_paused": True}), "/is_sleeping": reply(404)})) as server:
        fleet.document["gateways"] = [{"name": "edge", "kind": "engine"}]
        fleet.backend["gateway"] = {"name": "edge", "server": server.url}
        finding = (await fleet.found())[Mistake.GATEWAY_IN_DOUBT]
    assert (finding.backend, finding.where) == ("a", "backends.0.gateway.server")
    assert "paused" in finding.what


@pytest.mark.parametrize("has_window", [True, False])
async def test_triton_is_looked_at_and_nothing_is_tried_there(fleet: Fleet, has_window: bool) -> None:
    """A knob that the model has not is told. Whether models may be loaded would have to be tried, so it is not asked."""
    config = {"name": "a"} | ({"dynamic_batching": {"max_queue_delay_microseconds": 1000}} if has_window else {})
    pages = {"/v2/models/a/config": reply(200, config), "/v2/models/a/ready": reply(200)}
    async with serving_raw(routes(pages)) as server:
        fleet.document["gateways"] = [{"name": "edge", "kind": "triton", "url": server.url}]
        fleet.backend["gateway"] = {"name": "edge", "server": "a"}
        found = await fleet.found()
        assert {request.method for request in server.requests} == {"GET"}
    assert (Mistake.GATEWAY_CANNOT in found) is not has_window


async def test_replicas_that_differ_are_told(fleet: Fleet) -> None:
    with webhook_gateway({"a": {**NORMAL, "weight": 0.5}}) as other:
        fleet.document["gateways"][0]["replicas"] = [other.url]
        finding = (await fleet.found())[Mistake.REPLICAS_DIFFER]
    assert "weight differs" in finding.what


async def test_a_haproxy_socket_that_is_not_there_or_is_none_is_told(fleet: Fleet, tmp_path: Path) -> None:
    fleet.backend["gateway"] = {"name": "edge", "server": "llm/a"}
    for path, said in ((tmp_path / "nowhere.sock", "there is no"), (tmp_path, "is no socket")):
        fleet.document["gateways"] = [{"name": "edge", "kind": "haproxy", "socket": str(path)}]
        assert said in (await fleet.found())[Mistake.GATEWAY_UNREACHABLE].what


async def test_a_socket_that_haproxy_left_behind_is_told(fleet: Fleet, tmp_path: Path) -> None:
    fleet.backend["gateway"] = {"name": "edge", "server": "llm/a"}
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "s"))
        fleet.document["gateways"] = [{"name": "edge", "kind": "haproxy", "socket": str(tmp_path / "s")}]
        assert "HAProxy does not answer" in (await fleet.found())[Mistake.GATEWAY_UNREACHABLE].what


async def test_a_gateway_that_nobody_names_and_a_backend_that_nobody_can_move_are_told(fleet: Fleet) -> None:
    del fleet.backend["gateway"]
    fleet.document["policies"] = {"gpu_health_gate": {"mode": "enforce"}}
    found = await fleet.found()
    assert found[Mistake.GATEWAY_UNUSED].where == "gateways.0"
    assert found[Mistake.NO_GATEWAY].where == "backends.0.gateway"


# What the watchdog reads


@asynccontextmanager
async def exporting(fleet: Fleet, page: str) -> AsyncIterator[None]:
    async with serving_raw(exporter(page)) as server:
        fleet.document["watchdog"]["source"]["urls"] = [server.url]
        yield


PAGES = {
    "no exemplars": (EXPORTER_PAGE.replace(' # {trace_id="0af7651916cd43dd8448eb211c80319c"} 0.2', ""), Mistake.NO_EXEMPLARS),
    "reads rarely": (EXPORTER_PAGE.replace("0.4", "14.5"), Mistake.STALE_LIMIT_TOO_SMALL),
    "another file": (EXPORTER_PAGE.replace('backend="a"', 'backend="z"'), Mistake.BACKEND_NOT_EXPORTED),
    "another program": ("# TYPE node_load1 gauge\nnode_load1 1.0\n# EOF\n", Mistake.PORT_TAKEN),
}


@pytest.mark.parametrize("case", PAGES)
async def test_what_an_exporters_page_lacks_is_told(fleet: Fleet, case: str) -> None:
    page, mistake = PAGES[case]
    async with exporting(fleet, page):
        found = await fleet.found()
    assert set(found) == {mistake}
    assert found[mistake].where.startswith("watchdog.source.")


async def test_an_exporter_of_this_file_that_does_not_run_yet_is_only_a_warning(fleet: Fleet) -> None:
    fleet.document["watchdog"]["source"]["urls"] = [f"http://{fleet.document['exporter']['listen']}"]
    finding = (await fleet.found())[Mistake.EXPORTER_NOT_RUNNING]
    assert finding.severity is Severity.WARNING
    fleet.document["watchdog"]["source"]["urls"] = [f"http://127.0.0.1:{free_port()}"]
    assert (await fleet.found())[Mistake.EXPORTER_UNREACHABLE].severity is Severity.WRONG


@pytest.mark.parametrize(
    ("groups", "build", "mistakes"),
    [
        ([{"rules": []}], {}, {Mistake.RULES_NOT_LOADED}),
        ([], {"revision": "2.42.0"}, {Mistake.RULES_NOT_LOADED}),
        ([], {}, set()),  # VictoriaMetrics: the list is there for form's sake
        ([{"rules": [{"name": "TelemetryLost", "type": "alerting", "health": "ok"}]}], {}, set()),
        (
            [{"rules": [{"name": "TelemetryLost", "type": "alerting", "health": "err", "lastError": "boom"}]}],
            {},
            {Mistake.RULES_FAIL},
        ),
    ],
)
async def test_rules_that_are_not_loaded_or_fail_are_told(
    fleet: Fleet, groups: list[Any], build: dict[str, str], mistakes: set[Mistake]
) -> None:
    def data(found: object) -> Handler:
        return reply(200, {"status": "success", "data": found})

    row = {"metric": {"instance": fleet.engine.url.removeprefix("http://")}, "value": [0, "1"]}
    vector = data({"resultType": "vector", "result": [row]})
    now = data({"resultType": "scalar", "result": [0, str(time.time())]})

    async def serve(seen: Seen, writer: asyncio.StreamWriter) -> None:
        path = seen.path.partition("?")[0]
        query = now if "time%28%29" in seen.path else vector
        answers = {"/api/v1/query": query, "/api/v1/rules": data({"groups": groups}), "/api/v1/status/buildinfo": data(build)}
        await answers.get(path, reply(404))(seen, writer)

    async with serving_raw(serve) as server:
        fleet.document["watchdog"]["source"] = {"kind": "prometheus", "url": server.url}
        assert set(await fleet.found()) == mistakes


def prometheus(told: list[dict[str, str]], targets: list[dict[str, Any]]) -> Handler:
    """One that scrapes ``targets``, with these series of our exporter and all rules loaded."""

    async def serve(seen: Seen, writer: asyncio.StreamWriter) -> None:
        rows = [{"metric": labels, "value": [0, "1"]} for labels in told if "llm_backend_up" in seen.path]
        clock = {"resultType": "scalar", "result": [0, str(time.time())]}
        answers = {
            "/api/v1/query": clock if "time%28%29" in seen.path else {"resultType": "vector", "result": rows},
            "/api/v1/rules": {"groups": [{"rules": [{"name": "TelemetryLost", "type": "alerting", "health": "ok"}]}]},
            "/api/v1/targets": {"activeTargets": targets},
        }
        data = answers.get(seen.path.partition("?")[0])
        await (reply(404) if data is None else reply(200, {"status": "success", "data": data}))(seen, writer)

    return serve


@pytest.mark.parametrize(("interval", "mistakes"), [("15s", set()), ("1m", {Mistake.STALE_LIMIT_TOO_SMALL})])
async def test_an_exporter_that_is_scraped_too_rarely_is_told_by_whatever_name_prometheus_has_for_it(
    fleet: Fleet, interval: str, mistakes: set[Mistake]
) -> None:
    target = {
        "labels": {"instance": "exporter:9400", "job": "tailkeeper-exporter"},
        "scrapeUrl": "http://exporter:9400/metrics",
        "health": "up",
        "scrapeInterval": interval,
    }
    fleet.document["exporter"]["listen"] = "0.0.0.0:9400"
    async with serving_raw(prometheus([{"backend": "a", "instance": "exporter:9400"}], [target])) as server:
        fleet.document["watchdog"]["source"] = {"kind": "prometheus", "url": server.url, "interval_s": 15}
        assert set(await fleet.found()) == mistakes


async def test_a_job_that_is_to_be_added_names_no_address_at_which_nobody_can_be_asked(fleet: Fleet) -> None:
    fleet.document["exporter"]["listen"] = "0.0.0.0:9444"
    async with serving_raw(prometheus([], [])) as server:
        fleet.document["watchdog"]["source"] = {"kind": "prometheus", "url": server.url}
        finding = (await fleet.found())[Mistake.PROMETHEUS_NOT_SCRAPING]
    assert '"HOST:9444"' in finding.do
    assert "as Prometheus reaches it" in finding.do


async def test_a_prometheus_of_the_command_line_is_asked_with_the_credentials_that_stand_there(
    fleet: Fleet, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("s3cret")
    told = prometheus([{"backend": "a", "instance": "x:1"}], [])

    async def guarded(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await (told if seen.headers.get("authorization") == "Bearer s3cret" else reply(401, "no"))(seen, writer)

    async with serving_raw(guarded) as server:
        finding = (await fleet.found(Also(server.url)))[Mistake.TOKEN_MISSING]
        assert (finding.where, finding.do.endswith("name it in --auth")) == ("--auth", True)
        assert await fleet.found(Also(server.url, Auth(bearer_file=tmp_path / "token"))) == {}


async def test_a_prometheus_that_is_not_there_or_is_none_is_told(fleet: Fleet) -> None:
    async with serving_raw(HTML) as server:
        for url in (server.url, f"http://127.0.0.1:{free_port()}"):
            fleet.document["watchdog"]["source"] = {"kind": "prometheus", "url": url}
            assert (await fleet.found())[Mistake.PROMETHEUS_UNREACHABLE].where == "watchdog.source.url"


# People


@pytest.mark.parametrize(
    ("url", "mistake"),
    [(None, Mistake.ALERTMANAGER_NOT_SET), ("http://127.0.0.1:{free}", Mistake.ALERTMANAGER_UNREACHABLE)],
)
async def test_nobody_would_be_told(fleet: Fleet, url: str | None, mistake: Mistake) -> None:
    fleet.document["watchdog"]["alertmanager"]["url"] = url and url.format(free=free_port())
    assert (await fleet.found())[mistake].where == "watchdog.alertmanager.url"


@pytest.mark.parametrize(
    ("handler", "mistake"),
    [
        (reply(200, {"config": {"original": "receivers: [{name: none}]"}}), Mistake.NO_RECEIVER),
        (reply(200, {"config": None}), Mistake.ALERTMANAGER_UNREACHABLE),
        (reply(200, "[]"), Mistake.ALERTMANAGER_UNREACHABLE),
        (reply(200, "<html>"), Mistake.ALERTMANAGER_UNREACHABLE),
        (reply(404), Mistake.ALERTMANAGER_UNREACHABLE),
        (reply(401), Mistake.TOKEN_MISSING),
    ],
)
async def test_an_alertmanager_that_tells_nobody_or_is_none_is_told(fleet: Fleet, handler: Handler, mistake: Mistake) -> None:
    async with serving_raw(handler) as server:
        fleet.document["watchdog"]["alertmanager"]["url"] = server.url
        assert set(await fleet.found()) == {mistake}


# This machine


async def test_the_kill_switch_is_told(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "pause").write_text("")
    fleet.document["guards"] = {"pause_file": str(tmp_path / "pause")}
    assert (await fleet.found())[Mistake.PAUSE_FILE].severity is Severity.WARNING


async def test_a_state_that_is_no_ledger_is_told(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "tailkeeper.db").write_text("my notes")
    assert Mistake.STATE_NOT_OURS in await fleet.found()
    assert (tmp_path / "tailkeeper.db").read_text() == "my notes"


async def test_a_full_disk_and_a_state_that_cannot_be_written_are_told(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailkeeper.doctor.machine.may", lambda path, mode: False)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1_000})())
    found = await fleet.found()
    assert found[Mistake.STATE_NOT_WRITABLE].where == "watchdog.state"
    assert found[Mistake.DISK_FULL].severity is Severity.WRONG


async def test_a_state_in_a_folder_that_we_may_not_enter_is_told_as_such(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    state, looked_at = Path(fleet.document["watchdog"]["state"]), Path.stat

    def stat(path: Path, **more: Any) -> os.stat_result:
        if path == state:
            raise PermissionError(13, "Permission denied")
        return looked_at(path, **more)

    monkeypatch.setattr(Path, "stat", stat)
    monkeypatch.setattr("tailkeeper.doctor.machine.may", lambda path, mode: False)
    finding = (await fleet.found())[Mistake.STATE_NOT_WRITABLE]
    assert (finding.where, str(state.parent) in finding.what) == ("watchdog.state", True)


@pytest.mark.parametrize(
    ("document", "mistakes"),
    [
        ({"paused": True, "paused_because": "paused by API", "backends": []}, {Mistake.PAUSED}),
        ({"paused": False, "backends": []}, set()),
        ({"hello": "world"}, {Mistake.PORT_TAKEN}),
    ],
)
async def test_a_watchdog_that_runs_may_be_paused_or_be_somebody_else(
    fleet: Fleet, document: dict[str, Any], mistakes: set[Mistake]
) -> None:
    async with serving_raw(routes({"/api/v1/fleet": reply(200, document)})) as server:
        fleet.document["watchdog"]["listen"] = server.url.removeprefix("http://")
        assert set(await fleet.found()) == mistakes


async def test_a_silent_watchdog_is_not_taken_for_another_program(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailkeeper.doctor.machine.ASK_S", 0.2)
    async with serving_raw(silence) as server:
        fleet.document["watchdog"]["listen"] = server.url.removeprefix("http://")
        found = await fleet.found()
    assert set(found) == {Mistake.NOT_CHECKED}
    assert "does not answer within 0.2 s" in found[Mistake.NOT_CHECKED].what


async def test_gpus_that_are_named_and_not_there_are_told(fleet: Fleet, tmp_path: Path) -> None:
    file = tmp_path / "gpus.json"
    file.write_text(json.dumps({"driver": "550", "gpus": [{"index": 0, "uuid": "GPU-1", "name": "H200"}]}))
    fleet.document["watchdog"]["source"]["urls"].append(f"http://{fleet.document['exporter']['listen']}")
    fleet.document["exporter"]["gpu"] = {"source": "file", "file": str(file)}
    fleet.backend["gpus"] = ["7"]
    finding = (await fleet.found())[Mistake.GPU_NOT_FOUND]
    assert (finding.where, "GPU-1" in finding.do) == ("backends.0.gpus", True)
    file.write_text("{")
    assert Mistake.GPU_UNREADABLE in await fleet.found()


async def test_nvml_that_is_not_there_is_told_where_a_gpu_is_named(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        from tailkeeper_exporter.gpu import GpuError, GpuReason

        raise GpuError(GpuReason.LIBRARY_MISSING, "NVML Shared Library Not Found")

    monkeypatch.setattr("tailkeeper_exporter.gpu.nvml.NvmlSource._library", lambda self: missing())
    fleet.document["watchdog"]["source"]["urls"].append(f"http://{fleet.document['exporter']['listen']}")
    fleet.document["exporter"]["gpu"] = {"source": "auto"}
    assert Mistake.GPU_NOT_FOUND not in await fleet.found()
    fleet.backend["gpus"] = ["0"]
    assert (await fleet.found())[Mistake.GPU_NOT_FOUND].where == "exporter.gpu.source"


# What else the file may name


async def test_services_beside_that_do_not_answer_are_told(fleet: Fleet, tmp_path: Path) -> None:
    fleet.backend["kv_service"] = f"redis://:secret@127.0.0.1:{free_port()}"
    fleet.document["watchdog"]["otlp"] = {"endpoint": f"http://127.0.0.1:{free_port()}"}
    fleet.document["discovery"] = [{"kind": "file_sd", "files": [str(tmp_path / "nothing" / "*.yml")], "engine": "vllm"}]
    report = await fleet.examined()
    found = {finding.mistake for finding in report.findings}
    assert found >= {Mistake.KV_SERVICE_FAILING, Mistake.COLLECTOR_UNREACHABLE}
    assert found & {Mistake.DISCOVERY_EMPTY, Mistake.DISCOVERY_FAILING}
    assert "secret" not in f"{report}"


async def test_a_lease_without_a_way_into_the_cluster_is_told(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text("{}")
    fleet.document["watchdog"]["leader"] = {"namespace": "llm", "kubeconfig": str(tmp_path / "kubeconfig")}
    assert (await fleet.found())[Mistake.KUBERNETES_NO_ACCESS].where == "watchdog.leader"


async def test_a_file_without_backends_is_told(fleet: Fleet) -> None:
    fleet.document["backends"] = []
    assert (await fleet.found())[Mistake.NO_BACKENDS].where == "backends"


async def test_found_backends_are_checked_like_listed_ones(fleet: Fleet, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    (tmp_path / "sd.json").write_text(json.dumps([{"targets": [address]}]))
    fleet.document["discovery"] = [{"kind": "file_sd", "files": [str(tmp_path / "sd.json")], "engine": "vllm"}]
    finding = (await fleet.found())[Mistake.BACKEND_UNREACHABLE]
    assert address in finding.what
    assert finding.where == "discovery.0.url"


# The command


def test_the_command_ends_with_1_where_something_is_wrong_and_with_2_where_the_file_is(tmp_path: Path, denying: str) -> None:
    file = tmp_path / "t.yaml"
    watchdog = {"state": str(tmp_path / "s.db"), "listen": f"127.0.0.1:{free_port()}"}
    exporter = {"listen": f"127.0.0.1:{free_port()}"}
    whole = {"backends": [{"name": "a", "engine": "vllm", "url": denying}], "watchdog": watchdog, "exporter": exporter}
    file.write_text(json.dumps(whole))
    done = CliRunner().invoke(app, ["doctor", "-c", str(file)])
    assert done.exit_code == 1, done.output
    assert "do: put a token that the engine accepts into a file" in " ".join(done.output.split())
    as_json = CliRunner().invoke(app, ["doctor", "-c", str(file), "--json"])
    document = json.loads(as_json.stdout)
    assert as_json.exit_code == 1
    assert "token-missing" in {row["id"] for row in document["findings"]}
    assert document["wrong"] >= 1
    file.write_text("{backends: 3}")
    assert CliRunner().invoke(app, ["doctor", "-c", str(file)]).exit_code == 2
    file.write_text("{}")
    assert CliRunner().invoke(app, ["doctor", "-c", str(file), "--prometheus", "nowhere"]).exit_code == 2
