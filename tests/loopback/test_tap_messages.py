"""HTTP as it comes: framing that could smuggle, heads that are too large, clients of all ages, bodies of all sizes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time

import pytest

from tailkeeper_exporter.tap import proxy
from tests.loopback.raw_engine import STREAM, Asked, raw_engine, read_answer, says, token, until, whole
from tests.loopback.tap_world import CHAT, post, tapping, tapping_at

OK = says(whole(b"{}"))
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
REFUSED = {
    "both framings": (
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        400,
    ),
    "two lengths": (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef", 400),
    "length with a sign": (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: +5\r\n\r\nabcde", 400),
    "chunked not last": (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 400),
    "another coding": (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
    "space before the colon": (b"GET / HTTP/1.1\r\nhost : x\r\n\r\n", 400),
    "folded header": (b"GET / HTTP/1.1\r\nhost: x\r\nx-tenant: a\r\n\tcontent-length: 4\r\n\r\n", (200, 400)),
    "bare line feeds": (b"GET / HTTP/1.1\nhost: x\n\n", 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n", 400),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "websocket": (b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n", 501),
    "tunnel": (b"CONNECT a:443 HTTP/1.1\r\nhost: a:443\r\n\r\n", 501),
    "large head": (b"GET / HTTP/1.1\r\nhost: x\r\nx-request-id: " + b"a" * 1_000_000 + b"\r\n\r\n", 431),
    "large head in one piece": (b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 70_000 + b"\r\n\r\n", 431),
    "endless head": (b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x: y\r\n" * 20_000, 431),
    "bad chunk": (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
    "endless chunk extension": (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1;" + b"a" * 400_000, 431),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_could_be_read_in_two_ways_is_refused(name: str) -> None:
    data, status = REFUSED[name]
    async with tapping(OK) as world:
        told = await world.say(data)
        assert told.status in (status if isinstance(status, tuple) else (status,))
        assert told.headers["x-request-id"]
        if told.status != 200:
            assert told.error["message"]
            assert told.headers["connection"] == "close"
        assert not [asked for asked in world.engine.asked if "smuggled" in asked.target]
        again = await world.say(post(CHAT))
    assert again.status == 200


async def test_a_folded_header_reaches_the_backend_as_one() -> None:
    async with tapping(OK) as world:
        await world.say(REFUSED["folded header"][0])
        for asked in world.engine.asked:
            assert asked.header("content-length") == []


async def test_headers_of_one_connection_stay_there_and_the_others_pass() -> None:
    headers = (
        "connection: keep-alive, x-secret",
        "x-secret: 1",
        "te: trailers",
        "keep-alive: timeout=9",
        "accept-encoding: gzip",
    )
    async with tapping(says(whole(b"{}", 200, "connection: x-own", "x-own: 1", "server: engine", "set-cookie: a=b"))) as world:
        told = await world.say(post(CHAT, *headers, "authorization: Bearer k", path="/v1/chat/completions?key=secret"))
        asked = world.engine.asked[0]
        seen = await world.exchange()
    names = {name for name, _ in asked.headers}
    assert names.isdisjoint({"x-secret", "te", "keep-alive", "accept-encoding", "connection"})
    assert (asked.target, asked.header("authorization")) == ("/v1/chat/completions?key=secret", ["Bearer k"])
    assert asked.header("host") == [f"engine:{world.engine.port}"]
    assert (told.headers["server"], told.headers["set-cookie"], "x-own" in told.headers) == ("engine", "a=b", False)
    assert "secret" not in repr(seen)


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
IDS = {
    "ordinary": (["x-request-id: chatcmpl-1a/b:2"], "chatcmpl-1a/b:2"),
    "two": (["x-request-id: a", "x-request-id: b"], "a"),
    "hostile": (['x-request-id: a"}\\<script>\xff b' + "c" * 300], None),
    "empty": (["x-request-id:"], None),
    "none": ([], None),
}


@pytest.mark.parametrize("name", IDS)
async def test_a_request_id_is_kept_or_made_and_told_to_both_sides(name: str) -> None:
    headers, wanted = IDS[name]
    async with tapping(says(whole(b"{}", 200, "x-request-id: engines-own"))) as world:
        told = await world.say(_raw(post(CHAT, *headers)))
        seen = await world.exchange()
        asked = world.engine.asked[0]
    given = told.headers["x-request-id"]
    assert asked.header("x-request-id") == [given]
    assert seen.request_id == given
    assert 0 < len(given) <= 128
    assert given.isascii()
    assert not set('"<>\\ ') & set(given)
    assert wanted in (None, given)


TRACES = {
    "valid": ([f"traceparent: {PARENT}", "tracestate: a=1", "tracestate: b=2"], True),
    "not sampled": ([f"traceparent: {PARENT[:-1]}0"], True),
    "later version": (["traceparent: cc" + PARENT[2:] + "-what-the-future-holds"], True),
    "version ff": (["traceparent: ff" + PARENT[2:]], False),
    "malformed": (["traceparent: 00-xyz-1-1"], False),
    "all zero": (["traceparent: 00-" + "0" * 32 + "-b7ad6b7169203331-01"], False),
    "twice": ([f"traceparent: {PARENT}"] * 2, False),
    "none": ([], False),
}


@pytest.mark.parametrize("name", TRACES)
async def test_a_trace_goes_on_where_it_is_valid_and_begins_where_not(name: str) -> None:
    headers, goes_on = TRACES[name]
    async with tapping(OK) as world:
        told = await world.say(post(CHAT, *headers))
        seen = await world.exchange()
        asked = world.engine.asked[0]
    version, trace_id, span_id, flags = asked.header("traceparent")[0].split("-")
    assert told.status == 200
    assert (version, len(trace_id), span_id) == ("00", 32, seen.span_id)
    assert seen.trace_id == trace_id
    assert (trace_id == PARENT[3:35]) is goes_on
    assert seen.parent_span_id == (PARENT[36:52] if goes_on else None)
    assert flags == ("00" if name == "not sampled" else "01")
    assert asked.header("tracestate") == (["a=1,b=2"] if name == "valid" else [])


async def test_one_connection_serves_requests_one_after_the_other() -> None:
    """Pipelined, of all kinds, and each answer in its place."""

    async def answer(asked: Asked) -> None:
        await asyncio.sleep(0.02)
        if asked.method == "HEAD":
            asked.send(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n")
        elif asked.target == "/none":
            asked.send(b"HTTP/1.1 204 No Content\r\n\r\n")
        elif asked.target == "/early":
            asked.send(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + whole(b"early"))
        else:
            asked.send(whole(asked.target.encode() + asked.body))

    chunked = b"POST /3 HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nt: v\r\n\r\n"
    requests = [
        (b"GET /1 HTTP/1.1\r\nhost: x\r\n\r\n", b"/1"),
        (b"HEAD /2 HTTP/1.1\r\nhost: x\r\n\r\n", b""),
        (chunked, b"/3abcde"),
        (b"GET /none HTTP/1.1\r\nhost: x\r\n\r\n", b""),
        (b"GET http://other/4?q HTTP/1.1\r\nhost: other\r\n\r\n", b"/4?q"),
        (b"GET /early HTTP/1.1\r\nhost: x\r\n\r\n", b"early"),
        (b"GET /5 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", b"/5"),
    ]
    async with tapping(answer) as world:
        reader, writer = await world.connect()
        writer.write(b"".join(data for data, _ in requests))
        for data, body in requests:
            told = await read_answer(reader, data.split(b" ")[0].decode())
            assert told.body == body
        assert await reader.read() == b""
        writer.close()
        assert [seen.outcome for seen in world.seen] == ["ok"] * len(requests)


async def test_the_answer_to_a_head_request_keeps_its_length() -> None:
    async with tapping(says(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n")) as world:
        told = await world.say(b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n", "HEAD")
    assert told.headers["content-length"] == "99"


async def test_an_old_client_gets_no_chunks_and_an_answer_without_length_ends_with_its_connection() -> None:
    async def answer(asked: Asked) -> None:
        asked.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n", token("a"), b"data: [DONE]\n\n")
        await asked.writer.drain()
        asked.writer.close()

    async with tapping(answer) as world:
        old = await world.say(b"GET / HTTP/1.0\r\n\r\n")
        new = await world.say(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert [seen.outcome for seen in world.seen] == ["ok", "ok"]
    assert "transfer-encoding" not in old.headers
    assert "transfer-encoding" in new.headers
    assert old.body == new.body == token("a") + b"data: [DONE]\n\n"


async def test_a_client_that_waits_for_permission_gets_it_and_only_one_answer() -> None:
    async with tapping(OK) as world:
        reader, writer = await world.connect()
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n")
        assert (await read_answer(reader)).status == 100
        writer.write(b"abc")
        assert (await read_answer(reader)).status == 200
        writer.close()
        assert world.engine.asked[0].body == b"abc"
        assert world.engine.asked[0].header("expect") == []


async def test_an_early_answer_reaches_a_client_that_is_still_sending() -> None:
    """A 413 while the body is on its way; neither connection is used again."""

    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(whole(b"{}", 413))
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                pass
        writer.close()

    server = await asyncio.start_server(early, "127.0.0.1", 0)
    async with raw_engine(OK) as engine, tapping_at(engine, server.sockets[0].getsockname()[1]) as world:
        reader, writer = await world.connect()
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 40000000\r\n\r\n" + b"x" * 1_000_000)
        told = await read_answer(reader)
        assert (told.status, told.headers["connection"]) == (413, "close")
        assert await reader.read() == b""
        writer.close()
        seen = await world.exchange()
        assert world.tap.pool.take() is None
    server.close()
    assert (seen.outcome, seen.status) == ("rejected", 413)


async def test_a_body_of_ten_megabytes_passes_whole_and_unread() -> None:
    body = bytes(range(256)) * 40_000

    async with tapping(says(whole(b"{}"))) as world:
        told = await world.say(post(body))
        chunked = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (body[:7_000_001], body[7_000_001:])) + b"0\r\n\r\n"
        again = await world.say(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + chunked)
        seen = await world.exchange()
        assert (told.status, again.status) == (200, 200)
        assert [asked.body == body for asked in world.engine.asked] == [True, True]
    assert (seen.request_bytes, seen.model, seen.streaming) == (len(body), None, None)


async def test_a_kept_connection_that_the_backend_closed_is_replaced_without_a_word() -> None:
    """And only then: a request that a backend died of is not sent again on a new one."""

    async def answer(asked: Asked) -> None:
        again = len([other for other in world.engine.asked if other.connection == asked.connection]) > 1
        if again or asked.target == "/poison":
            asked.reset()
        else:
            asked.send(whole(asked.body))

    async with tapping(answer) as world:
        for number in range(3):
            told = await world.say(post({"n": number}))
            assert (told.status, told.body) == (200, b'{"n": %d}' % number)
        assert len(world.engine.asked) == 5
        poison = await world.say(post(CHAT, path="/poison"))
        assert (poison.status, poison.error["code"]) == (502, "backend_closed")
        assert len([asked for asked in world.engine.asked if asked.target == "/poison"]) == 2
        assert (await world.exchange()).outcome == "error"


@pytest.mark.parametrize(
    "answer",
    [
        whole(b"{}") + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil",
        whole(b"{}") + b"more than was said",
    ],
    ids=["a second answer", "surplus"],
)
async def test_what_a_backend_says_too_much_reaches_nobody(answer: bytes) -> None:
    async with tapping(says(answer)) as world:
        for number in range(3):
            told = await world.say(post({"n": number}))
            assert (told.status, told.body) == (200, b"{}")
        assert world.engine.connections == 3


BAD_ANSWERS = {
    "no HTTP": b"SSH-2.0-OpenSSH\r\n\r\n",
    "both framings": b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "another coding": b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "large head": b"HTTP/1.1 200 OK\r\nx: " + b"a" * 200_000,
    "switch": b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
async def test_an_answer_that_is_none_becomes_an_error_of_the_usual_shape(name: str) -> None:
    async with tapping(says(BAD_ANSWERS[name])) as world:
        told = await world.say(post(CHAT, "x-request-id: mine"))
        seen = await world.exchange()
    assert (told.status, told.error["code"], told.headers["x-request-id"]) == (502, "bad_answer", "mine")
    assert (seen.outcome, seen.error, seen.status) == ("error", "bad_answer", 502)


async def test_a_backend_that_is_not_there_is_said_at_once() -> None:
    async with raw_engine(OK) as engine, tapping_at(engine, 1) as world:
        told = await world.say(post(CHAT))
        seen = await world.exchange()
    assert (told.status, told.error["type"], told.error["code"]) == (502, "server_error", "backend_unreachable")
    assert (seen.outcome, seen.sent_s) == ("error", None)


async def test_a_compressed_answer_passes_unchanged_and_unread() -> None:
    async with tapping(says(whole(b"\x1f\x8b\x08junk", 200, "content-encoding: gzip"))) as world:
        told = await world.say(post(CHAT))
        seen = await world.exchange()
    assert (told.body, told.headers["content-encoding"]) == (b"\x1f\x8b\x08junk", "gzip")
    assert (seen.outcome, seen.prompt_tokens) == ("ok", None)


async def test_a_path_of_the_backend_stands_before_the_client_s() -> None:
    async with tapping(OK, path=b"/openai") as world:
        await world.say(post(CHAT))
        assert world.engine.asked[0].target == "/openai/v1/chat/completions"


async def test_an_answer_that_nobody_reads_is_not_taken_from_the_backend() -> None:
    """Sixty-four megabytes are offered; what the tap takes is what fits into buffers."""
    offered = 0

    async def answer(asked: Asked) -> None:
        nonlocal offered
        asked.send(STREAM)
        for _ in range(64):
            asked.chunk(b": " + b"x" * 1_000_000 + b"\n\n")
            await asked.writer.drain()
            offered += 1
        asked.end()

    async with asyncio.timeout(20), tapping(answer) as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port, limit=4096)
        writer.write(post(CHAT))
        before = -1
        while before != offered:
            before = offered
            await asyncio.sleep(0.2)
        assert offered < 30
        body = 0
        while piece := await reader.read(1 << 20):
            body += len(piece)
            if piece.endswith(b"\r\n0\r\n\r\n"):
                break
        assert body > 64_000_000
        writer.close()


async def test_clients_that_are_too_slow_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "HEAD_S", 0.2)
    monkeypatch.setattr(proxy, "BODY_PAUSE_S", 0.2)
    monkeypatch.setattr(proxy, "KEEP_ALIVE_S", 0.2)
    async with tapping(OK) as world:
        started = time.monotonic()
        for data, status in (
            (b"", None),
            (b"GET / HTT", None),
            (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nabc", b"408"),
        ):
            reader, writer = await world.connect()
            writer.write(data)
            answer = await reader.read()
            assert (answer[9:12] or None) == status
            writer.close()
        assert time.monotonic() - started < 4
        await until(lambda: [seen.error for seen in world.seen] == ["body_timeout"])


async def test_too_many_connections_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "MAX_CONNECTIONS", 2)
    async with tapping(OK) as world:
        held = [await world.connect() for _ in range(2)]
        told = await world.say(b"")
        for _, writer in held:
            writer.close()
    assert (told.status, told.error["code"]) == (503, "too_many_connections")


def _raw(data: bytes) -> bytes:
    """A header that was written as text, in the one byte for each character that HTTP has."""
    return data.replace("\xff".encode(), b"\xff")


async def test_what_comes_in_single_bytes_is_the_same() -> None:
    async def answer(asked: Asked) -> None:
        for byte in STREAM + b"5\r\nhello\r\n0\r\n\r\n":
            asked.send(bytes([byte]))
            await asked.writer.drain()
            await asyncio.sleep(0)

    async with tapping(answer) as world:
        reader, writer = await world.connect()
        for byte in post(CHAT, "x-request-id: slow"):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        told = await read_answer(reader)
        writer.close()
        assert (told.body, told.headers["x-request-id"]) == (b"hello", "slow")
        assert world.engine.asked[0].body == post(CHAT).partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("chunked", [False, True])
async def test_an_offer_of_http2_is_passed_over_and_the_request_served(chunked: bool) -> None:
    """As Java's client makes it; the next request on the connection is read as usual."""
    offer = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"
    framed = b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" if chunked else b"content-length: 3\r\n\r\nabc"
    for cut in (None, 200, len(offer) + 70):
        async with tapping(OK) as world:
            reader, writer = await world.connect()
            data = b"POST /x HTTP/1.1\r\nhost: x\r\n" + offer + framed + b"GET /next HTTP/1.1\r\nhost: x\r\n\r\n"
            writer.write(data[:cut])
            await asyncio.sleep(0.02)
            writer.write(b"" if cut is None else data[cut:])
            assert [(await read_answer(reader)).status for _ in range(2)] == [200, 200]
            writer.close()
            first, second = world.engine.asked
            assert (first.method, first.target, first.body, second.target) == ("POST", "/x", b"abc", "/next")
            assert first.header("upgrade") == first.header("http2-settings") == []


async def test_a_client_that_leaves_while_it_is_held_back_is_noticed() -> None:
    """The backend takes none of the body, so nothing more is read from the client either."""

    over = asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await over.wait()
        writer.transport.abort()

    server = await asyncio.start_server(deaf, "127.0.0.1", 0, limit=1024)
    async with raw_engine(OK) as engine, tapping_at(engine, server.sockets[0].getsockname()[1]) as world:
        _, writer = await world.connect()
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 90000000\r\n\r\n" + b"x" * 40_000_000)
        await asyncio.sleep(0.3)
        assert world.tap.in_flight == 1
        # A reset is said at once, an end only behind all that was sent before it.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        await until(lambda: world.seen)
        over.set()
        await asyncio.sleep(0.02)
    server.close()
    assert (world.seen[0].outcome, world.seen[0].error) == ("aborted", "client_gone")
