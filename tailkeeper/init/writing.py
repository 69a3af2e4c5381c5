"""The configuration as `init` writes it: commented for somebody who has never seen one, in mode observe. Pure.

Whatever a target, a label or a model calls itself ends up as a quoted YAML scalar or as one line of a comment, and
never as structure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from tailkeeper.backends import compose
from tailkeeper.init.found import Discovered, EngineHere, GatewayHere
from tailkeeper_exporter.counted import plural
from tailkeeper_exporter.settings import is_loopback
from tailkeeper_watchdog.actuators.file_weights import place
from tailkeeper_watchdog.gateways import Gateway
from tailkeeper_watchdog.policies import POLICIES

MAX_LISTED = 50
"""Engines of a Prometheus that are listed one by one; of more than that the file names the Prometheus, which is asked anew."""
EXPORTER_PORT, CONSOLE_PORT = 9400, 8088
MAX_COMMENT_CHARS = 120
_GATEWAYS = TypeAdapter(Gateway)
_PLAIN = re.compile(r"[A-Za-z/.][A-Za-z0-9_./-]*")
_NOT_PLAIN = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "~"})


def quoted(text: str) -> str:
    """``text`` as a YAML scalar on one line: plain where that is surely a string, else in double quotes and ASCII."""
    if _PLAIN.fullmatch(text) and text.lower() not in _NOT_PLAIN and len(text) < 128 and not text.startswith("."):
        return text
    clean = text.encode("utf-8", "replace").decode()
    return yaml.safe_dump(clean, default_style='"', width=10**9).strip()


def comment(text: str) -> str:
    """``text`` as it may stand behind `#`: printable, on one line, bounded."""
    words = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * MAX_COMMENT_CHARS]).split())
    return words if len(words) <= MAX_COMMENT_CHARS else f"{words[: MAX_COMMENT_CHARS - 1]}…"


def flow(values: Mapping[str, Any]) -> str:
    """A mapping on one line."""
    return "{" + ", ".join(f"{key}: {_value(value)}" for key, value in values.items()) + "}"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return flow(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return quoted(value) if isinstance(value, str) else str(value)


class Names:
    """Names that differ, whatever was found twice."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def unique(self, name: str) -> str:
        wanted, number = name, 2
        while wanted in self._taken:
            wanted, number = f"{name[:120]}-{number}", number + 1
        self._taken.add(wanted)
        return wanted


def usable(found: Discovered) -> tuple[list[EngineHere], list[str]]:
    """The engines that a configuration can have, and a sentence about each of the others."""
    good: list[EngineHere] = []
    left_out: list[str] = []
    for engine in found.engines:
        try:
            compose(engine.found, {}, {})
            good.append(engine)
        except ValueError as error:
            left_out.append(f"left out: the engine at {comment(engine.found.url)}: {comment(str(error))}")
    return good, left_out


def is_complete(gateway: GatewayHere) -> bool:
    """Whether its entry needs nobody to fill it in, and is one that the settings take."""
    try:
        _GATEWAYS.validate_python({"name": "edge", "kind": gateway.kind, **gateway.entry})
    except ValidationError:
        return False
    return not gateway.missing


def written(found: Discovered, header: str) -> str:
    """The whole file. ``header`` says when and by what it was made, in one line."""
    engines, _ = usable(found)
    names = Names()
    gateways = [(names.unique(gateway.kind.removesuffix("_router")), gateway) for gateway in found.gateways]
    parts = (_head(header), _slo(), _backends(found, engines, gateways), _discovery(found, engines), _gateways(gateways))
    return "\n".join(line for part in (*parts, _exporter(found), _watchdog(found), _policies()) for line in part) + "\n"


def _head(header: str) -> Iterator[str]:
    yield f"# {comment(header)}"
    yield "# Everything is in mode observe: Tailkeeper watches and says what it would do, and changes nothing."
    yield "# Lines that you should look at are marked EDIT. What is left out has its default; docs/configuration.md has all keys."
    yield "#"
    yield "#   tailkeeper check-config -c FILE   is the file right, and what could be enforced where"
    yield "#   tailkeeper doctor -c FILE         is everything it names to be reached, end to end"
    yield "#   tailkeeper up -c FILE             watch"
    yield ""


def _slo() -> Iterator[str]:
    yield "# What you promise your users. EDIT: these are the defaults. P99 means that 99 of 100 requests are faster."
    yield "slo:"
    yield "  objective: 0.995              # share of requests that must keep the latencies below"
    yield "  latency: {ttft_p99_s: 1.2, itl_p99_s: 0.2, e2e_p99_s: 30}   # first token, between tokens, whole answer; seconds"
    yield ""


def _backends(found: Discovered, engines: list[EngineHere], gateways: list[tuple[str, GatewayHere]]) -> Iterator[str]:
    yield "# Your engines, each under a name that is used everywhere: on boards, in alerts, in the decision log."
    if not engines or _by_discovery(found, engines):
        yield from _example_backend(bool(engines))
        return
    yield "backends:"
    names = Names()
    for engine in engines:
        yield from _backend(engine, names.unique(_name(engine, gateways)), gateways, _one_gpu(found, engines))
    yield ""


def _by_discovery(found: Discovered, engines: list[EngineHere]) -> bool:
    return len(engines) > MAX_LISTED and found.prometheus_url is not None


def _one_gpu(found: Discovered, engines: list[EngineHere]) -> bool:
    """Whether there is no question which GPU an engine is on."""
    local = len(engines) == 1 and is_loopback(place(engines[0].found.url))
    return local and found.gpus is not None and len(found.gpus.devices) == 1 and found.gpus.dcgm_url is None


def _name(engine: EngineHere, gateways: list[tuple[str, GatewayHere]]) -> str:
    """What HAProxy calls it, where that is known: people do too. Else its address."""
    for _, gateway, server in _placed(engine, gateways):
        if gateway.kind == "haproxy" and (name := server.partition("/")[2]):
            return name[:128]
    return engine.found.name


def _placed(engine: EngineHere, gateways: list[tuple[str, GatewayHere]]) -> list[tuple[str, GatewayHere, str]]:
    """The gateways that know one of its addresses, each once, with what it is called there."""
    addresses = [place(engine.found.url), *engine.also[:64]]
    known = {n: (n, g, g.servers[a]) for n, g in gateways for a in reversed(addresses) if g.servers.get(a)}
    return [(n, g, s) for n, g, s in known.values() if g.kind != "haproxy" or all(s.partition("/"))]


def _example_backend(are_found: bool) -> Iterator[str]:
    if are_found:
        yield "# They are found anew every 30 s by `discovery` below; list one here only to give it keys of its own:"
    else:
        yield "# EDIT: none was found. Put lines like these, without the #, in the place of `backends: []`:"
    yield "# backends:"
    yield "#   - name: a"
    yield "#     engine: vllm               # sglang trtllm tgi llamacpp nim ray triton generic"
    yield "#     url: http://127.0.0.1:8000"
    yield "#     model: llama-3-8b"
    yield "#     gateway: {name: edge, server: llm/a}   # what it is called at a gateway below; leave out without one"
    yield "backends: []"
    yield ""


def _backend(engine: EngineHere, name: str, gateways: list[tuple[str, GatewayHere]], one_gpu: bool) -> Iterator[str]:
    found = engine.found
    yield f"  - name: {quoted(name)}"
    keys = ("engine", "url", "metrics_url", "model")
    values = {"engine": found.key("engine") or "generic", "url": found.url, "metrics_url": found.key("metrics_url")}
    values["model"] = found.key("model")
    for key in keys:
        value = values[key]
        if value is not None:
            yield f"    {key}: {quoted(value)}"
    if len(engine.models) > 1:
        yield f"    # EDIT: it serves {comment(', '.join(engine.models))}; name one as `model:` for the probe"
    if engine.also:
        yield f"    # The same engine answers at {comment(', '.join(engine.also))} too: a proxy or a tap before it"
    if engine.remark:
        yield f"    # EDIT: {comment(engine.remark)}"
    yield (
        '    gpus: ["0"]'
        if one_gpu
        else '    # gpus: ["0"]                  # the GPUs it is on: NVML index, UUID or a unique part of its beginning'
    )
    yield from _place(engine, gateways)
    yield "    # api_key_file: /etc/tailkeeper/key    # where the engine wants a key; one line"


def _place(engine: EngineHere, gateways: list[tuple[str, GatewayHere]]) -> Iterator[str]:
    """What the engine is called at each gateway that knows one of its addresses."""
    placed = _placed(engine, gateways)
    sure = [{"name": name, "server": server} for name, gateway, server in placed if is_complete(gateway)]
    if sure:
        yield f"    gateway: {_value(sure) if len(sure) > 1 else flow(sure[0])}"
    for name, gateway, server in placed:
        if not is_complete(gateway):
            yield f"    # gateway: {flow({'name': name, 'server': server})}"
    if not placed and gateways:
        yield "    # EDIT: what it is called at a gateway; without it nobody can act for it"
        yield f"    # gateway: {flow({'name': gateways[0][0], 'server': 'llm/a'})}"


def _discovery(found: Discovered, engines: list[EngineHere]) -> Iterator[str]:
    yield "# Engines that come and go can be found instead of listed: one of these lines in the place of []."
    lines = []
    if found.prometheus_url is not None:
        lines.append(
            (_by_discovery(found, engines), flow({"kind": "prometheus", "url": found.prometheus_url, **_credentials(found)}))
        )
    namespace = found.kubernetes_namespace or "llm"
    pods = {"kind": "kubernetes", "namespace": namespace, "selector": "app=vllm", "port": 8000, "engine": "vllm"}
    lines.append((False, flow(pods)))
    lines.append((False, "{kind: dns, name: llm.internal, port: 8000, engine: vllm}"))
    active = any(is_on for is_on, _ in lines)
    yield "discovery:" if active else "discovery: []"
    yield from (f"  - {text}" if is_on else f"#  - {text}" for is_on, text in lines)
    yield ""


def _credentials(found: Discovered) -> dict[str, Any]:
    return {"auth": dict(found.prometheus_auth)} if found.prometheus_auth else {}


def _gateways(gateways: list[tuple[str, GatewayHere]]) -> Iterator[str]:
    yield "# Where traffic is switched; docs/gateways.md. In mode observe it is only read."
    complete = [(name, gateway) for name, gateway in gateways if is_complete(gateway)]
    yield "gateways:" if complete else "gateways: []"
    for name, gateway in complete:
        yield from _about(gateway, "  ")
        yield f"  - {flow({'name': name, 'kind': gateway.kind, **gateway.entry})}"
    for name, gateway in gateways:
        if not is_complete(gateway):
            yield from _about(gateway, "#  ")
            missing = ", ".join(gateway.missing) or "the keys below"
            yield f"#  EDIT: set {missing}, and take the # away:"
            yield f"#  - {flow({'name': name, 'kind': gateway.kind, **gateway.entry})}"
    if not gateways:
        yield "# EDIT: none was found. One line like these in the place of [], and `gateway:` at each engine:"
        yield "#  - {name: edge, kind: haproxy, socket: /run/haproxy/admin.sock}    # needs `level admin` in haproxy.cfg"
        yield '#  - {name: edge, kind: webhook, url: "http://127.0.0.1:9000"}       # all kinds: docs/gateways.md'
    yield ""


def _about(gateway: GatewayHere, indent: str) -> Iterator[str]:
    start = indent if indent.startswith("#") else f"{indent}# "
    yield f"{start}{comment(gateway.where)}"
    if gateway.remark:
        yield f"{start}{comment(gateway.remark)}"


def ports(found: Discovered) -> tuple[int, int]:
    """Free ports for the exporter and the console: the usual ones, else the next."""
    taken = set(found.taken_ports)
    exporter = next(port for port in range(EXPORTER_PORT, EXPORTER_PORT + 1_000) if port not in taken)
    taken.add(exporter)
    return exporter, next(port for port in range(CONSOLE_PORT, CONSOLE_PORT + 1_000) if port not in taken)


def _exporter(found: Discovered) -> Iterator[str]:
    port = ports(found)[0]
    yield "# Reads the engines and their GPUs. `tailkeeper up` runs it together with the watchdog."
    yield "exporter:"
    yield f"  listen: 127.0.0.1:{port}" + _moved(port, EXPORTER_PORT)
    gpus = found.gpus
    if gpus is not None and gpus.dcgm_url is not None:
        yield f"  gpu: {flow({'source': 'dcgm', 'url': gpus.dcgm_url})}"
    else:
        yield "  gpu: {source: auto}           # NVML where there is a driver; or dcgm (url), none"
    if gpus is not None and gpus.dcgm_url is None:
        yield from (f"  # GPU {comment(device)}" for device in gpus.devices)
    if len(found.dcgm_pages) > 1:
        yield f"  # DCGM exporters of {len(found.dcgm_pages)} nodes: an exporter reads one of them, so run one on each node"
        yield from (f"  #   {comment(page)}" for page in found.dcgm_pages[:MAX_LISTED])
    yield ""


def _moved(port: int, usual: int) -> str:
    return "" if port == usual else f"       # {usual} is taken on this machine"


def _watchdog(found: Discovered) -> Iterator[str]:
    exporter, console = ports(found)
    yield "watchdog:"
    yield f"  listen: 127.0.0.1:{console}       # the console; beyond loopback only with token_file" + _moved(
        console, CONSOLE_PORT
    )
    yield f"  source: {flow({'kind': 'exporter', 'urls': [f'http://127.0.0.1:{exporter}']})}"
    yield from _other_sources(found)
    yield "  state: ./tailkeeper.db        # what is in force and why; keep it over restarts"
    yield "  # Whoever should be told. Take the # away when you want to be, then run `tailkeeper notify-test -c FILE`:"
    yield f"  # alertmanager: {flow({'url': found.alertmanager_url or 'http://127.0.0.1:9093'})}"
    yield ""


def _other_sources(found: Discovered) -> Iterator[str]:
    for url in found.exporters[:MAX_LISTED]:
        yield f"  # A Tailkeeper exporter runs at {comment(url)} already: name it in urls instead of starting another one"
    if found.prometheus_url is not None:
        interval = found.scrape_interval_s or 15
        source = {"kind": "prometheus", "url": found.prometheus_url, "interval_s": interval, **_credentials(found)}
        yield "  # Or from your Prometheus, without asking the engines anything (then a hung one cannot be told from a busy one):"
        yield f"  # source: {flow(source)}"


def _policies() -> Iterator[str]:
    yield "# What may be done: observe writes down, advise also notifies, enforce acts. Look at the decision log for"
    yield "# some days before you set the first one to enforce; `tailkeeper replay` says what it would have done."
    yield "policies:"
    yield from (f"  {policy.name}: {{mode: observe}}" for policy in POLICIES)
    yield ""
    yield "# No policy can go beyond these."
    yield "guards:"
    yield "  max_fraction: 0.3             # of a pool that is acted on at once"
    yield "  min_healthy: 1"
    yield "  lease_s: 300                  # every change ends by itself after this time, unless it is renewed"
    yield "  # pause_file: /etc/tailkeeper/pause    # while this file exists nothing is changed"


def sentences(found: Discovered) -> Iterable[str]:
    """What is left to do by hand, for the end of the command."""
    engines, left_out = usable(found)
    yield from left_out
    waiting = [gateway.kind for gateway in found.gateways if not is_complete(gateway)]
    if waiting:
        kinds = ", ".join(sorted(set(waiting)))
        stand = "gateway stands as a comment" if len(waiting) == 1 else "gateways stand as comments"
        yield f"{len(waiting)} {stand} ({kinds}): fill in what cannot be found out from outside"
    several = sum(1 for engine in engines if len(engine.models) > 1)
    if several:
        yield f"{plural(several, 'engine')} with several models: name the one to probe"
