"""What goes on to the backend and back, byte for byte; what is asked for, in words; and the lines between the two processes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from tailkeeper_exporter.settings import Auth
from tailkeeper_exporter.tap.admission import Priority
from tailkeeper_exporter.tap.asking import (
    DEFAULT_MAX_TOKENS,
    DEFAULT_TOKENS_PER_BYTE,
    Body,
    cache_key,
    facts_of,
    path_of,
    ticket,
)
from tailkeeper_exporter.tap.cache import LocalCache
from tailkeeper_exporter.tap.facts import MAX_BODY_BYTES, BodyFacts, HeaderFacts
from tailkeeper_exporter.tap.ids import Trace
from tailkeeper_exporter.tap.knobs import DRAIN, Degrade, Knobs
from tailkeeper_exporter.tap.lines import (
    MAX_LINE_BYTES,
    Order,
    Splitter,
    TapPlan,
    document_of,
    order_of,
    plans_line,
    plans_of,
    statuses_line,
    statuses_of,
)
from tailkeeper_exporter.tap.messages import AnswerHead, Headers, RequestHead, refusal, request_head, wrong_with
from tailkeeper_exporter.tap.observe import Asked
from tailkeeper_exporter.tap.outgoing import CONTINUE, Outgoing
from tests.unit.tap_exchanges import status

HOST = (b"host", b"llm.example")
ASK = RequestHead(b"POST", b"/v1/completions?key=secret", "1.1", [HOST], True, 5, False)
JSON = (b"content-type", b"application/json")


def asked(tenant: str | None = None, priority: str | None = None) -> Asked:
    return Asked(
        "a",
        "r-1",
        Trace("0", "1", None, True, None),
        "POST",
        "/v1/completions",
        HeaderFacts(tenant=tenant, priority=priority),
        0.0,
        0.0,
    )


# What is refused, and what goes on


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, None),
        ({"version": "1.0", "headers": []}, None),
        ({"version": "2.0"}, "only HTTP/1.0 and HTTP/1.1 are spoken here"),
        ({"headers": []}, "exactly one Host header is needed"),
        ({"headers": [HOST, HOST]}, "exactly one Host header is needed"),
        ({"version": "1.0", "chunked": True}, "HTTP/1.0 has no chunked bodies"),
        ({"headers": [HOST, (b"transfer-encoding", b" Chunked ")], "chunked": True}, None),
        ({"headers": [HOST, (b"transfer-encoding", b"gzip")]}, "a transfer coding other than chunked is not spoken here"),
        ({"headers": [HOST, (b"x-odd", b"a\nb: c")]}, "a header value has a line break"),
    ],
)
def test_a_request_that_another_side_could_read_otherwise_is_refused(changes: dict[str, object], says: str | None) -> None:
    assert wrong_with(replace(ASK, **changes)) == says  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "framing"),
    [
        ({}, b"content-length: 5\r\n"),
        ({"length": None}, b""),
        ({"length": None, "chunked": True}, b"transfer-encoding: chunked\r\n"),
    ],
)
def test_the_backend_gets_a_head_of_ours_with_what_was_not_for_this_connection_left_out(
    changes: dict[str, object], framing: bytes
) -> None:
    headers = [HOST, (b"connection", b"x-mine, close"), (b"x-mine", b"1"), (b"accept-encoding", b"gzip"), (b"x-tenant", b"t")]
    head = replace(ASK, headers=headers, **changes)  # type: ignore[arg-type]
    assert request_head(head, b"/v1/completions", b"engine:8000", [(b"x-request-id", b"r-1")]) == (
        b"POST /v1/completions HTTP/1.1\r\nhost: engine:8000\r\nx-tenant: t\r\nx-request-id: r-1\r\nvia: 1.1 tailkeeper\r\n"
        + framing
        + b"\r\n"
    )


@pytest.mark.parametrize(("code", "kind"), [(404, "invalid_request_error"), (500, "server_error"), (503, "server_error")])
def test_a_refusal_is_an_answer_that_clients_can_read(code: int, kind: str) -> None:
    whole = refusal(code, "drained", "come back", "r-1", [(b"retry-after", b"5")], close=True, bodiless=False)
    head, _, body = whole.partition(b"\r\n\r\n")
    assert body == f'{{"error": {{"message": "come back", "type": "{kind}", "param": null, "code": "drained"}}}}'.encode()
    assert f"content-length: {len(body)}\r\n".encode() in head + b"\r\n"
    assert head.endswith(b"x-tailkeeper-reason: drained\r\nretry-after: 5\r\nconnection: close")
    assert refusal(code, "drained", "come back", "r-1", [], close=False, bodiless=True).endswith(b"reason: drained\r\n\r\n")


# The answer


@dataclass
class Client:
    full: bool = False
    written: list[bytes] = field(default_factory=list)

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def hold(self) -> None: ...
    def go_on(self) -> None: ...
    def turn_ended(self, *, close: bool) -> None: ...
    def cut(self) -> None: ...


UNENDED = AnswerHead(200, b"OK", [], None, False)


@pytest.mark.parametrize(
    ("answer", "request_changes", "expected", "close"),
    [
        (replace(UNENDED, length=4), {}, b"content-length: 4\r\n\r\nabcd", False),
        (UNENDED, {}, b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n", False),
        (replace(UNENDED, chunked=True), {}, b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n", False),
        (UNENDED, {"version": "1.0"}, b"connection: close\r\n\r\nabcd", True),
        (replace(UNENDED, length=4), {"keep_alive": False}, b"content-length: 4\r\nconnection: close\r\n\r\nabcd", True),
    ],
    ids=["length known", "until the end", "chunked", "a client that knows no chunks", "a client that closes"],
)
def test_an_answer_is_framed_for_this_client(
    answer: AnswerHead, request_changes: dict[str, object], expected: bytes, close: bool
) -> None:
    client = Client()
    out = Outgoing(client, replace(ASK, **request_changes), "r-1")  # type: ignore[arg-type]
    out.begin(answer, b"ab", last=False, request_is_whole=True)
    out.go_on(b"cd", last=True)
    out.end()
    assert b"".join(client.written) == b"HTTP/1.1 200 OK\r\nx-request-id: r-1\r\n" + expected
    assert (out.began, out.close) == (True, close)


@pytest.mark.parametrize(
    ("answer", "method", "framing"),
    [
        (replace(UNENDED, status=204, reason=b"No Content", length=0), b"POST", b""),
        (replace(UNENDED, length=9), b"HEAD", b"content-length: 9\r\n"),
        (replace(UNENDED, status=304, reason=b"Not Modified"), b"GET", b""),
    ],
)
def test_an_answer_without_a_body_is_whole_with_its_head(answer: AnswerHead, method: bytes, framing: bytes) -> None:
    client = Client()
    out = Outgoing(client, replace(ASK, method=method), "r-1")
    out.begin(answer, b"", last=True, request_is_whole=True)
    out.end()
    first = b"HTTP/1.1 %d %b\r\n" % (answer.status, answer.reason)
    assert b"".join(client.written) == first + b"x-request-id: r-1\r\n" + framing + b"\r\n"
    assert not out.close


def test_an_end_that_comes_alone_ends_a_chunked_answer_once() -> None:
    client = Client()
    out = Outgoing(client, ASK, "r-1")
    out.begin(UNENDED, b"", last=False, request_is_whole=True)
    out.end()
    assert b"".join(client.written).endswith(b"\r\n\r\n0\r\n\r\n")


def test_what_is_left_of_an_unfinished_request_is_not_taken_for_the_next_one() -> None:
    out = Outgoing(Client(), ASK, "r-1")
    out.begin(replace(UNENDED, length=0), b"", last=True, request_is_whole=False)
    assert out.close


@pytest.mark.parametrize(
    ("headers", "version", "permitted"),
    [
        ([(b"expect", b"100-Continue ")], "1.1", True),
        ([(b"expect", b"100-continue")], "1.0", False),
        ([(b"expect", b"200-ok")], "1.1", False),
        ([], "1.1", False),
    ],
)
def test_a_client_that_waits_to_be_told_is_told(headers: Headers, version: str, permitted: bool) -> None:
    client = Client()
    Outgoing(client, replace(ASK, headers=headers, version=version), "r-1").permit()
    assert client.written == ([CONTINUE] if permitted else [])


# The request's body


@pytest.mark.parametrize(("chunked", "expected"), [(False, b"abcde"), (True, b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")])
def test_a_body_waits_is_taken_whole_and_can_be_sent_again(chunked: bool, expected: bytes) -> None:
    body = Body(chunked=chunked)
    body.add(b"abc", sent=False)
    body.add(b"de", sent=False)
    assert (body.unsent_bytes, body.take(whole=True)) == (5, expected)
    assert body.unsent_bytes == 0
    assert bytes(body.kept or b"") == b"abcde"
    body.rewind()
    assert body.unsent_bytes == 5
    assert body.take(whole=False) == (b"5\r\nabcde\r\n" if chunked else b"abcde")


def test_what_was_sent_at_once_does_not_wait_and_is_kept() -> None:
    body = Body(chunked=False)
    body.add(b"abc", sent=True)
    assert bytes(body.kept or b"") == b"abc"
    assert (body.unsent_bytes, body.take(whole=True)) == (0, b"")


def test_a_body_too_large_to_be_kept_is_let_go_for_good() -> None:
    body = Body(chunked=False)
    body.add(b"x" * MAX_BODY_BYTES, sent=True)
    assert body.kept
    body.add(b"y", sent=True)
    body.add(b"z", sent=False)
    assert body.unsent_bytes == 1
    assert not body.kept
    body.rewind()
    assert (body.unsent_bytes, body.take(whole=False)) == (0, b"")


# What it asks for


def test_a_record_has_the_path_without_the_query_that_may_hold_secrets() -> None:
    assert path_of(b"/v1/completions?key=secret") == "/v1/completions"
    assert path_of(b"http://llm.example/v1/models?key=secret") == "/v1/models"
    assert path_of(b"llm.example:443") == "/llm.example:443"


BODY = bytearray(b'{"model": "m", "stream": true, "max_tokens": 7}')


@pytest.mark.parametrize(
    ("head", "body", "facts"),
    [
        (replace(ASK, length=None), None, BodyFacts(streaming=False)),
        (replace(ASK, headers=[HOST, JSON]), BODY, BodyFacts("m", True, None, None, 7)),
        (replace(ASK, length=None, chunked=True, headers=[HOST, JSON]), BODY, BodyFacts("m", True, None, None, 7)),
        (replace(ASK, headers=[HOST, JSON]), None, BodyFacts()),
        (replace(ASK, headers=[HOST]), BODY, BodyFacts()),
        (replace(ASK, headers=[HOST, JSON, (b"content-encoding", b"gzip")]), BODY, BodyFacts()),
    ],
    ids=["no body", "json", "chunked json", "too large to be kept", "no type", "packed"],
)
def test_only_a_body_that_can_be_read_says_something(head: RequestHead, body: bytearray | None, facts: BodyFacts) -> None:
    assert facts_of(head, body) == facts


@pytest.mark.parametrize(
    ("length", "ratio", "most", "cost_tokens"),
    [
        (100, 0.5, 7, 57.0),
        (100, None, None, 100 * DEFAULT_TOKENS_PER_BYTE + DEFAULT_MAX_TOKENS),
        (None, 0.5, 0, 20.0),
        (0, 0.5, 7, 7.0),
    ],
)
def test_the_door_is_told_what_a_request_will_cost(
    length: int | None, ratio: float | None, most: int | None, cost_tokens: float
) -> None:
    facts = BodyFacts(streaming=True, max_tokens=most)
    made = ticket(3, replace(ASK, length=length), asked(priority="high"), facts, 40, ratio)
    assert (made.key, made.priority, made.streaming, made.cost_tokens) == (3, Priority.HIGH, True, cost_tokens)


PROMPT = b'{"model": "m", "prompt": "p", "temperature": 0}'


def key(headers: Headers | None = None, target: bytes = b"/v1/completions", tenant: str = "t") -> bytes | None:
    cache = LocalCache(10_000, 1_000)
    head = replace(ASK, target=target, headers=[HOST, JSON, *(headers or [])])
    return cache_key(cache, head, asked(tenant=tenant), bytearray(PROMPT))


def test_the_same_question_of_the_same_caller_has_one_key_whichever_way_it_came() -> None:
    assert key() is not None
    assert key() == key([(b"x-forwarded-for", b"10.0.0.1"), (b"user-agent", b"curl"), (b"x-request-id", b"r-2")])
    assert key() == key(target=b"http://llm.example/v1/completions")


@pytest.mark.parametrize(
    "other",
    [
        {"headers": [(b"authorization", b"Bearer other")]},
        {"headers": [(b"x-odd", b"1")]},
        {"target": b"/v1/completions?seed=1"},
        {"target": b"/v1/chat/completions"},
        {"tenant": "u"},
    ],
)
def test_whatever_tells_two_callers_apart_tells_their_keys_apart(other: dict[str, object]) -> None:
    assert key(**other) not in (key(), None)  # type: ignore[arg-type]


def test_a_client_that_has_a_word_on_caches_gets_no_answer_from_one() -> None:
    assert key([(b"cache-control", b"no-cache")]) is None


# Lines between the exporter and its tap


KNOBS = Knobs(DRAIN, 8, "local", Degrade.LOW)


def test_statuses_orders_and_plans_come_out_of_their_lines_as_they_went_in() -> None:
    statuses = {"a": status(1.5, running=2, knobs=KNOBS), "b": status(2.5, progress_s=1.0)}
    assert statuses_of(statuses_line(statuses, 3)[1:]) == (statuses, 3)
    order = Order(7, "a", KNOBS)
    assert order_of(order.line()[1:]) == order
    plans = (TapPlan("a", "http://127.0.0.1:8000", 5), TapPlan("b", "https://b", 6, "ca.pem", "c.pem", "k.pem"))
    assert plans_of(plans_line(plans)[1:]) == plans


def test_a_plan_has_the_files_of_its_connections_and_no_header() -> None:
    plan = TapPlan("b", "https://b", 6, "ca.pem", "c.pem", "k.pem")
    assert plan.auth == Auth.model_validate({"ca_file": "ca.pem", "cert_file": "c.pem", "key_file": "k.pem"})


@pytest.mark.parametrize("content", [b"[]", b"3", b"{}", b"{", b'{"taps": 3}', b'{"taps": [3]}', b'{"taps": {"a": 3}}'])
def test_a_line_of_another_version_is_refused_in_one_way(content: bytes) -> None:
    for read in (statuses_of, order_of, plans_of):
        with pytest.raises(ValueError):
            read(content)


@pytest.mark.parametrize("content", [b"[]", b"3", b"null", b"{"])
def test_only_an_object_is_a_document(content: bytes) -> None:
    with pytest.raises(ValueError):
        document_of(content)


def test_a_line_as_long_as_may_be_is_kept_and_a_longer_one_is_thrown_away_once() -> None:
    splitter = Splitter()
    longest = b"x" * MAX_LINE_BYTES
    assert splitter.feed(longest + b"\n" + longest + b"y\nnext\n") == [longest, b"next"]
    assert splitter.oversized == 1
    assert splitter.feed(longest + b"y") == []
    assert splitter.oversized == 2
    assert splitter.feed(b"more of it\nnext\n") == [b"next"]
    assert splitter.oversized == 2
