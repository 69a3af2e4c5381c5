"""A FAKE Kubernetes API server, written from the documented shapes of the API; no real cluster is behind it.

Kept, as documented: versions of objects and 409 for a stale one; merge patches (RFC 7386) and the strategic merge of a pod's
conditions by type; the subresources status, scale and eviction; label selectors; taints unique by key and effect (422); RBAC
refusals in the API server's words; Status objects for every error; evictions under a disruption budget (429 with its cause), by a
precondition, with a grace; Leases with optimistic updates. A kubelet is played as far as readiness goes: a pod is Ready where its
containers are and every gate it declares is True.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.unit.loopback import Seen, Server, reply, serving

ADMIN, READER = "token-of-an-admin", "token-of-a-reader"
Thing = dict[str, Any]
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}
_CLUSTER_WIDE = frozenset({"nodes"})


class RefusedError(Exception):
    def __init__(self, code: int, reason: str, message: str, cause: str = "") -> None:
        super().__init__(message)
        details = {"details": {"causes": [{"reason": cause, "message": message}]}} if cause else {}
        self.code = code
        self.body: Thing = {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": code, **details,
        }  # fmt: skip


def pod(name: str, *, node: str = "node-1", gate: bool | None = True, others: tuple[str, ...] = (), **about: Any) -> Thing:
    """A running pod. ``gate``: what its condition for us says, None where it declares the gate and nobody has opened it."""
    gates = [{"conditionType": kind} for kind in ("tailkeeper.io/serve", *others)]
    conditions = [{"type": "ContainersReady", "status": "True"}, *({"type": kind, "status": "True"} for kind in others)]
    if gate is not None:
        conditions.append({"type": "tailkeeper.io/serve", "status": str(gate)})
    return {
        "metadata": {"name": name, "namespace": "llm", "labels": {"app": "vllm"}, **about},
        "spec": {"nodeName": node, "readinessGates": gates, "terminationGracePeriodSeconds": 30},
        "status": {"phase": "Running", "conditions": conditions},
    }


def plain_pod(name: str, node: str = "node-1", **about: Any) -> Thing:
    """A running pod that declares no gate."""
    made = pod(name, node=node, **about)
    del made["spec"]["readinessGates"]
    return made


def node(name: str, *taints: Mapping[str, str]) -> Thing:
    return {"metadata": {"name": name, "labels": {"kubernetes.io/os": "linux"}}, "spec": {"taints": [dict(t) for t in taints]}}


def workload(name: str, replicas: int = 2) -> Thing:
    return {"metadata": {"name": name, "namespace": "llm"}, "spec": {"replicas": replicas}, "status": {"replicas": replicas}}


def autoscaler(kind: str, name: str) -> Thing:
    target = {"apiVersion": "apps/v1", "kind": kind, "name": name}
    return {"metadata": {"name": f"{name}-hpa", "namespace": "llm"}, "spec": {"scaleTargetRef": target}}


class Closing(Protocol):
    async def close(self) -> None: ...


@dataclass
class FakeKubeApi:
    """``things`` by (plural, namespace, name) is the truth; ``log`` has every call as (verb, resource, name)."""

    things: dict[tuple[str, str, str], Thing] = field(default_factory=dict)
    log: list[tuple[str, str, str]] = field(default_factory=list)
    denied: set[tuple[str, str]] = field(default_factory=set)
    """(verb, resource) that RBAC allows nobody."""
    disruptions_allowed: int = 1
    meanwhile: list[tuple[str, str, str]] = field(default_factory=list)
    """Things that somebody else changes just before the next patch of them, once each."""
    lying: bool = False
    """Answers changes as if they were made."""
    busy: bool = False
    down: bool = False
    most_at_once: int = 0
    clients: list[Closing] = field(default_factory=list)
    """Closed at the end."""
    server: Server = field(default_factory=lambda: Server(""))
    _at_once: int = 0
    _version: int = 100

    def put(self, plural: str, *things: Thing) -> None:
        for thing in things:
            about = thing["metadata"]
            about.setdefault("uid", f"uid-{plural}-{about['name']}-{self._version}")
            self.things[plural, about.get("namespace", ""), about["name"]] = thing
            self._touch(thing)

    def thing(self, plural: str, name: str, namespace: str = "llm") -> Thing:
        return self.things[plural, "" if plural in _CLUSTER_WIDE else namespace, name]

    def in_endpoints(self, name: str) -> bool:
        """Whether a Service would send the pod something: it is Ready and not ending."""
        found = self.things.get(("pods", "llm", name))
        if found is None or "deletionTimestamp" in found["metadata"]:
            return False
        return any(c["type"] == "Ready" and c["status"] == "True" for c in found["status"]["conditions"])

    def taints(self, name: str) -> list[str]:
        rows = self.thing("nodes", name)["spec"].get("taints") or []
        return sorted(f"{row['key']}={row.get('value', '')}:{row['effect']}" for row in rows)

    def writes(self) -> list[tuple[str, str, str]]:
        return [call for call in self.log if call[0] not in ("get", "list")]

    def kubeconfig(self, folder: Path, token: str = ADMIN) -> Path:
        return kubeconfig(folder, self.server.url, token)

    async def handle(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        await asyncio.sleep(0)
        try:
            if self.down:
                writer.close()
                return
            code, body = self._answer(seen)
        except RefusedError as refused:
            code, body = refused.code, refused.body
        finally:
            self._at_once -= 1
        await reply(code, body, "content-type: application/json")(seen, writer)

    def _answer(self, seen: Seen) -> tuple[int, Thing]:
        if self.busy:
            raise RefusedError(429, "TooManyRequests", "too many requests, please try again later")
        parts = urlsplit(seen.path)
        plural, namespace, name, sub = _taken_apart(parts.path)
        verb = _VERBS.get(seen.method, "get" if name else "list")
        resource = f"{plural}/{sub}" if sub else plural
        self._allow(seen, verb, resource, namespace, name)
        self.log.append((verb, resource, name))
        if verb == "list":
            return 200, self._list(plural, namespace, parse_qs(parts.query))
        if verb == "create" and not sub:
            return 201, self._create(plural, seen.json)
        thing = self.things.get((plural, namespace, name))
        if thing is None:
            raise RefusedError(404, "NotFound", f'{plural} "{name}" not found')
        if sub == "eviction":
            return 201, self._evict(thing, seen.json)
        if verb == "get":
            return 200, _scale_of(thing) if sub == "scale" else thing
        return 200, self._change(plural, thing, sub, seen)

    def _allow(self, seen: Seen, verb: str, resource: str, namespace: str, name: str) -> None:
        token = seen.headers.get("authorization", "")
        if token not in (f"Bearer {ADMIN}", f"Bearer {READER}"):
            raise RefusedError(401, "Unauthorized", "Unauthorized")
        may = token == f"Bearer {ADMIN}" or verb in ("get", "list")
        if not may or (verb, resource) in self.denied:
            where = f' in the namespace "{namespace}"' if namespace else " at the cluster scope"
            said = f'User "system:serviceaccount:llm:tailkeeper" cannot {verb} resource "{resource}"{where}'
            raise RefusedError(403, "Forbidden", f'{resource} "{name}" is forbidden: {said}')

    def _list(self, plural: str, namespace: str, query: Mapping[str, list[str]]) -> Thing:
        wanted = [pair.split("=") for pair in ",".join(query.get("labelSelector", [])).split(",") if pair]
        items = [thing for (kind, space, _), thing in sorted(self.things.items()) if (kind, space) == (plural, namespace)]
        labels = [(thing["metadata"].get("labels") or {}, thing) for thing in items]
        found = [thing for has, thing in labels if all(has.get(key) == value for key, value in wanted)]
        limit = int(query["limit"][0])
        more = {"continue": "token"} if len(found) > limit else {}
        return {"kind": "List", "metadata": {"resourceVersion": str(self._version), **more}, "items": found[:limit]}

    def _create(self, plural: str, thing: Thing) -> Thing:
        about = thing["metadata"]
        if (plural, about["namespace"], about["name"]) in self.things:
            raise RefusedError(409, "AlreadyExists", f'{plural} "{about["name"]}" already exists')
        self.put(plural, thing)
        return thing

    def _change(self, plural: str, thing: Thing, sub: str, seen: Seen) -> Thing:
        name, body = thing["metadata"]["name"], seen.json
        if (key := (plural, thing["metadata"].get("namespace", ""), name)) in self.meanwhile:
            self.meanwhile.remove(key)
            self._touch(thing)
        about = body.get("metadata") or {}
        assert isinstance(about, dict)
        if (uid := about.get("uid")) is not None and uid != thing["metadata"]["uid"]:
            # What the API server makes of it: a UID is immutable, whatever the form of the patch.
            said = f'"{name}" is invalid: metadata.uid: Invalid value: "{uid}": field is immutable'
            raise RefusedError(422, "Invalid", said)
        version = about.get("resourceVersion")
        if version is not None and version != thing["metadata"]["resourceVersion"]:
            message = f'Operation cannot be fulfilled on {plural} "{name}": the object has been modified'
            raise RefusedError(409, "Conflict", message)
        if self.lying:
            return thing
        changed = self._changed(thing, sub, seen, body)
        if plural == "nodes":
            _check_taints(changed)
        thing.clear()
        thing.update(changed)
        self._touch(thing)
        return _scale_of(thing) if sub == "scale" else thing

    def _changed(self, thing: Thing, sub: str, seen: Seen, body: Mapping[str, Any]) -> Thing:
        if seen.method == "PUT":
            assert body["metadata"]["resourceVersion"], "an update of a Lease without a version would not be optimistic"
            return {**body, "metadata": {**thing["metadata"], **body["metadata"]}}
        form = seen.headers["content-type"]
        if sub == "status":
            assert form == "application/strategic-merge-patch+json", "a merge patch would replace every condition"
            return _with_conditions(thing, body["status"]["conditions"])
        assert form == "application/merge-patch+json"
        return _merged(thing, {**body, "metadata": {**(body.get("metadata") or {}), "resourceVersion": None}})

    def _evict(self, thing: Thing, eviction: Mapping[str, Any]) -> Thing:
        assert (eviction["apiVersion"], eviction["kind"]) == ("policy/v1", "Eviction")
        options = eviction.get("deleteOptions") or {}
        uid = (options.get("preconditions") or {}).get("uid")
        if uid is not None and uid != thing["metadata"]["uid"]:
            raise RefusedError(409, "Conflict", f"Precondition failed: UID in precondition: {uid}")
        if self.disruptions_allowed <= 0:
            message = "Cannot evict pod as it would violate the pod's disruption budget."
            raise RefusedError(429, "TooManyRequests", message, cause="DisruptionBudget")
        self.disruptions_allowed -= 1
        grace = options.get("gracePeriodSeconds", thing["spec"]["terminationGracePeriodSeconds"])
        thing["metadata"] |= {"deletionTimestamp": "2026-11-29T00:00:30Z", "deletionGracePeriodSeconds": grace}
        self._touch(thing)
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}

    def _touch(self, thing: Thing) -> None:
        self._version += 1
        thing["metadata"]["resourceVersion"] = str(self._version)
        if "readinessGates" in thing.get("spec", {}) or "conditions" in thing.get("status", {}):
            _play_kubelet(thing)


def _taken_apart(path: str) -> tuple[str, str, str, str]:
    """(plural, namespace, name, subresource) of a documented path."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = parts[1] if parts[0] == "namespaces" else ""
    rest = [*(parts[2:] if namespace else parts), "", ""]
    return rest[0], namespace, rest[1], rest[2]


def _merged(thing: Any, patch: Mapping[str, Any]) -> Thing:
    """RFC 7386."""
    result = dict(thing) if isinstance(thing, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value) if isinstance(value, dict) else value
    return result


def _with_conditions(thing: Thing, rows: list[Thing]) -> Thing:
    """The strategic merge of a pod's conditions: by type, field by field."""
    by_type = {row["type"]: row for row in thing["status"]["conditions"]}
    for row in rows:
        by_type[row["type"]] = {**by_type.get(row["type"], {}), **row}
    return {**thing, "status": {**thing["status"], "conditions": list(by_type.values())}}


def _play_kubelet(thing: Thing) -> None:
    by_type = {row["type"]: row["status"] for row in thing["status"]["conditions"]}
    needed = ["ContainersReady", *(gate["conditionType"] for gate in thing["spec"].get("readinessGates", []))]
    ready = all(by_type.get(kind) == "True" for kind in needed)
    rows = [row for row in thing["status"]["conditions"] if row["type"] != "Ready"]
    thing["status"]["conditions"] = [*rows, {"type": "Ready", "status": str(ready)}]


def _scale_of(thing: Thing) -> Thing:
    about = {key: thing["metadata"][key] for key in ("name", "namespace", "resourceVersion")}
    spec = {"replicas": thing["spec"]["replicas"]}
    return {"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": about, "spec": spec, "status": thing["status"]}


def _check_taints(thing: Thing) -> None:
    rows = thing["spec"].get("taints") or []
    if len({(row["key"], row["effect"]) for row in rows}) != len(rows):
        raise RefusedError(422, "Invalid", "spec.taints: taints must be unique by key and effect pair")


def kubeconfig(folder: Path, url: str, token: str = ADMIN) -> Path:
    """A kubeconfig that leads to ``url``."""
    document = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": token}}],
    }  # fmt: skip
    file = folder / f"kubeconfig-{token}"
    file.write_text(yaml.safe_dump(document))
    return file


@asynccontextmanager
async def fake_kube_api(**things: Thing | list[Thing]) -> AsyncIterator[FakeKubeApi]:
    """``things`` by their plural."""
    fake = FakeKubeApi()
    for plural, some in things.items():
        fake.put(plural, *(some if isinstance(some, list) else [some]))
    async with serving(fake.handle) as server:
        fake.server = server
        try:
            yield fake
        finally:
            for client in fake.clients:
                await client.close()


def held_by(fake: FakeKubeApi, name: str) -> Iterator[str]:
    """Who holds a taint of that node, as the node says itself."""
    text = (fake.thing("nodes", name)["metadata"].get("annotations") or {}).get("tailkeeper.io/taints", "{}")
    for entry in json.loads(text).values():
        yield from entry["holders"]
