"""The access log: one line per request, clean, and not without bound."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import structlog

from tailkeeper_exporter.tap.access_log import MAX_CHARS, MAX_LINES_PER_S, AccessLog, fields
from tests.unit.tap_exchanges import TRACE, exchange


class Captured:
    """A logger that keeps its lines, and a clock that a test sets."""

    def __init__(self) -> None:
        self.lines: list[MutableMapping[str, Any]] = []
        self.now = 100.0
        logger = structlog.wrap_logger(structlog.ReturnLogger(), processors=[structlog.processors.add_log_level, self._keep])
        self.log = AccessLog(logger, lambda: self.now)

    def _keep(self, _: object, __: str, line: MutableMapping[str, Any]) -> str:
        self.lines.append(line)
        return ""


def test_a_line_says_what_is_known_and_leaves_out_what_is_not() -> None:
    captured = Captured()
    captured.log.write(
        exchange(model="m", tenant=None, temperature=0.0, path="/v1/chat/completions?key=secret", response_bytes=9)
    )
    assert captured.lines == [
        {
            "event": "request",
            "level": "info",
            "backend": "a",
            "request_id": "r-1",
            "trace_id": TRACE,
            "method": "POST",
            "path": "/v1/chat/completions",
            "status": 200,
            "outcome": "ok",
            "model": "m",
            "streaming": True,
            "queue_s": 0.05,
            "ttft_s": 0.3,
            "itl_s": 0.25,
            "e2e_s": 0.9,
            "prompt_tokens": 10,
            "generated_tokens": 3,
            "temperature": 0.0,
            "bytes": 9,
        }
    ]


def test_a_client_cannot_write_lines_or_colours_of_its_own() -> None:
    found = fields(exchange(tenant="a\nb\x1b[31m\u202e\x00", model="m" * 10_000))
    assert found["tenant"] == "a?b?[31m??"
    assert found["model"] == "m" * MAX_CHARS


def test_a_flood_is_bounded_and_what_was_left_out_is_said() -> None:
    captured = Captured()
    for _ in range(MAX_LINES_PER_S + 7):
        captured.log.write(exchange())
    assert len(captured.lines) == MAX_LINES_PER_S
    captured.now += 1
    captured.log.write(exchange())
    said, line = captured.lines[-2:]
    assert (said["event"], said["count"], said["level"]) == ("requests not logged", 7, "warning")
    assert line["event"] == "request"
