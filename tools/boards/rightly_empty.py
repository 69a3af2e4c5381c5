"""What rightly finds nothing in the demo, by board and query or panel, each with why."""

from __future__ import annotations

from collections.abc import Mapping

from tailkeeper_dashboards.settings import BACKEND_UID, ROOT_CAUSE_UID

_BEYOND = "asks for a P99 beyond the engine's last bucket, and there is none"
RIGHTLY_EMPTY: Mapping[tuple[str, str], str] = {
    (BACKEND_UID, "P99 first token (SLO 1.2 s) B"): _BEYOND,
    (ROOT_CAUSE_UID, "P99 first token (SLO 1.2 s) B"): _BEYOND,
    (ROOT_CAUSE_UID, "What held its clocks back?"): "the request met a frozen engine; its GPU was not held back",
}
