"""What is special about Kubernetes: other people's taints and annotations, autoscalers, disruption budgets, rights, versions.

Against a FAKE API server that was written from the documented shapes (``fake_kube_api``).
"""

from __future__ import annotations

import asyncio
import copy
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tailkeeper_exporter import kubernetes_access
from tailkeeper_watchdog.actuators import Actuator, kube_api, kubernetes
from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind, ServerState
from tailkeeper_watchdog.actuators.kubernetes import KubernetesActuator
from tailkeeper_watchdog.decision_log import DecisionLog
from tailkeeper_watchdog.gateways import KubernetesGateway
from tailkeeper_watchdog.ledger import Ledger
from tailkeeper_watchdog.model import DRAIN, SERVE, Backend, Knob, KnobValue, Outcome, Target
from tailkeeper_watchdog.plan import Change, ChangeKind
from tailkeeper_watchdog.reconcile import Reconciler
from tests.contract import test_sick_gateways as sick_gateways
from tests.contract.fake_kube_api import (
    ADMIN,
    READER,
    FakeKubeApi,
    autoscaler,
    fake_kube_api,
    held_by,
    kubeconfig,
    node,
    plain_pod,
    pod,
    workload,
)
from tests.unit import loopback

DEADLINE_S = 5.0
TAINT = "gpu-mem-pressure=high:NoSchedule"
THEIRS = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
TLS = Path(__file__).parents[1] / "fixtures" / "tls"

pytest.importorskip("kubernetes_asyncio")


def actuator_of(fake: FakeKubeApi, folder: Path, **more: Any) -> KubernetesActuator:
    actuator = KubernetesActuator(KubernetesGateway(name="edge", kind="kubernetes", kubeconfig=fake.kubeconfig(folder), **more))
    fake.clients.append(actuator)
    return actuator


async def state_of(actuator: KubernetesActuator, server: str) -> ServerState:
    return (await actuator.read((server,), DEADLINE_S))[server]


async def refused(call: Awaitable[None]) -> ActuatorError:
    with pytest.raises(ActuatorError) as caught:
        await call
    return caught.value


async def test_notes_are_set_and_taken_back_and_nobody_elses_is_touched(tmp_path: Path) -> None:
    theirs = {"prometheus.io/scrape": "true", "tailkeeper/model": "m", "tailkeeper.io/list": "a,b"}
    async with fake_kube_api(pods=pod("a", annotations=dict(theirs)), nodes=node("node-1")) as fake:
        actuator = actuator_of(fake, tmp_path)
        await actuator.write("llm/a", {Knob.ANNOTATION: "oom-risk=level2,kv=0.97"}, DEADLINE_S)
        ours = {"tailkeeper.io/oom-risk": "level2", "tailkeeper.io/kv": "0.97"}
        assert fake.thing("pods", "a")["metadata"]["annotations"] == {**theirs, **ours}
        assert (await state_of(actuator, "llm/a")).values[Knob.ANNOTATION] == "kv=0.97,oom-risk=level2"

        await actuator.write("llm/a", {Knob.ANNOTATION: "oom-risk=level1"}, DEADLINE_S)
        assert (await state_of(actuator, "llm/a")).values[Knob.ANNOTATION] == "oom-risk=level1"
        await actuator.write("llm/a", {Knob.ANNOTATION: ""}, DEADLINE_S)
        assert fake.thing("pods", "a")["metadata"]["annotations"] == theirs
        await actuator.write("llm/a", {Knob.ANNOTATION: ""}, DEADLINE_S)
        assert len(fake.writes()) == 3


NAMES = [
    ("llm/a", "pod"),
    ("llm/pod/a", "pod"),
    ("llm/web", "deployment"),
    ("llm/deployment/web", "deployment"),
    ("llm/statefulset/db", "statefulset"),
]


@pytest.mark.parametrize(("server", "kind"), NAMES)
async def test_a_name_says_what_it_is_or_the_api_is_asked(server: str, kind: str, tmp_path: Path) -> None:
    things: dict[str, Any] = {"deployments": workload("web", 3), "statefulsets": workload("db", 3)}
    async with fake_kube_api(pods=pod("a"), nodes=node("node-1"), **things) as fake:
        actuator = actuator_of(fake, tmp_path)
        state = await state_of(actuator, server)
        assert state.values.get(Knob.REPLICAS) == (None if kind == "pod" else 3.0)
        assert (Knob.ADMISSION in state.values) == (Knob.TAINT in state.values) == (kind == "pod")
        assert set(state.cannot) == ({Knob.REPLICAS} if kind == "pod" else {Knob.ADMISSION, Knob.TAINT})
        for knob, why_not in state.cannot.items():
            wanted: dict[Knob, KnobValue] = {Knob.ADMISSION: DRAIN, Knob.TAINT: TAINT, Knob.REPLICAS: 2.0}
            error = await refused(actuator.write(server, {knob: wanted[knob]}, DEADLINE_S))
            assert error.kind is ErrorKind.REFUSED
            assert why_not in str(error)
        await actuator.write(server, {Knob.ANNOTATION: "note=x"}, DEADLINE_S)
        assert (await state_of(actuator, server)).values[Knob.ANNOTATION] == "note=x"


async def test_a_key_that_holds_what_no_note_can_is_somebody_elses_and_is_not_replaced(tmp_path: Path) -> None:
    theirs = {"tailkeeper.io/list": "a,b"}
    async with fake_kube_api(pods=pod("a", annotations=dict(theirs)), nodes=node("node-1")) as fake:
        error = await refused(actuator_of(fake, tmp_path).write("llm/a", {Knob.ANNOTATION: "list=c"}, DEADLINE_S))
        assert error.kind is ErrorKind.REFUSED
        assert fake.thing("pods", "a")["metadata"]["annotations"] == theirs


async def test_a_taint_is_put_beside_those_of_others_and_taken_back_exactly(tmp_path: Path) -> None:
    async with fake_kube_api(pods=pod("a"), nodes=node("node-1", THEIRS)) as fake:
        actuator = actuator_of(fake, tmp_path)
        for _ in range(2):
            await actuator.write("llm/a", {Knob.TAINT: TAINT}, DEADLINE_S)
        assert fake.taints("node-1") == [TAINT, "nvidia.com/gpu=present:NoSchedule"]
        assert (await state_of(actuator, "llm/a")).values[Knob.TAINT] == TAINT

        await actuator.write("llm/a", {Knob.TAINT: ""}, DEADLINE_S)
        assert fake.thing("nodes", "node-1")["spec"] == {"taints": [THEIRS]}
        assert fake.thing("nodes", "node-1")["metadata"]["labels"] == {"kubernetes.io/os": "linux"}
        assert fake.writes() == [("patch", "nodes", "node-1")] * 2


async def test_a_node_of_two_backends_is_tainted_until_the_last_lets_go(tmp_path: Path) -> None:
    async with fake_kube_api(pods=[pod("a"), pod("b")], nodes=node("node-1")) as fake:
        actuator = actuator_of(fake, tmp_path)
        await actuator.write("llm/a", {Knob.TAINT: TAINT}, DEADLINE_S)
        assert (await state_of(actuator, "llm/b")).values[Knob.TAINT] == ""
        await actuator.write("llm/b", {Knob.TAINT: TAINT}, DEADLINE_S)
        assert sorted(held_by(fake, "node-1")) == ["llm/a", "llm/b"]

        await actuator.write("llm/a", {Knob.TAINT: ""}, DEADLINE_S)
        assert fake.taints("node-1") == [TAINT]
        await actuator.write("llm/b", {Knob.TAINT: ""}, DEADLINE_S)
        assert fake.taints("node-1") == []


async def test_a_taint_that_was_there_before_us_stays_when_we_let_go(tmp_path: Path) -> None:
    theirs = {"key": "gpu-mem-pressure", "value": "high", "effect": "NoSchedule"}
    async with fake_kube_api(pods=pod("a"), nodes=node("node-1", theirs)) as fake:
        actuator = actuator_of(fake, tmp_path)
        for value in (TAINT, ""):
            await actuator.write("llm/a", {Knob.TAINT: value}, DEADLINE_S)
            assert fake.taints("node-1") == [TAINT]


async def test_a_taint_outlives_its_pod_and_can_still_be_taken_back(tmp_path: Path) -> None:
    async with fake_kube_api(pods=pod("a"), nodes=node("node-1", THEIRS)) as fake:
        actuator = actuator_of(fake, tmp_path)
        await actuator.write("llm/a", {Knob.TAINT: TAINT}, DEADLINE_S)
        del fake.things["pods", "llm", "a"]

        state = await state_of(actuator, "llm/a")
        assert (dict(state.values), state.in_service) == ({Knob.TAINT: TAINT}, False)
        assert (await refused(actuator.write("llm/a", {Knob.TAINT: TAINT}, DEADLINE_S))).kind is ErrorKind.NOT_FOUND
        await actuator.write("llm/a", {Knob.TAINT: ""}, DEADLINE_S)
        assert fake.taints("node-1") == ["nvidia.com/gpu=present:NoSchedule"]
        assert await actuator.read(("llm/a",), DEADLINE_S) == {}


async def test_a_pod_that_came_back_on_another_node_takes_its_taint_along(tmp_path: Path) -> None:
    async with fake_kube_api(pods=pod("a"), nodes=[node("node-1"), node("node-2")]) as fake:
        actuator = actuator_of(fake, tmp_path)
        await actuator.write("llm/a", {Knob.TAINT: TAINT}, DEADLINE_S)
        fake.put("pods", pod("a", node="node-2"))
        assert (await state_of(actuator, "llm/a")).values[Knob.TAINT] == TAINT

        await actuator.write("llm/a", {Knob.TAINT: TAINT}, DEADLINE_S)
        assert (fake.taints("node-1"), fake.taints("node-2")) == ([], [TAINT])


BAD_TAINTS = ["gpu=high:NoExecute", "gpu=high", "=high:NoSchedule", "gpu=a b:NoSchedule", ":NoSchedule", "a=b:noschedule", 1.0]


@pytest.mark.parametrize("value", BAD_TAINTS)
async def test_a_taint_that_is_none_or_that_evicts_is_refused(value: KnobValue, tmp_path: Path) -> None:
    async with fake_kube_api(pods=pod("a"), nodes=node("node-1")) as fake:
        error = await refused(actuator_of(fake, tmp_path).write("llm/a", {Knob.TAINT: value}, DEADLINE_S))
        assert error.kind is ErrorKind.REFUSED
        assert fake.writes() == []


async def test_somebody_elses_taint_in_the_same_place_is_not_replaced(tmp_path: Path) -> None:
    theirs = {"key": "gpu-mem-pressure", "value": "low", "effect": "NoSchedule"}
    async with fake_kube_api(pods=pod("a"), nodes=node("node-1", theirs)) as fake:
        error = await refused(actuator_of(fake, tmp_path).write("llm/a", {Knob.TAINT: TAINT}, DEADLINE_S))
        assert error.kind is ErrorKind.REFUSED
        assert "gpu-mem-pressure=low:NoSchedule" in str(error)
        assert fake.writes() == []


async def test_a_note_about_holders_that_somebody_garbled_stops_taints_and_nothing_else(tmp_path: Path) -> None:
    async with fake_kube_api(pods=pod("a"), nodes=node("node-1")) as fake:
        actuator = actuator_of(fake, tmp_path)
        await actuator.write("llm/a", {Knob.TAINT: TAINT}, DEADLINE_S)
        fake.thing("nodes", "node-1")["metadata"]["annotations"]["tailkeeper.io/taints"] = "{oops"

        state = await state_of(actuator, "llm/a")
        assert "node node-1 cannot be read" in state.cannot[Knob.TAINT]
        assert set(state.values) == {Knob.ADMISSION, Knob.ANNOTATION}
        assert (await refused(actuator.write("llm/a", {Knob.TAINT: ""}, DEADLINE_S))).kind is ErrorKind.REFUSED
        assert fake.taints("node-1") == [TAINT]


CHANGES: dict[str, tuple[str, Knob, KnobValue, tuple[str, str, str]]] = {
    "a taint": ("llm/a", Knob.TAINT, TAINT, ("nodes", "", "node-1")),
    "replicas": ("llm/deployment/web", Knob.REPLICAS, 4.0, ("deployments", "llm", "web")),
}


@pytest.mark.parametrize("case", CHANGES)
async def test_a_change_is_made_anew_where_somebody_elses_came_between(case: str, tmp_path: Path) -> None:
    server, knob, value, thing = CHANGES[case]
    async with fake_kube_api(pods=pod("a"), nodes=node("node-1", THEIRS), deployments=workload("web")) as fake:
        actuator = actuator_of(fake, tmp_path)
        fake.meanwhile = [thing] * 2
        await actuator.write(server, {knob: value}, DEADLINE_S)
        assert len(fake.writes()) == 3
        assert (await state_of(actuator, server)).values[knob] == value

        fake.meanwhile = [thing] * 20
        error = await refused(actuator.write(server, {knob: "" if knob is Knob.TAINT else 1.0}, DEADLINE_S))
        assert (error.kind, len(fake.writes())) == (ErrorKind.REFUSED, 3 + 5)
        assert "409" in str(error)
        assert (await state_of(actuator, server)).values[knob] == value


async def test_a_drain_takes_the_pod_out_of_its_service_and_touches_no_other_condition(tmp_path: Path) -> None:
    async with fake_kube_api(pods=pod("a", others=("lb.example.com/x",)), nodes=node("node-1")) as fake:
        actuator = actuator_of(fake, tmp_path)
        before = [
            row
            for row in fake.thing("pods", "a")["status"]["conditions"]
            if row["type"] in ("ContainersReady", "lb.example.com/x")
        ]
        for value, serves in ((DRAIN, False), (SERVE, True)):
            await actuator.write("llm/a", {Knob.ADMISSION: value}, DEADLINE_S)
            state = await state_of(actuator, "llm/a")
            assert fake.in_endpoints("a") is serves
            assert (state.values[Knob.ADMISSION], state.in_service) == (value, True)
            assert [row for row in fake.thing("pods", "a")["status"]["conditions"] if row in before] == before
        assert [call[:2] for call in fake.writes()] == [("patch", "pods/status")] * 2


@pytest.mark.parametrize(("start", "value"), [(True, DRAIN), (False, SERVE)])
async def test_a_drain_comes_first_and_traffic_is_let_in_last(start: bool, value: str, tmp_path: Path) -> None:
    async with fake_kube_api(pods=pod("a", gate=start), nodes=node("node-1")) as fake:
        actuator = actuator_of(fake, tmp_path)
        for knobs in ((Knob.TAINT, Knob.ADMISSION), (Knob.ADMISSION, Knob.TAINT)):
            wanted: dict[Knob, KnobValue] = {Knob.TAINT: "nonsense", Knob.ADMISSION: value}
            await refused(actuator.write("llm/a", {knob: wanted[knob] for knob in knobs}, DEADLINE_S))
            assert not fake.in_endpoints("a")


NOT_DRAINED = [
    (plain_pod("a"), "declares no readiness gate", True),
    (pod("a", gate=None), "nobody has opened its readiness gate", False),
]


@pytest.mark.parametrize(("made", "why_not", "in_service"), NOT_DRAINED)
async def test_a_pod_that_cannot_be_drained_in_a_way_to_take_back_says_so(
    made: dict[str, Any], why_not: str, in_service: bool, tmp_path: Path
) -> None:
    async with fake_kube_api(pods=made, nodes=node("node-1")) as fake:
        actuator = actuator_of(fake, tmp_path)
        state = await state_of(actuator, "llm/a")
        assert why_not in state.cannot[Knob.ADMISSION]
        assert Knob.ADMISSION not in state.values
        assert state.in_service is in_service
        for value in (DRAIN, SERVE):
            error = await refused(actuator.write("llm/a", {Knob.ADMISSION: value}, DEADLINE_S))
            assert error.kind is ErrorKind.REFUSED
        assert fake.writes() == []


OUT_OF_SERVICE: dict[str, Callable[[dict[str, Any]], None]] = {
    "another gate is closed": lambda made: made["status"]["conditions"].__setitem__(1, {"type": "x.io/y", "status": "False"}),
    "its containers are not ready": lambda made: made["status"]["conditions"].__setitem__(
        0, {"type": "ContainersReady", "status": "False"}
    ),
    "it is being deleted": lambda made: made["metadata"].__setitem__("deletionTimestamp", "2026-11-29T00:00:00Z"),
}


@pytest.mark.parametrize("case", OUT_OF_SERVICE)
async def test_what_keeps_a_pod_out_of_its_service_besides_us_is_seen(case: str, tmp_path: Path) -> None:
    made = pod("a", others=("x.io/y",))
    OUT_OF_SERVICE[case](made)
    async with fake_kube_api(pods=made, nodes=node("node-1")) as fake:
        state = await state_of(actuator_of(fake, tmp_path), "llm/a")
        assert (state.values[Knob.ADMISSION], state.in_service) == (SERVE, False)


@pytest.mark.parametrize(("grace_s", "expected"), [(None, 30), (90, 90)])
async def test_a_drain_evicts_where_that_is_asked_for_and_leaves_time_for_what_is_in_flight(
    grace_s: int | None, expected: int, tmp_path: Path
) -> None:
    async with fake_kube_api(pods=plain_pod("a"), nodes=node("node-1")) as fake:
        actuator = actuator_of(fake, tmp_path, evict=True, evict_grace_s=grace_s)
        assert (await state_of(actuator, "llm/a")).values[Knob.ADMISSION] == SERVE
        for _ in range(2):
            await actuator.write("llm/a", {Knob.ADMISSION: DRAIN}, DEADLINE_S)
        assert fake.writes() == [("create", "pods/eviction", "a")]
        assert fake.thing("pods", "a")["metadata"]["deletionGracePeriodSeconds"] == expected
        state = await state_of(actuator, "llm/a")
        assert (state.values[Knob.ADMISSION], state.in_service) == (DRAIN, False)
        error = await refused(actuator.write("llm/a", {Knob.ADMISSION: SERVE}, DEADLINE_S))
        assert error.kind is ErrorKind.REFUSED
        assert "cannot be brought back" in str(error)


async def test_a_disruption_budget_that_says_no_is_a_refusal_and_the_pod_stays(tmp_path: Path) -> None:
    async with fake_kube_api(pods=plain_pod("a"), nodes=node("node-1")) as fake:
        fake.disruptions_allowed = 0
        actuator = actuator_of(fake, tmp_path, evict=True)
        error = await refused(actuator.write("llm/a", {Knob.ADMISSION: DRAIN}, DEADLINE_S))
        assert error.kind is ErrorKind.REFUSED
        assert "PodDisruptionBudget" in str(error)
        assert fake.in_endpoints("a")
        assert (await state_of(actuator, "llm/a")).values[Knob.ADMISSION] == SERVE


OF_THIS_ONE: dict[str, tuple[str, str, Knob, KnobValue]] = {
    "a drain": ("llm/a", "pods", Knob.ADMISSION, DRAIN),
    "a note of a pod": ("llm/a", "pods", Knob.ANNOTATION, "k=v"),
    "a note of a set": ("llm/statefulset/vllm", "statefulsets", Knob.ANNOTATION, "k=v"),
}


@pytest.mark.parametrize("case", OF_THIS_ONE)
async def test_who_got_the_name_of_a_pod_or_a_set_meanwhile_is_not_changed(case: str, tmp_path: Path) -> None:
    """A pod of a StatefulSet has the name of the one before it: it may come between our reading and our writing."""
    server, plural, knob, value = OF_THIS_ONE[case]
    async with fake_kube_api(pods=pod("a"), statefulsets=workload("vllm"), nodes=node("node-1")) as fake:
        change, successors = fake._change, []

        def replaced_first(kind: str, thing: dict[str, Any], sub: str, seen: loopback.Seen) -> dict[str, Any]:
            thing["metadata"] |= {"uid": "that of its successor"}
            successors.append(copy.deepcopy(thing))
            return change(kind, thing, sub, seen)

        fake._change = replaced_first  # type: ignore[method-assign, assignment]
        error = await refused(actuator_of(fake, tmp_path).write(server, {knob: value}, DEADLINE_S))
        assert error.kind is ErrorKind.REFUSED
        assert "another one has its name by now" in str(error)
        assert [fake.thing(plural, server.rpartition("/")[2])] == successors


async def test_a_pod_that_got_the_name_meanwhile_is_not_evicted(tmp_path: Path) -> None:
    async with fake_kube_api(pods=plain_pod("a", uid="old"), nodes=node("node-1")) as fake:
        evict = fake._evict

        def replaced_first(thing: dict[str, Any], eviction: dict[str, Any]) -> dict[str, Any]:
            thing["metadata"]["uid"] = "new"
            return evict(thing, eviction)

        fake._evict = replaced_first  # type: ignore[method-assign,assignment]
        error = await refused(actuator_of(fake, tmp_path, evict=True).write("llm/a", {Knob.ADMISSION: DRAIN}, DEADLINE_S))
        assert error.kind is ErrorKind.REFUSED
        assert fake.in_endpoints("a")


@pytest.mark.parametrize("kind", ["deployment", "statefulset"])
async def test_replicas_are_set_through_the_scale_of_a_workload(kind: str, tmp_path: Path) -> None:
    async with fake_kube_api(nodes=node("node-1"), **{f"{kind}s": workload("web", 2)}) as fake:
        actuator = actuator_of(fake, tmp_path)
        for _ in range(2):
            await actuator.write(f"llm/{kind}/web", {Knob.REPLICAS: 3.0}, DEADLINE_S)
        assert fake.thing(f"{kind}s", "web")["spec"]["replicas"] == 3
        assert fake.writes() == [("patch", f"{kind}s/scale", "web")]


@pytest.mark.parametrize("value", [-1.0, 2.5, float("nan"), float("inf"), "3", True, 10_001.0])
async def test_replicas_that_are_no_count_are_refused(value: KnobValue, tmp_path: Path) -> None:
    async with fake_kube_api(nodes=node("node-1"), deployments=workload("web")) as fake:
        error = await refused(actuator_of(fake, tmp_path).write("llm/deployment/web", {Knob.REPLICAS: value}, DEADLINE_S))
        assert (error.kind, fake.writes()) == (ErrorKind.REFUSED, [])


async def test_replicas_that_an_autoscaler_sets_are_left_to_it(tmp_path: Path) -> None:
    things: dict[str, Any] = {"deployments": workload("web"), "statefulsets": workload("web")}
    async with fake_kube_api(nodes=node("node-1"), horizontalpodautoscalers=autoscaler("Deployment", "web"), **things) as fake:
        actuator = actuator_of(fake, tmp_path)
        assert "HorizontalPodAutoscaler web-hpa" in (await state_of(actuator, "llm/web")).cannot[Knob.REPLICAS]
        error = await refused(actuator.write("llm/web", {Knob.REPLICAS: 3.0}, DEADLINE_S))
        assert error.kind is ErrorKind.REFUSED
        assert "two controllers on one knob" in str(error)
        assert Knob.REPLICAS not in (await state_of(actuator, "llm/statefulset/web")).cannot


RIGHTS: list[tuple[str, str, str, Knob, KnobValue, dict[str, Any]]] = [
    ("get", "pods", "llm/a", Knob.ANNOTATION, "a=b", {}),
    ("patch", "pods", "llm/a", Knob.ANNOTATION, "a=b", {}),
    ("patch", "pods/status", "llm/a", Knob.ADMISSION, DRAIN, {}),
    ("create", "pods/eviction", "llm/a", Knob.ADMISSION, DRAIN, {"evict": True}),
    ("list", "nodes", "llm/a", Knob.TAINT, TAINT, {}),
    ("get", "nodes", "llm/a", Knob.TAINT, TAINT, {}),
    ("patch", "nodes", "llm/a", Knob.TAINT, TAINT, {}),
    ("get", "deployments", "llm/web", Knob.REPLICAS, 3.0, {}),
    ("get", "deployments/scale", "llm/web", Knob.REPLICAS, 3.0, {}),
    ("patch", "deployments/scale", "llm/web", Knob.REPLICAS, 3.0, {}),
]


@pytest.mark.parametrize(("verb", "resource", "server", "knob", "value", "more"), RIGHTS)
async def test_a_right_that_is_missing_is_named(
    verb: str, resource: str, server: str, knob: Knob, value: KnobValue, more: dict[str, Any], tmp_path: Path
) -> None:
    async with fake_kube_api(pods=pod("a"), nodes=node("node-1"), deployments=workload("web")) as fake:
        fake.denied = {(verb, resource)}
        error = await refused(actuator_of(fake, tmp_path, **more).write(server, {knob: value}, DEADLINE_S))
        assert error.kind is ErrorKind.UNAUTHORIZED
        assert f"may not {verb} {resource}" in str(error)
        assert f"resources: [{resource}], verbs: [{verb}]" in str(error)
        assert fake.writes() == []
        assert ADMIN not in str(error)


async def test_without_rights_on_nodes_and_autoscalers_the_rest_is_read_and_these_say_why(tmp_path: Path) -> None:
    async with fake_kube_api(pods=pod("a"), nodes=node("node-1"), deployments=workload("web")) as fake:
        fake.denied = {("list", "nodes"), ("list", "horizontalpodautoscalers")}
        states = await actuator_of(fake, tmp_path).read(("llm/a", "llm/web"), DEADLINE_S)
        assert "may not list nodes; a ClusterRole needs" in states["llm/a"].cannot[Knob.TAINT]
        assert "may not list horizontalpodautoscalers" in states["llm/web"].cannot[Knob.REPLICAS]
        assert states["llm/a"].values == {Knob.ADMISSION: SERVE, Knob.ANNOTATION: ""}
        assert all(state.doubt == "" for state in states.values())


async def test_one_server_that_may_not_be_read_does_not_spoil_the_others(tmp_path: Path) -> None:
    async with fake_kube_api(pods=pod("a"), nodes=node("node-1"), deployments=workload("web")) as fake:
        fake.denied = {("get", "deployments")}
        states = await actuator_of(fake, tmp_path).read(("llm/a", "llm/web"), DEADLINE_S)
        assert states["llm/a"].values
        assert "may not get deployments" in states["llm/web"].doubt
        assert not states["llm/web"].values


async def test_an_api_server_that_is_too_busy_took_nothing(tmp_path: Path) -> None:
    async with fake_kube_api(pods=pod("a"), nodes=node("node-1")) as fake:
        actuator = actuator_of(fake, tmp_path)
        fake.busy = True
        assert (await refused(actuator.write("llm/a", {Knob.ADMISSION: DRAIN}, DEADLINE_S))).kind is ErrorKind.UNREACHABLE


async def test_an_api_server_that_says_yes_and_does_nothing_is_found_out_by_reading(tmp_path: Path) -> None:
    async with fake_kube_api(pods=pod("a"), nodes=node("node-1"), deployments=workload("web")) as fake:
        actuator = actuator_of(fake, tmp_path)
        fake.lying = True
        await actuator.write("llm/a", {Knob.ADMISSION: DRAIN, Knob.TAINT: TAINT, Knob.ANNOTATION: "a=b"}, DEADLINE_S)
        await actuator.write("llm/web", {Knob.REPLICAS: 5.0}, DEADLINE_S)
        states = await actuator.read(("llm/a", "llm/web"), DEADLINE_S)
        assert states["llm/a"].values == {Knob.ADMISSION: SERVE, Knob.TAINT: "", Knob.ANNOTATION: ""}
        assert states["llm/web"].values[Knob.REPLICAS] == 2.0


LENT: list[tuple[str, Knob, KnobValue, KnobValue]] = [
    ("llm/a", Knob.ADMISSION, DRAIN, SERVE),
    ("llm/a", Knob.TAINT, TAINT, ""),
    ("llm/a", Knob.ANNOTATION, "oom-risk=level1", ""),
    ("llm/web", Knob.REPLICAS, 4.0, 2.0),
]


@pytest.mark.parametrize(("server", "knob", "value", "prior"), LENT)
async def test_what_was_lent_is_given_back_and_nothing_of_ours_is_left(
    server: str, knob: Knob, value: KnobValue, prior: KnobValue, tmp_path: Path
) -> None:
    async with fake_kube_api(pods=pod("a"), nodes=node("node-1", THEIRS), deployments=workload("web")) as fake:
        actuator, ledger = actuator_of(fake, tmp_path), Ledger(tmp_path / "ledger.db")
        reconciler = Reconciler({"edge": actuator}, ledger, DecisionLog(ledger, time.time), 300, time.time)
        change = Change(ChangeKind.APPLY, "a", Target("edge", server, "edge"), knob, value, prior, "breaker", "pressure")
        applied = await reconciler.execute((change,), 1, DEADLINE_S)
        (lease,) = ledger.leases()
        released = await reconciler.release((lease,), 2, "not needed", DEADLINE_S)
        left = ledger.leases()
        ledger.close()
        assert [d.verdict for d in (*applied.decisions, *released.decisions)] == [Outcome.APPLIED, Outcome.RELEASED]
        assert (lease.written, lease.confirmed, left) == (value, True, ())
        assert (await state_of(actuator, server)).values[knob] == prior
        assert fake.taints("node-1") == ["nvidia.com/gpu=present:NoSchedule"]
        assert fake.in_endpoints("a")


async def test_the_taint_of_a_pod_that_is_gone_is_taken_back_at_the_end_of_its_lease(tmp_path: Path) -> None:
    """There is nothing to read back from then, so the lease ends at the next look, when nobody knows the server any more."""
    async with fake_kube_api(pods=pod("a"), nodes=node("node-1", THEIRS)) as fake:
        actuator, ledger = actuator_of(fake, tmp_path), Ledger(tmp_path / "ledger.db")
        reconciler = Reconciler({"edge": actuator}, ledger, DecisionLog(ledger, time.time), 300, time.time)
        target = Target("edge", "llm/a", "edge")
        change = Change(ChangeKind.APPLY, "a", target, Knob.TAINT, TAINT, "", "breaker", "pressure")
        await reconciler.execute((change,), 1, DEADLINE_S)
        del fake.things["pods", "llm", "a"]
        released = await reconciler.release(ledger.leases(), 2, "not needed", DEADLINE_S)
        report = await reconciler.read((Backend("a", targets=(target,)),), DEADLINE_S)
        ledger.close()
        assert fake.taints("node-1") == ["nvidia.com/gpu=present:NoSchedule"]
        assert [decision.verdict for decision in released.decisions] == [Outcome.FAILED]
        assert (report.servers, report.errors) == ({}, {})


@asynccontextmanager
async def in_cluster(
    fake: FakeKubeApi, folder: Path, monkeypatch: pytest.MonkeyPatch, authority: Path
) -> AsyncIterator[tuple[KubernetesActuator, Path]]:
    """As in a pod: the address in the environment, token and authority in files, TLS in front of the fake."""
    from kubernetes_asyncio.config import incluster_config

    port = int(fake.server.url.rpartition(":")[2])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(TLS / "localhost.pem", TLS / "localhost.key")

    async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, to_them = await asyncio.open_connection("127.0.0.1", port)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while chunk := await source.read(65_536):
                sink.write(chunk)
            sink.close()

        await asyncio.gather(pump(reader, to_them), pump(theirs, writer), return_exceptions=True)

    token = folder / "token"
    token.write_text(ADMIN)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority))
    async with await asyncio.start_server(passed_on, "127.0.0.1", 0, ssl=context) as server:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.sockets[0].getsockname()[1]))
        actuator = KubernetesActuator(KubernetesGateway(name="edge", kind="kubernetes", in_cluster=True))
        yield actuator, token
        await actuator.close()


async def test_in_a_cluster_the_token_is_read_again_because_it_rotates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        fake_kube_api(pods=pod("a"), nodes=node("node-1")) as fake,
        in_cluster(fake, tmp_path, monkeypatch, TLS / "localhost.pem") as (actuator, token),
    ):
        token.write_text("expired")
        with pytest.raises(ActuatorError) as caught:
            await actuator.read(("llm/a",), DEADLINE_S)
        assert caught.value.kind is ErrorKind.UNAUTHORIZED
        assert "expired" not in str(caught.value)
        token.write_text(ADMIN)
        await actuator.write("llm/a", {Knob.ADMISSION: DRAIN}, DEADLINE_S)
        monkeypatch.setattr(kube_api, "REREAD_S", 0.0)
        token.write_text(READER)
        assert (await state_of(actuator, "llm/a")).values[Knob.ADMISSION] == DRAIN
        assert {request.headers["authorization"] for request in fake.server.requests} == {
            "Bearer expired", f"Bearer {ADMIN}", f"Bearer {READER}",
        }  # fmt: skip


async def test_an_authority_that_was_replaced_in_its_place_is_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import certifi

    authority = tmp_path / "ca.crt"
    authority.write_text(certifi.contents())
    monkeypatch.setattr(kube_api, "REREAD_S", 0.0)
    async with (
        fake_kube_api(pods=pod("a"), nodes=node("node-1")) as fake,
        in_cluster(fake, tmp_path, monkeypatch, authority) as (actuator, _),
    ):
        with pytest.raises(ActuatorError):
            await actuator.read(("llm/a",), DEADLINE_S)
        authority.write_bytes((TLS / "localhost.pem").read_bytes())
        assert await actuator.read(("llm/a",), DEADLINE_S)


async def test_an_api_server_whose_certificate_is_of_no_known_authority_gets_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import certifi

    async with (
        fake_kube_api(pods=pod("a"), nodes=node("node-1")) as fake,
        in_cluster(fake, tmp_path, monkeypatch, Path(certifi.where())) as (actuator, _),
    ):
        with pytest.raises(ActuatorError) as caught:
            await actuator.read(("llm/a",), DEADLINE_S)
        assert caught.value.kind is ErrorKind.UNREACHABLE
        assert "certificate" in str(caught.value).lower()
        assert fake.server.requests == []


NO_WAY_IN = [
    "",
    "not: [yaml",
    "apiVersion: v1\nkind: Config\n",
    "users: [{name: u, user: {token: s3cret}}]\ncurrent-context: x\n",
]


@pytest.mark.parametrize("text", NO_WAY_IN)
async def test_a_kubeconfig_that_leads_nowhere_is_told_without_its_content(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    actuator = KubernetesActuator(KubernetesGateway(name="edge", kind="kubernetes", kubeconfig=file))
    with pytest.raises(ActuatorError) as caught:
        await actuator.read(("llm/a",), DEADLINE_S)
    assert caught.value.kind is ErrorKind.UNAUTHORIZED
    assert "no usable credentials" in str(caught.value)
    assert "s3cret" not in str(caught.value)


async def test_nodes_are_not_looked_at_where_no_server_is_a_pod(tmp_path: Path) -> None:
    async with fake_kube_api(nodes=node("node-1"), deployments=workload("web")) as fake:
        await actuator_of(fake, tmp_path).read(("llm/deployment/web",), DEADLINE_S)
        assert [call[1] for call in fake.log] == ["deployments", "horizontalpodautoscalers"]


async def test_without_the_client_every_knob_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "installed", lambda: False)
    actuator = KubernetesActuator(KubernetesGateway(name="edge", kind="kubernetes", in_cluster=True))
    assert {actuator.supports(knob).why_not for knob in Knob} == {kubernetes_access.INSTALL}
    assert (await refused(actuator.write("llm/a", {Knob.ADMISSION: DRAIN}, DEADLINE_S))).kind is ErrorKind.REFUSED


LIST = b'{"kind": "NodeList", "metadata": {}, "items": []}'
SICK: dict[str, tuple[sick_gateways.Behave, ErrorKind]] = {
    "silent": (sick_gateways.silent, ErrorKind.TIMEOUT),
    "dripping": (sick_gateways.dripping(sick_gateways.HTTP_OK + b"Content-Length: 60000\r\n\r\n"), ErrorKind.TIMEOUT),
    "hanging up": (sick_gateways.hanging_up, ErrorKind.PROTOCOL),
    "no HTTP server": (sick_gateways.saying(b"-ERR unknown command\r\n"), ErrorKind.PROTOCOL),
    "cut short": (sick_gateways.saying(sick_gateways.http(LIST, length=500)), ErrorKind.PROTOCOL),
    "HTML": (sick_gateways.saying(sick_gateways.http(b"<html>502</html>")), ErrorKind.PROTOCOL),
    "a list where an object must be": (sick_gateways.saying(sick_gateways.http(b"[]")), ErrorKind.PROTOCOL),
    "no list of nodes": (sick_gateways.saying(sick_gateways.http(b'{"items": 3, "metadata": 1}')), ErrorKind.PROTOCOL),
    "another object": (sick_gateways.saying(sick_gateways.http(b'{"metadata": {"name": "b"}}')), ErrorKind.PROTOCOL),
    "nested without end": (sick_gateways.saying(sick_gateways.http(b"[" * 100_000)), ErrorKind.PROTOCOL),
}


CALLS: dict[str, Callable[[Actuator, float], Awaitable[object]]] = {
    "read": lambda actuator, deadline_s: actuator.read(("llm/a",), deadline_s),
    "taint": lambda actuator, deadline_s: actuator.write("llm/a", {Knob.TAINT: TAINT}, deadline_s),
    "drain": lambda actuator, deadline_s: actuator.write("llm/a", {Knob.ADMISSION: DRAIN}, deadline_s),
}


@pytest.mark.parametrize("case", SICK)
@pytest.mark.parametrize("call", CALLS)
async def test_a_sick_api_server_costs_one_deadline_and_is_never_believed(
    case: str, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(port: int) -> KubernetesActuator:
        file = kubeconfig(tmp_path, f"http://127.0.0.1:{port}")
        return KubernetesActuator(KubernetesGateway(name="edge", kind="kubernetes", kubeconfig=file))

    monkeypatch.setitem(sick_gateways.ACTUATORS, "kubernetes", ("llm/a", made))
    monkeypatch.setattr(kube_api, "ANSWER_LIMIT_BYTES", 200_000)
    behave, kind = SICK[case]
    deadline_s = 0.3 if kind is ErrorKind.TIMEOUT else DEADLINE_S
    async with sick_gateways.sick("kubernetes", behave) as gateway:
        with pytest.raises(ActuatorError) as caught:
            await CALLS[call](gateway.actuator, deadline_s)
    assert caught.value.kind is kind
    assert len(str(caught.value)) < 500


async def test_an_answer_that_never_ends_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_api, "ANSWER_LIMIT_BYTES", 200_000)
    file = tmp_path / "config"

    def made(port: int) -> KubernetesActuator:
        file.write_text(kubeconfig(tmp_path, f"http://127.0.0.1:{port}").read_text())
        return KubernetesActuator(KubernetesGateway(name="edge", kind="kubernetes", kubeconfig=file))

    monkeypatch.setitem(sick_gateways.ACTUATORS, "kubernetes", ("llm/a", made))
    async with sick_gateways.sick("kubernetes", sick_gateways.never_ending) as gateway:
        with pytest.raises(ActuatorError, match="longer than 200000 bytes"):
            await gateway.read(DEADLINE_S)


@pytest.mark.parametrize("status", [302, 307])
async def test_a_redirect_is_not_followed_and_nothing_goes_where_it_leads(status: int, tmp_path: Path) -> None:
    async with (
        loopback.serving(loopback.reply(200, pod("a"))) as elsewhere,
        loopback.serving(loopback.reply(status, b"", f"location: {elsewhere.url}/api")) as server,
    ):
        settings = KubernetesGateway(name="edge", kind="kubernetes", kubeconfig=kubeconfig(tmp_path, server.url))
        actuator = KubernetesActuator(settings)
        error = await refused(actuator.write("llm/a", {Knob.ANNOTATION: "kv=1"}, DEADLINE_S))
        await actuator.close()

    assert error.kind is ErrorKind.REFUSED
    assert "redirects are not followed" in str(error)
    assert elsewhere.requests == []
