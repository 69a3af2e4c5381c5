"""Committed results: every page is as its JSON says, and every JSON has a table, a place and a command that exists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.docs_pages import ROOT
from tests.docs_shell import check
from tools.results import envelope
from tools.results.bench import BENCHES
from tools.results.markdown import duration, number
from tools.results.page import DOCS, documents, fill, names
from tools.results.tables.targets import TARGETS, Target

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
    assert set(result) - {"load"} == {"name", "command", "version", "date", "machine", "figures"}
    assert set(result["machine"]) == MACHINE
    assert result["name"] == name
    check(result["command"])
    assert (ROOT / "tools/results/tables" / f"{name}.py").is_file()
    assert name in {shown for page in PAGES for shown in names(page.read_text(encoding="utf-8"))}


def test_what_is_written_says_what_where_and_when(tmp_path: Path) -> None:
    file = envelope.write("speed", "make bench", {"ms": 1.5}, tmp_path, load=0.44)
    written = json.loads(file.read_text())
    assert written == {**envelope.envelope("speed", "make bench", {"ms": 1.5}, 0.44), "date": written["date"]}
    assert written["load"] == 0.4
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


def test_a_table_without_a_result_says_that_nothing_was_measured() -> None:
    text = "<!-- results: bench_exporter -->\n<!-- end of results -->\n"
    assert "Not measured yet" in fill(text, {})


def test_a_summary_is_made_of_all_results_and_of_none() -> None:
    text = "<!-- results: targets -->\n<!-- end of results -->\n"
    assert "not measured" in fill(text, {})
    assert fill(text, RESULTS) != fill(text, {})


def target(limit: float) -> Target:
    return Target("fast", limit, "bench_speed", lambda figures: figures.get("s"), duration, "it is slow")


@pytest.mark.parametrize(
    ("limit", "figures", "said"),
    [
        (1.0, {"s": 0.5}, "500 ms | met"),
        (1.0, {"s": 1.0}, "1 s | met"),
        (1.0, {"s": 2.5}, "2.5 s | **missed, 2.5 times over**: it is slow"),
        (1.0, {}, "not measured | "),
    ],
)
def test_a_target_is_met_or_missed_by_its_figures_alone(limit: float, figures: dict[str, float], said: str) -> None:
    machine = {"cores": 2}
    results = {"bench_speed": {"command": "make bench ARGS=speed", "figures": figures, "machine": machine, "load": 0.3}}
    assert " | ".join(target(limit).row(results)) == f"fast | {said} | `make bench ARGS=speed`"


def test_a_target_that_was_missed_on_a_busy_machine_says_so() -> None:
    document = {"command": "make bench", "figures": {"s": 3.0}, "machine": {"cores": 2}, "load": 9.0}
    assert "the machine was busy (load 9 on 2 cores)" in target(1.0).row({"bench_speed": document})[2]
    assert target(4.0).row({"bench_speed": document})[2] == "met"


def test_every_target_and_every_benchmark_has_a_result_that_make_bench_writes() -> None:
    written = {f"bench_{name}" for name in BENCHES}
    assert {t.result for t in TARGETS} <= written
    assert {file.stem for file in (ROOT / "tools/results/tables").glob("bench_*.py")} == written


@pytest.mark.parametrize("arguments", [run for runs in BENCHES.values() for run in runs])
def test_every_run_of_make_bench_is_a_command_that_exists(arguments: str) -> None:
    check(f"tailkeeper bench {arguments} --json")


@pytest.mark.parametrize(
    ("value", "said"), [(0.0, "0"), (0.001234, "0.00123"), (12.34, "12.3"), (123.4, "123"), (98_765, "98,800"), (2.0, "2")]
)
def test_numbers_have_three_digits_that_matter(value: float, said: str) -> None:
    assert number(value) == said


@pytest.mark.parametrize(("seconds", "said"), [(0.0, "0 us"), (2.5e-7, "0.25 us"), (0.0021, "2.1 ms"), (12.0, "12 s")])
def test_durations_are_in_the_unit_that_reads_best(seconds: float, said: str) -> None:
    assert duration(seconds) == said
