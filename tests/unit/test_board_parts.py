"""What boards say of things that others define: the same names, limits and words, or a test is red."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tailkeeper.collector_config import KUBERNETES_PATH
from tailkeeper.collector_config import render as render_collector
from tailkeeper_alerts import groups
from tailkeeper_alerts.model import NO_STRATEGY, Alert, RuleSettings
from tailkeeper_dashboards import agreement, backend_story, causes, gpu_tables, log_tables, variables
from tailkeeper_dashboards.render import render
from tailkeeper_exporter.gpu.base import THROTTLE_REASONS
from tailkeeper_watchdog.alerting import ALERT_NAMES, DEFAULT_ALERT
from tailkeeper_watchdog.attribution.words import confidence_word
from tailkeeper_watchdog.happenings import names as happening_names
from tailkeeper_watchdog.happenings.names import Phase
from tailkeeper_watchdog.model import FindingKind, Knob, Outcome
from tailkeeper_watchdog.plan import RETURN_POLICY
from tailkeeper_watchdog.policies import POLICIES
from tailkeeper_watchdog.policies.gpu_health_gate import HOT_CELSIUS
from tailkeeper_watchdog.policy_params import GpuHealthGateParams

BOARDS: dict[str, dict[str, Any]] = {json.loads(text)["uid"]: json.loads(text) for text in render().values()}
RULES = tuple(rule for build in groups.GROUPS for rule in build(RuleSettings()).rules if isinstance(rule, Alert))


def test_every_reason_of_the_driver_has_a_word_and_a_rank() -> None:
    assert set(gpu_tables.HELD_BACK) == set(THROTTLE_REASONS)
    assert set(gpu_tables.AS_SET) == set(list(gpu_tables.HELD_BACK)[: len(gpu_tables.AS_SET)])


def test_the_limits_on_the_gpu_board_are_the_health_gates() -> None:
    gate = GpuHealthGateParams()
    assert (HOT_CELSIUS, gate.nvlink_limit_ratio) == (gpu_tables.HOT_CELSIUS, gpu_tables.NVLINK_LIMIT_RATIO)
    assert gate.pcie_limit_ratio == gpu_tables.PCIE_LIMIT_RATIO


def test_every_strategy_that_an_alert_names_is_asked_about() -> None:
    named = {rule.strategy for rule in RULES} - {NO_STRATEGY}
    assert named <= set(agreement.STRATEGIES)


def test_the_findings_of_a_strategy_are_those_that_its_alerts_are_about() -> None:
    for rule in RULES:
        if rule.strategy != NO_STRATEGY:
            about = {str(kind) for kind in FindingKind if ALERT_NAMES.get(kind, DEFAULT_ALERT) == rule.name}
            assert about <= set(agreement.STRATEGIES[rule.strategy]), rule.name
    assert {kind for kinds in agreement.STRATEGIES.values() for kind in kinds} <= {str(kind) for kind in FindingKind}


def test_the_policies_whose_changes_are_not_marked_on_graphs_are_policies() -> None:
    assert set(variables.BY_SMALL_STEPS.split("|")) < {policy.name for policy in POLICIES} | {RETURN_POLICY}


@pytest.mark.parametrize("sure", [0.0, 0.49, 0.5, 0.79, 0.8, 1.0])
def test_how_sure_a_cause_is_has_the_word_of_the_watchdogs_sentences(sure: float) -> None:
    assert next(word for low, high, word, _ in causes.CONFIDENCE if low <= sure <= high) == confidence_word(sure)


def test_what_keeps_work_away_is_said_by_knobs_that_there_are() -> None:
    assert set(backend_story.TRAFFIC.split("|")) <= {str(knob) for knob in Knob}


def test_what_the_log_tables_show_are_words_that_the_watchdog_writes() -> None:
    assert set(log_tables.PHASE_COLORS) == {str(phase) for phase in Phase}
    assert set(log_tables.ENDED) <= {str(outcome) for outcome in Outcome}
    ours = {value for value in vars(happening_names).values() if isinstance(value, str)}
    known = {log_tables.TIME, log_tables.SENTENCE, *ours, *attributes_of_events()}
    for board in ("tailkeeper-healing", "tailkeeper-watchdog"):
        for panel in BOARDS[board]["panels"]:
            only = [t["options"] for t in panel.get("transformations", []) if t["id"] == "filterFieldsByName"]
            for name in only[0]["include"]["names"] if only else ():
                assert name in known, name


def attributes_of_events() -> set[str]:
    """What the collector writes beside an event of Kubernetes, as Loki names it."""
    text = render_collector()[KUBERNETES_PATH]
    return {found.replace(".", "_") for found in re.findall(r'attributes\[\\?"(k8s[^"\\]+)', text)}


def test_every_line_of_gpus_is_named_by_one_rule() -> None:
    """So that a backend's only GPU has the backend's colour on each of its panels."""
    for panel in BOARDS["tailkeeper-gpu"]["panels"]:
        for target in panel["targets"]:
            if "{{gpu}}" in target.get("legendFormat", ""):
                assert target["legendFormat"].endswith("{{backend}}{{gpu}}")
                assert "unless on (cluster, backend) (count by (cluster, backend)" in target["expr"]
