"""What is mutated, and which tests are a module's own. Those are asked first; what else runs the line is asked after them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the program that must not be wrong."""

    modules: tuple[str, ...]
    own_tests: tuple[str, ...]


PARTS: Mapping[str, Part] = {
    "readings and states": Part(
        ("tailkeeper_exporter.readings", "tailkeeper_exporter.state", "tailkeeper_exporter.liveness"),
        (
            "tests/unit/test_readings.py",
            "tests/unit/test_liveness_rules.py",
            "tests/unit/test_liveness.py",
            "tests/unit/test_liveness_tap.py",
            "tests/property/test_liveness_properties.py",
            "tests/property/test_normalise_properties.py",
            "tests/unit/test_health.py",
            "tests/unit/test_window.py",
        ),
    ),
    "scoring": Part(
        (
            "tailkeeper_watchdog.scoring.epochs",
            "tailkeeper_watchdog.scoring.history",
            "tailkeeper_watchdog.scoring.hscore",
            "tailkeeper_watchdog.scoring.ring",
            "tailkeeper_watchdog.scoring.uptime",
        ),
        (
            "tests/unit/test_scoring_exactly.py",
            "tests/unit/test_hscore.py",
            "tests/unit/test_epochs.py",
            "tests/unit/test_ring.py",
            "tests/unit/test_window.py",
            "tests/property/test_hscore_properties.py",
            "tests/property/test_columns.py",
        ),
    ),
    "guards": Part(
        ("tailkeeper_watchdog.guards",),
        (
            "tests/unit/test_guards_leases.py",
            "tests/unit/test_guards_signals.py",
            "tests/unit/test_guards_pools.py",
            "tests/unit/test_guards_cut_back.py",
            "tests/property/test_guards_properties.py",
            "tests/property/test_quick_ways.py",
        ),
    ),
    "resolver": Part(("tailkeeper_watchdog.resolve",), ("tests/unit/test_resolve.py", "tests/property/test_pace_properties.py")),
    "ledger": Part(
        ("tailkeeper_watchdog.ledger", "tailkeeper_watchdog.ledger_rows"),
        (
            "tests/unit/test_ledger_exactly.py",
            "tests/unit/test_ledger.py",
            "tests/unit/test_weighing.py",
            "tests/property/test_quick_ways.py",
        ),
    ),
}
