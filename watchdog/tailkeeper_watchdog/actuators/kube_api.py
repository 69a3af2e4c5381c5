"""The Kubernetes API, one JSON document at a time: paths, the verbs of RBAC, bounded answers, refusals sorted. Knows no knob.

The client of the extra ``kubernetes`` is used for what is hard about it: kubeconfigs, rotating tokens, the cluster's authority.
It is imported at the first call. Its typed models are not used: they take a millisecond for each object and read an answer of any
size. Proxies of the environment are used, as by kubectl.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tailkeeper_exporter import kubernetes_access, long_json, strict_json
from tailkeeper_watchdog.actuators.calls import CallError, excerpt
from tailkeeper_watchdog.actuators.contract import ErrorKind

ANSWER_LIMIT_BYTES = 16 * 1024 * 1024
"""etcd keeps 1.5 MB an object at most; a page of 500 nodes, the largest thing asked for here, has some 10 MB."""
PAGE = 500
"""Objects of one list. What has more is not read further, and said so."""
REREAD_S = 5.0
"""Cheap enough for every few seconds (a kubeconfig takes 9 ms), and a token is replaced minutes before it runs out."""
MERGE = "application/merge-patch+json"
"""A patch by RFC 7386: lists are replaced whole."""
STRATEGIC = "application/strategic-merge-patch+json"
"""A patch that knows the API's types: the conditions of a pod are merged by their type."""
_METHODS = {"get": "GET", "list": "GET", "patch": "PATCH", "update": "PUT", "create": "POST"}
_PDB_CAUSE = "DisruptionBudget"
"""The cause in a Status that tells a disruption budget's no from the API server's own rate limit; both are 429."""


@dataclass(frozen=True, slots=True)
class Resource:
    """Objects of one kind: where they are in the API, and what RBAC calls them."""

    group: str
    version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str, name: str, sub: str) -> str:
        base = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        place = f"{base}/namespaces/{quote(namespace, safe='')}" if self.namespaced else base
        return "/".join(part for part in (place, self.plural, quote(name, safe=""), sub) if part)


PODS = Resource("", "v1", "pods")
NODES = Resource("", "v1", "nodes", namespaced=False)
DEPLOYMENTS = Resource("apps", "v1", "deployments")
STATEFULSETS = Resource("apps", "v1", "statefulsets")
AUTOSCALERS = Resource("autoscaling", "v2", "horizontalpodautoscalers")
LEASES = Resource("coordination.k8s.io", "v1", "leases")


class ConflictError(CallError):
    """409: somebody changed the object since it was read, or another one has its name by now. Read again before repeating."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorKind.REFUSED, message)


class ForbiddenError(CallError):
    """403: the account may not do it; the message has the rule that is missing."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorKind.UNAUTHORIZED, message)


@dataclass(frozen=True, slots=True)
class Ask:
    """One call. ``verb`` is RBAC's: get, list, patch, update, create."""

    verb: str
    resource: Resource
    namespace: str = ""
    name: str = ""
    sub: str = ""
    body: Mapping[str, Any] | None = None
    form: str = "application/json"
    query: tuple[tuple[str, str], ...] = ()

    @property
    def what(self) -> str:
        """As RBAC names it."""
        return f"{self.resource.plural}/{self.sub}" if self.sub else self.resource.plural

    @property
    def rule(self) -> str:
        """The rule that a role must have for this."""
        role = f"a Role in namespace {self.namespace}" if self.resource.namespaced else "a ClusterRole"
        return f'{role} needs {{apiGroups: ["{self.resource.group}"], resources: [{self.what}], verbs: [{self.verb}]}}'


def installed() -> bool:
    """Whether the extra ``kubernetes`` is there. Imports nothing."""
    return importlib.util.find_spec("kubernetes_asyncio") is not None


class KubeApi:
    """An open connection. Has no deadline of its own."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.rejected = False
        """Its credentials were not accepted: what is in their files by now may be."""

    async def call(self, ask: Ask) -> Mapping[str, Any]:
        """The object, or list, that answers. Raises CallError; ConflictError and ForbiddenError are of that kind."""
        status, body = await self._exchange(ask)
        self.rejected = status == 401
        if not 200 <= status < 300:
            raise refusal(ask, status, body)
        return _checked(ask, await long_json.parsed(body, _document))

    async def _exchange(self, ask: Ask) -> tuple[int, bytes]:
        import aiohttp

        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "Content-Type": ask.form}
        try:
            response = await self._connection.call_api(
                ask.resource.path(ask.namespace, ask.name, ask.sub),
                _METHODS[ask.verb],
                query_params=list(ask.query),
                header_params=headers,
                body=ask.body,
                auth_settings=["BearerToken"],
                _preload_content=False,
            )
            try:
                return response.status, await _bounded(response)
            finally:
                response.release()
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
            raise CallError(ErrorKind.UNREACHABLE, f"cannot connect: {excerpt(str(error))}") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # Its text may quote a header, so only its type is told.
            raise CallError(ErrorKind.PROTOCOL, f"the connection broke before the answer ({type(error).__name__})") from None


class KubeConnection:
    """A way into one cluster, kept open between calls: to make a TLS context stops the whole program for 100 ms.

    Credentials are read again every ``REREAD_S`` and after a 401; where only a token is new, the connection stays.
    """

    def __init__(self, kubeconfig: Path | None, in_cluster: bool) -> None:
        self._kubeconfig = kubeconfig
        self._in_cluster = in_cluster
        self._api: KubeApi | None = None
        self._client: Any = None
        self._made_from: tuple[object, ...] = ()
        self._read_at = 0.0

    async def opened(self) -> KubeApi:
        """Raises CallError(UNAUTHORIZED) where there is no way in."""
        now = asyncio.get_running_loop().time()
        if self._api is None or self._api.rejected or now - self._read_at >= REREAD_S:
            self._api = await self._reread()
            self._read_at = now
        return self._api

    async def _reread(self) -> KubeApi:
        try:
            configuration = await kubernetes_access.configuration(self._kubeconfig, self._in_cluster)
        except kubernetes_access.AccessError as error:
            raise CallError(ErrorKind.UNAUTHORIZED, str(error)) from error
        made_from = tuple(_trait(configuration, name) for name in _TRAITS)
        if self._client is None or made_from != self._made_from:
            await self.close()
            self._client, self._made_from = _client(configuration), made_from
        self._client.configuration = configuration
        return KubeApi(self._client)

    async def close(self) -> None:
        client, self._client, self._api = self._client, None, None
        if client is not None:
            await client.close()


_TRAITS = ("host", "ssl_ca_cert", "cert_file", "key_file", "verify_ssl", "tls_server_name", "proxy")
"""What a connection is made from. A token is not among it: that goes with each call."""


def _trait(configuration: Any, name: str) -> object:
    """Of a file also when it was written: an authority may be replaced in its place."""
    value = getattr(configuration, name, None)
    if name in ("ssl_ca_cert", "cert_file", "key_file") and value:
        try:
            return value, Path(value).stat().st_mtime_ns
        except OSError:
            return value, None
    return value


def _client(configuration: Any) -> Any:
    from kubernetes_asyncio import client

    try:
        made: Any = client.ApiClient(configuration)
        made.rest_client.pool_manager = _Straight(made.rest_client.pool_manager)
        return made
    except (OSError, ValueError) as error:
        message = f"no usable credentials: {type(error).__name__} in a certificate of the kubeconfig"
        raise CallError(ErrorKind.UNAUTHORIZED, message) from None


class _Straight:
    """The client's session, and no redirect is followed: a change must not go where a proxy in between sends it."""

    def __init__(self, session: Any) -> None:
        self._session = session

    async def request(self, **arguments: Any) -> Any:
        return await self._session.request(allow_redirects=False, **arguments)

    async def close(self) -> None:
        await self._session.close()


async def _bounded(response: Any) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > ANSWER_LIMIT_BYTES:
            raise CallError(ErrorKind.PROTOCOL, f"the answer is longer than {ANSWER_LIMIT_BYTES} bytes")
    return bytes(body)


def _document(body: bytes) -> Mapping[str, Any]:
    try:
        document = strict_json.loads_any(body)
    except (ValueError, RecursionError):
        raise CallError(ErrorKind.PROTOCOL, f"the answer is not JSON: {excerpt(body[:400].decode('latin-1'))}") from None
    if not isinstance(document, dict):
        raise CallError(ErrorKind.PROTOCOL, f"the answer must be a JSON object, not {type(document).__name__}")
    return document


def _checked(ask: Ask, document: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was asked for and nothing else: a list, or the object of that name. Raises CallError(PROTOCOL)."""
    about = document.get("metadata")
    listed = ask.verb == "list" and "items" in document
    named = isinstance(about, dict) and about.get("name") == ask.name
    if listed or named or ask.verb == "create":
        return document
    raise CallError(ErrorKind.PROTOCOL, f"the answer is not what was asked for in {ask.what}")


def refusal(ask: Ask, status: int, body: bytes) -> CallError:
    """What an answer that is not 2xx means, and what to do about it."""
    said, causes = _said(body)
    words = f": {said}" if said else ""
    if status == 401:
        return CallError(
            ErrorKind.UNAUTHORIZED, "401: the credentials are not accepted; is the token or the kubeconfig out of date?"
        )
    if status == 403 and _PDB_CAUSE not in causes:
        return ForbiddenError(f"403: may not {ask.verb} {ask.what}; {ask.rule}")
    if _PDB_CAUSE in causes:
        return CallError(ErrorKind.REFUSED, f"{status}: a PodDisruptionBudget does not let it be evicted now{words}")
    if status == 404:
        return CallError(ErrorKind.NOT_FOUND, f"404: there is no such thing in {ask.what}{words}")
    if status == 409:
        return ConflictError(f"409: it was changed by somebody else meanwhile{words}")
    if status == 429:
        return CallError(ErrorKind.UNREACHABLE, "429: the API server is too busy and took nothing")
    if status == 504:
        return CallError(ErrorKind.TIMEOUT, f"504: the API server did not come to an end in time, and may do it yet{words}")
    if 300 <= status < 400:
        return CallError(ErrorKind.REFUSED, f"{status}: redirects are not followed; give the API server's own address")
    kind = ErrorKind.REFUSED if 400 <= status < 500 else ErrorKind.PROTOCOL
    return CallError(kind, f"{status}: the API server {'refused' if status < 500 else 'failed'}{words}")


def _said(body: bytes) -> tuple[str, frozenset[str]]:
    """The message of a Status object, and its causes. Nothing where it is none."""
    try:
        status = json.loads(body)
        causes = (status.get("details") or {}).get("causes") or []
        return excerpt(str(status.get("message") or "")), frozenset(str(cause.get("reason")) for cause in causes)
    except (ValueError, RecursionError, AttributeError, TypeError):
        return "", frozenset()
