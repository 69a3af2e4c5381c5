"""A linear forecast as plain numbers: what training gives and a tick uses. Pure, and no scikit-learn.

The forecast is of ln P99, so that a backend of 0.1 s and one of 10 s are forecast equally well in proportion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, isfinite, log

LOWEST_S = 1e-4
HIGHEST_S = 3_600.0
"""What is forecast beyond these is no latency; it is cut there."""
_LOWEST, _HIGHEST = log(LOWEST_S), log(HIGHEST_S)


@dataclass(frozen=True, slots=True)
class Linear:
    """``intercept`` and one coefficient for each known feature, of which the first is ln P99 of now.

    ``least`` and ``most`` are how far ln P99 moved in the ``rows`` that it was trained on, but for one in a hundred at each
    end: a line that leads further leads out of what was ever seen.
    """

    intercept: float
    coefficients: tuple[float, ...]
    least: float
    most: float
    rows: int

    def predict_s(self, features: Sequence[float]) -> float:
        """P99 in seconds. Raises ValueError where there are more or fewer features than coefficients."""
        total = self.intercept + sum(c * f for c, f in zip(self.coefficients, features, strict=True))
        total = min(features[0] + self.most, max(features[0] + self.least, total))
        return exp(min(_HIGHEST, max(_LOWEST, total)))


def read(document: object, features: int) -> Linear | None:
    """A model from what the worker wrote; None where it is none, or has other features than were sent."""
    if not isinstance(document, dict):
        return None
    numbers, moved, rows = document.get("coefficients"), document.get("moved"), document.get("rows")
    if not isinstance(numbers, list) or not isinstance(moved, list) or not isinstance(rows, int):
        return None
    if len(numbers) != features + 1 or len(moved) != 2 or not all(_is_number(n) for n in (*numbers, *moved)):
        return None
    least, most = float(moved[0]), float(moved[1])
    return Linear(float(numbers[0]), tuple(float(n) for n in numbers[1:]), least, most, rows) if least <= most else None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
