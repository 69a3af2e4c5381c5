"""Starts a training in a process of its own and waits for it, for so long and not longer.

A fresh process each time: one that crashes, hangs or grows costs this training and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from tailkeeper_watchdog.forecast.features import Rows

DEADLINE_S = 90.0
MAX_ANSWER_BYTES = 1024 * 1024
COMMAND = (sys.executable, "-m", "tailkeeper_watchdog.forecast.training")
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""A training that takes a minute longer harms nobody; one that takes every core does."""
ERROR_CHARS = 200


class TrainingError(Exception):
    """There is no answer; the message says why."""


async def train(groups: Sequence[Rows], command: Sequence[str] = COMMAND, deadline_s: float = DEADLINE_S) -> list[Any]:
    """One document for each group, unread. Raises TrainingError. The process is gone when this returns, however it ends."""
    request = json.dumps({"groups": [{"rows": g.rows, "targets": g.targets} for g in groups]}).encode()
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **_ONE_THREAD},
    )
    try:
        async with asyncio.timeout(deadline_s):
            out, said = await process.communicate(request)
    except TimeoutError:
        raise TrainingError(f"training did not end within {deadline_s:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        last = said.decode(errors="replace").strip().splitlines()[-1:]
        raise TrainingError(f"training ended with {process.returncode}: {''.join(last)[:ERROR_CHARS]}")
    return _models(out, len(groups))


def _models(out: bytes, groups: int) -> list[Any]:
    try:
        document = json.loads(out) if len(out) <= MAX_ANSWER_BYTES else None
    except (ValueError, RecursionError):
        document = None
    models = document.get("models") if isinstance(document, dict) else None
    if not isinstance(models, list) or len(models) != groups:
        raise TrainingError("training gave an answer of another shape")
    return models
