"""Arrivals and token counts of the packaged Azure trace, stretched in time to a wanted request rate.

The trace gives when requests come and how long prompts and answers are; it gives no latencies. A window of it is chosen by
seed and scaled so that its mean rate is exactly the wanted one: bursts and lulls inside stay where they were.
Pure, apart from reading the packaged file. Source and licence: `traces/README.md`.
"""

from __future__ import annotations

import csv
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources

_FILE = "azure_llm_2023_thinned.csv"


class Source(StrEnum):
    """Who sends a request."""

    ONLINE = "online"
    """A user, who reads along: the answer is streamed."""
    ROLLOUT = "rollout"
    """A training run that samples answers; it wants each as a whole."""
    EVALUATION = "evaluation"
    """A check of a model under training, likewise."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of the trace; `at_s` counts from the trace's first request."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    source: Source = Source.ONLINE
    prompt_key: str | None = None
    """Requests with the same key have the same prompt, so that its keys and values can be taken from the prefix cache."""


@dataclass(frozen=True, slots=True)
class Caps:
    """Upper bounds on lengths, so that a short demo sees many completions."""

    prompt_tokens: int = 3000
    output_tokens: int = 200


def load_trace() -> list[TraceRow]:
    """The packaged rows, in order of arrival."""
    with (resources.files("tailkeeper_demo") / "traces" / _FILE).open(encoding="utf-8") as lines:
        rows = csv.DictReader(lines)
        return [TraceRow(int(r["arrival_ms"]) / 1000, int(r["prompt_tokens"]), int(r["output_tokens"])) for r in rows]


def arrivals(
    rows: Sequence[TraceRow], *, rate_per_s: float, duration_s: float | None, seed: int, caps: Caps | None = None
) -> Iterator[TraceRow]:
    """Requests at `rate_per_s` on average, `at_s` from 0 up to `duration_s` (None: for ever).

    Up to the trace's 9,150 requests the mean rate is exact; a longer run goes round the whole trace and is cut where time is up.
    """
    limits = caps or Caps()
    window = _window(rows, None if duration_s is None else round(rate_per_s * duration_s), random.Random(seed))
    mean_gap_s = (window[-1].at_s - window[0].at_s) / (len(window) - 1)
    # A short window may be one burst, all of it in the same millisecond: then it stays one.
    scale = 1 / (rate_per_s * mean_gap_s) if mean_gap_s > 0 else 0.0
    for lap in range(1) if len(window) < len(rows) else itertools.count():
        for row in window:
            at_s = lap * len(window) / rate_per_s + (row.at_s - window[0].at_s) * scale
            if duration_s is not None and at_s >= duration_s:
                return
            prompt = min(row.prompt_tokens, limits.prompt_tokens)
            yield TraceRow(at_s, prompt, min(row.output_tokens, limits.output_tokens))


def _window(rows: Sequence[TraceRow], count: int | None, rng: random.Random) -> Sequence[TraceRow]:
    """`count` rows in a row from a random place; all rows when as many or more are wanted."""
    if count is not None and 2 <= count < len(rows):
        start = rng.randrange(len(rows) - count)
        return rows[start : start + count]
    return rows
