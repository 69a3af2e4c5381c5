"""Takes credentials out of what servers say: those that we have shown to them, and what looks like anybody's. Pure.

Servers repeat what they were sent: in an error about a header, in a redirect, behind a proxy that prints all it got. Their words
are shown to people, logged and kept, so they pass through here first. Only words: data that is worked with stays as it came, for
a tenant's name may stand in a header, and in an answer too.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote

HIDDEN = "[hidden]"
MIN_CHARS = 6
"""Of a credential; a shorter one would be found in half of all words, and is none."""
_SECRET_NAME = re.compile(r"auth|token|key|secret|passw|cookie|credential|signature|session", re.IGNORECASE)
_VALUE = r"[^\s\"',;&}\])]{6,}"
_LOOKS_SECRET = (
    # What stands before the secret, and the secret.
    (r"(\b(?:bearer|basic|negotiate)\s+)", r"[A-Za-z0-9._~+/%=-]{8,}"),
    (r"(://)", r"[^\s\"']+(?=@)"),
    (r"(hooks\.slack\.com/(?:services|workflows)/)", r"[^\s\"']+"),
    (r"(\b)", r"(?:sk|pk|rk|xox[a-z]|gh[a-z]|glpat|hf|pypi|npm|AKIA|ASIA|eyJ)[-_]?[A-Za-z0-9][A-Za-z0-9._~+/=-]{14,}"),
    (
        r"((?:api[-_ ]?key|token|secret|passw(?:or)?d|authorization|credentials?|signature)s?[\"']?\s*[:=]\s*[\"']?)",
        rf"(?![\d.,]+(?:\s|$))(?!null|none|true|false|missing|\[hidden){_VALUE}",
    ),
)
_PATTERNS = [re.compile(before + secret, re.IGNORECASE) for before, secret in _LOOKS_SECRET]


def hidden(text: str) -> str:
    """``text`` without what looks like a credential, whoever's it is."""
    for pattern in _PATTERNS:
        text = pattern.sub(rf"\1{HIDDEN}", text)
    return text


def hidden_of(content: bytes, headers: Mapping[str, str]) -> bytes:
    """``content`` without the credentials in ``headers``, in any writing, nor the beginning of one that is cut off at its end."""
    for form in sorted(set(_forms(headers)), key=len, reverse=True):
        content = content.replace(form, HIDDEN.encode())
        most = min(len(form), len(content))
        cut = next((n for n in range(most, MIN_CHARS - 1, -1) if content.endswith(form[:n])), 0)
        content = content[: len(content) - cut] + HIDDEN.encode() if cut else content
    return content


def _forms(headers: Mapping[str, str]) -> Iterator[bytes]:
    for name, value in headers.items():
        if not _SECRET_NAME.search(name):
            continue
        for secret in _parts(value):
            if len(secret) >= MIN_CHARS:
                yield from _writings(secret)


def _parts(value: str) -> Iterator[str]:
    """A header's value, what stands behind its scheme, and of `Basic` the password and the pair."""
    scheme, _, rest = value.partition(" ")
    yield value
    if not rest:
        return
    yield rest
    if scheme.lower() == "basic":
        try:
            pair = base64.b64decode(rest, validate=True).decode()
        except (binascii.Error, ValueError):
            return
        yield pair
        yield pair.partition(":")[2]


def _writings(secret: str) -> Iterator[bytes]:
    quoted = quote(secret, safe="")
    coded = base64.b64encode(secret.encode()).decode()
    texts = (secret, quoted, quoted.lower(), quote(secret), json.dumps(secret)[1:-1], coded, quote(coded, safe=""))
    for text in texts:
        yield text.encode()
        yield text.replace("/", "\\/").encode()
