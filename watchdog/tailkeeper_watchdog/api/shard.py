"""Which part of the fleet this watchdog is for, as a document and as series. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tailkeeper_watchdog import metrics
from tailkeeper_watchdog.api.page import Series
from tailkeeper_watchdog.shard import Left, Shard

Part = Callable[[], tuple[Shard, Left]]
"""The shard, and what it leaves to the others as of now."""
MAX_SPLIT = 100


def document(part: Part | None) -> dict[str, Any] | None:
    """None for a watchdog that is for the whole fleet."""
    if part is None:
        return None
    shard, left = part()
    return {"index": shard.index, "of": shard.of, "elsewhere": left.backends, "split_pools": list(left.split[:MAX_SPLIT])}


def series(part: Part | None, own: int) -> Iterator[Series]:
    """How many shards there are, and how many backends are watched here and by the others; none where there are no others."""
    if part is not None:
        shard, left = part()
        yield metrics.SHARDS, [((), float(shard.of))]
        yield metrics.SHARD_BACKENDS, [((str(shard), "own"), float(own)), ((str(shard), "elsewhere"), float(left.backends))]
        yield metrics.SHARD_SPLIT, [((str(shard),), float(len(left.split)))]
