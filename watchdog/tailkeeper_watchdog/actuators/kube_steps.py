"""What is asked of a cluster and changed in it, one small step each. Has no deadline of its own and takes no turn.

Every step is safe to repeat: it reads, changes only where something is to change, and begins anew where somebody else's change
came between. Raises CallError.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.contract import ErrorKind
from tailkeeper_watchdog.actuators.kube_api import (
    AUTOSCALERS,
    DEPLOYMENTS,
    MERGE,
    NODES,
    PAGE,
    PODS,
    STATEFULSETS,
    Ask,
    ConflictError,
    ForbiddenError,
    KubeApi,
    Resource,
)
from tailkeeper_watchdog.actuators.kube_objects import Place, notes_from, notes_patch, part, rows
from tailkeeper_watchdog.actuators.kube_taints import (
    TAINTED,
    NodeTaints,
    UnknownHoldersError,
    node_patch,
    node_taints,
    taint_from,
)
from tailkeeper_watchdog.model import Knob, KnobValue

TRIES = 5
"""Of a change that somebody else's came between. A node's status is written every few seconds, so one repeat is usual."""
MAX_REPLICAS = 10_000
"""More is a mistake of units; a cluster has at most 5,000 nodes."""
WORKLOADS: Mapping[str, tuple[Resource, str]] = {
    "deployment": (DEPLOYMENTS, "Deployment"),
    "statefulset": (STATEFULSETS, "StatefulSet"),
}
WHOLE = "it has many pods on many nodes; name the pod as the server"
NO_NODE = "the pod is on no node"


@dataclass(frozen=True, slots=True)
class Tainted:
    """The nodes that hold a taint of ours, by name; ``why_not`` is a sentence where they cannot be known."""

    nodes: Mapping[str, NodeTaints]
    why_not: str = ""

    def of(self, holder: str) -> str:
        return next((text for node in self.nodes.values() if (text := node.of(holder))), "")


async def found(api: KubeApi, place: Place) -> tuple[str, Mapping[str, Any] | None]:
    """What the server is, and it; a pod that is not there where nothing of that name is."""
    for kind in (place.kind,) if place.kind else ("pod", "deployment"):
        resource = WORKLOADS[kind][0] if kind in WORKLOADS else PODS
        try:
            return kind, await api.call(Ask("get", resource, place.namespace, place.name))
        except CallError as error:
            if error.kind is not ErrorKind.NOT_FOUND:
                raise
    return place.kind or "pod", None


async def tainted_nodes(api: KubeApi) -> Tainted:
    """All nodes with a taint of ours. Raises CallError where the API does not answer; a missing right is a sentence."""
    try:
        return Tainted(await _tainted(api))
    except (ForbiddenError, UnknownHoldersError) as error:
        return Tainted({}, error.message)


async def _tainted(api: KubeApi) -> Mapping[str, NodeTaints]:
    query = (("labelSelector", f"{TAINTED}=true"), ("limit", str(PAGE)))
    document = await api.call(Ask("list", NODES, query=query))
    if part(document, "metadata").get("continue"):
        raise UnknownHoldersError(f"more than {PAGE} nodes have a taint of ours")
    return {str(part(node, "metadata").get("name")): node_taints(node) for node in rows(document, "items")}


async def hold_taint(api: KubeApi, place: Place, home: str, value: KnobValue) -> None:
    """Held by the pod at the node it is on, and nowhere else."""
    wanted = None if value == "" else taint_from(value)
    if wanted and not home:
        raise CallError(ErrorKind.REFUSED, f"taint: {NO_NODE}")
    for name, node in (await _tainted(api)).items():
        if any(place.pod in held.holders for held in node.held.values()) and not (wanted and name == home):
            await _change_node(api, name, lambda there: there.let_go(place.pod))
    if wanted:
        await _change_node(api, home, lambda there: there.only(place.pod, wanted))


async def _change_node(api: KubeApi, name: str, change: Callable[[NodeTaints], NodeTaints]) -> None:
    async def once() -> None:
        node = await api.call(Ask("get", NODES, name=name))
        before = node_taints(node)
        patch = node_patch(node, before, change(before))
        if patch is not None:
            await api.call(Ask("patch", NODES, name=name, body=patch, form=MERGE))

    await _retried(once)


async def note(api: KubeApi, resource: Resource, place: Place, thing: Mapping[str, Any], value: KnobValue) -> None:
    patch = notes_patch(thing, notes_from(value))
    if patch is not None:
        await change_this(api, patch_of(resource, place, of_this(thing, patch), MERGE))


async def evict(api: KubeApi, place: Place, pod: Mapping[str, Any], grace_s: int | None) -> None:
    """Of this very pod: another one that got its name is left alone."""
    options = {"preconditions": {"uid": part(pod, "metadata").get("uid")}}
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": place.name, "namespace": place.namespace},
        "deleteOptions": options if grace_s is None else {**options, "gracePeriodSeconds": grace_s},
    }
    await api.call(Ask("create", PODS, place.namespace, place.name, "eviction", body))


async def turn_workload(api: KubeApi, kind: str, place: Place, workload: Mapping[str, Any], knob: Knob, value: KnobValue) -> None:
    if knob is Knob.ANNOTATION:
        await note(api, WORKLOADS[kind][0], place, workload, value)
    elif knob is Knob.REPLICAS:
        await _scale(api, kind, place, value)
    else:
        raise CallError(ErrorKind.REFUSED, f"{knob.value}: {WHOLE}")


async def _scale(api: KubeApi, kind: str, place: Place, value: KnobValue) -> None:
    if isinstance(value, (str, bool)) or not math.isfinite(value) or value != int(value) or not 0 <= value <= MAX_REPLICAS:
        raise CallError(ErrorKind.REFUSED, f"replicas {value!r} is refused; it must be a whole number from 0 to {MAX_REPLICAS}")
    if why_not := await autoscaled(api, kind, place):
        raise CallError(ErrorKind.REFUSED, f"replicas: {why_not}")
    resource = WORKLOADS[kind][0]

    async def once() -> None:
        scale = await api.call(Ask("get", resource, place.namespace, place.name, "scale"))
        if part(scale, "spec").get("replicas") != int(value):
            version = part(scale, "metadata").get("resourceVersion")
            body = {"metadata": {"resourceVersion": version}, "spec": {"replicas": int(value)}}
            await api.call(patch_of(resource, place, body, MERGE, "scale"))

    await _retried(once)


async def autoscaled(api: KubeApi, kind: str, place: Place) -> str:
    """Why its replicas are an autoscaler's, or cannot be told not to be; empty where they are nobody's."""
    try:
        document = await api.call(Ask("list", AUTOSCALERS, place.namespace, query=(("limit", str(PAGE)),)))
    except ForbiddenError as error:
        return f"it cannot be told whether an autoscaler sets them: {error.message}"
    for scaler in rows(document, "items"):
        target = part(scaler, "spec", "scaleTargetRef")
        if (target.get("kind"), target.get("name")) == (WORKLOADS[kind][1], place.name):
            name = part(scaler, "metadata").get("name")
            return f"the HorizontalPodAutoscaler {name} sets them, and two controllers on one knob would fight"
    if part(document, "metadata").get("continue"):
        return f"there are more than {PAGE} autoscalers in its namespace, so it cannot be told whether one sets them"
    return ""


def of_this(thing: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """``patch`` for this very object: a UID cannot be changed, so another object that has got its name refuses the whole patch.
    The kubelet patches the status of pods in this way."""
    return {**patch, "metadata": {**part(patch, "metadata"), "uid": part(thing, "metadata").get("uid")}}


async def change_this(api: KubeApi, ask: Ask) -> None:
    """A patch by ``of_this``. Raises CallError; of one that another object refused, in words that say so."""
    try:
        await api.call(ask)
    except CallError as error:
        if "metadata.uid" in error.message:
            raise CallError(
                ErrorKind.REFUSED, f"another one has its name by now, so nothing was changed: {error.message}"
            ) from None
        raise


def patch_of(resource: Resource, place: Place, body: Mapping[str, Any], form: str, sub: str = "") -> Ask:
    return Ask("patch", resource, place.namespace, place.name, sub, body, form)


async def _retried(change: Callable[[], Awaitable[None]]) -> None:
    """Read and change anew while somebody else's change comes between; the caller's deadline ends it too."""
    for _ in range(TRIES - 1):
        try:
            return await change()
        except ConflictError:
            continue
    return await change()
