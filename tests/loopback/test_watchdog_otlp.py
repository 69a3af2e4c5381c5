"""The watchdog's own telemetry through real sockets: a collector that is away or hangs costs no tick anything."""

from __future__ import annotations

import asyncio
import gzip
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from tailkeeper_exporter.otlp import sender
from tailkeeper_exporter.otlp.attributes import read
from tailkeeper_exporter.otlp.counts import Outcome
from tailkeeper_watchdog.app import Watchdog
from tailkeeper_watchdog.happenings.names import Step
from tailkeeper_watchdog.otlp.service import MAX_TICKS_WAITING
from tests.contract.webhook_gateway import NORMAL, webhook_gateway
from tests.loopback.test_collector import until
from tests.loopback.watched_by_telemetry import NAMES, watching
from tests.unit.loopback import reply, serving, silence


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "LINGER_S", 0.05)
    monkeypatch.setattr(sender, "FIRST_PAUSE_S", 0.1)
    monkeypatch.setattr(sender, "LONGEST_PAUSE_S", 0.2)
    monkeypatch.setattr(sender, "FLUSH_S", 0.3)


def documents() -> dict[str, dict[str, Any]]:
    return {name: dict(NORMAL) for name in NAMES}


async def ticks(watchdog: Watchdog, number: int = 1) -> float:
    """The longest of so many ticks, in seconds, its telling included."""
    longest = 0.0
    for _ in range(number):
        began = time.monotonic()
        record = await watchdog.loop.tick()
        longest = max(longest, time.monotonic() - began)
        assert record.error is None, record.error
    return longest


async def page_of(watchdog: Watchdog) -> str:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(watchdog.asgi), base_url="http://127.0.0.1:8088") as client:
        return (await client.get("/metrics")).text


async def test_a_collector_that_takes_it_gets_the_finding_and_the_change_with_the_headers_of_the_file(tmp_path: Path) -> None:
    secret = tmp_path / "headers"
    secret.write_text("Authorization: Bearer s3cret\n")
    async with serving(reply(200)) as collector:
        otlp = {"endpoint": collector.url, "headers_file": str(secret), "logs": True}
        with webhook_gateway(documents()) as gateway:
            async with watching(tmp_path, {"kind": "webhook", "url": gateway.url}, otlp=otlp) as (watchdog, page):
                assert 'tailkeeper_watchdog_otlp_logs_total{outcome="sent"} 0.0' in await page_of(watchdog)
                await ticks(watchdog, 2)
                page.states["b"] = "hung"
                await ticks(watchdog)
                await until(lambda: {seen.path for seen in collector.requests} == {"/v1/logs", "/v1/traces"})
                assert gateway.documents["b"]["admission"] == "drain"
                telemetry = watchdog.telemetry
                assert telemetry is not None
                await until(lambda: telemetry.counts.logs[Outcome.SENT] == 2)
                assert 'tailkeeper_watchdog_otlp_logs_total{outcome="sent"} 2.0' in await page_of(watchdog)
    assert {seen.headers["authorization"] for seen in collector.requests} == {"Bearer s3cret"}
    posts = [ExportLogsServiceRequest.FromString(gzip.decompress(s.body)) for s in collector.requests if s.path == "/v1/logs"]
    told = [read(r.attributes) for post in posts for rl in post.resource_logs for r in rl.scope_logs[0].log_records]
    assert [(t["phase"], t["trigger_reason"], t["strategy_id"], t["backend"]) for t in told] == [
        ("triggered", "hung", "gpu_health_gate", "b"),
        ("applied", "hung", "gpu_health_gate", "b"),
    ]


async def test_without_logs_only_traces_are_sent_and_a_quiet_tick_sends_nothing(tmp_path: Path) -> None:
    async with serving(reply(200)) as collector:
        with webhook_gateway(documents()) as gateway:
            otlp = {"endpoint": collector.url}
            async with watching(tmp_path, {"kind": "webhook", "url": gateway.url}, otlp=otlp) as (watchdog, page):
                await ticks(watchdog, 5)
                await asyncio.sleep(0.2)
                assert collector.requests == []
                page.states["b"] = "hung"
                await ticks(watchdog)
                await until(lambda: len(collector.requests) == 1)
    assert {seen.path for seen in collector.requests} == {"/v1/traces"}


async def test_without_a_collector_nothing_is_offered(tmp_path: Path) -> None:
    with webhook_gateway(documents()) as gateway:
        async with watching(tmp_path, {"kind": "webhook", "url": gateway.url}) as (watchdog, _):
            assert watchdog.telemetry is None
            assert 'tailkeeper_watchdog_otlp_logs_total{outcome="offered"} 0.0' in await page_of(watchdog)


@pytest.mark.parametrize("down", ["away", "hangs", "refuses"])
async def test_a_collector_that_does_not_take_it_costs_no_tick_its_time(tmp_path: Path, down: str) -> None:
    """Every tick has something to tell, and a collector that is waited for would cost it ten seconds."""
    answers = {"away": reply(200), "hangs": silence, "refuses": reply(400)}
    async with serving(answers[down]) as collector:
        url = "http://127.0.0.1:9" if down == "away" else collector.url
        with webhook_gateway(documents()) as gateway:
            otlp = {"endpoint": url, "logs": True}
            async with watching(tmp_path, {"kind": "webhook", "url": gateway.url}, otlp=otlp) as (watchdog, page):
                longest = 0.0
                page.states["b"] = "hung"
                for _ in range(20):
                    watchdog._teller._open.clear()  # as if the finding had opened anew
                    longest = max(longest, await ticks(watchdog))
                telemetry = watchdog.telemetry
                assert telemetry is not None
                counts = telemetry.counts
                await until(lambda: counts.logs[Outcome.OFFERED] > 10)
                if down == "refuses":
                    await until(lambda: counts.logs[Outcome.REFUSED] == counts.logs[Outcome.OFFERED])
    assert longest < 0.5
    lost = counts.logs[Outcome.DROPPED] + counts.logs[Outcome.REFUSED]
    assert (lost, counts.logs[Outcome.SENT]) == (counts.logs[Outcome.OFFERED], 0)


async def test_what_waits_is_bounded_and_the_rest_is_counted(tmp_path: Path) -> None:
    """Ten thousand changes between two turns of the event loop: nothing is written or sent meanwhile."""
    with webhook_gateway(documents()) as gateway:
        otlp = {"endpoint": "http://127.0.0.1:9", "logs": True}
        async with watching(tmp_path, {"kind": "webhook", "url": gateway.url}, otlp=otlp) as (watchdog, page):
            page.states["b"] = "hung"
            await ticks(watchdog)
            telemetry, record = watchdog.telemetry, watchdog.loop.latest
            assert telemetry is not None
            assert record is not None
            await until(lambda: telemetry.counts.logs[Outcome.OFFERED] == 2)
            watchdog._teller._open.clear()
            told = watchdog._teller.tell(record, ())
            began = time.monotonic()
            for _ in range(10_000):
                telemetry.note(record, watchdog.loop.laps, told)
            each_s = (time.monotonic() - began) / 10_000
            assert each_s < 0.001  # measured: 0.02 ms
            assert telemetry.counts.logs[Outcome.DROPPED] == 10_000 - MAX_TICKS_WAITING
            await until(lambda: telemetry.counts.logs[Outcome.OFFERED] == 10_002)
    assert telemetry.counts.logs[Outcome.DROPPED] == 10_002
    assert telemetry.counts.spans[Outcome.DROPPED] == telemetry.counts.spans[Outcome.OFFERED] == 10_001 * (1 + len(Step))


async def test_the_last_tick_before_the_end_is_sent(tmp_path: Path) -> None:
    async with serving(reply(200)) as collector:
        with webhook_gateway(documents()) as gateway:
            otlp = {"endpoint": collector.url, "logs": True}
            async with watching(tmp_path, {"kind": "webhook", "url": gateway.url}, otlp=otlp) as (watchdog, page):
                page.states["b"] = "hung"
                await ticks(watchdog)
            assert watchdog.telemetry is not None
            assert watchdog.telemetry.counts.logs[Outcome.SENT] == 2
            assert watchdog.telemetry.counts.spans[Outcome.SENT] == 1 + len(Step)
