"""Ticks of which no record is kept are counted, where records are kept at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tailkeeper_watchdog.app import Watchdog
from tests.loopback.watched_by_telemetry import watching

GATEWAY = {"kind": "webhook", "url": "http://127.0.0.1:9"}


async def unrecorded(built: Watchdog) -> list[str]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(built.asgi), base_url="http://127.0.0.1:8088") as client:
        page = (await client.get("/metrics")).text
    return [line for line in page.splitlines() if line.startswith("tailkeeper_ticks_unrecorded_total")]


@pytest.mark.parametrize(
    ("records", "told"),
    [
        ({"enabled": False}, []),
        ({"enabled": True}, ["tailkeeper_ticks_unrecorded_total 0.0"]),
        ({"path": "/dev/full"}, ["tailkeeper_ticks_unrecorded_total 1.0"]),
    ],
)
async def test_a_tick_that_was_not_recorded_is_counted(tmp_path: Path, records: dict[str, Any], told: list[str]) -> None:
    async with watching(tmp_path, GATEWAY, records=records) as (built, _):
        if built._recorder is not None:
            built._recorder._batch_since = float("-inf")  # each tick is written at once
        await built.loop.tick()
        if built._recorder is not None:
            built._recorder.settle()
        assert await unrecorded(built) == told
