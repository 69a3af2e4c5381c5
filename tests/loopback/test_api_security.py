"""Who may change something: tokens, foreign pages, bodies, headers; over the application and over a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.api.console import FILES
from tailkeeper_watchdog.api.security import MAX_BODY_BYTES, Gate
from tests.scenario.world import World
from tests.served import served
from tests.unit.watchdog_http import TOKEN, client_of, gated, world_at

CHANGES: list[tuple[str, str, object]] = [
    ("POST", "/api/v1/pause", None),
    ("POST", "/api/v1/resume", None),
    ("POST", "/api/v1/release", None),
    ("POST", "/api/v1/release", {"backend": "a"}),
    ("POST", "/api/v1/backends/a/hold", {"reason": "r", "for_s": 5}),
    ("DELETE", "/api/v1/backends/a/hold", None),
    ("POST", "/api/v1/alerts", {"alerts": []}),
    ("PUT", "/api/v1/hscorer/config", {}),
    ("PATCH", "/api/v1/fleet", None),
    ("POST", "/no/such/path", None),
]
READS = [
    *FILES,
    "/api/v1/fleet",
    "/api/v1/findings",
    "/api/v1/decisions",
    "/api/v1/policies",
    "/api/v1/hscorer/config",
    "/api/v1/alerts",
    "/metrics",
    "/livez",
    "/readyz",
]
WRONG = [
    {},
    {"authorization": ""},
    {"authorization": "Bearer"},
    {"authorization": "Bearer "},
    {"authorization": "Bearer wrong"},
    {"authorization": f"Bearer {TOKEN}x"},
    {"authorization": f"Bearer {TOKEN[:-1]}"},
    {"authorization": f"Basic {TOKEN}"},
    {"authorization": TOKEN},
    {"authorization": f"Bearer {TOKEN.upper()}"},
    {"x-api-key": TOKEN},
    {"cookie": f"authorization=Bearer {TOKEN}"},
]
RIGHT = {"authorization": f"Bearer {TOKEN}"}
SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


async def _drained(path: Path) -> World:
    """a is drained under a lease."""
    world = world_at(path)
    await world.run(2)
    world.sick["a"].state = State.HUNG
    await world.run(1)
    return world


def _untouched(world: World) -> bool:
    return world.switches.paused() is None and world.switches.holds() == {} and world.admission("a") == "drain"


def _is_guarded(answer: httpx.Response) -> None:
    for name, value in SECURITY_HEADERS.items():
        assert answer.headers.get_list(name) == [value]
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert len(answer.headers.get_list("cache-control")) == 1
    assert not [name for name in answer.headers if name.startswith("access-control-")], "no other site may read this"
    assert "server" not in answer.headers


# Tokens


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
async def test_every_changing_call_needs_the_token(tmp_path: Path, method: str, path: str, body: object) -> None:
    world = await _drained(tmp_path)
    async with client_of(gated(world, TOKEN)) as client:
        for headers in WRONG:
            answer = await client.request(method, path, json=body, headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), headers
            assert "token_file" in answer.json()["detail"]
            assert TOKEN not in answer.text
            _is_guarded(answer)
        assert _untouched(world)
        answer = await client.request(method, path, json=body, headers=RIGHT)
    assert answer.status_code not in (401, 403)
    _is_guarded(answer)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_the_right_token_is_taken_whatever_the_case_of_its_scheme(tmp_path: Path, scheme: str) -> None:
    world = await _drained(tmp_path)
    async with client_of(gated(world, f"{TOKEN}\n")) as client:
        answer = await client.post("/api/v1/pause", headers={"authorization": f"{scheme}  {TOKEN} "})
    assert (answer.status_code, answer.json()["paused"]) == (200, True)


@pytest.mark.parametrize("path", READS)
async def test_reads_are_open_and_carry_every_security_header(tmp_path: Path, path: str) -> None:
    world = await _drained(tmp_path)
    async with client_of(gated(world, TOKEN)) as client:
        answer = await client.get(path)
        head = await client.head(path)
    assert answer.status_code == head.status_code == 200
    assert answer.content
    assert head.content == b""
    assert head.headers["content-type"] == answer.headers["content-type"]
    _is_guarded(answer)
    _is_guarded(head)


async def test_a_loopback_watchdog_without_a_token_file_takes_changes(tmp_path: Path) -> None:
    world = await _drained(tmp_path)
    async with client_of(gated(world)) as client:
        assert (await client.post("/api/v1/pause")).status_code == 200


@pytest.mark.parametrize("token", ["", " ", "\n"])
def test_an_empty_token_is_refused_at_start_because_it_would_let_everyone_in(tmp_path: Path, token: str) -> None:
    with pytest.raises(ValueError, match="token_file: the file is empty"):
        gated(world_at(tmp_path), token)


# Foreign pages


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "https://127.0.0.1:8088.evil.example",
        "http://127.0.0.1:8089",
        "http://127.0.0.1",
        "http://localhost:8088",
        "null",
        "http://[",
        "file://",
    ],
)
@pytest.mark.parametrize("token", [None, TOKEN])
async def test_a_page_of_another_site_changes_nothing_not_even_with_the_token(
    tmp_path: Path, origin: str, token: str | None
) -> None:
    world = await _drained(tmp_path)
    async with client_of(gated(world, token)) as client:
        for method, path, body in CHANGES:
            answer = await client.request(method, path, json=body, headers={"origin": origin, **RIGHT})
            assert answer.status_code == 403, (origin, path)
            _is_guarded(answer)
    assert _untouched(world)


@pytest.mark.parametrize("host", ["127.0.0.1:8088", "localhost:8088", "LocalHost:8088", "[::1]:8088", "127.0.0.1"])
async def test_our_own_page_may_change_something(tmp_path: Path, host: str) -> None:
    world = await _drained(tmp_path)
    async with client_of(gated(world)) as client:
        headers = {"host": host, "origin": f"http://{host.lower()}"}
        assert (await client.post("/api/v1/pause", headers=headers)).status_code == 200


@pytest.mark.parametrize("host", ["evil.example:8088", "localhost.evil.example", "10.0.0.7:8088", "127.0.0.1.evil.example:8088"])
async def test_a_foreign_name_for_this_machine_changes_nothing_without_a_token(tmp_path: Path, host: str) -> None:
    """DNS rebinding: the page's own host name points here, so that its origin and the host agree."""
    world = await _drained(tmp_path)
    headers = {"host": host, "origin": f"http://{host}"}
    async with client_of(gated(world)) as client:
        assert (await client.post("/api/v1/pause", headers=headers)).status_code == 403
    async with client_of(gated(world, TOKEN)) as client:
        assert (await client.post("/api/v1/pause", headers={**headers, **RIGHT})).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site", "nonsense", ""])
async def test_a_call_that_the_browser_calls_foreign_changes_nothing_even_without_an_origin(tmp_path: Path, site: str) -> None:
    world = await _drained(tmp_path)
    async with client_of(gated(world, TOKEN)) as client:
        for method, path, body in CHANGES:
            answer = await client.request(method, path, json=body, headers={"sec-fetch-site": site, **RIGHT})
            assert answer.status_code == 403, path
        assert _untouched(world)
        for own in ("same-origin", "none"):
            assert (await client.post("/api/v1/resume", headers={"sec-fetch-site": own, **RIGHT})).status_code == 200


@pytest.mark.parametrize("host", ["evil.example:8088", "10.0.0.7", "localhost.evil.example", "127.0.0.1.evil.example:80"])
async def test_without_a_token_only_this_machine_s_own_names_may_be_called_whether_by_a_page_or_not(
    tmp_path: Path, host: str
) -> None:
    world = await _drained(tmp_path)
    async with client_of(gated(world)) as client:
        for method, path, body in CHANGES:
            answer = await client.request(method, path, json=body, headers={"host": host})
            assert answer.status_code == 403, path
        assert (await client.get("/api/v1/fleet", headers={"host": host})).status_code == 200, "reads are open"
    assert _untouched(world)


async def test_a_preflight_of_a_foreign_page_gets_no_leave(tmp_path: Path) -> None:
    world = await _drained(tmp_path)
    asks = {
        "origin": "http://evil.example",
        "access-control-request-method": "PUT",
        "access-control-request-headers": "content-type",
    }
    async with client_of(gated(world)) as client:
        answer = await client.options("/api/v1/hscorer/config", headers=asks)
    assert answer.status_code == 405
    _is_guarded(answer)


async def test_a_form_of_a_foreign_page_cannot_look_like_a_call(tmp_path: Path) -> None:
    """Browsers send these content types to other sites without asking; JSON needs its own."""
    world = await _drained(tmp_path)
    async with client_of(gated(world)) as client:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
            answer = await client.post(
                "/api/v1/backends/a/hold", content=b'{"reason": "r", "for_s": 5}', headers={"content-type": kind}
            )
            assert answer.status_code == 422, kind
    assert world.switches.holds() == {}


# Bodies


@pytest.mark.parametrize("length", [str(MAX_BODY_BYTES + 1), "1" * 5_000, "-1", "1e3", "0x10", "", "1_0", "٣"])
async def test_a_body_that_is_too_large_or_has_no_plain_length_is_refused_unread(tmp_path: Path, length: str) -> None:
    world = await _drained(tmp_path)

    async def never() -> dict[str, Any]:
        raise AssertionError("the body must not be read")

    sent = await _asgi(gated(world), {b"content-length": length.encode()}, never)
    assert sent[0]["status"] == 413
    assert str(MAX_BODY_BYTES) in json.loads(sent[1]["body"])["detail"]


async def test_a_chunked_body_is_refused_unread(tmp_path: Path) -> None:
    world = await _drained(tmp_path)

    async def never() -> dict[str, Any]:
        raise AssertionError("the body must not be read")

    sent = await _asgi(gated(world), {b"transfer-encoding": b"chunked"}, never)
    assert sent[0]["status"] == 411
    assert "Content-Length" in json.loads(sent[1]["body"])["detail"]


async def _asgi(app: Gate, headers: dict[bytes, bytes], receive: Any) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/api/v1/alerts",
        "raw_path": b"/api/v1/alerts",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), *headers.items()],
    }
    await app(scope, receive, send)
    return sent


async def test_a_body_of_the_largest_allowed_size_is_taken(tmp_path: Path) -> None:
    world = await _drained(tmp_path)
    body = json.dumps({"alerts": []}).encode()
    async with client_of(gated(world)) as client:
        padded = body + b" " * (MAX_BODY_BYTES - len(body))
        answer = await client.post("/api/v1/alerts", content=padded, headers={"content-type": "application/json"})
    assert answer.status_code == 200


# Answers


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/no/such/path"),
        ("GET", "/../../etc/passwd"),
        ("GET", "/console.js/"),
        ("DELETE", "/api/v1/fleet"),
        ("OPTIONS", "/"),
    ],
)
async def test_errors_carry_every_security_header_and_no_traceback(tmp_path: Path, method: str, path: str) -> None:
    world = await _drained(tmp_path)
    async with client_of(gated(world)) as client:
        answer = await client.request(method, path)
    assert answer.status_code in (404, 405)
    assert "Traceback" not in answer.text
    _is_guarded(answer)


async def test_an_answer_that_fails_inside_tells_nothing_of_the_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = await _drained(tmp_path)

    def broken(*_: object) -> None:
        raise RuntimeError("secret of the inside")

    monkeypatch.setattr(world.ledger, "leases", broken)
    async with client_of(gated(world)) as client:
        answer = await client.get("/api/v1/fleet")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    _is_guarded(answer)


async def test_json_is_not_kept_by_caches(tmp_path: Path) -> None:
    world = await _drained(tmp_path)
    async with client_of(gated(world)) as client:
        for path in ("/api/v1/fleet", "/api/v1/nosuch", "/metrics", "/openapi.json"):
            assert (await client.get(path)).headers["cache-control"] == "no-store"


async def test_over_a_real_server_a_chunked_upload_is_refused_and_no_server_names_itself(tmp_path: Path) -> None:
    world = await _drained(tmp_path)

    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"alerts": []}'

    async with served(gated(world, TOKEN)) as (port, _), httpx.AsyncClient(trust_env=False) as client:
        base = f"http://127.0.0.1:{port}"
        chunked = await client.post(f"{base}/api/v1/alerts", content=chunks(), headers=RIGHT)
        fleet = await client.get(f"{base}/api/v1/fleet")
        head = await client.head(f"{base}/livez")
        paused = await client.post(f"{base}/api/v1/pause", headers={**RIGHT, "origin": base})
        unheld = await client.delete(f"{base}/api/v1/backends/a/hold")
    assert [r.status_code for r in (chunked, fleet, head, paused, unheld)] == [411, 200, 200, 200, 401]
    for answer in (chunked, fleet, head, paused, unheld):
        _is_guarded(answer)


async def test_over_a_real_server_two_host_names_or_a_lying_length_are_no_way_around(tmp_path: Path) -> None:
    world = await _drained(tmp_path)
    raw = [
        b"POST /api/v1/pause HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\n\r\n",
        b"POST /api/v1/pause HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nContent-Length: 0\r\n\r\n",
        b"POST /api/v1/pause HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://evil.example\r\nContent-Length: 0\r\n\r\n",
        b"POST /api/v1/pause HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    ]
    async with served(gated(world)) as (port, _):
        for request in raw:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            async with asyncio.timeout(10):
                status = (await reader.readline()).split()[1]
            writer.close()
            await writer.wait_closed()
            assert status in (b"400", b"403", b"411"), request
    assert world.switches.paused() is None
