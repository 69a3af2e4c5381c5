"""``tailkeeper release-all``: give back everything that the ledger says is ours, and nothing else.

A running watchdog is asked first and paused, because it would act again at its next tick; where none answers, the
gateways are written directly from the ledger.
"""

from __future__ import annotations

import asyncio
import time

import httpx

from tailkeeper.config import Config

DEADLINE_S = 10.0


def release_everything(config: Config) -> tuple[list[str], int]:
    """Lines for people and how many changes could not be given back."""
    answered = _ask_running(config)
    return answered if answered is not None else asyncio.run(_release_directly(config))


def _ask_running(config: Config) -> tuple[list[str], int] | None:
    token_file = config.watchdog.token_file
    headers = {"Authorization": f"Bearer {token_file.read_text().strip()}"} if token_file else {}
    base = f"http://{config.watchdog.listen.replace('0.0.0.0', '127.0.0.1')}"
    try:
        with httpx.Client(base_url=base, headers=headers, timeout=DEADLINE_S, trust_env=False) as client:
            paused = client.post("/api/v1/pause")
            if paused.status_code != 200:
                return [f"the watchdog at {base} refused: {paused.status_code} {paused.text[:200]}"], 1
            document = client.post("/api/v1/release").json()
    except (httpx.HTTPError, ValueError):
        return None
    lines = [f"{d['backend']}: {d['knob']} → {d['to']} {d['verdict']}: {d['reason']}" for d in document["decisions"]]
    return [
        *lines,
        f"{len(lines)} changes given back; the watchdog at {base} is paused, resume it with POST /api/v1/resume",
    ], int(document["failed"])


async def _release_directly(config: Config) -> tuple[list[str], int]:
    from tailkeeper_watchdog.actuators import build_actuator
    from tailkeeper_watchdog.decision_log import DecisionLog
    from tailkeeper_watchdog.ledger import Ledger
    from tailkeeper_watchdog.reconcile import Reconciler

    ledger = Ledger(config.watchdog.state)
    actuators = {g.name: build_actuator(g) for g in config.for_watchdog().gateways}
    reconciler = Reconciler(actuators, ledger, DecisionLog(ledger, time.time), config.guards.lease_s, time.time)
    try:
        leases = ledger.leases()
        gone = [lease for lease in leases if lease.target.gateway not in actuators]
        there = tuple(lease for lease in leases if lease.target.gateway in actuators)
        done = await reconciler.release(there, 0, "released by release-all", DEADLINE_S)
        lines = [f"{d.backend}: {d.knob} → {d.to_value} {d.verdict}: {d.reason}" for d in done.decisions]
        lines += [f"{x.backend}: gateway {x.target.gateway!r} is not in the configuration any more; lease kept" for x in gone]
        left = len(ledger.leases())
        return [*lines, f"{len(leases) - left} of {len(leases)} changes given back"], left
    finally:
        await reconciler.close()
        ledger.close()
