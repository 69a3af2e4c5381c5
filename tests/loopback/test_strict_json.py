"""What two readers could understand differently is no JSON here."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from tailkeeper_exporter.long_json import LONG_BYTES, parsed
from tailkeeper_exporter.strict_json import loads, loads_any


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"a": 1, "a": 1}', "'a' is there twice"),
        (b'[{"b": {"c": 1, "c": 2}}]', "'c' is there twice"),
        (b"NaN", "NaN"),
        (b"[-Infinity]", "-Infinity"),
        (b'"\xff"', "UTF-8"),
        (b"[" * 200_000, "."),
        (b"{} x", "."),
        (b"", "."),
    ],
)
def test_a_doubtful_document_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        loads(body)


def test_a_plain_document_is_read() -> None:
    assert loads('{"a": [1, 2.5, null, true, "é"]}'.encode()) == {"a": [1, 2.5, None, True, "é"]}


async def standstill(read: Callable[[bytes], object], body: bytes) -> float:
    """The longest time without a turn of the loop, as a share of the whole."""
    reading, began = asyncio.create_task(parsed(body, read)), time.monotonic()
    turns = [began]
    while not reading.done():
        await asyncio.sleep(0)
        turns.append(time.monotonic())
    assert isinstance(reading.result(), list)
    return max(after - before for before, after in pairwise(turns)) / (turns[-1] - began)


@pytest.mark.parametrize("read", [loads, loads_any])
async def test_the_loop_has_its_turn_while_a_long_document_is_read(read: Callable[[bytes], object]) -> None:
    body = json.dumps([{"url": f"http://10.0.0.1:{n}", "labels": {"zone": "a"}} for n in range(50_000)]).encode()
    assert len(body) > LONG_BYTES
    shares = [await standstill(read, body) for _ in range(3)]
    assert min(shares) < 0.7, "in the loop, or by the standard library alone, it is all of the time"


@pytest.mark.parametrize(("length", "beside"), [(LONG_BYTES, False), (LONG_BYTES + 1, True)])
async def test_only_a_long_document_is_worth_a_thread(length: int, beside: bool) -> None:
    thread = await parsed(b" " * length, lambda _: threading.current_thread())
    assert (thread is not threading.main_thread()) == beside


def test_the_last_of_two_equal_keys_counts_where_that_is_allowed() -> None:
    assert loads_any(b'{"a": 1, "a": {"b": NaN}}')["a"].keys() == {"b"}
