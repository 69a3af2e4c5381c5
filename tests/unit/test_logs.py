"""How our log looks: what went wrong is in it, and what was in memory at that moment is not."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from tailkeeper.logs import LogFormat, set_up


@pytest.fixture(autouse=True)
def _own_handlers() -> Iterator[None]:
    kept = logging.getLogger().handlers[:]
    yield
    logging.getLogger().handlers[:] = kept


def _fail(token: str) -> None:
    raise ValueError(f"it broke at {len(token)}")


@pytest.mark.parametrize("chosen", list(LogFormat))
def test_an_unforeseen_error_is_logged_with_its_place_and_without_any_variable(
    chosen: LogFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up(chosen)
    try:
        _fail("s3" + "cret")
    except ValueError:
        structlog.get_logger("test").exception("internal error")
    said = capsys.readouterr().err
    assert "it broke at 6" in said
    assert "in _fail" in said
    assert "s3cret" not in said
    if chosen is LogFormat.JSON:
        assert json.loads(said)["event"] == "internal error"
