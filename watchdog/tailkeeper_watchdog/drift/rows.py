"""Request rows as one table of numbers, and which of them can be used. Pure.

A column that is not known is NaN, never 0. ``at_s`` is when the request's latency became known to who feeds them: when its
first token came, or, where requests are told of as they end, when it ended. It is what blocks of time are cut by.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

COLUMNS = ("at_s", "latency_s", "prompt_tokens", "backlog_tokens", "running", "waiting")
AT, LATENCY, PROMPT, BACKLOG, RUNNING, WAITING = range(len(COLUMNS))
MAX_AT_S = 1e11
MAX_LATENCY_S = 1e5
"""More than a day for a first token is a broken clock."""
MAX_LOAD = 1e9
FEATURES = 6
CHUNK_TOKENS = 2048
"""Tokens that an engine takes in one step of prefill, by common default."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Requests in the order in which they became known: one line each, columns as in ``COLUMNS``."""

    table: FloatArray

    @classmethod
    def of(cls, rows: Iterable[Sequence[float | None]]) -> Rows:
        """From sequences in the order of ``COLUMNS``; None is unknown."""
        table = np.array(list(rows), dtype=np.float64)
        return cls(table.reshape(-1, len(COLUMNS)))

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, part: slice | BoolArray) -> Rows:
        return Rows(self.table[part])


def has_latency(table: FloatArray) -> BoolArray:
    """Which rows have a time and a latency that can be true."""
    at_s, latency_s = table[:, AT], table[:, LATENCY]
    return (np.abs(at_s) < MAX_AT_S) & (latency_s > 0) & (latency_s < MAX_LATENCY_S)


def has_load(table: FloatArray) -> BoolArray:
    """Which rows say under what load the request came."""
    load = np.ascontiguousarray(table[:, PROMPT:].T)
    # A NaN is neither at least 0 nor below the bound, and stays NaN in both extremes.
    return np.asarray((load.min(axis=0) >= 0) & (load.max(axis=0) < MAX_LOAD), dtype=np.bool_)


def features(table: FloatArray) -> FloatArray:
    """What the load model sees, a line for each: 1, running, tokens, steps of prefill, tokens × running, queue."""
    tokens = table[:, PROMPT] + table[:, BACKLOG]
    seen = np.empty((FEATURES, len(table)))
    seen[0] = 1.0
    seen[1] = running = table[:, RUNNING]
    seen[2] = tokens * 1e-3
    seen[3] = np.ceil(tokens / CHUNK_TOKENS)
    seen[4] = tokens * running * 1e-5
    seen[5] = table[:, WAITING]
    return seen
