"""How much slower each token gets for each request a second more: a robust line through the last hour. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MIN_SAMPLES = 10
MIN_SPREAD = 0.1
"""The load must have varied by this share of its median, or a slope would be made of noise."""
NEAR = 1e-6
"""Two points nearer than this share of the range make no slope but a division by nothing."""


@dataclass(frozen=True, slots=True)
class Coupling:
    """Slope of seconds per token against requests per second. ``r2`` in [0, 1] is how much of the variation it explains."""

    slope_s_per_rps: float
    r2: float
    samples: int


def coupling(points: Sequence[tuple[float, float]]) -> Coupling | None:
    """The line of Theil and Sen (the median of all slopes between two points), which three odd minutes in ten do not move.

    ``points`` are (requests per second, seconds per token), at most a few hundred. None with too few of them, or where
    the load hardly varied.
    """
    if len(points) < MIN_SAMPLES:
        return None
    x, y = np.asarray(points, dtype=np.float64).T
    low, middle, high = np.percentile(x, (10, 50, 90))
    if high - low <= MIN_SPREAD * middle or high <= low:
        return None
    first, second = np.triu_indices(len(x), 1)
    run, rise = x[second] - x[first], y[second] - y[first]
    apart = np.abs(run) > NEAR * (high - low)
    slope = float(np.median(rise[apart] / run[apart]))
    left = y - slope * x
    total = float(np.sum((y - y.mean()) ** 2))
    unexplained = float(np.sum((left - np.median(left)) ** 2))
    return Coupling(slope, max(0.0, 1.0 - unexplained / total) if total > 0 else 0.0, len(points))
