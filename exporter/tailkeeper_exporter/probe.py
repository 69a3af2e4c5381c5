"""The semantic probe: ask an engine for one token, and see how long the first one takes.

One streaming request with a nonce in its prompt, so that no cache can answer it, against the engine's own path; 404 there
means trying chat completions once, and what worked is remembered. Everything is under the caller's deadline and one probe
is open at a time (the caller's task sees to it). Outcomes come back as values; nothing is raised, nothing is retried later,
and no credential is kept or logged. When to probe is `probe_plan`'s business, what an answer means `probe_answer`'s.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import httpx

from tailkeeper_exporter.engines import Engine, ProbeRequest
from tailkeeper_exporter.evidence import Answer, ProbeSeen
from tailkeeper_exporter.fetch import EXCHANGE_ERRORS, FetchError, Progress, fetch, opened, status_error, translated
from tailkeeper_exporter.page import Reason
from tailkeeper_exporter.probe_answer import (
    MAX_STREAM_BYTES,
    Outcome,
    Sign,
    SseReader,
    answer_of,
    is_cached,
    is_degenerate,
    names_a_model,
    outcome_of_status,
    parsed,
    retry_after_s,
    sign_of,
    text_of,
)
from tailkeeper_exporter.probe_plan import PROBE_ID_PREFIX
from tailkeeper_exporter.tls import TlsCode

CHAT = ProbeRequest(path="/v1/chat/completions", chat=True)
MODELS_PATH = "/v1/models"
END_GRACE_S = 0.25
"""After the first token the rest (a final chunk and [DONE]) is read for this long, so that the engine counts a finished
request and not a client that went away."""
MAX_ATTEMPTS = 3
"""As it is, then with the path or the model's name put right."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """How one probe ended. Times are monotonic seconds; ``first_token_s`` is a duration, from sending to the first token."""

    outcome: Outcome
    sent_s: float
    ended_s: float
    first_token_s: float | None = None
    accepted: bool = False
    status: int | None = None
    code: str = ""
    """The outcome in one word, more exact where there was an HTTP status: ``http_503``."""
    retry_after_s: float = 0.0
    degenerate: bool = False
    detail: str = ""
    """A failure in words, where more is known than the code says."""

    def seen(self) -> ProbeSeen:
        """The result as evidence of liveness. A token after the limit is life, though the outcome is a timeout."""
        late = self.outcome is Outcome.TIMEOUT and self.first_token_s is not None
        answer = answer_of(self.outcome, late=late, accepted=self.accepted, status=self.status)
        answer = Answer.CUT_OFF if self.code == TlsCode.CUT_OFF else answer
        retry = self.retry_after_s if answer is Answer.OVERLOADED else 0.0
        return ProbeSeen(answer, self.sent_s, self.code or self.outcome.value, retry)


class Prober:
    """Probes one backend. Remembers which path and which model name work; asks nothing by itself."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        url: str,
        engine: Engine,
        configured_model: str | None,
        first_token_timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._url = url
        self._request = engine.probe
        self._configured_model = configured_model
        self._timeout_s = first_token_timeout_s
        self._clock = clock
        self._found_model: str | None = None

    @property
    def possible(self) -> bool:
        """Whether this engine can be asked for a token at all."""
        return self._request is not None

    async def ask(self, page_models: tuple[str, ...], headers: Mapping[str, str], deadline_s: float) -> ProbeResult:
        """One probe, ended at the latest ``deadline_s`` after now."""
        started = self._clock()
        if self._request is None:
            return ProbeResult(Outcome.SKIPPED, started, started)
        progress = Progress(deadline_s)
        try:
            with translated(progress):
                async with asyncio.timeout(deadline_s):
                    result = await self._attempts(page_models, headers, progress)
        except FetchError as error:
            result = self._failed(error, started)
        return self._judged(result)

    def _judged(self, result: ProbeResult) -> ProbeResult:
        """A token that came too late is a timeout that knows its time."""
        if result.outcome is Outcome.ANSWERED and (result.first_token_s or 0.0) > self._timeout_s:
            return replace(result, outcome=Outcome.TIMEOUT, code="timeout")
        return result

    async def _attempts(self, page_models: tuple[str, ...], headers: Mapping[str, str], progress: Progress) -> ProbeResult:
        tried_chat = tried_models = False
        for _ in range(MAX_ATTEMPTS):
            sent = self._clock()
            try:
                return await self._once(self._model(page_models), headers, progress)
            except FetchError as error:
                result = self._failed(error, sent)
                if result.outcome is not Outcome.NOT_FOUND:
                    return result
                if names_a_model(error.body) and not tried_models:
                    tried_models = True
                    self._found_model = await self._first_model(headers)
                    if self._found_model is None:
                        return result
                elif self._request is not None and not self._request.chat and not tried_chat:
                    tried_chat = True
                    self._request = CHAT
                else:
                    return result
        return result

    def _model(self, page_models: tuple[str, ...]) -> str | None:
        """The name that a 404 made us look up, else the page's, else the configured one."""
        if self._found_model is not None and (not page_models or self._found_model in page_models):
            return self._found_model
        if page_models and self._configured_model not in page_models:
            return page_models[0]
        return self._configured_model

    async def _first_model(self, headers: Mapping[str, str]) -> str | None:
        try:
            answer = parsed((await fetch(self._client, self._url + MODELS_PATH, headers, self._timeout_s, MAX_STREAM_BYTES)).body)
        except FetchError:
            return None
        models = answer.get("data") if isinstance(answer, dict) else None
        for model in models if isinstance(models, list) else []:
            if isinstance(model, dict) and isinstance(model.get("id"), str):
                return str(model["id"])
        return None

    async def _once(self, model: str | None, headers: Mapping[str, str], progress: Progress) -> ProbeResult:
        """One request. Raises FetchError for every answer but 200."""
        assert self._request is not None
        if model is None:
            model = self._found_model = await self._first_model(headers)
        nonce, sent = secrets.token_hex(6), self._clock()
        own = {
            "accept": "text/event-stream, application/json;q=0.9",
            "content-type": "application/json",
            "cache-control": "no-cache, no-store",
            "pragma": "no-cache",
            "x-request-id": PROBE_ID_PREFIX + nonce,
        }
        body = json.dumps(_body(self._request, model, nonce)).encode()
        url = self._url + self._request.path
        async with opened(self._client, "POST", url, {**headers, **own}, progress, body) as response:
            if response.status_code != 200:
                raise await status_error(response)
            result = await self._read(response, sent)
        if is_cached(response.headers) and result.outcome is Outcome.ANSWERED:
            return replace(result, outcome=Outcome.CACHED, code="cached", first_token_s=None)
        return result

    async def _read(self, response: httpx.Response, sent: float) -> ProbeResult:
        """Until the first token, then for a moment more so that the request ends as a finished one."""
        streamed = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        reader, body = SseReader(), bytearray()
        data = response.aiter_raw()
        try:
            async for piece in data:
                if not streamed:
                    body += piece
                    if len(body) > MAX_STREAM_BYTES:
                        return self._result(Outcome.INVALID_CONTENT, sent)
                    continue
                for chunk in reader.feed(piece):
                    sign = sign_of(chunk)
                    if sign is Sign.FAILURE:
                        return self._result(Outcome.INVALID_CONTENT, sent)
                    if sign is Sign.TOKEN:
                        result = self._answered(chunk, sent)
                        await _drain(data, reader)
                        return result
                if reader.ended:
                    break
        except ValueError:
            return self._result(Outcome.INVALID_CONTENT, sent)
        whole = parsed(bytes(body)) if body else None
        return self._answered(whole, sent) if sign_of(whole) is Sign.TOKEN else self._result(Outcome.INVALID_CONTENT, sent)

    def _answered(self, chunk: object, sent: float) -> ProbeResult:
        now = self._clock()
        return ProbeResult(Outcome.ANSWERED, sent, now, now - sent, True, 200, degenerate=is_degenerate(text_of(chunk)))

    def _result(self, outcome: Outcome, sent: float) -> ProbeResult:
        return ProbeResult(outcome, sent, self._clock(), None, True, 200, outcome.value)

    def _failed(self, error: FetchError, sent: float) -> ProbeResult:
        """A failure of the exchange as an outcome."""
        now, outcome, first = self._clock(), _outcome_of(error), None
        if outcome is Outcome.ANSWERED:
            first = now - sent
        retry = retry_after_s(error.retry_after)
        return ProbeResult(outcome, sent, now, first, error.accepted, error.status, error.code, retry, detail=error.detail)


def _outcome_of(error: FetchError) -> Outcome:
    if error.status is not None:
        return outcome_of_status(error.status, error.body, error.retry_after)
    if error.reason is Reason.TLS:
        return Outcome.TLS
    if error.reason is Reason.TIMEOUT:
        return Outcome.TIMEOUT
    if error.reason is Reason.REFUSED:
        return Outcome.REFUSED
    if error.answered:
        # It began to answer and broke off: worse than silence, and not a refusal.
        return Outcome.INVALID_CONTENT
    # A connection that is reset as soon as it is used is a refusal by a proxy on the way.
    return Outcome.REFUSED if error.accepted else Outcome.UNREACHABLE


def _body(request: ProbeRequest, model: str | None, nonce: str) -> dict[str, object]:
    """One token, greedily, from a prompt that no one has sent before."""
    prompt = f"{nonce} Reply with one word."
    body: dict[str, object] = {"max_tokens": 1, "temperature": 0, "stream": True}
    if model is not None:
        body["model"] = model
    if request.chat:
        return {**body, "messages": [{"role": "user", "content": prompt}]}
    return {**body, "prompt": prompt}


async def _drain(data: object, reader: SseReader) -> None:
    """Read what is left of a stream, briefly. Whatever happens here, the token has been seen."""
    try:
        async with asyncio.timeout(END_GRACE_S):
            async for piece in data:  # type: ignore[attr-defined]
                list(reader.feed(piece))
                if reader.ended:
                    return
    except (ValueError, *EXCHANGE_ERRORS):
        return
