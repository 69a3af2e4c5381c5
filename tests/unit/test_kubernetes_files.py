"""Rules and boards in the forms that Kubernetes and Helm take, from the same texts as everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tailkeeper import kubernetes_files
from tailkeeper.kubernetes_files import CHART_FILES, RULES_PATH
from tailkeeper_alerts.render import RULES_PATH as ALERTS
from tailkeeper_alerts.render import VLLM_ONLY_PATH

ROOT = Path(__file__).parents[2]
BOARDS = {"dashboards/generated/tailkeeper-fleet.json": '{"uid": "tailkeeper-fleet"}\n'}
HOSTILE = """\
# Written by somebody
groups:
  - name: "a: b"
    rules:
      - record: "x"
        expr: |-
          a{b="{{ $x }}"}
          # no comment
"""
RULES = {ALERTS: HOSTILE, VLLM_ONLY_PATH: "groups: []\n", "alerts/generated/tests/tailkeeper-slo.yml": "no rules"}


def test_rules_keep_every_word_inside_the_object() -> None:
    first, second = yaml.safe_load_all(kubernetes_files.render(BOARDS, RULES)[RULES_PATH])
    assert first["spec"] == yaml.safe_load(HOSTILE)
    assert (first["metadata"]["name"], second["metadata"]["name"]) == ("tailkeeper", "tailkeeper-vllm-only")
    assert first["spec"]["groups"][0]["rules"][0]["expr"].endswith("# no comment")


def test_boards_are_named_and_not_copied_for_kustomize() -> None:
    text = kubernetes_files.render(BOARDS, RULES)["dashboards/generated/kustomization.yaml"]
    document = yaml.safe_load(text)
    assert document["configMapGenerator"] == [{"name": "tailkeeper-fleet-board", "files": ["tailkeeper-fleet.json"]}]
    assert document["generatorOptions"]["labels"] == {"grafana_dashboard": "1"}


def test_the_chart_has_copies_and_only_of_rules_and_boards() -> None:
    rendered = kubernetes_files.render(BOARDS, RULES)
    copies = {path.removeprefix(f"{CHART_FILES}/"): text for path, text in rendered.items() if path.startswith(CHART_FILES)}
    assert copies == {
        "rules/tailkeeper.rules.yml": HOSTILE,
        "rules/vllm-only.rules.yml": "groups: []\n",
        "boards/tailkeeper-fleet.json": BOARDS["dashboards/generated/tailkeeper-fleet.json"],
    }


@pytest.mark.parametrize("folder", ["rules", "boards"])
def test_the_chart_has_no_file_that_nobody_writes(folder: str) -> None:
    """A board that is no more would stay in the chart for ever."""
    from tailkeeper.generate import documents

    there = {str(path.relative_to(ROOT)) for path in (ROOT / CHART_FILES / folder).iterdir()}
    assert there == {path for path in documents() if path.startswith(f"{CHART_FILES}/{folder}/")}
