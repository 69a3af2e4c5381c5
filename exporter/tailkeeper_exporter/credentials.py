"""Credentials from the files that the configuration names: request headers, read at each call. Exporter and watchdog share it.

A file may end in a newline and begin with a byte order mark, as editors leave them. What cannot be a credential is an error
that names the setting, the file and what to do; no content of any file stands in a message, a log or a repr. Blocking.
"""

from __future__ import annotations

import base64
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from tailkeeper_exporter.settings import Auth

FILE_LIMIT_BYTES = 64 * 1024
"""The largest token in the field (a Kerberos or JWT header) is a few kilobytes; a larger file is the wrong file."""
SECRET_FILES = ("bearer_file", "basic_file", "key_file", "headers_file")
"""The settings of ``Auth`` whose files open a door; certificates are public."""
_TOKEN = re.compile(r"[\x21-\x7e]+")
_HEADER = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+):[ \t]*([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)")
_FRAMING = frozenset({"host", "content-length", "transfer-encoding", "connection", "content-encoding", "accept-encoding"})
"""Headers that say where a message goes and where it ends; they are the client's own business."""


class CredentialError(Exception):
    """A credential file cannot be used. The message names the setting and the file, never the content."""


def auth_headers(auth: Auth, key: str = "auth") -> dict[str, str]:
    """The headers that ``auth`` adds to a request; ``key`` is its path in the configuration. Raises ``CredentialError``."""
    headers: dict[str, str] = {}
    if auth.headers_file is not None:
        headers.update(headers_in(auth.headers_file, f"{key}.headers_file"))
    if auth.basic_file is not None:
        pair = _pair(auth.basic_file, f"{key}.basic_file")
        headers["authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    if auth.bearer_file is not None:
        headers["authorization"] = f"Bearer {token_in(auth.bearer_file, f'{key}.bearer_file')}"
    return headers


def token_in(path: Path, key: str) -> str:
    """A token, whoever demands it: one word of ASCII on one line, for RFC 6750 has no spaces in one, and more characters than
    its token68 are taken because engines do. Raises ``CredentialError``."""
    line = _one_line(path, key)
    if not _TOKEN.fullmatch(line):
        again = ", without `Bearer` before it" if line.lower().startswith("bearer ") else ""
        said = f"{key}: {path} must hold the token alone, one word of printable ASCII{again}"
        raise CredentialError(f"{said}; letters, digits and -._~+/= are right everywhere (RFC 6750)")
    return line


def headers_in(path: Path, key: str) -> dict[str, str]:
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


def read_by_all(path: Path) -> bool:
    """Whether every user of this machine may read the file. False where there is none."""
    try:
        return bool(path.stat().st_mode & stat.S_IROTH)
    except (OSError, ValueError):
        return False


def secret_files(auth: Auth) -> Iterator[tuple[str, Path]]:
    """The files of ``auth`` that hold secrets, by setting. A `cert_file` without `key_file` holds the key too."""
    names = SECRET_FILES if auth.key_file is not None else (*SECRET_FILES, "cert_file")
    yield from ((name, file) for name in names if (file := getattr(auth, name)) is not None)


def _pair(path: Path, key: str) -> str:
    line = _one_line(path, key)
    if ":" not in line:
        raise CredentialError(f"{key}: {path} must hold user:password on one line")
    return line


def _one_line(path: Path, key: str) -> str:
    lines = _text(path, key).strip().splitlines()
    if not lines:
        raise CredentialError(f"{key}: {path} is empty; write the credential into it, or take the setting out")
    if len(lines) != 1 or not lines[0].isprintable():
        raise CredentialError(f"{key}: {path} must hold one line of printable characters, and holds {len(lines)} lines")
    return lines[0]


def _text(path: Path, key: str) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_LIMIT_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not a valid path"
        raise CredentialError(f"{key}: {path} cannot be read: {why}; see that the file is there and ours to read") from None
    if len(content) > FILE_LIMIT_BYTES:
        raise CredentialError(f"{key}: {path} is larger than {FILE_LIMIT_BYTES} bytes, so it is not a credential")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise CredentialError(f"{key}: {path} is not text, so it is not a credential") from None
