"""``tailkeeper release-all``: give back everything that the ledger says is ours, and nothing else.

A running watchdog is asked first and paused, because it would act again at its next tick; where none answers, the
gateways are written directly from the ledger, under the lock that a watchdog leads by: never beside one that we cannot reach.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import httpx

from tailkeeper.config import Config

if TYPE_CHECKING:
    from tailkeeper_watchdog.ledger import Ledger
    from tailkeeper_watchdog.reconcile import AskLeader

DEADLINE_S = 10.0
GIVEN_BACK = ("released", "expired")

Said = tuple[list[str], int]
"""Lines for people and how many changes could not be given back."""


def release_everything(config: Config) -> Said:
    """Lines for people and how many changes could not be given back."""
    answered, why_not = _ask_running(config)
    return answered if answered is not None else asyncio.run(_release_directly(config, why_not))


def _ask_running(config: Config) -> tuple[Said | None, str]:
    """What the running watchdog did; or None, and in words why it was not to be asked."""
    token_file = config.watchdog.token_file
    headers = {"Authorization": f"Bearer {token_file.read_text().strip()}"} if token_file else {}
    base = f"http://{config.watchdog.listen.replace('0.0.0.0', '127.0.0.1')}"
    try:
        with httpx.Client(base_url=base, headers=headers, timeout=DEADLINE_S, trust_env=False) as client:
            paused = client.post("/api/v1/pause")
            if paused.status_code == 503:
                return None, f"the watchdog at {base} is not to be asked ({_detail(paused)})"
            if paused.status_code != 200:
                return ([f"the watchdog at {base} refused: {paused.status_code} {paused.text[:200]}"], 1), ""
            released = client.post("/api/v1/release")
            if released.status_code != 200:
                return ([f"the watchdog at {base} is paused, and gave nothing back: {_detail(released)}"], 1), ""
            document = released.json()
    except (httpx.HTTPError, ValueError):
        return None, f"no watchdog answers at {base}"
    lines = [f"{d['backend']}: {d['knob']} → {d['to']} {d['verdict']}: {d['reason']}" for d in document["decisions"]]
    lines += [_kept(x["backend"], x["knob"], x["gateway"], x["server"], x["why"]) for x in document["kept"]]
    given = sum(d["verdict"] in GIVEN_BACK for d in document["decisions"])
    paused_now = f"{given} changes given back; the watchdog at {base} is paused, resume it with POST /api/v1/resume"
    return ([*lines, paused_now], int(document["failed"])), ""


def _detail(answer: httpx.Response) -> str:
    try:
        document: Any = answer.json()
        return str(document["detail"])[:400]
    except (ValueError, KeyError, TypeError):
        return f"{answer.status_code} {answer.text[:200]}"


async def _release_directly(config: Config, why_not_asked: str) -> Said:
    from tailkeeper_watchdog.leadership import FileLock
    from tailkeeper_watchdog.ledger import Ledger

    lock = FileLock(config.watchdog.state, "release-all", time.time)
    leader = await lock.try_lead()
    if leader is not None:
        told = f"{why_not_asked}, and nothing is done beside a leader: {leader}; ask that one, or stop it and run this again"
        return [told], 1
    ledger = Ledger(config.watchdog.state)
    try:
        return await _give_back(config, ledger, lock.try_lead)
    finally:
        ledger.close()
        await lock.step_down()


async def _give_back(config: Config, ledger: Ledger, leader: AskLeader) -> Said:
    from tailkeeper_watchdog.actuators import build_actuator
    from tailkeeper_watchdog.decision_log import DecisionLog
    from tailkeeper_watchdog.reconcile import Reconciler

    actuators = {g.name: build_actuator(g) for g in config.for_watchdog().gateways}
    reconciler = Reconciler(actuators, ledger, DecisionLog(ledger, time.time), config.guards.lease_s, time.time)
    try:
        leases = ledger.leases()
        before = len(leases)
        ledger.forget_attempts({lease.backend for lease in leases})  # as a running watchdog does: a person has looked
        done = await reconciler.release(leases, 0, "released by release-all", DEADLINE_S, leader)
    finally:
        await reconciler.close()
    lines = [f"{d.backend}: {d.knob} → {d.to_value} {d.verdict}: {d.reason}" for d in done.decisions]
    lines += [_kept(x.backend, x.knob, x.target.gateway, x.target.server, why) for x, why in done.kept]
    given = sum(d.verdict in GIVEN_BACK for d in done.decisions)
    return [*lines, f"{given} of {before} changes given back"], len(ledger.leases())


def _kept(backend: str, knob: str, gateway: str, server: str, why: str) -> str:
    return f"{backend}: {knob} of {gateway}/{server} kept: {why}"
