"""HTTP clients and credentials for backends, from their settings. Reads the files named there; keeps and logs no secret.

One client, so one connection pool, per backend: a backend that hangs can use up only its own connections.
"""

from __future__ import annotations

import ssl
from urllib.parse import urlsplit

import httpx

from tailkeeper_exporter.credentials import CredentialError, auth_headers, headers_in, token_in
from tailkeeper_exporter.fetch import CONNECTIONS
from tailkeeper_exporter.settings import Auth, BackendSettings
from tailkeeper_exporter.tls import tls_context

__all__ = ["Clients", "CredentialError", "auth_headers", "credentials", "headers_in"]

USER_AGENT = "tailkeeper-exporter"
KEEP_ALIVE_S = 4.0
"""Below uvicorn's 5 s, so that we and not the engine close an idle connection."""


def credentials(backend: BackendSettings) -> dict[str, str]:
    """Request headers for this backend, read from its files now. Raises ``CredentialError``."""
    headers = auth_headers(backend.auth)
    if backend.api_key_file is not None:
        headers["authorization"] = f"Bearer {token_in(backend.api_key_file, 'api_key_file')}"
    return headers


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
            timeout=httpx.Timeout(None),  # every use is under asyncio.timeout, which bounds the whole exchange
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
            return tls_context(auth)
        except CredentialError as error:
            raise CredentialError(f"TLS of {who}: {error}") from None


def _no_context() -> ssl.SSLContext:
    """For plain HTTP: httpx would load the system's certificates, which takes long and is for nothing."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
