"""Knobs that only ever limit are never made looser than somebody had them."""

from __future__ import annotations

import pytest

from tailkeeper_watchdog.actuators.contract import ServerState
from tailkeeper_watchdog.model import DesiredState, Knob, Mode
from tailkeeper_watchdog.plan import ChangeKind, PlanInput, ReturnMemory, plan
from tailkeeper_watchdog.settings import GuardsSettings
from tests.unit.situations import seen, situation


@pytest.mark.parametrize(
    ("knob", "prior", "wanted", "done"),
    [
        (Knob.CONCURRENCY_LIMIT, 8.0, 12.0, (ChangeKind.ALREADY, 8.0)),
        (Knob.CONCURRENCY_LIMIT, 8.0, 4.0, (ChangeKind.APPLY, 4.0)),
        (Knob.CONCURRENCY_LIMIT, 0.0, 12.0, (ChangeKind.APPLY, 12.0)),  # 0 is no limit
        (Knob.DEGRADE_LEVEL, 2.0, 1.0, (ChangeKind.ALREADY, 2.0)),
        (Knob.DEGRADE_LEVEL, 0.0, 1.0, (ChangeKind.APPLY, 1.0)),
        (Knob.BATCH_WINDOW_S, 0.05, 0.06, (ChangeKind.APPLY, 0.06)),
    ],
)
def test_what_is_tighter_already_stays(knob: Knob, prior: float, wanted: float, done: tuple[ChangeKind, float]) -> None:
    given = situation(seen("a"))
    (target,) = given.snapshot.backends[0].targets
    wish = DesiredState("p", "a", knob, wanted, "why", Mode.ENFORCE, (), 0.0)
    servers = {target: ServerState({knob: prior})}
    _, changes = plan(PlanInput(given, GuardsSettings(), (wish,), frozenset(), (), servers), ReturnMemory())

    assert [(change.kind, change.value) for change in changes] == [done]
