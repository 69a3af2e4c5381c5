"""The fuzz target itself, for half a second: that it runs, and that it would notice."""

from __future__ import annotations

import pytest

from tests.fuzz import fuzz_pages


def test_half_a_second_of_mutated_pages_brings_nothing_but_page_errors() -> None:
    assert "understood" in fuzz_pages.fuzz(0.5, seed=7)


def test_a_parser_that_raises_something_else_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object, page: bytes) -> bool:
        raise KeyError("le")

    monkeypatch.setattr(fuzz_pages.Subject, "read", broken)
    with pytest.raises(AssertionError, match=r"kept in .*KeyError"):
        fuzz_pages.fuzz(2.0, seed=7)
