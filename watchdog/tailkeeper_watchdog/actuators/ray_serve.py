"""Ray Serve, at a cluster's dashboard: `batch_window_s` and `replicas` of a deployment; a server is APPLICATION/DEPLOYMENT.

There is one document for the whole cluster, and whatever is not in it is removed. So a write gets it anew, changes one number in
it and puts all of it back. There is no compare-and-set: a deploy within the same round trip as ours can still be lost. A put may
begin the build of what somebody is deploying anew, so that is waited for, but never to give back. Ray takes whatever it is told
(a batch size of 0 makes every request hang), so values are checked before, and the deployment is watched after: one that fails
with our change gets back what was there, in the write itself or, where it fails later than that, in one of the reads that follow
within ``WATCHED_S``.

What is remembered of a deployment is what stood there before our first change, what our last one replaced while it is watched,
and which knob made it fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators.calls import CallError, turn
from tailkeeper_watchdog.actuators.contract import Actuator, ErrorKind, ServerState, Support
from tailkeeper_watchdog.actuators.http_calls import HttpCalls
from tailkeeper_watchdog.actuators.ray_document import (
    WHY_NOT,
    Document,
    Place,
    applications,
    checked,
    declared_with,
    deploying,
    not_told,
)
from tailkeeper_watchdog.gateways import Gateway, RayServeGateway
from tailkeeper_watchdog.model import Knob, KnobValue

KIND = "ray_serve"
PATH = "/api/serve/applications/"
ANSWER_LIMIT_BYTES = 16 * 1024 * 1024
"""Some 700 bytes a replica and 2 kB a deployment: ten thousand replicas fit with room."""
LOOK_EVERY_S = 0.1
"""A changed `user_config` was in force after 0.41 s."""
WATCHED_S = 60.0
"""After a change: two health checks of Ray's own (10 s apart, 30 s until one has failed)."""
MAX_HOMES = 10_000
"""Values from before us that are remembered; the oldest are forgotten first."""
LEFT_ALONE_S = 600.0
"""A knob that made its deployment fail is not turned for this long."""


NONE_RUNS = "none of its replicas runs any more"
"""Seconds before Ray itself calls it failed, which it does after three starts."""


@dataclass(frozen=True, slots=True)
class _Change:
    """What our last change replaced, at what loop time, and whether a replica ran then."""

    before: Mapping[Knob, KnobValue]
    at: float
    ran: bool


class RayServeActuator:
    """One Ray cluster. Satisfies ``Actuator``."""

    kind = KIND

    def __init__(self, name: str, url: str, auth: Auth) -> None:
        self.name = name
        self._url = url + PATH
        self._http = HttpCalls(auth, ANSWER_LIMIT_BYTES)
        self._watched: dict[str, _Change] = {}
        self._home: dict[tuple[str, Knob], KnobValue] = {}
        """What stood there before our first change, while something of ours does."""
        self._failed: dict[tuple[str, Knob], tuple[float, str]] = {}
        """Until when a knob of a server is left alone, and why."""
        self._lock = asyncio.Lock()

    def supports(self, knob: Knob) -> Support:
        return Support(False, WHY_NOT[knob]) if knob in WHY_NOT else Support(True)

    async def read(self, servers: tuple[str, ...], deadline_s: float) -> Mapping[str, ServerState]:
        """A deployment that a change of ours made fail is given back what was there before, and told with that as its doubt."""
        async with turn(self._lock, self.name, "*", deadline_s) as ends_at, asyncio.timeout_at(ends_at):
            document = await self._document()
            found = {server: await self._state(document, server) for server in servers}
        return {server: state for server, state in found.items() if state is not None}

    async def _state(self, document: Document, server: str) -> ServerState | None:
        try:
            place = Place(document, server)
        except CallError as error:
            return None if error.kind is ErrorKind.NOT_FOUND else ServerState({}, doubt=str(error.of(self.name, server)))
        try:
            await self._look_after(document, place, server)
        except CallError as error:
            return replace(place.state(), values={}, doubt=error.message)
        state = place.state()
        return replace(state, cannot={**state.cannot, **self._left_alone(server)})

    async def _look_after(self, document: Document, place: Place, server: str) -> None:
        """End the watch of a deployment that does well with our change, and take the change back from one that does not.

        Raises CallError: REFUSED that it was taken back, or why it could not be.
        """
        change = self._watched.get(server)
        if change is None:
            return
        failed = place.failed or (NONE_RUNS if change.ran and not place.runs else "")
        if failed:
            await self._take_back(document, server, change, failed)
        elif not place.state().doubt or self._now() - change.at > WATCHED_S:
            del self._watched[server]

    async def _take_back(self, document: Document, server: str, change: _Change, failed: str) -> None:
        """The watch ends with a put that was taken, or where there is nothing of ours left: till then each read tries again."""
        why = f"with our change it failed ({failed})"
        self._failed.update({(server, knob): (self._now() + LEFT_ALONE_S, why) for knob in change.before})
        try:
            whole = declared_with(document, server, change.before)
        except CallError as error:
            del self._watched[server]
            raise CallError(error.kind, f"{why}; {error.message}") from None
        if missing := not_told(document):
            raise CallError(ErrorKind.REFUSED, f"{why}, and nothing was put back: {_untold(missing)}")
        await self._put(whole)
        del self._watched[server]
        self._note_home(server, change.before, change.before)
        raise CallError(ErrorKind.REFUSED, f"{why}, so what was there before was put back")

    def _left_alone(self, server: str) -> dict[Knob, str]:
        now = self._now()
        self._failed = {key: found for key, found in self._failed.items() if now < found[0]}
        return {knob: f"{why}: left alone for a while" for (of, knob), (_, why) in self._failed.items() if of == server}

    async def write(self, server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
        """Raises ActuatorError UNREACHABLE while somebody else is deploying: nothing was sent."""
        async with turn(self._lock, self.name, server, deadline_s) as ends_at, asyncio.timeout_at(ends_at):
            wanted = checked(values)
            document = await self._document()
            place = Place(document, server)
            state = place.state()
            for knob in wanted:
                if knob in state.cannot:
                    raise CallError(ErrorKind.REFUSED, state.cannot[knob])
            if all(state.values[knob] == value for knob, value in wanted.items()):
                return
            given_back = all(self._home.get((server, knob)) == value for knob, value in wanted.items())
            _check_may_put(document, given_back)
            self._note(server, place, wanted)  # before it is sent: where no answer comes, it may be there all the same
            await self._put(declared_with(document, server, wanted))
            await self._in_force(server)

    async def _in_force(self, server: str) -> None:
        """Wait until the change is in force. Raises CallError(REFUSED) where it was taken back."""
        while server in self._watched:
            await asyncio.sleep(LOOK_EVERY_S)
            document = await self._document()
            await self._look_after(document, Place(document, server), server)

    def _note(self, server: str, place: Place, wanted: Mapping[Knob, KnobValue]) -> None:
        now, before = self._now(), place.state().values
        self._note_home(server, wanted, before)
        self._watched = {of: change for of, change in self._watched.items() if now - change.at <= WATCHED_S}
        if not place.failed:  # what had failed before has not failed by us
            self._watched[server] = _Change({knob: before[knob] for knob in wanted}, now, place.runs)

    def _note_home(self, server: str, put: Mapping[Knob, KnobValue], before: Mapping[Knob, KnobValue]) -> None:
        for knob, value in put.items():
            home = self._home.pop((server, knob), before[knob])
            if home != value:
                self._home[server, knob] = home
        while len(self._home) > MAX_HOMES:
            del self._home[next(iter(self._home))]

    async def _document(self) -> Document:
        document = (await self._http.call("GET", self._url)).document()
        applications(document)
        return document

    async def _put(self, whole: Mapping[str, object]) -> None:
        answer = await self._http.call("PUT", self._url, whole)
        if not answer.ok:
            raise answer.error()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    async def close(self) -> None:
        await self._http.close()


def _check_may_put(document: Document, given_back: bool) -> None:
    """Raises CallError where a put would disturb what others do or did."""
    busy, missing = deploying(document), not_told(document)
    if busy and not given_back:
        raise CallError(ErrorKind.UNREACHABLE, f"somebody is deploying {busy}, so nothing was sent")
    if missing:
        raise CallError(ErrorKind.REFUSED, _untold(missing))


def _untold(missing: str) -> str:
    return f"the configuration of {missing} is not told, and a put without it would remove it"


def create(settings: Gateway) -> Actuator:
    """Raises TypeError for another gateway's settings."""
    if not isinstance(settings, RayServeGateway):
        raise TypeError(f"ray_serve cannot be made from {type(settings).__name__}")
    return RayServeActuator(settings.name, settings.url, settings.auth)
