"""Long documents are read beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

LONG_BYTES = 256 * 1024
"""A longer document is read beside the loop: 10 MB of workers took 0.3 to 0.6 s. One of this length took 2 to 8 ms."""
T = TypeVar("T")


async def parsed(body: bytes, parse: Callable[[bytes], T]) -> T:
    """``parse(body)``, beside the loop where the body is long: ``strict_json`` lets the loop go on meanwhile."""
    return parse(body) if len(body) <= LONG_BYTES else await asyncio.to_thread(parse, body)
