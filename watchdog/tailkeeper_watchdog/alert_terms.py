"""What the watchdog's own alerts and those of Prometheus' rules have in common: labels, and where they lead.

Standard library only: rules and boards are generated from it.
"""

from __future__ import annotations

NONE = "none"
"""A label's value where there is none: Alertmanager drops an empty label, and takes one that both sides lack for equal."""
WATCHDOG_LABELS = (
    "severity",
    "backend",
    "pool",
    "dominant_factor",
    "score_band",
    "self_heal_strategy",
    "cause",
    "action",
    "source",
)
"""Of every alert of the watchdog, beside its name; the rules' have all but the last three."""
OWN_LABELS = frozenset({"alertname", *WATCHDOG_LABELS, "kind", "signal"})
"""What every alert, or some, carries by itself."""
ROOT_CAUSE_BOARD_UID = "tailkeeper-root-cause"
RUNBOOK = "docs/runbook.md"
"""Each alert's section is this with ``#`` and the alert's name in small letters."""
