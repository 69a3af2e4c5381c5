"""What goes into a simulated engine and what comes out of it: its size, requests, tokens, gauges, refusals. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from tailkeeper_demo.engine_stats import FinishReason


@dataclass(frozen=True, slots=True)
class EngineParams:
    """Size and speed of one engine.

    The defaults are not those of a given GPU. They were searched for so that, on the packaged trace at 2.5 requests/s an engine,
    four engines keep the P99 of time to first token near 0.3 s and three of the four near 0.4 s, while an engine slowed five
    times drowns within seconds at a full share and keeps some 87 % of requests under 1.2 s at half of one.
    """

    step_base_s: float = 0.017
    """Time of an iteration whatever is in it (weights read from memory)."""
    prefill_token_s: float = 5.7e-5
    decode_sequence_s: float = 1.0e-4
    kv_token_s: float = 1.0e-7
    """Attention over one cached token."""
    noise_sigma: float = 0.06
    """Sigma of the lognormal factor on an iteration; the drift benchmark's value."""
    max_running: int = 32
    token_budget: int = 2048
    """Tokens in one iteration, prefill is cut into chunks of it."""
    kv_blocks: int = 4096
    """Deliberately small (65,536 tokens): a full-size pool would never leave 3 % at a laptop's request rates."""
    block_tokens: int = 16
    shared_prefix_tokens: int = 128
    """Every prompt starts with the same system prompt of this length; it is computed once and then hit in the prefix cache."""
    cached_prompts: int = 64
    """Whole prompts kept in the prefix cache beside that one, the least recently used given up first."""
    max_model_len: int = 8192
    max_queued: int = 1024
    """Waiting requests beyond this are refused (vLLM's max_num_queued_reqs)."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request as the engine core sees it. `output_tokens` is where its answer ends, `finish` why it ends there."""

    request_id: str
    prompt_tokens: int
    output_tokens: int
    finish: FinishReason
    arrived_s: float
    prompt_key: str | None = None
    """Requests with the same key have the same prompt."""


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token. `index` counts from 0; `finish` is set on a request's last token."""

    request_id: str
    index: int
    finish: FinishReason | None


@dataclass(frozen=True, slots=True)
class Gauges:
    """The scheduler's own view, refreshed at both ends of an iteration and frozen in between."""

    running: int
    waiting: int
    kv_usage_ratio: float


class QueueFullError(Exception):
    """The waiting queue is at `max_queued`; the server answers 503."""


class UnservableError(ValueError):
    """The request can never run on this engine; the message says which limit it breaks."""
