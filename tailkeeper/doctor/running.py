"""Runs checks: all at once within a bound, each with its own deadline and one for all. What one does costs the others nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from tailkeeper.doctor.findings import Check, Checked, Finding, Findings, Mistake, Report, Severity
from tailkeeper_watchdog.actuators.calls import excerpt

AT_ONCE = 64
"""As many connections as the watchdog itself has open at most."""
EACH_S = 20.0
"""A backend is asked for its page, its health and a token, each within a few seconds."""
ALL_S = 60.0
"""Somebody waits in front of the terminal."""

Progress = Callable[[int, int], None]
"""How many are done, of how many."""


async def run_checks(checks: Iterable[Check], progress: Progress, each_s: float = EACH_S, all_s: float = ALL_S) -> Report:
    """Never raises for what a check does."""
    checks, gate, started = tuple(checks), asyncio.Semaphore(AT_ONCE), time.monotonic()
    done: dict[int, Checked] = {}

    async def one(number: int, check: Check) -> None:
        async with gate:
            done[number] = Checked(check.area, check.where, tuple(await _outcome(check, each_s)))
        progress(len(done), len(checks))

    tasks = [asyncio.create_task(one(number, check)) for number, check in enumerate(checks)]
    if tasks:
        _, pending = await asyncio.wait(tasks, timeout=all_s)
        for task in pending:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    late = f"was not checked: all checks together may take {all_s:g} s"
    results = (done.get(n) or Checked(c.area, c.where, (_not_checked(c, late),)) for n, c in enumerate(checks))
    return Report(tuple(results), time.monotonic() - started)


async def _outcome(check: Check, each_s: float) -> Findings:
    try:
        async with asyncio.timeout(each_s):
            return await check.run()
    except TimeoutError:
        return [_not_checked(check, f"was given up after {each_s:g} s without a result")]
    except Exception as error:  # the boundary of one check: a mistake of ours in it must not cost the others
        return [_not_checked(check, f"could not be checked: {type(error).__name__}: {excerpt(str(error))}")]


def _not_checked(check: Check, what: str) -> Finding:
    do = "run `tailkeeper doctor` again; if it stays so, this is worth a report"
    return Finding(Mistake.NOT_CHECKED, check.where, what, do, Severity.WARNING, check.backend)
