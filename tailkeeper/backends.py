"""One backend's configuration from its parts: the defaults, what the file or discovery says of it, and its place at a gateway.

Pure. What is wrong is a ``ValueError`` with a sentence, or a sentence yielded; nobody is asked whether anything is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from tailkeeper_watchdog.actuators.file_weights import place
from tailkeeper_watchdog.actuators.kube_objects import place_of
from tailkeeper_watchdog.settings import GatewayRef, WatchedBackend

if TYPE_CHECKING:  # the listers bring HTTP clients, and most commands find nothing
    from tailkeeper_exporter.discovery import Found

Kinds = Mapping[str, str]
"""Gateway names of the file, and the kind of each."""
_GATEWAY_KEYS = {"gateway_server": "server", "gateway_pool": "pool"}


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` laid on ``under``; nested mappings are merged, everything else is replaced."""
    result = dict(under)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


NAMED_BY_NAME = frozenset({"webhook", "consul"})
NAMED_BY_URL = frozenset({"engine", "sglang_router", "vllm_router", "traefik"})
"""Kinds of gateways that call a server by the address of its backend."""
NAMED_BY_ADDRESS = frozenset({"envoy"})
NAMED_BY_MODEL = frozenset({"triton"})


def server_of(kind: str, pool: str | None, backend: str, url: str, model: str) -> str:
    """What ``backend`` is called at a gateway of that kind where nobody says. Raises ValueError that says what is missing."""
    if kind in NAMED_BY_NAME:
        return backend
    if kind in NAMED_BY_URL and url:
        return url
    if kind in NAMED_BY_ADDRESS and url:
        return place(url)
    if kind in NAMED_BY_MODEL and model:
        return model
    if kind == "kubernetes" and place_of(backend) is not None:  # as discovery names pods: NAMESPACE/NAME
        return backend
    if kind != "haproxy":
        raise ValueError(f"must be there: at a gateway of kind {kind} it does not follow from the name")
    if not pool:
        raise ValueError("must be there, or `pool`, the backend section of haproxy: then it is pool/NAME")
    if "/" in backend:
        raise ValueError(f"must be there: haproxy has no server called {backend!r}, for a name there holds no slash")
    return f"{pool}/{backend}"


def with_servers(document: Mapping[str, Any], kinds: Kinds) -> dict[str, Any]:
    """A backend's document with the servers that follow from its name. What does not follow is left for the validation."""
    name, refs = document.get("name"), document.get("gateway")
    many = refs if isinstance(refs, list) else [refs]
    if not isinstance(name, str) or not many or not all(isinstance(ref, dict) for ref in many):
        return dict(document)
    url, model = (str(document.get(key) or "") for key in ("url", "model"))
    return {**document, "gateway": [_with_server(ref, name, url, model, kinds) for ref in many if isinstance(ref, dict)]}


def _with_server(ref: dict[str, Any], backend: str, url: str, model: str, kinds: Kinds) -> dict[str, Any]:
    kind, pool = kinds.get(str(ref.get("name"))), ref.get("pool")
    if ref.get("server") is not None or kind is None:
        return ref
    try:
        return {**ref, "server": server_of(kind, pool if isinstance(pool, str) else None, backend, url, model)}
    except ValueError:
        return ref


def gateway_problems(backend: WatchedBackend, kinds: Kinds) -> Iterator[str]:
    """What is wrong with a backend's gateways, each with the key below the backend."""
    for ref in backend.gateway:
        kind = kinds.get(ref.name)
        if kind is None:
            allowed = ", ".join(sorted(kinds)) or "none is configured"
            yield f"gateway.name: {ref.name!r} is no gateway of this file; known: {allowed}"
        elif kind == "tap":
            yield from _tap_problems(backend, ref)
        elif ref.server is None:
            yield f"gateway.server: {_missing(kind, ref.pool, backend)}"
        elif kind == "haproxy" and not all(ref.server.partition("/")):
            yield f"gateway.server: {ref.server!r} must be backend/server of haproxy, for example llm/a"
        elif kind == "ray_serve" and not all(ref.server.partition("/")):
            yield f"gateway.server: {ref.server!r} must be APPLICATION/DEPLOYMENT of ray_serve, for example chat/LLM"
        elif kind == "kubernetes" and place_of(ref.server) is None:
            yield f"gateway.server: {ref.server!r} must be NAMESPACE/NAME of a pod or deployment, or NAMESPACE/deployment/NAME"


def _missing(kind: str, pool: str | None, backend: WatchedBackend) -> str:
    """Why no server follows from the name."""
    try:
        return f"must be there, for example {server_of(kind, pool, backend.name, backend.url, backend.model or '')}"
    except ValueError as error:
        return str(error)


def _tap_problems(backend: WatchedBackend, ref: GatewayRef) -> Iterator[str]:
    if backend.tap is None:
        yield (
            f"gateway.name: {ref.name!r} turns the backend's own tap, and {backend.name!r} has none; "
            'give the backend one, for example tap: {listen: "127.0.0.1:9500"}, or name another gateway'
        )
    if ref.server not in (None, backend.name):
        yield f"gateway.server: {ref.server!r} must be the backend's own name, {backend.name!r}, for a tap; or leave it out"


def compose(found: Found, defaults: Mapping[str, Any], kinds: Kinds) -> WatchedBackend:
    """The settings of a found backend: the defaults, and over them what its source says. Raises ValueError with a sentence."""
    try:
        backend = WatchedBackend.model_validate(with_servers(_document(found, defaults), kinds))
    except ValidationError as error:
        raise ValueError("; ".join(_sentence(detail) for detail in error.errors())) from error
    problems = list(gateway_problems(backend, kinds))
    if backend.tap is not None:
        problems.append("tap: only a backend listed under backends can have one, because each needs an address of its own")
    if problems:
        raise ValueError("; ".join(problems))
    return backend


def _document(found: Found, defaults: Mapping[str, Any]) -> dict[str, Any]:
    from tailkeeper_exporter.discovery.base import bounded_labels

    own = {key: value for key, value in found.keys if key not in _GATEWAY_KEYS}
    place = {_GATEWAY_KEYS[key]: value for key, value in found.keys if key in _GATEWAY_KEYS}
    document = merged(defaults, {"name": found.name, "url": found.url, **own})
    if place:
        document["gateway"] = _placed(document.get("gateway"), place)
    labels = document.get("labels")
    if isinstance(labels, dict) or labels is None:
        said = {**(labels or {}), **dict(found.labels)}
        # Labels of the defaults that are no strings are refused by the settings, in their own words.
        document["labels"] = dict(bounded_labels(said)[0]) if all(isinstance(v, str) for v in said.values()) else said
    return document


def _placed(gateway: Any, place: Mapping[str, str]) -> Any:
    """The defaults' gateway with the server and pool that the source named. Raises ValueError where there is not exactly one."""
    refs = gateway if isinstance(gateway, list) else [gateway]
    if len(refs) != 1 or not isinstance(refs[0], dict):
        raise ValueError(f"{', '.join(place)} of a gateway is said, and defaults.gateway does not name exactly one gateway")
    return {**refs[0], **place}


def _sentence(detail: Any) -> str:
    path = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden" and len(detail["loc"]) == 1:
        return f"{path}: unknown key; allowed here: {', '.join(WatchedBackend.model_fields)}"
    message = str(detail["msg"]).removeprefix("Value error, ")
    return f"{path}: {message[:1].lower()}{message[1:]}"
