"""What the check of the compose stack asks Tempo and Loki, answered by the doubles: the real ones are not there to try it."""

from __future__ import annotations

from typing import Any

import httpx

from tests.e2e.compose_telemetry import LOGS, SPANS, not_at_stub, not_in_stores
from tests.unit.sent_telemetry import AT_S, logs, request, spans
from tools.doubles.server import doubles


def _missing(sent: bool) -> list[str]:
    def get(url: str) -> Any:
        return httpx.get(url, trust_env=False).raise_for_status().json()

    with doubles() as running:
        for traces in spans(request(0)) if sent else []:
            running.store.add_spans(traces)
        for records in logs(request(0)) if sent else []:
            running.store.add_logs(records)
        return not_in_stores(get, running.url, running.url, AT_S + 10)


def test_stores_without_anything_miss_all_that_is_looked_for() -> None:
    assert len(_missing(sent=False)) == sum(len(names) for wanted in (SPANS, LOGS) for names in wanted.values())


def test_a_request_that_was_sent_is_found_in_both_and_the_watchdogs_part_is_still_missed() -> None:
    missing = _missing(sent=True)
    assert missing
    assert {line.split(":")[0].split()[1] for line in missing} == {"tailkeeper-watchdog"}


def test_what_a_stub_was_not_told_is_named() -> None:
    received = {
        "/v1/traces": {service: sorted(names) for service, names in SPANS.items()},
        "/v1/logs": {service: sorted(names) for service, names in LOGS.items()},
    }
    assert not_at_stub(received) == []
    received["/v1/traces"]["tailkeeper-tap"].remove("decode")
    del received["/v1/logs"]["tailkeeper-watchdog"]
    assert not_at_stub(received) == [
        "/v1/traces tailkeeper-tap: decode",
        *(f"/v1/logs tailkeeper-watchdog: {name}" for name in ("phase", "strategy_id", "trigger_reason")),
    ]
