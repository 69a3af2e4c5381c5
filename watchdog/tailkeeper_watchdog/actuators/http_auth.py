"""Credentials for one URL, from the files that `auth` names: request headers and a TLS context, failing with ``CallError`` only.

Files are read at each call, so that a rotated token is taken up; those of certificates at each new connection. No content of
any file ever stands in a message, a log or a repr. Blocking: call it in a thread.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from tailkeeper_exporter.credentials import CredentialError, auth_headers
from tailkeeper_exporter.settings import Auth
from tailkeeper_exporter.tls import tls_context as context_of
from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.contract import ErrorKind


def headers(auth: Auth) -> Mapping[str, str]:
    """The headers to add to a request. Raises CallError(UNAUTHORIZED) naming the file, never its content."""
    try:
        return auth_headers(auth)
    except CredentialError as error:
        raise CallError(ErrorKind.UNAUTHORIZED, str(error)) from None


def tls_context(auth: Auth) -> ssl.SSLContext:
    """The system's authorities, or those of `ca_file` alone. Raises CallError(UNAUTHORIZED) naming the files."""
    try:
        return context_of(auth)
    except CredentialError as error:
        raise CallError(ErrorKind.UNAUTHORIZED, str(error)) from None
