"""Events in a cluster beside our changes: at the very object, in the boards' words, and never in the way of a change.

Against a FAKE API server that was written from the documented shapes (``fake_kube_api``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from tailkeeper.config import parse
from tailkeeper_watchdog.actuators.kube_events import MAX_MESSAGE_BYTES
from tailkeeper_watchdog.app import Watchdog, build_announcers
from tailkeeper_watchdog.gateways import KubernetesGateway
from tailkeeper_watchdog.happenings import names
from tailkeeper_watchdog.happenings.teller import Happening
from tailkeeper_watchdog.kube_announcer import DEADLINE_S, MAX_WAITING, KubeAnnouncer
from tests.contract.fake_kube_api import ADMIN, READER, FakeKubeApi, fake_kube_api, kubeconfig, node, pod, workload
from tests.loopback.test_collector import until
from tests.loopback.watched_by_telemetry import NAMES, watching
from tests.unit.a_change import a_change
from tests.unit.loopback import Seen, serving

pytest.importorskip("kubernetes_asyncio")


@asynccontextmanager
async def announcing(fake: FakeKubeApi, folder: Path, token: str = ADMIN) -> AsyncIterator[KubeAnnouncer]:
    gateway = KubernetesGateway(name="cluster", kind="kubernetes", kubeconfig=fake.kubeconfig(folder, token))
    announcer = KubeAnnouncer(gateway, "run-1")
    task = asyncio.create_task(announcer.run())
    try:
        yield announcer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def counted(watchdog: Watchdog) -> dict[str, float]:
    """What the watchdog's own page says of events, by outcome."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(watchdog.asgi), base_url="http://127.0.0.1:8088") as client:
        page = (await client.get("/metrics")).text
    families = {family.name: family.samples for family in text_string_to_metric_families(page)}
    return {s.labels["outcome"]: s.value for s in families["tailkeeper_watchdog_kubernetes_events"] if s.name.endswith("_total")}


def events(fake: FakeKubeApi) -> list[dict[str, Any]]:
    return [thing for (plural, *_), thing in fake.things.items() if plural == "events"]


async def test_an_event_is_at_the_object_and_says_who_why_and_how_far(tmp_path: Path) -> None:
    async with fake_kube_api(pods=pod("a")) as fake, announcing(fake, tmp_path) as announcer:
        announcer.offer([a_change()])
        await until(lambda: announcer.written == 1)
    (event,) = events(fake)
    assert event["involvedObject"] == {
        "apiVersion": "v1", "kind": "Pod", "name": "a", "namespace": "llm",
        **{key: fake.thing("pods", "a")["metadata"][key] for key in ("uid", "resourceVersion")},
    }  # fmt: skip
    assert event["metadata"]["namespace"] == "llm"
    assert event["metadata"]["annotations"] == {
        "tailkeeper.io/strategy_id": "gpu_health_gate",
        "tailkeeper.io/trigger_reason": "hung",
        "tailkeeper.io/phase": "applied",
        "tailkeeper.io/backend": "a",
        "tailkeeper.io/knob": "admission",
        "tailkeeper.io/from": "serve",
        "tailkeeper.io/to": "drain",
        "tailkeeper.io/verdict": "applied",
        "tailkeeper.io/decision_id": "1",
    }
    assert (event["reason"], event["type"], event["message"]) == ("TailkeeperApplied", "Normal", "a: drained: hung")
    assert (event["firstTimestamp"], event["count"]) == ("2023-11-14T22:13:20Z", 1)
    assert (event["source"], event["reportingComponent"]) == ({"component": "tailkeeper-watchdog"}, "tailkeeper-watchdog")


@pytest.mark.parametrize(
    ("server", "kind", "version"),
    [("llm/deployment/web", "Deployment", "apps/v1"), ("llm/web", "Deployment", "apps/v1"), ("llm/pod/a", "Pod", "v1")],
)
async def test_a_workload_has_its_events_too(tmp_path: Path, server: str, kind: str, version: str) -> None:
    async with fake_kube_api(pods=pod("a"), deployments=workload("web")) as fake, announcing(fake, tmp_path) as announcer:
        announcer.offer([a_change(server)])
        await until(lambda: announcer.written == 1)
    (event,) = events(fake)
    assert (event["involvedObject"]["kind"], event["involvedObject"]["apiVersion"]) == (kind, version)


async def test_the_same_change_told_twice_is_one_event_and_another_one_is_another(tmp_path: Path) -> None:
    async with fake_kube_api(pods=pod("a")) as fake, announcing(fake, tmp_path) as announcer:
        announcer.offer([a_change(), a_change(), a_change(number=2)])
        await until(lambda: announcer.written == 3)
    assert len(events(fake)) == 2
    assert announcer.dropped == 0


@pytest.mark.parametrize(
    "told",
    [
        a_change(verdict="observed"),
        a_change(verdict="refused"),
        a_change(gateway="edge"),
        a_change(server="no name of anything there!"),
        a_change(server="llm/gone"),
        a_change(values={names.KIND: "hung"}, gateway="", server=""),
    ],
    ids=["observed", "refused", "another gateway's", "no name", "a pod that is gone", "a finding"],
)
async def test_what_changed_nothing_in_the_cluster_is_no_event(tmp_path: Path, told: Happening) -> None:
    async with fake_kube_api(pods=pod("a")) as fake, announcing(fake, tmp_path) as announcer:
        announcer.offer([told, a_change(number=9)])
        await until(lambda: announcer.written == 1)
    assert [event["metadata"]["annotations"]["tailkeeper.io/decision_id"] for event in events(fake)] == ["9"]


async def test_a_cluster_that_takes_no_events_is_said_once_with_the_rule_that_is_missing(tmp_path: Path) -> None:
    async with fake_kube_api(pods=pod("a")) as fake:
        with structlog.testing.capture_logs() as lines:
            async with announcing(fake, tmp_path, READER) as announcer:
                announcer.offer([a_change(number=n) for n in range(3)])
                await until(lambda: announcer.dropped == 3)
    (line,) = lines
    assert line["event"] == "the cluster takes no events of ours"
    assert 'needs {apiGroups: [""], resources: [events], verbs: [create]}' in line["reason"]
    assert "token" not in line["reason"]


async def test_an_api_that_is_away_costs_the_queue_and_the_next_event_is_written(tmp_path: Path) -> None:
    async with fake_kube_api(pods=pod("a")) as fake, announcing(fake, tmp_path) as announcer:
        fake.down = True
        announcer.offer([a_change()])
        await until(lambda: announcer.dropped == 1)
        fake.down = False
        announcer.offer([a_change(number=2)])
        await until(lambda: announcer.written == 1)


async def test_a_cluster_that_hangs_delays_no_event_of_another(tmp_path: Path) -> None:
    async def silent(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with serving(silent) as hung, fake_kube_api(pods=pod("a")) as fake:
        clusters = {"hung": kubeconfig(tmp_path, hung.url, "silent"), "cluster": fake.kubeconfig(tmp_path)}
        gateways = [{"name": name, "kind": "kubernetes", "kubeconfig": str(file)} for name, file in clusters.items()]
        announcers = build_announcers(parse({"gateways": gateways}).for_watchdog(), "run-1")
        tasks = [asyncio.create_task(announcer.run()) for announcer in announcers]
        for announcer in announcers:
            announcer.offer(a_change(gateway=name) for name in clusters)
        assert await until(lambda: len(events(fake)) == 1) < DEADLINE_S / 2
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_what_waits_is_bounded_and_what_is_long_is_cut() -> None:
    gateway = KubernetesGateway(name="cluster", kind="kubernetes", kubeconfig=Path("/nowhere"))
    announcer = KubeAnnouncer(gateway, "run-1")
    announcer.offer(a_change(number=n) for n in range(MAX_WAITING + 9))
    assert (len(announcer._waiting), announcer.dropped) == (MAX_WAITING, 9)


async def test_a_message_of_any_length_and_spelling_fits(tmp_path: Path) -> None:
    name = "a" * 253
    async with fake_kube_api(pods=pod(name)) as fake, announcing(fake, tmp_path) as announcer:
        announcer.offer([a_change(f"llm/{name}", sentence="é\ud800" * 3_000)])
        await until(lambda: announcer.written == 1)
    (event,) = events(fake)
    assert len(event["message"].encode()) <= MAX_MESSAGE_BYTES
    assert len(event["metadata"]["name"]) <= 253


async def test_a_watchdog_leaves_an_event_at_each_pod_it_drains_and_at_none_else(tmp_path: Path) -> None:
    async with fake_kube_api(pods=[pod(name) for name in NAMES], nodes=node("node-1")) as fake:
        cluster = {"kind": "kubernetes", "kubeconfig": str(fake.kubeconfig(tmp_path))}
        async with watching(tmp_path, cluster, {n: f"llm/{n}" for n in NAMES}) as (watchdog, page):
            await watchdog.loop.tick()
            page.states["b"] = "hung"
            record = await watchdog.loop.tick()
            assert [d.verdict.value for d in record.decisions] == ["applied"], record.decisions
            await until(lambda: len(events(fake)) == 1)
            assert not fake.in_endpoints("b")
            (announcer,) = watchdog.announcers
            await until(lambda: announcer.written == 1)
            assert await counted(watchdog) == {"written": 1.0, "dropped": 0.0}
    (event,) = events(fake)
    assert (event["involvedObject"]["name"], event["metadata"]["annotations"]["tailkeeper.io/trigger_reason"]) == ("b", "hung")


async def test_a_missing_right_to_write_events_fails_no_drain(tmp_path: Path) -> None:
    async with fake_kube_api(pods=[pod(name) for name in NAMES], nodes=node("node-1")) as fake:
        fake.denied.add(("create", "events"))
        cluster = {"kind": "kubernetes", "kubeconfig": str(fake.kubeconfig(tmp_path))}
        async with watching(tmp_path, cluster, {n: f"llm/{n}" for n in NAMES}) as (watchdog, page):
            assert await counted(watchdog) == {"written": 0.0, "dropped": 0.0}
            page.states["b"] = "hung"
            record = await watchdog.loop.tick()
            assert [d.verdict.value for d in record.decisions] == ["applied"]
            (announcer,) = watchdog.announcers
            await until(lambda: announcer.dropped == 1)
            assert await counted(watchdog) == {"written": 0.0, "dropped": 1.0}
    assert events(fake) == []
