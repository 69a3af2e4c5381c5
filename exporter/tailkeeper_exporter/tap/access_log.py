"""The access log: one line for each request that the tap has finished, with what is known of it and nothing of its content.

Neither prompt, answer, query nor any header but the ones named here. Values come from clients, so control characters are
taken out and long ones cut. At most ``MAX_LINES_PER_S`` lines a second, so that a flood of requests costs neither the event
loop nor the disk; how many were left out is said in a line of its own. The request ring and the metrics have them all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailkeeper_exporter.tap.exchange import Exchange

EVENT = "request"
MAX_LINES_PER_S = 500
"""A line costs the event loop well under a tenth of a millisecond: at the bound less than a twentieth of a CPU."""
MAX_CHARS = 256


def fields(exchange: Exchange) -> dict[str, object]:
    """What the line says. Seconds and tokens; what is unknown is left out. ``path`` is without its query."""
    found: dict[str, object | None] = {
        "backend": exchange.backend,
        "request_id": exchange.request_id,
        "trace_id": exchange.trace_id,
        "method": exchange.method or None,
        "path": exchange.path.partition("?")[0] or None,
        "status": exchange.status,
        "outcome": exchange.outcome,
        "error": exchange.error or None,
        "model": exchange.model,
        "tenant": exchange.tenant,
        "operation": exchange.operation,
        "streaming": exchange.streaming,
        "queue_s": exchange.sent_s,
        "ttft_s": exchange.first_token_s,
        "itl_s": exchange.itl_s,
        "e2e_s": exchange.end_s,
        "prompt_tokens": exchange.prompt_tokens,
        "generated_tokens": exchange.generated_tokens,
        "temperature": exchange.temperature,
        "top_p": exchange.top_p,
        "max_tokens": exchange.max_tokens,
        "bytes": exchange.response_bytes,
    }
    return {name: _clean(value) for name, value in found.items() if value is not None}


def _clean(value: object) -> object:
    if isinstance(value, str):
        return "".join(char if char.isprintable() else "?" for char in value[:MAX_CHARS])
    return round(value, 6) if isinstance(value, float) else value


class AccessLog:
    """Writes the lines through a structlog logger. ``clock`` is monotonic seconds."""

    def __init__(self, log: Any, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._second = 0
        self._written = 0
        self._left_out = 0

    def write(self, exchange: Exchange) -> None:
        """One line, unless this second has had its share."""
        second = int(self._clock())
        if second != self._second:
            self._second, self._written = second, 0
            self._say_left_out()
        if self._written >= MAX_LINES_PER_S:
            self._left_out += 1
            return
        self._written += 1
        self._log.info(EVENT, **fields(exchange))

    def _say_left_out(self) -> None:
        if self._left_out:
            self._log.warning("requests not logged", count=self._left_out, limit_per_s=MAX_LINES_PER_S)
            self._left_out = 0
