"""Traefik through a file of its file provider: weights are written there, and read at Traefik's API.

Seen on Traefik 3.7 and relied on here:

* The provider watches the folder; a rename is taken up in 0.03 to 0.2 s, and so is a write in place, of which it may read
  half. Any file that appears there makes it read everything, and then it rests for `providersThrottleDuration` (2 s unless
  configured): so the draft lies outside of the folder where it can, and a second change within that time has to wait.
* Weight 0 takes all traffic away and is the only drain there is; requests in flight end in peace. All at 0 answers 503, so
  the last one is refused. A negative weight is taken in silence, like 0.
* A file that is wrong leaves the old configuration in force and nothing tells so but the log: what is written is parsed
  again before, and read at the API after.
* `strategy: p2c` ignores weights, 0 too, and `hrw` binds clients: there neither knob is turned.
* A child that fails its health check still gets its share, answered with 503, unless the weighted service has
  `healthCheck: {}`. Nothing is remembered here: a restart of ours or of Traefik changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators.calls import CallError, turn
from tailkeeper_watchdog.actuators.config_file import RESERVE_S, ConfigFile, Written
from tailkeeper_watchdog.actuators.contract import Actuator, ErrorKind, ServerState, Support
from tailkeeper_watchdog.actuators.document_text import edited, parsed
from tailkeeper_watchdog.actuators.file_weights import Entry, Pool, changed, place
from tailkeeper_watchdog.actuators.http_calls import JsonHttp
from tailkeeper_watchdog.actuators.replicas import replicated
from tailkeeper_watchdog.actuators.traefik_services import Weights, edits, pool_of, weights_of
from tailkeeper_watchdog.gateways import Gateway, TraefikGateway
from tailkeeper_watchdog.model import DRAIN, EMPTY, SERVE, Knob, KnobValue

KIND = "traefik"
ANSWER_LIMIT_BYTES = 16 * 1024 * 1024
"""A service is some 400 bytes, so 10,000 are 4 MB."""
SERVICES_PATH = "/api/http/services?per_page=100000"
POLL_S = 0.02
WEIGHTED_STRATEGIES = ("", "wrr", "leasttime")
_WHY_NOT = "Traefik's file provider is used for weight and admission only"


@dataclass(frozen=True, slots=True)
class Seen:
    """What Traefik has of the service now. ``servers`` has the one server of each member, ``down`` those that it keeps away."""

    weights: Weights
    servers: Mapping[str, str]
    down: frozenset[str] = frozenset()
    cannot: str = ""

    @property
    def pool(self) -> Pool:
        return pool_of(self.weights, self.servers)

    @property
    def serving(self) -> frozenset[str]:
        return frozenset(server for server, entry in self.pool.items() if not entry.out and server not in self.down)

    def states(self) -> Mapping[str, ServerState]:
        return {server: self._state(server, entry) for server, entry in self.pool.items()}

    def _state(self, server: str, entry: Entry) -> ServerState:
        if self.cannot:
            cannot = {Knob.WEIGHT: self.cannot, Knob.ADMISSION: self.cannot}
            return ServerState({}, server not in self.down, normal_weight=None, cannot=cannot)
        values: dict[Knob, KnobValue] = {Knob.WEIGHT: entry.share, Knob.ADMISSION: DRAIN if entry.drained else SERVE}
        in_service = server not in self.down and entry.share > 0 and entry.configured > 0
        return ServerState(values, in_service, normal_weight=1.0)


def parse_services(answer: Any, service: str) -> Seen:
    """Of `/api/http/services`. Raises CallError(PROTOCOL, NOT_FOUND)."""
    try:
        services = {str(row["name"]): row for row in answer}
        ours = {name.removesuffix("@file"): row for name, row in services.items() if name.endswith("@file")}
        weights = weights_of({"http": {"services": ours}}, service)
        if weights.form == "loadBalancer":
            return _of_servers(ours[service], weights)
        return _of_children(services, ours[service], weights)
    except (TypeError, KeyError, ValueError, AttributeError):
        raise CallError(ErrorKind.PROTOCOL, "Traefik's list of services has a form that cannot be read") from None


def _of_servers(row: Any, weights: Weights) -> Seen:
    strategy = str(row["loadBalancer"].get("strategy", ""))
    cannot = (
        ""
        if strategy in WEIGHTED_STRATEGIES
        else f"its service has `strategy: {strategy}`, which does not keep to weights; use wrr"
    )
    return Seen(weights, {m.id: place(m.id) for m in weights.members}, _down(row), cannot)


def _of_children(services: Mapping[str, Any], row: Any, weights: Weights) -> Seen:
    """Children with exactly one server, from whatever provider they are."""
    servers: dict[str, str] = {}
    down: set[str] = set()
    for member in weights.members:
        child = services.get(member.id if "@" in member.id else f"{member.id}@file", {})
        urls = [str(server["url"]) for server in child.get("loadBalancer", {}).get("servers") or []]
        if len(urls) == 1:
            servers[member.id] = place(urls[0])
            # Without `healthCheck: {}` a child that is down is given its traffic all the same, and answers 503.
            down |= _down(child) if "healthCheck" in row["weighted"] else frozenset()
    return Seen(weights, servers, frozenset(down))


def _down(row: Any) -> frozenset[str]:
    return frozenset(place(str(url)) for url, status in (row.get("serverStatus") or {}).items() if status == "DOWN")


class TraefikActuator:
    """One Traefik: the file with one service of it, and its API. Satisfies ``Actuator``."""

    kind = KIND

    def __init__(self, name: str, service: str, file: Path, api_url: str, auth: Auth) -> None:
        self.name = name
        self._service = service
        self._file = ConfigFile(file, aside=True)
        self._api = JsonHttp(api_url, auth, ANSWER_LIMIT_BYTES)
        self._lock = asyncio.Lock()

    def supports(self, knob: Knob) -> Support:
        return Support(True) if knob in (Knob.WEIGHT, Knob.ADMISSION) else Support(False, _WHY_NOT)

    async def read(self, servers: tuple[str, ...], deadline_s: float) -> Mapping[str, ServerState]:
        async with turn(self._lock, self.name, "*", deadline_s) as ends_at, asyncio.timeout_at(ends_at):
            states = (await self._seen()).states()
        return {server: states[place(server)] for server in servers if place(server) in states}

    async def write(self, server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
        async with turn(self._lock, self.name, server, deadline_s) as ends_at, asyncio.timeout_at(ends_at):
            if refused := [knob.value for knob in values if not self.supports(knob).enforceable]:
                raise CallError(ErrorKind.REFUSED, f"{refused[0]}: {_WHY_NOT}")
            seen = await self._seen()
            if place(server) not in seen.pool:
                raise CallError(ErrorKind.NOT_FOUND, _nobody(seen.weights))
            if seen.cannot:
                raise CallError(ErrorKind.REFUSED, seen.cannot)
            making = _Making(seen, place(server), values)
            written = await self._file.changed(making, ends_at)
            if written.before == written.after and not making.is_in_force(seen):
                written = await self._file.changed(making, ends_at, republish=True)
            if not making.is_in_force(seen):
                await self._until_taken(making, written, ends_at)
            if making.refusal is not None:
                raise making.refusal

    async def _until_taken(self, making: _Making, written: Written, ends_at: float) -> None:
        """Until Traefik has what was written. Raises CallError; a file that it did not take in time is put back as it was."""
        try:
            async with asyncio.timeout_at(ends_at - RESERVE_S):
                while not making.is_in_force(await self._seen()):  # noqa: ASYNC110 - a Traefik has no event to wait for
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            words = (
                f"Traefik has not taken {self._file.path}: `providersThrottleDuration` (2 s by default) may be too long, or a "
                f"file of the provider is wrong, which only Traefik's log tells; {await self._file.taken_back(making, written)}"
            )
            raise CallError(ErrorKind.TIMEOUT, words) from None
        except CallError as error:
            if error.kind is not ErrorKind.UNREACHABLE:
                raise
            words = f"{self._file.path} is written, and then Traefik's API was not to be reached: the effect is unknown"
            raise CallError(ErrorKind.PROTOCOL, words) from error

    async def _seen(self) -> Seen:
        return parse_services(await self._api.json(SERVICES_PATH), self._service)

    async def close(self) -> None:
        await self._api.close()


def _nobody(weights: Weights) -> str:
    if weights.form == "weighted":
        return f"{weights.service} has no child with this server alone; give each server a child service of its own"
    return f"{weights.service} has no such server; write its URL or host:port as in the file"


@dataclass(slots=True)
class _Making:
    """One change in the making: from the text that is there to the text that is wanted, as often as it must be made anew."""

    seen: Seen
    server: str
    values: Mapping[Knob, KnobValue]
    refusal: CallError | None = None
    _wanted: Entry | None = None
    _before: Entry | None = None
    _units: Mapping[str, int] = field(default_factory=lambda: EMPTY)

    def text(self, found: str) -> str:
        """Raises CallError."""
        document = parsed(found, is_json=False)
        weights = weights_of(document, self.seen.weights.service)
        before = pool_of(weights, self.seen.servers)
        if self.server not in before:
            raise CallError(ErrorKind.NOT_FOUND, f"in the file {_nobody(weights)}")
        self._before = before[self.server]
        pool, self.refusal = changed(before, self.server, self.values, self.seen.serving)
        if self.refusal is not None and pool == before:
            raise self.refusal
        new = edited(found, edits(weights, self.seen.servers, pool), False, document)
        made = weights_of(document, self.seen.weights.service)
        self._wanted, self._units = pool_of(made, self.seen.servers)[self.server], _units(made)
        return new

    def undone(self, found: str) -> str:
        """The text without what was made last, where it still stands there. Raises CallError."""
        document = parsed(found, is_json=False)
        weights = weights_of(document, self.seen.weights.service)
        pool, before = pool_of(weights, self.seen.servers), self._before
        if before is None or pool.get(self.server) != self._wanted:
            return found
        return edited(found, edits(weights, self.seen.servers, {**pool, self.server: before}), False, document)

    def is_in_force(self, seen: Seen) -> bool:
        """Whether Traefik has what was made last."""
        return seen.pool.get(self.server) == self._wanted and _units(seen.weights) == self._units


def _units(weights: Weights) -> Mapping[str, int]:
    return {member.id: 1 if member.units is None else member.units for member in weights.members}


def create(settings: Gateway) -> Actuator:
    """Raises TypeError for another gateway's settings."""
    if not isinstance(settings, TraefikGateway):
        raise TypeError(f"traefik cannot be made from {type(settings).__name__}")
    files = {settings.api_url: settings.file} | {r.api_url: r.file or settings.file for r in settings.replicas}

    def one(name: str, api_url: str) -> Actuator:
        return TraefikActuator(name, settings.service, files[api_url], api_url, settings.auth)

    return replicated(settings.name, tuple(files), one)
