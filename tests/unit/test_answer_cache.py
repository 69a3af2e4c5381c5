"""Which answers a tap keeps, for whom, and for how long."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tailkeeper_exporter.tap.cache import ENTRY_OVERHEAD_BYTES, TTL_S, CachedAnswer, LocalCache

CHAT = {"model": "llama", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}
JSON = ((b"content-type", b"application/json"),)


def cache(max_bytes: int = 1_000_000, max_entry_bytes: int = 100_000) -> LocalCache:
    return LocalCache(max_bytes, max_entry_bytes)


def key_of(body: object = CHAT, **changes: Any) -> bytes | None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = {
        "tenant": "t", "authorization": "Bearer x", "method": "POST", "path": "/v1/chat/completions", "query": "",
        "content_type": "application/json",
    }  # fmt: skip
    return cache().key(**{**request, "body": content, **changes})


@pytest.mark.parametrize(
    "body",
    [
        CHAT,
        {**CHAT, "temperature": 0.0, "n": 1, "best_of": 1, "stream": False},
        {**CHAT, "stream": None, "n": None},
        {**CHAT, "logprobs": True, "seed": 7, "tools": []},
    ],
)
def test_a_deterministic_request_has_a_key(body: dict[str, object]) -> None:
    assert key_of(body) is not None


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/v1/score"])
def test_what_samples_nothing_needs_no_temperature(path: str) -> None:
    assert key_of({"model": "e", "input": "x"}, path=path) is not None


NOT_ZERO: list[object] = [0.1, 1, None, False, "0", [], -1]


@pytest.mark.parametrize(
    "body",
    [
        {"model": "llama", "prompt": "no temperature is not zero"},
        *[{**CHAT, "temperature": t} for t in NOT_ZERO],
        *[{**CHAT, "stream": s} for s in (True, 1, "false", 0.5)],
        *[{**CHAT, "n": n} for n in (2, 0, "1", True)],
        {**CHAT, "best_of": 4},
        *[{**CHAT, name: None} for name in ("kv_transfer_params", "bootstrap_room", "session_params", "store")],
        [CHAT],
        "text",
        b"",
        b"not json",
        b"\xff\xfe",
        b'{"temperature": 0, "temperature": 1}',
        b'{"temperature": 0, "messages": [{"role": "a", "role": "b"}]}',
        b'{"temperature": 0, "x": NaN}',
        b'{"temperature": 0, "x": 1e999}',
        b'{"temperature": 0, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"temperature": 0, "x": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        b'{"temperature": 0, "x": ' + b"9" * 90_000 + b"}",
    ],
)
def test_what_is_not_surely_repeatable_has_no_key(body: object) -> None:
    assert key_of(body) is None


@pytest.mark.parametrize(
    "change",
    [
        {"method": "GET"},
        {"method": "post"},
        {"path": "/v1/models"},
        {"path": "/v1/chat/completions/"},
        {"path": "/V1/chat/completions"},
        {"path": "/v1/audio/transcriptions"},
        {"content_type": None},
        {"content_type": "text/plain"},
        {"content_type": "application/json; charset=utf-16"},
        {"content_type": "multipart/form-data; boundary=application/json"},
    ],
)
def test_another_kind_of_request_has_no_key(change: dict[str, str | None]) -> None:
    assert key_of(**change) is None


@pytest.mark.parametrize(
    "change",
    [
        {"tenant": "u"},
        {"tenant": None},
        {"tenant": ""},
        {"authorization": "Bearer y"},
        {"authorization": None},
        {"query": "a=b"},
        {"path": "/v1/completions"},
        {"tenant": "tBearer x", "authorization": ""},
        {"tenant": "t8:Bearer x", "authorization": ""},
        {"body": {**CHAT, "model": "other"}},
        {"body": {**CHAT, "user": "somebody"}},
        {"body": {**CHAT, "messages": [{"role": "user", "content": "hi "}]}},
    ],
)
def test_nothing_is_shared_across_tenants_credentials_models_or_questions(change: dict[str, Any]) -> None:
    body = change.pop("body", CHAT)

    assert key_of(body, **change) not in (None, key_of())


def test_the_order_of_keys_and_white_space_are_no_difference() -> None:
    spaced = json.dumps(dict(reversed(CHAT.items())), indent=3).encode()

    assert key_of(spaced) == key_of()
    assert key_of(content_type="application/json; charset=utf-8") == key_of()


def test_a_credential_is_in_no_key_as_text() -> None:
    assert b"Bearer" not in (key_of() or b"")


def test_an_answer_is_given_again_for_a_minute_with_nothing_of_the_first_callers_headers() -> None:
    kept = cache()
    kept.put(b"k", CachedAnswer(200, (*JSON, (b"x-request-id", b"of the first"), (b"date", b"then")), b"{}"), 10.0)

    assert kept.get(b"k", 10.0 + TTL_S - 0.1) == CachedAnswer(200, JSON, b"{}")
    assert kept.get(b"k", 10.0 + TTL_S) is None
    assert kept.get(b"other", 10.0) is None
    assert (kept.hits, kept.misses, kept.evictions, len(kept), kept.size_bytes) == (1, 2, 0, 0, 0)


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        *[(status, JSON) for status in (201, 204, 206, 400, 429, 500, 503)],
        (200, ()),
        (200, ((b"content-type", b"text/event-stream"),)),
        (200, (*JSON, (b"content-type", b"text/html"))),
        *[
            (200, (*JSON, header))
            for header in (
                (b"set-cookie", b"a=b"),
                (b"Set-Cookie", b"a=b"),
                (b"cache-control", b"no-store"),
                (b"cache-control", b"max-age=60, Private"),
                (b"cache-control", b"no-cache"),
                (b"vary", b"accept-language"),
                (b"content-encoding", b"gzip"),
            )
        ],
    ],
)
def test_an_answer_that_is_not_for_everyone_is_not_kept(status: int, headers: tuple[tuple[bytes, bytes], ...]) -> None:
    kept = cache()
    kept.put(b"k", CachedAnswer(status, headers, b"{}"), 0.0)

    assert kept.get(b"k", 0.0) is None


def test_the_least_recently_used_goes_first() -> None:
    size = ENTRY_OVERHEAD_BYTES + 2 + len(b"content-typeapplication/json")
    kept = cache(max_bytes=2 * size)
    for key in (b"a", b"b"):
        kept.put(key, CachedAnswer(200, JSON, b"{}"), 0.0)
    kept.get(b"a", 0.0)
    kept.put(b"c", CachedAnswer(200, JSON, b"{}"), 0.0)

    assert [kept.get(key, 0.0) is not None for key in (b"a", b"b", b"c")] == [True, False, True]
    assert kept.evictions == 1


def test_an_answer_that_is_too_large_pushes_nobody_out() -> None:
    kept = cache(max_entry_bytes=1_000)
    kept.put(b"a", CachedAnswer(200, JSON, b"{}"), 0.0)
    kept.put(b"b", CachedAnswer(200, JSON, b"x" * 1_000), 0.0)

    assert (len(kept), kept.evictions) == (1, 0)
    assert cache(max_entry_bytes=10).key("t", "a", "POST", "/v1/score", "", "application/json", b'{"a": "bcdef"}') is None


def test_clearing_forgets_everything() -> None:
    kept = cache()
    kept.put(b"k", CachedAnswer(200, JSON, b"{}"), 0.0)
    kept.clear()

    assert kept.get(b"k", 0.0) is None
    assert kept.size_bytes == 0
