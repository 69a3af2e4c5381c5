"""The boards, in the order of the menu. A file in this folder that is missing here fails a test."""

from __future__ import annotations

from collections.abc import Callable

from grafana_foundation_sdk.builders import dashboard

from tailkeeper_dashboards.boards import backend, canary, capacity, fleet, gpu, healing, root_cause, watchdog
from tailkeeper_dashboards.settings import BoardSettings

BOARDS: tuple[Callable[[BoardSettings], dashboard.Dashboard], ...] = (
    fleet.board,
    root_cause.board,
    backend.board,
    gpu.board,
    canary.board,
    healing.board,
    capacity.board,
    watchdog.board,
)
