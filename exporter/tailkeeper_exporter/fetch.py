"""One HTTP GET under a total deadline and a byte cap: pages and health answers in, or a reason why not.

Bytes out, nothing parsed here. The deadline is for the whole exchange, so a page that drips one byte a second ends at it;
the cap counts decompressed bytes, so a small bomb ends at it too. Redirects are followed on the same host only, three at
most, and credentials go to the same origin only. A kept-alive connection that the server had closed is tried once more on
a fresh one; that is the only retry. Where a fresh one over TLS broke, the second is first listened to: most servers that do not
take our certificate say so there. Every failure is a ``FetchError`` with a bounded reason.

    PageError (exposition)
    └── FetchError          no usable answer: which reason, what status, how far it came
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpcore
import httpx

from tailkeeper_exporter.hiding import hidden_of
from tailkeeper_exporter.page import MAX_BYTES, PageError, Reason
from tailkeeper_exporter.tls import BROKEN, CUT_OFF, TlsCode, TlsTrouble, causes, tls_trouble

EXCHANGE_ERRORS = (httpx.HTTPError, httpx.InvalidURL, OSError, anyio.EndOfStream)
"""All that an exchange by httpx ends with. Two are not its own: an OSError where TLS is refused only after its handshake, and
anyio's word where it had ended before we wrote, which httpcore translates for reads and not for writes."""
ACCEPT = "text/plain;version=0.0.4;charset=utf-8, */*;q=0.1"
MAX_REDIRECTS = 3
"""Engines redirect `/metrics` to `/metrics/`; more than a few hops is a loop."""
MAX_ERROR_BYTES = 2_048
"""Of an answer that is not 200 only the beginning is read: enough to tell loading from broken."""
CONNECTIONS = 4
"""Per backend: page, health and probe at once, and one that is being given up."""
CONNECT_SHARE = 0.9
"""Of a deadline, for a connection to be made: httpcore then gives it up by itself and closes the socket, which it does not where
it is cancelled in the middle of a handshake; a hung server would cost a socket at each look."""
LISTEN_SHARE = 0.25
"""Of a deadline: so long a fresh connection over TLS is listened to where the one before it broke. What a server says of our
certificate comes one round trip after the handshake, and is lost only where we send meanwhile."""
_CODES = frozenset({400, 401, 403, 404, 405, 408, 421, 422, 429, 500, 501, 502, 503, 504})


class FetchError(PageError):
    """No usable answer.

    ``status`` is the HTTP status where one came. ``accepted`` says that the request was sent on a connection, ``answered``
    that at least the head of an answer came back, ``body`` holds the beginning of an answer that is not 200, ``received``
    counts the bytes that were read in vain, ``tls`` says why a handshake failed.
    """

    def __init__(
        self,
        reason: Reason,
        detail: str = "",
        *,
        status: int | None = None,
        accepted: bool = False,
        answered: bool = False,
        body: bytes = b"",
        retry_after: str | None = None,
        received: int = 0,
        tls: TlsCode | None = None,
    ) -> None:
        super().__init__(reason, detail)
        self.status = status
        self.accepted = accepted
        self.answered = answered
        self.body = body
        self.retry_after = retry_after
        self.received = received
        self.tls = tls

    @property
    def is_ours(self) -> bool:
        """Whether a credential or a certificate is at fault; then ``detail`` says it, and the body may quote what was sent."""
        return self.tls is not None or self.status in (401, 403)

    @property
    def code(self) -> str:
        """The reason for people and for ``/healthz``: ``timeout``, ``refused``, ``http_503``, ``tls_expired`` …; bounded."""
        if self.tls is not None:
            return self.tls.value
        return self.reason.value if self.status is None else http_code(self.status)


def http_code(status: int) -> str:
    """``http_503`` for the statuses that mean something here, else the class as in ``http_4xx``."""
    return f"http_{status}" if status in _CODES else f"http_{status // 100}xx"


@dataclass(frozen=True, slots=True)
class Fetched:
    """A complete answer with status 200."""

    body: bytes
    content_type: str

    @property
    def is_open_metrics(self) -> bool:
        return self.content_type.lower().startswith("application/openmetrics-text")


@dataclass(slots=True)
class Progress:
    """How far one exchange has come: what tells an engine that is silent from one that is not there."""

    deadline_s: float | None = None
    accepted: bool = False
    answered: bool = False
    greeted: bool = False
    """A connection was made for this exchange, and its TLS has begun: whoever is silent from here on has accepted it."""
    secured: bool = False
    """Over TLS, and on a connection that was opened for this exchange."""
    shown: bool = False
    """A certificate of ours, should the server want one."""
    listens: bool = False
    """The connection before this one broke after its TLS had been agreed."""

    def again(self) -> None:
        """From the beginning, on another connection."""
        self.listens = self.secured
        self.accepted = self.answered = self.greeted = self.secured = False

    async def trace(self, event: str, info: Mapping[str, Any]) -> None:
        if event.endswith("send_request_headers.started"):
            self.accepted = True
        elif event.endswith("receive_response_headers.complete"):
            self.answered = True
        elif event.endswith("start_tls.started"):
            self.greeted = True
            self.shown = getattr(info["ssl_context"], "shows_certificate", False)
        elif event.endswith("start_tls.complete"):
            self.secured = True
            if self.listens and self.deadline_s is not None:
                await _listen(info["return_value"], LISTEN_SHARE * self.deadline_s)


async def _listen(stream: httpcore.AsyncNetworkStream, limit_s: float) -> None:
    """Raises what TLS has to say; silence and an end without a word are left to whoever uses the connection."""
    try:
        with suppress(httpcore.ReadError, httpcore.ReadTimeout):
            await stream.read(1, timeout=limit_s)
    except BaseException:
        await stream.aclose()
        raise


async def fetch(
    client: httpx.AsyncClient,
    url: str,
    headers: Mapping[str, str],
    deadline_s: float,
    max_bytes: int = MAX_BYTES,
) -> Fetched:
    """The body at ``url``, at most ``max_bytes`` after decompression, within ``deadline_s`` seconds in total.

    Raises ``FetchError`` for everything else. Safe to cancel.
    """
    progress = Progress(deadline_s)
    with translated(progress):
        async with asyncio.timeout(deadline_s):
            return await _follow(client, url, headers, max_bytes, progress)


class translated:  # noqa: N801  a context manager that reads like a word where it is used
    """Turn transport failures of the block into ``FetchError``."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, EXCHANGE_ERRORS):
            raise _translate(error, self._progress) from error


def _translate(error: BaseException, progress: Progress) -> FetchError:
    trouble = None if _is_timeout(error) else tls_trouble(error)
    if trouble is None and not _is_timeout(error):
        trouble = _ended_without_a_word(progress)
    if trouble is not None:
        return FetchError(Reason.TLS, trouble.sentence, accepted=progress.accepted, tls=trouble.code)
    reason, detail = _reason_of(error, progress)
    # A stopped process accepts no less where it should speak first: the kernel does it, and takes the beginning of TLS.
    accepted = progress.accepted or (progress.greeted and reason is Reason.TIMEOUT)
    return FetchError(reason, detail, accepted=accepted, answered=progress.answered)


def _ended_without_a_word(progress: Progress) -> TlsTrouble | None:
    """What it means that a fresh connection over TLS ended, in its handshake or at our request; None for any other end."""
    if progress.greeted and not progress.secured:
        return None if progress.shown else CUT_OFF
    if not progress.secured or not progress.accepted or progress.answered:
        return None
    return CUT_OFF if progress.listens and not progress.shown else BROKEN


def _is_timeout(error: BaseException) -> bool:
    return isinstance(error, (TimeoutError, httpx.TimeoutException))


def _reason_of(error: BaseException, progress: Progress) -> tuple[Reason, str]:
    if _is_timeout(error):
        where = (
            "while reading the answer"
            if progress.answered
            else "no answer"
            if progress.accepted or progress.greeted
            else "no connection"
        )
        return Reason.TIMEOUT, where
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes(error)):
        return Reason.REFUSED, ""
    if isinstance(error, httpx.RemoteProtocolError) and progress.answered:
        return Reason.TRUNCATED, "the connection closed before the announced end"
    return Reason.CONNECTION, type(error).__name__


async def _follow(client: httpx.AsyncClient, url: str, headers: Mapping[str, str], max_bytes: int, progress: Progress) -> Fetched:
    first = urlsplit(url)
    for _ in range(MAX_REDIRECTS + 1):
        sent = headers if urlsplit(url)[:2] == first[:2] else {}
        async with opened(client, "GET", url, {"accept": ACCEPT, **sent}, progress) as response:
            if not response.has_redirect_location:
                return await _body(response, max_bytes)
            url = str(response.url.join(response.headers["location"]))
        if urlsplit(url).hostname != first.hostname:
            raise FetchError(Reason.REDIRECT_LOOP, "to another host", accepted=True, answered=True)
    raise FetchError(Reason.REDIRECT_LOOP, f"more than {MAX_REDIRECTS} redirects", accepted=True, answered=True)


@asynccontextmanager
async def opened(
    client: httpx.AsyncClient,
    method: str,
    url: str,
    headers: Mapping[str, str],
    progress: Progress,
    content: bytes | None = None,
) -> AsyncIterator[httpx.Response]:
    """An open response. A connection that was lost before any answer is tried once more, on a fresh one."""
    limit_s = None if progress.deadline_s is None else CONNECT_SHARE * progress.deadline_s
    request = client.build_request(
        method,
        url,
        headers={"accept-encoding": "identity", **headers},
        content=content,
        timeout=httpx.Timeout(None, connect=limit_s),
        extensions={"trace": progress.trace},
    )
    try:
        response = await client.send(request, stream=True)
    except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError, anyio.EndOfStream):
        # The pool's connection may have been closed by the server while idle, which says nothing about the server now.
        progress.again()
        response = await client.send(request, stream=True)
    try:
        yield response
    finally:
        await response.aclose()


async def _body(response: httpx.Response, max_bytes: int) -> Fetched:
    if response.status_code != 200:
        raise await status_error(response)
    announced = response.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_bytes:
        raise FetchError(Reason.TOO_LARGE, f"{announced} bytes announced", accepted=True, answered=True)
    body = bytearray()
    async for chunk in _decoded(response, max_bytes):
        body += chunk
        if len(body) > max_bytes:
            raise FetchError(Reason.TOO_LARGE, f"more than {max_bytes} bytes", accepted=True, answered=True, received=len(body))
    return Fetched(bytes(body), response.headers.get("content-type", ""))


async def status_error(response: httpx.Response) -> FetchError:
    """The error for an answer that is not 200, with the beginning of what it says."""
    body = b""
    async for chunk in response.aiter_raw():
        body += chunk[: MAX_ERROR_BYTES - len(body)]
        if len(body) >= MAX_ERROR_BYTES:
            break
    ours = response.status_code in (401, 403)
    return FetchError(
        Reason.HTTP_STATUS,
        f"HTTP {response.status_code}" + (": the credential is not accepted; check auth, or api_key_file" if ours else ""),
        status=response.status_code,
        accepted=True,
        answered=True,
        body=hidden_of(body, response.request.headers),
        retry_after=response.headers.get("retry-after"),
    )


async def _decoded(response: httpx.Response, max_bytes: int) -> AsyncIterator[bytes]:
    """The body's bytes. Identity was asked for; a server that compresses all the same is unpacked piece by piece."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("identity", ""):
        async for chunk in response.aiter_raw():
            yield chunk
        return
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise FetchError(Reason.NOT_EXPOSITION, f"content-encoding {encoding[:32]}", accepted=True, answered=True)
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        async for chunk in response.aiter_raw():
            # One byte more than allowed is enough to know; the rest of a bomb is never unpacked.
            yield unpacker.decompress(chunk, max_bytes + 1)
    except zlib.error as error:
        raise FetchError(Reason.NOT_EXPOSITION, "not what its content-encoding says", accepted=True, answered=True) from error
    if not unpacker.eof:
        raise FetchError(Reason.TRUNCATED, "the compressed body ends early", accepted=True, answered=True)
