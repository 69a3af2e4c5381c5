"""The small readers: pages over HTTP, credentials, the node's CPU, and a Redis that misbehaves."""

from __future__ import annotations

import asyncio
import gzip
import socket
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailkeeper_exporter.clients import Clients, CredentialError, credentials
from tailkeeper_exporter.evidence import Answer
from tailkeeper_exporter.fetch import FetchError, fetch, http_code
from tailkeeper_exporter.kv_service import ping
from tailkeeper_exporter.node import NodeCpu, is_on_this_node
from tailkeeper_exporter.page import PageError, Reason
from tailkeeper_exporter.page_reader import health_answer, page_answer, read_health
from tailkeeper_exporter.settings import BackendSettings
from tests.unit.loopback import Handler, Server, head, reply, serving, silence, stream

PAGE = b"a 1\n" * 100


@asynccontextmanager
async def client_and(handler: Handler) -> AsyncIterator[tuple[httpx.AsyncClient, Server]]:
    async with serving(handler) as server:
        settings = BackendSettings(name="a", engine="vllm", url=server.url)
        async with Clients().make(settings) as client:
            yield client, server


async def fetched(handler: Handler, deadline_s: float = 1.0, max_bytes: int = 10_000) -> bytes:
    async with client_and(handler) as (client, server):
        return (await fetch(client, server.url + "/metrics", {}, deadline_s, max_bytes)).body


async def failure(handler: Handler, **more: Any) -> FetchError:
    with pytest.raises(FetchError) as caught:
        await fetched(handler, **more)
    return caught.value


async def test_a_page_arrives_as_it_was_sent_plain_gzipped_or_deflated() -> None:
    assert await fetched(reply(200, PAGE)) == PAGE
    assert await fetched(reply(200, gzip.compress(PAGE), "content-encoding: gzip")) == PAGE
    assert await fetched(reply(200, zlib.compress(PAGE), "content-encoding: deflate")) == PAGE


async def test_text_is_asked_for_and_no_compression() -> None:
    async with client_and(reply(200, PAGE)) as (client, server):
        await fetch(client, server.url, {"authorization": "Bearer k"}, 1.0)
        sent = server.requests[0].headers
    assert sent["accept"].startswith("text/plain;version=0.0.4")
    assert sent["accept-encoding"] == "identity"
    assert sent["authorization"] == "Bearer k"


async def _reset(seen: object, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def _cut(seen: object, writer: asyncio.StreamWriter) -> None:
    writer.write(head(200, length=1_000) + b"a 1\n")
    await writer.drain()
    writer.close()


async def _not_http(seen: object, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
    await writer.drain()
    writer.close()


FAILURES: list[tuple[str, Handler, Reason, bool, Answer]] = [
    ("silent", silence, Reason.TIMEOUT, False, Answer.SILENT),
    ("dripping", stream(*[p for _ in range(30) for p in (b"#", 0.05)]), Reason.TIMEOUT, True, Answer.UNUSABLE),
    ("reset", _reset, Reason.CONNECTION, False, Answer.REFUSED),
    ("cut", _cut, Reason.TRUNCATED, True, Answer.UNUSABLE),
    ("not HTTP", _not_http, Reason.CONNECTION, False, Answer.REFUSED),
    ("500", reply(500), Reason.HTTP_STATUS, True, Answer.UNUSABLE),
    ("204", reply(204), Reason.HTTP_STATUS, True, Answer.UNUSABLE),
    ("too large", reply(200, b"x" * 20_000), Reason.TOO_LARGE, True, Answer.UNUSABLE),
    ("a bomb", reply(200, gzip.compress(b"\0" * 50_000_000), "content-encoding: gzip"), Reason.TOO_LARGE, True, Answer.UNUSABLE),
    ("half a gzip", reply(200, gzip.compress(PAGE)[:-9], "content-encoding: gzip"), Reason.TRUNCATED, True, Answer.UNUSABLE),
    ("a loop", reply(302, b"", "location: /metrics"), Reason.REDIRECT_LOOP, True, Answer.UNUSABLE),
    ("elsewhere", reply(302, b"", "location: http://example.invalid/"), Reason.REDIRECT_LOOP, True, Answer.UNUSABLE),
    ("another scheme", reply(302, b"", "location: file:///etc/passwd"), Reason.REDIRECT_LOOP, True, Answer.UNUSABLE),
]


@pytest.mark.parametrize("case", FAILURES, ids=[name for name, *_ in FAILURES])
async def test_each_failure_has_its_reason_and_says_what_it_means_for_liveness(
    case: tuple[str, Handler, Reason, bool, Answer],
) -> None:
    _, handler, reason, answered, meaning = case
    error = await failure(handler, deadline_s=0.4)
    assert (error.reason, error.answered) == (reason, answered)
    assert page_answer(error) is meaning
    assert isinstance(error, PageError)


async def test_the_deadline_is_for_the_whole_exchange() -> None:
    started = time.monotonic()
    await failure(stream(*[p for _ in range(100) for p in (b"#", 0.05)]), deadline_s=0.3)
    assert time.monotonic() - started < 1.0


async def test_a_closed_port_is_refused_and_says_so_for_liveness() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    async with Clients().make(BackendSettings(name="a", engine="vllm", url=url)) as client:
        with pytest.raises(FetchError) as caught:
            await fetch(client, url, {}, 1.0)
    assert caught.value.reason is Reason.REFUSED
    assert page_answer(caught.value) is Answer.REFUSED


async def test_a_kept_alive_connection_that_the_server_closed_is_tried_once_more() -> None:
    closed_once = False

    async def moody(seen: object, writer: asyncio.StreamWriter) -> None:
        nonlocal closed_once
        if len(server.requests) == 2 and not closed_once:
            closed_once = True
            writer.transport.abort()
            return
        await reply(200, PAGE)(seen, writer)  # type: ignore[arg-type]

    async with client_and(moody) as (client, server):
        for _ in range(3):
            assert (await fetch(client, server.url, {}, 1.0)).body == PAGE
    assert closed_once
    assert len(server.requests) == 4


async def test_three_redirects_are_followed_and_a_fourth_is_not() -> None:
    async def hop(seen: Any, writer: asyncio.StreamWriter) -> None:
        left = int(seen.path.strip("/"))
        await (reply(200, PAGE) if left == 0 else reply(307, b"", f"location: /{left - 1}"))(seen, writer)

    async with client_and(hop) as (client, server):
        assert (await fetch(client, server.url + "/3", {}, 1.0)).body == PAGE
        with pytest.raises(FetchError, match="redirected"):
            await fetch(client, server.url + "/4", {}, 1.0)


@pytest.mark.parametrize(("status", "code"), [(503, "http_503"), (418, "http_4xx"), (599, "http_5xx"), (302, "http_3xx")])
def test_codes_of_statuses_are_few(status: int, code: str) -> None:
    assert http_code(status) == code


HEALTH = [
    (reply(200), Answer.OK, ""),
    (reply(204), Answer.OK, ""),
    (reply(200, b"x" * 100_000), Answer.OK, ""),
    (reply(401), Answer.DENIED, "http_401"),
    (reply(404), Answer.DENIED, "http_404"),
    (reply(429), Answer.OVERLOADED, "http_429"),
    (reply(503, {"status": "loading model"}), Answer.LOADING, "http_503"),
    (reply(503, b"EngineDeadError"), Answer.ERROR, "http_503"),
    (reply(500), Answer.ERROR, "http_500"),
    (reply(418), Answer.UNUSABLE, "http_4xx"),
    (silence, Answer.SILENT, "timeout"),
    (_reset, Answer.REFUSED, "connection"),
]


@pytest.mark.parametrize(("handler", "answer", "code"), HEALTH)
async def test_what_a_health_page_says(handler: Handler, answer: Answer, code: str) -> None:
    async with client_and(handler) as (client, server):
        read = await read_health(client, server.url + "/health", {}, 0.3, time.monotonic)
    assert (read.seen.answer, read.code) == (answer, code)


def test_health_errors_without_a_status_mean_what_they_mean_for_pages() -> None:
    assert health_answer(FetchError(Reason.TIMEOUT, accepted=True)) is Answer.SILENT
    assert health_answer(FetchError(Reason.TIMEOUT)) is Answer.UNREACHABLE


def a_backend(**more: Any) -> BackendSettings:
    return BackendSettings.model_validate({"name": "a", "engine": "vllm", "url": "http://h:1"} | more)


def test_credentials_come_from_files_and_the_api_key_wins(tmp_path: Path) -> None:
    for name, text in {"key": "k1\n", "bearer": "b1", "basic": "user:pass word\n", "headers": "X-Tenant: gold\n# no\n\n"}.items():
        (tmp_path / name).write_text(text)
    auth = {"headers_file": str(tmp_path / "headers"), "basic_file": str(tmp_path / "basic")}
    assert credentials(a_backend(auth=auth)) == {"x-tenant": "gold", "authorization": "Basic dXNlcjpwYXNzIHdvcmQ="}
    assert credentials(a_backend(auth={"bearer_file": str(tmp_path / "bearer")})) == {"authorization": "Bearer b1"}
    both = a_backend(api_key_file=str(tmp_path / "key"), auth={"bearer_file": str(tmp_path / "bearer")})
    assert credentials(both) == {"authorization": "Bearer k1"}


@pytest.mark.parametrize("content", [None, "", "two\nlines", b"\xff\xfe", "s3cret\x00"])
def test_a_credential_file_that_cannot_be_used_is_an_error_without_its_content(
    content: str | bytes | None, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CredentialError, match="api_key_file") as caught:
        credentials(a_backend(api_key_file=str(file)))
    assert "s3cret" not in str(caught.value)


def test_tls_files_that_cannot_be_used_are_an_error_that_names_the_backend(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("not a certificate")
    with pytest.raises(CredentialError, match="TLS"):
        Clients().make(a_backend(url="https://h:1", auth={"ca_file": str(tmp_path / "ca")}))


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://localhost:1", True),
        ("http://[::1]:1", True),
        ("http://127.9.9.9", True),
        ("http://10.0.0.1:1", False),
        ("http://localhost.example.com", False),
    ],
)
def test_an_engine_on_loopback_is_on_this_node(url: str, here: bool) -> None:
    assert is_on_this_node(url) is here


def test_node_cpu_is_what_was_not_idle_between_two_readings(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    cpu = NodeCpu(stat)
    stat.write_text("cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 2 3\n")
    assert cpu.read(0.0).value is None
    stat.write_text("cpu  160 0 120 810 10 0 0 0 55 0\n")
    assert cpu.read(1.0).value == pytest.approx(0.8)
    assert cpu.read(1.1).value == pytest.approx(0.8), "too soon to read again"
    stat.write_text("cpu  160 0 120 910 10 0 0 0 0 0\n")
    assert cpu.read(2.0).value == 0.0


@pytest.mark.parametrize("text", ["", "intr 1 2 3\n", "cpu a b c d\n", "cpu\n", "cpu 1 2\n"])
def test_a_stat_file_that_is_none_gives_no_reading(text: str, tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text(text)
    cpu = NodeCpu(stat)
    assert [cpu.read(float(t)).value for t in range(3)] == [None, None, None]
    assert NodeCpu(tmp_path / "missing").read(0.0).value is None


@asynccontextmanager
async def redis_like(*answers: bytes | None) -> AsyncIterator[str]:
    """Answers each command in turn; None is silence."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for answer in answers:
                await reader.readuntil(b"*")
                if answer is None:
                    await asyncio.sleep(30)
                else:
                    writer.write(answer)
                    await writer.drain()
            await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ((b"+PONG\r\n",), None),
        ((b"-NOAUTH Authentication required.\r\n",), "unauthorized"),
        ((b"-LOADING Redis is loading the dataset in memory\r\n",), "loading"),
        ((b"HTTP/1.1 400 Bad Request\r\n",), "not_redis"),
        ((b"x" * 100_000,), "not_redis"),
        ((None,), "timeout"),
    ],
)
async def test_what_a_ping_amounts_to(answers: tuple[bytes | None, ...], reason: str | None) -> None:
    async with redis_like(*answers) as url:
        result = await ping(url, 0.3, time.monotonic)
    assert result.reason == reason
    assert result.took_s < 1.0


async def test_a_password_goes_into_auth_and_a_wrong_one_is_unauthorized() -> None:
    async with redis_like(b"-WRONGPASS invalid\r\n") as url:
        wrong = url.replace("redis://", "redis://user:p%40ss@")
        assert (await ping(wrong, 0.5, time.monotonic)).reason == "unauthorized"
    async with redis_like(b"+OK\r\n", b"+PONG\r\n") as url:
        assert (await ping(url.replace("redis://", "redis://:pw@"), 0.5, time.monotonic)).reason is None


async def test_a_ping_to_nobody_is_refused_or_a_lost_connection() -> None:
    assert (await ping("redis://127.0.0.1:9", 0.5, time.monotonic)).reason == "refused"
    assert (await ping("redis://no-such-host.invalid", 2.0, time.monotonic)).reason in ("connection", "timeout")
