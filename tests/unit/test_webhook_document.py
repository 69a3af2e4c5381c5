"""The webhook's document and address: what is read, what is refused by field name, what is written back untouched."""

from __future__ import annotations

import json
import math
from urllib.parse import unquote, urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.contract import ErrorKind, ServerState
from tailkeeper_watchdog.actuators.http_calls import Answer
from tailkeeper_watchdog.actuators.webhook import MEANINGS, RULES, merged, parse_document, server_url, state_of
from tailkeeper_watchdog.model import DRAIN, Knob, KnobValue
from tests.unit.outcomes import outcome

NORMAL = {"weight": 1, "admission": "serve"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=80),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(st.sampled_from([knob.value for knob in RULES]) | st.text(max_size=10), JSON, max_size=8)


def test_all_knobs_of_the_contract_are_read() -> None:
    document = NORMAL | {
        "concurrency_limit": 8,
        "batch_window_s": 0.012,
        "cache_mode": "offload",
        "degrade_level": 2,
        "owner": "x",
    }
    assert state_of(parse_document(json.dumps(document).encode())) == ServerState(
        {
            Knob.WEIGHT: 1.0,
            Knob.ADMISSION: "serve",
            Knob.CONCURRENCY_LIMIT: 8.0,
            Knob.BATCH_WINDOW_S: 0.012,
            Knob.CACHE_MODE: "offload",
            Knob.DEGRADE_LEVEL: 2.0,
        }
    )


def test_an_optional_knob_that_is_missing_or_null_is_unknown_and_not_zero() -> None:
    state = state_of(parse_document(json.dumps(NORMAL | {"concurrency_limit": None}).encode()))
    assert set(state.values) == {Knob.WEIGHT, Knob.ADMISSION}


INVALID = [
    ("weight", "NaN"),
    ("weight", "Infinity"),
    ("weight", "1.01"),
    ("weight", "-0.1"),
    ("weight", "1e400"),
    ("weight", '"0.5"'),
    ("weight", "true"),
    ("weight", "null"),
    ("weight", "[1]"),
    ("admission", '"Serve"'),
    ("admission", "null"),
    ("admission", "1"),
    ("concurrency_limit", "-1"),
    ("concurrency_limit", '"8"'),
    ("concurrency_limit", "1e12"),
    ("batch_window_s", "NaN"),
    ("cache_mode", '""'),
    ("cache_mode", "3"),
    ("cache_mode", '"' + "x" * 65 + '"'),
    ("degrade_level", "{}"),
]


@pytest.mark.parametrize(("field", "value"), INVALID)
def test_an_invalid_field_is_named(field: str, value: str) -> None:
    fields = {"weight": "1", "admission": '"serve"'} | {field: value}
    body = "{" + ", ".join(f'"{name}": {text}' for name, text in fields.items()) + "}"
    with pytest.raises(CallError, match=f"^{field}: ") as caught:
        parse_document(body.encode())
    assert caught.value.kind is ErrorKind.PROTOCOL


@pytest.mark.parametrize("field", ["weight", "admission"])
def test_a_missing_required_field_is_named(field: str) -> None:
    document = {name: value for name, value in NORMAL.items() if name != field}
    with pytest.raises(CallError, match=f"^{field}: missing"):
        parse_document(json.dumps(document).encode())


@given(st.binary() | DOCUMENTS.map(lambda document: json.dumps(document).encode()))
def test_anything_at_all_is_a_valid_document_or_a_call_error(body: bytes) -> None:
    state = outcome(lambda: state_of(parse_document(body)))
    if isinstance(state, CallError):
        assert state.kind is ErrorKind.PROTOCOL
        assert len(state.message) < 500
        assert state.message.isprintable()
        return
    weight = state.values[Knob.WEIGHT]
    assert isinstance(weight, float)
    assert 0 <= weight <= 1
    assert state.in_service == (weight > 0)


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 20_000, b"1" * 5_000, b'"\\ud800"', b"null", b"[]"])
def test_json_made_to_break_a_parser_is_a_call_error(body: bytes) -> None:
    with pytest.raises(CallError):
        parse_document(body)


@given(DOCUMENTS, st.sampled_from([0.0, 0.18, 1.0]))
def test_a_write_changes_its_own_fields_and_no_others(document: dict[str, object], weight: float) -> None:
    body = outcome(lambda: merged(document, {Knob.WEIGHT: weight, Knob.ADMISSION: DRAIN}))
    if isinstance(body, CallError):
        assert body.kind is ErrorKind.PROTOCOL
        return
    assert json.loads(body) == {**document, "weight": weight, "admission": DRAIN}


def test_a_whole_number_is_written_without_a_point_and_nan_of_the_gateway_is_never_sent_on() -> None:
    assert b'"concurrency_limit": 8,' in merged({}, {Knob.CONCURRENCY_LIMIT: 8.0, Knob.WEIGHT: 0.5})
    with pytest.raises(CallError, match="NaN"):
        merged({"theirs": math.nan}, {Knob.WEIGHT: 1.0})


@pytest.mark.parametrize(
    ("knob", "value"), [(Knob.WEIGHT, 1.5), (Knob.ADMISSION, "off"), (Knob.CACHE_MODE, ""), (Knob.REPLICAS, 3.0)]
)
def test_a_value_outside_the_contract_is_refused_before_it_is_sent(knob: Knob, value: KnobValue) -> None:
    with pytest.raises(CallError, match=knob.value) as caught:
        merged(NORMAL, {knob: value})
    assert caught.value.kind is ErrorKind.REFUSED


STATUSES = [
    (200, None),
    (204, None),
    (302, ErrorKind.REFUSED),
    (400, ErrorKind.REFUSED),
    (401, ErrorKind.UNAUTHORIZED),
    (403, ErrorKind.UNAUTHORIZED),
    (404, ErrorKind.NOT_FOUND),
    (405, ErrorKind.REFUSED),
    (422, ErrorKind.REFUSED),
    (429, ErrorKind.UNREACHABLE),
    (500, ErrorKind.PROTOCOL),
    (503, ErrorKind.PROTOCOL),
    (999, ErrorKind.PROTOCOL),
]


@pytest.mark.parametrize(("status", "kind"), STATUSES)
def test_every_status_has_its_kind(status: int, kind: ErrorKind | None) -> None:
    answer = Answer(status, b"its reason", meanings=MEANINGS)
    if kind is None:
        assert answer.checked() is answer
        return
    with pytest.raises(CallError, match=str(status)) as caught:
        answer.checked()
    assert caught.value.kind is kind
    assert ("its reason" in caught.value.message) == (kind is not ErrorKind.UNAUTHORIZED and status != 302)


@given(st.text(min_size=1, max_size=60))
def test_a_name_becomes_exactly_one_segment_that_says_the_name_again(name: str) -> None:
    url = outcome(lambda: server_url("http://gate:1/base/?token=t", name))
    if isinstance(url, CallError):
        assert url.kind is ErrorKind.NOT_FOUND
        return
    path, _, query = httpx.URL(url).raw_path.decode().partition("?")
    assert path.startswith("/base/")
    assert "/" not in path.removeprefix("/base/")
    assert unquote(path.removeprefix("/base/")) == name
    assert query == "token=t"
    assert urlsplit(url).netloc == "gate:1"


@pytest.mark.parametrize("url", ["http://[::", "http://[x]/"])
def test_an_address_that_cannot_be_read_is_unreachable(url: str) -> None:
    with pytest.raises(CallError) as caught:
        server_url(url, "a")
    assert caught.value.kind is ErrorKind.UNREACHABLE
