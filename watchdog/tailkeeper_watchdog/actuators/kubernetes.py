"""Kubernetes through its API: notes, taints and readiness of a pod, notes and replicas of a Deployment or StatefulSet.

A server is ``NAMESPACE/NAME``, which the API is asked about (a pod of that name, else a deployment), or says what it is:
``NAMESPACE/pod/NAME``, ``NAMESPACE/deployment/NAME``, ``NAMESPACE/statefulset/NAME``. Nothing is remembered between calls.

* Drain closes the readiness gate ``tailkeeper.io/serve`` of a pod that declares it: its Services send it nothing new, and opening
  it takes that back. The first opening is not ours: while we are down, new pods must still come up. A pod without the gate is
  not drained, unless the settings say ``evict``: then a drain deletes it, under its disruption budgets, for good.
* A taint is the node's and is counted there (``kube_taints``), so it is found and taken back also when its pod is gone.
* Replicas are set where no autoscaler does: two controllers would fight over one knob.

Credentials are read anew every few seconds: tokens rotate.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from tailkeeper_exporter import kubernetes_access
from tailkeeper_watchdog.actuators.calls import CallError, turn
from tailkeeper_watchdog.actuators.contract import Actuator, ActuatorError, ErrorKind, ServerState, Support
from tailkeeper_watchdog.actuators.kube_api import PODS, STRATEGIC, KubeApi, KubeConnection, installed
from tailkeeper_watchdog.actuators.kube_objects import (
    GATE,
    Place,
    condition,
    declares_gate,
    gate_patch,
    is_ending,
    notes_of,
    notes_text,
    part,
    place_of,
    serves_but_for_gate,
)
from tailkeeper_watchdog.actuators.kube_steps import (
    NO_NODE,
    WHOLE,
    WORKLOADS,
    Tainted,
    autoscaled,
    change_this,
    evict,
    found,
    hold_taint,
    note,
    of_this,
    patch_of,
    tainted_nodes,
    turn_workload,
)
from tailkeeper_watchdog.gateways import Gateway, KubernetesGateway
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, KnobValue

KIND = "kubernetes"
READS_AT_ONCE = 8
"""GETs in flight during one ``read``: the API server's own limit for one client is hundreds a second."""
CAN = (Knob.ADMISSION, Knob.ANNOTATION, Knob.TAINT, Knob.REPLICAS)
_NO_WEIGHT = "a Service of Kubernetes spreads evenly and has no weights"
_NOT_INSIDE = "Kubernetes knows nothing of what goes on inside an engine"
_ONE_POD = "a pod is one; name its deployment as another server of this gateway"
_NO_GATE = f"the pod declares no readiness gate {GATE}, and without one only its end takes it out of its Service"
_NOT_OPENED = f"nobody has opened its readiness gate {GATE} yet, so it is not serving; whoever starts it must (docs/gateways.md)"


def admission_of(pod: Mapping[str, Any], evicts: bool) -> tuple[str | None, str]:
    """Serve or drain; or None, and why it cannot be switched."""
    if evicts:
        return (DRAIN if is_ending(pod) else SERVE), ""
    if not declares_gate(pod):
        return None, _NO_GATE
    gate = condition(pod, GATE)
    return (None, _NOT_OPENED) if gate is None else (SERVE if gate == "True" else DRAIN, "")


def pod_state(place: Place, pod: Mapping[str, Any], tainted: Tainted, evicts: bool) -> ServerState:
    """A pod that is ending is out of service, whoever ended it."""
    values: dict[Knob, KnobValue] = {Knob.ANNOTATION: notes_text(notes_of(pod))}
    cannot = {Knob.REPLICAS: _ONE_POD}
    admission, why_not = admission_of(pod, evicts)
    if admission is None:
        cannot[Knob.ADMISSION] = why_not
    else:
        values[Knob.ADMISSION] = admission
    held = tainted.of(place.pod)
    if tainted.why_not or not (held or part(pod, "spec").get("nodeName")):
        cannot[Knob.TAINT] = tainted.why_not or NO_NODE
    else:
        values[Knob.TAINT] = held
    ready = serves_but_for_gate(pod) and why_not != _NOT_OPENED and (not evicts or condition(pod, "Ready") == "True")
    return ServerState(values, in_service=ready, cannot=cannot)


def workload_state(workload: Mapping[str, Any], why_not: str) -> ServerState:
    """``why_not`` is why its replicas are not ours to set, empty where they are."""
    values: dict[Knob, KnobValue] = {Knob.ANNOTATION: notes_text(notes_of(workload))}
    replicas = part(workload, "spec").get("replicas")
    if isinstance(replicas, int) and not isinstance(replicas, bool) and 0 <= replicas < 2**31:
        values[Knob.REPLICAS] = float(replicas)
    cannot = {Knob.ADMISSION: WHOLE, Knob.TAINT: WHOLE, **({Knob.REPLICAS: why_not} if why_not else {})}
    return ServerState(values, cannot=cannot)


class KubernetesActuator:
    """One cluster. Satisfies ``Actuator``. ``wall`` gives epoch seconds, for the times that people read in a condition."""

    kind = KIND

    def __init__(self, settings: KubernetesGateway, wall: Callable[[], float] = time.time) -> None:
        self.name = settings.name
        self._settings = settings
        self._wall = wall
        self._connection = KubeConnection(settings.kubeconfig, settings.in_cluster)
        self._lock = asyncio.Lock()

    def supports(self, knob: Knob) -> Support:
        if not installed():
            return Support(False, kubernetes_access.INSTALL)
        if knob in CAN:
            return Support(True)
        return Support(False, _NO_WEIGHT if knob is Knob.WEIGHT else _NOT_INSIDE)

    async def read(self, servers: tuple[str, ...], deadline_s: float) -> Mapping[str, ServerState]:
        """A server that cannot be read is given with no values and the reason as its doubt."""
        async with turn(self._lock, self.name, "*", deadline_s) as ends_at:
            async with asyncio.timeout_at(ends_at):
                api = await self._connection.opened()
                tainted = await tainted_nodes(api) if any(map(_may_be_pod, servers)) else Tainted({})
            gate = asyncio.Semaphore(READS_AT_ONCE)
            answers = await asyncio.gather(*(self._one(api, server, tainted, gate, ends_at) for server in servers))
        errors = [answer for answer in answers if isinstance(answer, ActuatorError)]
        if errors and len(errors) == len(answers):
            raise errors[0]
        doubtful = [ServerState({}, doubt=str(a)) if isinstance(a, ActuatorError) else a for a in answers]
        return {server: state for server, state in zip(servers, doubtful, strict=True) if state is not None}

    async def _one(
        self, api: KubeApi, server: str, tainted: Tainted, gate: asyncio.Semaphore, ends_at: float
    ) -> ServerState | ActuatorError | None:
        """None for a server that the cluster does not know."""
        try:
            async with asyncio.timeout_at(ends_at), gate:
                place = place_of(server)
                return None if place is None else await self._state(api, place, tainted)
        except CallError as error:
            return error.of(self.name, server)
        except TimeoutError:
            return ActuatorError(ErrorKind.TIMEOUT, self.name, server, "no answer before the deadline")

    async def _state(self, api: KubeApi, place: Place, tainted: Tainted) -> ServerState | None:
        kind, thing = await found(api, place)
        if kind in WORKLOADS and thing is not None:
            return workload_state(thing, await autoscaled(api, kind, place))
        if thing is not None:
            return pod_state(place, thing, tainted, self._settings.evict)
        held = tainted.of(place.pod) if place.kind in ("", "pod") else ""
        # The pod is gone and its node is still tainted for it: known, so that it can be taken back.
        return ServerState({Knob.TAINT: held}, in_service=False) if held else None

    async def write(self, server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
        async with turn(self._lock, self.name, server, deadline_s) as ends_at, asyncio.timeout_at(ends_at):
            place = place_of(server)
            if place is None:
                raise CallError(ErrorKind.NOT_FOUND, "no name of a server; write NAMESPACE/POD or NAMESPACE/deployment/NAME")
            for knob in values:
                if not (support := self.supports(knob)).enforceable:
                    raise CallError(ErrorKind.REFUSED, f"{knob.value}: {support.why_not}")
            await self._write(await self._connection.opened(), place, values)

    async def _write(self, api: KubeApi, place: Place, values: Mapping[Knob, KnobValue]) -> None:
        """A drain comes first, and traffic is let in last."""
        kind, thing = await found(api, place)
        gone = thing is None and kind == "pod" and values.keys() == {Knob.TAINT} and values[Knob.TAINT] == ""
        if thing is None and not gone:
            raise CallError(ErrorKind.NOT_FOUND, f"there is no {place.kind or 'pod or deployment'} of that name")
        let_in = values.get(Knob.ADMISSION) == SERVE
        for knob in sorted(values, key=lambda knob: (knob is Knob.ADMISSION) == let_in):
            if kind == "pod":
                await self._turn_pod(api, place, thing or {}, knob, values[knob])
            else:
                await turn_workload(api, kind, place, thing or {}, knob, values[knob])

    async def _turn_pod(self, api: KubeApi, place: Place, pod: Mapping[str, Any], knob: Knob, value: KnobValue) -> None:
        if knob is Knob.ADMISSION:
            await self._admit(api, place, pod, value)
        elif knob is Knob.ANNOTATION:
            await note(api, PODS, place, pod, value)
        elif knob is Knob.TAINT:
            await hold_taint(api, place, str(part(pod, "spec").get("nodeName") or ""), value)
        else:
            raise CallError(ErrorKind.REFUSED, f"{knob.value}: {_ONE_POD}")

    async def _admit(self, api: KubeApi, place: Place, pod: Mapping[str, Any], value: KnobValue) -> None:
        if value not in (SERVE, DRAIN):
            raise CallError(ErrorKind.REFUSED, f"admission {value!r} is not known; allowed: {SERVE}, {DRAIN}")
        there, why_not = admission_of(pod, self._settings.evict)
        if there is None:
            raise CallError(ErrorKind.REFUSED, f"admission: {why_not}")
        if there == value:
            return
        if not self._settings.evict:
            now = datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            await change_this(api, patch_of(PODS, place, of_this(pod, gate_patch(value == SERVE, now)), STRATEGIC, "status"))
        elif value == SERVE:
            raise CallError(
                ErrorKind.REFUSED, "admission: the pod is ending and cannot be brought back; its successor is another"
            )
        else:
            await evict(api, place, pod, self._settings.evict_grace_s)

    async def close(self) -> None:
        await self._connection.close()


def _may_be_pod(server: str) -> bool:
    """Nodes are looked at for pods alone: in a large cluster a list of nodes is the dearest call here."""
    place = place_of(server)
    return place is not None and place.kind in ("", "pod")


def create(settings: Gateway) -> Actuator:
    """Raises TypeError for another gateway's settings."""
    if not isinstance(settings, KubernetesGateway):
        raise TypeError(f"kubernetes cannot be made from {type(settings).__name__}")
    return KubernetesActuator(settings)
