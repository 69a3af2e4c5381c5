"""The benchmark of our own page: both writers must say the same."""

from __future__ import annotations

import pytest

from tailkeeper import bench_render

PAGE = b'# TYPE llm_backend_up gauge\nllm_backend_up{backend="a"} 1.0\n'


def test_two_writers_of_the_same_page_are_measured_in_turns() -> None:
    figures = bench_render._in_turns(lambda: PAGE, 1, 3)
    assert figures["series"] == 1
    assert figures["page_bytes"] == len(PAGE)
    assert figures["ours_ms"] >= 0.0
    assert figures["prometheus_client_ms"] > 0.0


def test_a_writer_that_says_something_else_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_render, "generate_latest", lambda registry: PAGE.replace(b"1.0", b"0.0"))
    with pytest.raises(RuntimeError, match="do not say the same"):
        bench_render._in_turns(lambda: PAGE, 1, 1)
