"""Servers that several files here ask."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.tiny_servers import answer, serving


@pytest.fixture
def denying() -> Iterator[str]:
    """The address of one that lets nobody in."""
    with serving(lambda handler: answer(handler, 401, b"no")) as port:
        yield f"http://127.0.0.1:{port}"
