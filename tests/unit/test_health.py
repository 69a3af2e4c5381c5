"""`/healthz`: what each check says, and what a backend's status is made of."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import pytest

from tailkeeper_exporter.health import Status, backend_health, fleet_health, http_status
from tailkeeper_exporter.kv_service import Ping
from tailkeeper_exporter.liveness import Liveness, Why
from tailkeeper_exporter.probe import ProbeResult
from tailkeeper_exporter.probe_answer import Outcome
from tailkeeper_exporter.readings import absent, present
from tailkeeper_exporter.settings import BackendSettings
from tailkeeper_exporter.state import State
from tailkeeper_exporter.views import BackendView, Source, SourceView

NOW = 1000.0
GOOD_PAGE = SourceView(True, 0.01, NOW - 0.4, NOW - 0.4)
ANSWERED = ProbeResult(Outcome.ANSWERED, NOW - 4.1, NOW - 4.0, 0.1, True, 200)


def view(
    state: State = State.SERVING, *, reasons: tuple[Why, ...] = (), settings: dict[str, Any] | None = None, **more: Any
) -> BackendView:
    document = {"name": "a", "engine": "vllm", "url": "http://h:1"} | (settings or {})
    defaults: dict[str, Any] = {
        "sources": MappingProxyType({Source.ENGINE: GOOD_PAGE}),
        "probe": ANSWERED,
        "in_flight": 0.0,
        "progress_s": NOW - 30,
    }
    return BackendView(
        BackendSettings.model_validate(document), Liveness(state, reasons, (), 0.0), asked=True, **(defaults | more)
    )


def health(of: BackendView) -> dict[str, Any]:
    return backend_health(of, NOW)


def check(of: BackendView, name: str) -> dict[str, Any]:
    found = health(of)["checks"][name]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("state", "status", "code"),
    [
        (State.SERVING, "pass", 200),
        (State.BUSY, "warn", 200),
        (State.STARTING, "fail", 503),
        (State.HUNG, "fail", 503),
        (State.DOWN, "fail", 503),
        (State.MISCONFIGURED, "unknown", 200),
        (State.UNKNOWN, "unknown", 200),
    ],
)
def test_the_state_makes_the_status_and_blind_is_not_dead(state: State, status: str, code: int) -> None:
    document = health(view(state))
    assert document["status"] == status
    assert document["state"] == state.value
    assert http_status(document) == code


def test_the_document_has_the_shape_of_the_contract() -> None:
    document = health(view(State.BUSY, reasons=(Why.QUEUE,), settings={"gpus": ["0"], "kv_service": "redis://h"}))
    assert list(document) == ["backend", "state", "status", "reasons", "checks"]
    assert document["reasons"] == ["queue"]
    assert set(document["checks"]) == {"gpu_memory", "kv_cache", "semantic_probe", "engine", "progress"}
    for found in document["checks"].values():
        assert {"status", "value", "threshold", "unit", "age_s"} <= set(found)
        assert found["status"] in set(Status)


def test_checks_that_are_not_configured_are_left_out() -> None:
    assert set(health(view(settings={"probe": {"enabled": False}}))["checks"]) == {"engine", "progress"}


@pytest.mark.parametrize(
    ("reading", "status", "reason"),
    [
        (present(0.31, NOW - 0.4), "pass", None),
        (present(0.15, NOW), "pass", None),
        (present(0.149, NOW), "fail", "low"),
        (present(0.0, NOW), "fail", "low"),
        (present(0.31, NOW - 60), "unknown", "stale"),
        (absent("no_warm_baseline_yet"), "unknown", "no_warm_baseline_yet"),
        (None, "unknown", "not_read_yet"),
    ],
)
def test_gpu_memory(reading: Any, status: str, reason: str | None) -> None:
    found = check(view(settings={"gpus": ["0"]}, memory_headroom=reading), "gpu_memory")
    assert (found["status"], found.get("reason")) == (status, reason)
    assert (found["threshold"], found["unit"]) == (0.15, "ratio")


@pytest.mark.parametrize(
    ("ping", "status", "reason"),
    [
        (Ping(NOW - 1, 0.004), "pass", None),
        (Ping(NOW - 1, 0.2), "fail", "slow"),
        (Ping(NOW - 1, 1.0, "timeout"), "fail", "timeout"),
        (Ping(NOW - 1, 0.0, "refused"), "fail", "refused"),
        (Ping(NOW - 60, 0.004), "unknown", "not_read_yet"),
        (None, "unknown", "not_read_yet"),
    ],
)
def test_kv_cache(ping: Ping | None, status: str, reason: str | None) -> None:
    of = view(settings={"kv_service": "redis://h"}, kv_ping=ping)
    found = check(of, "kv_cache")
    assert (found["status"], found.get("reason")) == (status, reason)
    assert ("kv_cache" in health(of)["reasons"]) is (status == "fail")
    assert http_status(health(of)) == (503 if status == "fail" else 200)


def probe(
    outcome: Outcome, first_token_s: float | None = None, status: int | None = None, code: str = "", **more: Any
) -> ProbeResult:
    return ProbeResult(outcome, NOW - 3, NOW - 1, first_token_s, more.pop("accepted", True), status, code, **more)


TIMEOUT = probe(Outcome.TIMEOUT)
PROBES: list[tuple[str, dict[str, Any], str, str | None]] = [
    ("answered", {"probe": probe(Outcome.ANSWERED, 0.3)}, "pass", None),
    ("degenerate", {"probe": probe(Outcome.ANSWERED, 0.3, degenerate=True)}, "warn", "degenerate"),
    ("one time-out is a warning", {"probe": TIMEOUT, "bad_probes": 1}, "warn", "timeout"),
    ("two are a failure", {"probe": TIMEOUT, "bad_probes": 2}, "fail", "timeout"),
    ("one, and the next is overdue", {"probe": TIMEOUT, "bad_probes": 1, "open_probe_s": NOW - 1.3}, "fail", "timeout"),
    ("one, and the next is under way", {"probe": TIMEOUT, "bad_probes": 1, "open_probe_s": NOW - 1.1}, "warn", "timeout"),
    ("time-outs while tokens move", {"probe": TIMEOUT, "bad_probes": 9, "progress_s": NOW - 1}, "warn", "timeout"),
    ("late twice while idle", {"probe": probe(Outcome.TIMEOUT, 1.5), "bad_probes": 2}, "fail", "timeout"),
    ("full", {"probe": probe(Outcome.OVERLOADED, status=429, code="http_429"), "bad_probes": 5}, "warn", "http_429"),
    ("500 twice", {"probe": probe(Outcome.HTTP_ERROR, status=500, code="http_500"), "bad_probes": 2}, "fail", "http_500"),
    ("400", {"probe": probe(Outcome.HTTP_ERROR, status=400, code="http_400"), "bad_probes": 2}, "unknown", "http_400"),
    ("401", {"probe": probe(Outcome.UNAUTHORIZED, status=401, code="http_401"), "bad_probes": 2}, "unknown", "http_401"),
    ("refused twice", {"probe": probe(Outcome.REFUSED, code="refused", accepted=False), "bad_probes": 2}, "fail", "refused"),
    ("out of a cache", {"probe": probe(Outcome.CACHED, code="cached"), "bad_probes": 2}, "unknown", "cached"),
    ("none yet", {"probe": None}, "unknown", "not_asked_yet"),
]


@pytest.mark.parametrize("case", PROBES, ids=[name for name, *_ in PROBES])
def test_semantic_probe(case: tuple[str, dict[str, Any], str, str | None]) -> None:
    _, more, status, reason = case
    found = check(view(**more), "semantic_probe")
    assert (found["status"], found.get("reason")) == (status, reason)
    assert (found["threshold"], found["unit"]) == (1.2, "s")


def test_a_page_that_is_lost_makes_the_engine_check_unknown_and_never_fails_it() -> None:
    lost = SourceView(False, 2.0, NOW - 300, NOW - 1, "http_500")
    of = view(sources=MappingProxyType({Source.ENGINE: lost}))
    assert check(of, "engine")["status"] == "unknown"
    assert check(of, "engine")["reason"] == "http_500"
    assert check(of, "engine")["age_s"] == 300
    assert http_status(health(of)) == 200


def test_progress_fails_when_work_has_stood_still_for_too_long() -> None:
    assert check(view(in_flight=3.0, stalled_since_s=NOW - 9.9), "progress")["status"] == "pass"
    found = check(view(in_flight=3.0, stalled_since_s=NOW - 10), "progress")
    assert (found["status"], found["value"], found["reason"]) == ("fail", 10.0, "no_progress")
    assert check(view(in_flight=None), "progress")["status"] == "unknown"


LOST_PAGE = SourceView(False, 0.01, NOW - 30, NOW - 0.4, "http_500")


@pytest.mark.parametrize("state", [State.UNKNOWN, State.MISCONFIGURED])
def test_work_on_a_page_that_is_lost_since_is_not_a_standstill_and_does_not_fail_the_backend(state: State) -> None:
    blind = view(state, in_flight=3.0, stalled_since_s=NOW - 30, sources=MappingProxyType({Source.ENGINE: LOST_PAGE}))
    assert check(blind, "progress") == {
        "status": "unknown", "value": None, "threshold": 10.0, "unit": "s", "age_s": 30.0, "reason": "stale"
    }  # fmt: skip
    assert http_status(health(blind)) == 200


def test_a_busy_backend_that_stands_still_is_a_warning_and_stays_in_service() -> None:
    busy = view(State.BUSY, in_flight=3.0, stalled_since_s=NOW - 12)
    assert (check(busy, "progress")["status"], check(busy, "progress")["reason"]) == ("warn", "no_progress")
    assert (health(busy)["status"], http_status(health(busy))) == ("warn", 200)


def test_the_fleet_is_as_bad_as_its_worst_and_a_failure_is_worse_than_not_knowing() -> None:
    def fleet(*states: State) -> dict[str, Any]:
        return fleet_health([view(state) for state in states], NOW)

    assert fleet()["status"] == "pass"
    assert fleet(State.SERVING, State.BUSY)["status"] == "warn"
    assert fleet(State.BUSY, State.UNKNOWN)["status"] == "unknown"
    assert fleet(State.UNKNOWN, State.DOWN, State.SERVING)["status"] == "fail"
    assert http_status(fleet(State.UNKNOWN)) == 200
    assert http_status(fleet(State.SERVING, State.HUNG)) == 503
    assert [row["backend"] for row in fleet(State.SERVING)["backends"]] == ["a"]


@pytest.mark.parametrize("state", list(State))
def test_every_document_is_strict_json(state: State) -> None:
    of = view(
        state,
        settings={"gpus": ["0"], "kv_service": "redis://u:s3cret@h"},
        kv_ping=Ping(NOW, 0.1),
        memory_headroom=present(0.5, NOW),
    )
    text = json.dumps(fleet_health([of], NOW), allow_nan=False)
    assert "s3cret" not in text


TAP_CONFIGURED = {"engine": "generic", "tap": {"listen": "127.0.0.1:9500"}}


def tapped(state: State = State.SERVING, *, report_age_s: float = 0.4, **more: Any) -> BackendView:
    report = SourceView(True, None, NOW - report_age_s, NOW - report_age_s)
    return view(state, settings=TAP_CONFIGURED, has_page=False, sources=MappingProxyType({Source.TAP: report}), **more)


def test_a_backend_without_a_page_has_a_progress_check_by_its_tap() -> None:
    assert "progress" not in health(view(has_page=False))["checks"]
    assert check(tapped(in_flight=2.0, stalled_since_s=NOW - 1), "progress")["status"] == "pass"
    hung = check(tapped(State.HUNG, in_flight=2.0, stalled_since_s=NOW - 12), "progress")
    assert (hung["status"], hung["reason"]) == ("fail", "no_progress")


def test_a_standstill_that_only_the_tap_has_seen_fails_nothing_by_itself() -> None:
    """An answer in one piece takes as long as it takes."""
    waiting = tapped(State.UNKNOWN, in_flight=1.0, stalled_since_s=NOW - 12)
    assert (check(waiting, "progress")["status"], http_status(health(waiting))) == ("unknown", 200)


def test_a_tap_that_no_longer_reports_leaves_progress_unknown() -> None:
    found = check(tapped(in_flight=2.0, stalled_since_s=NOW - 12, report_age_s=9.0), "progress")
    assert (found["status"], found["reason"]) == ("unknown", "stale")
