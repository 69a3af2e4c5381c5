"""Any gateway that speaks the webhook contract: GET and PUT of one small JSON document per server under `url`.

`GET URL/SERVER` tells `{"weight": 0..1, "admission": "serve"|"drain"}` and perhaps more knobs; `PUT` takes the same
document. A write gets the document, changes only what was asked, and puts it back whole with the fields it does not know:
one document, so traffic is never let in before its weight is set. Redirects are not followed and proxies of the
environment are not used: a gateway must not be able to send our credential elsewhere. Nothing is remembered but in which order
servers were read: of more than the deadline has room for, those that had no turn come first at the next read, a silent one last.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators.calls import CallError, excerpt, turn
from tailkeeper_watchdog.actuators.contract import Actuator, ActuatorError, ErrorKind, ServerState, Support
from tailkeeper_watchdog.actuators.http_calls import CALLS_AT_ONCE, HttpCalls, Meaning, segment
from tailkeeper_watchdog.actuators.replicas import replicated
from tailkeeper_watchdog.gateways import Gateway, WebhookGateway
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, KnobValue

KIND = "webhook"
ANSWER_LIMIT_BYTES = 64 * 1024
"""The contract's document has six fields, under 200 bytes; this leaves room for what a gateway adds of its own."""
NUMBER_LIMIT = 1e9
"""No limit, window or level is larger; beyond it a number is a mistake of units."""
TEXT_LIMIT_CHARS = 64


@dataclass(frozen=True, slots=True)
class Rule:
    """What one field may hold; ``allowed`` says it for people."""

    holds: Callable[[object], bool]
    allowed: str


def _is_number(value: object, most: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= most and math.isfinite(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= TEXT_LIMIT_CHARS and value.isprintable()


_AMOUNT = Rule(lambda value: _is_number(value, NUMBER_LIMIT), "a number from 0 up")
RULES: Mapping[Knob, Rule] = {
    Knob.WEIGHT: Rule(lambda value: _is_number(value, 1), "a number from 0 to 1"),
    Knob.ADMISSION: Rule(lambda value: value in (SERVE, DRAIN), f'"{SERVE}" or "{DRAIN}"'),
    Knob.CONCURRENCY_LIMIT: _AMOUNT,
    Knob.BATCH_WINDOW_S: _AMOUNT,
    Knob.CACHE_MODE: Rule(_is_text, f"a text of 1 to {TEXT_LIMIT_CHARS} characters"),
    Knob.DEGRADE_LEVEL: Rule(
        lambda value: _is_number(value, NUMBER_LIMIT) or _is_text(value), "a number from 0 up, or a short text"
    ),
}
REQUIRED = (Knob.WEIGHT, Knob.ADMISSION)

MEANINGS: Mapping[int, Meaning] = {
    404: (ErrorKind.NOT_FOUND, "the gateway knows no such server; check `gateway.server` of the backend and `url`"),
    422: (ErrorKind.REFUSED, "not enforceable there"),
}


def parse_document(body: bytes) -> dict[str, Any]:
    """A server's document, its known fields checked. Raises CallError(PROTOCOL) naming the field."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise CallError(ErrorKind.PROTOCOL, f"the answer is not JSON: {excerpt(body[:400].decode('latin-1'))}") from None
    return checked(document)


def checked(document: object) -> dict[str, Any]:
    """Itself, where it is a server's document. Raises CallError(PROTOCOL) naming the field."""
    if not isinstance(document, dict):
        raise CallError(ErrorKind.PROTOCOL, f"the answer must be a JSON object, not {type(document).__name__}")
    for knob, rule in RULES.items():
        value = document.get(knob.value)
        if value is None and knob not in REQUIRED:
            continue
        if not rule.holds(value):
            raise CallError(ErrorKind.PROTOCOL, f"{knob.value}: {_shown(value)} where {rule.allowed} must be")
    return document


def _shown(value: object) -> str:
    if value is None:
        return "missing"
    return excerpt(repr(value)) if isinstance(value, (str, int, float)) else type(value).__name__


def state_of(document: Mapping[str, Any]) -> ServerState:
    """The state in a checked document. Weight 0 is out of service, whoever set it."""
    known = {knob: document[knob.value] for knob in RULES if document.get(knob.value) is not None}
    values: dict[Knob, KnobValue] = {knob: value if isinstance(value, str) else float(value) for knob, value in known.items()}
    return ServerState(values, in_service=values[Knob.WEIGHT] != 0.0)


def merged(document: Mapping[str, Any], values: Mapping[Knob, KnobValue]) -> bytes:
    """The document with ``values`` in it and everything else as it was. Raises CallError(REFUSED, PROTOCOL)."""
    for knob, value in values.items():
        if knob not in RULES:
            raise CallError(ErrorKind.REFUSED, _why_not(knob))
        if not RULES[knob].holds(value):
            raise CallError(ErrorKind.REFUSED, f"{knob.value}: {_shown(value)} is refused; it must be {RULES[knob].allowed}")
    changes = {knob.value: _plain(value) for knob, value in values.items()}
    try:
        return json.dumps({**document, **changes}, allow_nan=False).encode("ascii")
    except (ValueError, RecursionError):
        raise CallError(
            ErrorKind.PROTOCOL, "the gateway's document has a number that JSON cannot hold (NaN or infinity)"
        ) from None


def _why_not(knob: Knob) -> str:
    return f"the webhook contract has no field for {knob.value}"


def _plain(value: KnobValue) -> KnobValue:
    """Whole numbers without a decimal point: a gateway that reads a limit as an integer refuses 8.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def server_url(url: str, server: str) -> str:
    """``server`` as one percent-encoded segment under ``url``; a query of ``url`` stays. Raises CallError(NOT_FOUND)."""
    name = segment(server)
    try:
        parts = urlsplit(url)
    except ValueError:
        raise CallError(ErrorKind.UNREACHABLE, "`url` is not a valid address") from None
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))


class Late(IntEnum):
    """Whose turn comes first at the next read, in this order."""

    NO_TURN = 0
    """The deadline came before its turn, or soon after."""
    NOT = 1
    SILENT = 2
    """It had half of the time and more, and held one of the few calls at once for it: it may hang again."""


class WebhookActuator:
    """One address of a webhook gateway. Satisfies ``Actuator``. Certificates are read when its client is made."""

    kind = KIND

    def __init__(self, name: str, url: str, auth: Auth) -> None:
        self.name = name
        self._url = url
        self._http = HttpCalls(auth, ANSWER_LIMIT_BYTES, meanings=MEANINGS)
        self._lock = asyncio.Lock()
        self._turns: dict[str, tuple[Late, int]] = {}
        """Of each server of the last read, whether it was late, and its place in the order."""

    def supports(self, knob: Knob) -> Support:
        return Support(True) if knob in RULES else Support(False, _why_not(knob))

    async def read(self, servers: tuple[str, ...], deadline_s: float) -> Mapping[str, ServerState]:
        """A server whose document cannot be had is given with no values and the reason as its doubt."""
        async with turn(self._lock, self.name, "*", deadline_s) as ends_at:
            # The client has the same bound, but its pool slows down with the number of calls that wait in it.
            gate = asyncio.Semaphore(CALLS_AT_ONCE)
            in_turn, late = sorted(servers, key=lambda server: self._turns.get(server, (Late.NOT, 0))), dict[str, Late]()
            found = await asyncio.gather(*(self._state(server, gate, ends_at, late) for server in in_turn))
        if len(servers) > 1:  # of one alone, as of what was just written, there is no order
            self._turns = {server: (late.get(server, Late.NOT), place) for place, server in enumerate(in_turn)}
        errors = [answer for answer in found if isinstance(answer, ActuatorError)]
        if errors and len(errors) == len(found):
            raise errors[0]
        doubtful = [ServerState({}, doubt=str(a)) if isinstance(a, ActuatorError) else a for a in found]
        return {server: state for server, state in zip(in_turn, doubtful, strict=True) if state is not None}

    async def _state(
        self, server: str, gate: asyncio.Semaphore, ends_at: float, late: dict[str, Late]
    ) -> ServerState | ActuatorError | None:
        """None for a server that the gateway does not know. One that fails or hangs does not spoil the others."""
        clock = asyncio.get_running_loop().time
        asked_at, in_time_until = ends_at, ends_at - (ends_at - clock()) / 2
        try:
            async with asyncio.timeout_at(ends_at), gate:
                asked_at = clock()
                return state_of(await self._document(server))
        except CallError as error:
            return None if error.kind is ErrorKind.NOT_FOUND else error.of(self.name, server)
        except TimeoutError:
            late[server] = Late.SILENT if asked_at < in_time_until else Late.NO_TURN
            return ActuatorError(ErrorKind.TIMEOUT, self.name, server, "no answer before the deadline")

    async def write(self, server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
        async with turn(self._lock, self.name, server, deadline_s) as ends_at, asyncio.timeout_at(ends_at):
            body = merged(await self._document(server), values)
            (await self._http.call("PUT", server_url(self._url, server), body)).checked()

    async def whole(self, limit_bytes: int) -> bytes:
        """What stands at `url` itself. Has no deadline of its own and takes no turn. Raises CallError."""
        return (await self._http.call("GET", self._url, limit_bytes=limit_bytes)).checked().body

    async def _document(self, server: str) -> dict[str, Any]:
        return parse_document((await self._http.call("GET", server_url(self._url, server))).checked().body)

    async def close(self) -> None:
        await self._http.close()


def create(settings: Gateway) -> Actuator:
    """Raises TypeError for another gateway's settings."""
    if not isinstance(settings, WebhookGateway):
        raise TypeError(f"webhook cannot be made from {type(settings).__name__}")
    return replicated(settings.name, (settings.url, *settings.replicas), partial(WebhookActuator, auth=settings.auth))
