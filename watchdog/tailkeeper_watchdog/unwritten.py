"""A ledger that cannot be written: nothing is changed at any gateway then, and people are told. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tailkeeper_watchdog.detectors.base import Symptom
from tailkeeper_watchdog.model import FindingKind, Severity

TOLD_AFTER_S = 30.0
"""A server that is started anew, or another one that takes its place, is away for some seconds."""
NAME = "ledger"
"""What stands in a backend's place, as a pool's name does: it is nobody's, and everybody's."""


@dataclass(frozen=True, slots=True)
class Since:
    """Why the last write failed, and since when writes do; monotonic seconds."""

    trouble: str | None = None
    began: float = 0.0

    def then(self, trouble: str | None, now: float) -> Since:
        return Since(trouble, now if self.trouble is None else self.began)

    def told(self, now: float) -> str | None:
        """The trouble, once people are to hear of it."""
        return self.trouble if now - self.began >= TOLD_AFTER_S else None


def symptoms(trouble: str | None) -> tuple[Symptom, ...]:
    """``trouble`` is what people are to hear of."""
    if trouble is None:
        return ()
    what = f"nothing is changed at any gateway, and nothing given back: the ledger cannot be written. {trouble}"
    return (Symptom(FindingKind.ADVICE, NAME, Severity.PAGE, what, {"trouble": trouble}, signal="ledger"),)
