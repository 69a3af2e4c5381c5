"""The semantic probe against real loopback servers: what counts as a token, and what every other answer means."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tailkeeper_exporter.clients import Clients
from tailkeeper_exporter.engines import Engine, ProbeRequest
from tailkeeper_exporter.evidence import Answer
from tailkeeper_exporter.probe import Prober, ProbeResult
from tailkeeper_exporter.probe_answer import (
    Outcome,
    Sign,
    SseReader,
    is_cached,
    is_degenerate,
    outcome_of_status,
    retry_after_s,
    sign_of,
)
from tailkeeper_exporter.settings import BackendSettings
from tests.unit.loopback import Handler, Seen, Server, head, reply, routes, serving, silence, stream

COMPLETIONS, CHAT, MODELS = "/v1/completions", "/v1/chat/completions", "/v1/models"
TIMEOUT_S = 0.4
TOKEN = b'data: {"choices":[{"index":0,"text":" yes","finish_reason":null}]}\n\n'
LENGTH = b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\n'
EMPTY = b'data: {"choices":[{"index":0,"text":"","finish_reason":null}]}\n\n'
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
ENGINE = Engine("test", "/metrics", "/health", ())


def prober(url: str, engine: Engine = ENGINE, model: str | None = "m") -> tuple[Prober, BackendSettings]:
    settings = BackendSettings(name="a", engine="vllm", url=url)
    return Prober(Clients().make(settings), settings.url, engine, model, TIMEOUT_S, time.monotonic), settings


@asynccontextmanager
async def probing(handler: Handler, engine: Engine = ENGINE, model: str | None = "m") -> AsyncIterator[tuple[Prober, Server]]:
    async with serving(handler) as server:
        asking, _ = prober(server.url, engine, model)
        async with asking._client:
            yield asking, server


async def ask(handler: Handler, deadline_s: float = TIMEOUT_S, models: tuple[str, ...] = ("m",)) -> ProbeResult:
    async with probing(handler) as (asking, _):
        return await asking.ask(models, {}, deadline_s)


CHAT_REASONING = {"choices": [{"message": {"content": None, "reasoning_content": "Hm"}, "finish_reason": "length"}]}
C1 = {
    "a: only reasoning, cut at the limit": (reply(200, CHAT_REASONING, "content-type: application/json"), Outcome.ANSWERED),
    "b: 400, the limit was reached": (
        reply(400, {"error": {"message": "Could not finish the message because max_tokens or model output limit was reached"}}),
        Outcome.ANSWERED,
    ),
    "c: out of a cache": (
        reply(200, {"created": 1, "choices": [{"text": "yes"}]}, "content-type: application/json", "x-cache: HIT"),
        Outcome.CACHED,
    ),
    "d: degenerate text": (reply(200, {"choices": [{"text": "!!!!"}]}, "content-type: application/json"), Outcome.ANSWERED),
    "e: 200 with an error": (reply(200, {"error": {"message": "no"}}, "content-type: application/json"), Outcome.INVALID_CONTENT),
    "f: keep-alive comments, then nothing": (stream(PING, PING, 0.1, PING, 30.0), Outcome.TIMEOUT),
    "g: an alias that the engine serves": (stream(TOKEN, LENGTH, DONE), Outcome.ANSWERED),
}


@pytest.mark.parametrize("case", C1)
async def test_field_report_c1_by_case(case: str) -> None:
    handler, expected = C1[case]
    assert (await ask(handler)).outcome is expected


STREAMS = {
    "a token": ((TOKEN, LENGTH, DONE), Outcome.ANSWERED),
    "an unfinished character, then the end by length": ((EMPTY, LENGTH, DONE), Outcome.ANSWERED),
    "a role, a ping, then a token": ((ROLE, PING, b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n', DONE), Outcome.ANSWERED),
    "reasoning first": ((ROLE, b'data: {"choices":[{"delta":{"reasoning_content":"x"}}]}\n\n'), Outcome.ANSWERED),
    "an end without text": ((b'data: {"choices":[{"text":"","finish_reason":"stop"}]}\n\n', DONE), Outcome.ANSWERED),
    "only a role": ((ROLE, DONE), Outcome.INVALID_CONTENT),
    "empty chunks and no end": ((EMPTY, EMPTY), Outcome.INVALID_CONTENT),
    "aborted by a pause": ((b'data: {"choices":[{"text":"","finish_reason":"abort"}]}\n\n', DONE), Outcome.INVALID_CONTENT),
    "an error in the stream": ((b'data: {"error":{"message":"dead"}}\n\n', DONE), Outcome.INVALID_CONTENT),
    "not JSON": ((b"data: <html>\n\n",), Outcome.INVALID_CONTENT),
    "only the end": ((DONE,), Outcome.INVALID_CONTENT),
    "nothing at all": ((), Outcome.INVALID_CONTENT),
    "a flood": ((b"data: " + b"x" * 200_000 + b"\n\n",), Outcome.INVALID_CONTENT),
    "a chunk in two pieces": ((TOKEN[:20], 0.05, TOKEN[20:], LENGTH, DONE), Outcome.ANSWERED),
    "carriage returns": ((TOKEN.replace(b"\n", b"\r\n"), DONE), Outcome.ANSWERED),
}


@pytest.mark.parametrize("case", STREAMS)
async def test_what_a_stream_amounts_to(case: str) -> None:
    pieces, expected = STREAMS[case]
    assert (await ask(stream(*pieces))).outcome is expected


STATUSES = [
    (401, b"", None, Outcome.UNAUTHORIZED),
    (403, b"", None, Outcome.UNAUTHORIZED),
    (404, b"", None, Outcome.NOT_FOUND),
    (405, b"", None, Outcome.NOT_FOUND),
    (429, b"", "30", Outcome.OVERLOADED),
    (503, b'{"status":"loading model"}', None, Outcome.LOADING),
    (503, b'{"error":{"code":503,"message":"Loading model"}}', "5", Outcome.LOADING),
    (503, b'{"error":"request queue is full"}', None, Outcome.OVERLOADED),
    (503, b"", "1", Outcome.OVERLOADED),
    (503, b"", None, Outcome.HTTP_ERROR),
    (500, b"EngineCore died", None, Outcome.HTTP_ERROR),
    (400, b'{"error":"max_tokens must be at least 1"}', None, Outcome.HTTP_ERROR),
    (400, b'{"error":"max_tokens=9 cannot be greater than max_model_len"}', None, Outcome.HTTP_ERROR),
    (422, b"", None, Outcome.HTTP_ERROR),
    (302, b"", None, Outcome.HTTP_ERROR),
]


@pytest.mark.parametrize(("status", "body", "retry_after", "expected"), STATUSES)
def test_what_a_status_means(status: int, body: bytes, retry_after: str | None, expected: Outcome) -> None:
    assert outcome_of_status(status, body, retry_after) is expected


LIVENESS = [
    (stream(TOKEN, DONE), Answer.OK),
    (reply(401), Answer.DENIED),
    (reply(429, b"", "retry-after: 7"), Answer.OVERLOADED),
    (reply(503, {"status": "loading model"}), Answer.LOADING),
    (reply(500, b"x"), Answer.ERROR),
    (reply(400, b"x"), Answer.UNUSABLE),
    (silence, Answer.SILENT),
    (stream(DONE), Answer.ERROR),
]


@pytest.mark.parametrize(("handler", "expected"), LIVENESS)
async def test_what_a_probe_says_about_liveness(handler: Handler, expected: Answer) -> None:
    seen = (await ask(handler)).seen()
    assert seen.answer is expected
    assert (seen.retry_after_s == 7.0) is (expected is Answer.OVERLOADED)


async def test_the_first_token_is_timed_not_the_head_the_role_or_the_ping() -> None:
    """Field report F2 in small: head at once, ping, role, then the token."""
    result = await ask(stream(0.05, PING, 0.05, ROLE, 0.1, TOKEN, DONE))
    assert result.outcome is Outcome.ANSWERED
    assert result.first_token_s is not None
    assert result.first_token_s >= 0.19


async def test_a_token_after_the_limit_is_a_timeout_that_proves_life() -> None:
    result = await ask(stream(TIMEOUT_S + 0.15, TOKEN, DONE), deadline_s=5.0)
    assert result.outcome is Outcome.TIMEOUT
    assert result.first_token_s is not None
    assert result.first_token_s > TIMEOUT_S
    assert result.seen().answer is Answer.LATE


async def test_a_probe_ends_at_its_deadline_and_lets_go_of_the_connection() -> None:
    started = time.monotonic()
    async with probing(silence) as (asking, server):
        for _ in range(6):  # more than the pool has connections
            assert (await asking.ask(("m",), {}, 0.1)).outcome is Outcome.TIMEOUT
        assert len(server.requests) == 6
    assert time.monotonic() - started < 3.0


async def test_a_closed_port_is_refused() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    asking, _ = prober(url)
    async with asking._client:
        result = await asking.ask((), {}, 1.0)
    assert result.outcome is Outcome.REFUSED
    assert result.seen().answer is Answer.REFUSED


async def test_a_connection_that_is_dropped_as_soon_as_it_is_used_is_refused_too() -> None:
    async def drop(seen: object, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    assert (await ask(drop)).outcome is Outcome.REFUSED


async def test_a_name_that_does_not_resolve_is_unreachable_not_refused() -> None:
    asking, _ = prober("http://no-such-host.invalid:1")
    async with asking._client:
        assert (await asking.ask((), {}, 5.0)).outcome in (Outcome.UNREACHABLE, Outcome.TIMEOUT)
        assert (await asking.ask((), {}, 5.0)).seen().answer is Answer.UNREACHABLE


async def test_404_means_chat_is_tried_once_and_what_works_is_remembered() -> None:
    async with probing(routes({CHAT: stream(ROLE, LENGTH, DONE)})) as (asking, server):
        assert (await asking.ask(("m",), {}, 1.0)).outcome is Outcome.ANSWERED
        assert (await asking.ask(("m",), {}, 1.0)).outcome is Outcome.ANSWERED
    assert server.paths() == [COMPLETIONS, CHAT, CHAT]
    assert "messages" in server.requests[-1].json


async def test_404_on_both_paths_is_not_found_after_two_requests() -> None:
    async with probing(routes({})) as (asking, server):
        result = await asking.ask(("m",), {}, 1.0)
    assert result.outcome is Outcome.NOT_FOUND
    assert result.code == "http_404"
    assert server.paths() == [COMPLETIONS, CHAT]


async def test_a_model_name_that_the_engine_does_not_know_is_looked_up_and_remembered() -> None:
    async def picky(seen: Seen, writer: asyncio.StreamWriter) -> None:
        known = seen.json.get("model") == "real"
        answer = stream(TOKEN, DONE) if known else reply(404, {"error": {"message": "The model `alias` does not exist."}})
        await answer(seen, writer)

    models = reply(200, {"object": "list", "data": [{"id": "real"}]})
    async with probing(routes({COMPLETIONS: picky, MODELS: models}), model="alias") as (asking, server):
        assert (await asking.ask((), {}, 1.0)).outcome is Outcome.ANSWERED
        assert (await asking.ask((), {}, 1.0)).outcome is Outcome.ANSWERED
    assert server.paths() == [COMPLETIONS, MODELS, COMPLETIONS, COMPLETIONS]


@pytest.mark.parametrize(
    ("page_models", "configured", "asked"),
    [(("page",), "configured", "page"), (("a", "b"), "b", "b"), ((), "configured", "configured"), ((), None, "listed")],
)
async def test_the_model_name_comes_from_the_page_else_the_settings_else_the_engines_list(
    page_models: tuple[str, ...], configured: str | None, asked: str
) -> None:
    table = {COMPLETIONS: stream(TOKEN, DONE), MODELS: reply(200, {"data": [{"id": "listed"}]})}
    async with probing(routes(table), model=configured) as (asking, server):
        await asking.ask(page_models, {}, 1.0)
    assert server.requests[-1].json["model"] == asked


async def test_every_probe_is_one_token_unlike_any_other_and_asks_no_cache() -> None:
    async with probing(stream(TOKEN, DONE)) as (asking, server):
        for _ in range(3):
            await asking.ask(("m",), {"authorization": "Bearer key"}, 1.0)
    bodies = [request.json for request in server.requests]
    assert len({str(body["prompt"]) for body in bodies}) == 3
    assert all(body["max_tokens"] == 1 and body["stream"] is True for body in bodies)
    for request in server.requests:
        assert re.fullmatch(r"tailkeeper-probe-[0-9a-f]{12}", request.headers["x-request-id"])
        assert "no-cache" in request.headers["cache-control"]
        assert request.headers["authorization"] == "Bearer key"


async def test_the_rest_of_a_stream_is_read_so_that_the_engine_counts_a_finished_request() -> None:
    ended = asyncio.Event()

    async def handle(seen: object, writer: asyncio.StreamWriter) -> None:
        writer.write(head(200, "content-type: text/event-stream") + TOKEN)
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(LENGTH + DONE)
        await writer.drain()
        ended.set()
        writer.close()

    assert (await ask(handler=handle)).outcome is Outcome.ANSWERED
    assert ended.is_set()


async def test_an_engine_without_a_probe_is_skipped() -> None:
    engine = Engine("test", "/metrics", "/health", (), probe=None)
    asking, _ = prober("http://127.0.0.1:1", engine)
    async with asking._client:
        assert not asking.possible
        assert (await asking.ask((), {}, 1.0)).outcome is Outcome.SKIPPED


async def test_the_engines_own_path_is_used() -> None:
    engine = Engine("test", "/metrics", "/health", (), probe=ProbeRequest("/generate"))
    async with probing(routes({"/generate": stream(TOKEN, DONE)}), engine) as (asking, server):
        assert (await asking.ask(("m",), {}, 1.0)).outcome is Outcome.ANSWERED
    assert server.paths() == ["/generate"]


async def test_no_secret_is_in_the_result() -> None:
    async with probing(reply(401, b"bad key s3cret")) as (asking, _):
        result = await asking.ask(("m",), {"authorization": "Bearer s3cret"}, 1.0)
    assert "s3cret" not in repr(result)
    assert "s3cret" not in repr(result.seen())


def test_degenerate_text_is_told_apart_from_short_words() -> None:
    assert is_degenerate("!!!!")
    assert not any(is_degenerate(text) for text in ("", "!", "no", "aaa", "1111", "?!?"))


@pytest.mark.parametrize(
    ("headers", "cached"),
    [
        ({"x-cache": "Hit from cloudfront"}, True),
        ({"age": "12"}, True),
        ({"age": "0"}, False),
        ({"x-cache": "MISS"}, False),
        ({}, False),
    ],
)
def test_cache_headers(headers: dict[str, str], cached: bool) -> None:
    assert is_cached(headers) is cached


@pytest.mark.parametrize(
    ("header", "expected"), [(None, 0), ("7", 7), ("100000", 60), ("-1", 0), ("Wed, 21 Oct", 0), ("", 0), ("1e9", 0), ("٣", 0)]
)
def test_retry_after_is_bounded_and_never_raises(header: str | None, expected: float) -> None:
    assert retry_after_s(header) == expected


@pytest.mark.parametrize("chunk", [None, 1, "x", [], {}, {"choices": None}, {"choices": [None]}, {"choices": [{"delta": 3}]}])
def test_nonsense_is_never_a_token(chunk: object) -> None:
    assert sign_of(chunk) is not Sign.TOKEN


def test_deeply_nested_json_does_not_raise() -> None:
    assert list(SseReader().feed(b"data: " + b"[" * 20_000 + b"\n")) == [None]


def test_the_captured_vllm_stream_is_answered_at_its_last_chunk() -> None:
    """Capture vllm_traffic (vLLM 0.32.0): every chunk has empty text until the end."""
    chunk = {
        "id": "cmpl-82dcc23ad6483ee6",
        "object": "text_completion",
        "choices": [{"index": 0, "text": "", "logprobs": None, "finish_reason": None, "token_ids": None}],
    }
    assert sign_of(json.loads(json.dumps(chunk))) is Sign.NOTHING
    chunk["choices"] = [{"index": 0, "text": "", "logprobs": None, "finish_reason": "length", "token_ids": None}]
    assert sign_of(chunk) is Sign.TOKEN
