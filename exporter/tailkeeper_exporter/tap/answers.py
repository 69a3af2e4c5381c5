"""What one JSON document of an answer says: content or none, usage, an end, an error. Pure.

Read are the OpenAI shapes (chat, completions, responses), Anthropic's messages, and the engines' own streams that differ
little: llama.cpp's ``/completion``, TGI's ``/generate_stream``, Triton's ``generate_stream``. In others there is no content
to be found, so they have no first token, and no harm is done.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailkeeper_exporter.tap.facts import whole

_DELTA_TEXT = ("content", "reasoning_content", "reasoning", "refusal")
_DELTA_CALLS = ("tool_calls", "function_call", "audio")
_ENDS = frozenset({"message_stop", "response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_FAILED = frozenset({"error", "response.failed"})
_CANCELLED = "response.cancelled"
_ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, as the engine counted them."""

    prompt: int | None = None
    cached: int | None = None
    generated: int | None = None

    def over(self, earlier: Usage) -> Usage:
        """With what only an earlier document said: Anthropic's prompt comes first, its answer last."""
        return Usage(
            earlier.prompt if self.prompt is None else self.prompt,
            earlier.cached if self.cached is None else self.cached,
            earlier.generated if self.generated is None else self.generated,
        )


@dataclass(frozen=True, slots=True)
class Said:
    """One document's meaning. ``finished``: by the engine's word the answer is whole; ``marked``: its kind has such words."""

    content: bool = False
    usage: Usage | None = None
    finished: bool = False
    failed: bool = False
    aborted: bool = False
    marked: bool = False


def said(document: dict[str, object]) -> Said:
    """Read one event's document, or the whole document of an answer that is not streamed."""
    kind = document.get("type")
    kind = kind if isinstance(kind, str) else None
    choices = [c for c in _list(document.get("choices")) if isinstance(c, dict)]
    reasons = [r for c in choices if (r := c.get("finish_reason")) is not None]
    named = kind in _ENDS or isinstance(document.get("generated_text"), str) or document.get("stop") is True
    return Said(
        content=any(_choice_has_content(c) for c in choices) or _typed_content(document, kind) or _bare_content(document),
        usage=_usage(document),
        finished=bool(reasons) or named,
        failed=kind in _FAILED or bool(document.get("error")),
        aborted=kind == _CANCELLED or any(_ABORT in (r, _field(r, "type")) for r in reasons),
        marked=bool(choices) or (kind is not None and (kind == "message_start" or kind.startswith("response."))),
    )


def _choice_has_content(choice: dict[str, object]) -> bool:
    if choice.get("text"):
        return True
    part = choice.get("delta") or choice.get("message")
    if not isinstance(part, dict):
        return False
    return any(isinstance(part.get(n), str) and part[n] for n in _DELTA_TEXT) or any(part.get(n) for n in _DELTA_CALLS)


def _typed_content(document: dict[str, object], kind: str | None) -> bool:
    """Anthropic's and the Responses interface's deltas: each names its type."""
    if kind is None or not kind.endswith("delta"):
        return False
    delta = document.get("delta")
    if isinstance(delta, str):
        return bool(delta)
    return kind == "content_block_delta" and any(_field(delta, n) for n in ("text", "thinking", "partial_json"))


def _bare_content(document: dict[str, object]) -> bool:
    texts = (document.get("content"), document.get("text_output"), _field(document.get("token"), "text"))
    return "type" not in document and "choices" not in document and any(isinstance(t, str) and t for t in texts)


def _usage(document: dict[str, object]) -> Usage | None:
    found = document.get("usage")
    for holder in ("response", "message"):
        found = found or _field(document.get(holder), "usage")
    if not isinstance(found, dict):
        return None
    prompt, generated = found.get("prompt_tokens"), found.get("completion_tokens")
    details = found.get("prompt_tokens_details") or found.get("input_tokens_details")
    cached = _field(details, "cached_tokens")
    return Usage(
        whole(found.get("input_tokens") if prompt is None else prompt),
        whole(found.get("cache_read_input_tokens") if cached is None else cached),
        whole(found.get("output_tokens") if generated is None else generated),
    )


def _field(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else None


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
