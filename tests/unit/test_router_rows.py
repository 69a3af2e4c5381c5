"""What adds a worker back, from its row in the list of a router: captured rows of sglang-router 0.3.2, and hostile ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_watchdog.actuators import sglang_router, vllm_router
from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.contract import ErrorKind
from tailkeeper_watchdog.actuators.http_calls import OF_PAGES, Answer
from tailkeeper_watchdog.actuators.membership import rows_of
from tailkeeper_watchdog.actuators.sglang_router import document_of

URL = "http://127.0.0.1:18102"
ROW: dict[str, Any] = {
    "id": "9a4c74c1-8b12-4340-9d36-3bfbac7bd1cb", "url": URL, "model_id": "fake", "priority": 50, "cost": 1.0,
    "worker_type": "regular", "is_healthy": True, "load": 0, "connection_mode": "HTTP", "disable_health_check": False,
    "metadata": {"served_model_name": "fake", "model_path": "fake", "dp_size": "1", "tp_size": "1"},
}  # fmt: skip
PLAIN = {"url": URL, "worker_type": "regular", "disable_health_check": False}


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({}, {}),
        ({"metadata": None}, {"model_id": "fake"}),
        ({"model_id": "unknown", "metadata": {}}, {}),
        ({"model_id": "mine"}, {"model_id": "mine"}),
        ({"metadata": {"priority": "50", "cost": "1"}, "model_id": "unknown"}, {"priority": 50, "cost": 1.0}),
        ({"priority": 10, "cost": 2.0}, {"priority": 10, "cost": 2.0}),
        ({"metadata": {**ROW["metadata"], "zone": "a"}}, {"labels": {"zone": "a"}}),
        ({"worker_type": "prefill", "bootstrap_port": 9000}, {"worker_type": "prefill", "bootstrap_port": 9000}),
        ({"runtime_type": "vllm", "tokenizer_path": "/t"}, {"runtime": "vllm", "tokenizer_path": "/t"}),
    ],
)
def test_a_worker_is_added_back_with_what_was_set_and_without_what_its_engine_tells(
    changes: dict[str, Any], more: dict[str, Any]
) -> None:
    assert document_of({**ROW, **changes}) == {**PLAIN, **more}


@pytest.mark.parametrize(
    ("kind", "url", "cannot"),
    [("regular", URL, False), ("prefill", URL, False), ("regular", URL + "@3", True), ("regular", "http://user@3", True)],
)
def test_a_rank_of_a_data_parallel_worker_cannot_be_removed_from_sglangs_router(kind: str, url: str, cannot: bool) -> None:
    workers = sglang_router.parse_workers({"workers": [{**ROW, "url": url, "worker_type": kind}]})
    assert bool(workers[url].cannot) is cannot


@pytest.mark.parametrize(("kind", "cannot"), [("regular", False), ("prefill", True), ("decode", True), ("", True)])
def test_only_a_regular_worker_can_be_removed_from_vllms_router(kind: str, cannot: bool) -> None:
    workers = vllm_router.parse_workers({"workers": [{**ROW, "worker_type": kind}]})
    assert bool(workers[URL].cannot) is cannot


HOSTILE: list[Any] = [
    None, [], {}, {"workers": None}, {"workers": {}}, {"workers": [1]}, {"workers": [{}]},
    {"workers": [{"url": 1, "is_healthy": True}]},
    {"workers": [{"url": "u", "is_healthy": "yes"}]}, {"workers": [{**ROW, "worker_type": 1}]},
    {"workers": [{**ROW, "model_id": ["x"] * 1_000}]},
]  # fmt: skip


@pytest.mark.parametrize("answer", HOSTILE)
@pytest.mark.parametrize("parse", [sglang_router.parse_workers, vllm_router.parse_workers])
def test_a_list_that_cannot_be_understood_is_an_error_and_never_an_empty_router(
    answer: object, parse: Callable[[object], object]
) -> None:
    with pytest.raises(CallError) as caught:
        parse(answer)
    assert caught.value.kind is ErrorKind.PROTOCOL
    assert len(caught.value.message) < 300


plain_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*ROW, "workers", "x"]), inner, max_size=6),
    max_leaves=20,
)


@given(plain_json)
def test_no_json_makes_the_list_fail_otherwise(answer: object) -> None:
    with contextlib.suppress(CallError):
        for row in rows_of(answer):
            document_of(row)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (302, ErrorKind.REFUSED), (400, ErrorKind.REFUSED), (401, ErrorKind.UNAUTHORIZED), (403, ErrorKind.UNAUTHORIZED),
        (404, ErrorKind.REFUSED), (422, ErrorKind.REFUSED), (429, ErrorKind.UNREACHABLE), (500, ErrorKind.PROTOCOL),
        (503, ErrorKind.PROTOCOL), (600, ErrorKind.PROTOCOL), (101, ErrorKind.PROTOCOL),
    ],
)  # fmt: skip
def test_statuses_are_sorted_and_a_credential_is_never_quoted(status: int, kind: ErrorKind) -> None:
    with pytest.raises(CallError) as caught:
        Answer(status, b"secret words", meanings=OF_PAGES).checked()
    assert caught.value.kind is kind
    assert ("secret" in caught.value.message) == (kind is not ErrorKind.UNAUTHORIZED and status != 302)
