"""Committed results: every page is as its JSON says, and every JSON has a table, a place and a command that exists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.docs_pages import ROOT
from tests.docs_shell import check
from tools.results import envelope
from tools.results.page import DOCS, documents, fill, names

RESULTS = documents()
PAGES = [file for file in sorted(DOCS.rglob("*.md")) if "<!-- results:" in file.read_text(encoding="utf-8")]
MACHINE = {"cpu", "cores", "memory_gib", "python", "kernel"}


def test_there_are_results_and_pages_that_show_them() -> None:
    assert RESULTS
    assert PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda file: file.name)
def test_a_page_is_as_its_results_say(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert fill(text, RESULTS) == text, "run python -m tools.results.page"


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_whole_and_shown_and_its_command_exists(name: str) -> None:
    result = RESULTS[name]
    assert set(result) == {"name", "command", "version", "date", "machine", "figures"}
    assert set(result["machine"]) == MACHINE
    assert result["name"] == name
    check(result["command"])
    assert (ROOT / "tools/results/tables" / f"{name}.py").is_file()
    assert name in {shown for page in PAGES for shown in names(page.read_text(encoding="utf-8"))}


def test_what_is_written_says_what_where_and_when(tmp_path: Path) -> None:
    file = envelope.write("speed", "make bench", {"ms": 1.5}, tmp_path)
    written = json.loads(file.read_text())
    assert written == {**envelope.envelope("speed", "make bench", {"ms": 1.5}), "date": written["date"]}
    assert written["machine"]["cores"] >= 1
    assert set(written["machine"]) == MACHINE


def test_a_number_that_json_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        envelope.write("speed", "make bench", {"ms": float("nan")}, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text",
    [
        "<!-- results: bench_exporter -->\n",
        "<!-- end of results -->\n",
        "<!-- results: bench_exporter -->\n<!-- results: bench_exporter -->\n<!-- end of results -->\n",
        "<!-- results: bench_exporter --> on the line\n<!-- end of results -->\n",
        "<!-- results: nobody_measures_this -->\n<!-- end of results -->\n",
    ],
)
def test_a_mark_that_would_stay_empty_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="results"):
        fill(text, RESULTS)


def test_what_stood_between_the_marks_is_replaced_and_nothing_else() -> None:
    result: dict[str, Any] = RESULTS["bench_exporter"]
    text = "before\n<!-- results: bench_exporter -->\nold\n<!-- end of results -->\nafter\n"
    filled = fill(text, {"bench_exporter": result})
    assert filled.startswith("before\n<!-- results: bench_exporter -->\n\n|")
    assert filled.endswith("\n<!-- end of results -->\nafter\n")
    assert "old" not in filled
    assert f"*`{result['command']}`: {result['date']}" in filled
    assert fill(filled, {"bench_exporter": result}) == filled
