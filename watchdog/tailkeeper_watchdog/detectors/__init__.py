"""The detectors. ``DETECTORS`` is the only list; a detector is one file and one line here."""

from __future__ import annotations

from tailkeeper_watchdog.detectors import growth, state
from tailkeeper_watchdog.detectors.base import Detector, Symptom

DETECTORS: tuple[Detector, ...] = (state.DETECTOR, growth.DETECTOR)

__all__ = ["DETECTORS", "Detector", "Symptom"]
