"""Tokens of TraceQL and LogQL for the doubles, and a cursor over them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

MAX_QUERY_CHARS = 5_000


class QueryError(Exception):
    """A query that is wrong, or that a double does not know. The message says what and where."""


@dataclass(frozen=True, slots=True)
class Token:
    """``kind`` is the name of the group of the pattern that matched."""

    kind: str
    text: str
    at: int


def tokens(text: str, pattern: re.Pattern[str]) -> list[Token]:
    """``text`` cut into tokens; white space (the group ``space``) is left out. Raises QueryError."""
    if len(text) > MAX_QUERY_CHARS:
        raise QueryError(f"the query has {len(text)} characters; at most {MAX_QUERY_CHARS} are taken")
    found, at = [], 0
    while at < len(text):
        match = pattern.match(text, at)
        if match is None or match.lastgroup is None:
            raise QueryError(f"parse error at character {at}: unexpected {text[at : at + 20]!r}")
        if match.lastgroup != "space":
            found.append(Token(match.lastgroup, match[0], at))
        at = match.end()
    return found


class Cursor:
    """Goes over the tokens from left to right."""

    def __init__(self, found: Sequence[Token]) -> None:
        self._tokens = found
        self._next = 0

    @property
    def here(self) -> Token:
        """The next token; at the end one of kind ``end``."""
        return self._tokens[self._next] if self._next < len(self._tokens) else Token("end", "the end", -1)

    def take(self) -> Token:
        token = self.here
        self._next += 1
        return token

    def skip(self, *texts: str) -> bool:
        """Whether the next token was one of ``texts``; then it is behind us."""
        if self.here.text in texts and self.here.kind not in ("string", "end"):
            self._next += 1
            return True
        return False

    def expect(self, *texts: str) -> Token:
        token = self.here
        if not self.skip(*texts):
            raise self.surprise(" or ".join(texts))
        return token

    def kind(self, *kinds: str) -> Token:
        if self.here.kind not in kinds:
            raise self.surprise(" or ".join(kinds))
        return self.take()

    def surprise(self, wanted: str) -> QueryError:
        where = "at the end" if self.here.kind == "end" else f"at character {self.here.at}"
        return QueryError(f"parse error {where}: unexpected {self.here.text}, expected {wanted}")


def unquoted(text: str) -> str:
    """The text in quotes or backticks. Raises QueryError for an escape that there is not."""
    if text.startswith("`"):
        return text[1:-1]
    try:
        return str(json.loads(text, strict=False))
    except ValueError:
        raise QueryError(f"{text}: is not a string") from None


def anchored(pattern: str) -> re.Pattern[str]:
    """A regular expression that must match the whole value, as both languages have it. Raises QueryError."""
    try:
        return re.compile(f"(?s:{pattern})\\Z")
    except re.error as error:
        raise QueryError(f"{pattern!r}: is not a regular expression: {error}") from None


_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
DURATION = r"(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|[smhdw]))+"


def seconds(text: str) -> float:
    """A duration such as ``1m30s``."""
    return sum(float(number) * _SECONDS[unit] for number, unit in re.findall(r"([\d.]+)(ns|us|µs|ms|[smhdw])", text))
