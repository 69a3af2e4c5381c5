"""How our log looks: what went wrong is in it, and what was in memory at that moment is not."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from tailkeeper.logs import FEW, PERIOD_S, Few, LogFormat, set_up


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


def test_of_what_clients_make_a_server_say_only_so_much_is_written_and_the_rest_is_counted() -> None:
    now = 100.0
    few = Few(lambda: now)

    def said(level: int = logging.WARNING) -> str | None:
        record = logging.LogRecord("uvicorn.error", level, "", 0, "Invalid HTTP request received.", None, None)
        return record.getMessage() if few.filter(record) else None

    assert [said() for _ in range(FEW)] == ["Invalid HTTP request received."] * FEW
    assert {said() for _ in range(5_000)} == {None}
    assert said(logging.ERROR) is not None, "what is our own mistake is always told"
    now += PERIOD_S
    assert said() == "Invalid HTTP request received. (5000 more lines like this were left out)"
    assert said() == "Invalid HTTP request received."
