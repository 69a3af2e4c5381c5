"""What a kind of gateway can do is known beforehand; what a server of it turned out not to have is said, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tailkeeper.support import support_lines
from tailkeeper_watchdog.actuators.contract import ServerState, Support
from tailkeeper_watchdog.api.documents import support_row
from tailkeeper_watchdog.decision_log import DecisionLog
from tailkeeper_watchdog.ledger import Ledger
from tailkeeper_watchdog.model import Backend, Knob, Mode, Target
from tailkeeper_watchdog.reconcile import GatewayReport, Reconciler
from tests.scenario.world import FakeGateway

EDGE, ENGINE = Target("edge", "a", "llm"), Target("engine", "a", "llm")
BACKENDS = (Backend("a", "m", (EDGE, ENGINE)),)
WHY = "this build of the engine has no such route"


def reconciler(tmp_path: Path) -> Reconciler:
    ledger = Ledger(str(tmp_path / "ledger.db"))
    gateways = {"edge": FakeGateway(("a",)), "engine": FakeGateway(("a",))}
    return Reconciler(gateways, ledger, DecisionLog(ledger, lambda: 0.0), 60.0, lambda: 0.0)


def found(tmp_path: Path, cannot: Mapping[Target, Mapping[Knob, str]]) -> Mapping[tuple[str, Knob], Support]:
    able = reconciler(tmp_path)
    report = GatewayReport({t: ServerState({}, cannot=cannot.get(t, {})) for t in (EDGE, ENGINE)}, {})
    return able.found_out(able.support(BACKENDS), BACKENDS, report)


def test_a_knob_that_the_only_server_with_it_lacks_is_not_enforceable_and_says_why(tmp_path: Path) -> None:
    support = found(tmp_path, {EDGE: {Knob.ADMISSION: WHY}, ENGINE: {Knob.ADMISSION: WHY}})

    assert support["a", Knob.ADMISSION] == Support(False, WHY)
    assert support["a", Knob.WEIGHT].enforceable


def test_a_knob_that_another_gateway_of_the_backend_has_stays_enforceable(tmp_path: Path) -> None:
    assert found(tmp_path, {ENGINE: {Knob.ADMISSION: WHY}})["a", Knob.ADMISSION].enforceable


def test_where_nothing_is_missing_the_table_stays_the_very_same(tmp_path: Path) -> None:
    able = reconciler(tmp_path)
    support = able.support(BACKENDS)

    assert able.found_out(support, BACKENDS, GatewayReport({EDGE: ServerState({})}, {})) is support


def test_a_policy_that_goes_in_part_says_so_for_each_of_its_knobs() -> None:
    answers = {Knob.ADMISSION: Support(True), Knob.TAINT: Support(False, "no taints here")}
    row = support_row(Mode.ENFORCE, answers)

    assert (row["actuation"], row["why"]) == ("enforced", "taint not: no taints here")
    assert row["knobs"] == {
        "admission": {"actuation": "enforced", "why": ""},
        "taint": {"actuation": "not_enforceable", "why": "no taints here"},
    }
    assert support_lines("memory_breaker", "a", row) == [
        ("memory_breaker", "a", "enforced", "in part: admission"),
        ("  admission", "", "enforced", ""),
        ("  taint", "", "not enforceable", "no taints here"),
    ]


def test_a_policy_that_goes_altogether_or_not_at_all_is_one_line() -> None:
    for answer in (Support(True), Support(False, "no gateway")):
        row = support_row(Mode.OBSERVE, dict.fromkeys((Knob.ADMISSION, Knob.WEIGHT), answer))
        assert len(support_lines("gpu_health_gate", "a", row)) == 1
