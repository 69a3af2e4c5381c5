"""Who may change something over HTTP: a bearer token where one is configured, and never another web site's page.

The exporter and the watchdog share it, so that both doors are equally tight. It looks at headers only; reading the token's
file, at start, is its only I/O. No token ever stands in a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from hmac import compare_digest
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from tailkeeper_exporter.credentials import CredentialError, token_in

Refused = tuple[int, str]
"""An HTTP status and a sentence."""
_OWN_SITE = (b"same-origin", b"none")
"""Of ``sec-fetch-site``, which browsers send with every call and no page can set; ``none`` is the person himself."""
CHALLENGE = "Bearer"
"""Of ``www-authenticate``, with every 401."""


def read_token(file: Path | None, setting: str) -> str | None:
    """The token of changing calls, or None where none is configured: such a one as every client can send. Raises ValueError for a
    file without one, naming the ``setting`` that names the file."""
    if file is None:
        return None
    try:
        return token_in(file, setting)
    except CredentialError as error:
        raise ValueError(str(error)) from None


def refused(headers: Mapping[bytes, bytes], token: bytes | None) -> Refused | None:
    """Why a changing call may not be made, or None. Header names are in lower case.

    ``token`` None means that changing calls need none: only for a server that listens on loopback.
    """
    return _foreign(headers, token) or _unauthorized(headers.get(b"authorization", b""), token)


def _foreign(headers: Mapping[bytes, bytes], token: bytes | None) -> Refused | None:
    """A browser names the page that calls, by its origin or by how far that is from here. Without a token a foreign name for
    this machine is refused too: one that its owner points here (DNS rebinding) makes page and host agree."""
    origin = headers.get(b"origin", b"").decode("latin-1")
    host = headers.get(b"host", b"").decode("latin-1")
    if headers.get(b"sec-fetch-site", _OWN_SITE[0]) not in _OWN_SITE or (origin and _netloc(origin) != host.lower()):
        return 403, "a page of another site may not change anything here"
    if token is None and host and not _is_this_machine(host):
        return 403, f"without a token_file only localhost may be called to change something, not {host[:100]}"
    return None


def _unauthorized(authorization: bytes, token: bytes | None) -> Refused | None:
    if token is None:
        return None
    scheme, _, given = authorization.partition(b" ")
    if scheme.lower() == CHALLENGE.lower().encode() and compare_digest(given.strip(), token):
        return None
    return 401, "send Authorization: Bearer TOKEN, the content of the configured token_file"


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _is_this_machine(host: str) -> bool:
    name = host[1:].partition("]")[0] if host.startswith("[") else host.rpartition(":")[0] or host
    if name.lower() == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
