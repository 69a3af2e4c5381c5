"""What everybody asks of every backend's window, worked out for all of them at once. Pure.

One by one it is most of what a tick of a fleet of thousands costs. The numbers are the same to the last bit: the same operations
on the same doubles, only side by side. Where that is not plain (buckets that do not rise, an end of another layout), a window is
left to work it out by itself when it is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tailkeeper_exporter.readings import Quantile
from tailkeeper_watchdog.samples import NOWHERE, SIGNAL_HISTOGRAM, Layout
from tailkeeper_watchdog.window import Window

Matrix = NDArray[np.float64]


def work_out(windows: Sequence[Window], asked: Mapping[str, tuple[float, ...]]) -> None:
    """``asked`` are the quantiles by signal that every window is to know."""
    for layout, _, same in by_layout(windows):
        risen = rises(same, layout)
        for signal, ranks in asked.items():
            total, last, bounds = layout.places.get(SIGNAL_HISTOGRAM[signal], NOWHERE)
            if len(bounds) > 1:
                counts = risen[:, total + 1 : last + 1]
                plain = np.flatnonzero((counts[:, 0] >= 0) & (np.diff(counts) >= 0).all(axis=1))
                for q in ranks:
                    found = _quantiles(counts[plain], bounds, q)
                    for row, quantile in zip(plain.tolist(), found, strict=True):
                        same[row].note_quantile(signal, q, quantile)


def by_layout(windows: Sequence[Window]) -> list[tuple[Layout, list[int], list[Window]]]:
    """Those whose two ends have the same layout, with their places. Layouts are known by identity: equal ones are one object."""
    found: dict[int, tuple[Layout, list[int], list[Window]]] = {}
    for place, window in enumerate(windows):
        start, end = window.start, window.end
        if start is not None and end is not None and start.layout is end.layout:
            known = found.get(id(end.layout))
            if known is None:
                known = found[id(end.layout)] = end.layout, [], []
            known[1].append(place)
            known[2].append(window)
    return list(found.values())


def rises(windows: Sequence[Window], layout: Layout) -> Matrix:
    """A line for each window, both ends of which have this layout: by how much every number of its row rose."""
    starts = b"".join([w.start.row for w in windows if w.start is not None])
    ends = b"".join([w.end.row for w in windows if w.end is not None])
    with np.errstate(invalid="ignore"):  # a hostile page may count to infinity
        return (np.frombuffer(ends) - np.frombuffer(starts)).reshape(-1, layout.width)


def _quantiles(counts: Matrix, bounds: tuple[float, ...], q: float) -> list[Quantile | None]:
    """As ``bucket_quantile`` of each line, whose counts rise and whose bounds are two at least."""
    totals = counts[:, -1]
    ranks = q * totals
    index = (counts >= ranks[:, None]).argmax(axis=1)  # the first bucket in which so many are
    saturated = index >= len(bounds) - 1
    index = np.minimum(index, len(bounds) - 2)
    limits, lines = np.array(bounds), np.arange(len(counts))
    is_first = index == 0
    below_s, below = np.where(is_first, 0.0, limits[index - 1]), np.where(is_first, 0.0, counts[lines, index - 1])
    inside = counts[lines, index] - below
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(inside > 0, (ranks - below) / inside, 1.0)
    values = np.where(saturated, bounds[-2], below_s + (limits[index] - below_s) * share)
    told = zip(values.tolist(), totals.tolist(), saturated.tolist(), strict=True)
    return [Quantile(value, int(total), over) if total > 0 else None for value, total, over in told]
