"""The exporter's part of the configuration, validated. No I/O here: files named in it are checked by the root.

Every field has its unit in its name and, under it, why its default is what it is. Unknown keys are refused.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tailkeeper_exporter.engines import ENGINE_NAMES

Seconds = Annotated[float, Field(gt=0, le=86_400)]
Ratio = Annotated[float, Field(ge=0, le=1)]
_ADDRESS = re.compile(r"^(\[[0-9a-fA-F:]+\]|[^:\s]+):(\d{1,5})$")
_URL = re.compile(r"^https?://[^/\s]+(/\S*)?$")


class Settings(BaseModel):
    """Base of every settings model: frozen, and strict about unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def check_url(value: str | None) -> str | None:
    """An http or https URL without a trailing slash."""
    if value is None:
        return None
    if not _URL.match(value) or not _has_host_and_port(value):
        raise ValueError("must be an http:// or https:// URL, for example http://127.0.0.1:8000")
    if "@" in urlsplit(value).netloc:
        # It would stand in messages, logs and documents that nobody takes for secret.
        raise ValueError("must carry no user and password; put them into a file and name it in auth.basic_file")
    return value.rstrip("/")


def _has_host_and_port(url: str) -> bool:
    """Whether the host is there and the port, if any, is one: a client would say so only at its first call."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def check_address(value: str) -> str:
    """HOST:PORT."""
    match = _ADDRESS.match(value)
    if not match or int(match.group(2)) > 65_535:
        raise ValueError("must be HOST:PORT, for example 127.0.0.1:9400")
    return value


def check_engine(value: str) -> str:
    """The name of an engine that is known here."""
    if value not in ENGINE_NAMES:
        raise ValueError(f"unknown engine {value!r}; allowed: {', '.join(ENGINE_NAMES)}")
    return value


def is_loopback(address: str) -> bool:
    """Whether HOST:PORT names this machine only. A name is believed only where it is exactly ``localhost``."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def is_same_server(url: str, listen: str) -> bool:
    """Whether a URL leads to HOST:PORT, as far as the names tell: all names of this machine's loopback are one."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    host, _, own_port = listen.rpartition(":")
    own = host.strip("[]").lower()
    other = (parts.hostname or "").lower()
    loopback = is_loopback(f"{other}:0") and (own in ("0.0.0.0", "::") or is_loopback(listen))
    return port == int(own_port) and (other == own or loopback)


class Auth(Settings):
    """Credentials for one URL, always by file, never by value."""

    bearer_file: Path | None = None
    basic_file: Path | None = None
    """One line, user:password."""
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    headers_file: Path | None = None
    """Lines of `Name: value`, for example a tenant header."""

    @model_validator(mode="after")
    def _fit_together(self) -> Auth:
        if self.bearer_file is not None and self.basic_file is not None:
            raise ValueError("bearer_file and basic_file are both for the header Authorization; leave one out")
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("key_file needs cert_file, the certificate of that key")
        return self


class ModelShape(Settings):
    """What the KV cache of one token costs: 2 · layers · kv_heads · head_dim · dtype_bytes bytes."""

    layers: Annotated[int, Field(gt=0, le=1_000)]
    kv_heads: Annotated[int, Field(gt=0, le=1_024)]
    head_dim: Annotated[int, Field(gt=0, le=4_096)]
    dtype_bytes: Annotated[float, Field(gt=0, le=8)] = 2


class ProbeSettings(Settings):
    enabled: bool = True
    interval_s: Seconds = 10
    """At most one probe in this time, and none while real traffic proves life: a probe costs the engine a token."""
    first_token_timeout_s: Seconds = 1.2
    """The product's limit for a first token that still counts as able to serve."""
    health_timeout_s: Seconds = 0.5
    """A plain health page does no work; slower than this says that the event loop is stuck."""


class HangSettings(Settings):
    no_progress_s: Seconds = 10
    """Longer than the longest prefill step seen on real engines, shorter than a user's patience."""


class TapSettings(Settings):
    listen: str

    _check_listen = field_validator("listen")(check_address)


class BackendSettings(Settings):
    """One inference engine, as the exporter sees it."""

    name: Annotated[str, Field(min_length=1, max_length=128)]
    engine: str
    url: str
    metrics_url: str | None = None
    """Default: the engine's usual page under `url`."""
    model: str | None = None
    quantization: str = "unknown"
    api_key_file: Path | None = None
    auth: Auth = Auth()
    gpus: tuple[str, ...] = ()
    model_shape: ModelShape | None = None
    probe: ProbeSettings = ProbeSettings()
    hang: HangSettings = HangSettings()
    kv_service: str | None = None
    tap: TapSettings | None = None
    labels: dict[str, str] = Field(default_factory=dict, max_length=16)

    _check_urls = field_validator("url", "metrics_url")(check_url)

    @field_validator("name", "gpus", mode="before")
    @classmethod
    def _strings_only(cls, value: object) -> object:
        # YAML reads an unquoted 0123, 1e3 or no as a number or a boolean; a label value must not depend on that.
        def check(item: object) -> object:
            if isinstance(item, (bool, int, float)):
                raise ValueError(f"must be a quoted string; YAML read it as {type(item).__name__} {item!r}")
            return item

        return [check(item) for item in value] if isinstance(value, (list, tuple)) else check(value)

    @field_validator("engine")
    @classmethod
    def _known_engine(cls, value: str) -> str:
        return check_engine(value)

    @field_validator("url")
    @classmethod
    def _without_api_path(cls, value: str) -> str:
        if urlsplit(value).path.endswith("/v1"):
            raise ValueError(f"must be the engine's address, without the path of its API: {value.removesuffix('/v1')}")
        return value

    @field_validator("kv_service")
    @classmethod
    def _redis_url(cls, value: str | None) -> str | None:
        if value is not None and not re.match(r"^rediss?://[^\s/]+", value):
            raise ValueError("must be redis://HOST:PORT or rediss://HOST:PORT")
        return value

    @model_validator(mode="after")
    def _no_tap_before_itself(self) -> BackendSettings:
        if self.tap is not None and is_same_server(self.url, self.tap.listen):
            raise ValueError(
                f"tap.listen: {self.tap.listen} is the backend's own url ({self.url}), so every request would come back for ever;"
                " url is the engine, listen a free address that clients use instead"
            )
        return self

    @property
    def canary_revision(self) -> str:
        return self.labels.get("canary_revision", "")


class GpuSettings(Settings):
    source: Literal["auto", "nvml", "dcgm", "file", "none"] = "auto"
    file: Path | None = None
    url: str | None = None
    interval_s: Annotated[float, Field(ge=0.1, le=3_600)] = 1
    """NVML calls are cheap; 0.1 s is for the fastest reaction."""

    _check_url = field_validator("url")(check_url)

    @model_validator(mode="after")
    def _complete(self) -> GpuSettings:
        if self.source == "file" and self.file is None:
            raise ValueError("source: file needs `file`, the path of the GPU file")
        if self.source == "dcgm" and self.url is None:
            raise ValueError("source: dcgm needs `url`, the address of dcgm-exporter's page")
        return self


class OtlpSettings(Settings):
    endpoint: str | None = None
    """Of a collector; `/v1/traces` and `/v1/logs` are put behind it. Without one spans are read and go nowhere."""
    headers_file: Path | None = None
    """Lines of `Name: value`, for example a token."""
    logs: bool = False
    """One log record per request of the tap; off, because it is as much data as the spans."""

    _check_endpoint = field_validator("endpoint")(check_url)

    @model_validator(mode="after")
    def _has_somewhere_to_go(self) -> OtlpSettings:
        if self.endpoint is None and self.logs:
            raise ValueError("`logs` needs `endpoint`, the address of a collector")
        return self


class ExporterSettings(Settings):
    listen: str = "127.0.0.1:9400"
    scrape_interval_s: Annotated[float, Field(ge=0.1, le=3_600)] = 1
    scrape_timeout_s: Annotated[float, Field(gt=0, le=60)] = 2
    """A total deadline, not one per read: a page that drips one byte a second ends here."""
    token_file: Path | None = None
    """Of calls that change something, which are those to a tap. Without it they are taken on loopback only; pages are for all."""
    gpu: GpuSettings = GpuSettings()
    otlp: OtlpSettings = OtlpSettings()

    _check_listen = field_validator("listen")(check_address)

    @model_validator(mode="after")
    def _no_loop(self) -> ExporterSettings:
        if self.otlp.endpoint is not None and is_same_server(self.otlp.endpoint, self.listen):
            raise ValueError(
                f"otlp.endpoint: {self.otlp.endpoint} is this exporter itself (listen: {self.listen}), so every span would come"
                " back for ever; name a collector"
            )
        return self


class _Discovery(Settings):
    """What every way of finding backends has."""

    engine: str | None = None
    """The engine of what is found here, where the source does not say it; it wins over `defaults`."""
    interval_s: Annotated[float, Field(ge=1, le=3_600)] = 30
    """Between two full lists. A backend that has gone is let go after two of them."""

    @field_validator("engine")
    @classmethod
    def _known_engine(cls, value: str | None) -> str | None:
        return value if value is None else check_engine(value)


class FileDiscovery(_Discovery):
    kind: Literal["file_sd"]
    files: Annotated[tuple[str, ...], Field(min_length=1, max_length=64)]
    """Paths ending in .json, .yml or .yaml; the last part may hold `*`, as in Prometheus."""

    @field_validator("files")
    @classmethod
    def _as_in_prometheus(cls, files: tuple[str, ...]) -> tuple[str, ...]:
        for file in files:
            if not file.endswith((".json", ".yml", ".yaml")):
                raise ValueError(f"{file!r} must end in .json, .yml or .yaml")
            if re.search(r"[*?[]", file.rpartition("/")[0]):
                raise ValueError(f"{file!r}: only the last part of the path may hold a pattern")
        return files


class DnsDiscovery(_Discovery):
    kind: Literal["dns"]
    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Each of its A and AAAA addresses is a backend."""
    port: Annotated[int, Field(ge=1, le=65_535)]


class KubernetesDiscovery(_Discovery):
    kind: Literal["kubernetes"]
    namespace: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    selector: Annotated[str, Field(min_length=1, max_length=1_024)]
    """A label selector, for example `app=vllm`; needed, because not every pod of a namespace is an engine."""
    port: Annotated[int, Field(ge=1, le=65_535)]
    kubeconfig: Path | None = None
    in_cluster: bool = False
    """Default where neither is given: in the cluster where this runs in one, else the user's own kubeconfig."""

    @model_validator(mode="after")
    def _one_way_in(self) -> KubernetesDiscovery:
        if self.kubeconfig is not None and self.in_cluster:
            raise ValueError("kubeconfig and in_cluster exclude each other; leave one out")
        return self


class PrometheusDiscovery(_Discovery):
    kind: Literal["prometheus"]
    url: str
    auth: Auth = Auth()

    _check_url = field_validator("url")(check_url)


Discovery = Annotated[FileDiscovery | DnsDiscovery | KubernetesDiscovery | PrometheusDiscovery, Field(discriminator="kind")]
