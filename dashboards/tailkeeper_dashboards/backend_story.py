"""How far a backend's matter has come: found, wanted, changed by us, coming back. From the watchdog's own series; pure text."""

from __future__ import annotations

from collections.abc import Mapping

from grafana_foundation_sdk.models.dashboard import ValueMapping

from tailkeeper_alerts.promql import by, not_regex, regex, series
from tailkeeper_dashboards import queries, style
from tailkeeper_watchdog.metrics import DESIRED_WEIGHT, FINDINGS_OPEN, KNOB, LEASES_IN_FORCE, SEVERITY

TRAFFIC = "weight|admission"
"""Knobs that keep work away from a backend."""

_STEPS: Mapping[int, tuple[str, str]] = {
    0: ("fine", style.GREEN),
    1: ("found", style.ORANGE),
    2: ("wanted, not done", style.YELLOW),
    3: ("found and wanted, not done", style.YELLOW),
    4: ("coming back", "light-blue"),
    5: ("coming back", "light-blue"),
    6: ("held back", style.BLUE),
    7: ("found, held back", style.BLUE),
}
"""By 1 for found, 2 for a weight below normal that is wanted, 4 for a change of ours that keeps work away."""
_LIMITED: Mapping[int, tuple[str, str]] = {0: ("limit changed", style.BLUE), 1: ("found, limit changed", style.BLUE)}
"""Where only another knob is changed."""


def words() -> list[ValueMapping]:
    """For graphs that hold ``code``; 8 is for a change of ours of another knob."""
    return [style.value_map({str(number): styled(number) for number in range(16)})]


def styled(number: int) -> tuple[str, str]:
    """Word and colour of what ``code`` means by a number from 0 to 15."""
    known = number % 8
    return _LIMITED.get(known, _STEPS[known]) if number >= 8 else _STEPS[known]


def code() -> str:
    """A number a backend, as in ``words``; nothing where the watchdog does not know the backend."""
    found = _is(series(FINDINGS_OPEN, regex(SEVERITY, "page|ticket"), *queries.OF_BACKEND))
    traffic = _is(series(LEASES_IN_FORCE, regex(KNOB, TRAFFIC), *queries.OF_BACKEND))
    other = _is(series(LEASES_IN_FORCE, not_regex(KNOB, TRAFFIC), *queries.OF_BACKEND))
    wanted = f"{queries.of_backend(DESIRED_WEIGHT)} < bool 1"
    return f"({found}) + 2 * ({wanted}) + 4 * ({traffic}) + 8 * ({other})"


def _is(selector: str) -> str:
    none = f"0 * {queries.of_backend(DESIRED_WEIGHT)}"
    return f"({by('sum', queries.BY_BACKEND, selector)} or {none}) > bool 0"
