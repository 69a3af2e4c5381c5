"""The few numbers and addresses that boards show and metrics do not carry. Defaults are the configuration file's.

The uids of the boards are fixed by the public contract; ``NAMES`` is their one list, in the order of the menu.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailkeeper_alerts.model import BACKEND_BOARD_UID, FLEET_BOARD_UID, WATCHDOG_BOARD_UID
from tailkeeper_watchdog.alert_terms import ROOT_CAUSE_BOARD_UID

FLEET_UID = FLEET_BOARD_UID
ROOT_CAUSE_UID = ROOT_CAUSE_BOARD_UID
BACKEND_UID = BACKEND_BOARD_UID
GPU_UID = "tailkeeper-gpu"
CANARY_UID = "tailkeeper-canary"
HEALING_UID = "tailkeeper-healing"
CAPACITY_UID = "tailkeeper-capacity"
WATCHDOG_UID = WATCHDOG_BOARD_UID

NAMES: dict[str, str] = {
    FLEET_UID: "Fleet SLA",
    ROOT_CAUSE_UID: "Root cause",
    BACKEND_UID: "Backend",
    GPU_UID: "GPU & KV",
    CANARY_UID: "Canary",
    HEALING_UID: "Self-healing",
    CAPACITY_UID: "Capacity & cost",
    WATCHDOG_UID: "Watchdog",
}
"""Every board by uid, as menus and links call it."""


@dataclass(frozen=True, slots=True)
class BoardSettings:
    """The SLO's P99 bounds in seconds, and ``objective``, the share of good requests to reach."""

    slo_ttft_s: float = 1.2
    objective: float = 0.995
    slo_itl_s: float = 0.2
    slo_e2e_s: float = 30.0
    console_url: str = "http://127.0.0.1:8088"
