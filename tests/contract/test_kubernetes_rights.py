"""The roles in the manifests have the verbs that the code uses, and no others.

Every way into the API is gone, for real, against the FAKE API server (``fake_kube_api``), which notes what was asked for. That no
way was forgotten is checked by the source: each call that stands there must have been seen.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tailkeeper_exporter.discovery.kubernetes import KubernetesLister
from tailkeeper_exporter.settings import KubernetesDiscovery
from tailkeeper_watchdog.actuators import kube_api, kube_events
from tailkeeper_watchdog.actuators.kube_api import KubeConnection
from tailkeeper_watchdog.actuators.kube_events import announce
from tailkeeper_watchdog.actuators.kube_objects import place_of
from tailkeeper_watchdog.actuators.kubernetes import KubernetesActuator
from tailkeeper_watchdog.gateways import KubernetesGateway
from tailkeeper_watchdog.kube_announcer import announcement_of
from tailkeeper_watchdog.leader_lease import KubernetesLeadership
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, KnobValue
from tailkeeper_watchdog.settings import LeaderSettings
from tests.contract.fake_kube_api import FakeKubeApi, fake_kube_api, node, plain_pod, pod, workload
from tests.unit.a_change import a_change

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy/kubernetes"
SOURCES = (*(ROOT / "watchdog/tailkeeper_watchdog").rglob("*.py"),)
DEADLINE_S = 5.0
TAINT = "gpu-mem-pressure=high:NoSchedule"
Right = tuple[str, str]
"""Verb and resource, as RBAC has them."""

pytest.importorskip("kubernetes_asyncio")


def rights(path: str, *roles: str) -> set[Right]:
    """What these roles of a manifest allow."""
    documents = yaml.safe_load_all((KUBERNETES / path).read_text(encoding="utf-8"))
    found = {thing["metadata"]["name"]: thing for thing in documents if thing["kind"] in ("Role", "ClusterRole")}
    return {
        (verb, resource)
        for role in roles
        for rule in found[role]["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
    }


def asked(fake: FakeKubeApi) -> set[Right]:
    return {(verb, resource) for verb, resource, _ in fake.log}


async def lead(folder: Path) -> set[Right]:
    """Take a lease that is not there, renew it, and let it go."""
    async with fake_kube_api() as fake:
        settings = LeaderSettings(namespace="tailkeeper", kubeconfig=fake.kubeconfig(folder))
        clock = iter(range(0, 10_000, 6))
        leadership = KubernetesLeadership(settings, "a", lambda: float(next(clock)))
        assert [await leadership.try_lead() for _ in range(3)] == [None] * 3
        await leadership.step_down()
        return asked(fake)


async def discover(folder: Path) -> set[Right]:
    async with fake_kube_api(pods=pod("a")) as fake:
        settings = KubernetesDiscovery(
            kind="kubernetes", namespace="llm", selector="app=vllm", port=8000, kubeconfig=fake.kubeconfig(folder)
        )
        await KubernetesLister(settings).list(DEADLINE_S)
        return asked(fake)


TURNED: tuple[tuple[str, dict[Knob, KnobValue]], ...] = (
    ("llm/a", {Knob.ANNOTATION: "note=x", Knob.TAINT: TAINT, Knob.ADMISSION: DRAIN}),
    ("llm/a", {Knob.ANNOTATION: "", Knob.TAINT: "", Knob.ADMISSION: SERVE}),
    ("llm/deployment/web", {Knob.ANNOTATION: "note=x", Knob.REPLICAS: 3.0}),
    ("llm/statefulset/db", {Knob.ANNOTATION: "note=x", Knob.REPLICAS: 3.0}),
)


async def turn(folder: Path) -> set[Right]:
    """Every knob that a cluster has, there and back, and the event beside it."""
    things: dict[str, Any] = {"deployments": workload("web"), "statefulsets": workload("db")}
    async with fake_kube_api(pods=pod("a"), nodes=node("node-1"), **things) as fake:
        actuator = KubernetesActuator(KubernetesGateway(name="c", kind="kubernetes", kubeconfig=fake.kubeconfig(folder)))
        fake.clients.append(actuator)
        for server, values in TURNED:
            await actuator.write(server, values, DEADLINE_S)
            read = await actuator.read((server,), DEADLINE_S)
            assert {knob: read[server].values[knob] for knob in values} == values
        await _announce(fake, folder)
        return asked(fake)


async def _announce(fake: FakeKubeApi, folder: Path) -> None:
    connection = KubeConnection(fake.kubeconfig(folder), in_cluster=False)
    fake.clients.append(connection)
    place = place_of("llm/a")
    assert place is not None
    assert await announce(await connection.opened(), place, announcement_of(a_change(), "run"))


async def evict(folder: Path) -> set[Right]:
    """With ``evict: true`` a drain deletes."""
    async with fake_kube_api(pods=plain_pod("a"), nodes=node("node-1")) as fake:
        gateway = KubernetesGateway(name="c", kind="kubernetes", kubeconfig=fake.kubeconfig(folder), evict=True)
        actuator = KubernetesActuator(gateway)
        fake.clients.append(actuator)
        await actuator.write("llm/a", {Knob.ADMISSION: DRAIN}, DEADLINE_S)
        return asked(fake)


async def test_the_role_for_leading_is_what_leading_takes(tmp_path: Path) -> None:
    assert await lead(tmp_path) == rights("base/leader.yaml", "tailkeeper-leader")


async def test_the_role_for_discovery_is_what_discovery_takes(tmp_path: Path) -> None:
    taken = await discover(tmp_path)
    for overlay in ("exporter-discovery", "exporter-sidecar"):
        assert taken == rights(f"overlays/{overlay}/access.yaml", "tailkeeper-discovery")


async def test_the_roles_for_the_gateway_are_what_its_knobs_take(tmp_path: Path) -> None:
    assert await turn(tmp_path) == rights("components/kubernetes-gateway/access.yaml", "tailkeeper-gateway", "tailkeeper-taints")


async def test_eviction_takes_one_right_more_and_that_is_apart(tmp_path: Path) -> None:
    more = await evict(tmp_path) - rights("components/kubernetes-gateway/access.yaml", "tailkeeper-gateway", "tailkeeper-taints")
    assert more == rights("components/kubernetes-evict/access.yaml", "tailkeeper-evict")


async def test_every_call_in_the_source_was_made_above(tmp_path: Path) -> None:
    made = await lead(tmp_path) | await turn(tmp_path) | await evict(tmp_path)
    written = {call for file in SOURCES for call in _calls(ast.parse(file.read_text(encoding="utf-8")))}
    unsaid = {call for call in written if "?" in call}
    assert unsaid == {("patch", "", "?")}, "only patch_of, whose own calls are looked at, passes on what it is told"
    assert len(written) > 10
    for verb, resource, sub in written - unsaid:
        assert any(_is(right, verb, resource, sub) for right in made), (verb, resource, sub)


def _is(right: Right, verb: str, resource: str, sub: str) -> bool:
    plural, _, below = right[1].partition("/")
    return right[0] == verb and resource in ("", plural) and below == sub


def _calls(tree: ast.AST) -> Iterable[tuple[str, str, str]]:
    """Verb, resource ("" where it is a variable) and subresource of each call to the API in a file."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            if call.func.id == "Ask":
                verb, resource, *rest = call.args
                yield _text(verb), _plural(resource), _text(rest[2]) if len(rest) > 2 else ""
            elif call.func.id == "patch_of":
                sub = call.args[4] if len(call.args) > 4 else ast.Constant("")
                yield "patch", _plural(call.args[0]), _text(sub)


def _text(expression: ast.expr) -> str:
    """Of a literal; "?" for what is none."""
    return str(expression.value) if isinstance(expression, ast.Constant) else "?"


def _plural(expression: ast.expr) -> str:
    name = expression.id if isinstance(expression, ast.Name) else ""
    known = getattr(kube_api, name, None) or getattr(kube_events, name, None)
    return known.plural if isinstance(known, kube_api.Resource) else ""


def test_the_documents_table_is_the_roles() -> None:
    found: dict[str, set[Right]] = {}
    role = ""
    text = (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8").partition("\n## Rights\n")[2].partition("\n## ")[0]
    for line in (line for line in text.splitlines() if line.startswith("| ") and "| Verbs |" not in line):
        name, _, resources, verbs = (cell.strip() for cell in line.strip("|").split("|")[:4])
        role = name.strip("`") or role
        bare = re.sub(r"\(.*?\)", "", verbs)
        found.setdefault(role, set()).update({(v.strip(), r.strip()) for v in bare.split(",") for r in resources.split(",")})
    paths = {
        "tailkeeper-leader": "base/leader.yaml",
        "tailkeeper-discovery": "overlays/exporter-discovery/access.yaml",
        "tailkeeper-gateway": "components/kubernetes-gateway/access.yaml",
        "tailkeeper-taints": "components/kubernetes-gateway/access.yaml",
        "tailkeeper-evict": "components/kubernetes-evict/access.yaml",
    }
    assert found == {name: rights(path, name) for name, path in paths.items()}
