"""The backends' own taps, as one gateway: each is turned at the exporter that runs it, in the words of the webhook contract.

With several exporters ``GET /api/v1/taps`` of each tells who has which backend; that is remembered until an exporter does not
know a backend any more. The same list tells what is in force at many taps at once. Made of one webhook actuator for each
exporter. A tap stands before one backend, so it has no weight:
it is not read, and is refused in a write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tailkeeper_exporter import long_json, strict_json
from tailkeeper_exporter.settings import Auth
from tailkeeper_exporter.tap.status import SILENT_S
from tailkeeper_watchdog.actuators.calls import CallError, excerpt, turn
from tailkeeper_watchdog.actuators.contract import Actuator, ActuatorError, ErrorKind, ServerState, Support
from tailkeeper_watchdog.actuators.webhook import WebhookActuator, checked, state_of
from tailkeeper_watchdog.gateways import Gateway, TapGateway
from tailkeeper_watchdog.model import Knob, KnobValue

KIND = "tap"
PATH = "/api/v1/taps"
LIST_LIMIT_BYTES = 4 * 1024 * 1024
"""Some 250 bytes a tap: 10,000 of them, which is more than one exporter can run, fit with room."""
ASKED_AT_ONCE = 32
"""Exporters asked for their taps, or read, at the same time: 1,000 at 5 ms each take 0.2 s."""
EACH_ASKED = 8
"""Of one exporter's taps; of more than so many its list is read, in one call: 1,000 calls are seconds of work at both ends."""
SEARCH_SHARE = 0.5
"""Of the time left, for asking who has a tap: an exporter that hangs must leave time to turn those of the others."""

WHY_NOT: Mapping[Knob, str] = {
    Knob.WEIGHT: "a tap stands before one backend and has nobody to send its traffic to instead",
    Knob.BATCH_WINDOW_S: "a tap sends each request on at once and makes no batches",
    Knob.REPLICAS: "a tap does not start or stop engines",
    Knob.TAINT: "a tap knows nothing of cluster nodes",
    Knob.ANNOTATION: "a tap keeps no notes",
}
"""Every other knob can be turned."""


@dataclass(frozen=True, slots=True)
class _Found:
    """Where a server's tap is: the exporters that have it, and those that did not say, each with why."""

    urls: tuple[str, ...]
    silent: Mapping[str, CallError]


class TapActuator:
    """Satisfies ``Actuator``. ``urls`` are those of the exporters. Raises ValueError without any."""

    kind = KIND

    def __init__(self, name: str, urls: tuple[str, ...], auth: Auth) -> None:
        if not urls:
            raise ValueError(f"gateway {name}: a tap gateway needs urls, those of the exporters that run the taps")
        self.name = name
        self._exporters = {url: WebhookActuator(name, url + PATH, auth) for url in dict.fromkeys(urls)}
        self._has: dict[str, frozenset[str]] = {}
        """Exporter → backends, as last told; an exporter that has not told is not there."""
        self._lock = asyncio.Lock()

    def supports(self, knob: Knob) -> Support:
        return Support(False, WHY_NOT[knob]) if knob in WHY_NOT else Support(True)

    async def read(self, servers: tuple[str, ...], deadline_s: float) -> Mapping[str, ServerState]:
        """A server whose tap cannot be found or asked is given with no values and the reason as its doubt."""
        async with turn(self._lock, self.name, "*", deadline_s) as ends_at:
            remembered = {server for server in servers if self._places(server)}
            answers = await self._read(servers, ends_at)
            if not remembered <= set(answers):
                self._has.clear()  # a backend has moved to another exporter, or has its tap no longer: ask all anew
                answers = await self._read(servers, ends_at)
        errors = [answer for answer in answers.values() if isinstance(answer, ActuatorError)]
        if errors and len(errors) == len(set(servers)):
            raise errors[0]
        return {
            server: ServerState({}, doubt=str(a)) if isinstance(a, ActuatorError) else _without_weight(a)
            for server, a in answers.items()
        }

    async def write(self, server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
        async with turn(self._lock, self.name, server, deadline_s) as ends_at:
            for knob in values:
                if not self.supports(knob).enforceable:
                    raise CallError(ErrorKind.REFUSED, WHY_NOT[knob])
            remembered = bool(self._places(server))
            try:
                await self._write(server, values, ends_at)
            except ActuatorError as error:
                if error.kind is not ErrorKind.NOT_FOUND or not remembered:
                    raise
                self._has.clear()
                await self._write(server, values, ends_at)

    async def close(self) -> None:
        for exporter in self._exporters.values():
            await exporter.close()

    async def _write(self, server: str, values: Mapping[Knob, KnobValue], ends_at: float) -> None:
        url = self._only(server, (await self._find((server,), ends_at))[server])
        await self._exporters[url].write(server, values, _left_s(ends_at))

    async def _read(self, servers: tuple[str, ...], ends_at: float) -> dict[str, ServerState | ActuatorError]:
        """What is known of each of ``servers``; one that no exporter has is left out."""
        found = await self._find(servers, ends_at)
        answers: dict[str, ServerState | ActuatorError] = {}
        groups: dict[str, list[str]] = {}
        for server, where in found.items():
            try:
                groups.setdefault(self._only(server, where), []).append(server)
            except CallError as error:
                if error.kind is not ErrorKind.NOT_FOUND:
                    answers[server] = error.of(self.name, server)
        gate = asyncio.Semaphore(ASKED_AT_ONCE)
        read = await asyncio.gather(*(self._read_at(url, tuple(group), gate, ends_at) for url, group in groups.items()))
        return answers | {server: state for states in read for server, state in states.items()}

    async def _read_at(
        self, url: str, servers: tuple[str, ...], gate: asyncio.Semaphore, ends_at: float
    ) -> Mapping[str, ServerState | ActuatorError]:
        async with gate:
            try:
                if len(servers) > EACH_ASKED:
                    return await self._read_list(url, frozenset(servers), ends_at)
                return await self._exporters[url].read(servers, _left_s(ends_at))
            except ActuatorError as error:
                return dict.fromkeys(servers, error)

    async def _read_list(self, url: str, servers: frozenset[str], ends_at: float) -> Mapping[str, ServerState | ActuatorError]:
        try:
            async with asyncio.timeout_at(ends_at):
                rows = await self._rows(url)
        except CallError as error:
            raise error.of(self.name, "*") from None
        except TimeoutError:
            raise ActuatorError(ErrorKind.TIMEOUT, self.name, "*", f"{url} did not tell its taps in time") from None
        return {server: self._state(server, row) for server, row in rows.items() if server in servers}

    def _state(self, server: str, row: Mapping[str, Any]) -> ServerState | ActuatorError:
        """A tap of which nothing is heard has knobs that nobody knows, although the list has the last ones."""
        age_s = row.get("age_s")
        try:
            if not isinstance(age_s, (int, float)) or not age_s <= SILENT_S:
                for_long = f" for {age_s:g} s" if isinstance(age_s, (int, float)) else ", as far as its exporter's list says"
                raise CallError(ErrorKind.PROTOCOL, f"the tap has not reported{for_long}, so what is in force is not known")
            return state_of(checked(row.get("document")))
        except CallError as error:
            return error.of(self.name, server)

    async def _rows(self, url: str) -> Mapping[str, Mapping[str, Any]]:
        return await long_json.parsed(await self._exporters[url].whole(LIST_LIMIT_BYTES), rows_of)

    async def _find(self, servers: Iterable[str], ends_at: float) -> dict[str, _Found]:
        """Where each server is. Asks the exporters only where some server's place is not known, and not the only one."""
        if len(self._exporters) == 1:
            return {server: _Found(tuple(self._exporters), {}) for server in servers}
        silent: Mapping[str, CallError] = {}
        if any(not self._places(server) for server in servers):
            silent = await self._ask(ends_at)
        return {server: _Found(self._places(server), silent) for server in servers}

    def _places(self, server: str) -> tuple[str, ...]:
        return tuple(url for url in self._exporters if server in self._has.get(url, ()))

    async def _ask(self, ends_at: float) -> dict[str, CallError]:
        """Ask every exporter that has not told yet for its taps, then those that have; returns who did not say, and why."""
        search_ends_at = ends_at - (1 - SEARCH_SHARE) * _left_s(ends_at)
        gate = asyncio.Semaphore(ASKED_AT_ONCE)
        urls = sorted(self._exporters, key=lambda url: url in self._has)
        errors = await asyncio.gather(*(self._ask_one(url, gate, search_ends_at) for url in urls))
        return {url: error for url, error in zip(urls, errors, strict=True) if error is not None}

    async def _ask_one(self, url: str, gate: asyncio.Semaphore, ends_at: float) -> CallError | None:
        try:
            async with asyncio.timeout_at(ends_at), gate:
                self._has[url] = frozenset(await self._rows(url))
        except CallError as error:
            return error
        except TimeoutError:
            return CallError(ErrorKind.UNREACHABLE, "it did not tell its taps in time")
        return None

    def _only(self, server: str, found: _Found) -> str:
        """The one exporter that has the server's tap. Raises CallError where there is none, or more than one."""
        if len(found.urls) == 1:
            return found.urls[0]
        if found.urls:
            message = f"several exporters have a tap for it: {', '.join(found.urls[:4])}; leave only one of them in `urls`"
            raise CallError(ErrorKind.REFUSED, message)
        if found.silent:
            url, error = next(iter(found.silent.items()))
            raise CallError(error.kind, f"its tap is not found, and {len(found.silent)} exporters did not say: {url}: {error}")
        raise CallError(ErrorKind.NOT_FOUND, "no exporter has a tap for it; check `tap` of the backend, and `urls`")


def _left_s(ends_at: float) -> float:
    return max(0.0, ends_at - asyncio.get_running_loop().time())


def _without_weight(state: ServerState) -> ServerState:
    return replace(state, values={knob: value for knob, value in state.values.items() if knob not in WHY_NOT})


def rows_of(body: bytes) -> Mapping[str, Mapping[str, Any]]:
    """An exporter's list of taps, by their backends. Raises CallError(PROTOCOL)."""
    try:
        rows = strict_json.loads_any(body)
        named = [(row["backend"], row) for row in rows]
    except (ValueError, RecursionError, TypeError, KeyError):
        words = excerpt(body[:400].decode("latin-1"))
        raise CallError(ErrorKind.PROTOCOL, f"that is no list of taps: {words}") from None
    return {name: row for name, row in named if isinstance(name, str)}


def create(settings: Gateway) -> Actuator:
    """Raises TypeError for another gateway's settings."""
    if not isinstance(settings, TapGateway):
        raise TypeError(f"tap cannot be made from {type(settings).__name__}")
    return TapActuator(settings.name, settings.urls, settings.auth)
