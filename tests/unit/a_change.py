"""A change at a cluster as the watchdog tells it, for tests."""

from __future__ import annotations

from typing import Any

from tailkeeper_watchdog.happenings import names
from tailkeeper_watchdog.happenings.names import Phase, Step, Trigger
from tailkeeper_watchdog.happenings.teller import Happening
from tailkeeper_watchdog.model import Severity


def a_change(server: str = "llm/a", verdict: str = "applied", number: int = 1, **changes: Any) -> Happening:
    values = {names.VERDICT: verdict, names.KNOB: "admission", names.FROM: "serve", names.TO: "drain", names.DECISION_ID: number}
    told: dict[str, Any] = {
        "at_unix_s": 1_700_000_000.0, "strategy": "gpu_health_gate", "trigger": Trigger.HUNG, "phase": Phase.APPLIED,
        "backend": "a", "sentence": "a: drained: hung", "step": Step.ACT, "severity": Severity.INFO, "values": values,
        "gateway": "cluster", "server": server,
    }  # fmt: skip
    return Happening(**{**told, **changes})
