"""What rightly finds nothing in the demo, by board and query or panel, each with why. Pure values.

That such a query is right all the same is tried where its series are: on Prometheus by a page with every series of the catalogue
(tests/e2e/test_board_on_real_prometheus.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tailkeeper_dashboards.settings import (
    BACKEND_UID,
    CANARY_UID,
    CAPACITY_UID,
    GPU_UID,
    HEALING_UID,
    ROOT_CAUSE_UID,
    WATCHDOG_UID,
)


def _each(uid: str, titles: Iterable[str], why: str) -> dict[tuple[str, str], str]:
    return {(uid, title): why for title in titles}


_BEYOND = "asks for a P99 beyond the engine's last bucket, and there is none"
_KUBERNETES = "the demo runs without Kubernetes, which would send them"
_NO_LINKS = "the demo's GPUs report neither PCIe nor NVLink"
_HARDWARE = "Is its hardware failing, or its links full?"
_CLOCKS = "What held its clocks back?"
_NO_XID = "no XID happened, and the series of an XID begins with its first"
_MINUTES = "a forecast is trained and proven for minutes before it is used"
_NO_NEED = "needs spare capacity or a steady slope over minutes, and the demo is short and busy"

RIGHTLY_EMPTY: Mapping[tuple[str, str], str] = {
    (BACKEND_UID, "P99 first token (SLO 1.2 s) B"): _BEYOND,
    (ROOT_CAUSE_UID, "P99 first token (SLO 1.2 s) B"): _BEYOND,
    **{(uid, _CLOCKS): "the request met a frozen engine; its GPU was not held back" for uid in (BACKEND_UID, ROOT_CAUSE_UID)},
    (ROOT_CAUSE_UID, "Why is the backend slow? Shares of its open findings"): "the finding may be closed by then",
    (CANARY_UID, "Canary slower? A"): "compares from 100 requests on, and the canary of a young demo may have had fewer",
    (GPU_UID, "Is a link full? Fullest 20"): _NO_LINKS,
    **_each(GPU_UID, (f"{_HARDWARE} F", f"{_HARDWARE} G"), _NO_LINKS),
    (GPU_UID, f"{_HARDWARE} D"): "the demo's engines do not say how free their blocks are",
    **_each(GPU_UID, ("Faults, last hour B", "Which XIDs, and what do they say?", f"{_HARDWARE} J"), _NO_XID),
    **_each(HEALING_UID, ("What did Kubernetes say?", "What did each of the three say, and when? B"), _KUBERNETES),
    **_each(CAPACITY_UID, ("Memory full in A", "When will memory be full? Soonest 20"), _MINUTES),
    (CAPACITY_UID, "Which backend is used well, and what does it cost? K"): _MINUTES,
    (CAPACITY_UID, "To consolidate A"): _NO_NEED,
    **_each(CAPACITY_UID, (f"Which backend is used well, and what does it cost? {ref}" for ref in "IJ"), _NO_NEED),
    **_each(WATCHDOG_UID, ("How wrong are its forecasts? Worst 20", "What does it foresee? Worst 20 A"), _MINUTES),
    (WATCHDOG_UID, "Which sources give nothing?"): "all sources answer",
    (WATCHDOG_UID, "Which metrics are missing?"): "the demo's engines have all metrics of a vLLM",
    (WATCHDOG_UID, "Which samples were not used?"): "the demo's engines send no samples that cannot be used",
}
