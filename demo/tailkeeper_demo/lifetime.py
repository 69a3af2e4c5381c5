"""How long a demo program lives: until SIGTERM or SIGINT, until its parent is gone, or until its time is over.

The demo starts several programs; none may outlive the terminal it was started from, whatever ends that.
"""

from __future__ import annotations

import asyncio
import os
import signal

_POLL_S = 0.5


def _is_gone(parent_pid: int, first_ppid: int) -> bool:
    """Whether process `parent_pid` ended. A direct parent is recognised by our adoption, any other by asking for it."""
    if first_ppid == parent_pid:
        return os.getppid() != parent_pid
    try:
        os.kill(parent_pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


async def until_told(parent_pid: int | None, duration_s: float | None = None) -> str:
    """Wait; returns why it is time to end: `signal`, `parent` or `duration`. Installs handlers for SIGTERM and SIGINT."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    first_ppid = os.getppid()
    deadline = None if duration_s is None else loop.time() + duration_s
    while not told.is_set():
        if parent_pid is not None and _is_gone(parent_pid, first_ppid):
            return "parent"
        left_s = _POLL_S if deadline is None else min(_POLL_S, deadline - loop.time())
        if left_s <= 0:
            return "duration"
        try:
            await asyncio.wait_for(told.wait(), left_s)
        except TimeoutError:
            continue
    return "signal"
