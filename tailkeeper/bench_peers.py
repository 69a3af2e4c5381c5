"""``bench loop --peers``: who stops the traffic to a sick engine, and how long after the fault, all on the same engines at once.

Three gateways before the demo's engines, each with the same load, and the same fault for all of them:

* ``tailkeeper``: HAProxy that checks nothing by itself, a tap before each engine, ``tailkeeper up`` in direct mode with all
  policies enforced and every other setting at its default.
* ``haproxy_checks``: HAProxy's own ``option httpchk GET /health`` with ``check inter 1s fall 3``.
* ``envoy_outlier_detection``: five 5xx or gateway failures in a row, no retries, Envoy's default limit of 15 s for a request.

The eye reads the gateways' own counters: a gateway has stopped when it has sent the sick engine nothing for ``QUIET_S``; the
figure is the time from the fault to the last request sent. None is never, as far as ``HORIZON_S`` goes. Every fault has a fresh
stack, since who was put out once waits longer the second time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tailkeeper.bench_faults import answers
from tailkeeper.bench_gateways import find, haproxy_rows, program, ready
from tailkeeper_watchdog.policies import POLICIES

FAULTS: Mapping[str, Mapping[str, Any]] = {
    "hung": {"fault": "hang"},
    "errors": {"fault": "errors", "ratio": 1.0},
    "dead": {"fault": "restart"},
}
"""What the demo's fleet is asked for. Hung: ``/health`` and ``/metrics`` still answer. Errors: 500 to every completion, at once,
with ``/health`` at 200. Dead: nobody listens."""
ENGINES = 4
HORIZON_S = 30.0
QUIET_S = 4.0
"""Twelve turns of an engine that is in the rotation."""
WARM_UP_S = 12.0
"""Longer than the watchdog's short window, so that it has a page to compare with, and a probe of each engine."""
REQUESTS_PER_S = 12.0
"""At each gateway."""
PATIENCE_S = 20.0
"""Of a client."""
LOOK_EVERY_S = 0.05
BODY = {"model": "llama-3-8b", "prompt": "What is the tail of a distribution?", "max_tokens": 4}

Sent = Callable[[str], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Peer:
    """One gateway: where requests go, and how many it has sent to an engine so far, attempts included."""

    url: str
    sent: Sent


async def side_by_side(tick_s: float, seed: int) -> dict[str, Any]:
    """Seconds from the fault to the last request, by fault and gateway. Raises RuntimeError without HAProxy."""
    haproxy = find("haproxy")
    if haproxy is None:
        raise RuntimeError("--peers needs haproxy on the PATH: apt-get install haproxy")
    stopped = {}
    for fault, parameters in FAULTS.items():
        with tempfile.TemporaryDirectory(prefix="tk-") as name:
            stopped[fault] = await _one_fault(Path(name), haproxy, find("envoy"), parameters, tick_s, seed)
    return {"requests_per_s": REQUESTS_PER_S, "horizon_s": HORIZON_S, "fault_to_last_request_seconds": stopped}


async def _one_fault(
    folder: Path, haproxy: str, envoy: str | None, fault: Mapping[str, Any], tick_s: float, seed: int
) -> dict[str, float | None]:
    async with contextlib.AsyncExitStack() as stack:
        admin, engines = await stack.enter_async_context(_fleet(folder, seed))
        peers = await stack.enter_async_context(_haproxies(folder, haproxy, engines, tick_s))
        if envoy is not None:
            peers["envoy_outlier_detection"] = await stack.enter_async_context(_envoy(folder, envoy, engines))
        client = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S, limits=_MANY))
        load = [asyncio.create_task(_ask(client, peer.url)) for peer in peers.values()]
        try:
            await asyncio.sleep(WARM_UP_S)
            victim = list(engines)[1]
            answer = await client.post(f"{admin}/faults", json={"engine": victim, "duration_s": 600, **fault})
            answer.raise_for_status()
            eyes = [_last_request(peer, victim, time.monotonic()) for peer in peers.values()]
            return dict(zip(peers, await asyncio.gather(*eyes), strict=True))
        finally:
            for task in load:
                task.cancel()
            await asyncio.gather(*load, return_exceptions=True)


_MANY = httpx.Limits(max_connections=2_000, max_keepalive_connections=200)


async def _ask(client: httpx.AsyncClient, url: str) -> None:
    """An open loop: users do not wait for each other."""
    async with asyncio.TaskGroup() as group:
        while True:
            group.create_task(_one_request(client, url))
            await asyncio.sleep(1.0 / REQUESTS_PER_S)


async def _one_request(client: httpx.AsyncClient, url: str) -> None:
    with contextlib.suppress(httpx.HTTPError):
        await client.post(f"{url}/v1/completions", json=BODY)


async def _last_request(peer: Peer, victim: str, begun: float) -> float | None:
    """Seconds from ``begun`` to the last request sent to ``victim``; None where they go on until the horizon."""
    count, last = await peer.sent(victim), begun
    while (now := time.monotonic()) < begun + HORIZON_S:
        await asyncio.sleep(LOOK_EVERY_S)
        latest = await peer.sent(victim)
        if latest != count:
            count, last = latest, time.monotonic()
        elif now - last >= QUIET_S:
            return last - begun
    return None


@contextlib.asynccontextmanager
async def _fleet(folder: Path, seed: int) -> AsyncIterator[tuple[str, Mapping[str, str]]]:
    """The demo's engines: the URL for faults, and the engines' addresses by name."""
    listening = folder / "fleet.json"
    command = [sys.executable, "-m", "tailkeeper_demo.fleet", "--engines", str(ENGINES), "--seed", str(seed)]
    async with program([*command, "--ready-file", str(listening)], folder, listening.exists):
        document = json.loads(listening.read_text())
        yield document["admin_url"], {e["name"]: e["url"].removeprefix("http://") for e in document["engines"]}


@contextlib.asynccontextmanager
async def _haproxies(folder: Path, binary: str, engines: Mapping[str, str], tick_s: float) -> AsyncIterator[dict[str, Peer]]:
    """One HAProxy with both ways in, and Tailkeeper over the one that does not check."""
    from tailkeeper_demo.processes import free_port

    socket, config = folder / "s", folder / "h.cfg"
    ports = {"watched": free_port(), "checked": free_port()}
    taps = {name: f"127.0.0.1:{free_port()}" for name in engines}
    config.write_text(_haproxy_config(socket, ports, taps, engines))

    def peer(pool: str) -> Peer:
        async def sent(name: str) -> int:
            return int((await haproxy_rows(socket))[pool, name]["lbtot"])

        return Peer(f"http://127.0.0.1:{ports[pool]}", sent)

    async with program([binary, "-db", "-f", str(config)], folder, socket.exists), _tailkeeper(folder, engines, taps, tick_s):
        yield {"tailkeeper": peer("watched"), "haproxy_checks": peer("checked")}


def _haproxy_config(socket: Path, ports: Mapping[str, int], taps: Mapping[str, str], engines: Mapping[str, str]) -> str:
    watched = "\n".join(f"  server {name} {address} weight 100" for name, address in taps.items())
    checked = "\n".join(f"  server {name} {address} weight 100 check inter 1s fall 3" for name, address in engines.items())
    ways = "\n".join(f"frontend {pool}-in\n  bind 127.0.0.1:{port}\n  default_backend {pool}" for pool, port in ports.items())
    return (
        f"global\n  stats socket {socket} mode 600 level admin\ndefaults\n  mode http\n  timeout connect 1s\n"
        f"  timeout client 60s\n  timeout server 60s\n  balance roundrobin\n{ways}\nbackend watched\n{watched}\n"
        f"backend checked\n  option httpchk GET /health\n{checked}\n"
    )


@contextlib.asynccontextmanager
async def _tailkeeper(folder: Path, engines: Mapping[str, str], taps: Mapping[str, str], tick_s: float) -> AsyncIterator[None]:
    from tailkeeper_demo.processes import free_port

    console, exporter = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    document = {
        "defaults": {"engine": "vllm", "model": BODY["model"]},
        "backends": [
            {
                "name": name,
                "url": f"http://{address}",
                "tap": {"listen": taps[name]},
                "gateway": {"name": "edge", "server": f"watched/{name}"},
            }
            for name, address in engines.items()
        ],
        "gateways": [{"name": "edge", "kind": "haproxy", "socket": str(folder / "s")}],
        "exporter": {"listen": exporter, "gpu": {"source": "none"}},
        "watchdog": {
            "listen": console,
            "tick_s": tick_s,
            "state": str(folder / "tailkeeper.db"),
            "source": {"kind": "exporter", "urls": [f"http://{exporter}"]},
        },
        "policies": {policy.name: {"mode": "enforce"} for policy in POLICIES},
    }
    config = folder / "tailkeeper.yaml"
    config.write_text(json.dumps(document))
    async with program([sys.executable, "-m", "tailkeeper.cli", "up", "-c", str(config)], folder, lambda: True):
        await ready(lambda: answers(f"http://{console}/readyz"), "the watchdog's start")
        yield


@contextlib.asynccontextmanager
async def _envoy(folder: Path, binary: str, engines: Mapping[str, str]) -> AsyncIterator[Peer]:
    from tailkeeper_demo.processes import free_port

    port, admin = free_port(), free_port()
    config, admin_url = folder / "envoy.yaml", f"http://127.0.0.1:{admin}"
    config.write_text(json.dumps(_envoy_config(port, admin, engines)))
    command = [binary, "-c", str(config), "--log-level", "error", "--concurrency", "1", "--use-dynamic-base-id"]
    async with program(command, folder, lambda: True), httpx.AsyncClient(trust_env=False) as client:
        await ready(lambda: answers(f"{admin_url}/ready"), "Envoy's start")

        async def sent(name: str) -> int:
            lines = (await client.get(f"{admin_url}/clusters")).text.splitlines()
            head = f"llm::{engines[name]}::"
            counts = dict(line.removeprefix(head).split("::") for line in lines if line.startswith(head))
            return int(counts["rq_total"]) + int(counts["cx_connect_fail"])

        yield Peer(f"http://127.0.0.1:{port}", sent)


def _envoy_config(port: int, admin: int, engines: Mapping[str, str]) -> dict[str, Any]:
    def address(port: int) -> dict[str, Any]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": port}}

    types = "type.googleapis.com/envoy.extensions.filters"
    manager = {
        "@type": f"{types}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [_TO_ENGINES]}]},
        "http_filters": [{"name": "router", "typed_config": {"@type": f"{types}.http.router.v3.Router"}}],
    }
    ports = [int(engine.rpartition(":")[2]) for engine in engines.values()]
    cluster = {
        "name": "llm",
        "type": "STATIC",
        "connect_timeout": "1s",
        "outlier_detection": _OUTLIERS,
        "load_assignment": {
            "cluster_name": "llm",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(p)}} for p in ports]}],
        },
    }
    listener = {"address": address(port), "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}]}
    return {"admin": {"address": address(admin)}, "static_resources": {"listeners": [listener], "clusters": [cluster]}}


_TO_ENGINES = {"match": {"prefix": "/"}, "route": {"cluster": "llm"}}
_OUTLIERS = {
    "consecutive_5xx": 5,
    "consecutive_gateway_failure": 5,
    "enforcing_consecutive_gateway_failure": 100,
    "interval": "1s",
    "base_ejection_time": "60s",
    "max_ejection_percent": 50,
}
"""The longest ejection is past the horizon, so that nobody comes back within it."""
