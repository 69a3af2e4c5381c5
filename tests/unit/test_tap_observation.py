"""One exchange watched from its head to its end: what its record says, and what the tap's book knows meanwhile."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tailkeeper_exporter.tap.book import SMOOTHING, Book
from tailkeeper_exporter.tap.exchange import exchange_of
from tailkeeper_exporter.tap.facts import BodyFacts, HeaderFacts
from tailkeeper_exporter.tap.ids import Trace
from tailkeeper_exporter.tap.messages import AnswerHead, Headers
from tailkeeper_exporter.tap.observe import MAX_ANSWER_BYTES, Asked, Observation
from tests.unit.tap_exchanges import exchange, gaps

ASKED = Asked(
    "a", "r-1", Trace("0af7", "b7ad", "00f0", True, None), "POST", "/v1/chat/completions",
    HeaderFacts(tenant="acme", model_hint="hinted", priority="high"), 1_700_000_000.0, 100.0,
)  # fmt: skip
STREAM = AnswerHead(200, b"OK", [(b"content-type", b"text/event-stream; charset=utf-8")], None, True)
DOCUMENT = AnswerHead(200, b"OK", [(b"content-type", b"application/json")], None, True)
USAGE = {"prompt_tokens": 20, "completion_tokens": 9}


def event(text: str | None, **more: object) -> bytes:
    document = {"choices": [{"delta": {"content": text}, "finish_reason": None}], **more}
    return b"data: " + json.dumps(document).encode() + b"\n\n"


END = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def asked(book: Book, size: int = 40) -> Observation:
    """A request whose body has come and went to the backend after 0.1 s."""
    seen = Observation(ASKED, book)
    seen.asked_more(size)
    seen.sent(100.1)
    return seen


def test_a_stream_is_timed_token_by_token_and_what_came_together_has_no_time_between() -> None:
    book = Book()
    seen = asked(book)
    seen.answered(STREAM, 100.2)
    seen.passed(event(None), 100.25)  # a role is no token
    assert (book.waiting, book.running, book.progress_s) == (1, 0, None)
    seen.passed(event("a"), 100.5)
    assert (book.waiting, book.running, book.progress_s) == (0, 1, 100.5)
    seen.passed(event("b") + event("c") + event("d"), 100.75)
    seen.passed(END, 100.8)

    assert seen.whole(100.8) == ("ok", "")
    record = seen.end("ok", "", 100.8)
    assert (record.sent_s, record.first_token_s, record.last_token_s) == pytest.approx((0.1, 0.5, 0.75))
    assert record.gaps == gaps(0.25, 0.0, 0.0)["gaps"]
    assert record.gap_sum_s == pytest.approx(0.25)
    assert (record.streaming, record.generated_tokens, record.content_events) == (True, 4, 4)
    assert (book.held, book.waiting, book.running, book.answered_s) == (0, 0, 0, 100.8)


def test_a_record_knows_what_was_there_when_it_came_and_nothing_of_itself() -> None:
    book = Book()
    book.learn(40, 10)
    first = asked(book)
    waiting = asked(book)
    first.answered(STREAM, 100.2)
    first.passed(event("a"), 100.5)
    held = Observation(ASKED, book)
    held.asked_more(80)
    last = Observation(ASKED, book).end("aborted", "by_client", 100.6)

    assert (last.running, last.waiting, last.backlog_tokens) == (1, 2, 30)
    assert last.sent_s is None
    waiting.end("error", "refused", 100.7)
    held.end("rejected", "drained", 100.7)
    first.end("ok", "", 100.7)
    assert (book.held, book.waiting, book.running, book.backlog_tokens) == (0, 0, 0, 0)


def test_what_waits_is_not_known_in_tokens_before_the_first_ratio_and_is_none_where_nothing_waits() -> None:
    book = Book()
    assert book.backlog_tokens == 0
    book.add(100)
    assert book.backlog_tokens is None
    book.learn(100, 20)
    assert book.backlog_tokens == 20
    book.learn(100, 120)
    assert book.tokens_per_byte == pytest.approx(0.2 + SMOOTHING * 1.0)


def test_what_comes_of_a_body_after_the_first_token_waits_for_nothing() -> None:
    book = Book()
    seen = asked(book, size=40)
    seen.answered(STREAM, 100.2)
    seen.passed(event("a"), 100.5)
    seen.asked_more(60)
    assert book.backlog_tokens == 0
    assert seen.end("ok", "", 101.0).request_bytes == 100
    assert book.backlog_tokens == 0


def test_a_second_try_does_not_count_for_the_user_waits_since_the_first() -> None:
    book = Book()
    seen = asked(book)
    seen.sent(100.4)
    assert book.waiting == 1
    assert seen.end("ok", "", 101.0).sent_s == pytest.approx(0.1)


def test_a_usage_teaches_the_book_how_many_tokens_a_byte_has() -> None:
    book = Book()
    seen = asked(book, size=40)
    seen.answered(STREAM, 100.2)
    seen.passed(event("a") + event("", usage=USAGE) + END, 100.5)
    record = seen.end("ok", "", 101.0)
    assert (record.prompt_tokens, record.generated_tokens) == (20, 9)
    assert book.tokens_per_byte == 0.5


def test_a_document_is_read_at_its_end_and_has_no_first_token() -> None:
    book = Book()
    seen = asked(book)
    seen.answered(DOCUMENT, 100.2)
    body = json.dumps({"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}], "usage": USAGE}).encode()
    seen.passed(body[:30], 100.3)
    seen.passed(body[30:], 100.4)
    assert seen.whole(100.4) == ("ok", "")
    assert book.progress_s == 100.4
    record = seen.end("ok", "", 100.4)
    assert (record.first_token_s, record.prompt_tokens, record.gaps, record.response_bytes) == (None, 20, (), len(body))


def test_a_document_too_large_to_be_kept_is_passed_and_says_nothing() -> None:
    seen = asked(Book())
    seen.answered(DOCUMENT, 100.2)
    seen.passed(b'{"error": "' + b"x" * MAX_ANSWER_BYTES, 100.3)
    seen.passed(b'"}', 100.3)
    assert seen.whole(100.4) == ("ok", "")


@pytest.mark.parametrize(
    "headers",
    [[(b"content-type", b"text/event-stream"), (b"content-encoding", b"gzip")], [(b"content-type", b"text/plain")], []],
    ids=["packed", "no kind that says anything", "no type"],
)
def test_what_cannot_be_read_is_passed_unread(headers: Headers) -> None:
    seen = asked(Book())
    seen.answered(AnswerHead(200, b"OK", headers, None, True), 100.2)
    seen.passed(event("a"), 100.5)
    record = seen.end(*seen.whole(100.6), 100.6)
    assert (record.outcome, record.first_token_s, record.generated_tokens, record.streaming) == ("ok", None, None, None)


def test_an_answer_that_names_no_packing_by_name_is_read() -> None:
    seen = asked(Book())
    seen.answered(replace(STREAM, headers=[*STREAM.headers, (b"content-encoding", b"identity")]), 100.2)
    seen.passed(event("a"), 100.5)
    assert seen.end("ok", "", 100.6).first_token_s == pytest.approx(0.5)


ABORTED = b'data: {"choices":[{"delta":{},"finish_reason":"abort"}]}\n\n'


@pytest.mark.parametrize(
    ("answer", "body", "verdict"),
    [
        (STREAM, event("a") + END, ("ok", "")),
        (STREAM, event("a"), ("error", "cut_short")),
        (STREAM, event("a") + ABORTED, ("aborted", "by_backend")),
        (STREAM, event("a") + b'data: {"error": {"message": "oom"}}\n\n', ("error", "in_answer")),
        (DOCUMENT, b'{"error": {"message": "oom"}}', ("error", "in_answer")),
        (DOCUMENT, b'{"choices": [{"finish_reason": "abort"}]}', ("aborted", "by_backend")),
        (DOCUMENT, b"[1, 2", ("ok", "")),
        (DOCUMENT, b"", ("ok", "")),
        (replace(STREAM, status=500), event("a") + END, ("error", "status")),
        (replace(DOCUMENT, status=503), b"{}", ("error", "status")),
        (replace(DOCUMENT, status=499), b'{"error": "oom"}', ("rejected", "status")),
        (replace(DOCUMENT, status=400), b"{}", ("rejected", "status")),
        (replace(DOCUMENT, status=399), b"{}", ("ok", "")),
    ],
)
def test_a_whole_message_may_hold_half_an_answer_and_its_verdict_says_so(
    answer: AnswerHead, body: bytes, verdict: tuple[str, str]
) -> None:
    book = Book()
    seen = asked(book)
    seen.answered(answer, 100.2)
    if body:
        seen.passed(body, 100.3)
    before = book.progress_s
    assert seen.whole(100.4) == verdict
    assert (book.progress_s == 100.4) == (verdict[0] == "ok") != (book.progress_s == before)


def test_an_event_that_the_stream_ended_in_is_a_token_too() -> None:
    seen = asked(Book())
    seen.answered(STREAM, 100.2)
    seen.passed(event("a") + END + event("b").rstrip(), 100.5)
    seen.whole(100.75)
    record = seen.end("ok", "", 100.75)
    assert record.last_token_s == pytest.approx(0.75)
    assert record.generated_tokens == 2


def test_what_the_cache_answers_is_no_sign_of_the_backends_life() -> None:
    book = Book()
    seen = Observation(ASKED, book)
    seen.cache_hit = True
    seen.answered(DOCUMENT, 100.2)
    seen.passed(b"{}", 100.2)
    assert seen.whole(100.2) == ("ok", "")
    assert (book.answered_s, book.progress_s) == (None, None)
    assert seen.end("ok", "", 100.2).cache_hit


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/models"), ("POST", "/tokenize")])
def test_what_the_front_door_answers_is_no_progress_of_the_engine(method: str, path: str) -> None:
    book = Book()
    seen = Observation(replace(ASKED, method=method, path=path), book)
    seen.sent(100.1)
    seen.answered(DOCUMENT, 100.2)
    assert seen.whole(100.3) == ("ok", "")
    assert (book.progress_s, book.answered_s) == (None, 100.2)


@pytest.mark.parametrize(
    ("facts", "model", "streaming"), [(BodyFacts(), "hinted", None), (BodyFacts(model="m", streaming=False), "m", False)]
)
def test_the_bodys_word_for_its_model_wins_over_the_headers(facts: BodyFacts, model: str, streaming: bool | None) -> None:
    seen = asked(Book())
    seen.facts = facts
    record = seen.end("error", "refused", 101.0)
    assert (record.model, record.streaming, record.tenant, record.priority) == (model, streaming, "acme", "high")
    assert (record.status, record.error, record.end_s) == (None, "refused", 1.0)


def test_a_record_goes_through_a_line_and_back_unchanged() -> None:
    record = exchange(tenant="acme")
    assert exchange_of(record.line()) == record


@pytest.mark.parametrize("line", [b"[]", b'{"unheard_of": 1}', b'{"backend": "a"}', b'{"backend": "a", "gaps": 3}', b"{"])
def test_a_line_that_is_no_record_is_refused_in_one_way(line: bytes) -> None:
    with pytest.raises(ValueError):
        exchange_of(line)
