"""The OpenAI-compatible surface of a simulated engine as text: requests read, answers and stream events rendered.

Shapes are those of captured vLLM 0.32.0 answers. Pure: it neither schedules nor sends. One stream event is three byte strings
put together, because a fleet of four renders some 1,100 of them a second.
Data flows request body → `parse_call` → engine server → `Events` → reply.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from tailkeeper_demo.engine_stats import FinishReason

FINGERPRINT = "vllm-0.32.0-simulated"
VERSION = {"version": "0.32.0"}
_CHARS_PER_TOKEN = 4
"""The usual rule of thumb for English text."""
_WORDS = (
    " the", " answer", " depends", " on", " how", " long", " a", " queue", " is", " allowed", " to", " grow", " before",
    " someone", " looks", " at", " it", ",", " and", " what", " they", " see", " then", ".",
)  # fmt: skip
"""Enough different words that a probe looking for degenerate repetition finds none."""


class ApiError(Exception):
    """A request the server refuses, with vLLM's error shape."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.document = {"error": {"message": message, "type": kind, "param": param, "code": status}}


@dataclass(frozen=True, slots=True)
class Call:
    """A completion request, read and checked. `output_tokens` None: the model ends where it likes."""

    chat: bool
    stream: bool
    include_usage: bool
    prompt_tokens: int
    max_tokens: int
    output_tokens: int | None
    ignore_eos: bool


def parse_call(body: bytes, *, chat: bool, model: str, max_model_len: int) -> Call:
    """Read a completion body. Raises `ApiError` with vLLM's status and shape."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _bad_request(f"JSON decode error: {error}") from error
    if not isinstance(document, dict):
        raise _bad_request("the request body must be a JSON object")
    _check_model(document, model)
    prompt_tokens = _prompt_tokens(document, chat=chat)
    room = max_model_len - prompt_tokens
    if room < 1:
        raise _bad_request(f"the prompt has {prompt_tokens} tokens, max_model_len is {max_model_len}", "prompt")
    options = document.get("stream_options")
    return Call(
        chat=chat,
        stream=document.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        prompt_tokens=prompt_tokens,
        max_tokens=_max_tokens(document, default=room if chat else 16, room=room),
        output_tokens=_optional_count(document, "x_output_tokens"),
        ignore_eos=document.get("ignore_eos") is True,
    )


def _bad_request(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, "BadRequestError", message, param)


def _check_model(document: dict[str, object], model: str) -> None:
    wanted = document.get("model", model)
    if wanted != model:
        message = f"The model `{str(wanted)[:200]}` does not exist. Valid aliases: {model}."
        raise ApiError(404, "NotFoundError", message, "model")
    if document.get("n", 1) != 1:
        raise _bad_request("this simulated engine gives one choice a request: n must be 1", "n")


def _optional_count(document: dict[str, object], key: str) -> int | None:
    value = document.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _bad_request(f"{key} must be at least 1, got {value!r}. (parameter={key}, value={value!r})", key)
    return value


def _max_tokens(document: dict[str, object], *, default: int, room: int) -> int:
    for key in ("max_completion_tokens", "max_tokens"):
        value = _optional_count(document, key)
        if value is not None:
            if value > room:
                raise _bad_request(f"{key}={value} does not fit: {room} tokens are left for the answer", key)
            return value
    return min(default, room)


def _prompt_tokens(document: dict[str, object], *, chat: bool) -> int:
    """`x_prompt_tokens` when given (a load driver need not send megabytes), else a quarter of the characters."""
    given = _optional_count(document, "x_prompt_tokens")
    if given is not None:
        return given
    content = document.get("messages" if chat else "prompt")
    if chat and not isinstance(content, list):
        raise _bad_request("messages: a list is needed", "messages")
    if not chat and (content is None or content == ""):
        raise _bad_request("prompt: a text is needed", "prompt")
    if isinstance(content, list) and content and all(isinstance(item, int) for item in content):
        return len(content)  # A prompt given as token ids.
    text = content if isinstance(content, str) else json.dumps(content)
    return max(1, len(text) // _CHARS_PER_TOKEN)


def word(index: int) -> str:
    """Text of the answer's token number `index`."""
    return _WORDS[index % len(_WORDS)]


class Events:
    """Renders one request's stream events; `request_id` has its `cmpl-` or `chatcmpl-` prefix already."""

    __slots__ = ("_after", "_before", "_call", "_created", "_id", "_model")

    def __init__(self, call: Call, request_id: str, model: str, created_unix_s: int) -> None:
        self._call, self._id, self._model, self._created = call, request_id, model, created_unix_s
        before, _, after = self._event(self._choice("\0", None)).partition(b"\\u0000")
        self._before, self._after = before, after

    def opening(self) -> bytes:
        """The role event a chat stream starts with, empty for plain completions. It is not a token."""
        if not self._call.chat:
            return b""
        delta = {"role": "assistant", "content": ""}
        return self._event({"index": 0, "delta": delta, "logprobs": None, "finish_reason": None})

    def token(self, index: int, finish: FinishReason | None) -> bytes:
        """The event of one token."""
        if finish is None:
            return self._before + json.dumps(word(index))[1:-1].encode() + self._after
        return self._event(self._choice(word(index), finish))

    def closing(self, output_tokens: int) -> bytes:
        """Usage when it was asked for, and the end marker."""
        done = b"data: [DONE]\n\n"
        if not self._call.include_usage:
            return done
        return self._event(None, usage(self._call.prompt_tokens, output_tokens)) + done

    def _choice(self, text: str, finish: FinishReason | None) -> dict[str, object]:
        content: dict[str, object] = {"delta": {"content": text}} if self._call.chat else {"text": text}
        tail: dict[str, object] = dict.fromkeys(("token_ids",) if self._call.chat else ("stop_reason", "token_ids"))
        return {"index": 0, **content, "logprobs": None, "finish_reason": finish, **tail}

    def _event(self, choice: dict[str, object] | None, used: dict[str, object] | None = None) -> bytes:
        document: dict[str, object] = {
            "id": self._id,
            "object": "chat.completion.chunk" if self._call.chat else "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": [] if choice is None else [choice],
        }
        if used is not None:
            document["usage"] = used
        return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def usage(prompt_tokens: int, output_tokens: int) -> dict[str, object]:
    """Token usage as vLLM prints it."""
    total = prompt_tokens + output_tokens
    return {"prompt_tokens": prompt_tokens, "total_tokens": total, "completion_tokens": output_tokens}


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer, for `whole`."""

    request_id: str
    model: str
    created_unix_s: int
    output_tokens: int
    finish: FinishReason


def whole(call: Call, answer: Answer) -> dict[str, object]:
    """The document of an answer that was not streamed."""
    text = "".join(word(index) for index in range(answer.output_tokens))
    content: dict[str, object] = {"message": {"role": "assistant", "content": text}} if call.chat else {"text": text}
    kind: Literal["chat.completion", "text_completion"] = "chat.completion" if call.chat else "text_completion"
    return {
        "id": answer.request_id,
        "object": kind,
        "created": answer.created_unix_s,
        "model": answer.model,
        "choices": [{"index": 0, **content, "logprobs": None, "finish_reason": answer.finish, "stop_reason": None}],
        "system_fingerprint": FINGERPRINT,
        "usage": usage(call.prompt_tokens, answer.output_tokens),
    }


def models(model: str, max_model_len: int, created_unix_s: int) -> dict[str, object]:
    """The document of `/v1/models`."""
    entry = {"id": model, "object": "model", "created": created_unix_s, "owned_by": "vllm", "root": model, "parent": None}
    return {"object": "list", "data": [{**entry, "max_model_len": max_model_len}]}
