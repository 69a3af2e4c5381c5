"""Mutated metrics pages through the parser and the normaliser, for a while: no crash, no hang, no growth.

    python -m tests.fuzz.fuzz_pages --seconds 60 --seed 1

Captured pages are cut, spliced, doubled, flipped and filled with the numbers and characters that break parsers. Only a
``PageError`` may come out, nothing may take longer than a second, and what a page leaves behind must stay bounded. A
failing page is written to a file, so that it can become a test.
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from math import isfinite
from pathlib import Path

from tailkeeper_exporter.counters import CounterMemory
from tailkeeper_exporter.engines import ENGINES, Engine
from tailkeeper_exporter.exposition import PageError, PageParser
from tailkeeper_exporter.normalise import normalise, wanted_by

PAGES = tuple(p.read_bytes() for p in sorted((Path(__file__).parents[1] / "fixtures" / "scrapes").glob("*.prom")))
SLOWEST_S = 1.0
GROWTH_BYTES = 64 * 1024 * 1024
TOKENS = (
    *(b"NaN", b"+Inf", b"-Inf", b"1e309", b"-1", b"1_000", b"0x10", b"9" * 400, b"1e-400", b""),
    *(b"{", b"}", b'"', b"\\", b"\n", b"\r\n", b"\x00", b"\xff\xfe", b" # {", b"# EOF", b"le=", b",", b"=", b" "),
    *("\u202e".encode(), "١".encode(), b'{"a":1}', b"<html>", b'le="1"', b'le="abc"', b"_total", b":"),
)

Mutation = Callable[[random.Random, bytearray], bytearray]


def flip(rng: random.Random, page: bytearray) -> bytearray:
    for _ in range(rng.randint(1, 20)):
        page[rng.randrange(len(page))] = rng.randrange(256)
    return page


def cut(rng: random.Random, page: bytearray) -> bytearray:
    start, end = sorted((rng.randrange(len(page)), rng.randrange(len(page))))
    return page[:start] + page[end:]


def splice(rng: random.Random, page: bytearray) -> bytearray:
    other = rng.choice(PAGES)
    at, start = rng.randrange(len(page)), rng.randrange(len(other))
    return page[:at] + other[start : start + rng.randint(1, 5_000)] + page[at:]


def double(rng: random.Random, page: bytearray) -> bytearray:
    start = rng.randrange(len(page))
    return page + page[start : start + rng.randint(1, 20_000)]


def insert(rng: random.Random, page: bytearray) -> bytearray:
    for _ in range(rng.randint(1, 10)):
        at = rng.randrange(len(page) + 1)
        page[at:at] = rng.choice(TOKENS)
    return page


def renumber(rng: random.Random, page: bytearray) -> bytearray:
    lines = page.split(b"\n")
    for _ in range(rng.randint(1, 20)):
        at = rng.randrange(len(lines))
        lines[at] = lines[at].rpartition(b" ")[0] + b" " + rng.choice(TOKENS)
    return bytearray(b"\n".join(lines))


def shuffle(rng: random.Random, page: bytearray) -> bytearray:
    lines = page.split(b"\n")
    rng.shuffle(lines)
    return bytearray(b"\n".join(lines) + b"\n")


MUTATIONS: tuple[Mutation, ...] = (flip, cut, splice, double, insert, renumber, shuffle)


class Subject:
    """What stays alive between the pages of one backend."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._parser = PageParser(wanted_by(engine))
        self._memory = CounterMemory()
        self._now = 0.0

    def read(self, page: bytes) -> bool:
        """Whether the page was understood. Raises whatever should not come out."""
        self._now += 1.0
        try:
            parsed = self._parser.parse(page)
        except PageError:
            return False
        result = normalise(parsed, self._engine, self._memory, self._now)
        for reading in result.values.values():
            value = reading.value
            assert value is None or isfinite(value), "a reading that is no number"
        return True


def mutated(rng: random.Random) -> bytes:
    page = bytearray(rng.choice(PAGES))
    for _ in range(rng.randint(1, 4)):
        if page:
            page = rng.choice(MUTATIONS)(rng, page)
    return bytes(page)


def rss_bytes() -> int:
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fuzz(seconds: float, seed: int) -> str:
    """Run; returns a sentence with the figures. Raises AssertionError with the file of the page that failed."""
    rng = random.Random(seed)
    subjects = [Subject(engine) for engine in ENGINES]
    pages = understood = 0
    slowest = 0.0
    baseline: int | None = None
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        page = mutated(rng)
        started = time.monotonic()
        try:
            understood += rng.choice(subjects).read(page)
        except BaseException as error:
            raise AssertionError(f"seed {seed}, page {pages}, kept in {keep(page)}: {type(error).__name__}: {error}") from error
        took = time.monotonic() - started
        slowest = max(slowest, took)
        assert took < SLOWEST_S, f"seed {seed}, page {pages}, kept in {keep(page)}: took {took:.1f} s"
        pages += 1
        if baseline is None and time.monotonic() > end - seconds / 2:
            baseline = rss_bytes()
    growth = rss_bytes() - (baseline or rss_bytes())
    assert growth < GROWTH_BYTES, f"grew by {growth} bytes in the second half"
    return f"{pages} pages, {understood} understood, slowest {slowest * 1e3:.0f} ms, {growth / 1e6:+.1f} MB in the second half"


def keep(page: bytes) -> str:
    with tempfile.NamedTemporaryFile(prefix="page-", suffix=".prom", delete=False) as file:
        file.write(page)
    return file.name


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.fuzz_pages")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(fuzz(arguments.seconds, arguments.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
