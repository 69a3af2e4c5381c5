"""Tells a cluster's own events what was changed in it. Beside the loop, never in it: ``offer`` only queues.

What waits is bounded, the oldest goes first. A cluster that takes no events costs a line in the log, once, and nothing else; each
has an announcer of its own, so one that hangs delays no event of another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import structlog

from tailkeeper_exporter.catalog import Metric
from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.kube_api import KubeConnection
from tailkeeper_watchdog.actuators.kube_events import Announcement, announce
from tailkeeper_watchdog.actuators.kube_objects import place_of
from tailkeeper_watchdog.gateways import KubernetesGateway
from tailkeeper_watchdog.happenings import names
from tailkeeper_watchdog.happenings.teller import Happening
from tailkeeper_watchdog.metrics import KUBERNETES_EVENTS
from tailkeeper_watchdog.model import Outcome, Severity

MAX_WAITING = 256
"""Some hundred kilobytes. A change at more servers at once is one matter, and the first ones say so."""
DEADLINE_S = 5.0
"""For one event: a look at the object, and the write."""
MAX_ANNOTATION_CHARS = 256
REASONS: Mapping[str, str] = {
    Outcome.APPLIED.value: "TailkeeperApplied",
    Outcome.RELEASED.value: "TailkeeperReleased",
    Outcome.EXPIRED.value: "TailkeeperExpired",
    Outcome.FAILED.value: "TailkeeperFailed",
    Outcome.CONTENDED.value: "TailkeeperContended",
}
"""By verdict. What was only observed or refused has changed nothing in the cluster."""


class KubeAnnouncer:
    """Of one cluster: owns its queue and its connection. ``instance`` is this run of the watchdog."""

    def __init__(self, gateway: KubernetesGateway, instance: str, log: Any = None) -> None:
        self._gateway = gateway.name
        self._connection = KubeConnection(gateway.kubeconfig, gateway.in_cluster)
        self._instance = instance
        self._log = structlog.get_logger("tailkeeper.watchdog") if log is None else log
        self._waiting: deque[Happening] = deque()
        self._arrived = asyncio.Event()
        self._said = ""
        self.written = 0
        self.dropped = 0

    def offer(self, happenings: Iterable[Happening]) -> None:
        """Queue those that changed something in this cluster."""
        for one in happenings:
            if one.gateway == self._gateway and one.values.get(names.VERDICT) in REASONS:
                self._waiting.append(one)
                self._arrived.set()
        while len(self._waiting) > MAX_WAITING:
            self._waiting.popleft()
            self.dropped += 1

    async def run(self) -> None:
        """Write until cancelled, one event after the other."""
        try:
            while True:
                await self._arrived.wait()
                while self._waiting:
                    await self._write(self._waiting.popleft())
                self._arrived.clear()
        finally:
            await self._connection.close()

    async def _write(self, one: Happening) -> None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                await self._announce(one)
            error = ""
        except TimeoutError:
            error = f"no answer within {DEADLINE_S:g} s"
        except CallError as failure:
            error = failure.message
        except Exception as failure:  # what nobody foresaw costs this event; ending here would end all of them
            error = f"internal error: {type(failure).__name__}"
        self.dropped += bool(error)
        self._say(error)

    async def _announce(self, one: Happening) -> None:
        place = place_of(one.server)
        if place is None:
            return
        api = await self._connection.opened()
        self.written += await announce(api, place, announcement_of(one, self._instance))

    def _say(self, error: str) -> None:
        """Once, and again when it changes."""
        if error == self._said:
            return
        self._said = error
        if error:
            self._log.warning("the cluster takes no events of ours", gateway=self._gateway, reason=error)
        else:
            self._log.info("the cluster takes events of ours again", gateway=self._gateway)


def series_of(announcers: Iterable[KubeAnnouncer]) -> Iterator[tuple[Metric, tuple[tuple[tuple[str, ...], float], ...]]]:
    """For our page: what became of the events of all clusters, both outcomes at 0 from the start."""
    counts = [(one.written, one.dropped) for one in announcers]
    written, dropped = (float(sum(column)) for column in zip((0, 0), *counts, strict=True))
    yield KUBERNETES_EVENTS, ((("written",), written), (("dropped",), dropped))


def announcement_of(one: Happening, instance: str) -> Announcement:
    told = one.attributes
    texts = {name: str(told[name])[:MAX_ANNOTATION_CHARS] for name in names.ANNOTATED if told.get(name) is not None}
    return Announcement(
        reason=REASONS[str(one.values[names.VERDICT])],
        message=one.sentence,
        is_warning=one.severity is not Severity.INFO,
        at_unix_s=one.at_unix_s,
        annotations={names.ANNOTATION_PREFIX + name: text for name, text in texts.items()},
        key=f"{instance}/{one.gateway}/{one.values.get(names.DECISION_ID)}",
    )
