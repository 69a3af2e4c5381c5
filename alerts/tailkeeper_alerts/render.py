"""Rules, their promtool tests and Alertmanager's configuration as file texts. Pure: nothing is read or written here."""

from __future__ import annotations

from tailkeeper_alerts.alertmanager import CONFIGURATION_PATH as ALERTMANAGER_PATH
from tailkeeper_alerts.alertmanager import render as render_alertmanager
from tailkeeper_alerts.document import Yaml, to_yaml
from tailkeeper_alerts.groups import GROUPS
from tailkeeper_alerts.model import Alert, Case, Group, QueryCase, Recording, RuleSettings
from tailkeeper_alerts.notifications.receivers import Receivers

__all__ = ["ALERTMANAGER_PATH", "RULES_PATH", "TESTS_FOLDER", "render"]

RULES_PATH = "alerts/generated/tailkeeper.rules.yml"
TESTS_FOLDER = "alerts/generated/tests"
EVALUATION_INTERVAL = "15s"


def render(settings: RuleSettings | None = None, receivers: Receivers | None = None) -> dict[str, str]:
    """Every generated file of this package: path from the project's root → text, the same on each run."""
    settings = settings or RuleSettings()
    groups = tuple(build(settings) for build in GROUPS)
    tests = {f"{TESTS_FOLDER}/{group.name}.yml": to_yaml(_tests(group, settings)) for group in groups}
    rules = to_yaml({"groups": [_group(group, settings) for group in groups]})
    return {RULES_PATH: rules, **tests, **render_alertmanager(receivers)}


def _group(group: Group, settings: RuleSettings) -> Yaml:
    return {"name": group.name, "rules": [_rule(rule, settings) for rule in group.rules]}


def _rule(rule: Recording | Alert, settings: RuleSettings) -> Yaml:
    if isinstance(rule, Recording):
        return {"record": rule.record, "expr": rule.expr}
    waits = {"for": rule.for_s, "keep_firing_for": rule.keep_firing_for_s}
    return {
        "alert": rule.name,
        "expr": rule.expr,
        **{key: f"{seconds}s" for key, seconds in waits.items() if seconds},
        "labels": rule.all_labels(),
        "annotations": rule.annotations(settings),
    }


def _tests(group: Group, settings: RuleSettings) -> Yaml:
    cases = [_case(case, settings) for case in group.cases]
    return {
        "rule_files": ["../tailkeeper.rules.yml"],
        "evaluation_interval": EVALUATION_INTERVAL,
        "tests": [*cases, *(_query_case(case) for case in group.queries)],
    }


def _inputs(case: Case | QueryCase) -> dict[str, Yaml]:
    inputs: list[Yaml] = [{"series": item.series, "values": item.values} for item in case.inputs]
    return {"name": case.name, "interval": EVALUATION_INTERVAL, "input_series": inputs}


def _case(case: Case, settings: RuleSettings) -> Yaml:
    alerts: list[Yaml] = [
        {"exp_labels": expected.labels(), "exp_annotations": expected.annotations(settings)} for expected in case.expected
    ]
    check: Yaml = {"eval_time": case.at, "alertname": case.alert, "exp_alerts": alerts}
    return {**_inputs(case), "alert_rule_test": [check]}


def _query_case(case: QueryCase) -> Yaml:
    samples: list[Yaml] = [{"labels": labels, "value": value} for labels, value in case.samples]
    check: Yaml = {"expr": case.expr, "eval_time": case.at, "exp_samples": samples}
    return {**_inputs(case), "promql_expr_test": [check]}
