"""What a simulated engine counts: the counters and histograms behind its metrics page.

The bucket bounds are those of vLLM 0.32.0 as captured from a real page; a test compares them with the capture.
This module holds numbers only: it knows neither the page's text nor the scheduler, and reads no clock.
Data flows engine → here → `engine_page`.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from enum import StrEnum

TTFT_BOUNDS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_BOUNDS_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
PHASE_BOUNDS_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
STEP_BOUNDS_TOKENS = (
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
)  # fmt: skip


class FinishReason(StrEnum):
    """Why a request ended, in vLLM's words and in its page's order."""

    STOP = "stop"
    """The model ended its answer."""
    LENGTH = "length"
    """The answer reached `max_tokens`."""
    ABORT = "abort"
    """The engine itself cut the request. A client that hangs up is counted nowhere, as in vLLM."""
    ERROR = "error"
    REPETITION = "repetition"


class Histogram:
    """Counts per bucket, with sum and count. Bounds are upper bounds, inclusive, ascending."""

    __slots__ = ("bounds", "count", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.count = 0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
        self.count += 1

    def cumulative(self) -> list[int]:
        """Bucket values as a page shows them; the last one is `+Inf` and equals `count`."""
        out: list[int] = []
        running = 0
        for value in self.counts:
            running += value
            out.append(running)
        return out


@dataclass(slots=True)
class EngineStats:
    """Everything counted since the engine process started. Only the engine writes; pages read."""

    preemptions: int = 0
    prompt_tokens: int = 0
    """Prompt tokens of requests whose prefill finished (vLLM counts a prompt once, at its first token)."""
    generation_tokens: int = 0
    prefix_queries_tokens: int = 0
    prefix_hits_tokens: int = 0
    finished: dict[FinishReason, int] = field(default_factory=lambda: dict.fromkeys(FinishReason, 0))
    rejected_queue_full: int = 0
    gpu_active_s: float = 0.0
    """Integral of GPU utilisation over time, of completed iterations only."""
    cpu_s: float = 0.0
    """CPU time of the simulated engine process."""
    ttft_s: Histogram = field(default_factory=lambda: Histogram(TTFT_BOUNDS_S))
    itl_s: Histogram = field(default_factory=lambda: Histogram(TOKEN_BOUNDS_S))
    tpot_s: Histogram = field(default_factory=lambda: Histogram(TOKEN_BOUNDS_S))
    e2e_s: Histogram = field(default_factory=lambda: Histogram(PHASE_BOUNDS_S))
    queue_s: Histogram = field(default_factory=lambda: Histogram(PHASE_BOUNDS_S))
    inference_s: Histogram = field(default_factory=lambda: Histogram(PHASE_BOUNDS_S))
    prefill_s: Histogram = field(default_factory=lambda: Histogram(PHASE_BOUNDS_S))
    decode_s: Histogram = field(default_factory=lambda: Histogram(PHASE_BOUNDS_S))
    step_tokens: Histogram = field(default_factory=lambda: Histogram(STEP_BOUNDS_TOKENS))
