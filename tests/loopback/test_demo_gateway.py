"""The small gateway over loopback sockets: shares, drain, retry, streaming, and the webhook contract word for word."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest

from tailkeeper_demo.gateway import Gateway
from tailkeeper_demo.gateway_admin import Server, Servers, handler
from tailkeeper_demo.http1 import Request
from tailkeeper_demo.http_server import HttpServer, Reply


class Backend:
    """A server that answers with its name, or streams until it is told to end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[Request] = []
        self.streams: list[Reply] = []
        self.lost = 0
        self.answers_with = 200
        self.http = HttpServer(self._handle)

    def _handle(self, request: Request, reply: Reply) -> None:
        self.seen.append(request)
        if request.path == "/stream":
            reply.on_close = lambda: self._closed(reply)
            reply.start(200, "text/event-stream", {"x-request-id": request.headers.get("x-request-id", "")})
            reply.write(f"data: {self.name}\n\n".encode())
            self.streams.append(reply)
        elif request.path == "/cut":
            reply.start(200, "text/event-stream")
            reply.write(b"data: half")
            self.http.cut_connections()
        elif request.path == "/mute":
            self.http.cut_connections()
        elif self.answers_with != 200:
            reply.send(self.answers_with, self.name.encode())
        else:
            reply.send(200, self.name.encode())

    def _closed(self, reply: Reply) -> None:
        self.lost += reply.lost


@dataclass
class Site:
    """A gateway, its admin API, and the backends a, b, c behind it."""

    url: str
    admin_url: str
    backends: dict[str, Backend]
    servers: Servers
    client: httpx.AsyncClient

    async def ask(self, count: int = 1, path: str = "/") -> Counter[str]:
        return Counter([(await self.client.get(self.url + path)).text for _ in range(count)])

    async def put(self, name: str, weight: float, admission: str = "serve") -> httpx.Response:
        return await self.client.put(f"{self.admin_url}/{name}", json={"weight": weight, "admission": admission})

    def server(self, name: str) -> Server:
        found = self.servers.get(name)
        assert found is not None
        return found


@asynccontextmanager
async def a_site(names: str = "abc") -> AsyncIterator[Site]:
    backends = {name: Backend(name) for name in names}
    ports = {name: await backend.http.listen("127.0.0.1", 0) for name, backend in backends.items()}
    servers = Servers(Server(name, "127.0.0.1", port) for name, port in ports.items())
    gateway, admin = Gateway(servers), HttpServer(handler(servers))
    port, admin_port = await gateway.listen("127.0.0.1", 0), await admin.listen("127.0.0.1", 0)
    async with httpx.AsyncClient(timeout=5) as client:
        yield Site(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}", backends, servers, client)
    gateway.stop()
    for http in (admin, *(backend.http for backend in backends.values())):
        http.stop_listening()
        http.cut_connections()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with a_site() as s:
        yield s


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  the condition is a remote program's, there is no event to wait for
            await asyncio.sleep(0.002)


# -- proxying -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "count", "expected"),
    [
        ({}, 30, {"a": 10, "b": 10, "c": 10}),
        ({"b": 0.5}, 25, {"a": 10, "b": 5, "c": 10}),
        ({"a": 0.18, "b": 0.55, "c": 0.88}, 161, {"a": 18, "b": 55, "c": 88}),
        ({"a": 0.0}, 20, {"b": 10, "c": 10}),
    ],
)
async def test_requests_are_split_exactly_by_weight(
    site: Site, weights: dict[str, float], count: int, expected: dict[str, int]
) -> None:
    for name, weight in weights.items():
        assert (await site.put(name, weight)).status_code == 200
    assert await site.ask(count) == Counter(expected)


async def test_a_draining_server_finishes_its_stream_and_gets_no_new_requests(site: Site) -> None:
    async with site.client.stream("GET", site.url + "/stream") as answer:
        chunks = answer.aiter_bytes()
        name = (await anext(chunks)).decode().split()[1]
        await site.put(name, 1.0, "drain")
        assert name not in await site.ask(10)
        assert site.server(name).in_flight == 1
        (stream,) = site.backends[name].streams
        stream.write(b"data: more\n\n")
        assert await anext(chunks) == b"data: more\n\n"
        stream.end()
        with pytest.raises(StopAsyncIteration):
            await anext(chunks)
    await until(lambda: site.server(name).in_flight == 0)
    await site.put(name, 1.0)
    assert name in await site.ask(3)


async def test_with_everyone_drained_the_answer_is_503_at_once(site: Site) -> None:
    for name in "abc":
        await site.put(name, 1.0, "drain")
    answer = await site.client.get(site.url)
    assert answer.status_code == 503
    assert "no server" in answer.json()["error"]["message"]
    await site.put("b", 0.1)
    assert await site.ask(3) == Counter({"b": 3})


async def test_a_server_that_refuses_connections_costs_a_retry_and_no_request(site: Site) -> None:
    site.backends["b"].http.stop_listening()
    answers = await site.ask(30)
    assert set(answers) == {"a", "c"}
    assert sum(answers.values()) == 30
    assert site.server("b").connect_failures == 10


@pytest.mark.parametrize("status", [502, 503])
async def test_a_tap_before_an_engine_that_is_gone_costs_a_retry_and_no_request(site: Site, status: int) -> None:
    site.backends["a"].answers_with = status
    answers = [await site.client.get(f"{site.url}/x") for _ in range(6)]
    assert [answer.status_code for answer in answers] == [200] * 6
    assert site.backends["a"].seen
    assert {answer.text for answer in answers} == {"b", "c"}


async def test_an_error_of_the_engine_is_passed_on_and_not_asked_again(site: Site) -> None:
    site.backends["a"].answers_with = 500
    answers = [await site.client.get(f"{site.url}/x") for _ in range(6)]
    assert Counter(answer.status_code for answer in answers) == {200: 4, 500: 2}


async def test_where_two_servers_say_so_the_answer_is_passed_on(site: Site) -> None:
    for backend in site.backends.values():
        backend.answers_with = 502
    assert (await site.client.get(f"{site.url}/x")).status_code == 502
    assert sum(len(backend.seen) for backend in site.backends.values()) == 2


async def test_after_two_refusals_the_answer_is_503_and_names_the_servers(site: Site) -> None:
    for backend in site.backends.values():
        backend.http.stop_listening()
    answer = await site.client.get(site.url)
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == "no connection to a, b"


async def test_a_stream_is_passed_on_as_it_comes(site: Site) -> None:
    async with site.client.stream("GET", site.url + "/stream", headers={"x-request-id": "r-7"}) as answer:
        assert answer.headers["x-request-id"] == "r-7"
        chunks = answer.aiter_bytes()
        first = await anext(chunks)
        backend = site.backends[first.decode().split()[1]]
        for number in range(5):
            backend.streams[0].write(f"data: {number}\n\n".encode())
            assert await anext(chunks) == f"data: {number}\n\n".encode()
        backend.streams[0].end()


async def test_a_client_that_hangs_up_takes_its_request_off_the_server(site: Site) -> None:
    async with site.client.stream("GET", site.url + "/stream") as answer:
        name = (await anext(answer.aiter_bytes())).decode().split()[1]
    await until(lambda: site.backends[name].lost == 1)
    await until(lambda: site.server(name).in_flight == 0)


async def test_an_answer_cut_by_the_server_is_cut_for_the_client_too(site: Site) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        await site.client.get(site.url + "/cut")


async def test_a_server_that_closes_without_an_answer_is_a_502(site: Site) -> None:
    assert (await site.client.get(site.url + "/mute")).status_code == 502


async def test_method_path_query_headers_and_body_arrive_and_hop_headers_do_not(site: Site) -> None:
    body = json.dumps({"prompt": "x" * 100_000}).encode()
    headers = {"x-request-id": "abc", "te": "trailers", "keep-alive": "5"}
    await site.client.post(site.url + "/v1/completions?a=b", content=body, headers=headers)
    (seen,) = [request for backend in site.backends.values() for request in backend.seen]
    assert (seen.method, seen.path, seen.body) == ("POST", "/v1/completions", body)
    assert seen.headers["x-request-id"] == "abc"
    assert not {"te", "keep-alive"} & set(seen.headers)
    assert seen.headers["connection"] == "close"


async def test_a_chunked_request_body_arrives_whole(site: Site) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for part in (b"one ", b"two ", b"three"):
            yield part

    await site.client.post(site.url + "/p", content=parts())
    (seen,) = [request for backend in site.backends.values() for request in backend.seen]
    assert seen.body == b"one two three"


async def test_a_broken_request_is_refused_and_the_gateway_goes_on(site: Site) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(site.url.rsplit(":", 1)[1]))
    writer.write(b"RUBBISH\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 400")
    writer.close()
    assert sum((await site.ask(3)).values()) == 3


# -- the webhook contract -------------------------------------------------------------------------------------------------


async def test_get_gives_the_document_and_put_takes_the_same_back(site: Site) -> None:
    url = site.admin_url + "/a"
    document = (await site.client.get(url)).json()
    assert document == {"weight": 1.0, "admission": "serve"}
    changed = {"weight": 0.18, "admission": "drain"}
    assert (await site.client.put(url, json=changed)).status_code == 200
    assert (await site.client.get(url)).json() == changed
    assert (await site.client.put(url, json=document)).status_code == 200
    assert (await site.client.get(url)).json() == document


@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_an_unknown_server_is_404(site: Site, method: str) -> None:
    answer = await site.client.request(method, site.admin_url + "/nobody", json={"weight": 1, "admission": "serve"})
    assert answer.status_code == 404
    assert "nobody" in answer.json()["error"]


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"not json", 400, "not JSON"),
        (b"[]", 400, "body must be"),
        (b'{"admission": "serve"}', 400, "weight"),
        (b'{"weight": 0.5}', 400, "admission"),
        (b'{"weight": 1.5, "admission": "serve"}', 400, "weight: 1.5"),
        (b'{"weight": -0.1, "admission": "serve"}', 400, "weight"),
        (b'{"weight": true, "admission": "serve"}', 400, "weight"),
        (b'{"weight": "1", "admission": "serve"}', 400, "weight"),
        (b'{"weight": NaN, "admission": "serve"}', 400, "weight"),
        (b'{"weight": 1, "admission": "maint"}', 400, "admission: 'maint'"),
        (b'{"weight": 1, "admission": "serve", "colour": "red"}', 400, "colour"),
        (b'{"weight": 1, "admission": "serve", "concurrency_limit": 8}', 422, "concurrency_limit"),
        (b'{"weight": 1, "admission": "serve", "batch_window_s": 0.1}', 422, "batch_window_s"),
        (b'{"weight": 1, "admission": "serve", "cache_mode": "redis"}', 422, "cache_mode"),
        (b'{"weight": 1, "admission": "serve", "degrade_level": 1}', 422, "degrade_level"),
    ],
)
async def test_a_document_that_cannot_be_applied_is_refused_with_the_reason_and_changes_nothing(
    site: Site, body: bytes, status: int, reason: str
) -> None:
    answer = await site.client.put(site.admin_url + "/a", content=body)
    assert answer.status_code == status
    assert reason in answer.json()["error"]
    assert (await site.client.get(site.admin_url + "/a")).json() == {"weight": 1.0, "admission": "serve"}


async def test_a_server_name_with_a_slash_is_reached_quoted_or_not() -> None:
    servers = Servers([Server("llm/a", "127.0.0.1", 1)])
    admin = HttpServer(handler(servers))
    port = await admin.listen("127.0.0.1", 0)
    async with httpx.AsyncClient() as client:
        for path in ("llm/a", "llm%2Fa"):
            assert (await client.get(f"http://127.0.0.1:{port}/{path}")).status_code == 200
    admin.stop_listening()
    admin.cut_connections()


async def test_the_overview_lists_every_server_with_its_counters(site: Site) -> None:
    await site.ask(6)
    overview = (await site.client.get(site.admin_url + "/")).json()["servers"]
    assert {name: row["requests"] for name, row in overview.items()} == {"a": 2, "b": 2, "c": 2}
    assert (await site.client.delete(site.admin_url + "/a")).status_code == 405
