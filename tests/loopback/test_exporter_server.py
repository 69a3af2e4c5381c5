"""The HTTP interface over a real socket: shapes, refusals, and answers in milliseconds whatever hangs behind it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tailkeeper_exporter.app import Exporter, build
from tailkeeper_exporter.requests_ring import MAX_RECORDS, RequestRecord, RequestRing
from tailkeeper_exporter.server import MAX_BODY_BYTES
from tailkeeper_exporter.serving import Server, bind, server_config
from tailkeeper_exporter.settings import BackendSettings
from tests.loopback.test_collector import QUIET, backend, settings, until
from tests.unit.fake_engine import engine
from tests.unit.hostile_engines import hostile_engines

FIELDS = {
    *("request_id", "trace_id", "backend", "model", "tenant", "modality", "canary_revision", "operation", "sensitivity"),
    *("streaming", "start", "queue_s", "prefill_s", "ttft_s", "itl_s", "e2e_s", "prompt_tokens", "cached_tokens"),
    *("generated_tokens", "running", "waiting", "backlog_tokens", "outcome", "gpu"),
}


@asynccontextmanager
async def listening(exporter: Exporter) -> AsyncIterator[httpx.AsyncClient]:
    """The exporter's application behind a real uvicorn, with a client for it."""
    with bind("127.0.0.1:0", "exporter.listen") as sock:
        server = Server(server_config(exporter.app))
        task = asyncio.create_task(server.serve(sockets=[sock]))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        try:
            async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=10) as client:
                yield client
        finally:
            server.should_exit = True
            await task


@asynccontextmanager
async def exporting(*backends: BackendSettings, **more: Any) -> AsyncIterator[tuple[Exporter, httpx.AsyncClient]]:
    exporter = build(backends, settings(**more), log=QUIET)
    async with exporter.running(), listening(exporter) as client:
        yield exporter, client


@asynccontextmanager
async def idle(*names: str) -> AsyncIterator[tuple[Exporter, httpx.AsyncClient]]:
    """An exporter that watches nothing: what it answers before its first round."""
    exporter = build(tuple(backend("http://127.0.0.1:9", name=name) for name in names), settings(), log=QUIET)
    async with listening(exporter) as client:
        yield exporter, client
    await exporter._close()


async def test_before_the_first_round_the_exporter_is_alive_not_ready_and_knows_nothing() -> None:
    async with idle("a", "b") as (_, client):
        assert (await client.get("/livez")).status_code == 200
        ready = await client.get("/readyz")
        assert ready.status_code == 503
        assert ready.json()["waiting_for"] == ["a", "b"]
        health = await client.get("/healthz")
        assert health.status_code == 200
        assert health.json()["status"] == "unknown"
        assert "llm_generated_tokens" not in (await client.get("/metrics")).text


async def test_one_round_later_it_is_ready_and_healthz_of_a_backend_is_one_element_of_healthz() -> None:
    async with engine() as fake, exporting(backend(fake.url)) as (_, client):
        await until_ready(client)
        whole = (await client.get("/healthz")).json()
        single = (await client.get("/healthz/a")).json()
        assert set(single) == set(whole["backends"][0])
        assert single["state"] == "serving"


async def until_ready(client: httpx.AsyncClient) -> None:
    for _ in range(500):
        if (await client.get("/readyz")).status_code == 200:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not ready within 5 s")


async def test_healthz_is_503_when_any_backend_fails_and_200_for_those_that_serve() -> None:
    async with engine() as fake, exporting(backend(fake.url), backend("http://127.0.0.1:9", name="dead")) as (exporter, client):
        await until(lambda: exporter.views["dead"].state == "down" and exporter.views["a"].state == "serving")
        assert (await client.get("/healthz")).status_code == 503
        assert (await client.get("/healthz/dead")).status_code == 503
        assert (await client.get("/healthz/a")).status_code == 200


@pytest.mark.parametrize("name", ["a b", "org/model", "ü", "a%2Fb", "%", "-"])
async def test_a_backend_is_found_under_any_name_that_the_configuration_allows(name: str) -> None:
    async with idle(name) as (_, client):
        answer = await client.get("/healthz/" + httpx.QueryParams({"n": name}).__str__()[2:].replace("+", "%20"))
        assert (answer.status_code, answer.json().get("backend")) == (200, name)


@pytest.mark.parametrize(
    ("path", "status"),
    [("/healthz/nobody", 404), ("/nope", 404), ("/", 404), ("/metrics/", 404), ("/api/v1/requests?limit=0", 400)],
)
async def test_refusals_are_json_that_says_what_there_is(path: str, status: int) -> None:
    async with idle("a") as (_, client):
        answer = await client.get(path)
        assert answer.status_code == status
        assert answer.json()["error"]


async def test_a_method_that_is_not_allowed_is_405_as_json() -> None:
    async with idle("a") as (_, client):
        for method in ("POST", "PUT", "DELETE"):
            answer = await client.request(method, "/metrics")
            assert answer.status_code == 405
            assert answer.json()["error"]
        assert (await client.head("/metrics")).status_code == 200


@pytest.mark.parametrize("accept", [None, "*/*", "text/plain", "application/vnd.google.protobuf", "garbage;q=x", "a" * 5000])
async def test_metrics_has_one_valid_content_type_whatever_is_asked_for(accept: str | None) -> None:
    async with idle("a") as (_, client):
        answer = await client.get("/metrics", headers={} if accept is None else {"accept": accept})
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert answer.headers.get_list("content-type") == [answer.headers["content-type"]]


async def test_no_header_names_the_server() -> None:
    async with idle("a") as (_, client):
        for path in ("/metrics", "/healthz", "/nope"):
            assert "server" not in (await client.get(path)).headers


GUARDS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
}


@pytest.mark.parametrize(
    "path", ["/metrics", "/healthz", "/healthz/a", "/livez", "/api/v1/requests", "/nope", "/api/v1/requests?limit=0"]
)
async def test_every_answer_says_that_a_browser_runs_and_keeps_nothing_of_it(path: str) -> None:
    async with idle("a") as (_, client):
        answer = await client.get(path)
        large = await client.post(path, content=b"x" * (MAX_BODY_BYTES + 1))
    for one in (answer, large):
        assert {name: one.headers.get_list(name) for name in GUARDS} == {name: [value] for name, value in GUARDS.items()}
        assert not [name for name in one.headers if name.startswith("access-control-")], "no other site may read this"


async def test_a_mistake_of_ours_is_answered_as_one_and_tells_nothing_of_the_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret of the inside")

    async with idle("a") as (exporter, client):
        monkeypatch.setattr(exporter.ring, "since", broken)
        answer = await client.get("/api/v1/requests")
    assert (answer.status_code, set(answer.json())) == (500, {"error"})
    assert "secret" not in answer.text
    assert answer.headers["content-security-policy"] == GUARDS["content-security-policy"]


async def test_a_body_above_the_limit_is_refused_with_and_without_an_announced_length() -> None:
    async with idle("a") as (_, client):
        announced = await client.post("/metrics", content=b"x" * (MAX_BODY_BYTES + 1))
        assert announced.status_code == 413
        assert announced.json()["allowed"]


@pytest.mark.parametrize("announced", [True, False])
async def test_whoever_sends_much_too_much_reads_the_refusal_and_not_a_reset(announced: bool) -> None:
    def post(port: int) -> int:
        # Everything is sent before the answer is read, and the server closes after its answer.
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        body = bytes(4 * MAX_BODY_BYTES)
        headers = {"content-type": "application/x-protobuf", "connection": "close"}
        connection.request("POST", "/v1/traces", body if announced else iter([body]), headers, encode_chunked=not announced)
        with contextlib.closing(connection):
            return connection.getresponse().status

    async with idle("a") as (_, client):
        port = client.base_url.port
        assert port is not None
        assert [await asyncio.to_thread(post, port) for _ in range(3)] == [413] * 3


async def test_headers_above_the_limit_are_refused() -> None:
    async with idle("a") as (_, client):
        try:
            status = (await client.get("/metrics", headers={"x-long": "x" * 200_000})).status_code
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
            status = 431  # refused and closed while the rest was still being sent
        assert status in (400, 431)


def record(**more: Any) -> RequestRecord:
    return RequestRecord("a", **more)


async def test_requests_have_the_contracts_fields_with_null_for_what_is_unknown() -> None:
    async with idle("a") as (exporter, client):
        exporter.ring.append(record(request_id="r1", start=1.7e9, ttft_s=0.5, outcome="ok", streaming=True))
        document = (await client.get("/api/v1/requests")).json()
        assert (document["next"], document["dropped"]) == (1, 0)
        row = document["requests"][0]
        assert set(row) == FIELDS
        assert row["ttft_s"] == 0.5
        assert row["tenant"] is None


async def test_a_cursor_goes_through_all_records_once_and_a_slow_reader_is_told_what_it_missed() -> None:
    async with idle("a") as (exporter, client):
        for number in range(25):
            exporter.ring.append(record(request_id=str(number)))
        got: list[str] = []
        cursor = 0
        while True:
            document = (await client.get(f"/api/v1/requests?since={cursor}&limit=10")).json()
            got += [row["request_id"] for row in document["requests"]]
            if document["next"] == cursor:
                break
            cursor = document["next"]
        assert got == [str(number) for number in range(25)]


BAD_QUERIES = [
    "since=-1", "since=x", "since=1.5", "since=", "since=99999999999999999999", "since=1&since=2", "since=%D9%A3",
    "limit=0", "limit=10001", "limit=-5", "limit=NaN", "limit=1e3", "limit=+5",
]  # fmt: skip


@pytest.mark.parametrize("query", BAD_QUERIES)
async def test_a_bad_query_is_400_and_says_what_is_allowed(query: str) -> None:
    async with idle("a") as (_, client):
        answer = await client.get(f"/api/v1/requests?{query}")
        assert answer.status_code == 400
        document = answer.json()
        assert document["parameter"] == query.split("=")[0]
        assert "integer from" in document["allowed"]


def test_the_ring_is_bounded_and_counts_what_it_dropped() -> None:
    ring = RequestRing(capacity=3)
    for number in range(5):
        ring.append(record(request_id=str(number)))
    batch = ring.since(0, 10)
    assert ([r.request_id for r in batch.records], batch.dropped, batch.next) == (["2", "3", "4"], 2, 5)
    assert ring.since(4, 10).dropped == 0
    assert [r.request_id for r in ring.since(4, 10).records] == ["4"]
    assert ring.since(5, 10).records == ()
    assert RequestRing().capacity == MAX_RECORDS


def test_a_cursor_from_before_a_restart_gets_everything_there_is() -> None:
    ring = RequestRing()
    ring.append(record(request_id="new"))
    batch = ring.since(5_000, 10)
    assert ([r.request_id for r in batch.records], batch.dropped, batch.next) == (["new"], 0, 1)


def test_an_empty_ring_gives_its_cursor_back() -> None:
    assert RequestRing().since(0, 10).next == 0


async def test_no_answer_waits_for_a_backend_while_every_other_one_is_hostile() -> None:
    """Field report A6: 25 MB pages, pages that drip, servers that never answer, and every page of A2; one engine is well."""
    with hostile_engines() as urls:
        async with engine() as well:
            backends = [backend(url, name=f"h{n}") for n, url in enumerate(urls)]
            async with exporting(*backends, backend(well.url), scrape_timeout_s=1) as (exporter, client):
                await until(
                    lambda: exporter.views["a"].counters and all(view.asked for view in exporter.views.values()),
                    20,
                )
                took = sorted(await _times(client, for_s=3.0))
                assert exporter.views["a"].state in ("serving", "busy")
                assert all(not view.counters for view in exporter.views.values() if view.name != "a")
    # On a machine shared with others answers wait for the processor; none waits for a backend, which takes 1 s and more.
    assert took[len(took) // 2] < 0.5
    assert took[-1] < 0.9, f"slowest {took[-1] * 1000:.0f} ms"


async def _times(client: httpx.AsyncClient, for_s: float) -> list[float]:
    ends, took = time.monotonic() + for_s, []
    while time.monotonic() < ends:
        for path in ("/metrics", "/healthz", "/api/v1/requests", "/livez"):
            started = time.perf_counter()
            await client.get(path)
            took.append(time.perf_counter() - started)
        await asyncio.sleep(0.01)
    return took


async def test_three_readers_at_once_all_get_whole_pages() -> None:
    async with engine(generated=5) as fake, exporting(backend(fake.url)) as (exporter, client):
        await until(lambda: exporter.views["a"].counters)
        pages = await asyncio.gather(*(client.get("/metrics") for _ in range(30)))
        assert all(page.text.endswith("\n") and "llm_generated_tokens_total" in page.text for page in pages)


async def test_a_port_that_is_taken_is_an_error_that_names_the_setting() -> None:
    with bind("127.0.0.1:0", "exporter.listen") as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=f"exporter.listen: {address}"):
            bind(address, "exporter.listen")


def test_an_ipv6_address_can_be_listened_at() -> None:
    try:
        with bind("[::1]:0", "exporter.listen") as sock:
            assert sock.getsockname()[0] == "::1"
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")


async def test_json_is_strict() -> None:
    async with engine() as fake, exporting(backend(fake.url)) as (exporter, client):
        await until(lambda: exporter.views["a"].probe)

        def refuse(constant: str) -> float:
            raise AssertionError(constant)

        json.loads((await client.get("/healthz")).text, parse_constant=refuse)
