"""What must be true of a running compose stack; run by tools/compose-check.sh beside it, standard library only.

    PYTHONPATH=.:exporter:watchdog:dashboards:alerts python3 -m tests.e2e.compose_probe

Every target is scraped and every rule runs; a hang injected into one engine changes that engine's state at HAProxy and reaches
Alertmanager and, from there, the watchdog's webhook; every board's queries to Prometheus have data; spans and logs of requests
and of the watchdog arrive; and after the fault the weight is back. The containers are small, hardened and nobody's root. Then the
demo is left behind, and an engine outside the stack is watched after the edits that .env and deploy/own tell of. Each step prints
how long it took. Exit 0, or 1 with the step that failed and what was last seen.
"""

from __future__ import annotations

import sys

from tests.e2e.compose_boards import board_queries, boards_have_data, group_names, rules_run
from tests.e2e.compose_containers import containers_are_hardened, images_are_small
from tests.e2e.compose_own import is_probed, is_watched, own_engine
from tests.e2e.compose_stack import Look, StepError, call, inside, published, query, until
from tests.e2e.compose_telemetry import STORES, stub_received, telemetry_arrived

VICTIM = "sim-b"
JOBS = {"tailkeeper-exporter", "tailkeeper-watchdog", "prometheus", "alertmanager"}
READY_S, FOUND_S, TOLD_S, DATA_S, BACK_S = 60, 60, 60, 90, 150
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


def targets_up() -> tuple[bool, object]:
    """All that are there; a stub shows no metrics, so what it stands in for is down with it."""
    health = {t["labels"]["job"]: t["health"] for t in published("prometheus", 9090, "/api/v1/targets")["data"]["activeTargets"]}
    wanted = JOBS if stub_received() is not None else JOBS | STORES
    return health.keys() == JOBS | STORES and {health[job] for job in wanted} == {"up"}, health


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


def grafana_answers() -> tuple[bool, object]:
    health = published("grafana", 3000, "/api/health")
    return health.get("database") == "ok", health


def main() -> int:
    steps: list[tuple[str, float, Look]] = [
        (f"{VICTIM} out of the pool at HAProxy", FOUND_S, taken_out),
        ("BackendHung in Alertmanager", TOLD_S, alert_in_alertmanager),
        ("BackendHung at the watchdog's webhook", TOLD_S, alert_at_watchdog),
        (f"all {len(board_queries())} queries of the boards answered with data", DATA_S, boards_have_data),
        ("spans and logs of requests and of the watchdog arrived", DATA_S, telemetry_arrived),
    ]
    try:
        until("Grafana (or its stub) answers", READY_S, grafana_answers)
        until("every container is hardened and nobody is root", READY_S, containers_are_hardened)
        until("little is installed", READY_S, images_are_small)
        until(f"targets up: {', '.join(sorted(JOBS))}", READY_S, targets_up)
        until(f"every rule of {len(group_names())} groups runs", READY_S, rules_run)
        until("every server of the pool serves requests", READY_S, all_serve_requests)
        until(f"{VICTIM} in the pool with its full weight", READY_S, back)
        call("POST", "http://fleet:8000/faults", {"engine": VICTIM, "fault": "hang", "duration_s": HANG_S})
        for step, limit_s, look in steps:
            until(step, limit_s, look)
        call("DELETE", f"http://fleet:8000/faults/{VICTIM}")
        until(f"{VICTIM} back at its full weight", BACK_S, back)
        with own_engine():
            until("one's own engine, outside the stack, serves at the console and in Prometheus", FOUND_S, is_watched)
            until("one's own engine is probed", FOUND_S, is_probed)
    except StepError as error:
        print(f"probe FAILED: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
