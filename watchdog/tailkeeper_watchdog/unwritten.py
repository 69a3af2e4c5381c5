"""A ledger that cannot be written: nothing is changed at any gateway then, and people are told. Pure."""

from __future__ import annotations

from tailkeeper_watchdog.detectors.base import Symptom
from tailkeeper_watchdog.model import FindingKind, Severity

TOLD_AFTER_S = 30.0
"""A server that is started anew, or another one that takes its place, is away for some seconds."""
NAME = "ledger"
"""What stands in a backend's place, as a pool's name does: it is nobody's, and everybody's."""


def symptoms(trouble: str | None, for_s: float) -> tuple[Symptom, ...]:
    """``trouble`` is why the last write failed, and has lasted ``for_s``."""
    if trouble is None or for_s < TOLD_AFTER_S:
        return ()
    what = f"nothing is changed at any gateway, and nothing given back: the ledger cannot be written. {trouble}"
    return (Symptom(FindingKind.ADVICE, NAME, Severity.PAGE, what, {"trouble": trouble}, signal="ledger"),)
