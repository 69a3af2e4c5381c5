"""How every part logs: one JSON object a line on stderr, or readable lines where a person watches the terminal."""

from __future__ import annotations

import logging
import sys
from enum import StrEnum

import structlog


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
