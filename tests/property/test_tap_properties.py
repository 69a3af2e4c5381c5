"""What holds for every request id, every trace header, and every way in which a stream's bytes can be cut."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_exporter.tap.answers import said
from tailkeeper_exporter.tap.facts import body_facts, clean, header_facts
from tailkeeper_exporter.tap.ids import MAX_ID_CHARS, request_id, trace
from tailkeeper_exporter.tap.lines import Splitter
from tailkeeper_exporter.tap.messages import kept, origin_form
from tailkeeper_exporter.tap.sse import SseReader, _judge

VISIBLE = re.compile(r"[\x21-\x7e]{1,128}")
TRACE_HEADER = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]")
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def fixed(size: int) -> str:
    return "5" * (2 * size)


@given(st.lists(st.text(max_size=400), max_size=3))
def test_every_request_id_becomes_a_short_visible_one(values: list[str]) -> None:
    assert VISIBLE.fullmatch(request_id(values, fixed))


@given(st.text("abcXYZ019._:/@+=~-", min_size=1, max_size=MAX_ID_CHARS))
def test_an_ordinary_request_id_is_kept_unchanged(value: str) -> None:
    assert request_id([value], fixed) == value


@given(st.lists(st.one_of(st.text(max_size=80), st.just(PARENT)), max_size=3), st.lists(st.text(max_size=600), max_size=3))
def test_whatever_the_trace_headers_say_the_backend_gets_a_valid_one(parents: list[str], states: list[str]) -> None:
    found = trace(parents, states, fixed)
    assert TRACE_HEADER.fullmatch(found.traceparent)
    assert found.trace_id.strip("0")
    assert (found.trace_id in PARENT) == (parents == [PARENT])
    assert found.tracestate is None or (len(found.tracestate) <= 512 and found.tracestate.isprintable())


DELTAS = st.one_of(
    st.fixed_dictionaries({}, optional={"role": st.just("assistant"), "content": st.one_of(st.none(), st.text(max_size=12))}),
    st.fixed_dictionaries({"reasoning_content": st.text(max_size=5), "content": st.one_of(st.none(), st.just(""))}),
    st.fixed_dictionaries({"tool_calls": st.lists(st.just({"index": 0, "function": {"arguments": "{"}}), max_size=1)}),
)
REASONS = st.sampled_from((None, None, None, "stop", "length", "abort"))
USAGES = st.sampled_from((None, {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}))
CHOICES = st.one_of(
    st.fixed_dictionaries({"delta": DELTAS, "finish_reason": REASONS}),
    st.fixed_dictionaries({"text": st.text(max_size=8), "finish_reason": REASONS}),
)
DOCUMENTS = st.one_of(
    st.fixed_dictionaries({"choices": st.lists(CHOICES, max_size=2)}, optional={"usage": USAGES, "error": st.none()}),
    st.just({"error": {"message": "out of memory"}}),
    st.fixed_dictionaries({"type": st.sampled_from(("response.output_text.delta", "ping")), "delta": st.text(max_size=4)}),
)
SEPARATORS = st.sampled_from(((",", ":"), (", ", ": ")))


@st.composite
def events(draw: st.DrawFn) -> bytes:
    """One event as some server may write it, or what is none."""
    kind = draw(st.integers(0, 9))
    end = draw(st.sampled_from(("\n", "\r\n", "\r")))
    if kind == 0:
        return f": ping{end}{end}".encode()
    if kind == 1:
        return draw(st.binary(max_size=20)) + b"\n\n"
    document = json.dumps(draw(DOCUMENTS), separators=draw(SEPARATORS), ensure_ascii=draw(st.booleans()))
    return f"{draw(st.sampled_from(('', f'event: x{end}')))}data: {document}{end}{end}".encode("utf-8", "replace")


def read(pieces: list[bytes]) -> tuple[object, ...]:
    reader = SseReader()
    counted = sum(reader.feed(piece) for piece in pieces) + reader.finish()
    assert counted == reader.content_events
    return counted, reader.usage, reader.done, reader.finished, reader.failed, reader.aborted, reader.complete


@given(st.lists(events(), max_size=8), st.lists(st.integers(0, 900), max_size=12), st.booleans())
def test_what_is_read_does_not_depend_on_how_the_bytes_are_cut(parts: list[bytes], cuts: list[int], done: bool) -> None:
    whole = b"".join(parts) + (b"data: [DONE]\n\n" if done else b"")
    at = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    pieces = [whole[a:b] for a, b in pairwise(at)]
    assert read(pieces) == read([whole]) == read([whole[i : i + 1] for i in range(len(whole))])


@given(DOCUMENTS, SEPARATORS)
def test_the_quick_judgement_of_an_event_is_the_parser_s(document: dict[str, object], separators: tuple[str, str]) -> None:
    quick = _judge(json.dumps(document, separators=separators).encode())
    found = said(document)
    assert quick is None or (quick == found.content and not found.failed and not found.aborted and found.usage is None)


@given(st.recursive(st.one_of(st.none(), st.booleans(), st.floats(), st.text(max_size=5)), lambda x: st.lists(x, max_size=3)))
def test_no_value_in_an_answer_or_a_request_is_too_strange_to_read(value: object) -> None:
    names = ("choices", "usage", "error", "type", "delta", "token", "message", "response", "model", "stream", "max_tokens")
    for name in names:
        said({name: value})
        said({"choices": [{"delta": {"content": value}, "finish_reason": value}], "usage": {"prompt_tokens": value}})
        body_facts(json.dumps({name: value, "temperature": value}).encode())


@given(st.binary(max_size=300))
def test_facts_in_headers_are_short_and_printable(value: bytes) -> None:
    names = (b"x-tenant", b"x-operation", b"x-sensitivity", b"x-model-hint", b"x-priority")
    facts = header_facts(dict.fromkeys(names, value))
    text = clean(value)
    assert facts.tenant == facts.operation == facts.priority == text
    assert text is None or (0 < len(text) <= 128 and "\n" not in text and "\x00" not in text)
    assert facts.sensitivity in (None, 0, 1, 2, 3, 4, 5)


@given(st.lists(st.binary(max_size=30), max_size=6), st.lists(st.integers(0, 120), max_size=6))
def test_lines_come_out_as_they_went_in_however_they_are_cut(lines: list[bytes], cuts: list[int]) -> None:
    wanted = [line.replace(b"\n", b" ") for line in lines]
    whole = b"".join(line + b"\n" for line in wanted)
    at = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    splitter = Splitter(limit_bytes=20)
    found = [line for a, b in pairwise(at) for line in splitter.feed(whole[a:b])]
    assert found == [line for line in wanted if len(line) <= 20]
    assert splitter.oversized == sum(len(line) > 20 for line in wanted)


@given(st.text("abc/?:#.%", max_size=20))
def test_a_request_target_becomes_a_path(text: str) -> None:
    assert origin_form(text.encode()).startswith(b"/")


@pytest.mark.parametrize("name", ["connection", "Keep-Alive", "TE", "x-mine", "transfer-encoding", "upgrade"])
def test_headers_of_one_connection_do_not_go_on(name: str) -> None:
    headers = [(b"connection", b"close, X-Mine"), (name.lower().encode(), b"x"), (b"accept", b"*/*")]
    assert kept(headers, frozenset()) == [(b"accept", b"*/*")]
