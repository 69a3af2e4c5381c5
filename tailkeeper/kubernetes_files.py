"""What Kubernetes gets of the rules and boards that are generated anyway, so that they cannot differ there. Pure.

* The rule files as objects of the Prometheus operator, word for word.
* A kustomization beside the boards, which makes a ConfigMap of each for Grafana's sidecar. One for each board: what ``kubectl
  apply`` takes is bounded by the annotation that it keeps a copy in (256 KiB), long before a ConfigMap is (1 MiB).
* Copies for the Helm chart, because Helm reads nothing outside of a chart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from textwrap import indent

HEADER = "# Written by `tailkeeper generate`; change tailkeeper/kubernetes_files.py and run it again.\n"
RULES_PATH = "deploy/kubernetes/components/prometheus-operator/rules.yaml"
CHART_FILES = "deploy/helm/tailkeeper/files"
KUSTOMIZATION = "kustomization.yaml"
_RULES_SUFFIX = ".rules.yml"
_RULE = """\
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: {name}
  namespace: tailkeeper
  labels: {{release: kube-prometheus-stack}}
spec:
"""
_BOARDS = """\
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
generatorOptions:
  # A board's ConfigMap is replaced in its place; Grafana's sidecar looks for this label, and puts it into this folder.
  disableNameSuffixHash: true
  labels: {grafana_dashboard: "1"}
  annotations: {grafana_folder: Tailkeeper}
configMapGenerator:
"""


def render(boards: Mapping[str, str], alerts: Mapping[str, str]) -> dict[str, str]:
    """``boards`` and ``alerts`` are what their packages render, path → text; so is what comes back."""
    rules = {path: text for path, text in alerts.items() if path.endswith(_RULES_SUFFIX)}
    folder = PurePosixPath(next(iter(boards))).parent
    return {
        RULES_PATH: HEADER + "---\n".join(_rule(path, text) for path, text in rules.items()),
        f"{folder}/{KUSTOMIZATION}": HEADER + _BOARDS + "".join(_config_maps(boards)),
        **{f"{CHART_FILES}/rules/{_name(path)}": text for path, text in rules.items()},
        **{f"{CHART_FILES}/boards/{_name(path)}": text for path, text in boards.items()},
    }


def _name(path: str) -> str:
    return PurePosixPath(path).name


def _rule(path: str, text: str) -> str:
    name = _name(path).removesuffix(_RULES_SUFFIX)
    # One name among all rules of a cluster: each begins with ours.
    whole = name if name.startswith("tailkeeper") else f"tailkeeper-{name}"
    body = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    return _RULE.format(name=whole) + indent(body, "  ")


def _config_maps(boards: Mapping[str, str]) -> Iterator[str]:
    for path in boards:
        yield f"  - {{name: {PurePosixPath(path).stem}-board, files: [{_name(path)}]}}\n"
