"""The last request records of one backend as columns, and the two samples that are compared. Owned by the loop; no clock.

A row is 60 bytes. A log grows by doubling up to ``rows_per_backend``, so that a fleet of any size up to 2,000 backends holds
at most ``FLEET_ROWS`` rows (60 MB); beyond, ``MIN_ROWS`` a backend. A full log that spans less than ``MIN_SPAN_S`` keeps only
every second record from then on, every fourth, and so on, and each row says how many it stands for: a busy backend must not
forget what it was like before. Unknown numbers are NaN, unknown labels code 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailkeeper_watchdog.model import EMPTY, RequestRecord

MAX_ROWS = 10_000
MIN_ROWS = 500
FLEET_ROWS = 1_000_000
FIRST_ROWS = 256
MIN_SPAN_S = 600.0
"""What a full log should reach back: long enough to have a baseline before what a detector took minutes to see."""
MAX_HALVINGS = 7
BLOCK = 50
"""Requests in a row that are drawn together: longer than most queues are. Of a small sample a quarter, or it would be drawn
whole each time, and be certain of everything."""
_GOLDEN = 2_654_435_769
MAX_VALUES = 64
"""Different values of one label in one log; what comes later is ``other``. A tenant per request must not fill the memory."""
MAX_CHARS = 64
UNLABELLED = "unlabelled"
OTHER = "other"
LABELS = ("canary_revision", "tenant", "model", "operation", "modality")
_SECONDS = ("queue_s", "prefill_s", "ttft_s", "itl_s", "e2e_s")
_TOKENS = ("prompt_tokens", "cached_tokens", "backlog_tokens")
_OUTCOMES: Mapping[str | None, int] = {None: 0, "ok": 1, "error": 2, "rejected": 3, "aborted": 4}
OK, ERROR, REJECTED, ABORTED = 1, 2, 3, 4
ROW = np.dtype(
    [
        ("at", "f8"),
        ("start", "f8"),
        *((name, "f4") for name in (*_SECONDS, *_TOKENS)),
        *((name, "i2") for name in LABELS),
        ("outcome", "i1"),
        ("halvings", "i1"),
    ]
)

Rows = NDArray[Any]


def rows_per_backend(backends: int) -> int:
    return min(MAX_ROWS, max(MIN_ROWS, FLEET_ROWS // max(1, backends)))


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows of one time. ``total`` is how many requests they stand for, that came within ``span_s``."""

    rows: Rows
    total: int
    span_s: float | None
    names: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: EMPTY)
    """By label, the text of each code; shared by all samples of one log."""

    def __len__(self) -> int:
        return int(self.rows.size)

    def redrawn(self, rng: np.random.Generator, most: int) -> Sample:
        """At most ``most`` rows drawn with replacement, in blocks of neighbours: one bootstrap resample.

        Neighbours wait in the same queue. Drawn one by one they would look like so many independent witnesses.
        """
        size = min(most, len(self))
        block = max(1, min(BLOCK, size // 4))
        starts = rng.integers(0, len(self) - block + 1, -(-size // block))
        return replace(self, rows=self.rows.take((starts[:, None] + np.arange(block)).ravel()[:size]))


class RequestLog:
    """The last rows of one backend, oldest first."""

    __slots__ = ("_codes", "_filled", "_halvings", "_names", "_next", "_rows", "_seen")

    def __init__(self) -> None:
        self._rows: Rows = np.zeros(FIRST_ROWS, ROW)
        self._next = self._filled = self._seen = self._halvings = 0
        self._codes: dict[str, dict[str, int]] = {label: {} for label in LABELS}
        self._names: dict[str, list[str]] = {label: [UNLABELLED] for label in LABELS}

    def __len__(self) -> int:
        return self._filled

    @property
    def size_bytes(self) -> int:
        return int(self._rows.nbytes)

    def values(self, label: str) -> tuple[str, ...]:
        """The values of a label in the order in which they were first seen."""
        return tuple(self._names[label][1:])

    def extend(self, records: Sequence[RequestRecord], now: float, most: int) -> None:
        """Add records that arrived at ``now``, monotonic; at most ``most`` rows are kept."""
        new = np.array([self._row(record, now) for record in records if self._chosen()][-most:], ROW)
        self._make_room(new.size, most)
        size = self._rows.size
        first = min(new.size, size - self._next)
        self._rows[self._next : self._next + first] = new[:first]
        self._rows[: new.size - first] = new[first:]
        self._next = (self._next + new.size) % size
        self._filled = min(size, self._filled + new.size)
        if self._filled == most:
            self._pace(now)

    def _chosen(self) -> bool:
        """One in 2 ** halvings, spread so evenly that no rhythm of the traffic falls in with it."""
        self._seen += 1
        return (self._seen * _GOLDEN & 0xFFFFFFFF) >> (32 - MAX_HALVINGS) < 1 << (MAX_HALVINGS - self._halvings)

    def _pace(self, now: float) -> None:
        span = now - float(self._rows["at"][self._next % self._rows.size])
        if span < MIN_SPAN_S:
            self._halvings = min(MAX_HALVINGS, self._halvings + 1)
        elif span > 4 * MIN_SPAN_S:
            self._halvings = max(0, self._halvings - 1)

    def _make_room(self, more: int, most: int) -> None:
        wanted = self._rows.size
        while wanted < most and wanted < self._filled + more:
            wanted = min(most, 2 * wanted)
        wanted = min(wanted, most)  # a fleet that grew leaves less for each
        if wanted != self._rows.size:
            kept = self._ordered()[-wanted:]
            self._rows = np.zeros(wanted, ROW)
            self._rows[: kept.size] = kept
            self._filled, self._next = int(kept.size), int(kept.size) % wanted

    def _ordered(self) -> Rows:
        if self._filled < self._rows.size:
            return self._rows[: self._filled]
        return np.concatenate([self._rows[self._next :], self._rows[: self._next]])

    def _row(self, record: RequestRecord, now: float) -> tuple[Any, ...]:
        return (
            now,
            _number(record.start_unix_s),
            _number(record.queue_s),
            _number(record.prefill_s),
            _number(record.ttft_s),
            _number(record.itl_s),
            _number(record.e2e_s),
            _number(record.prompt_tokens),
            _number(record.cached_tokens),
            _number(record.backlog_tokens),
            *(self._code(label, getattr(record, label)) for label in LABELS),
            _OUTCOMES.get(record.outcome, 0),
            self._halvings,
        )

    def _code(self, label: str, value: str | None) -> int:
        if not value:
            return 0
        codes, text = self._codes[label], value[:MAX_CHARS]
        code = codes.get(text)
        if code is None:
            if len(codes) >= MAX_VALUES:
                text = OTHER
            code = codes.setdefault(text, len(codes) + 1)
            if code == len(self._names[label]):
                self._names[label].append(text)
        return code

    def between(self, start: float, end: float) -> Sample:
        """What arrived in [start, end), monotonic."""
        rows = self._ordered()
        chosen = rows[(rows["at"] >= start) & (rows["at"] < end)]
        total = int(np.exp2(chosen["halvings"]).sum())
        return Sample(chosen, total, _span_s(chosen), {label: tuple(names) for label, names in self._names.items()})


def thinned(sample: Sample, most: int, rng: np.random.Generator) -> Sample:
    """At most ``most`` rows, drawn without replacement where there are more."""
    if len(sample) <= most:
        return sample
    return replace(sample, rows=sample.rows[np.sort(rng.choice(len(sample), most, replace=False))])


def joined(samples: Sequence[Sample], names: Mapping[str, tuple[str, ...]]) -> Sample:
    """One sample of several backends, in the codes of ``names`` as far as they reach, with new ones behind them.

    Its span is the sum of theirs, so that what it tells of a second is what one of them did on average.
    """
    texts = {label: list(names.get(label, (UNLABELLED,))) for label in LABELS}
    parts = []
    for sample in samples:
        rows = sample.rows.copy()
        for label in LABELS:
            rows[label] = _recoded(rows[label], sample.names.get(label, (UNLABELLED,)), texts[label])
        parts.append(rows)
    spans = [sample.span_s for sample in samples]
    span_s = None if any(span is None for span in spans) else sum(span for span in spans if span is not None)
    rows = np.concatenate(parts) if parts else np.zeros(0, ROW)
    return Sample(rows, sum(sample.total for sample in samples), span_s, {label: tuple(t) for label, t in texts.items()})


def _recoded(codes: NDArray[Any], own: tuple[str, ...], texts: list[str]) -> NDArray[Any]:
    for text in own:
        if text not in texts:
            texts.append(text)
    table = np.array([texts.index(text) for text in own], codes.dtype)
    return np.asarray(table[codes])


def _number(value: float | None) -> float:
    return nan if value is None else value


def _span_s(rows: Rows) -> float | None:
    """From the first to the last start. Starts and not arrivals: a reader that was away gets many records at once."""
    starts = rows["start"][np.isfinite(rows["start"])]
    if starts.size < 2 or starts.size < 0.8 * rows.size:
        return None
    span = float(starts.max() - starts.min())
    return span if span > 0 else None
