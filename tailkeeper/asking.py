"""One bounded GET of somebody else's server, for `init` and `doctor`: what it answered, or in words why it did not.

Reads only. The deadline is for the whole exchange and the body has a cap (`fetch`). No credential is ever part of a sentence.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Any
from urllib.parse import urlencode

import httpx

from tailkeeper_exporter.clients import Clients, CredentialError, auth_headers
from tailkeeper_exporter.fetch import FetchError, fetch
from tailkeeper_exporter.hiding import hidden_of
from tailkeeper_exporter.page import MAX_BYTES, Reason
from tailkeeper_exporter.settings import Auth
from tailkeeper_exporter.tls import causes
from tailkeeper_watchdog.actuators.calls import excerpt


class Trouble(Enum):
    """Why there is no answer to read, by what somebody would do about it."""

    CREDENTIAL = "credential"  # our own file cannot be used
    NO_SUCH_HOST = "no such host"
    REFUSED = "refused"
    SILENT = "silent"
    TLS = "tls"
    DENIED = "denied"
    STATUS = "status"
    OTHER = "other"


class AskError(Exception):
    """No answer with status 200. The message is a clause for people, which begins with a verb."""

    def __init__(self, trouble: Trouble, message: str, status: int | None = None, body: bytes = b"") -> None:
        super().__init__(message)
        self.trouble = trouble
        self.status = status
        self.body = body


@dataclass(frozen=True, slots=True)
class Clock:
    """What a server's `Date` header says of its clock against ours: seconds that it is ahead, at least and at most."""

    least_s: float
    most_s: float

    @property
    def ahead_s(self) -> float:
        """How far it surely is ahead (or behind, below zero): 0 where both clocks may be the same."""
        return self.least_s if self.least_s > 0 else min(self.most_s, 0.0)


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer with status 200. ``clock`` is None where the server tells no time."""

    body: bytes
    content_type: str
    clock: Clock | None
    shown: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Our credentials, which its words may repeat."""

    def json(self) -> Any:
        """Raises AskError where it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise AskError(Trouble.OTHER, f"answers what is no JSON: {excerpt(self.words()[:200]) or 'nothing'}") from None

    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def words(self) -> str:
        """Its text, to be shown."""
        return hidden_of(self.body, self.shown).decode("utf-8", "replace")


class Asker:
    """Asks one server, one question at a time. Use it as a context manager."""

    def __init__(
        self, url: str, auth: Auth, clients: Clients, extra: Mapping[str, str] | None = None, also: tuple[str, ...] = ()
    ) -> None:
        """Raises AskError where a file of ``auth`` cannot be used. ``extra`` are headers that were read already, ``also`` other
        addresses of the same server."""
        self.url = url
        try:
            self._headers = {**auth_headers(auth), **(extra or {})}
            self._client = clients.client_for((url, *also), auth, url)
        except CredentialError as error:
            raise AskError(Trouble.CREDENTIAL, f"cannot be asked: {error}") from None
        self._clock: Clock | None = None
        self._sent_s = 0.0
        self._client.event_hooks = {"response": [self._note]}

    async def __aenter__(self) -> Asker:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    @property
    def client(self) -> httpx.AsyncClient:
        return self._client

    @property
    def headers(self) -> Mapping[str, str]:
        return self._headers

    async def get(
        self,
        path: str,
        deadline_s: float,
        max_bytes: int = MAX_BYTES,
        accept: str | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Answer:
        """What stands at ``path``, which begins with a slash or is empty. Raises AskError for everything but status 200."""
        url = f"{self.url}{path}" + (f"?{urlencode(query)}" if query else "")
        return await self.get_url(url, deadline_s, max_bytes, accept)

    async def get_url(self, url: str, deadline_s: float, max_bytes: int = MAX_BYTES, accept: str | None = None) -> Answer:
        """As ``get``, at any address of the server."""
        self._clock, self._sent_s = None, time.time()
        headers = self._headers if accept is None else {**self._headers, "accept": accept}
        try:
            got = await fetch(self._client, url, headers, deadline_s, max_bytes)
        except FetchError as error:
            raise ask_error(error, deadline_s) from error
        return Answer(got.body, got.content_type, self._clock, self._headers)

    async def _note(self, response: httpx.Response) -> None:
        # What comes out of a cache tells the time at which it was put there.
        if "age" not in response.headers:
            self._clock = clock_by(response.headers.get("date", ""), self._sent_s, time.time())


def clock_by(date: str, sent_unix_s: float, received_unix_s: float) -> Clock | None:
    """From a `Date` header, which counts whole seconds, and when we asked and were answered by our own clock."""
    try:
        theirs = parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError, OSError):
        return None
    return Clock(theirs - received_unix_s, theirs + 1.0 - sent_unix_s)


def ask_error(error: FetchError, deadline_s: float) -> AskError:
    """A failed exchange by what to do about it."""
    if error.status in (401, 403):
        return AskError(Trouble.DENIED, f"refuses us ({error.status})", error.status, error.body)
    if error.status is not None:
        said = excerpt(error.body.decode("utf-8", "replace"))
        return AskError(Trouble.STATUS, f"answers {error.status}" + (f": {said}" if said else ""), error.status, error.body)
    if error.tls is not None:
        return AskError(Trouble.TLS, f"cannot be spoken to over TLS: {error.detail}")
    if any(isinstance(cause, socket.gaierror) for cause in causes(error)):
        return AskError(Trouble.NO_SUCH_HOST, "has a host name that cannot be resolved from here")
    if error.reason is Reason.REFUSED:
        return AskError(Trouble.REFUSED, "refuses connections: nothing listens there")
    if error.reason is Reason.TIMEOUT:
        return AskError(Trouble.SILENT, f"does not answer within {deadline_s:g} s")
    # A server that expects TLS usually hangs up, or answers in its own way, when it is spoken to without.
    return AskError(Trouble.OTHER, f"gives no usable answer ({error})")
