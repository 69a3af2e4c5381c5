"""Consul's key-value store: weight, admission and annotations of a server under `service/SERVER/`, for whoever routes by them.

* A key that is not there is the normal value: weight 1, serve, no annotation. A key that we made is taken away again when its
  normal value is given back; a key that was there before us has its value changed, and given back.
* Ours are known by their flags. Every change is a check-and-set on what was read: who changed it meanwhile is never overwritten.
* A key that we made is held by a session with a TTL and the behaviour `delete`, which each read renews: should the watchdog stop
  for good, what it made vanishes by itself after one to two TTLs. A restart finds the session at the keys and renews it. A value
  that was there before us is not held so, for `delete` would take somebody's key away: it comes back with the watchdog.
* Reads are `?consistent`. A list that ACLs have thinned out is an error, not an absence.

Written from Consul's HTTP API documentation and its source; no Consul was at hand. Consul cannot say whether anybody reads a key:
a server with a typo in its name is written all the same.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Mapping

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators.calls import CallError, turn
from tailkeeper_watchdog.actuators.consul_keys import (
    FEATURES,
    OURS,
    PREFIX,
    WHY_NOT,
    Edit,
    Entries,
    Entry,
    edits,
    parse_entries,
    state_of,
)
from tailkeeper_watchdog.actuators.contract import Actuator, ActuatorError, ErrorKind, ServerState, Support
from tailkeeper_watchdog.actuators.http_calls import CALLS_AT_ONCE, JsonHttp, segment
from tailkeeper_watchdog.gateways import ConsulGateway, Gateway
from tailkeeper_watchdog.model import Knob, KnobValue

KIND = "consul"
ANSWER_LIMIT_BYTES = 1024 * 1024
"""Of one server's keys. Consul allows 512 KiB a value, but nobody keeps such beside a weight."""
RENEWALS_PER_TTL = 3
LOCK_DELAY = "1ms"
"""After a session has ended nobody may hold its keys for so long, which is 15 s unless it is said: we want them back at once."""

_SERVER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
"""One segment of a key, in characters that every version of Consul takes."""


class Sessions:
    """Our leases at Consul. Which there are is told by the keys that they hold; one is made where none is to be had."""

    def __init__(self, http: JsonHttp, name: str, ttl_s: float) -> None:
        self._http, self._name, self._ttl_s = http, name, ttl_s
        self._renewed_at: dict[str, float] = {}
        """Sessions known to live, by when they were last renewed, in the event loop's seconds."""

    async def renew(self, found: frozenset[str]) -> dict[str, str]:
        """Renew those of ``found`` whose turn it is; returns why, for each that could not be. Forgets those that have run out."""
        clock = asyncio.get_running_loop().time
        self._renewed_at = {session: at for session, at in self._renewed_at.items() if clock() - at < self._ttl_s}
        problems: dict[str, str] = {}
        for session in found:
            if clock() - self._renewed_at.get(session, -math.inf) >= self._ttl_s / RENEWALS_PER_TTL:
                try:
                    await self._renew(session)
                except CallError as error:
                    problems[session] = f"its session cannot be renewed, so it will vanish: {error.message}"
        return problems

    async def _renew(self, session: str) -> None:
        answer = await self._http.call("PUT", f"/v1/session/renew/{segment(session)}")
        if answer.status == 404:
            raise CallError(ErrorKind.PROTOCOL, "Consul does not know it any more")
        answer.checked()
        self._renewed_at[session] = asyncio.get_running_loop().time()

    async def one(self) -> str:
        """A session that lives: one that was renewed not long ago, else a new one. Raises CallError."""
        now = asyncio.get_running_loop().time()
        if alive := [session for session, at in self._renewed_at.items() if now - at < self._ttl_s / 2]:
            return alive[0]
        body = {"Name": f"tailkeeper {self._name}", "TTL": f"{self._ttl_s:g}s", "Behavior": "delete", "LockDelay": LOCK_DELAY}
        answer = (await self._http.call("PUT", "/v1/session/create", body)).checked().json()
        session = answer.get("ID") if isinstance(answer, dict) else None
        if not isinstance(session, str) or not re.fullmatch(r"[0-9A-Za-z-]{1,64}", session):
            raise CallError(ErrorKind.PROTOCOL, "a session was made without an ID")
        self._renewed_at[session] = asyncio.get_running_loop().time()
        return session

    def knows(self, session: str) -> bool:
        """Whether this process has made or renewed it not long ago."""
        return session in self._renewed_at

    def forget(self, session: str) -> None:
        self._renewed_at.pop(session, None)


class ConsulActuator:
    """Satisfies ``Actuator``."""

    kind = KIND

    def __init__(self, name: str, url: str, auth: Auth, session_ttl_s: float, looks_only: bool = False) -> None:
        self.name = name
        self._http = JsonHttp(url, auth, ANSWER_LIMIT_BYTES)
        self._sessions = Sessions(self._http, name, session_ttl_s)
        self._looks_only = looks_only
        self._lock = asyncio.Lock()

    def supports(self, knob: Knob) -> Support:
        return Support(True) if knob in FEATURES else Support(False, WHY_NOT)

    async def read(self, servers: tuple[str, ...], deadline_s: float) -> Mapping[str, ServerState]:
        """A server whose keys cannot be had is given with no values and the reason as its doubt. Renews our sessions, unless it
        only looks: what a dead watchdog has written must run out."""
        known = [server for server in servers if _SERVER.fullmatch(server)]
        async with turn(self._lock, self.name, "*", deadline_s) as ends_at:
            gate = asyncio.Semaphore(CALLS_AT_ONCE)
            found = dict(zip(known, await asyncio.gather(*(self._safely(s, gate, ends_at) for s in known)), strict=True))
            errors = [answer for answer in found.values() if isinstance(answer, ActuatorError)]
            if errors and len(errors) == len(found):
                raise errors[0]
            problems = {} if self._looks_only else await self._renewed(found, ends_at)
        return {server: _read_state(answer, problems) for server, answer in found.items()}

    async def _safely(self, server: str, gate: asyncio.Semaphore, ends_at: float) -> Entries | ActuatorError:
        """One that fails or hangs does not spoil the others."""
        try:
            async with asyncio.timeout_at(ends_at), gate:
                return await self._entries(server)
        except CallError as error:
            return error.of(self.name, server)
        except TimeoutError:
            return ActuatorError(ErrorKind.TIMEOUT, self.name, server, "no answer before the deadline")

    async def _renewed(self, found: Mapping[str, Entries | ActuatorError], ends_at: float) -> Mapping[str, str]:
        """A key of ours that somebody has changed by hand stays in our session, and would vanish with it: so it is kept too."""
        answers = (answer for answer in found.values() if not isinstance(answer, ActuatorError))
        held = [e for entries in answers for e in entries.values() if e.session]
        sessions = frozenset(e.session for e in held if e.ours or self._sessions.knows(e.session))
        try:
            async with asyncio.timeout_at(ends_at):
                return await self._sessions.renew(sessions)
        except TimeoutError:
            return dict.fromkeys(sessions, "its session could not be renewed in time")

    async def write(self, server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
        async with turn(self._lock, self.name, server, deadline_s) as ends_at, asyncio.timeout_at(ends_at):
            if not _SERVER.fullmatch(server):
                message = "not a name for a key: up to 128 letters, digits, `_`, `-` and `.`, beginning with none of the last two"
                raise CallError(ErrorKind.NOT_FOUND, message)
            entries = await self._entries(server)
            for edit in edits(values, entries):
                await self._edit(f"/v1/kv/{PREFIX}/{server}/{segment(edit.key)}", edit, entries.get(edit.key))

    async def _entries(self, server: str) -> Entries:
        answer = await self._http.call("GET", f"/v1/kv/{PREFIX}/{server}/?recurse=true&consistent")
        if answer.headers.get("x-consul-results-filtered-by-acls") == "true":
            message = f"the token may not read all of {PREFIX}/{server}/, so what is missing there is not known; give it key:read"
            raise CallError(ErrorKind.UNAUTHORIZED, message)
        if answer.status == 404:
            return {}
        return parse_entries(answer.checked().json(), server)

    async def _edit(self, path: str, edit: Edit, there: Entry | None) -> None:
        if edit.text is None:
            await self._give_back(path, edit, there)
        elif there is not None and there.text.strip() == edit.text and (not there.ours or there.session):
            return
        elif there is not None and not there.ours:
            await self._must("PUT", f"{path}?cas={there.index}&flags={there.flags}", edit.text)
        else:
            await self._hold(path, edit.text, there)

    async def _give_back(self, path: str, edit: Edit, there: Entry | None) -> None:
        if there is None:
            return
        if there.ours:
            await self._must("DELETE", f"{path}?cas={there.index}")
        elif there.text.strip() != edit.normal:
            await self._must("PUT", f"{path}?cas={there.index}&flags={there.flags}", edit.normal)

    async def _hold(self, path: str, text: str, there: Entry | None) -> None:
        """A key of ours: check-and-set first, so that nobody is overwritten, then bound to a session. Where that fails it is read
        as in doubt, so it is written again."""
        session = await self._sessions.one()
        if there is None or there.text != text:
            await self._must("PUT", f"{path}?cas={there.index if there else 0}&flags={OURS}", text)
        if there is None or not there.session:
            try:
                await self._must("PUT", f"{path}?acquire={session}&flags={OURS}", text)
            except CallError:
                self._sessions.forget(session)  # it may have ended; the next try makes a new one
                raise

    async def _must(self, method: str, path: str, text: str | None = None) -> None:
        """Consul answers false where the check of a check-and-set fails, or where another session holds the key."""
        done = (await self._http.call(method, path, None if text is None else text.encode())).checked().json()
        if done is False:
            raise CallError(
                ErrorKind.PROTOCOL, "somebody else changed or holds this key at the same moment, so it was left alone"
            )
        if done is not True:
            raise CallError(ErrorKind.PROTOCOL, "neither true nor false came back, so the effect is unknown")

    async def close(self) -> None:
        """Sessions stay: what we wrote outlives a restart."""
        await self._http.close()


def _read_state(answer: Entries | ActuatorError, problems: Mapping[str, str]) -> ServerState:
    if isinstance(answer, ActuatorError):
        return ServerState({}, doubt=str(answer))
    state = state_of(answer)
    lost = sorted({problems[e.session] for e in answer.values() if e.ours and e.session in problems})
    doubt = "; ".join((*([state.doubt] if state.doubt else []), *lost))
    return ServerState(state.values, state.in_service, doubt=doubt)


def create(settings: Gateway, looks_only: bool = False) -> Actuator:
    """Raises TypeError for another gateway's settings."""
    if not isinstance(settings, ConsulGateway):
        raise TypeError(f"{KIND} cannot be made from {type(settings).__name__}")
    return ConsulActuator(settings.name, settings.url, settings.auth, settings.session_ttl_s, looks_only)
