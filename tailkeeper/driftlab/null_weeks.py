"""Weeks of a fleet in which nothing drifts: how often would a page be false? Pure arithmetic of the evidence alone.

Each block's p-value is drawn uniformly, which is what the method promises at best; all anchors see the same one, which is the
least favourable way for them to depend on each other. What traffic does to the promise is measured on streams instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tailkeeper_watchdog.drift import Design, page_evidence, pages
from tailkeeper_watchdog.drift.evidence import EPOCH_BLOCKS


@dataclass(frozen=True, slots=True)
class NullWeeks:
    """What came of ``weeks`` × ``backends``."""

    backends: int
    weeks: float
    false_pages: int
    """Backends paged; several in one moment count each."""
    alarms: int
    """Of single backends, at the design's own limit."""
    highest_page_evidence: float


def simulate(design: Design, backends: int, blocks: int, seed: int) -> NullWeeks:
    """``blocks`` blocks of ten seconds for each backend."""
    rng = np.random.default_rng(seed)
    kappas = np.array(design.kappas)[:, None]
    page_cells = np.zeros((len(kappas), backends))
    alarm_cells = np.zeros((len(kappas), backends))
    least_for_many = page_evidence(backends, found=backends)
    false_pages, alarms, highest = 0, 0, 0.0
    for block in range(blocks):
        if block % EPOCH_BLOCKS == 0:
            page_cells[:] = 0.0
        p_values = np.maximum(1.0 - rng.random(backends), design.least_p)
        factors = kappas * np.exp((kappas - 1) * np.log(p_values))
        page_cells = (1.0 + page_cells) * factors
        alarm_cells = (1.0 + alarm_cells) * factors
        raised = alarm_cells.mean(axis=0) >= design.alarm_evidence
        alarms += int(raised.sum())
        alarm_cells[:, raised] = 0.0
        values = page_cells.mean(axis=0)
        highest = max(highest, float(values.max()))
        if values.max() >= least_for_many:
            paged = pages({str(i): float(v) for i, v in enumerate(values)}, backends)
            false_pages += len(paged)
            page_cells[:, [int(name) for name in paged]] = 0.0
    return NullWeeks(backends, blocks / EPOCH_BLOCKS, false_pages, alarms, highest)
