"""The load model: the latency that a request's load explains, and the score of what is left. Pure.

Latency behind a queue follows the load, and a test on raw latency finds every busy hour. The model predicts from what was
seen at admission; the score says how far off that was, on one scale for all levels of load.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import ceil, inf, log
from operator import mul

import numpy as np

from tailkeeper_watchdog.drift.design import Design
from tailkeeper_watchdog.drift.rows import CHUNK_TOKENS, LATENCY, BoolArray, FloatArray, IntArray, features

MIN_SCALE = 0.01
"""A bin whose 90th percentile is within 1 % of its median would call everything else a drift."""
MIN_BIN_ROWS = 20
TINY = float(np.finfo(np.float64).tiny)
"""A latency of almost nothing over a large prediction underflows to a zero, which has no logarithm."""
FLOOR_SHARE = 0.2
"""Predictions end at this share of the baseline's first percentile: a straight line knows no zero."""


@dataclass(frozen=True, slots=True)
class LoadModel:
    """``weights`` over the features give a latency in seconds; None where the load explains too little (raw scores)."""

    weights: tuple[float, ...] | None
    floor_s: float
    ceiling_s: float
    """Predictions above it are a load that the baseline never saw."""
    edges_s: tuple[float, ...]
    medians: tuple[float, ...]
    scales: tuple[float, ...]
    """Of ln(latency / predicted) in each bin of predicted latency: its median, and from there to its 90th percentile."""


def predict(model: LoadModel, table: FloatArray) -> FloatArray:
    """Seconds for each row."""
    if model.weights is None:
        return np.full(len(table), model.floor_s)
    return np.asarray(np.maximum(np.array(model.weights) @ features(table), model.floor_s), dtype=np.float64)


def bin_of(model: LoadModel, predicted_s: FloatArray) -> IntArray:
    return np.searchsorted(np.array(model.edges_s), predicted_s)


def score(model: LoadModel, table: FloatArray, dead_band: float) -> tuple[FloatArray, BoolArray]:
    """Scores (0 the bin's median, 1 its 90th percentile) and which abstained; those score −∞ and so add nothing.

    ``dead_band`` is subtracted from ln(latency): 0 for the baseline itself.
    """
    predicted_s = predict(model, table)
    bins = bin_of(model, predicted_s)
    excess = np.log(np.maximum(table[:, LATENCY] / predicted_s, TINY)) - dead_band - np.array(model.medians)[bins]
    scores = np.asarray(excess / np.array(model.scales)[bins], dtype=np.float64)
    beyond = predicted_s > model.ceiling_s
    scores[beyond] = -inf
    return scores, np.asarray(beyond, dtype=np.bool_)


def fit(table: FloatArray, design: Design) -> tuple[LoadModel, float]:
    """The model over rows with known load, and the share of the variance of ln(latency) that it explains."""
    latency_s = table[:, LATENCY]
    seen = features(table).T
    weights, *_ = np.linalg.lstsq(seen / latency_s[:, None], np.ones(len(table)), rcond=None)
    floor_s = FLOOR_SHARE * float(np.quantile(latency_s, 0.01))
    predicted_s = np.maximum(seen @ weights, floor_s)
    ratio = np.log(latency_s / predicted_s)
    model = _binned(tuple(weights.tolist()), floor_s, predicted_s, ratio, design)
    left = ratio - np.array(model.medians)[bin_of(model, predicted_s)]
    total = float(np.var(np.log(latency_s)))
    return model, max(0.0, 1.0 - float(np.var(left)) / total) if total > 0 else 0.0


def fit_raw(table: FloatArray) -> LoadModel:
    """Scores of the latency alone, about its own median."""
    middle_s = float(np.median(table[:, LATENCY]))
    spread = float(np.quantile(np.log(table[:, LATENCY] / middle_s), 0.9))
    return LoadModel(None, middle_s, inf, (), (0.0,), (max(spread, MIN_SCALE),))


def _binned(weights: tuple[float, ...], floor_s: float, predicted_s: FloatArray, ratio: FloatArray, design: Design) -> LoadModel:
    edges_s = np.quantile(predicted_s, design.bin_edges)
    bins = np.searchsorted(edges_s, predicted_s)
    parts = [ratio[bins == number] for number in range(len(edges_s) + 1)]
    spans = [np.quantile(part if len(part) >= MIN_BIN_ROWS else ratio, [0.5, 0.9]).tolist() for part in parts]
    return LoadModel(
        weights,
        floor_s,
        float(np.quantile(predicted_s, design.envelope)),
        tuple(edges_s.tolist()),
        tuple(middle for middle, _ in spans),
        tuple(max(high - middle, MIN_SCALE) for middle, high in spans),
    )


class OneRow:
    """The same score for one row in plain Python: thirty times as fast as NumPy is on a single number."""

    __slots__ = ("_dead_band", "_edges_s", "_medians", "_model", "_scales")

    def __init__(self, model: LoadModel, dead_band: float) -> None:
        self._model, self._dead_band = model, dead_band
        self._edges_s, self._medians, self._scales = model.edges_s, model.medians, model.scales

    def score(self, latency_s: float, load: tuple[float, float, float, float]) -> float:
        """−∞ where the load was never seen. ``load``: prompt and backlog tokens, running, waiting."""
        predicted_s = self._predict(load)
        if predicted_s > self._model.ceiling_s:
            return -inf
        number = bisect_left(self._edges_s, predicted_s)
        return (log(max(latency_s / predicted_s, TINY)) - self._dead_band - self._medians[number]) / self._scales[number]

    def _predict(self, load: tuple[float, float, float, float]) -> float:
        weights = self._model.weights
        if weights is None:
            return self._model.floor_s
        prompt, backlog, running, waiting = load
        tokens = prompt + backlog
        seen = (1.0, running, tokens * 1e-3, ceil(tokens / CHUNK_TOKENS), tokens * running * 1e-5, waiting)
        return max(float(sum(map(mul, weights, seen))), self._model.floor_s)
