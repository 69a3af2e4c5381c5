"""What holds for all tests: a timing never decides one, and CI tries the same examples on every run."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import settings

# Looking for garbage among thousands of tests that are only being collected takes half of the time that collecting takes.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


EXAMPLES, EXAMPLES_IN_CI = 25, 40
"""A property that a change breaks is nearly always broken by the first dozen; people wait a minute for all of them together."""
settings.register_profile("people", deadline=None, max_examples=EXAMPLES)
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=EXAMPLES_IN_CI)
settings.load_profile("ci" if os.environ.get("CI") else "people")


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """A test that runs a command sets up logging for its process; the next test must not inherit that."""
    plain = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[structlog.processors.add_log_level, plain])
    yield
    structlog.reset_defaults()
