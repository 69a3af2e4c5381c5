"""The few numbers and addresses that boards show and metrics do not carry. Defaults are the configuration file's."""

from __future__ import annotations

from dataclasses import dataclass

from tailkeeper_alerts.model import FLEET_BOARD_UID

FLEET_UID = FLEET_BOARD_UID


@dataclass(frozen=True, slots=True)
class BoardSettings:
    """``slo_ttft_s`` is the SLO for P99 of TTFT in seconds, ``objective`` the share of good requests to reach."""

    slo_ttft_s: float = 1.2
    objective: float = 0.995
    console_url: str = "http://127.0.0.1:8088"
