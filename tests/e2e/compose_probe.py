"""What must be true of a running compose stack; run by tools/compose-check.sh beside it, standard library only.

    python3 tests/e2e/compose_probe.py

Every target is scraped, a hang injected into one engine changes that engine's state at HAProxy and reaches Alertmanager
and, from there, the watchdog's webhook; every query of the fleet board has data; and after the fault the weight is back.
Each step prints how long it took. Exit 0, or 1 with the step that failed and what was last seen.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

BOARD = Path("dashboards/generated/tailkeeper-fleet.json")
VICTIM = "sim-b"
JOBS = {"tailkeeper-exporter", "tailkeeper-watchdog", "prometheus", "alertmanager"}
VARIABLES = {"$__rate_interval": "30s", "$cluster": ".*", "$backend": ".*", "$model": ".*"}
READY_S, FOUND_S, TOLD_S, DATA_S, BACK_S = 60, 60, 60, 60, 150
HANG_S = 600
"""Longer than this probe: it ends the fault itself."""
REQUESTS_BY_BACKEND = 'sum by (backend) (increase(llm_requests_total{outcome="ok"}[30s]))'
RUNNING = "2"
"""HAProxy's srv_op_state of a server that is up."""
FORCED = 0x01 | 0x08
"""HAProxy's bits of srv_admin_state for maintenance and drain that were ordered, not found out."""

# Runs in the watchdog's container, the only one that shares HAProxy's socket.
_ASK_HAPROXY = """
import socket, sys
with socket.socket(socket.AF_UNIX) as client:
    client.connect("/run/gateway/admin.sock")
    client.sendall(b"show servers state llm\\n")
    print(b"".join(iter(lambda: client.recv(65536), b"")).decode())
"""
_CALL = """
import sys, urllib.request
method, url, body = sys.argv[1:4]
request = urllib.request.Request(url, body.encode() or None, {"Content-Type": "application/json"}, method=method)
print(urllib.request.urlopen(request, timeout=5).read().decode())
"""


class StepError(Exception):
    """A step that did not become true in time."""


def compose(*arguments: str) -> str:
    """Output of one docker compose command. Raises StepError with its error output."""
    done = subprocess.run(["docker", "compose", *arguments], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise StepError(f"docker compose {arguments[0]}: {done.stderr.strip()[-500:]}")
    return done.stdout


def inside(script: str, *arguments: str) -> str:
    """Output of a Python script run in the watchdog's container, where every service can be reached by name."""
    return compose("exec", "-T", "watchdog", "python", "-c", script, *arguments)


def call(method: str, url: str, body: object = None) -> Any:
    return json.loads(inside(_CALL, method, url, "" if body is None else json.dumps(body)))


def published(service: str, port: int, path: str) -> Any:
    """JSON from a published port, as a user of this machine would read it."""
    address = compose("port", service, str(port)).strip()
    with urllib.request.urlopen(f"http://{address}{path}", timeout=5) as response:
        return json.load(response)


def until(step: str, limit_s: float, look: Callable[[], tuple[bool, object]]) -> None:
    """Repeat ``look`` (whether it holds, and what was seen) until it holds. Raises StepError after ``limit_s``."""
    started, seen = time.monotonic(), object()
    while time.monotonic() - started < limit_s:
        try:
            holds, seen = look()
        except (StepError, OSError, ValueError, KeyError) as error:
            holds, seen = False, error
        if holds:
            print(f"probe [{time.monotonic() - started:5.1f}s] {step}", flush=True)
            return
        time.sleep(0.5)
    raise StepError(f"{step}: not within {limit_s:g} s; last seen: {seen}")


def query(expr: str) -> list[Any]:
    path = "/api/v1/query?" + urllib.parse.urlencode({"query": expr})
    result: list[Any] = published("prometheus", 9090, path)["data"]["result"]
    return result


def targets_up() -> tuple[bool, object]:
    health = {t["labels"]["job"]: t["health"] for t in published("prometheus", 9090, "/api/v1/targets")["data"]["activeTargets"]}
    return set(health) == JOBS and set(health.values()) == {"up"}, health


def servers() -> dict[str, dict[str, str]]:
    """HAProxy's server states, by server and column name."""
    lines = [line for line in inside(_ASK_HAPROXY).splitlines() if line and line != "1"]
    columns = lines[0].removeprefix("# ").split()
    rows = [dict(zip(columns, line.split(), strict=False)) for line in lines[1:]]
    return {row["srv_name"]: row for row in rows}


def all_serve_requests() -> tuple[bool, object]:
    """Every server of the pool is running at HAProxy, and its engine finished requests in the last half minute."""
    states = {name: (row["srv_op_state"], row["srv_admin_state"]) for name, row in servers().items()}
    rates = {s["metric"]["backend"]: float(s["value"][1]) for s in query(REQUESTS_BY_BACKEND)}
    good = set(states.values()) == {(RUNNING, "0")} and states.keys() == {name for name, rate in rates.items() if rate > 0}
    return good, (states, rates)


def taken_out() -> tuple[bool, object]:
    state = servers()[VICTIM]
    return state["srv_uweight"] == "0" or int(state["srv_admin_state"]) & FORCED != 0, state


def back() -> tuple[bool, object]:
    state = servers()[VICTIM]
    return state["srv_uweight"] == state["srv_iweight"] and int(state["srv_admin_state"]) & FORCED == 0, state


def alert_in_alertmanager() -> tuple[bool, object]:
    alerts = call("GET", "http://alertmanager:9093/api/v2/alerts?filter=alertname%3DBackendHung")
    labels = [alert["labels"] for alert in alerts]
    return any(label.get("backend") == VICTIM for label in labels), labels


def alert_at_watchdog() -> tuple[bool, object]:
    received = published("watchdog", 8088, "/api/v1/alerts")
    names = [(alert["labels"].get("alertname"), alert["labels"].get("backend")) for alert in received]
    return ("BackendHung", VICTIM) in names, names


def board_queries() -> list[tuple[str, str]]:
    """(panel and reference, expression) of every query of the board, with values for its variables."""
    panels = json.loads(BOARD.read_text(encoding="utf-8"))["panels"]
    found = [(f"{panel['title']} {target['refId']}", target["expr"]) for panel in panels for target in panel["targets"]]
    return [(where, _filled(expr)) for where, expr in found]


def _filled(expr: str) -> str:
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    return expr


def board_has_data() -> tuple[bool, object]:
    empty = [where for where, expr in board_queries() if not query(expr)]
    return not empty, empty


def grafana_answers() -> tuple[bool, object]:
    health = published("grafana", 3000, "/api/health")
    return health.get("database") == "ok", health


def main() -> int:
    steps: list[tuple[str, float, Callable[[], tuple[bool, object]]]] = [
        (f"{VICTIM} out of the pool at HAProxy", FOUND_S, taken_out),
        ("BackendHung in Alertmanager", TOLD_S, alert_in_alertmanager),
        ("BackendHung at the watchdog's webhook", TOLD_S, alert_at_watchdog),
        (f"all {len(board_queries())} queries of the fleet board answered with data", DATA_S, board_has_data),
    ]
    try:
        until("Grafana (or its stub) answers", READY_S, grafana_answers)
        until(f"targets up: {', '.join(sorted(JOBS))}", READY_S, targets_up)
        until("every server of the pool serves requests", READY_S, all_serve_requests)
        until(f"{VICTIM} in the pool with its full weight", READY_S, back)
        call("POST", "http://fleet:8000/faults", {"engine": VICTIM, "fault": "hang", "duration_s": HANG_S})
        for step, limit_s, look in steps:
            until(step, limit_s, look)
        call("DELETE", f"http://fleet:8000/faults/{VICTIM}")
        until(f"{VICTIM} back at its full weight", BACK_S, back)
    except StepError as error:
        print(f"probe FAILED: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
