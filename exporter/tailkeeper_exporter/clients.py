"""HTTP clients and credentials for backends, from their settings. Reads the files named there; keeps and logs no secret.

One client, so one connection pool, per backend: a backend that hangs can use up only its own connections.
"""

from __future__ import annotations

import base64
import re
import ssl
from urllib.parse import urlsplit

import httpx

from tailkeeper_exporter.fetch import CONNECTIONS
from tailkeeper_exporter.settings import Auth, BackendSettings

_HEADER = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+):[ \t]*([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)")
_FRAMING = frozenset({"host", "content-length", "transfer-encoding", "connection", "content-encoding", "accept-encoding"})
"""Headers that say where a message goes and where it ends; they are the client's own business."""
USER_AGENT = "tailkeeper-exporter"
KEEP_ALIVE_S = 4.0
"""Below uvicorn's 5 s, so that we and not the engine close an idle connection."""


class CredentialError(Exception):
    """A credential file cannot be used. The message names the setting and the file, never the content."""


def credentials(backend: BackendSettings) -> dict[str, str]:
    """Request headers for this backend, read from its files now. Raises ``CredentialError``."""
    headers = auth_headers(backend.auth)
    if backend.api_key_file is not None:
        headers["authorization"] = f"Bearer {_one_line(backend.api_key_file, 'api_key_file')}"
    return headers


def auth_headers(auth: Auth) -> dict[str, str]:
    """Request headers from credential files, read now. Raises ``CredentialError``."""
    headers: dict[str, str] = {}
    if auth.headers_file is not None:
        headers.update(headers_in(auth.headers_file, "auth.headers_file"))
    if auth.basic_file is not None:
        pair = _one_line(auth.basic_file, "auth.basic_file").encode()
        headers["authorization"] = "Basic " + base64.b64encode(pair).decode()
    if auth.bearer_file is not None:
        headers["authorization"] = f"Bearer {_one_line(auth.bearer_file, 'auth.bearer_file')}"
    return headers


def headers_in(path: object, key: str) -> dict[str, str]:
    """The headers in a file of `Name: value` lines, by lower-case name; `#` begins a comment. Raises ``CredentialError``."""
    headers: dict[str, str] = {}
    for number, line in enumerate(_text(path, key).splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _HEADER.fullmatch(line.strip())
        if match is None or match[1].lower() in _FRAMING:
            raise CredentialError(f"{key}: {path}: line {number} is not `Name: value` in ASCII, or one only the client sets")
        headers[match[1].lower()] = match[2]
    return headers


def _text(path: object, key: str) -> str:
    try:
        with open(str(path), encoding="utf-8") as file:
            return file.read(65_536)
    except (OSError, UnicodeDecodeError) as error:
        raise CredentialError(f"{key}: {path}: {type(error).__name__}: cannot be read") from error


def _one_line(path: object, key: str) -> str:
    lines = _text(path, key).strip().splitlines()
    if len(lines) != 1 or not lines[0].isprintable():
        raise CredentialError(f"{key}: {path}: must hold one line of printable characters, and holds {len(lines)} lines")
    return lines[0]


class Clients:
    """Makes the clients. Holds the default TLS context, which is costly to make and alike for all backends."""

    def __init__(self, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._transport = transport
        self._tls: ssl.SSLContext | None = None

    def make(self, backend: BackendSettings) -> httpx.AsyncClient:
        """A client for one backend. The caller closes it. Deadlines are the caller's: none is set here."""
        return self.client_for((backend.url, backend.metrics_url or ""), backend.auth, backend.name)

    def make_for(self, url: str) -> httpx.AsyncClient:
        """A client for a server that is no backend and needs no credentials, such as a collector, under the same rules."""
        return self.client_for((url,), Auth(), url)

    def client_for(self, urls: tuple[str, ...], auth: Auth, who: str) -> httpx.AsyncClient:
        """As ``make``, for any server at ``urls``; ``who`` names it in errors."""
        return httpx.AsyncClient(
            trust_env=False,
            verify=self._context(urls, auth, who),
            timeout=None,  # noqa: S113  every use is under asyncio.timeout, which bounds the whole exchange
            limits=httpx.Limits(max_connections=CONNECTIONS, keepalive_expiry=KEEP_ALIVE_S),
            headers={"user-agent": USER_AGENT},
            follow_redirects=False,
            transport=self._transport,
        )

    def _context(self, urls: tuple[str, ...], auth: Auth, who: str) -> ssl.SSLContext:
        uses_tls = any(urlsplit(url).scheme == "https" for url in urls)
        if not uses_tls:
            return _no_context()
        if auth.ca_file is None and auth.cert_file is None:
            self._tls = self._tls or ssl.create_default_context()
            return self._tls
        try:
            context = ssl.create_default_context(cafile=None if auth.ca_file is None else str(auth.ca_file))
            if auth.cert_file is not None:
                context.load_cert_chain(str(auth.cert_file), None if auth.key_file is None else str(auth.key_file))
        except (OSError, ssl.SSLError) as error:
            raise CredentialError(f"auth: {who}: TLS files cannot be used: {type(error).__name__}") from error
        return context


def _no_context() -> ssl.SSLContext:
    """For plain HTTP: httpx would load the system's certificates, which takes long and is for nothing."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
