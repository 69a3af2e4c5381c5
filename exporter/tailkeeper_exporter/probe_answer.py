"""What an engine's answer to a probe means. Pure: status, headers and chunks in, an outcome out; nothing raises.

A token is: text, content, reasoning or a tool call that is not empty, or a choice that ended by itself (an engine whose
first token is half a character sends empty text, then ``finish_reason: length``). A role without content, a keep-alive
comment and an empty chunk are not tokens. ``abort`` and ``error`` are ends without one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum

from tailkeeper_exporter.evidence import Answer

MAX_STREAM_BYTES = 65_536
"""A one-token answer is under 2 kB on every engine seen; more is not an answer to us."""


class Outcome(StrEnum):
    """How a probe ended: label value of ``tailkeeper_exporter_probes_total``."""

    ANSWERED = "answered"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    UNAUTHORIZED = "unauthorized"
    TLS = "tls"
    """Certificates, ours or theirs, are not what they should be."""
    NOT_FOUND = "not_found"
    OVERLOADED = "overloaded"
    LOADING = "loading"
    HTTP_ERROR = "http_error"
    INVALID_CONTENT = "invalid_content"
    CACHED = "cached"
    SKIPPED = "skipped"


class Sign(StrEnum):
    """What one chunk shows."""

    NOTHING = "nothing"
    TOKEN = "token"  # noqa: S105  not a secret  # nosec B105
    FAILURE = "failure"


# Whatever else ends a choice (stop, length, tool_calls, eos_token …) was ended by the model, so a token was made.
_BAD_ENDS = frozenset({"abort", "aborted", "error", "cancelled"})
_TEXT_FIELDS = ("text", "content", "reasoning_content", "reasoning", "tool_calls", "token_ids")
_LOADING = re.compile(r"\b(loading|initiali[sz]ing|warming[ _-]?up|starting)\b", re.IGNORECASE)
_FULL = re.compile(r"overload|too many|queue|capacity|busy|rate.?limit|try again", re.IGNORECASE)
_LIMIT_REACHED = re.compile(
    r"(max[_ ]?(completion[_ ]|output[_ ]|new[_ ])?tokens|output limit|length limit).{0,80}\breached\b", re.IGNORECASE | re.DOTALL
)
_CACHE_HEADERS = ("x-cache", "x-cache-status", "cf-cache-status", "x-proxy-cache")
MAX_RETRY_AFTER_S = 60.0
"""A full engine is asked again after a minute at the latest, whatever it wished: recovery has to be seen."""


def is_loading(body: bytes) -> bool:
    """Whether an answer 503 says that the model is being loaded."""
    return _LOADING.search(body.decode("utf-8", "replace")) is not None


def outcome_of_status(status: int, body: bytes, retry_after: str | None = None) -> Outcome:
    """The outcome of an answer that is not 200."""
    text = body.decode("utf-8", "replace")
    if status in (401, 403):
        return Outcome.UNAUTHORIZED
    if status in (404, 405, 501):
        return Outcome.NOT_FOUND
    if status == 503 and _LOADING.search(text):
        return Outcome.LOADING
    if status in (429, 529) or (status == 503 and (retry_after is not None or _FULL.search(text))):
        return Outcome.OVERLOADED
    # A reasoning model can use up the one token without a word to show for it: the token was made.
    if status == 400 and _LIMIT_REACHED.search(text):
        return Outcome.ANSWERED
    return Outcome.HTTP_ERROR


def names_a_model(body: bytes) -> bool:
    """Whether a 404 is about the model's name, not about the path."""
    return re.search(r"\bmodel\b", body.decode("utf-8", "replace"), re.IGNORECASE) is not None


def retry_after_s(header: str | None) -> float:
    """Seconds of a Retry-After header, bounded; 0 where there is none or it is a date."""
    if header is None or not header.strip().isascii() or not header.strip().isdigit():
        return 0.0
    return min(float(header.strip()[:6]), MAX_RETRY_AFTER_S)


def is_cached(headers: Mapping[str, str]) -> bool:
    """Whether the answer came out of a cache in front of the engine, and so says nothing about it."""
    if any("hit" in headers.get(name, "").lower() for name in _CACHE_HEADERS):
        return True
    age = headers.get("age", "").strip()
    return age.isascii() and age.isdigit() and int(age[:9]) > 0


def sign_of(chunk: object) -> Sign:
    """What one parsed chunk, or a whole answer, shows."""
    if not isinstance(chunk, dict) or chunk.get("error"):
        return Sign.FAILURE
    choices = chunk.get("choices")
    signs = {_choice(choice) for choice in choices} if isinstance(choices, list) else set()
    for sign in (Sign.TOKEN, Sign.FAILURE):
        if sign in signs:
            return sign
    return Sign.NOTHING


def _choice(choice: object) -> Sign:
    if not isinstance(choice, dict):
        return Sign.FAILURE
    parts = [choice, *(part for part in (choice.get("delta"), choice.get("message")) if isinstance(part, dict))]
    end = choice.get("finish_reason")
    if isinstance(end, str) and end.lower() in _BAD_ENDS:
        return Sign.FAILURE
    if end is not None or any(part.get(name) for part in parts for name in _TEXT_FIELDS):
        return Sign.TOKEN
    return Sign.NOTHING


def text_of(chunk: object) -> str:
    """The text of a chunk that ``sign_of`` took for a token; empty where there is none."""
    choices = chunk.get("choices") if isinstance(chunk, dict) else None
    for choice in choices if isinstance(choices, list) else []:
        if isinstance(choice, dict):
            for part in (choice, choice.get("delta"), choice.get("message")):
                for name in ("text", "content"):
                    if isinstance(part, dict) and isinstance(part.get(name), str) and part[name]:
                        return str(part[name])
    return ""


def is_degenerate(text: str) -> bool:
    """Whether the text is one mark over and over (``!!!!``): alive, but not to be trusted (field report C1)."""
    stripped = text.strip()
    return len(stripped) >= 3 and len(set(stripped)) == 1 and not stripped.isalnum()


class SseReader:
    """Bytes of a server-sent event stream into its data chunks. Keep-alive comments and other fields are passed over."""

    def __init__(self) -> None:
        self._rest = b""
        self._size = 0
        self.ended = False
        """Whether ``[DONE]`` was seen."""

    def feed(self, data: bytes) -> Iterator[object]:
        """Parsed chunks; what is not JSON comes out as None. Raises ValueError beyond ``MAX_STREAM_BYTES``."""
        self._size += len(data)
        if self._size > MAX_STREAM_BYTES:
            raise ValueError("the answer to a one-token request is too long")
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            field, _, value = line.rstrip(b"\r").partition(b":")
            if field != b"data" or not value.strip():
                continue
            if value.strip() == b"[DONE]":
                self.ended = True
            else:
                yield parsed(value)


def parsed(body: bytes) -> object:
    """JSON, or None where it is none. Deep nesting is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def answer_of(outcome: Outcome, *, late: bool, accepted: bool, status: int | None) -> Answer:
    """What the outcome says about liveness."""
    if outcome is Outcome.ANSWERED or late:
        return Answer.LATE if late else Answer.OK
    if outcome is Outcome.TIMEOUT:
        return Answer.SILENT if accepted else Answer.UNREACHABLE
    if outcome is Outcome.HTTP_ERROR:
        # A 4xx says that our request does not suit this engine, a 5xx that the engine does not suit requests.
        return Answer.ERROR if status is None or status >= 500 else Answer.UNUSABLE
    return _ANSWERS[outcome]


_ANSWERS: dict[Outcome, Answer] = {
    Outcome.REFUSED: Answer.REFUSED,
    Outcome.UNREACHABLE: Answer.UNREACHABLE,
    Outcome.UNAUTHORIZED: Answer.DENIED,
    Outcome.TLS: Answer.DENIED,
    Outcome.NOT_FOUND: Answer.DENIED,
    Outcome.OVERLOADED: Answer.OVERLOADED,
    Outcome.LOADING: Answer.LOADING,
    Outcome.INVALID_CONTENT: Answer.ERROR,
    Outcome.CACHED: Answer.UNUSABLE,
    Outcome.SKIPPED: Answer.UNUSABLE,
}
