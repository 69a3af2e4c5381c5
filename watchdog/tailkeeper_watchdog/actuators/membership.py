"""Routers that know no drain: a worker is drained by taking it out of the list of workers, and serves by being added back.

Such a removal lets the streams in flight end. What is needed to add a worker back is noted in a file before it is removed. Who
is absent and was not removed by us is not ours to add, and is as unknown as if it had never been there. Knows no router: that
is its ``Router``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tailkeeper_watchdog.actuators.calls import CallError, turn
from tailkeeper_watchdog.actuators.contract import Doubt, ErrorKind, ServerState, Support
from tailkeeper_watchdog.actuators.removed_workers import Removed, RemovedWorkers
from tailkeeper_watchdog.model import DRAIN, EMPTY, SERVE, Knob, KnobValue

LIST_LIMIT_BYTES = 16 * 1024 * 1024
"""A worker is some 400 bytes of a list: 10,000 of them, the most we watch, are 4 MB."""
POLL_S = 0.02
"""Between looks at a change under way: a removal took 20 ms and an addition 140 ms where they were measured."""
SETTLED_S = 3_600.0
"""A removal that has not shown itself by then never will. SGLang's router does one thing after another and tries an addition for
half an hour unless it is told otherwise, and a router that was halted finds what it was asked in its sockets: until this is over,
who is removed may be ours, and stays in doubt while it is not."""
NEVER_BEGUN = frozenset({ErrorKind.UNREACHABLE, ErrorKind.REFUSED, ErrorKind.UNAUTHORIZED, ErrorKind.NOT_FOUND})
"""Errors after which no removal is to come: nothing was sent, or the router said no."""
MAY_COME = "its removal was asked for and may still come"


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker as its router lists it. ``document`` is what adds it back; ``cannot`` says why it cannot be removed, if so."""

    url: str
    id: str
    worker_type: str
    model: str
    healthy: bool
    document: Mapping[str, Any]
    cannot: str = ""


class Router(Protocol):
    """One router. Every method raises CallError; none has a deadline of its own."""

    async def workers(self) -> Mapping[str, Worker]:
        """Those in the router's list now, by URL."""
        ...

    async def remove(self, worker: Worker) -> None: ...

    async def add(self, document: Mapping[str, Any]) -> str:
        """Ask for an addition; gives the name of the job, empty where it is done when this returns."""
        ...

    async def adding(self, job: str) -> bool:
        """Whether the addition ``job`` is under way. Raises CallError where it has failed; False where nobody knows it."""
        ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class MembershipActuator:
    """Satisfies ``Actuator``. ``wall`` gives epoch seconds; ``address`` is the router's part in the file of removed workers."""

    name: str
    kind: str
    address: str
    router: Router
    removed: RemovedWorkers
    why_not: Mapping[Knob, str]
    """Of the knobs that this kind of router might be thought to have."""
    wall: Callable[[], float] = time.time
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def supports(self, knob: Knob) -> Support:
        if knob is Knob.ADMISSION:
            return Support(True)
        return Support(False, self.why_not.get(knob) or f"a router of kind {self.kind} has no {knob.value}")

    async def read(self, servers: tuple[str, ...], deadline_s: float) -> Mapping[str, ServerState]:
        """An absent worker is drained where we removed it, else left out; in doubt where the file cannot tell which."""
        async with turn(self._lock, self.name, "*", deadline_s) as ends_at, asyncio.timeout_at(ends_at):
            workers = await self.router.workers()
            try:
                noted = await asyncio.to_thread(self.removed.of, self.address)
            except CallError as error:
                return {s: _present(workers[s]) if s in workers else ServerState({}, doubt=error.message) for s in servers}
            removed = await self._without_the_returned(workers, noted)
        states = ((server, _state(workers.get(server), removed.get(server))) for server in servers)
        return {server: state for server, state in states if state is not None}

    async def _without_the_returned(self, workers: Mapping[str, Worker], removed: Mapping[str, Removed]) -> Mapping[str, Removed]:
        """Whoever is in the list again is not removed any more: we or others added it back, or the router began anew."""
        back = {url for url, note in removed.items() if url in workers and self._settled(note)}
        if back:
            await asyncio.to_thread(self.removed.forget, self.address, back)
        return {url: note for url, note in removed.items() if url not in back}

    def _settled(self, note: Removed) -> bool:
        """Whether its removal is over, one way or the other. A clock that was set back does not make it wait."""
        return note.gone or not 0 <= self.wall() - note.at_unix_s < SETTLED_S

    async def write(self, server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
        async with turn(self._lock, self.name, server, deadline_s) as ends_at, asyncio.timeout_at(ends_at):
            admission = self._admission(values)
            workers = await self.router.workers()
            note = (await asyncio.to_thread(self.removed.of, self.address)).get(server)
            if server not in workers and note is None:
                message = (
                    "it is not in the router's list of workers, and not because of us; check `gateway.server` of the backend"
                )
                raise CallError(ErrorKind.NOT_FOUND, message)
            if admission == DRAIN and server in workers:
                await self._take_out(workers[server], workers, note)
            elif admission == SERVE and server not in workers and note is not None:
                await self._add_back(server, note)

    def _admission(self, values: Mapping[Knob, KnobValue]) -> KnobValue | None:
        for knob in values:
            if not (support := self.supports(knob)).enforceable:
                raise CallError(ErrorKind.REFUSED, support.why_not)
        admission = values.get(Knob.ADMISSION)
        if admission not in (SERVE, DRAIN, None):
            raise CallError(ErrorKind.REFUSED, f"admission {admission!r} is not known; allowed: {SERVE}, {DRAIN}")
        return admission

    async def _take_out(self, worker: Worker, workers: Mapping[str, Worker], before: Removed | None) -> None:
        """``before`` is what is noted of a removal that was asked for earlier."""
        if worker.cannot:
            raise CallError(ErrorKind.REFUSED, worker.cannot)
        if not any(_may_take_over(other, worker) for other in workers.values()):
            kind = f"{worker.worker_type} worker of model {worker.model}"
            raise CallError(ErrorKind.REFUSED, f"no other healthy {kind} would be left in the router, so it stays")
        note = Removed(worker.document, self.wall())
        await asyncio.to_thread(self.removed.note, self.address, worker.url, note)
        try:
            await self.router.remove(worker)
        except CallError as error:
            if error.kind in NEVER_BEGUN and before is None:
                await asyncio.to_thread(self.removed.forget, self.address, {worker.url})
            raise
        while worker.url in await self.router.workers():  # noqa: ASYNC110 - a router tells nobody when it is done
            await asyncio.sleep(POLL_S)
        await asyncio.to_thread(self.removed.note, self.address, worker.url, replace(note, gone=True))

    async def _add_back(self, url: str, note: Removed) -> None:
        """The note stays until ``read`` sees the worker: should all end here, nothing is lost."""
        job = note.job if note.job and await self._under_way(note.job) else ""
        if not job:
            job = await self.router.add(note.document)
            await asyncio.to_thread(self.removed.note, self.address, url, replace(note, gone=True, job=job))
        while url not in await self.router.workers():
            if job:
                await self.router.adding(job)
            await asyncio.sleep(POLL_S)

    async def _under_way(self, job: str) -> bool:
        """Whether an addition of before still goes on: a second one beside it would only wait in the same queue."""
        try:
            return await self.router.adding(job)
        except CallError as error:
            if error.kind is not ErrorKind.UNREACHABLE:
                raise
            return False

    async def close(self) -> None:
        await self.router.close()


def _may_take_over(other: Worker, worker: Worker) -> bool:
    """A router without a worker answers 503, while its health page goes on to say 200."""
    alike = (other.worker_type, other.model) == (worker.worker_type, worker.model)
    return other.url != worker.url and other.healthy and alike


def _state(worker: Worker | None, note: Removed | None) -> ServerState | None:
    if worker is None:
        return None if note is None else ServerState({Knob.ADMISSION: DRAIN})
    state = _present(worker)
    return state if note is None else replace(state, doubt=MAY_COME, doubts=(Doubt(MAY_COME, Knob.ADMISSION),))


def _present(worker: Worker) -> ServerState:
    """Sessions are not told: the routers' ``load`` stays 0 while streams are in flight, unless their policy counts."""
    if worker.cannot:
        return ServerState({}, worker.healthy, cannot={Knob.ADMISSION: worker.cannot})
    return ServerState({Knob.ADMISSION: SERVE}, worker.healthy, cannot=EMPTY)


def rows_of(answer: object) -> list[Mapping[str, Any]]:
    """The rows of a list of workers, each with a URL. Raises CallError(PROTOCOL)."""
    rows = answer.get("workers") if isinstance(answer, dict) else None
    if not isinstance(rows, list):
        raise CallError(ErrorKind.PROTOCOL, "the answer is no list of workers")
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get("url"), str) or not isinstance(row.get("is_healthy"), bool):
            raise CallError(ErrorKind.PROTOCOL, "the list of workers has a row without `url` or `is_healthy`")
    return rows


def text_of(row: Mapping[str, Any], key: str) -> str:
    """A field of a row; empty where it is absent. Raises CallError(PROTOCOL)."""
    value = row.get(key, "")
    if not isinstance(value, str):
        raise CallError(ErrorKind.PROTOCOL, f"the list of workers has {key} {value!r:.100}, which is no text")
    return value
