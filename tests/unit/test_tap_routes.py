"""The taps over HTTP: what is told, what may be asked, and who may ask it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from tailkeeper_exporter.requests_ring import RequestRing
from tailkeeper_exporter.server import make_app
from tailkeeper_exporter.tap import routes
from tailkeeper_exporter.tap.admission import DRAINED
from tailkeeper_exporter.tap.knobs import CACHE_LOCAL, DRAIN, Degrade, Knobs
from tailkeeper_exporter.tap.routes import MAX_DOCUMENT_BYTES, tap_routes
from tailkeeper_exporter.tap.status import SILENT_S
from tests.taps_in_memory import TapsInMemory

NORMAL = Knobs().document()
DRAINING = {**NORMAL, "admission": "drain"}
TOKEN = "correct horse"


@asynccontextmanager
async def asking(
    taps: TapsInMemory, token: str | None = None, listen: str = "127.0.0.1:9400", host: str = "127.0.0.1:9400"
) -> AsyncIterator[httpx.AsyncClient]:
    """The whole exporter application, of which only the taps' routes are asked."""
    known: Any = SimpleNamespace(ring=RequestRing())
    app = make_app(known, tap_routes(taps, token, listen))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
        yield client


@pytest.fixture
def taps() -> TapsInMemory:
    return TapsInMemory("a", "team/b é?#")


async def test_all_taps_are_listed_with_what_is_in_force(taps: TapsInMemory) -> None:
    taps.ask("a")
    taps.silent_s = 2.0
    async with asking(taps) as client:
        answer = await client.get("/api/v1/taps")

    first, second = answer.json()
    age_s = first.pop("age_s")
    assert first == {"backend": "a", "document": NORMAL, "running": 1, "waiting": 0, "queued": 0}
    assert 2.0 <= age_s < 3.0
    assert second["backend"] == "team/b é?#"
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(("path", "backend"), [("a", "a"), ("team%2Fb%20%C3%A9%3F%23", "team/b é?#")])
async def test_a_put_turns_the_knobs_and_its_answer_is_what_is_in_force(taps: TapsInMemory, path: str, backend: str) -> None:
    document = {
        "weight": 1, "admission": "drain", "concurrency_limit": 8, "cache_mode": "local", "degrade_level": 1,
    }  # fmt: skip
    async with asking(taps) as client:
        before = await client.get(f"/api/v1/taps/{path}")
        put = await client.put(f"/api/v1/taps/{path}", json=document)
        after = await client.get(f"/api/v1/taps/{path}")

    assert before.json() == NORMAL
    assert (put.status_code, put.json(), after.json()) == (200, document, document)
    assert taps.history == [(backend, Knobs(DRAIN, 8, CACHE_LOCAL, Degrade.LOW))]
    assert taps.ask(backend) == DRAINED


async def test_a_put_is_the_whole_document_so_what_is_left_out_is_normal(taps: TapsInMemory) -> None:
    async with asking(taps) as client:
        await client.put("/api/v1/taps/a", json={"concurrency_limit": 3})
        assert (await client.put("/api/v1/taps/a", json={})).json() == NORMAL


NO_LIMITS: list[object] = [-1, 1.5, "8", True, None, [], 10**9, 10**400]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"weight": 0.5}, 422, "weight"),
        ({"weight": 10**400}, 422, "weight"),
        ({"admission": "maybe"}, 422, "admission"),
        ({"admission": ["drain"]}, 422, "admission"),
        *[({"concurrency_limit": v}, 422, "concurrency_limit") for v in NO_LIMITS],
        ({"cache_mode": "redis"}, 422, "cache_mode"),
        ({"degrade_level": 4}, 422, "degrade_level"),
        ({"batch_window_s": 1}, 422, "batch_window_s"),
        ([DRAINING], 422, "object"),
        (b"", 400, "strict JSON"),
        (b"{", 400, "strict JSON"),
        (b'{"admission": "serve", "admission": "drain"}', 400, "'admission' is there twice"),
        (b'{"concurrency_limit": NaN}', 400, "NaN"),
        (b'{"concurrency_limit": 1e999}', 422, "concurrency_limit"),
        (b"\xff", 400, "UTF-8"),
        (b"[" * MAX_DOCUMENT_BYTES, 400, "strict JSON"),
        (b'{"admission": ' + b"[" * 2_000 + b"]" * 2_000 + b"}", None, ""),
        (b" " * (MAX_DOCUMENT_BYTES + 1), 413, "4096"),
    ],
)
async def test_a_wrong_document_is_refused_with_its_field_and_what_is_allowed(
    taps: TapsInMemory, body: Any, status: int | None, words: str
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with asking(taps) as client:
        answer = await client.put("/api/v1/taps/a", content=content)

    assert answer.status_code in ((400, 422) if status is None else (status,))
    assert words in answer.json()["error"]
    if answer.status_code == 422:
        assert answer.json()["allowed"] == NORMAL
    assert taps.history == []


@pytest.mark.parametrize("method", ["GET", "PUT"])
@pytest.mark.parametrize("name", ["b", "", "A", "a/", "..%2Fa", "a%00", "x" * 3_000])
async def test_an_unknown_backend_is_404_and_the_known_ones_are_named(taps: TapsInMemory, method: str, name: str) -> None:
    async with asking(taps) as client:
        answer = await client.request(method, f"/api/v1/taps/{name}", json=DRAINING)

    assert answer.status_code == 404
    assert answer.json()["backends"] == ["a", "team/b é?#"]
    assert len(answer.content) < 1_000
    assert taps.history == []


@pytest.mark.parametrize(
    ("error", "status"),
    [(TimeoutError(), 504), (ConnectionResetError(104, "Connection reset by peer"), 503), (KeyError("a"), 404)],
)
async def test_a_tap_that_does_not_confirm_is_no_success(taps: TapsInMemory, error: Exception, status: int) -> None:
    taps.fails = error
    async with asking(taps) as client:
        answer = await client.put("/api/v1/taps/a", json=DRAINING)

    assert answer.status_code == status
    assert answer.json()["error"]


@pytest.mark.parametrize(("lag_s", "status"), [(0.03, 200), (9.0, 504)])
async def test_a_put_waits_for_a_report_that_is_later_than_the_confirmation(
    taps: TapsInMemory, monkeypatch: pytest.MonkeyPatch, lag_s: float, status: int
) -> None:
    monkeypatch.setattr(routes, "APPLY_DEADLINE_S", 0.2)
    taps.lag_s = lag_s
    async with asking(taps) as client:
        answer = await client.put("/api/v1/taps/a", json=DRAINING)

    assert answer.status_code == status
    assert status != 200 or answer.json()["admission"] == DRAIN


async def test_of_two_who_turn_one_tap_both_hear_what_is_in_force(taps: TapsInMemory) -> None:
    async def overruled(backend: str, knobs: Knobs, deadline_s: float) -> None:
        taps.knobs[backend] = Knobs(concurrency_limit=7)
        await asyncio.sleep(0.001)

    taps.apply = overruled  # type: ignore[method-assign]
    async with asking(taps) as client:
        answer = await client.put("/api/v1/taps/a", json=DRAINING)

    assert (answer.status_code, answer.json()["concurrency_limit"]) == (200, 7)


async def test_what_a_silent_tap_once_said_is_not_said_to_be_in_force(taps: TapsInMemory) -> None:
    taps.silent_s = SILENT_S + 1
    async with asking(taps) as client:
        answer = await client.get("/api/v1/taps/a")

    assert answer.status_code == 503
    assert "not reported for" in answer.json()["error"]


@pytest.mark.parametrize("method", ["POST", "DELETE", "PATCH"])
async def test_nothing_else_can_be_done_to_a_tap(taps: TapsInMemory, method: str) -> None:
    async with asking(taps) as client:
        assert (await client.request(method, "/api/v1/taps/a", json=DRAINING)).status_code == 405


# Who may


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": f"Basic {TOKEN}"}, 401),
        ({"authorization": TOKEN}, 401),
        ({"authorization": f"Bearer {TOKEN}"}, 200),
        ({"authorization": f"bearer  {TOKEN} "}, 200),
        ({"authorization": f"Bearer {TOKEN}", "origin": "http://evil.example"}, 403),
        ({"authorization": f"Bearer {TOKEN}", "origin": "null"}, 403),
        ({"authorization": f"Bearer {TOKEN}", "origin": "http://127.0.0.1:9400"}, 200),
    ],
)
@pytest.mark.parametrize("listen", ["127.0.0.1:9400", "0.0.0.0:9400"])
async def test_with_a_token_only_its_bearer_may_turn_a_tap(
    taps: TapsInMemory, listen: str, headers: dict[str, str], status: int
) -> None:
    async with asking(taps, TOKEN, listen) as client:
        answer = await client.put("/api/v1/taps/a", json=DRAINING, headers=headers)
        read = await client.get("/api/v1/taps/a")

    assert answer.status_code == status
    assert bool(taps.history) == (status == 200)
    assert (answer.headers.get("www-authenticate") == "Bearer") == (status == 401)
    assert TOKEN not in answer.text
    assert read.status_code == 200


@pytest.mark.parametrize("listen", ["0.0.0.0:9400", "[::]:9400", "10.0.0.1:9400", "localhost.example.com:9400"])
async def test_beyond_loopback_without_a_token_nothing_can_be_changed_and_everything_read(
    taps: TapsInMemory, listen: str
) -> None:
    async with asking(taps, None, listen) as client:
        answer = await client.put("/api/v1/taps/a", json=DRAINING)
        read = await client.get("/api/v1/taps")

    assert answer.status_code == 403
    assert "exporter.token_file" in answer.json()["error"]
    assert taps.history == []
    assert read.status_code == 200


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("127.0.0.1:9400", None, 200),
        ("localhost:9400", "http://localhost:9400", 200),
        ("[::1]:9400", "http://[::1]:9400", 200),
        ("127.0.0.1:9400", "http://evil.example", 403),
        ("127.0.0.1:9400", "http://127.0.0.1:1234", 403),
        ("evil.example:9400", "http://evil.example:9400", 403),
        ("localhost.evil.example:9400", "http://localhost.evil.example:9400", 403),
    ],
)
async def test_a_browser_may_turn_a_tap_only_from_a_page_of_this_machine(
    taps: TapsInMemory, host: str, origin: str | None, status: int
) -> None:
    headers = {} if origin is None else {"origin": origin}
    async with asking(taps, host=host) as client:
        answer = await client.put("/api/v1/taps/a", json=DRAINING, headers=headers)

    assert answer.status_code == status
    assert bool(taps.history) == (status == 200)


@examples(max_examples=100, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=300),
        st.dictionaries(
            st.sampled_from([*NORMAL, "x"]),
            st.one_of(
                st.integers(-2, 9), st.floats(), st.sampled_from(["serve", "drain", "off", "local"]), st.none(), st.booleans()
            ),
        ).map(lambda document: json.dumps(document).encode()),
    )
)
def test_any_body_is_taken_whole_or_refused_with_words(body: bytes) -> None:
    async def put() -> tuple[httpx.Response, TapsInMemory]:
        taps = TapsInMemory("a")
        async with asking(taps) as client:
            return await client.put("/api/v1/taps/a", content=body), taps

    answer, taps = asyncio.run(put())

    if answer.status_code == 200:
        assert answer.json() == taps.history[-1][1].document()
    else:
        assert answer.status_code in (400, 422)
        assert answer.json()["error"]
        assert taps.history == []
