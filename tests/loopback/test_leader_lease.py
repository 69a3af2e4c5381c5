"""Two watchdogs and one Lease, through the real client, against a FAKE Kubernetes API server (``fake_kube_api``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tailkeeper_watchdog.actuators.kube_api import KubeConnection
from tailkeeper_watchdog.leader_lease import KubernetesLeadership
from tailkeeper_watchdog.settings import LeaderSettings
from tests.contract.fake_kube_api import FakeKubeApi, fake_kube_api

pytest.importorskip("kubernetes_asyncio")
LEASE_S = 15


@dataclass
class Clock:
    now: float = 1_000.0


@dataclass
class Pair:
    """Two watchdogs with clocks of their own: ``b`` runs an hour behind, and its wall clock a day ahead."""

    fake: FakeKubeApi
    folder: Path
    clock: Clock = field(default_factory=Clock)
    a: KubernetesLeadership = field(init=False)
    b: KubernetesLeadership = field(init=False)

    def __post_init__(self) -> None:
        self.a = self.watchdog("a", 0.0, 0.0)
        self.b = self.watchdog("b", -3_600.0, 86_400.0)

    def watchdog(self, name: str, clock_offset_s: float, wall_offset_s: float) -> KubernetesLeadership:
        settings = LeaderSettings(namespace="llm", lease_s=LEASE_S, kubeconfig=self.fake.kubeconfig(self.folder))
        connection = KubeConnection(settings.kubeconfig, settings.in_cluster)
        self.fake.clients.append(connection)
        return KubernetesLeadership(
            settings, name, lambda: self.clock.now + clock_offset_s, lambda: 1.8e9 + self.clock.now + wall_offset_s, connection
        )

    def shard(self, of: int) -> KubernetesLeadership:
        """The Lease of the fleet, as one of so many shards holds it."""
        settings = LeaderSettings(namespace="llm", lease_s=LEASE_S, kubeconfig=self.fake.kubeconfig(self.folder))
        connection = KubeConnection(settings.kubeconfig, settings.in_cluster)
        self.fake.clients.append(connection)
        return KubernetesLeadership(
            settings, f"a layout of {of} shards", lambda: self.clock.now, lambda: 1.8e9, connection, shared=True
        )

    @property
    def spec(self) -> dict[str, object]:
        spec = self.fake.thing("leases", "tailkeeper")["spec"]
        assert isinstance(spec, dict)
        return spec


async def test_of_two_watchdogs_one_leads_and_the_other_says_who(tmp_path: Path) -> None:
    async with fake_kube_api() as fake:
        pair = Pair(fake, tmp_path)
        assert await pair.a.try_lead() is None
        why = await pair.b.try_lead()
        assert why == "standing by: a leads; silent for 0 s of 15 s (lease llm/tailkeeper)"
        assert pair.spec == {
            "holderIdentity": "a",
            "leaseDurationSeconds": 15,
            "acquireTime": "2027-01-15T08:16:40.000000Z",
            "renewTime": "2027-01-15T08:16:40.000000Z",
            "leaseTransitions": 0,
        }


async def test_a_leader_renews_in_time_and_asks_no_more_often_than_needed(tmp_path: Path) -> None:
    async with fake_kube_api() as fake:
        pair = Pair(fake, tmp_path)
        for _ in range(60):
            assert await pair.a.try_lead() is None
            assert "a leads" in str(await pair.b.try_lead())
            pair.clock.now += 1.0
        updates = [call for call in fake.log if call[0] in ("create", "update")]
        assert len(updates) == 60 / (LEASE_S / 3)
        assert pair.spec["leaseTransitions"] == 0
        assert pair.spec["acquireTime"] == "2027-01-15T08:16:40.000000Z"


async def test_when_the_leader_dies_the_other_takes_over_after_the_lease_and_not_before(tmp_path: Path) -> None:
    async with fake_kube_api() as fake:
        pair = Pair(fake, tmp_path)
        assert await pair.a.try_lead() is None
        for _ in range(LEASE_S):
            assert await pair.b.try_lead() is not None
            pair.clock.now += 1.0
        assert await pair.b.try_lead() is None
        assert (pair.spec["holderIdentity"], pair.spec["leaseTransitions"]) == ("b", 1)
        assert str(await pair.a.try_lead()).startswith("standing by: b leads")


async def test_a_leader_that_steps_down_is_followed_at_once(tmp_path: Path) -> None:
    async with fake_kube_api() as fake:
        pair = Pair(fake, tmp_path)
        assert await pair.a.try_lead() is None
        await pair.b.step_down()
        assert pair.spec["holderIdentity"] == "a"
        await pair.a.step_down()
        assert (pair.spec["holderIdentity"], pair.spec["leaseDurationSeconds"]) == ("", 1)
        assert await pair.b.try_lead() is None
        assert str(await pair.a.try_lead()).startswith("standing by: b leads")


async def test_a_leader_that_cannot_renew_stops_before_another_can_begin(tmp_path: Path) -> None:
    async with fake_kube_api() as fake:
        pair = Pair(fake, tmp_path)
        assert await pair.a.try_lead() is None
        assert await pair.b.try_lead() is not None
        fake.down = True
        leading = []
        for _ in range(LEASE_S + 1):
            leading.append((await pair.a.try_lead() is None, await pair.b.try_lead() is None))
            pair.clock.now += 1.0
        assert leading == [(True, False)] * 9 + [(False, False)] * 7
        assert "could not be renewed for 16 s" not in str(await pair.a.try_lead())
        fake.down = False
        assert await pair.b.try_lead() is None
        assert str(await pair.a.try_lead()).startswith("standing by: b leads")


async def test_what_failed_is_in_the_sentence(tmp_path: Path) -> None:
    async with fake_kube_api() as fake:
        pair = Pair(fake, tmp_path)
        fake.denied = {("create", "leases")}
        why = await pair.a.try_lead()
        assert "may not create leases" in str(why)
        assert 'apiGroups: ["coordination.k8s.io"]' in str(why)
        fake.denied = {("get", "leases")}
        assert str(await pair.a.try_lead()).startswith("standing by: the lease llm/tailkeeper cannot be had: 403")


async def test_somebody_who_only_labels_the_lease_costs_one_more_try(tmp_path: Path) -> None:
    async with fake_kube_api() as fake:
        pair = Pair(fake, tmp_path)
        assert await pair.a.try_lead() is None
        fake.meanwhile = [("leases", "llm", "tailkeeper")]
        pair.clock.now += 6.0
        assert await pair.a.try_lead() is None
        assert pair.spec["renewTime"] == "2027-01-15T08:16:46.000000Z"


async def test_stepping_down_leaves_a_lease_that_another_took_meanwhile(tmp_path: Path) -> None:
    async with fake_kube_api() as fake:
        pair = Pair(fake, tmp_path)
        assert await pair.a.try_lead() is None
        assert await pair.b.try_lead() is not None
        pair.clock.now += LEASE_S
        assert await pair.b.try_lead() is None
        await pair.a.step_down()
        assert pair.spec["holderIdentity"] == "b"


async def test_stepping_down_never_fails(tmp_path: Path) -> None:
    async with fake_kube_api() as fake:
        pair = Pair(fake, tmp_path)
        assert await pair.a.try_lead() is None
        fake.down = True
        await pair.a.step_down()
        fake.down = False
        assert pair.spec["holderIdentity"] == "a"
        assert await pair.b.try_lead() is not None


async def test_shards_of_one_number_hold_the_lease_of_the_fleet_together_and_leave_it_to_run_out(tmp_path: Path) -> None:
    async with fake_kube_api() as fake:
        pair = Pair(fake, tmp_path)
        two, three = [pair.shard(2) for _ in range(2)], pair.shard(3)
        for _ in range(2 * LEASE_S):
            assert [await one.try_lead() for one in two] == [None, None]
            assert str(await three.try_lead()).startswith("standing by: a layout of 2 shards leads")
            assert "2 shards leads" in str(await pair.a.try_lead()), "a watchdog for all of the fleet waits too"
            pair.clock.now += 1.0
        await two[0].step_down()
        assert pair.spec["holderIdentity"] == "a layout of 2 shards", "the other one leads by it still"
        assert await two[1].try_lead() is None
        for _ in range(LEASE_S):
            assert await three.try_lead() is not None
            pair.clock.now += 1.0
        assert await three.try_lead() is None
        assert str(await two[1].try_lead()).startswith("standing by: a layout of 3 shards leads")


async def test_a_shard_that_cannot_renew_the_lease_of_the_fleet_stops_before_another_number_can_begin(tmp_path: Path) -> None:
    async with fake_kube_api() as fake:
        pair = Pair(fake, tmp_path)
        old, new = pair.shard(2), pair.shard(3)
        assert await old.try_lead() is None
        assert await new.try_lead() is not None
        fake.down = True
        leading = []
        for _ in range(LEASE_S + 1):
            leading.append((await old.try_lead() is None, await new.try_lead() is None))
            pair.clock.now += 1.0
        assert leading == [(True, False)] * 9 + [(False, False)] * 7
