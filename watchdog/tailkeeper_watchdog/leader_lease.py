"""Which of several watchdogs leads, by a Lease of Kubernetes (coordination.k8s.io/v1). Decides nothing else.

``decide`` is pure; ``KubernetesLeadership`` asks and writes. Safe against skewed clocks: the times in the Lease are for people.
What counts is how long its record has not changed, by the monotonic clock of the one who waits, and, for the leader, how long ago
the last renewal that succeeded was sent. So a leader that cannot renew stops before anybody else can begin. Every write carries
the version that was read, so of two that reach for the lease one gets it.

A leader that reaches nobody keeps leading for ``leads_for_s``. The rest of its lease is for what is under way by then. That
bounds a process that runs: one that is halted between its last consent and a change, for longer than what the lease leaves over,
may still make that one change, for no gateway asks who leads.
"""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from tailkeeper_watchdog.actuators.calls import CallError, excerpt
from tailkeeper_watchdog.actuators.contract import ErrorKind
from tailkeeper_watchdog.actuators.kube_api import LEASES, Ask, ConflictError, KubeApi, KubeConnection
from tailkeeper_watchdog.actuators.kube_objects import part
from tailkeeper_watchdog.settings import ACTING_S, LeaderSettings

RENEW_SHARE = 2 / 3
"""Of the lease, after which a leader that could not renew stops acting, at the latest: as Kubernetes' own controllers do."""
CLOCK_DRIFT = 0.02
"""By how much two monotonic clocks may differ in speed: forty times what the kernel lets a clock be slewed by (0.05 %)."""
REFRESH_SHARE = 1 / 3
"""Of the lease, after which a leader renews it, so that two renewals may fail."""
CALL_SHARE = 1 / 6
"""Of the lease, for one exchange with the API."""


class Leadership(Protocol):
    async def try_lead(self) -> str | None:
        """None: we lead, until the next call. Else a sentence that says who does, or why we do not. Never raises."""
        ...

    async def step_down(self) -> None:
        """Let another one lead at once, and close what is open. Never raises; where it fails, the lease runs out by itself."""
        ...


class Connection(Protocol):
    async def opened(self) -> KubeApi: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """What a Lease says. Times are texts, compared and never computed with; ``duration_s`` None where it says none."""

    holder: str
    renewed: str
    acquired: str
    duration_s: int | None
    transitions: int
    version: str


@dataclass(frozen=True, slots=True)
class Watched:
    """A record, and since when it has not changed; monotonic seconds."""

    record: LeaseRecord
    since: float


@dataclass(frozen=True, slots=True)
class Decision:
    """``take``: write it, as ours. Else ``wait`` says who leads."""

    take: bool
    wait: str = ""


def leads_for_s(lease_s: float) -> float:
    """How long after its last renewal a leader may begin to act: what it does then is over before anybody else may begin."""
    return min(RENEW_SHARE * lease_s, (1.0 - CLOCK_DRIFT) * lease_s - ACTING_S)


def watched(before: Watched | None, record: LeaseRecord, now: float) -> Watched:
    """Any change is a sign of life, its version alone too: the clock of a leader may stand still, and its times with it."""
    return Watched(record, before.since if before is not None and before.record == record else now)


def decide(seen: Watched, identity: str, now: float, lease_s: float) -> Decision:
    """Whether ``identity`` may write itself into the Lease. A holder is waited for as long as it asked, or as we would."""
    record, silent_s = seen.record, now - seen.since
    wait_s = max(lease_s, record.duration_s or 0.0)
    if record.holder in ("", identity) or silent_s >= wait_s:
        return Decision(take=True)
    return Decision(False, f"standing by: {excerpt(record.holder)} leads; silent for {silent_s:.0f} s of {wait_s:g} s")


def parse_lease(document: Mapping[str, Any]) -> LeaseRecord:
    """Raises CallError(PROTOCOL)."""
    spec, about = part(document, "spec"), part(document, "metadata")
    duration, transitions = (_whole(spec.get(key)) for key in ("leaseDurationSeconds", "leaseTransitions"))
    return LeaseRecord(
        holder=str(spec.get("holderIdentity") or ""),
        renewed=str(spec.get("renewTime") or ""),
        acquired=str(spec.get("acquireTime") or ""),
        duration_s=duration,
        transitions=transitions or 0,
        version=str(about.get("resourceVersion") or ""),
    )


def _whole(number: object) -> int | None:
    """A number that the API can hold (int32), or None."""
    return number if isinstance(number, int) and not isinstance(number, bool) and 0 < number < 2**31 else None


def new_identity() -> str:
    """Of this process: two on one machine, and one that was started anew, are different ones."""
    return f"{socket.gethostname()}_{uuid.uuid4().hex[:12]}"


class KubernetesLeadership:
    """Satisfies ``Leadership``. ``clock`` gives monotonic seconds, ``wall`` epoch seconds for people.

    ``connection`` leads to the API; by default to that of the settings. ``shared``: other processes have this identity too, and
    hold the Lease with us. Whoever steps down leaves it to run out then, for the others may still lead by it.
    """

    def __init__(
        self,
        settings: LeaderSettings,
        identity: str,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        connection: Connection | None = None,
        shared: bool = False,
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._shared = shared
        self._connection = connection or KubeConnection(settings.kubeconfig, settings.in_cluster)
        self._clock = clock
        self._wall = wall
        self._seen: Watched | None = None
        self._renewed_at: float | None = None
        """When the last renewal that succeeded was sent; None while we do not lead."""

    async def try_lead(self) -> str | None:
        started = self._clock()
        if self._renewed_at is not None and started - self._renewed_at < REFRESH_SHARE * self._settings.lease_s:
            return None
        try:
            async with asyncio.timeout(CALL_SHARE * self._settings.lease_s):
                return await self._stand(await self._connection.opened())
        except TimeoutError:
            return self._unreached("no answer in time")
        except CallError as error:
            return self._unreached(error.message)

    def _unreached(self, why: str) -> str | None:
        """We still lead while our lease is young enough that nobody can have taken it."""
        if self._renewed_at is not None:
            age_s = self._clock() - self._renewed_at
            if age_s < leads_for_s(self._settings.lease_s):
                return None
            self._renewed_at = None
            return f"standing by: our lease {self._where} could not be renewed for {age_s:.0f} s: {why}"
        return f"standing by: the lease {self._where} cannot be had: {why}"

    async def _stand(self, api: KubeApi) -> str | None:
        """Read, decide, write. Once anew where somebody else wrote in between: then it is theirs, unless it was no watchdog."""
        for _ in range(2):
            record = await self._read(api)
            self._seen = None if record is None else watched(self._seen, record, self._clock())
            if self._seen is not None:
                decision = decide(self._seen, self._identity, self._clock(), self._settings.lease_s)
                if not decision.take:
                    self._renewed_at = None
                    return f"{decision.wait} (lease {self._where})"
            sent_at = self._clock()
            try:
                await self._write(api, record, self._identity)
            except ConflictError:
                continue
            self._renewed_at = sent_at
            return None
        return self._unreached("others keep writing it")

    async def step_down(self) -> None:
        led, self._renewed_at = self._renewed_at is not None, None
        if led and not self._shared:
            try:
                async with asyncio.timeout(CALL_SHARE * self._settings.lease_s):
                    await self._let_go(await self._connection.opened())
            except (CallError, TimeoutError):
                pass  # The lease runs out by itself, which is what it is for.
        await self._connection.close()

    async def _let_go(self, api: KubeApi) -> None:
        record = await self._read(api)
        if record is not None and record.holder == self._identity:
            await self._write(api, record, "")

    async def _read(self, api: KubeApi) -> LeaseRecord | None:
        try:
            return parse_lease(await api.call(Ask("get", LEASES, self._settings.namespace, self._settings.name)))
        except CallError as error:
            if error.kind is not ErrorKind.NOT_FOUND:
                raise
            return None

    async def _write(self, api: KubeApi, before: LeaseRecord | None, holder: str) -> None:
        """Make ``holder`` the holder; empty for nobody."""
        now = datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        ours = before is not None and before.holder == self._identity
        transitions = 0 if before is None else before.transitions + (0 if ours else 1)
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": self._settings.lease_s if holder else 1,
            "acquireTime": before.acquired if before is not None and ours and before.acquired else now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }
        about = {"name": self._settings.name, "namespace": self._settings.namespace}
        document = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": about, "spec": spec}
        if before is None:
            await api.call(Ask("create", LEASES, self._settings.namespace, body=document))
        else:
            document = {**document, "metadata": {**about, "resourceVersion": before.version}}
            await api.call(Ask("update", LEASES, self._settings.namespace, self._settings.name, body=document))

    @property
    def _where(self) -> str:
        return f"{self._settings.namespace}/{self._settings.name}"
