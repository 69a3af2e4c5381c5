"""Fits the forecasts. Run as ``python -m tailkeeper_watchdog.forecast.training``: JSON in on stdin, JSON out on stdout.

The only place that imports scikit-learn. It bounds its own memory and CPU time before it does, so that the worst it can
do is to end without an answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

MEMORY_BYTES = 2 * 1024**3
"""Address space; scikit-learn and SciPy map about 700 MiB of it by being imported."""
CPU_S = 60
QUANTILE = 0.5
"""The median of the next half minute's P99: what is forecast is itself a P99, so its middle is the best single number."""
PENALTY = 1e-3
"""L1, on standardised features: enough to keep two features that say the same from cancelling each other out."""


def bound_self() -> None:
    with contextlib.suppress(OSError):  # only Linux has it
        # Where a container runs out of memory this process goes, and not the watchdog beside it.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    os.nice(10)


def fit(rows: list[list[float]], targets: list[float]) -> dict[str, Any]:
    """Intercept and coefficients of a linear quantile regression, in the features' own units, and how far targets lie from
    the first feature (1st and 99th percentile)."""
    import numpy as np
    from sklearn.linear_model import QuantileRegressor

    x, y = np.asarray(rows, dtype=np.float64), np.asarray(targets, dtype=np.float64)
    middle, spread = x.mean(axis=0), x.std(axis=0)
    spread[spread < 1e-9] = np.inf  # what never changed explains nothing: its coefficient is 0
    model = QuantileRegressor(quantile=QUANTILE, alpha=PENALTY, solver="highs")
    model.fit((x - middle) / spread, y)
    coefficients = model.coef_ / spread
    intercept = float(model.intercept_ - coefficients @ middle)
    moved = [float(q) for q in np.quantile(y - x[:, 0], (0.01, 0.99))]
    return {"coefficients": [intercept, *(float(c) for c in coefficients)], "moved": moved, "rows": len(rows)}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """One model for each group: ``{"groups": [{"rows", "targets"}]}`` to ``{"models": [{"coefficients", "moved", "rows"}]}``."""
    return {"models": [fit(g["rows"], g["targets"]) for g in request["groups"]]}


def main() -> None:
    bound_self()
    request = json.load(sys.stdin)
    json.dump(answer(request), sys.stdout)


if __name__ == "__main__":
    main()
