"""``tailkeeper release-all``: give back everything that the ledger says is ours, and nothing else.

A running watchdog is asked first and paused, because it would act again at its next tick; where none answers, the
gateways are written directly from the ledger, under the lock that a watchdog leads by: never beside one that we cannot reach.
Where a write from before may still be done, that is waited for, once, and then everything is given back again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

from tailkeeper.config import Config, own_url
from tailkeeper_exporter.counted import plural
from tailkeeper_exporter.credentials import token_in
from tailkeeper_watchdog.giving_back import MAY_STILL_COME
from tailkeeper_watchdog.pending import MAY_COME_S

if TYPE_CHECKING:
    from tailkeeper_watchdog.leadership import Leadership
    from tailkeeper_watchdog.ledger import Ledger, LedgerError
    from tailkeeper_watchdog.reconcile import AskLeader, Reconciler
    from tailkeeper_watchdog.settings import LedgerSettings

DEADLINE_S = 10.0
ASK_EVERY_S = 1.0
RELEASE_LIMIT_S = 300.0
"""For the watchdog's answer: it gives back all, one change after the other at each gateway."""
GIVEN_BACK = ("released", "expired")

Say = Callable[[str], None]
Said = tuple[list[str], int]
"""Lines for people and how many changes could not be given back."""


@dataclass(frozen=True, slots=True)
class Pause:
    """How time passes; and ``say`` takes what there is to tell meanwhile."""

    say: Say
    sleep: Callable[[float], Awaitable[None]] = field(default=asyncio.sleep, compare=False)

    async def wait(self, seconds: float, waiting: int) -> None:
        """Until nothing can come any more, told second by second."""
        left = min(seconds, MAY_COME_S)
        while left > 0:
            may = "a write of it from before may" if waiting == 1 else "writes of them from before may"
            self.say(f"{plural(waiting, 'change')}: {may} still be done; waiting for that, {left:.0f} s at most")
            await self.sleep(min(1.0, left))
            left -= 1.0


@dataclass(frozen=True, slots=True)
class _Done:
    """One release: what was decided and given back, what is kept and of that how much waits, and what is left in force."""

    lines: tuple[str, ...]
    given: int
    kept: tuple[str, ...]
    waiting: int
    left: int

    def then(self, again: _Done) -> _Done:
        return _Done((*self.lines, *again.lines), self.given + again.given, again.kept, again.waiting, again.left)


def release_everything(config: Config, say: Say) -> Said:
    """Lines for people and how many changes could not be given back; ``say`` takes progress."""
    return asyncio.run(released(config, Pause(say)))


async def released(config: Config, pause: Pause) -> Said:
    """As ``release_everything``, in a loop that runs already."""
    answered, why_not = await _ask_running(config, pause)
    return answered if answered is not None else await _release_directly(config, why_not, pause)


class _RefusedError(Exception):
    """The watchdog answers, and gave nothing back. The message says why."""


async def _ask_running(config: Config, pause: Pause) -> tuple[Said | None, str]:
    """What the running watchdog did; or None, and in words why it was not to be asked."""
    token_file = config.watchdog.token_file
    headers = {"authorization": f"Bearer {token_in(token_file, 'watchdog.token_file')}"} if token_file else {}
    base = own_url(config.watchdog.listen)
    limits = httpx.Timeout(DEADLINE_S, read=RELEASE_LIMIT_S)
    async with httpx.AsyncClient(base_url=base, headers=headers, timeout=limits, trust_env=False) as client:
        try:
            paused = await client.post("/api/v1/pause", timeout=DEADLINE_S)
        except httpx.HTTPError:
            return None, f"no watchdog answers at {base}"
        if paused.status_code == 503:
            return None, f"the watchdog at {base} is not to be asked ({_detail(paused)})"
        if paused.status_code != 200:
            return ([f"the watchdog at {base} refused: {paused.status_code} {_detail(paused)}"], 1), ""
        try:
            done = await _ask(client)
            if done.waiting:
                await pause.wait(MAY_COME_S, done.waiting)
                done = done.then(await _ask(client))
        except _RefusedError as error:
            return ([f"the watchdog at {base} is paused, and gave nothing back: {error}"], 1), ""
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            why = f"{type(error).__name__}: see with `tailkeeper status` what is in force, and run this again"
            return ([f"the watchdog at {base} is paused, and did not say what it gave back ({why})"], 1), ""
    told = f"{plural(done.given, 'change')} given back; the watchdog at {base} is paused, resume it with POST /api/v1/resume"
    return ([*done.lines, *done.kept, told], done.left), ""


async def _ask(client: httpx.AsyncClient) -> _Done:
    """Raises _RefusedError; httpx.HTTPError, and what a wrong document raises."""
    answer = await client.post("/api/v1/release")
    if answer.status_code != 200:
        raise _RefusedError(_detail(answer))
    document: Mapping[str, Any] = answer.json()
    return _Done(
        tuple(f"{d['backend']}: {d['knob']} → {d['to']} {d['verdict']}: {d['reason']}" for d in document["decisions"]),
        sum(_is_given_back(d["verdict"], d["reason"]) for d in document["decisions"]),
        tuple(_kept(x["backend"], x["knob"], x["gateway"], x["server"], x["why"]) for x in document["kept"]),
        sum(x["why"] == MAY_STILL_COME for x in document["kept"]),
        int(document["failed"]),
    )


def _detail(answer: httpx.Response) -> str:
    try:
        document: Any = answer.json()
        return str(document["detail"])[:400]
    except (ValueError, KeyError, TypeError):
        return f"{answer.status_code} {answer.text[:200]}"


async def _release_directly(config: Config, why_not_asked: str, pause: Pause) -> Said:
    from tailkeeper.watchdog_process import shared_ledger
    from tailkeeper_watchdog.leadership import AllOf, FileLock
    from tailkeeper_watchdog.ledger import Ledger, LedgerError

    lock, shared = FileLock(config.watchdog.state, "release-all", time.time), shared_ledger(config, "release-all")
    leadership: Leadership = lock if shared is None else AllOf(lock, shared)
    leader = await _who_leads(leadership, config.watchdog.ledger)
    if leader is not None:
        await leadership.step_down()
        told = f"{why_not_asked}, and nothing is done beside a leader: {leader}; ask that one, or stop it and run this again"
        return [told], 1
    try:
        with contextlib.closing(Ledger(config.watchdog.state) if shared is None else shared.ledger) as ledger:
            said = await _from_ledger(config, ledger, leadership.try_lead, pause)
            await ledger.settled()
            return said
    except (LedgerError, BaseExceptionGroup) as error:  # gateways are written side by side, so their errors come as a group
        return [f"{why_not_asked}, and the ledger cannot be used: {_first(error)}"], 1
    finally:
        await leadership.step_down()


async def _who_leads(leadership: Leadership, shared: LedgerSettings | None) -> str | None:
    """None where we lead. A leader that was killed is waited for, as long as its row may still say that it leads."""
    tries = 0 if shared is None else 1 + round(shared.lease_s / ASK_EVERY_S)
    leader = await leadership.try_lead()
    for _ in range(tries):
        if leader is None:
            break
        await asyncio.sleep(ASK_EVERY_S)
        leader = await leadership.try_lead()
    return leader


def _first(error: BaseException) -> LedgerError:
    """Raises what is none."""
    from tailkeeper_watchdog.ledger import LedgerError

    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, LedgerError):
        raise error
    return error


async def _from_ledger(config: Config, ledger: Ledger, leader: AskLeader, pause: Pause) -> Said:
    from tailkeeper_watchdog.actuators import build_actuator
    from tailkeeper_watchdog.decision_log import DecisionLog
    from tailkeeper_watchdog.reconcile import Reconciler

    actuators = {g.name: build_actuator(g) for g in config.for_watchdog().gateways}
    reconciler = Reconciler(actuators, ledger, DecisionLog(ledger, time.time), config.guards.lease_s, time.time)
    try:
        return await give_back(reconciler, ledger, leader, pause, time.time)
    finally:
        await reconciler.close()


async def give_back(reconciler: Reconciler, ledger: Ledger, leader: AskLeader, pause: Pause, wall: Callable[[], float]) -> Said:
    """Everything that the ledger has, and once more when what may still come has come or cannot any more."""
    before = ledger.leases()
    ledger.forget_attempts({lease.backend for lease in before})  # as a running watchdog does: a person has looked
    done = await _once(reconciler, ledger, leader)
    if done.waiting:
        ends = max((end for values in reconciler.pending().values() for end in values.values()), default=0.0)
        await pause.wait(ends - wall(), done.waiting)
        done = done.then(await _once(reconciler, ledger, leader))
    return [*done.lines, *done.kept, f"{done.given} of {plural(len(before), 'change')} given back"], done.left


async def _once(reconciler: Reconciler, ledger: Ledger, leader: AskLeader) -> _Done:
    done = await reconciler.release(ledger.leases(), 0, "released by release-all", DEADLINE_S, leader)
    return _Done(
        tuple(f"{d.backend}: {d.knob} → {d.to_value} {d.verdict}: {d.reason}" for d in done.decisions),
        sum(_is_given_back(d.verdict, d.reason) for d in done.decisions),
        tuple(_kept(x.backend, x.knob, x.target.gateway, x.target.server, why) for x, why in done.kept),
        sum(why == MAY_STILL_COME for _, why in done.kept),
        len(ledger.leases()),
    )


def _is_given_back(verdict: str, reason: str) -> bool:
    """Not where it may have to be given back again."""
    return verdict in GIVEN_BACK and not reason.endswith(MAY_STILL_COME)


def _kept(backend: str, knob: str, gateway: str, server: str, why: str) -> str:
    return f"{backend}: {knob} of {gateway}/{server} kept: {why}"
