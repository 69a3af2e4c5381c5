"""A real collector judges what the watchdog says about itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tailkeeper_exporter.otlp import sender
from tailkeeper_watchdog.happenings.names import Step
from tests.contract.webhook_gateway import NORMAL, webhook_gateway
from tests.e2e.rotel_agent import rotel
from tests.e2e.test_otlp_rotel import prints, seconds
from tests.loopback.watched_by_telemetry import NAMES, watching

pytestmark = pytest.mark.real


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "LINGER_S", 0.05)


async def test_a_real_collector_reads_the_decision_log_and_the_tick_it_belongs_to(tmp_path: Path) -> None:
    with rotel(tmp_path) as agent, webhook_gateway({name: dict(NORMAL) for name in NAMES}) as gateway:
        otlp = {"endpoint": agent.url, "logs": True}
        async with watching(tmp_path, {"kind": "webhook", "url": gateway.url}, otlp=otlp) as (watchdog, page):
            await watchdog.loop.tick()
            page.states["b"] = "hung"
            record = await watchdog.loop.tick()
            await prints(agent, 1 + len(Step), 2)
            finding, applied = agent.logs()
            root, *children = agent.spans()
    (decision,) = record.decisions
    assert (
        applied.attributes.items()
        >= {
            "strategy_id": "Str(gpu_health_gate)",
            "trigger_reason": "Str(hung)",
            "phase": "Str(applied)",
            "backend": "Str(b)",
            "knob": "Str(admission)",
            "from": "Str(serve)",
            "to": "Str(drain)",
            "verdict": "Str(applied)",
            "gateway": "Str(edge)",
            "server": "Str(b)",
            "tick": "Int(2)",
            "decision_id": f"Int({decision.id})",
        }.items()
    )
    assert applied.attributes["finding_id"] == finding.attributes["finding_id"]
    assert float(applied.attributes["lease_expires"].removeprefix("Double(").rstrip(")")) == decision.lease_expires_unix_s
    assert (finding.fields["SeverityText"], finding.attributes["phase"]) == ("ERROR", "Str(triggered)")
    assert "b: gpu_health_gate applied admission serve → drain: hung" in applied.fields["Body"]
    assert [span.fields["Name"] for span in (root, *children)] == ["tick", *Step]
    act = children[[*Step].index(Step.ACT)]
    assert (applied.fields["Trace ID"], applied.fields["Span ID"]) == (act.fields["Trace ID"], act.fields["ID"])
    assert {span.fields["Parent ID"] for span in children} == {root.fields["ID"]}
    assert 0 < sum(seconds(span) for span in children) <= seconds(root) + 1e-9
    assert seconds(root) == pytest.approx(record.duration_s, abs=1e-3)
    assert float(root.fields["Start time"]) / 1e9 == pytest.approx(record.time_unix_s, abs=2.0)


async def test_a_real_collector_that_comes_late_gets_what_waited(tmp_path: Path) -> None:
    with webhook_gateway({name: dict(NORMAL) for name in NAMES}) as gateway:
        with rotel(tmp_path) as agent:
            url = agent.url
        otlp = {"endpoint": url, "logs": True}
        async with watching(tmp_path, {"kind": "webhook", "url": gateway.url}, otlp=otlp) as (watchdog, page):
            page.states["b"] = "hung"
            await watchdog.loop.tick()
            await asyncio.sleep(0.3)
            assert watchdog.telemetry is not None
            with rotel(tmp_path, at=int(url.rpartition(":")[2])) as late:
                await prints(late, 1 + len(Step), 2)
