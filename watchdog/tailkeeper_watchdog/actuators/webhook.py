"""Any gateway that speaks the webhook contract: GET and PUT of one small JSON document per server under `url`.

`GET URL/SERVER` tells `{"weight": 0..1, "admission": "serve"|"drain"}` and perhaps more knobs; `PUT` takes the same
document. A write gets the document, changes only what was asked, and puts it back whole with the fields it does not know:
one document, so traffic is never let in before its weight is set. Redirects are not followed and proxies of the
environment are not used: a gateway must not be able to send our credential elsewhere. Nothing is remembered.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import httpx

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators import http_auth
from tailkeeper_watchdog.actuators.calls import CallError, excerpt, turn
from tailkeeper_watchdog.actuators.contract import Actuator, ActuatorError, ErrorKind, ServerState, Support
from tailkeeper_watchdog.actuators.replicas import replicated
from tailkeeper_watchdog.gateways import Gateway, WebhookGateway
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, KnobValue

KIND = "webhook"
ANSWER_LIMIT_BYTES = 64 * 1024
"""The contract's document has six fields, under 200 bytes; this leaves room for what a gateway adds of its own."""
READS_AT_ONCE = 8
"""GETs in flight during one ``read``: 1,000 servers at 5 ms each take 0.6 s instead of 5 s, and 8 is no burden."""
IDLE_CONNECTION_S = 2.0
"""Shorter than the 5 s after which common servers close an idle connection, so none is reused while it is being closed."""
NAME_LIMIT_CHARS = 512
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

_STATUS: Mapping[int, tuple[ErrorKind, str]] = {
    401: (ErrorKind.UNAUTHORIZED, "the credential was not accepted; check `auth` of this gateway"),
    403: (ErrorKind.UNAUTHORIZED, "the credential may not do this; check its rights at the gateway"),
    404: (ErrorKind.NOT_FOUND, "the gateway knows no such server; check `gateway.server` of the backend and `url`"),
    422: (ErrorKind.REFUSED, "not enforceable there"),
    429: (ErrorKind.UNREACHABLE, "the gateway is too busy and took nothing"),
}


def parse_document(body: bytes) -> dict[str, Any]:
    """A server's document, its known fields checked. Raises CallError(PROTOCOL) naming the field."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise CallError(ErrorKind.PROTOCOL, f"the answer is not JSON: {excerpt(body[:400].decode('latin-1'))}") from None
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
    if server in ("", ".", "..") or len(server) > NAME_LIMIT_CHARS:
        raise CallError(ErrorKind.NOT_FOUND, f"a server name has 1 to {NAME_LIMIT_CHARS} characters and is neither `.` nor `..`")
    try:
        segment = quote(server, safe="")
    except UnicodeEncodeError:
        raise CallError(ErrorKind.NOT_FOUND, "the server name is not valid Unicode") from None
    try:
        parts = urlsplit(url)
    except ValueError:
        raise CallError(ErrorKind.UNREACHABLE, "`url` is not a valid address") from None
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{segment}"))


def check_status(status: int, body: bytes) -> None:
    """Raises CallError for every answer that is not 2xx, with the first words of a refusal."""
    if 200 <= status < 300:
        return
    if 300 <= status < 400:
        raise CallError(ErrorKind.REFUSED, f"{status}: redirects are not followed; write the final address into `url`")
    otherwise = ErrorKind.REFUSED if 400 <= status < 500 else ErrorKind.PROTOCOL
    kind, meaning = _STATUS.get(status, (otherwise, "the gateway refused" if 400 <= status < 500 else "the gateway failed"))
    # A credential check may quote what it was given, so its words are not repeated.
    words = "" if kind is ErrorKind.UNAUTHORIZED else excerpt(body[:1_000].decode("utf-8", errors="replace"))
    raise CallError(kind, f"{status}: {meaning}" + (f": {words}" if words else ""))


class WebhookActuator:
    """One address of a webhook gateway. Satisfies ``Actuator``. Certificates are read when its client is made."""

    kind = KIND

    def __init__(self, name: str, url: str, auth: Auth) -> None:
        self.name = name
        self._url = url
        self._auth = auth
        self._client: httpx.AsyncClient | None = None
        self._lock = asyncio.Lock()

    def supports(self, knob: Knob) -> Support:
        return Support(True) if knob in RULES else Support(False, _why_not(knob))

    async def read(self, servers: tuple[str, ...], deadline_s: float) -> Mapping[str, ServerState]:
        """A server whose document cannot be had is given with no values and the reason as its doubt."""
        async with turn(self._lock, self.name, "*", deadline_s) as ends_at:
            async with asyncio.timeout_at(ends_at):
                await self._opened()
            # The client has the same bound, but its pool slows down with the number of calls that wait in it.
            gate = asyncio.Semaphore(READS_AT_ONCE)
            found = await asyncio.gather(*(self._state(server, gate, ends_at) for server in servers))
        errors = [answer for answer in found if isinstance(answer, ActuatorError)]
        if errors and len(errors) == len(found):
            raise errors[0]
        doubtful = [ServerState({}, doubt=str(a)) if isinstance(a, ActuatorError) else a for a in found]
        return {server: state for server, state in zip(servers, doubtful, strict=True) if state is not None}

    async def _state(self, server: str, gate: asyncio.Semaphore, ends_at: float) -> ServerState | ActuatorError | None:
        """None for a server that the gateway does not know. One that fails or hangs does not spoil the others."""
        try:
            async with asyncio.timeout_at(ends_at), gate:
                return state_of(await self._document(server))
        except CallError as error:
            return None if error.kind is ErrorKind.NOT_FOUND else error.of(self.name, server)
        except TimeoutError:
            return ActuatorError(ErrorKind.TIMEOUT, self.name, server, "no answer before the deadline")

    async def write(self, server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
        async with turn(self._lock, self.name, server, deadline_s) as ends_at, asyncio.timeout_at(ends_at):
            body = merged(await self._document(server), values)
            check_status(*await self._call("PUT", server_url(self._url, server), body))

    async def whole(self, limit_bytes: int) -> bytes:
        """What stands at `url` itself. Has no deadline of its own and takes no turn. Raises CallError."""
        status, body = await self._call("GET", self._url, limit_bytes=limit_bytes)
        check_status(status, body)
        return body

    async def _document(self, server: str) -> dict[str, Any]:
        status, body = await self._call("GET", server_url(self._url, server))
        check_status(status, body)
        return parse_document(body)

    async def _call(
        self, method: str, url: str, content: bytes | None = None, limit_bytes: int = ANSWER_LIMIT_BYTES
    ) -> tuple[int, bytes]:
        headers = {"accept": "application/json", "accept-encoding": "identity"}
        headers |= {"content-type": "application/json"} if content is not None else {}
        headers |= await asyncio.to_thread(http_auth.headers, self._auth)
        client = await self._opened()
        try:
            async with client.stream(method, url, headers=headers, content=content) as response:
                return response.status_code, await _whole_body(response, limit_bytes)
        except (httpx.ConnectError, httpx.UnsupportedProtocol, httpx.InvalidURL, UnicodeError) as error:
            # A UnicodeError is what a host name gives that is no name by IDNA, such as `xn--a`.
            raise CallError(ErrorKind.UNREACHABLE, f"cannot connect: {excerpt(str(error))}") from error
        except httpx.HTTPError as error:
            # Its text may quote a header, so only its type is told.
            raise CallError(ErrorKind.PROTOCOL, f"the connection broke before the answer ({type(error).__name__})") from None

    async def _opened(self) -> httpx.AsyncClient:
        if self._client is None:
            tls = await asyncio.to_thread(http_auth.tls_context, self._auth) if self._url.startswith("https:") else False
            limits = httpx.Limits(max_connections=READS_AT_ONCE, keepalive_expiry=IDLE_CONNECTION_S)
            # ``verify`` is False for plain http only, where there is nothing to verify and building a context costs 20 ms.
            # The only deadline is the caller's, over the whole call; httpx's own are for each read.
            self._client = httpx.AsyncClient(verify=tls, trust_env=False, timeout=None, limits=limits, follow_redirects=False)  # noqa: S113
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None


async def _whole_body(response: httpx.Response, limit_bytes: int) -> bytes:
    """Raw as it came: we asked for no compression, and what is compressed all the same is never unpacked into gigabytes."""
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > limit_bytes:
            raise CallError(ErrorKind.PROTOCOL, f"the answer is longer than {limit_bytes} bytes")
    return bytes(body)


def create(settings: Gateway) -> Actuator:
    """Raises TypeError for another gateway's settings."""
    if not isinstance(settings, WebhookGateway):
        raise TypeError(f"webhook cannot be made from {type(settings).__name__}")
    return replicated(settings.name, (settings.url, *settings.replicas), partial(WebhookActuator, auth=settings.auth))
