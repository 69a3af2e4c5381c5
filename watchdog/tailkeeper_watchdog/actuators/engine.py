"""The engines' own admin routes, as one gateway that only looks: is an engine paused or asleep? A server is a backend's URL.

Nothing is turned here, and ``WHY_NOT`` says why of each knob. A pause is no drain: a paused vLLM holds new requests instead of
refusing them, shows none of them as waiting, and its health page stays 200 (seen with 0.32), so whoever sends it requests goes on
doing so. Flushing a cache is no state that could be lent and given back, and no policy asks for it. What is of use is to know:
an engine that a trainer or an operator has paused or put to sleep takes no work, and counts as out of service for every cap.
Resuming it is not ours. (A paused vLLM says that it is asleep too, and the other way round.)

Routes are found out at run time, by GET alone: ``/is_paused`` and ``/is_sleeping`` are there in a vLLM that runs with
VLLM_SERVER_DEV_MODE, in other versions under other conditions, and not in SGLang. One that is not there (404) is asked for again
after ``ROUTE_HOLDS_S``, or when the engine did not answer in between. That is remembered, and who has said that it takes no work:
such an engine does not come into service by falling silent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tailkeeper_exporter.settings import Auth, check_url
from tailkeeper_watchdog.actuators.calls import CallError, turn
from tailkeeper_watchdog.actuators.contract import Actuator, ActuatorError, ErrorKind, ServerState, Support
from tailkeeper_watchdog.actuators.http_calls import HttpCalls
from tailkeeper_watchdog.gateways import EngineGateway, Gateway
from tailkeeper_watchdog.model import Knob, KnobValue

KIND = "engine"
ANSWER_LIMIT_BYTES = 64 * 1024
ASKED_AT_ONCE = 64
"""Engines asked at the same time: 1,000 at 5 ms each take 0.1 s, and a few that hang keep nobody waiting."""
ASKED_FOR_SHARE = 0.6
"""Of the deadline, for one engine: one that hangs leaves time for those that wait behind it."""
ROUTE_HOLDS_S = 300.0

ROUTES: Mapping[str, str] = {"is_paused": "paused", "is_sleeping": "asleep"}
"""Each answers with a boolean of its own name."""

WHY_NOT: Mapping[Knob, str] = {
    Knob.WEIGHT: "an engine answers whoever asks it and has nobody to send traffic to instead",
    Knob.ADMISSION: (
        "a paused engine holds new requests instead of refusing them and still looks healthy, so nobody would send them elsewhere"
    ),
    Knob.CONCURRENCY_LIMIT: "an engine's limit of running requests is set when it starts; a tap before it can have one",
    Knob.BATCH_WINDOW_S: "an engine that batches continuously has no window",
    Knob.CACHE_MODE: "an engine can only throw its cache away, which cannot be given back; a tap before it can have a cache",
    Knob.DEGRADE_LEVEL: "an engine knows no kinds of work to shed",
    Knob.REPLICAS: "an engine does not start or stop others",
    Knob.TAINT: "an engine knows nothing of cluster nodes",
    Knob.ANNOTATION: "an engine keeps no notes",
}


class EngineActuator:
    """Every engine of the backends that name this gateway. Satisfies ``Actuator``."""

    kind = KIND

    def __init__(self, name: str, auth: Auth) -> None:
        self.name = name
        self._http = HttpCalls(auth, ANSWER_LIMIT_BYTES, at_once=ASKED_AT_ONCE)
        self._missing: dict[tuple[str, str], float] = {}
        """By server and route: what an engine has not, and the loop time until which that is believed."""
        self._out: frozenset[str] = frozenset()
        """Who has said that it is paused or asleep, when it was last heard."""
        self._lock = asyncio.Lock()

    def supports(self, knob: Knob) -> Support:
        return Support(False, WHY_NOT[knob])

    async def read(self, servers: tuple[str, ...], deadline_s: float) -> Mapping[str, ServerState]:
        """An engine that is paused, asleep, silent, or cannot tell is given with that as its doubt."""
        async with turn(self._lock, self.name, "*", deadline_s) as ends_at:
            self._keep(servers)
            gate = asyncio.Semaphore(ASKED_AT_ONCE)
            found = await asyncio.gather(*(self._state(server, gate, deadline_s, ends_at) for server in servers))
        errors = [answer for answer in found if isinstance(answer, ActuatorError)]
        if errors and len(errors) == len(found) and not self._out:
            raise errors[0]
        states = {server: self._told(server, answer) for server, answer in zip(servers, found, strict=True) if answer is not None}
        self._out = frozenset(server for server, state in states.items() if not state.in_service)
        return states

    def _told(self, server: str, answer: ServerState | ActuatorError) -> ServerState:
        if isinstance(answer, ActuatorError):
            return ServerState({}, in_service=server not in self._out, doubt=str(answer))
        return answer

    async def _state(
        self, server: str, gate: asyncio.Semaphore, deadline_s: float, ends_at: float
    ) -> ServerState | ActuatorError | None:
        """None for what is no address."""
        try:
            url = str(check_url(server))
            async with asyncio.timeout_at(ends_at), gate, asyncio.timeout(ASKED_FOR_SHARE * deadline_s):
                said = {words: await self._ask(server, url, route) for route, words in ROUTES.items()}
        except ValueError:
            return None
        except CallError as error:
            self._forget(server)
            return error.of(self.name, server)
        except TimeoutError:
            self._forget(server)
            return ActuatorError(ErrorKind.TIMEOUT, self.name, server, "no answer before the deadline")
        return _state_of(said)

    async def _ask(self, server: str, url: str, route: str) -> bool | None:
        """None where the engine has no such route."""
        now = asyncio.get_running_loop().time()
        if now < self._missing.get((server, route), now):
            return None
        answer = await self._http.call("GET", f"{url}/{route}")
        if answer.status in (404, 405):
            self._missing[server, route] = now + ROUTE_HOLDS_S
            return None
        value = answer.document().get(route)
        if not isinstance(value, bool):
            raise CallError(ErrorKind.PROTOCOL, f"/{route} answers without a boolean {route}: {answer.words()}")
        return value

    def _forget(self, server: str) -> None:
        """An engine that was away may come back as another one."""
        self._missing = {key: until for key, until in self._missing.items() if key[0] != server}

    def _keep(self, servers: tuple[str, ...]) -> None:
        """Nothing is remembered of engines that are not asked about: there are as many as the fleet has."""
        known = frozenset(servers)
        self._out &= known
        self._missing = {key: until for key, until in self._missing.items() if key[0] in known}

    async def write(self, server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
        """Refuses everything, in the words of ``supports``."""
        try:
            check_url(server)
        except ValueError as error:
            raise ActuatorError(ErrorKind.NOT_FOUND, self.name, server, f"a server of an engine gateway {error}") from None
        for knob in values:
            raise ActuatorError(ErrorKind.REFUSED, self.name, server, WHY_NOT[knob])

    async def close(self) -> None:
        await self._http.close()


def _state_of(said: Mapping[str, bool | None]) -> ServerState:
    out = [words for words, yes in said.items() if yes]
    if out:
        words = f"it says that it is {' and '.join(out)}: it takes no work until somebody resumes it"
        return ServerState({}, in_service=False, doubt=words)
    if all(yes is None for yes in said.values()):
        routes = " and ".join(f"/{route}" for route in ROUTES)
        return ServerState({}, doubt=f"this engine does not tell whether it is {' or '.join(said)}: {routes} are not there")
    return ServerState({})


def create(settings: Gateway) -> Actuator:
    """Raises TypeError for another gateway's settings."""
    if not isinstance(settings, EngineGateway):
        raise TypeError(f"engine cannot be made from {type(settings).__name__}")
    return EngineActuator(settings.name, settings.auth)
