"""Backends from Kubernetes: the pods of a namespace that a label selector names. Reads, and never writes.

A full LIST in pages each time; no watch is trusted. A pod is a backend while it has an address, its containers run and it is not
being deleted; whether it is ready is not asked, because an engine that is not ready is what we are here to see. The extra
``kubernetes`` is imported at the first listing and not before.

The pod's labels are the backend's, with its namespace and node. Labels and annotations with the prefix ``tailkeeper/`` set keys:
``tailkeeper/model: meta-llama/Llama-3.1-8B`` must be an annotation, for a label's value may hold no slash.
Bounds: ``PAGE_SIZE`` pods a page, ``MAX_PAGES`` pages, ``MAX_PAGE_BYTES`` each, one deadline for all.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tailkeeper_exporter import kubernetes_access
from tailkeeper_exporter.discovery.base import (
    KEY_LABELS,
    MAX_TARGETS,
    DiscoveryError,
    Found,
    Listing,
    cut_note,
    found,
    host_port,
)
from tailkeeper_exporter.settings import KubernetesDiscovery

PAGE_SIZE = 500
MAX_PAGES = MAX_TARGETS // PAGE_SIZE
MAX_PAGE_BYTES = 16 * 1024 * 1024
"""A pod's document has 5 to 30 kB."""
PREFIX = "tailkeeper/"
_GONE = 410
"""The list that the pages are of is too old: begin anew."""
Pods = list[Mapping[str, Any]]


class _ExpiredError(Exception):
    """The continue token is not valid any more."""


class KubernetesLister:
    """A ``Lister`` over the pods of one namespace."""

    def __init__(self, settings: KubernetesDiscovery) -> None:
        self._settings = settings

    async def list(self, deadline_s: float) -> Listing:
        try:
            async with asyncio.timeout(deadline_s):
                return self._listing(await self._pods())
        except TimeoutError as error:
            raise DiscoveryError(f"{self._where}: no answer within {deadline_s:g} s") from error

    @property
    def _where(self) -> str:
        return f"kubernetes namespace {self._settings.namespace}"

    async def _pods(self) -> Pods:
        async with self._api() as api:
            try:
                return await self._all_pages(api)
            except _ExpiredError:
                # Once anew; a server that forgets its lists faster than we read them is a failure.
                try:
                    return await self._all_pages(api)
                except _ExpiredError as error:
                    raise DiscoveryError(f"{self._where}: the list expired twice while it was read (410)") from error

    @asynccontextmanager
    async def _api(self) -> AsyncIterator[Any]:
        """The API with credentials read now: a service account's token and a kubeconfig are rotated."""
        try:
            configuration = await kubernetes_access.configuration(self._settings.kubeconfig, self._settings.in_cluster)
        except kubernetes_access.AccessError as error:
            raise DiscoveryError(f"{self._where}: {error}") from error
        import aiohttp
        from kubernetes_asyncio import client

        try:
            async with client.ApiClient(configuration) as connection:
                yield client.CoreV1Api(connection)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise DiscoveryError(f"{self._where}: {type(error).__name__}: {kubernetes_access.short(error)}") from error

    async def _all_pages(self, api: Any) -> Pods:
        pods: Pods = []
        token: str | None = None
        for _ in range(MAX_PAGES):
            document = await self._page(api, token)
            pods += document["items"]
            token = document["metadata"].get("continue") or None
            if token is None:
                return pods
        raise DiscoveryError(f"{self._where}: {self._settings.selector!r} selects more than {MAX_TARGETS} pods; select fewer")

    async def _page(self, api: Any, token: str | None) -> Any:
        more = {} if token is None else {"_continue": token}
        # The client's own models take a millisecond for each pod, and read an answer of any size.
        response = await api.list_namespaced_pod(
            self._settings.namespace,
            label_selector=self._settings.selector,
            limit=PAGE_SIZE,
            _preload_content=False,
            **more,
        )
        try:
            body = await _bounded(response, self._where)
        finally:
            response.release()
        if response.status == _GONE and token is not None:
            raise _ExpiredError
        if response.status != 200:
            raise DiscoveryError(f"{self._where}: {_refusal(response.status, body, self._settings)}")
        return _checked(body, self._where)

    def _listing(self, pods: Pods) -> Listing:
        backends = [_backend(pod, self._settings.port) for pod in pods if _runs(pod)]
        return Listing(tuple(backend for backend, _ in backends), cut_note((backend.name, cut) for backend, cut in backends))


async def _bounded(response: Any, where: str) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MAX_PAGE_BYTES:
            raise DiscoveryError(f"{where}: a page of {PAGE_SIZE} pods is larger than {MAX_PAGE_BYTES} bytes")
    return bytes(body)


def _refusal(status: int, body: bytes, settings: KubernetesDiscovery) -> str:
    """What a refusal means and what to do about it."""
    if status == 401:
        return "HTTP 401: the credentials are not accepted; is the token or the kubeconfig out of date?"
    if status == 403:
        return (
            f"HTTP 403: may not list pods; a Role in namespace {settings.namespace} needs "
            '{apiGroups: [""], resources: [pods], verbs: [list]}, bound to the account this runs as'
        )
    try:
        said = str(json.loads(body)["message"])[:200]
    except (ValueError, KeyError, TypeError, RecursionError):
        said = "no reason given"
    return f"HTTP {status}: {said}"


def _checked(body: bytes, where: str) -> Any:
    """A PodList as far as it is read here. Raises ``DiscoveryError``."""
    try:
        document = json.loads(body)
        if isinstance(document["metadata"], dict) and all(_is_pod(item) for item in document["items"]):
            return document
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise DiscoveryError(f"{where}: the answer is not a list of pods")


def _is_pod(item: Any) -> bool:
    about = item["metadata"]
    texts = {**(about.get("labels") or {}), **(about.get("annotations") or {})}
    named = isinstance(about["name"], str) and isinstance(about["namespace"], str)
    return named and isinstance(item["status"], dict) and all(isinstance(text, str) for text in texts.values())


def _runs(pod: Mapping[str, Any]) -> bool:
    """Whether there is an engine to watch. A pending pod has no running container, even where it has an address."""
    status = pod["status"]
    return status.get("phase") == "Running" and bool(status.get("podIP")) and not pod["metadata"].get("deletionTimestamp")


def _backend(pod: Mapping[str, Any], port: int) -> tuple[Found, tuple[str, ...]]:
    about = pod["metadata"]
    labels, annotations = about.get("labels") or {}, about.get("annotations") or {}
    ours = {n.removeprefix(PREFIX): v for texts in (labels, annotations) for n, v in texts.items() if n.startswith(PREFIX)}
    node = (pod.get("spec") or {}).get("nodeName")
    said = {
        # A pod's own `model` or `engine` may mean something else to those who set it.
        **{name: value for name, value in labels.items() if name not in KEY_LABELS and not name.startswith(PREFIX)},
        "namespace": about["namespace"],
        **({"node": str(node)} if node else {}),
        **ours,
    }
    return found(f"{about['namespace']}/{about['name']}", f"http://{host_port(str(pod['status']['podIP']), port)}", said)
