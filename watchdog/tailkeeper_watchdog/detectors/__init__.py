"""The detectors. ``DETECTORS`` is the only list; a detector is one file and one line here."""

from __future__ import annotations

from tailkeeper_watchdog.detectors import block_e, distortion, growth, improved_but_broken, slo_burn, state, zscore
from tailkeeper_watchdog.detectors.base import Detector, Symptom

DETECTORS: tuple[Detector, ...] = (
    state.DETECTOR,
    growth.DETECTOR,
    distortion.DETECTOR,
    zscore.DETECTOR,
    slo_burn.DETECTOR,
    improved_but_broken.DETECTOR,
    block_e.DETECTOR,
)

__all__ = ["DETECTORS", "Detector", "Symptom"]
