"""When the KV cache, or a device, will be full. Pure.

With a configured ``model_shape`` memory is modelled: requests need their number times their mean length times the bytes of
a token's keys and values (2 · layers · kv_heads · head_dim · dtype_bytes). Weights and activations, and all that such a
formula does not know, are measured: the share in use is fitted as base + scale · bytes of the running requests, and what is
foreseen is base + scale · bytes of the waiting ones too, before they have memory. Without a shape the trend of the share in
use is all there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

MIN_POINTS = 8
HORIZON_S = 1_800.0
"""Further ahead is not foreseen: no trend of five minutes holds for longer."""
MIN_RISE = 0.01
"""The rise over the points, as a share of the whole, below which it is noise."""
MIN_APART = 0.02
"""Two points whose bytes differ by less than this share say nothing of what a byte costs."""
AGREE = 0.7
"""Share of the pairs of points that must rise for there to be a trend."""


class Point(NamedTuple):
    """Memory of one backend at monotonic ``at``: share in use, and by the formula the bytes that the running requests hold,
    and those that running and waiting ones need."""

    at: float
    used_ratio: float
    held_bytes: float | None = None
    needed_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Exhaustion:
    """Seconds until nothing is left; ``method`` is ``model`` or ``trend``."""

    seconds: float
    method: str


def exhaustion(points: Sequence[Point]) -> Exhaustion | None:
    """When the points, oldest first, lead to a full memory; None where they do not, or where it is too far to say."""
    if len(points) < MIN_POINTS:
        return None
    first, last = points[0], points[-1]
    risen = last.used_ratio - first.used_ratio >= MIN_RISE
    needs = None if first.needed_bytes is None or last.needed_bytes is None else last.needed_bytes - first.needed_bytes
    if not risen and (needs is None or needs <= 0):
        return None  # most backends, most of the time; what follows looks at every pair
    demand = _demand(points)
    values = [p.used_ratio for p in points] if demand is None else demand
    slope = _slope([p.at for p in points], values)
    if slope is None:
        return None
    seconds = max(0.0, 1.0 - values[-1]) / slope
    return Exhaustion(seconds, "trend" if demand is None else "model") if seconds <= HORIZON_S else None


def _demand(points: Sequence[Point]) -> list[float] | None:
    """The share that all requests will need, by the formula as measured; None where the two do not go together."""
    held = [p.held_bytes for p in points if p.held_bytes is not None]
    needed = [p.needed_bytes for p in points if p.needed_bytes is not None]
    if len(held) < len(points) or len(needed) < len(points):
        return None
    apart = MIN_APART * max(held)
    slopes = [
        (points[j].used_ratio - points[i].used_ratio) / (held[j] - held[i])
        for i in range(len(points))
        for j in range(i + 1, len(points))
        if abs(held[j] - held[i]) > apart
    ]
    scale = median(slopes) if len(slopes) >= MIN_POINTS else 0.0
    if scale <= 0:
        return None
    base = median([p.used_ratio - scale * h for p, h in zip(points, held, strict=True)])
    return [base + scale * n for n in needed]


def _slope(at: Sequence[float], values: Sequence[float]) -> float | None:
    """Median slope of all pairs a second; None where it does not rise clearly."""
    slopes = [(values[j] - values[i]) / (at[j] - at[i]) for i in range(len(at)) for j in range(i + 1, len(at)) if at[j] > at[i]]
    if not slopes or sum(s > 0 for s in slopes) < AGREE * len(slopes):
        return None
    slope = median(slopes)
    return slope if slope * (at[-1] - at[0]) >= MIN_RISE else None
