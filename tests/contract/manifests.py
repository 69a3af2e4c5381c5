"""The Kubernetes manifests and the chart, rendered by the real kubectl and helm, and held against published schemas.

Neither asks a cluster: there is none.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import yaml
from kubernetes_validate.utils import validate

from tailkeeper.config import Config, load
from tests.contract.from_wheels import from_wheel

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy/kubernetes"
CHART = ROOT / "deploy/helm/tailkeeper"
OVERLAYS = tuple(sorted(path.parent.name for path in KUBERNETES.glob("overlays/*/kustomization.yaml")))
COMPONENTS = tuple(sorted(path.parent.name for path in KUBERNETES.glob("components/*/kustomization.yaml")))
VERSIONS = ("1.31", "1.37")
"""Of Kubernetes: the oldest that has all we use (`unhealthyPodEvictionPolicy`), and the newest with published schemas."""
OURS = "tailkeeper/"
Thing = dict[str, Any]
Key = tuple[str, str, str]
"""Kind, namespace, name."""
_SCHEMAS = json.loads((ROOT / "tests/fixtures/kubernetes/monitoring.coreos.com.json").read_text(encoding="utf-8"))
_INSTALL = "make (tools/kubernetes_programs.py)"


def program(name: str) -> str:
    """The path of helm or kubectl, or the end of this test."""
    return from_wheel(name, _INSTALL)


def _kustomized(folder: Path) -> str:
    done = subprocess.run([program("kubectl"), "kustomize", str(folder)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def overlay(name: str) -> dict[Key, Thing]:
    """Its objects, which are for reading only: all tests see the same ones."""
    return by_key(_kustomized(KUBERNETES / "overlays" / name))


@cache
def overlay_with(name: str, *components: str) -> dict[Key, Thing]:
    """An overlay and what a user's own kustomization, somewhere else, adds to it."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        here = os.path.relpath(KUBERNETES.resolve(), folder)
        own = {"resources": [f"{here}/overlays/{name}"], "components": [f"{here}/components/{part}" for part in components]}
        head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(head | own), encoding="utf-8")
        return by_key(_kustomized(folder))


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program("helm"), *arguments], capture_output=True, text=True, timeout=60, check=False)


def chart(values: Mapping[str, Any] | None = None) -> dict[Key, Thing]:
    done = template(values)
    assert done.returncode == 0, done.stderr
    return by_key(done.stdout)


def template(values: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(values or {}, file)
        file.flush()
        return helm("template", "tailkeeper", str(CHART), "--namespace", "tailkeeper", "--values", file.name)


class _Loader(yaml.CSafeLoader):
    """Refuses a key that is there twice; a reader would take the last one and say nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key twice, line {node.start_mark.line + 1}: {keys}"
        return super().construct_mapping(node, deep=deep)


def by_key(text: str) -> dict[Key, Thing]:
    things = [thing for thing in yaml.load_all(text, Loader=_Loader) if thing]
    keyed = {key_of(thing): thing for thing in things}
    assert len(keyed) == len(things), "an object is there twice"
    return keyed


_CLUSTER_WIDE = frozenset({"Namespace", "ClusterRole", "ClusterRoleBinding"})


def key_of(thing: Thing) -> Key:
    """Helm installs what says no namespace into the release's."""
    about, kind = thing["metadata"], str(thing["kind"])
    return kind, "" if kind in _CLUSTER_WIDE else str(about.get("namespace", "tailkeeper")), str(about["name"])


def check(thing: Thing) -> None:
    """Against the schema of its kind. Raises what the validator raises."""
    if thing["apiVersion"] == "monitoring.coreos.com/v1":
        placed = {**thing, "metadata": {"namespace": "tailkeeper", **thing["metadata"]}}
        schema = {**_SCHEMAS["kinds"][thing["kind"]], "definitions": _SCHEMAS["definitions"]}
        jsonschema.Draft7Validator(schema).validate(placed)
        return
    for version in VERSIONS:
        validate(thing, version, strict=True)


def pod_specs(things: Mapping[Key, Thing]) -> Iterator[tuple[Key, Thing]]:
    for key, thing in things.items():
        if key[0] in ("Deployment", "DaemonSet", "StatefulSet"):
            yield key, thing["spec"]["template"]["spec"]


def our_containers(things: Mapping[Key, Thing], first: bool = True) -> Iterator[tuple[Key, Thing, Thing]]:
    """Where it is, its pod, and it; ``first``: those that run before the others, too."""
    for key, spec in pod_specs(things):
        for container in [*spec["containers"], *(spec.get("initContainers", []) if first else [])]:
            if container["image"].startswith(OURS):
                yield key, spec, container


def configurations(things: Mapping[Key, Thing]) -> Iterator[tuple[str, Any]]:
    """The file's name and what is in it, of every Tailkeeper configuration."""
    for (kind, _, name), thing in things.items():
        if kind == "ConfigMap" and name.startswith(("tailkeeper-config", "tailkeeper-exporter-config")):
            for file, text in thing["data"].items():
                yield file, yaml.safe_load(text)


def loaded(document: Any, folder: Path) -> Config:
    """As a pod would load it, files included: where it names a folder of the pod, it has one here."""
    text = yaml.safe_dump(document).replace("/var/lib/tailkeeper", str(folder)).replace("/run/tailkeeper", str(folder))
    (folder / "token").write_text("of-this-test\n", encoding="utf-8")
    (folder / "loaded.yaml").write_text(text, encoding="utf-8")
    return load(folder / "loaded.yaml")
