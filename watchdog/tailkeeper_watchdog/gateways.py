"""The gateways' part of the configuration: where traffic, batching, caches and replicas are switched. No I/O.

One class a kind, with the actuator of the same name in ``actuators/``. ``Gateway`` is the only list.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from tailkeeper_exporter.settings import Auth, Settings, check_url


def _check_urls(urls: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(str(check_url(url)) for url in urls)


class HaproxyGateway(Settings):
    name: str
    kind: Literal["haproxy"]
    socket: str
    """Path of the stats socket, or HOST:PORT; level admin is needed to write."""
    replicas: tuple[str, ...] = ()


class WebhookGateway(Settings):
    name: str
    kind: Literal["webhook"]
    url: str
    auth: Auth = Auth()
    replicas: tuple[str, ...] = ()

    _check_url = field_validator("url")(check_url)
    _check_replicas = field_validator("replicas")(_check_urls)


class TapGateway(Settings):
    """The taps of the backends themselves, each turned at the exporter that runs it."""

    name: str
    kind: Literal["tap"]
    urls: Annotated[tuple[str, ...], Field(max_length=10_000)] = ()
    """Of exporters; default those that the watchdog reads, else the exporter of the same file."""
    auth: Auth = Auth()
    """Default, where `urls` is left out too: the exporter's `token_file` of the same file."""

    _check = field_validator("urls")(_check_urls)


class RouterGateway(Settings):
    """What the gateways have in common that know no drain, and lose a worker that is to be drained."""

    name: str
    url: str
    auth: Auth = Auth()
    replicas: tuple[str, ...] = ()
    removed_file: Path | None = None
    """Where the workers that are taken out are noted, so that each can be added back as it was; default beside the state."""

    _check_url = field_validator("url")(check_url)
    _check_replicas = field_validator("replicas")(_check_urls)


class SglangRouterGateway(RouterGateway):
    kind: Literal["sglang_router"]


class VllmRouterGateway(RouterGateway):
    """Its `auth` is for a proxy in front: the router itself guards nothing."""

    kind: Literal["vllm_router"]


class ConsulGateway(Settings):
    """Consul's key-value store: `service/SERVER/weight`, `…/admission` and annotations, for whoever routes by them."""

    name: str
    kind: Literal["consul"]
    url: str
    auth: Auth = Auth()
    """An ACL token in `bearer_file`, or as `X-Consul-Token: …` in `headers_file`."""
    session_ttl_s: Annotated[float, Field(ge=10, le=86_400)] = 300
    """What we wrote vanishes so long, at most twice so long, after the watchdog has stopped for good. Consul's own bounds; the
    default is that of `guards.lease_s`, which a restart of the watchdog fits into."""

    _check_url = field_validator("url")(check_url)


class TritonGateway(Settings):
    """A Triton server; a server of it is a model, by default the backend's own."""

    name: str
    kind: Literal["triton"]
    url: str
    auth: Auth = Auth()
    replicas: tuple[str, ...] = ()

    _check_url = field_validator("url")(check_url)
    _check_replicas = field_validator("replicas")(_check_urls)


class EnvoyReplica(Settings):
    admin_url: str
    eds_file: Path | None = None
    """Default: the gateway's own, where they share a folder."""

    _check_url = field_validator("admin_url")(check_url)

    @field_validator("eds_file")
    @classmethod
    def _check_file(cls, file: Path | None) -> Path | None:
        return file and _with_suffix(file, ".json", ".yaml", ".yml")


class EnvoyGateway(Settings):
    name: str
    kind: Literal["envoy"]
    eds_file: Path
    """Of the cluster's `path_config_source`; written by rename, so its folder must be writable."""
    cluster: Annotated[str, Field(min_length=1)]
    admin_url: str
    """Where what is in force is read. `auth` is for a proxy before it; the admin interface itself has none."""
    auth: Auth = Auth()
    replicas: tuple[EnvoyReplica, ...] = ()

    _check_url = field_validator("admin_url")(check_url)

    @field_validator("eds_file")
    @classmethod
    def _check_file(cls, file: Path) -> Path:
        return _with_suffix(file, ".json", ".yaml", ".yml")


class TraefikReplica(Settings):
    api_url: str
    file: Path | None = None
    """Default: the gateway's own, where they share a folder."""

    _check_url = field_validator("api_url")(check_url)

    @field_validator("file")
    @classmethod
    def _check_file(cls, file: Path | None) -> Path | None:
        return file and _with_suffix(file, ".yaml", ".yml")


class TraefikGateway(Settings):
    name: str
    kind: Literal["traefik"]
    file: Path
    """Of the file provider, with the service in it; written by rename, so its folder must be writable."""
    service: Annotated[str, Field(min_length=1)]
    """A weighted service with one server in each child, or a loadBalancer whose servers have weights."""
    api_url: str
    """Of the entry point that serves `api@internal`, without `/api`."""
    auth: Auth = Auth()
    replicas: tuple[TraefikReplica, ...] = ()

    _check_url = field_validator("api_url")(check_url)

    @field_validator("file")
    @classmethod
    def _check_file(cls, file: Path) -> Path:
        return _with_suffix(file, ".yaml", ".yml")

    @field_validator("service")
    @classmethod
    def _plain(cls, service: str) -> str:
        return service.removesuffix("@file")


def _with_suffix(file: Path, *allowed: str) -> Path:
    if file.suffix not in allowed:
        raise ValueError(f"must end in {' or '.join(allowed)}: no other format can be changed here")
    return file


class RayServeGateway(Settings):
    """A Ray cluster, at its dashboard; a server of it is APPLICATION/DEPLOYMENT."""

    name: str
    kind: Literal["ray_serve"]
    url: str
    auth: Auth = Auth()

    _check_url = field_validator("url")(check_url)


class KubernetesGateway(Settings):
    """A cluster, as its API sees it: notes, taints, readiness gates and replicas of what runs there."""

    name: str
    kind: Literal["kubernetes"]
    kubeconfig: Path | None = None
    in_cluster: bool = False
    """Default where neither is given: in the cluster where this runs in one, else the user's own kubeconfig."""
    evict: bool = False
    """A drain deletes the pod, by the Eviction API. Nobody can take that back, so it is never done unless asked for here."""
    evict_grace_s: Annotated[int, Field(ge=1, le=3_600)] | None = None
    """Seconds for the work in flight of an evicted pod; default its own `terminationGracePeriodSeconds`."""

    @model_validator(mode="after")
    def _agree(self) -> KubernetesGateway:
        if self.kubeconfig is not None and self.in_cluster:
            raise ValueError("kubeconfig and in_cluster exclude each other; leave one out")
        if self.evict_grace_s is not None and not self.evict:
            raise ValueError("evict_grace_s is for evict: true alone")
        return self


class LitellmGateway(Settings):
    name: str
    kind: Literal["litellm"]
    url: str
    database: bool = True
    """False where LiteLLM runs without a database: then nothing of it can be changed while it runs."""
    auth: Auth = Auth()
    """`bearer_file` holds the master key, or a proxy admin's."""

    _check_url = field_validator("url")(check_url)


class EngineGateway(Settings):
    """The engines of the backends themselves, each asked at its own address."""

    name: str
    kind: Literal["engine"]
    auth: Auth = Auth()


Gateway = Annotated[
    HaproxyGateway
    | WebhookGateway
    | TapGateway
    | SglangRouterGateway
    | VllmRouterGateway
    | ConsulGateway
    | EnvoyGateway
    | TraefikGateway
    | TritonGateway
    | RayServeGateway
    | EngineGateway
    | KubernetesGateway
    | LitellmGateway,
    Field(discriminator="kind"),
]
