"""A backend that had to be taken out again and again stays out, and a person is called. Pure.

Attempts are removals that the ledger remembers for an hour after the last one, across restarts. A quarantine ends when a person
releases the backend, or when that hour is over; then it may try once more. Like every change of ours it is a lease: a dead
watchdog's quarantine runs out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tailkeeper_watchdog.detectors.base import Symptom
from tailkeeper_watchdog.model import DRAIN, FindingKind, Knob, Lease, Severity
from tailkeeper_watchdog.settings import GuardsSettings

WHY = "quarantined: taken out {attempts} times within an hour; look at it, then release it"


def quarantined(leases: Iterable[Lease], attempts: Mapping[str, int], settings: GuardsSettings) -> dict[str, int]:
    """Backends that stay out, with how often they were taken out."""
    drained = (lease.backend for lease in leases if lease.knob is Knob.ADMISSION and lease.written == DRAIN)
    return {name: n for name in drained if (n := attempts.get(name, 0)) >= settings.quarantine_after}


def symptoms(kept_out: Mapping[str, int]) -> tuple[Symptom, ...]:
    return tuple(
        Symptom(
            FindingKind.ADVICE,
            name,
            Severity.PAGE,
            f"{name} is {WHY.format(attempts=attempts)}",
            {"attempts": attempts},
            signal="quarantine",
        )
        for name, attempts in kept_out.items()
    )
