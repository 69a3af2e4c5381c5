"""Records on disk: gzip'ed JSON lines in one file and its predecessor, written by a thread of their own.

``offer`` never waits and never raises: a slow or full disk costs records, which is said once and counted, and no tick. What
is kept on disk is at most ``max_bytes``, in two files: when the newer is half of that it becomes ``NAME.1``. Lines are
written in batches of at most ``BATCH_S``; that much is lost when the process is killed. A torn end is passed over by readers.
"""

from __future__ import annotations

import json
import mmap
import os
import queue
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from tailkeeper_watchdog.model import TickRecord
from tailkeeper_watchdog.records.batch import Batch
from tailkeeper_watchdog.records.lines import Decoder, Encoder, RecordedTick, RunStart
from tailkeeper_watchdog.tick import TickInputs

log = structlog.get_logger("tailkeeper.watchdog")

QUEUE_TICKS = 8
"""Ticks that may wait for the disk; each holds on to a whole fleet's observations."""
QUEUE_BACKENDS = 20_000
"""Of all fleets that wait together, at some 25 kB each: a tick of a large fleet waits alone."""
BATCH_S = 15.0
BATCH_CHARS = 1_000_000
COMPLETE_EVERY_S = 600.0
"""So often everything is written anew: as much is lost at most behind a line that cannot be read."""
CLOSE_WITHIN_S = 5.0
MAX_LINE_CHARS = 256 * 1024 * 1024
"""A complete line of 10,000 backends has about 60 million characters; more is no record of ours."""
_GZIP = 31
"""Makes zlib read gzip's format."""
_MEMBER = b"\x1f\x8b\x08" + bytes(5)
"""How each batch begins: gzip's header without a time of its own."""
_READ_BYTES = 1 << 20


def previous(path: Path) -> Path:
    """Where the file is kept that came before."""
    return path.with_name(path.name + ".1")


class Recorder:
    """Takes ticks from the loop and writes them in its own thread. ``close`` it at the end."""

    def __init__(
        self,
        path: Path,
        max_bytes: int,
        configuration: Mapping[str, Any],
        run: str,
        clock: Callable[[], float] = time.monotonic,
        waiting: int = QUEUE_TICKS,
    ) -> None:
        self._path, self._max_bytes, self._clock = path, max_bytes, clock
        self._encoder = Encoder(run, configuration)
        self._queue: queue.Queue[tuple[TickRecord, TickInputs | None, int] | None] = queue.Queue(waiting)
        self._lost_since = 0
        self.lost = 0
        """Ticks that were not kept, in all."""
        self._failing = False
        self._batch = Batch()
        self._batch_since = self._complete_since = clock()
        self._thread = threading.Thread(target=self._write_all, name="records", daemon=True)
        self._thread.start()

    def offer(self, record: TickRecord, inputs: TickInputs | None) -> None:
        """Keep this tick if there is room for it now."""
        fleet = max(1, len(record.situation.snapshot.backends))
        try:
            if self._queue.qsize() >= max(1, QUEUE_BACKENDS // fleet):
                raise queue.Full
            self._queue.put_nowait((record, inputs, self._lost_since))
            self._lost_since = 0
        except queue.Full:
            self._lost_since += 1
            self._lose(1, "the disk does not keep up")

    def settle(self) -> None:
        """Wait until all that was offered is encoded; for whoever measures what a tick costs beside the loop."""
        self._queue.join()

    def close(self) -> None:
        """Write what there is. A disk that hangs is not waited for longer than ``CLOSE_WITHIN_S``."""
        with suppress(queue.Full):
            self._queue.put(None, timeout=CLOSE_WITHIN_S)
            self._thread.join(CLOSE_WITHIN_S)

    def _lose(self, ticks: int, why: str) -> None:
        self.lost += ticks
        if not self._failing:
            self._failing = True
            with suppress(Exception):  # a log on the same full disk raises as well
                log.warning("ticks are not recorded", file=str(self._path), why=why)

    def _write_all(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                self._take(*item)
            except Exception as error:  # the recorder's boundary: whatever fails here costs records and no tick
                self._encoder.restart()
                self._lose_batch(error)
            finally:
                self._queue.task_done()
        try:
            self._flush()
        except OSError as error:
            self._lose_batch(error)

    def _lose_batch(self, error: Exception) -> None:
        self._lose(self._batch.ticks, f"{type(error).__name__}: {error}")
        self._batch = Batch()

    def _take(self, record: TickRecord, inputs: TickInputs | None, lost: int) -> None:
        now = self._clock()
        if now - self._complete_since >= COMPLETE_EVERY_S:
            self._encoder.restart()
            self._complete_since = now
        self._batch.ticks += 1
        for line in self._encoder.lines(record, inputs, lost):
            self._batch.add(line)
        if now - self._batch_since >= BATCH_S or self._batch.chars >= BATCH_CHARS:
            self._flush()

    def _flush(self) -> None:
        if not self._batch.ticks:
            return
        body = self._batch.body()
        with open(self._path, "ab", opener=_private) as file:
            file.write(body)
            size = file.tell()
        self._batch, self._batch_since = Batch(), self._clock()
        if self._failing:
            self._failing = False
            log.info("ticks are recorded again", file=str(self._path), lost=self.lost)
        if size >= self._max_bytes // 2:
            os.replace(self._path, previous(self._path))
            self._encoder.restart()


def _private(path: str, flags: int) -> int:
    """Readable for its owner only: names of backends, pools and reasons are nobody else's business."""
    return os.open(path, flags, 0o600)


def read(path: Path) -> Iterator[RunStart | RecordedTick]:
    """All that was recorded under ``path``, oldest first.

    Raises OSError where the file itself cannot be read, and NewerRecordsError.
    """
    decoder = Decoder()
    if previous(path).exists():
        yield from _steps(previous(path), decoder)
    yield from _steps(path, decoder)


def _steps(path: Path, decoder: Decoder) -> Iterator[RunStart | RecordedTick]:
    for text in _lines(path):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            line = None
        step = decoder.take(line)
        if step is not None:
            yield step


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of all parts of a file, and an empty one where something could not be read, so that it does not go unnoticed."""
    rest = b""
    for part in _inflated(path):
        if part is None:
            rest = b""
            yield b""
            continue
        *lines, rest = (rest + part).split(b"\n")
        yield from lines
        if len(rest) > MAX_LINE_CHARS:
            return
    if rest:
        yield rest


def _inflated(path: Path) -> Iterator[bytes | None]:
    """What the file holds, piece by piece; None where a part of it is torn, after which the next one is taken."""
    if not path.stat().st_size:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = 0
        while start < len(data):
            end = data.find(_MEMBER, start + 1)
            end = len(data) if end < 0 else end
            yield from _member(data[start:end])
            start = end


def _member(body: bytes) -> Iterator[bytes | None]:
    try:
        while body:
            inflate = zlib.decompressobj(wbits=_GZIP)
            while body and not inflate.eof:
                yield inflate.decompress(body, _READ_BYTES)
                body = inflate.unconsumed_tail
            yield inflate.flush()
            if not inflate.eof:
                yield None
            body = inflate.unused_data
    except zlib.error:
        yield None
