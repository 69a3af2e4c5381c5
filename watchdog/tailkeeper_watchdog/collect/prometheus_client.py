"""The client of ``prometheus-api-client`` with our credentials, authorities and patience. Blocking, as the library is.

The library tries a failed query three more times, waits without end, follows redirects and takes its authorities from a package
of its own; a tick needs one answer or one reason. Headers are read from their files at each query, certificates at each
connection. No message quotes a credential, nor what a server said about one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import requests
from prometheus_api_client import PrometheusConnect
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase

from tailkeeper_exporter.credentials import CredentialError, auth_headers
from tailkeeper_exporter.hiding import hidden, hidden_of
from tailkeeper_exporter.settings import Auth
from tailkeeper_exporter.tls import tls_context, tls_trouble
from tailkeeper_watchdog.settings import PrometheusSource

QUERY_LIMIT_S = 30.0
"""Without a byte for so long a query is given up; the tick has long given up by then, and waits to ask again."""
ERROR_LIMIT_BYTES = 2_000
KEY = "watchdog.source.auth"


class RefusedError(Exception):
    """The server does not take us. The message says why, and what to do."""


class PrometheusClient:
    """A client of one server. Raises CredentialError where a file cannot be used; later the query that needs it does."""

    def __init__(self, source: PrometheusSource) -> None:
        auth_headers(source.auth, KEY)  # a file that cannot be used ends the start, not the first query
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.auth = _Headers(source.auth)
        self._connect = PrometheusConnect(url=source.url, session=self._session, timeout=QUERY_LIMIT_S)
        # After it, because the library puts an adapter of its own before this address.
        self._session.mount(source.url, _Adapter(source))

    def custom_query(self, query: str, params: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """The rows of an instant query. Raises whatever the library does, and ``RefusedError``; see ``words_of``."""
        rows: list[dict[str, Any]] = self._connect.custom_query(query, dict(params or {}))
        return rows

    def close(self) -> None:
        self._session.close()


def words_of(error: Exception) -> str:
    """Why a query failed, for people."""
    trouble = tls_trouble(error)
    if trouble is not None:
        return f"TLS: {trouble.at(KEY)}"
    if isinstance(error, requests.Timeout):
        return f"no answer within {QUERY_LIMIT_S:g} s"
    said = hidden(str(error)[:600])[:300]
    return said if isinstance(error, (RefusedError, CredentialError)) else f"{type(error).__name__}: {said}"


def _texts(headers: Mapping[str, str | bytes]) -> dict[str, str]:
    return {name: value if isinstance(value, str) else value.decode("latin-1") for name, value in headers.items()}


class _Headers(AuthBase):
    """Puts the credentials on each request, as their files hold them now."""

    def __init__(self, auth: Auth) -> None:
        self._auth = auth

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers.update(auth_headers(self._auth, KEY))
        return request


class _Adapter(HTTPAdapter):
    """One try, our TLS, and no way to another server: a redirect would take our headers along."""

    def __init__(self, source: PrometheusSource) -> None:
        # Where nothing is encrypted there is nothing to verify, and building a context costs 20 ms.
        self._context = tls_context(source.auth, KEY) if source.url.startswith("https:") else None
        super().__init__(max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, ssl_context=self._context, **kwargs)

    def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
        """The context verifies; the library would add authorities of its own."""
        conn.cert_reqs = "CERT_REQUIRED"

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        response = super().send(request, *args, **kwargs)
        if response.status_code in (401, 403) or response.is_redirect:
            response.close()
        if response.status_code in (401, 403):
            raise RefusedError(f"answered {response.status_code}: the credential is not accepted; check {KEY}")
        if response.is_redirect:
            raise RefusedError(
                f"answered {response.status_code}, a redirect, which is not followed; write the final address into "
                f"watchdog.source.url, or see to it that {KEY} spares us a page to sign in"
            )
        if response.status_code >= 400:  # the library's error quotes all that it says
            response._content = hidden_of(response.content[:ERROR_LIMIT_BYTES], _texts(request.headers))
        return response
