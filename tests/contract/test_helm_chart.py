"""The chart in deploy/helm: the same objects as the manifests, valid, and plain about wrong values.

Rendered by the real helm, which asks no cluster for it.
"""

from __future__ import annotations

import base64
import copy
import gzip
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tailkeeper import __version__
from tailkeeper.config import parse
from tailkeeper_watchdog.shard import MAX_SHARDS
from tests.contract.manifests import (
    CHART,
    Key,
    Thing,
    chart,
    check,
    configurations,
    helm,
    key_of,
    loaded,
    overlay,
    overlay_with,
    template,
)

pytestmark = pytest.mark.real
OF_HELM = {"helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/instance", "app.kubernetes.io/part-of"}
OF_A_CHART = {"checksum/config", "helm.sh/resource-policy"}
RELEASE_LIMIT_BYTES = 1_048_576
"""Helm keeps a release in a Secret: the chart with its files, and what came of it."""

PROMETHEUS = {"enabled": True, "alertmanagerUrl": "http://alertmanager-operated.monitoring:9093"}
NODES = [{"name": f"gpu-node-{n}", "url": "http://vllm-of-this-node.llm:8000"} for n in (1, 2)]
SIDECARS = ["http://vllm-0.vllm.llm:9400", "http://vllm-1.vllm.llm:9400"]
SIDECAR: dict[str, Any] = {
    "exporter": {"mode": "none", "urls": SIDECARS},
    "gateway": {"enabled": True},
    "config": {
        "defaults": {"gateway": {"name": "cluster"}},
        "gateways": [{"name": "cluster", "kind": "kubernetes", "in_cluster": True}],
    },
}
EVERYTHING: dict[str, Any] = {
    **SIDECAR,
    "gateway": {"enabled": True, "evict": True},
    "prometheus": {"enabled": True},
    "watchdog": {"replicas": 2},
    "autoscaling": {"enabled": True, "fragmentation": "600m"},
}
CASES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "the first look": (("exporter-discovery",), {}),
    "with the Prometheus operator": (("prometheus-operator",), {"prometheus": {"enabled": True}}),
    "an exporter on each GPU node": (
        ("exporter-daemonset",),
        {
            "exporter": {"mode": "daemonset"},
            "config": {"backends": NODES},
            "prometheus": PROMETHEUS,
            "watchdog": {"tickSeconds": 5},
        },
    ),
    "sidecars": (("exporter-sidecar",), SIDECAR),
    "shards": (("exporter-discovery", "watchdog-shards"), {"watchdog": {"shards": 3}}),
    "everything": (
        (
            "exporter-sidecar",
            "gpu-autoscaling",
            "gpu-autoscaling-fragmentation",
            "kubernetes-evict",
            "prometheus-operator",
            "watchdog-ha",
        ),
        EVERYTHING,
    ),
}
"""The overlay with its components, and the values that give the same."""
MADE_BY_HELM = ("Namespace", "", "tailkeeper")
ENGINES_OWN = {
    ("StatefulSet", "llm", "vllm"), ("Service", "llm", "llm"), ("Service", "llm", "vllm"), ("PodDisruptionBudget", "llm", "vllm"),
    ("Service", "llm", "tailkeeper-exporter"), ("ConfigMap", "llm", "tailkeeper-exporter-config"),
}  # fmt: skip
"""Engines with their sidecars are not a chart's."""


def alike(things: Mapping[Key, Thing]) -> dict[Key, Any]:
    """Objects without what only Helm or only kustomize puts there."""
    return {key_of(thing): thing for thing in map(_alike, things.values())}


def _alike(thing: Thing) -> Thing:
    known = copy.deepcopy(thing)
    known["metadata"]["namespace"] = key_of(thing)[1]
    for about in (known["metadata"], known.get("spec", {}).get("template", {}).get("metadata", {})):
        for name, theirs in (("labels", OF_HELM), ("annotations", OF_A_CHART)):
            about[name] = {key: text for key, text in about.get(name, {}).items() if key not in theirs}
    if known["kind"] == "ConfigMap" and "-config" in known["metadata"]["name"]:
        known["data"] = {file: _settled(text) for file, text in known["data"].items()}
    plain: Thing = _without_hash(known)
    return plain


def _settled(text: str) -> Any:
    """A configuration as it is understood: the two may say the same in other words."""
    return parse(yaml.safe_load(text)).model_dump()


def _without_hash(value: Any) -> Any:
    """Without kustomize's hashes at the names of ConfigMaps, and without what Helm says though it is the default."""
    if isinstance(value, dict):
        return {key: _without_hash(item) for key, item in value.items() if key != "imagePullPolicy"}
    if isinstance(value, list):
        return [_without_hash(item) for item in value]
    return re.sub(r"^(tailkeeper-(?:exporter-)?config)-[a-z0-9]{10}$", r"\1", value) if isinstance(value, str) else value


@pytest.mark.parametrize("case", CASES)
def test_the_chart_has_the_objects_of_the_manifests_and_no_others(case: str) -> None:
    (name, *components), values = CASES[case]
    manifests = alike(overlay_with(name, *components) if components else overlay(name))
    rendered = alike(chart(values))
    ours = {key: thing for key, thing in manifests.items() if key != MADE_BY_HELM and key not in ENGINES_OWN}
    secret = ("Secret", "tailkeeper", "tailkeeper-token")
    assert rendered.keys() - {secret} == ours.keys()
    for key, thing in ours.items():
        assert rendered[key] == thing, key


@pytest.mark.parametrize("case", CASES)
def test_every_object_of_the_chart_is_valid(case: str) -> None:
    for thing in chart(CASES[case][1]).values():
        check(thing)


@pytest.mark.parametrize("case", CASES)
def test_every_configuration_of_the_chart_loads_as_a_pod_loads_it(case: str, tmp_path: Path) -> None:
    for _, document in configurations(chart(CASES[case][1])):
        loaded(document, tmp_path)


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_chart_is_of_this_version() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (about["version"], about["appVersion"]) == (__version__, __version__)


def test_every_value_is_explained_and_in_the_schema() -> None:
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load(text)
    assert set(values) == set(schema["properties"]) - {"global"}
    for name in values:
        before = text.partition(f"\n{name}:")
        assert before[0].splitlines()[-1].startswith("#") or "\n  #" in before[2].partition("\n\n")[0], name


WRONG = [
    ({"exporter": {"mode": "sidecar"}}, "/exporter/mode"),
    ({"watchdog": {"replica": 2}}, "replica"),
    ({"prometheus": {"enabled": "yes"}}, "/prometheus/enabled"),
    ({"engines": {"selector": "app"}}, "/engines/selector"),
    ({"image": {"registry": "registry.example.com"}}, "/image/registry"),
    ({"watchdog": {"shards": 65}}, "/watchdog/shards"),
    ({"watchdog": {"shards": 2, "replicas": 2}}, "watchdog.replicas: of several shards each has one watchdog here"),
    ({"exporter": {"mode": "daemonset"}}, "config.backends is empty; list the GPU nodes there"),
]


@pytest.mark.parametrize(("values", "said"), WRONG)
def test_wrong_values_are_refused_with_the_place(values: dict[str, Any], said: str) -> None:
    done = template(values)
    assert done.returncode != 0
    assert said in done.stderr


def test_as_many_shards_as_there_can_be_are_values_of_the_chart_and_no_replica_stops_them_all() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    assert schema["properties"]["watchdog"]["properties"]["shards"]["maximum"] == MAX_SHARDS
    for replicas, pods in ((1, 5), (0, 0)):
        found = chart({"watchdog": {"shards": 5, "replicas": replicas}})
        assert found["StatefulSet", "tailkeeper", "tailkeeper-watchdog"]["spec"]["replicas"] == pods


def test_a_token_is_made_for_each_installation_unless_a_secret_is_named() -> None:
    key = ("Secret", "tailkeeper", "tailkeeper-token")
    tokens = [base64.b64decode(chart()[key]["data"]["token"]) for _ in range(2)]
    assert len(tokens[0]) == 43
    assert tokens[0] != tokens[1]
    own = chart({"token": {"existingSecret": "mine"}})
    assert key not in own
    volumes = own["Deployment", "tailkeeper", "tailkeeper-watchdog"]["spec"]["template"]["spec"]["volumes"]
    assert {"name": "token", "secret": {"secretName": "mine", "defaultMode": 0o440}} in volumes


def test_what_is_said_under_config_wins_over_what_the_chart_sets() -> None:
    found = dict(
        configurations(chart({"config": {"watchdog": {"tick_s": 2}, "policies": {"gpu_health_gate": {"mode": "advise"}}}}))
    )
    config = parse(found["tailkeeper.yaml"])
    assert config.watchdog.tick_s == 2
    assert config.policies.gpu_health_gate.mode == "advise"
    assert config.watchdog.token_file is not None


def test_another_configuration_is_another_pod_and_the_same_one_is_not() -> None:
    def checksum(values: dict[str, Any]) -> str:
        deployment = chart(values)["Deployment", "tailkeeper", "tailkeeper-watchdog"]
        return str(deployment["spec"]["template"]["metadata"]["annotations"]["checksum/config"])

    assert checksum({}) == checksum({"image": {"tag": "0.2.0"}})
    assert checksum({}) != checksum({"config": {"guards": {"max_fraction": 0.2}}})


def test_images_come_from_where_they_were_pushed_to() -> None:
    found = chart({"image": {"registry": "registry.example.com/", "tag": "0.2.0", "pullSecrets": ["pull"]}})
    spec = found["Deployment", "tailkeeper", "tailkeeper-watchdog"]["spec"]["template"]["spec"]
    assert spec["containers"][0]["image"] == "registry.example.com/tailkeeper/watchdog:0.2.0"
    assert spec["imagePullSecrets"] == [{"name": "pull"}]


def test_a_release_fits_into_the_secret_that_helm_keeps_it_in() -> None:
    files = {str(path): base64.b64encode(path.read_bytes()).decode() for path in CHART.rglob("*") if path.is_file()}
    release = json.dumps({"chart": files, "manifest": template(EVERYTHING).stdout}).encode()
    assert len(base64.b64encode(gzip.compress(release))) < RELEASE_LIMIT_BYTES / 2
