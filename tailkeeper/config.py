"""One configuration file for all parts: read, merged with its defaults, validated, and explained where it is wrong.

Every complaint names the key's path, the value, and what is allowed. Nothing is started from a file that is not right.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import yaml
from pydantic import Field, ValidationError, model_validator

from tailkeeper import credential_checks
from tailkeeper.backends import compose, gateway_problems, merged, with_servers
from tailkeeper.config_version import CURRENT, wrong_version
from tailkeeper_exporter.settings import Auth, Discovery, ExporterSettings, Settings, is_same_server
from tailkeeper_watchdog.gateways import Gateway, RouterGateway, TapGateway
from tailkeeper_watchdog.settings import (
    STALE_INTERVALS,
    Configuration,
    ExporterSource,
    GuardsSettings,
    HscoreSettings,
    PoliciesSettings,
    SloSettings,
    WatchdogSettings,
    WatchedBackend,
)

if TYPE_CHECKING:  # the listers bring HTTP clients, and most commands find nothing
    from tailkeeper_exporter.discovery import Discoverer, Found

MAX_FILE_BYTES = 8 * 1024 * 1024
"""A configuration of 10,000 backends has about 3 MB."""
MAX_BACKENDS = 10_000
MAX_DISCOVERIES = 32
"""Each is a task and a connection of its own."""


class ConfigError(Exception):
    """The configuration cannot be used. ``problems`` are sentences, each with the path of its key."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Config(Settings):
    """The whole file."""

    version: Annotated[int, Field(ge=CURRENT, le=CURRENT)] = CURRENT
    """The format that the file is written in; looked at before anything else in it."""
    slo: SloSettings = SloSettings()
    backends: Annotated[tuple[WatchedBackend, ...], Field(max_length=MAX_BACKENDS)] = ()
    defaults: dict[str, Any] = Field(default_factory=dict)
    discovery: Annotated[tuple[Discovery, ...], Field(max_length=MAX_DISCOVERIES)] = ()
    gateways: tuple[Gateway, ...] = ()
    exporter: ExporterSettings = ExporterSettings()
    watchdog: WatchdogSettings = WatchdogSettings()
    hscore: HscoreSettings = HscoreSettings()
    policies: PoliciesSettings = PoliciesSettings()
    guards: GuardsSettings = GuardsSettings()

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        problems = [*_duplicates(self), *_wrong_gateways(self), *_stale_limit(self), *_no_taker_of_logs(self)]
        if problems:
            raise ValueError("\n".join(problems))
        return self

    @property
    def gateway_kinds(self) -> dict[str, str]:
        return {gateway.name: gateway.kind for gateway in self.gateways}

    def listening_at(self, address: str) -> Config:
        """The same with another address of the watchdog."""
        return self.model_copy(update={"watchdog": self.watchdog.model_copy(update={"listen": address})})

    def compose(self, found: Found) -> WatchedBackend:
        """The settings of a found backend. Raises ValueError with a sentence."""
        return compose(found, self.defaults, self.gateway_kinds)

    def discoverer(
        self, max_backends: int = MAX_BACKENDS, keep: Callable[[WatchedBackend], bool] = lambda backend: True
    ) -> Discoverer[WatchedBackend] | None:
        """What finds the backends that are not listed, not yet running; None where nothing is to be found."""
        if not self.discovery:
            return None
        from tailkeeper_exporter.discovery import Discoverer, sources_of

        return Discoverer(sources_of(self.discovery), self.backends, self.compose, max_backends=max_backends, keep=keep)

    def for_watchdog(self) -> Configuration:
        interval = self.exporter.scrape_interval_s
        return Configuration(
            backends=self.backends,
            gateways=tuple(_located(gateway, self) for gateway in self.gateways),
            watchdog=self.watchdog,
            slo=self.slo,
            hscore=self.hscore,
            policies=self.policies,
            guards=self.guards,
            stale_after_s=self.watchdog.stale_limit_s(interval),
        )


def _duplicates(config: Config) -> Iterator[str]:
    for section, names in (("backends", [b.name for b in config.backends]), ("gateways", [g.name for g in config.gateways])):
        for name in sorted({n for n in names if names.count(n) > 1}) if len(set(names)) < len(names) else ():
            yield f"{section}: the name {name!r} is there more than once; names are label values and must differ"


def _wrong_gateways(config: Config) -> Iterator[str]:
    for index, backend in enumerate(config.backends):
        for problem in gateway_problems(backend, config.gateway_kinds):
            yield f"backends.{index}.{problem}"


def _located(gateway: Gateway, config: Config) -> Gateway:
    """A tap gateway with the addresses of its exporters: those that the watchdog reads, else that of this file. A router with
    the file of the workers that were removed from it: beside the state, which it belongs to."""
    if isinstance(gateway, RouterGateway) and gateway.removed_file is None:
        state = config.watchdog.state
        beside = state.with_name(f"{state.stem}.{quote(gateway.name, safe='')}.removed.json")
        return gateway.model_copy(update={"removed_file": beside})
    if not isinstance(gateway, TapGateway) or gateway.urls:
        return gateway
    source = config.watchdog.source
    urls = source.urls if isinstance(source, ExporterSource) else (own_url(config.exporter.listen),)
    auth = Auth(bearer_file=config.exporter.token_file) if gateway.auth == Auth() else gateway.auth
    return gateway.model_copy(update={"urls": urls, "auth": auth})


def own_url(listen: str) -> str:
    """Where a server that listens at HOST:PORT is reached from the same machine."""
    host, _, port = listen.rpartition(":")
    here = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
    return f"http://{here}:{port}"


def _stale_limit(config: Config) -> Iterator[str]:
    given = config.watchdog.stale_after_s
    interval = config.watchdog.read_interval_s(config.exporter.scrape_interval_s)
    least = STALE_INTERVALS * interval
    if given is not None and given < least:
        yield (
            f"watchdog.stale_after_s: {given:g} is refused; at least {least:g} ({STALE_INTERVALS} × the {interval:g} s "
            "between reads), or leave it out"
        )


def _no_taker_of_logs(config: Config) -> Iterator[str]:
    """The exporter sends on spans; of a log record it knows nothing."""
    otlp, listen = config.watchdog.otlp, config.exporter.listen
    if otlp.logs and otlp.endpoint is not None and is_same_server(otlp.endpoint, listen):
        yield f"watchdog.otlp.endpoint: {otlp.endpoint} is the exporter (listen: {listen}), which takes no logs; name a collector"


def _not_yet(config: Config) -> Iterator[str]:
    """What the contract names and this version cannot do: refused, because a setting without effect would be a lie."""
    for index, gateway in enumerate(config.gateways):
        if gateway.kind == "webhook" and gateway.replicas:
            yield f"gateways.{index}.replicas: of a webhook is not in this version; name each replica as a gateway of its own"


def example(config: Config) -> WatchedBackend:
    """A backend as discovery might find one, with all that a source can say. Raises ValueError where ``defaults`` is wrong."""
    from tailkeeper_exporter.discovery import Found

    gateway = config.defaults.get("gateway")
    kind = config.gateway_kinds.get(str(gateway.get("name"))) if isinstance(gateway, dict) else None
    said = {"engine": "generic"} | ({"gateway_server": "pool/example"} if kind == "haproxy" else {})
    # A pod is found as NAMESPACE/POD, which is its place at a gateway of kind kubernetes; what is found elsewhere has none there.
    is_pod = kind == "kubernetes" and any(entry.kind == "kubernetes" for entry in config.discovery)
    name = "namespace/example" if is_pod else "example"
    return config.compose(Found(name, "http://127.0.0.1:1", tuple(sorted(said.items()))))


def _defaults_for_found(config: Config) -> Iterator[str]:
    """What would be wrong with every backend that is found: better said now than once for each."""
    try:
        _ = example(config) if config.discovery else None
    except ValueError as error:
        yield f"defaults: {error}"


def load(path: Path) -> Config:
    """Read and validate ``path``. Raises ConfigError."""
    config = parse(_read(path))
    problems = [*_not_yet(config), *_defaults_for_found(config)]
    problems += [f"{where}: {why}" for where, file in _files(config) if (why := _unreadable(file)) is not None]
    problems += credential_checks.problems(credential_places(config))
    problems += _no_folder("watchdog.state", config.watchdog.state, "name another state file")
    problems += _removed_files(config)
    records = config.watchdog.records
    if records.enabled and records.path is not None:
        problems += _no_folder("watchdog.records.path", records.path, "name another file")
    if problems:
        raise ConfigError(problems)
    return config


def _no_folder(key: str, file: Path, otherwise: str) -> list[str]:
    """What is the matter with the folder of a file that is to be written; ``otherwise`` is what else may be done."""
    folder = file.resolve().parent
    try:
        return [] if folder.is_dir() else [f"{key}: the folder {folder} does not exist; create it, or {otherwise}"]
    except OSError as error:  # a folder on the way that may not be entered, or a name that is none
        why = error.strerror or error
        return [f"{key}: the folder {folder} cannot be looked at ({why}); let the user who runs this into it, or {otherwise}"]


def _removed_files(config: Config) -> Iterator[str]:
    """A drain that cannot be noted is refused when it is needed: better said before."""
    taken: dict[Path, int] = {}
    for index, gateway in enumerate(config.gateways):
        if isinstance(gateway, RouterGateway) and gateway.removed_file is not None:
            file = gateway.removed_file.resolve()
            yield from _no_folder(f"gateways.{index}.removed_file", file, "leave the key out")
            if taken.setdefault(file, index) != index:
                yield f"gateways.{index}.removed_file: {file} is that of gateways.{taken[file]} too; each needs one of its own"


def weights_in(path: Path) -> dict[str, float] | None:
    """The HScore's weights as ``path`` names them, None where it names none. Raises ValueError unless all of it is valid."""
    try:
        hscore = load(path).hscore
    except ConfigError as error:
        raise ValueError("; ".join(error.problems)) from error
    return hscore.weights.model_dump() if "weights" in hscore.model_fields_set else None


def _read(path: Path) -> Any:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError([f"larger than {MAX_FILE_BYTES} bytes; is this the right file?"])
        text = path.read_text(encoding="utf-8")
        return yaml.load(text, _OnceOnly)  # noqa: S506  a SafeLoader  # nosec B506
    except OSError as error:
        raise ConfigError([f"cannot be read: {error.strerror}"]) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError([f"not valid YAML: {error}"]) from error


class _OnceOnly(yaml.SafeLoader):
    """The safe loader, and a key that is there twice is an error: YAML's last one would silently win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<" and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r} is there twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def parse(document: Any) -> Config:
    """Validate a document. Raises ConfigError with one sentence for each wrong key."""
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise ConfigError([f"the file must hold keys and values, not {type(document).__name__}; see docs/configuration.md"])
    if (problem := wrong_version(document)) is not None:
        raise ConfigError([problem])  # alone: in another format every other complaint would mislead
    try:
        return Config.model_validate(_with_defaults(document))
    except ValidationError as error:
        raise ConfigError([line for detail in error.errors() for line in _explain(detail)]) from error


def _with_defaults(document: dict[str, Any]) -> dict[str, Any]:
    """``defaults`` laid under each backend; a backend's own key wins, nested mappings are merged."""
    defaults, backends = document.get("defaults") or {}, document.get("backends")
    if not isinstance(defaults, dict) or not isinstance(backends, list):
        return document
    kinds = _kinds(document.get("gateways"))
    return {**document, "backends": [with_servers(merged(defaults, b), kinds) if isinstance(b, dict) else b for b in backends]}


def _kinds(gateways: Any) -> dict[str, str]:
    """Names and kinds of the gateways, before anything is known to be valid."""
    good = [g for g in gateways if isinstance(g, dict)] if isinstance(gateways, list) else []
    return {str(gateway.get("name")): str(gateway.get("kind")) for gateway in good}


def _explain(detail: Any) -> Iterator[str]:
    """One pydantic error as a sentence: path, what is allowed, value."""
    path = ".".join(str(part) for number, part in enumerate(detail["loc"]) if not _is_kind(detail["loc"], number))
    message = str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        yield f"{path}: unknown key; {_allowed(detail['loc'])}"
    elif detail["type"] == "union_tag_not_found":
        yield f"{path}.kind: field required; see docs/configuration.md for the kinds there are"
    elif not path:
        yield from message.split("\n")
    else:
        given = "" if detail["type"] == "missing" else f" (given: {_short(detail['input'])})"
        yield f"{path}: {message[0].lower()}{message[1:]}{given}"


def _is_kind(location: tuple[Any, ...], number: int) -> bool:
    """Whether a step of a path is the kind that pydantic puts in between, where an entry can be of several kinds."""
    return number == 2 and (location[0] in ("gateways", "discovery") or location[:2] == ("watchdog", "source"))


def _short(value: Any) -> str:
    text = repr(_redacted(value))
    return text if len(text) <= 80 else text[:77] + "..."


def _allowed(location: tuple[Any, ...]) -> str:
    """The keys that are allowed beside an unknown one."""
    model: Any = Config
    for part in location[:-1]:
        model = _inner(model, part)
        if model is None:
            return "see docs/configuration.md for what is allowed here"
    fields = getattr(model, "model_fields", None)
    return f"allowed here: {', '.join(fields)}" if fields else "nothing is allowed here"


def _inner(model: Any, part: Any) -> Any:
    """The settings model behind one step of a path, or None where it cannot be told."""
    candidates = _models(model.model_fields[part].annotation) if part in getattr(model, "model_fields", {}) else None
    if candidates is None:
        return model if isinstance(part, int) else _by_kind(model, part)
    return candidates[0] if len(candidates) == 1 else candidates


def _by_kind(models: Any, kind: Any) -> Any:
    options = models if isinstance(models, list) else []
    return next((m for m in options if kind in str(m.model_fields["kind"].annotation)), None)


def _models(annotation: Any) -> list[Any]:
    """All settings models inside an annotation, however it is wrapped."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return [annotation]
    found: list[Any] = []
    for argument in getattr(annotation, "__args__", ()):
        found.extend(_models(argument))
    return found


def _files(config: Config) -> Iterator[tuple[str, Path]]:
    """Every file that the configuration names and that must be there, with the path of its key; those of credentials apart."""
    yield from _discovery_files(config)
    for index, gateway in enumerate(config.gateways):
        yield from _gateway_files(f"gateways.{index}", gateway)
    if config.exporter.gpu.file:
        yield "exporter.gpu.file", config.exporter.gpu.file
    if config.exporter.otlp.headers_file:
        yield "exporter.otlp.headers_file", config.exporter.otlp.headers_file
    if config.watchdog.baselines:
        yield "watchdog.baselines", config.watchdog.baselines
    if config.watchdog.otlp.headers_file:
        yield "watchdog.otlp.headers_file", config.watchdog.otlp.headers_file
    if config.watchdog.ledger is not None:
        named = ((key, getattr(config.watchdog.ledger, key)) for key in ("password_file", "ca_file", "cert_file", "key_file"))
        yield from ((f"watchdog.ledger.{key}", file) for key, file in named if file)
    if config.watchdog.leader is not None and config.watchdog.leader.kubeconfig:
        yield "watchdog.leader.kubeconfig", config.watchdog.leader.kubeconfig


def _gateway_files(prefix: str, gateway: Gateway) -> Iterator[tuple[str, Path]]:
    """A replica is an address, or an address with a file of its own."""
    replicas = enumerate(getattr(gateway, "replicas", ()))
    for at, settings in ((prefix, gateway), *((f"{prefix}.replicas.{n}", replica) for n, replica in replicas)):
        for key in ("eds_file", "file", "kubeconfig"):
            yield from ((f"{at}.{key}", file) for file in (getattr(settings, key, None),) if file)


def _discovery_files(config: Config) -> Iterator[tuple[str, Path]]:
    """Files that discovery needs itself. Those of file_sd may come and go."""
    for index, entry in enumerate(config.discovery):
        kubeconfig: Path | None = getattr(entry, "kubeconfig", None)
        if kubeconfig is not None:
            yield f"discovery.{index}.kubeconfig", kubeconfig


def credential_places(config: Config) -> tuple[credential_checks.Place, ...]:
    """Where the configuration holds credentials."""
    found = None
    with contextlib.suppress(ValueError):  # then `defaults` is wrong, which is said elsewhere
        found = example(config) if config.discovery else None
    return tuple(credential_checks.places(config, found))


def _unreadable(file: Path) -> str | None:
    try:
        with file.open("rb") as opened:
            opened.read(1)
    except OSError as error:
        return f"{file} cannot be read: {error.strerror}"
    return None


def effective(config: Config) -> str:
    """The configuration in force as YAML. Secrets stand in files, of which the path is shown, and perhaps in URLs."""
    # Laid under each listed backend already; what will be found needs them as they are.
    spent = set() if config.discovery else {"defaults"}
    in_force = config.model_copy(update={"gateways": config.for_watchdog().gateways})
    document = _redacted(in_force.model_dump(mode="json", exclude=spent))
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def _redacted(value: Any) -> Any:
    """``value`` without the credentials of the URLs in it, whichever key they stand under."""
    if isinstance(value, dict):
        return {key: _redacted(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_redacted(inner) for inner in value]
    return _without_credentials(value) if isinstance(value, str) and "://" in value else value


_SECRET_PARAMETER = re.compile(r"(?i)([?&;][^=&;#]*(?:key|token|secret|pass|pwd|auth|sig)[^=&;#]*=)[^&;#]*")
"""What a query calls a credential; other parameters stay, because they say which page is read."""


def _without_credentials(url: str) -> str:
    """``url`` without user and password, and without the values of parameters that are named like a secret."""
    scheme, separator, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    if "@" in host:
        host = "REDACTED@" + host.rpartition("@")[2]
    return _SECRET_PARAMETER.sub(r"\1REDACTED", f"{scheme}{separator}{host}{slash}{path}")
