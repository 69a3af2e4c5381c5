"""HTTP clients and credentials for backends, from their settings. Reads the files named there; keeps and logs no secret.

One client, so one connection pool, per backend: a backend that hangs can use up only its own connections.
"""

from __future__ import annotations

import base64
import ssl
from urllib.parse import urlsplit

import httpx

from tailkeeper_exporter.fetch import CONNECTIONS
from tailkeeper_exporter.settings import Auth, BackendSettings

USER_AGENT = "tailkeeper-exporter"
KEEP_ALIVE_S = 4.0
"""Below uvicorn's 5 s, so that we and not the engine close an idle connection."""


class CredentialError(Exception):
    """A credential file cannot be used. The message names the setting and the file, never the content."""


def credentials(backend: BackendSettings) -> dict[str, str]:
    """Request headers for this backend, read from its files now. Raises ``CredentialError``."""
    headers = _auth_headers(backend.auth)
    if backend.api_key_file is not None:
        headers["authorization"] = f"Bearer {_one_line(backend.api_key_file, 'api_key_file')}"
    return headers


def _auth_headers(auth: Auth) -> dict[str, str]:
    headers: dict[str, str] = {}
    if auth.headers_file is not None:
        for line in _text(auth.headers_file, "auth.headers_file").splitlines():
            name, colon, value = line.partition(":")
            if line.strip() and not line.startswith("#"):
                if not colon or not name.strip():
                    raise CredentialError(f"auth.headers_file: {auth.headers_file}: a line is not `Name: value`")
                headers[name.strip().lower()] = value.strip()
    if auth.basic_file is not None:
        pair = _one_line(auth.basic_file, "auth.basic_file").encode()
        headers["authorization"] = "Basic " + base64.b64encode(pair).decode()
    if auth.bearer_file is not None:
        headers["authorization"] = f"Bearer {_one_line(auth.bearer_file, 'auth.bearer_file')}"
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
        return httpx.AsyncClient(
            trust_env=False,
            verify=self._context(backend),
            timeout=None,  # noqa: S113  every use is under asyncio.timeout, which bounds the whole exchange
            limits=httpx.Limits(max_connections=CONNECTIONS, keepalive_expiry=KEEP_ALIVE_S),
            headers={"user-agent": USER_AGENT},
            follow_redirects=False,
            transport=self._transport,
        )

    def _context(self, backend: BackendSettings) -> ssl.SSLContext:
        auth = backend.auth
        uses_tls = any(urlsplit(url).scheme == "https" for url in (backend.url, backend.metrics_url or ""))
        if not uses_tls:
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if auth.ca_file is None and auth.cert_file is None:
            self._tls = self._tls or ssl.create_default_context()
            return self._tls
        try:
            context = ssl.create_default_context(cafile=None if auth.ca_file is None else str(auth.ca_file))
            if auth.cert_file is not None:
                context.load_cert_chain(str(auth.cert_file), None if auth.key_file is None else str(auth.key_file))
        except (OSError, ssl.SSLError) as error:
            raise CredentialError(f"auth: {backend.name}: TLS files cannot be used: {type(error).__name__}") from error
        return context
