"""Who stops the traffic to a sick engine, and how long after the fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.results.markdown import markdown

FAULTS = {
    "hung": "hangs, `/health` stays 200",
    "errors": "answers every request 500, `/health` stays 200",
    "dead": "is dead: nobody listens",
}
WHO = {
    "tailkeeper": "Tailkeeper (tick 0.5 s, defaults, HAProxy without checks)",
    "haproxy_checks": "HAProxy `check inter 1s fall 3`, `GET /health`",
    "envoy_outlier_detection": "Envoy's outlier detection (5 in a row)",
}


def table(figures: Mapping[str, Any]) -> str:
    stopped, horizon_s = figures["peers"]["fault_to_last_request_seconds"], figures["peers"]["horizon_s"]
    who = [name for name in WHO if any(name in of_fault for of_fault in stopped.values())]
    rows = [(text, *(_cell(stopped[fault].get(name), horizon_s) for name in who)) for fault, text in FAULTS.items()]
    return markdown(("the engine", *(WHO[name] for name in who)), rows)


def _cell(seconds: float | None, horizon_s: float) -> str:
    return f"not within {horizon_s:g} s" if seconds is None else f"{seconds:.1f} s"
