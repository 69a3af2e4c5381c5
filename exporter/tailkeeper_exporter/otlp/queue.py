"""What waits to be sent: a queue bounded in items, bytes and age. The oldest is dropped first, because what is new is asked for.

No I/O; time is passed in. Each item is the bytes of one export request, and requests joined end to end are one request with
the parts of all: protobuf appends repeated fields.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

MAX_ITEMS = 10_000
MAX_BYTES = 16 * 1024 * 1024
"""With the items: two minutes of 80 requests a second at about 1.5 kB each."""
MAX_AGE_S = 300.0
"""Older spans are of no use to somebody who looks for what is wrong now, and a batch that is never taken ends here too."""
BATCH_ITEMS = 512
"""As OpenTelemetry's SDKs send at most."""
BATCH_BYTES = 1024 * 1024
"""A quarter of what receivers commonly take. A single larger item, forwarded as it came, goes alone."""


@dataclass(frozen=True, slots=True)
class Item:
    """One export request, with ``count`` spans or log records. ``at_s`` is monotonic."""

    payload: bytes
    count: int
    at_s: float


class SendQueue:
    """Written in the event loop only. ``dropped`` is called with the number of spans or records that are lost."""

    def __init__(self, dropped: Callable[[int], None], max_items: int = MAX_ITEMS, max_bytes: int = MAX_BYTES) -> None:
        self._dropped = dropped
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._items: deque[Item] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def size_bytes(self) -> int:
        """What waits, all together."""
        return self._bytes

    @property
    def has_batch(self) -> bool:
        """Whether there is enough for a post, without waiting for more."""
        return len(self._items) >= BATCH_ITEMS or self._bytes >= BATCH_BYTES

    def offer(self, item: Item) -> None:
        """Take an item in, and drop from the oldest end what is too much."""
        self._items.append(item)
        self._bytes += len(item.payload)
        while len(self._items) > self._max_items or self._bytes > self._max_bytes:
            self._drop_oldest()

    def take(self, now: float) -> list[Item]:
        """The oldest items that make a batch; empty when there are none."""
        while self._items and now - self._items[0].at_s > MAX_AGE_S:
            self._drop_oldest()
        batch: list[Item] = []
        size = 0
        while self._items and len(batch) < BATCH_ITEMS:
            if batch and size + len(self._items[0].payload) > BATCH_BYTES:
                break
            item = self._items.popleft()
            size += len(item.payload)
            batch.append(item)
        self._bytes -= size
        return batch

    def put_back(self, batch: list[Item]) -> None:
        """Return what could not be sent to where it was. It is the oldest, so where it does not fit any more it is dropped."""
        self._items.extendleft(reversed(batch))
        self._bytes += sum(len(item.payload) for item in batch)
        while len(self._items) > self._max_items or self._bytes > self._max_bytes:
            self._drop_oldest()

    def drop_all(self) -> None:
        while self._items:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        item = self._items.popleft()
        self._bytes -= len(item.payload)
        self._dropped(item.count)
