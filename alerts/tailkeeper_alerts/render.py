"""Rules, their promtool tests and Alertmanager's configuration as file texts. Pure: nothing is read or written here."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from tailkeeper_alerts import alert_docs
from tailkeeper_alerts.alertmanager import CONFIGURATION_PATH as ALERTMANAGER_PATH
from tailkeeper_alerts.alertmanager import render as render_alertmanager
from tailkeeper_alerts.document import Yaml, to_yaml
from tailkeeper_alerts.groups import GROUPS, VLLM_ONLY, Build
from tailkeeper_alerts.model import Alert, Case, Group, QueryCase, Recording, RuleSettings
from tailkeeper_alerts.notifications.receivers import Receivers

__all__ = ["ALERTMANAGER_PATH", "RULES_PATH", "TESTS_FOLDER", "VLLM_ONLY_PATH", "render"]

RULES_PATH = "alerts/generated/tailkeeper.rules.yml"
VLLM_ONLY_PATH = "alerts/generated/vllm-only.rules.yml"
TESTS_FOLDER = "alerts/generated/tests"
DOCUMENT_PATH = alert_docs.PATH
FILES: Mapping[str, tuple[Build, ...]] = {RULES_PATH: GROUPS, VLLM_ONLY_PATH: VLLM_ONLY}
"""The rule files by path; the second adds the names of the first to a vLLM without our exporter."""


def render(settings: RuleSettings | None = None, receivers: Receivers | None = None) -> dict[str, str]:
    """Every generated file of this package: path from the project's root → text, the same on each run.

    The promtool cases are about the numbers of the default settings, and are written for these only.
    """
    settings = settings or RuleSettings()
    files = {path: tuple(build(settings) for build in builds) for path, builds in FILES.items()}
    rules = {path: to_yaml({"groups": [_group(group, settings) for group in groups]}) for path, groups in files.items()}
    tests = _test_files(files, settings) if settings == RuleSettings() else {}
    return {**rules, **tests, **render_alertmanager(receivers), DOCUMENT_PATH: alert_docs.page(files, settings)}


def _group(group: Group, settings: RuleSettings) -> Yaml:
    interval = {"interval": f"{group.interval_s}s"} if group.interval_s else {}
    return {"name": group.name, **interval, "rules": [_rule(rule, settings) for rule in group.rules]}


def _rule(rule: Recording | Alert, settings: RuleSettings) -> Yaml:
    if isinstance(rule, Recording):
        return {"record": rule.record, "expr": rule.expr, **({"labels": rule.labels} if rule.labels else {})}
    waits = {"for": rule.for_s, "keep_firing_for": rule.keep_firing_for_s}
    return {
        "alert": rule.name,
        "expr": rule.expr,
        **{key: f"{seconds}s" for key, seconds in waits.items() if seconds},
        "labels": rule.all_labels(),
        "annotations": rule.annotations(settings),
    }


def _test_files(files: Mapping[str, tuple[Group, ...]], settings: RuleSettings) -> dict[str, str]:
    """One for each group. An alert may rest on what another group records, and what is added on the first file."""
    documents: dict[str, str] = {}
    for path, groups in files.items():
        # What another file reads comes first.
        read = [RULES_PATH] if path == RULES_PATH else [path, RULES_PATH]
        order = [group.name for file in read for group in files[file]]
        head: dict[str, Yaml] = {"rule_files": [f"../{file.rpartition('/')[2]}" for file in read]}
        documents |= {f"{TESTS_FOLDER}/{group.name}.yml": to_yaml(head | _tests(group, order, settings)) for group in groups}
    return documents


def _tests(group: Group, order: list[str], settings: RuleSettings) -> dict[str, Yaml]:
    """What is asked of the same samples is asked at once: promtool evaluates all rules anew for each of its tests."""
    interval = f"{group.test_interval_s}s"
    tests: list[Yaml] = []
    every: tuple[Case | QueryCase, ...] = (*group.cases, *group.queries)
    for inputs, cases in groupby(every, key=lambda case: case.inputs):
        asked = tuple(cases)
        alerts: list[Yaml] = [_case(case, settings) for case in asked if isinstance(case, Case)]
        queries: list[Yaml] = [_query_case(case) for case in asked if isinstance(case, QueryCase)]
        samples: list[Yaml] = [{"series": item.series, "values": item.values} for item in inputs]
        name = "; ".join(dict.fromkeys(case.name for case in asked))
        test: dict[str, Yaml] = {"name": name, "interval": interval, "input_series": samples}
        tests.append(test | ({"alert_rule_test": alerts} if alerts else {}) | ({"promql_expr_test": queries} if queries else {}))
    return {"evaluation_interval": interval, "group_eval_order": order, "tests": tests}


def _case(case: Case, settings: RuleSettings) -> Yaml:
    alerts: list[Yaml] = [
        {"exp_labels": expected.labels(), "exp_annotations": expected.annotations(settings)} for expected in case.expected
    ]
    return {"eval_time": case.at, "alertname": case.alert, "exp_alerts": alerts}


def _query_case(case: QueryCase) -> Yaml:
    samples: list[Yaml] = [{"labels": labels, "value": value} for labels, value in case.samples]
    return {"expr": case.expr, "eval_time": case.at, "exp_samples": samples}
