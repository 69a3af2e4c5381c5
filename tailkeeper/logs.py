"""How every part logs: one JSON object a line on stderr, or readable lines where a person watches the terminal."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from enum import StrEnum

import structlog

FEW, PERIOD_S = 10, 60.0
"""What a server says of its clients: anybody may be one, and a disk full of "Invalid HTTP request" would be his doing."""


class Few(logging.Filter):
    """Lets ``FEW`` records pass in a ``PERIOD_S``; the first of the next one says how many were left out. Errors are never."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._since_s = float("-inf")
        self._passed = self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.ERROR:
            return True
        now = self._clock()
        if now - self._since_s >= PERIOD_S:
            if self._left_out:
                record.msg = f"{record.msg} ({self._left_out} more lines like this were left out)"
            self._since_s, self._passed, self._left_out = now, 0, 0
        self._passed += 1
        self._left_out += self._passed > FEW
        return self._passed <= FEW


class LogFormat(StrEnum):
    JSON = "json"
    TEXT = "text"


def set_up(log_format: LogFormat | None = None) -> None:
    """Configure structlog and the standard library once, at start. Default: text on a terminal, JSON otherwise."""
    chosen = log_format or (LogFormat.TEXT if sys.stderr.isatty() else LogFormat.JSON)
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.typing.Processor = (
        # The default one prints every local variable of every frame where rich is installed: secrets, and seconds of a tick.
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
        if chosen is LogFormat.TEXT
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    # Text tracebacks are for people; JSON keeps one object a line.
    errors = [] if chosen is LogFormat.TEXT else [structlog.processors.format_exc_info]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *errors, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    for noisy in ("httpx", "httpcore", "urllib3", "uvicorn.error", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    server = logging.getLogger("uvicorn.error")
    server.filters = [Few(time.monotonic)]
