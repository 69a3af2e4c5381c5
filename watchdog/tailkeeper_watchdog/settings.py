"""The watchdog's part of the configuration, validated. No I/O: files named here are checked by the root.

Every field has its unit in its name and, under it, why its default is what it is. Unknown keys are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar
from urllib.parse import parse_qsl, urlsplit

from pydantic import Field, field_validator, model_validator

from tailkeeper_exporter.settings import (
    Auth,
    BackendSettings,
    Ratio,
    Seconds,
    Settings,
    check_address,
    check_url,
    is_loopback,
    is_same_server,
)
from tailkeeper_watchdog.alert_terms import OWN_LABELS, RUNBOOK
from tailkeeper_watchdog.gateways import Gateway
from tailkeeper_watchdog.metrics import LOOSEST_OBJECTIVE
from tailkeeper_watchdog.model import Mode
from tailkeeper_watchdog.policy_params import (
    AdaptiveBatchWindowParams,
    CacheOffloadParams,
    ContextLengthRoutingParams,
    GpuHealthGateParams,
    MemoryBreakerParams,
    SloGuardianParams,
    TokenRateWeightingParams,
)

STALE_INTERVALS = 3
"""Evidence may miss two reads before it is stale; below that one lost packet would blind us (field report E1)."""


class LatencySlo(Settings):
    ttft_p99_s: Seconds = 1.2
    itl_p99_s: Seconds = 0.2
    e2e_p99_s: Seconds = 30


MAX_TIERS = 32
"""Each is a label value, and is asked for every request."""
MAX_TIER_NAME_CHARS = 64
TIER_ATTRIBUTES = ("tenant", "operation", "sensitivity", "modality", "model", "canary_revision")


class Tier(Settings):
    """A promise to the requests that carry all of `match`."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_TIER_NAME_CHARS)]
    match: Annotated[dict[str, str], Field(min_length=1)]
    """Attributes of a request, compared as text."""
    p99_s: Seconds
    """Of the first output: the first token, or the whole answer where it is not streamed."""

    @field_validator("name")
    @classmethod
    def _not_built_in(cls, name: str) -> str:
        if name == "default" or name.startswith("default-"):
            raise ValueError("`default` and names that begin with `default-` are built in; take another name")
        return name

    @field_validator("match", mode="before")
    @classmethod
    def _known(cls, match: object) -> object:
        if not isinstance(match, dict):
            return match
        unknown = sorted(str(key) for key in match if key not in TIER_ATTRIBUTES)
        if unknown:
            raise ValueError(f"unknown key {unknown[0]!r}; allowed here: {', '.join(TIER_ATTRIBUTES)}")
        plain = {key: isinstance(value, int) and not isinstance(value, bool) for key, value in match.items()}
        return {key: str(value) if plain[key] else value for key, value in match.items()}


class SloSettings(Settings):
    objective: Annotated[float, Field(gt=0, lt=1)] = 0.995
    latency: LatencySlo = LatencySlo()
    tiers: Annotated[tuple[Tier, ...], Field(max_length=MAX_TIERS)] = ()
    """Asked in this order, the first match wins."""

    @field_validator("objective")
    @classmethod
    def _can_be_broken(cls, objective: float) -> float:
        if objective <= LOOSEST_OBJECTIVE:
            allowed = (
                f"{1 - LOOSEST_OBJECTIVE:.0%} of all requests and more may fail then, and no alert could tell that too many do"
            )
            raise ValueError(f"{allowed}; allowed is above {LOOSEST_OBJECTIVE:g} and below 1")
        return objective

    @field_validator("tiers")
    @classmethod
    def _differ(cls, tiers: tuple[Tier, ...]) -> tuple[Tier, ...]:
        names = [tier.name for tier in tiers]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"the name {twice!r} is there more than once; names are label values and must differ")
        return tiers


class GatewayRef(Settings):
    """Where a backend is switched. `pool` defaults to the part before the slash for haproxy, else all servers."""

    name: str
    server: Annotated[str, Field(min_length=1)] | None = None
    """Needed, but for a tap: that is always the backend's own."""
    pool: str | None = None


class WatchedBackend(BackendSettings):
    gateway: tuple[GatewayRef, ...] = ()

    @field_validator("gateway", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return [value] if isinstance(value, dict) else value


class ExporterSource(Settings):
    kind: Literal["exporter"] = "exporter"
    urls: Annotated[tuple[str, ...], Field(min_length=1, max_length=10_000)] = ("http://127.0.0.1:9400",)
    interval_s: Seconds | None = None
    """How often the exporters read their engines; default the exporter's `scrape_interval_s` in the same file."""
    auth: Auth = Auth()
    """For a proxy before the exporters, which show their pages to everybody themselves."""

    @field_validator("urls")
    @classmethod
    def _check(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(check_url(url)) for url in urls)


class PrometheusSource(Settings):
    kind: Literal["prometheus"]
    url: str
    interval_s: Seconds = 15
    """The Prometheus server's scrape interval: set it to what the server uses."""
    auth: Auth = Auth()

    _check_url = field_validator("url")(check_url)


Source = Annotated[ExporterSource | PrometheusSource, Field(discriminator="kind")]


ALERT_LABEL_PATTERN = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
MAX_ALERT_LABELS = 16


class AlertmanagerSettings(Settings):
    """Where alerts go, and the addresses that they link to, as people reach them."""

    url: str | None = None
    auth: Auth = Auth()
    labels: dict[str, str] = Field(default_factory=dict, max_length=MAX_ALERT_LABELS)
    """Added to every alert, as Prometheus adds its `external_labels`: with the same `cluster` there and here, both are one
    incident to Alertmanager."""
    console_url: str | None = None
    """Default: `listen`, on 127.0.0.1 where that is every address."""
    grafana_url: str | None = None
    """Grafana, without a path to a board. None by default: there may be none, and a dead link costs time at night."""
    runbook_url: Annotated[str, Field(min_length=1, max_length=500)] = RUNBOOK
    """Each alert's section is this with `#` and the alert's name in small letters."""

    _check_url = field_validator("url", "console_url", "grafana_url")(check_url)

    @field_validator("labels")
    @classmethod
    def _are_labels(cls, labels: dict[str, str]) -> dict[str, str]:
        for name, value in labels.items():
            if not ALERT_LABEL_PATTERN.fullmatch(name):
                raise ValueError(f"{name!r} is no label name; letters, digits and underscores are allowed, no digit first")
            if name in OWN_LABELS:
                raise ValueError(f"{name!r} is a label that alerts have by themselves; take another name")
            if not value:
                raise ValueError(f"{name!r} is empty, and Alertmanager drops a label without a value; leave it out")
        return labels


class WatchdogOtlp(Settings):
    endpoint: str | None = None
    """Of a collector; `/v1/traces` and `/v1/logs` are put behind it. A tick in which something happened is a trace."""
    headers_file: Path | None = None
    """Lines of `Name: value`, for example a token."""
    logs: bool = False
    """The decision log and the findings, one record each; off like the exporter's, because not every collector takes logs."""

    _check_endpoint = field_validator("endpoint")(check_url)

    @model_validator(mode="after")
    def _has_somewhere_to_go(self) -> WatchdogOtlp:
        if self.endpoint is None and self.logs:
            raise ValueError("`logs` needs `endpoint`, the address of a collector")
        return self


class RecordsSettings(Settings):
    """Tick records, for `tailkeeper replay`. On by default: what was recorded before an incident is what explains it."""

    enabled: bool = True
    path: Path | None = None
    """Default: beside `state`, with `.records` for its ending."""
    max_bytes: Annotated[int, Field(ge=1_000_000)] = 64 * 1024 * 1024
    """Of both files together. A backend takes some 200 bytes a tick: 20 of them at a tick of 5 s fill this in a day."""


ACTING_S = 6.0
"""How long after a leader's consent the last change may be under way: two seconds each to begin, to write and to read it back."""


class LeaderSettings(Settings):
    """Which of several watchdogs acts, by a Lease of Kubernetes."""

    namespace: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    name: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")] = "tailkeeper"
    lease_s: Annotated[int, Field(ge=10, le=3_600)] = 15
    """How long the others wait for a leader that is silent; seconds. The default is that of Kubernetes' own controllers.

    A leader that cannot renew stops acting once two thirds of it are over, and some 6 s before its end: that long may a change
    that was begun take. Less than 10 s would leave it no time to renew.
    """
    kubeconfig: Path | None = None
    in_cluster: bool = False
    """Default where neither is given: in the cluster where this runs in one, else the user's own kubeconfig."""

    @model_validator(mode="after")
    def _one_way_in(self) -> LeaderSettings:
        if self.kubeconfig is not None and self.in_cluster:
            raise ValueError("kubeconfig and in_cluster exclude each other; leave one out")
        return self


_POSTGRES_SCHEMES = ("postgresql", "postgres")
_SOCKET_OPTIONS = frozenset({"host", "port"})
_EXAMPLE = "postgresql://tailkeeper@db.example:5432/tailkeeper"


def _check_postgres_url(url: str) -> str:
    """A libpq URL without a secret in it. Messages do not repeat it: it may carry one."""
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        raise ValueError(f"must be a URL such as {_EXAMPLE}") from None
    if parts.scheme not in _POSTGRES_SCHEMES or parts.fragment:
        raise ValueError(f"must be a URL such as {_EXAMPLE}")
    if ":" in parts.netloc.rpartition("@")[0] or any("password" in name.lower() for name, _ in options):
        raise ValueError(
            "must carry no password: it would stand in logs and messages; put it into a file, and name it in password_file"
        )
    if not _SOCKET_OPTIONS.issuperset(name for name, _ in options):
        raise ValueError(
            "may have ?host= and ?port= for a socket, and no other option; TLS has keys of its own here (sslmode, ca_file)"
        )
    return url


class LedgerSettings(Settings):
    """The ledger on a PostgreSQL server instead of in the file `state`: for watchdogs on several machines, of which one leads."""

    url: Annotated[str, Field(max_length=2_000)]
    """As libpq has it, several hosts too (`host1,host2`): the one that takes writes is found. It may carry no password."""
    password_file: Path | None = None
    """One line; read at each connection, so that it may be changed while this runs."""
    sslmode: Literal["disable", "prefer", "require", "verify-ca", "verify-full"] | None = None
    """Default `verify-full`, and `prefer` where every host is this machine."""
    ca_file: Path | None = None
    """Whose certificates are believed; needed to verify one."""
    cert_file: Path | None = None
    key_file: Path | None = None
    in_schema: Annotated[str, Field(max_length=60, pattern=r"^[a-z_][a-z0-9_]*$")] = "tailkeeper"
    """The schema in the database that holds the tables; made where it is not there. Each ledger needs one of its own; that of a
    shard has its number behind the name."""
    lease_s: Annotated[int, Field(ge=10, le=3_600)] = 15
    """How long the others wait for a leader that is silent; seconds. As `leader.lease_s`."""

    _check_url = field_validator("url")(_check_postgres_url)

    @model_validator(mode="after")
    def _can_verify(self) -> LedgerSettings:
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("key_file needs cert_file, the certificate of that key")
        if self.ca_file is None and self.tls.startswith("verify"):
            raise ValueError(
                f"ca_file is missing: with sslmode {self.tls} (the default for another machine) the certificate is verified;"
                " name the file of its authority, or set sslmode: require to encrypt without knowing to whom"
            )
        return self

    @property
    def tls(self) -> str:
        """libpq's sslmode."""
        return self.sslmode or ("prefer" if all(_is_here(host) for host in self._hosts()) else "verify-full")

    def _hosts(self) -> list[str]:
        parts = urlsplit(self.url)
        named = [host for name, value in parse_qsl(parts.query) if name == "host" for host in value.split(",")]
        return [*named, *(place.rpartition(":")[0] or place for place in parts.netloc.rpartition("@")[2].split(",") if place)]


def _is_here(host: str) -> bool:
    return host.startswith(("/", "%2F")) or is_loopback(f"{host}:0")


class WatchdogSettings(Settings):
    listen: str = "127.0.0.1:8088"
    tick_s: Annotated[float, Field(ge=0.1, le=3_600)] = 5
    source: Source = ExporterSource()
    stale_after_s: Seconds | None = None
    state: Path = Path("./tailkeeper.db")
    records: RecordsSettings = RecordsSettings()
    baselines: Path | None = None
    token_file: Path | None = None
    alertmanager: AlertmanagerSettings = AlertmanagerSettings()
    otlp: WatchdogOtlp = WatchdogOtlp()
    leader: LeaderSettings | None = None
    """Needed where several watchdogs run; without it each of them acts."""
    ledger: LedgerSettings | None = None
    """Where `state` is not to be the ledger. A text is its `url`."""

    _check_listen = field_validator("listen")(check_address)

    @field_validator("ledger", mode="before")
    @classmethod
    def _as_text(cls, given: object) -> object:
        return {"url": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _one_decides(self) -> WatchdogSettings:
        if self.ledger is not None and self.leader is not None:
            raise ValueError(
                "leader and ledger exclude each other: a ledger in PostgreSQL says itself who leads; leave `leader` out"
            )
        return self

    @model_validator(mode="after")
    def _guarded(self) -> WatchdogSettings:
        if not is_loopback(self.listen) and self.token_file is None:
            raise ValueError(f"listen: {self.listen} is not loopback; set token_file, or listen on 127.0.0.1")
        if self.otlp.endpoint is not None and is_same_server(self.otlp.endpoint, self.listen):
            raise ValueError(
                f"otlp.endpoint: {self.otlp.endpoint} is this watchdog itself (listen: {self.listen}); name a collector"
            )
        return self

    @property
    def records_path(self) -> Path | None:
        """Where ticks are recorded; None where they are not."""
        return (self.records.path or self.state.with_suffix(".records")) if self.records.enabled else None

    def read_interval_s(self, exporter_interval_s: float) -> float:
        """How often new evidence can appear, given how often the exporters read their engines."""
        return self.source.interval_s or exporter_interval_s

    def stale_limit_s(self, exporter_interval_s: float) -> float:
        """Evidence older than this is stale. Seconds."""
        return self.stale_after_s or STALE_INTERVALS * self.read_interval_s(exporter_interval_s)


WEIGHTS_TOLERANCE = 1e-6
"""A sum this near to 1 is 1: thirds are written with a few digits."""


class Weights(Settings):
    """Shares of the HScore: all four or none, and they sum to 1."""

    latency: Ratio = 0.35
    error_rate: Ratio = 0.40
    cpu_usage: Ratio = 0.15
    uptime: Ratio = 0.10

    @model_validator(mode="before")
    @classmethod
    def _all_or_none(cls, given: Any) -> Any:
        missing = [name for name in cls.model_fields if name not in given] if isinstance(given, dict) and given else []
        if missing:
            raise ValueError(f"{', '.join(missing)} missing; give all of {', '.join(cls.model_fields)}, which sum to 1")
        return given

    @model_validator(mode="after")
    def _sum_to_one(self) -> Weights:
        check_sum(self.latency, self.error_rate, self.cpu_usage, self.uptime)
        return self


def check_sum(*weights: float) -> None:
    """Raises ValueError where the weights of the HScore do not sum to 1."""
    total = sum(weights)
    if not abs(total - 1.0) <= WEIGHTS_TOLERANCE:
        raise ValueError(f"weights sum to {total:.9g}; they must sum to 1")


class HscoreSettings(Settings):
    weights: Weights = Weights()


Params = TypeVar("Params", bound=Settings)


class PolicySettings(Settings, Generic[Params]):
    """How far a policy may go, and its parameters, which it has defaults for."""

    mode: Mode = Mode.OBSERVE
    params: Params

    @model_validator(mode="before")
    @classmethod
    def _with_params(cls, given: object) -> object:
        return {"params": {}, **given} if isinstance(given, dict) else given


class PoliciesSettings(Settings):
    """A field for each policy; that every policy has one is held by a test."""

    adaptive_batch_window: PolicySettings[AdaptiveBatchWindowParams] = PolicySettings[AdaptiveBatchWindowParams](
        params=AdaptiveBatchWindowParams()
    )
    memory_breaker: PolicySettings[MemoryBreakerParams] = PolicySettings[MemoryBreakerParams](params=MemoryBreakerParams())
    context_length_routing: PolicySettings[ContextLengthRoutingParams] = PolicySettings[ContextLengthRoutingParams](
        params=ContextLengthRoutingParams()
    )
    token_rate_weighting: PolicySettings[TokenRateWeightingParams] = PolicySettings[TokenRateWeightingParams](
        params=TokenRateWeightingParams()
    )
    gpu_health_gate: PolicySettings[GpuHealthGateParams] = PolicySettings[GpuHealthGateParams](params=GpuHealthGateParams())
    cache_offload: PolicySettings[CacheOffloadParams] = PolicySettings[CacheOffloadParams](params=CacheOffloadParams())
    slo_guardian: PolicySettings[SloGuardianParams] = PolicySettings[SloGuardianParams](params=SloGuardianParams())


class GuardsSettings(Settings):
    max_fraction: Ratio = 0.3
    """A third of a pool can be lost without the rest falling over at usual loads."""
    max_backends: Annotated[int, Field(ge=1)] | None = None
    """An absolute cap beside the fraction; none by default."""
    min_healthy: Annotated[int, Field(ge=0)] = 1
    panic_fraction: Ratio = 0.5
    cooldown_s: Annotated[float, Field(ge=0, le=86_400)] = 30
    return_ramp_s: Annotated[float, Field(ge=0, le=86_400)] = 30
    quarantine_after: Annotated[int, Field(ge=2, le=1_000)] = 5
    """Removals within an hour after which a backend stays out: the waits before a return have grown to minutes by then."""
    lease_s: Annotated[float, Field(ge=5, le=86_400)] = 300
    """Long enough for a restart of the watchdog, short enough that a forgotten change does not last the night."""
    pause_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Configuration:
    """The parts of the configuration that the watchdog reads."""

    backends: tuple[WatchedBackend, ...]
    gateways: tuple[Gateway, ...]
    watchdog: WatchdogSettings
    slo: SloSettings
    hscore: HscoreSettings
    policies: PoliciesSettings
    guards: GuardsSettings
    stale_after_s: float
