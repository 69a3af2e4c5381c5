"""Credentials for one URL, from the files that `auth` names: request headers and a TLS context.

Files are read at each call, so that a rotated token is taken up; certificates once, when the client is made. No content
of any file ever stands in a message, a log or a repr. Blocking: call it in a thread.
"""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Mapping
from pathlib import Path

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.contract import ErrorKind

FILE_LIMIT_BYTES = 64 * 1024
"""The largest token in the field (a Kerberos or JWT header) is a few kilobytes; a larger file is the wrong file."""
_PRINTABLE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_HEADER = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+):[ \t]*([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)")
_FRAMING = frozenset({"host", "content-length", "transfer-encoding", "connection", "content-encoding", "accept-encoding"})
"""Headers that say where a message goes and where it ends; they are the client's own business."""


def headers(auth: Auth) -> Mapping[str, str]:
    """The headers to add to a request. Raises CallError(UNAUTHORIZED) naming the file, never its content."""
    found: dict[str, str] = {}
    if auth.headers_file is not None:
        found |= _header_lines(auth.headers_file)
    if auth.basic_file is not None:
        found["authorization"] = "Basic " + base64.b64encode(_basic(auth.basic_file).encode()).decode()
    if auth.bearer_file is not None:
        found["authorization"] = "Bearer " + _one_line(auth.bearer_file, "bearer_file")
    return found


def tls_context(auth: Auth) -> ssl.SSLContext:
    """The system's authorities, or those of `ca_file` alone. Raises CallError(UNAUTHORIZED) naming the files."""
    try:
        context = ssl.create_default_context(cafile=auth.ca_file)
        if auth.cert_file is not None:
            # An encrypted key would make OpenSSL ask on the terminal; an empty password makes it fail instead.
            context.load_cert_chain(auth.cert_file, auth.key_file, password="")
    except (OSError, ValueError) as error:
        files = ", ".join(str(file) for file in (auth.ca_file, auth.cert_file, auth.key_file) if file is not None)
        raise _unusable(
            f"auth: {files} cannot be used: {type(error).__name__} {getattr(error, 'strerror', None) or ''}"
        ) from None
    return context


def _basic(file: Path) -> str:
    line = _one_line(file, "basic_file")
    if ":" not in line:
        raise _unusable(f"basic_file: {file} must hold user:password on one line")
    return line


def _one_line(file: Path, setting: str) -> str:
    text = _text(file, setting).strip()
    if not _PRINTABLE.fullmatch(text):
        raise _unusable(f"{setting}: {file} must hold one line of printable ASCII characters")
    return text


def _header_lines(file: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, line in enumerate(_text(file, "headers_file").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _HEADER.fullmatch(line.strip())
        if match is None or match[1].lower() in _FRAMING:
            raise _unusable(
                f"headers_file: {file}, line {number} is not `Name: value`, or names a header that only the client sets"
            )
        found[match[1].lower()] = match[2]
    return found


def _text(file: Path, setting: str) -> str:
    try:
        with file.open("rb") as opened:
            content = opened.read(FILE_LIMIT_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not a valid path"
        raise _unusable(f"{setting}: {file} cannot be read: {why}") from None
    if len(content) > FILE_LIMIT_BYTES:
        raise _unusable(f"{setting}: {file} is larger than {FILE_LIMIT_BYTES} bytes, so it is not a credential")
    return content.decode("latin-1")


def _unusable(message: str) -> CallError:
    return CallError(ErrorKind.UNAUTHORIZED, message)
