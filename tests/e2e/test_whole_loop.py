"""The main job on real programs: a backend falls ill, users are moved away, people are told, and traffic comes back."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.real_programs import RealPrograms
from tests.e2e.stack import Stack, until, whole_stack

pytestmark = pytest.mark.real

REACTION_LIMIT_S = 2.0
"""From the first exporter page that reports the state to the drain at HAProxy (issue text), direct mode, tick 0.5 s."""


def delivered(stack: Stack, alert: str, backend: str, status: str = "firing") -> bool:
    """Whether Alertmanager's webhook has brought this alert."""
    return any(
        a["labels"].get("alertname") == alert and a["labels"].get("backend") == backend and a["status"] == status
        for body in stack.receiver.bodies
        for a in body.get("alerts", ())
    )


def hung_alerts(stack: Stack) -> list[dict[str, Any]]:
    return [a for body in stack.receiver.bodies for a in body["alerts"] if a["labels"]["alertname"] == "BackendHung"]


def by_the_watchdog(alert: dict[str, Any]) -> bool:
    return "kind" in alert["labels"]


def weights_until_back(stack: Stack, name: str, limit_s: float) -> list[int]:
    """Weights that HAProxy had for a server that takes traffic, until it is back at 100."""
    seen: list[int] = []
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        status, weight = stack.server(name)
        if status.startswith("UP") and (not seen or seen[-1] != weight):
            seen.append(weight)
        if seen and seen[-1] == 100 and not stack.backend(name)["leases"]:
            return seen
        time.sleep(0.05)
    raise AssertionError(f"{name} is not back: {seen}, {stack.server(name)}, {stack.api('decisions?limit=20')}")


def test_a_hang_is_drained_told_and_brought_back_step_by_step(programs: RealPrograms, tmp_path: Path) -> None:
    with whole_stack(programs, tmp_path) as stack:
        until("all serving", lambda: all(b["state"] == "serving" for b in stack.api("fleet")["backends"]), 30)
        stack.inject("sim-b", "hang")
        reported = until("the page to report hung", lambda: stack.says("sim-b", "hung"), 30, 0.01)
        drained = until("the drain at HAProxy", lambda: stack.drained("sim-b"), 10, 0.01)
        assert drained - reported < REACTION_LIMIT_S

        (finding,) = [f for f in stack.api("findings?open=true") if f["kind"] == "hung"]
        assert finding["backend"] == "sim-b"
        assert "no token" in finding["summary"]
        (decision,) = [d for d in stack.api("decisions?backend=sim-b") if d["verdict"] == "applied"]
        assert (decision["knob"], decision["to"], decision["policy"]) == ("admission", "drain", "gpu_health_gate")
        until("the alert at the receiver", lambda: delivered(stack, "BackendHung", "sim-b"), 20)
        until("the watchdog's own alert", lambda: any(by_the_watchdog(a) for a in hung_alerts(stack)), 20)
        until("Prometheus' own rule to fire", lambda: prometheus_fires(stack, "BackendHung", "sim-b"), 20)
        assert all(not stack.drained(n) for n in stack.names if n != "sim-b")

        stack.clear("sim-b")
        steps = weights_until_back(stack, "sim-b", 60)
        assert steps == sorted(steps), "a return only rises"
        assert steps[0] == 25
        assert 50 in steps
        until("the finding to close", lambda: not stack.api("findings?open=true"), 20)
        until("the alert to resolve", lambda: delivered(stack, "BackendHung", "sim-b", "resolved"), 60)
        stack.stop_watchdog()


def prometheus_fires(stack: Stack, alert: str, backend: str) -> bool:
    assert stack.prometheus is not None
    answer = stack.prometheus.get("/api/v1/query", query=f'ALERTS{{alertname="{alert}",backend="{backend}",alertstate="firing"}}')
    return bool(answer["data"]["result"])


def test_kill_9_in_the_middle_loses_no_lease_and_the_next_watchdog_gives_it_back(programs: RealPrograms, tmp_path: Path) -> None:
    with whole_stack(programs, tmp_path) as stack:
        until("all serving", lambda: all(b["state"] == "serving" for b in stack.api("fleet")["backends"]), 30)
        stack.inject("sim-c", "hang")
        until("the drain at HAProxy", lambda: stack.drained("sim-c"), 30)
        stack.kill_watchdog()
        assert stack.drained("sim-c")
        stack.start_watchdog()
        (lease,) = stack.backend("sim-c")["leases"]
        assert (lease["knob"], lease["prior"], lease["written"]) == ("admission", "serve", "drain")
        stack.clear("sim-c")
        assert weights_until_back(stack, "sim-c", 60)[-1] == 100


def test_the_default_configuration_changes_nothing_at_the_gateway(programs: RealPrograms, tmp_path: Path) -> None:
    with whole_stack(programs, tmp_path, mode="observe") as stack:
        until("all serving", lambda: all(b["state"] == "serving" for b in stack.api("fleet")["backends"]), 30)
        before = stack.haproxy.ask("show servers state")
        stack.inject("sim-a", "hang")
        until("the decision to be written down", lambda: bool(stack.api("decisions?backend=sim-a")), 30)
        time.sleep(2.0)
        assert {d["verdict"] for d in stack.api("decisions")} == {"observed"}
        assert [r.split()[:8] for r in stack.haproxy.ask("show servers state").splitlines()[2:] if r] == [
            r.split()[:8] for r in before.splitlines()[2:] if r
        ], "weights and administrative states as they were"


def test_with_prometheus_as_its_only_source_the_watchdog_does_the_same(programs: RealPrograms, tmp_path: Path) -> None:
    with whole_stack(programs, tmp_path, source="prometheus") as stack:
        until("all serving", lambda: all(b["state"] == "serving" for b in stack.api("fleet")["backends"]), 30)
        until("a P99 to be known", lambda: all(b["p99_s"] is not None for b in stack.api("fleet")["backends"]), 60)
        stack.inject("sim-d", "hang")
        until("the drain at HAProxy", lambda: stack.drained("sim-d"), 40)
        stack.clear("sim-d")
        assert weights_until_back(stack, "sim-d", 60)[-1] == 100
