"""``tailkeeper bench drift``: files of request records in, alarms by row out; and the simulated streams behind the tables."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from tailkeeper import bench_drift
from tailkeeper.bench_drift import Size, stream_bench, table
from tailkeeper.cli import app
from tailkeeper.driftlab.detectors import rested
from tailkeeper.driftlab.streams import DRIFTS, KINDS, inject, stream
from tailkeeper_watchdog.drift import BlockE, Rows, fit
from tests.drift_streams import loaded

HEADER = "start_s,ttft_s,prompt_tokens,backlog_tokens,running,waiting"
BASELINE = 6_000


@pytest.fixture(autouse=True)
def _without_river(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing it takes seconds; `tests/loopback` runs the peers."""
    monkeypatch.setattr(bench_drift, "has_river", lambda: False)


def write(path: Path, rows: Rows) -> Path:
    table = rows.table.copy()
    table[:, 0] -= table[:, 1]
    np.savetxt(path, table, delimiter=",", header=HEADER, comments="", fmt="%.9g")
    return path


def run(path: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["bench", "drift", "--input", str(path), *options])


def test_a_file_gives_the_alarms_of_every_detector_by_row(tmp_path: Path) -> None:
    rows = loaded(10_000, 1)
    rows.table[8_000:, 1] *= 1.5
    result = run(write(tmp_path / "r.csv", rows), "--baseline", str(BASELINE), "--json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert (figures["rows"], figures["baseline"]) == (10_000, BASELINE)
    assert {"block_e", "block_e_as_written", "growth", "distortion", "zscore", "ks"} == set(figures["detectors"])
    for name in ("block_e", "block_e_as_written"):
        assert 8_000 < figures["detectors"][name]["alarms"][0] < 8_800
        assert figures["detectors"][name]["ns_per_update"] > 0
    assert figures["notes"] == [bench_drift.NO_RIVER]


def test_rows_that_cannot_be_used_are_counted_and_numbers_stay_the_files(tmp_path: Path) -> None:
    rows = loaded(10_000, 1)
    rows.table[8_000:, 1] *= 1.5
    path = write(tmp_path / "r.csv", rows)
    plain = json.loads(run(path, "--baseline", str(BASELINE)).stdout)
    lines = path.read_text().splitlines()
    broken = [lines[0], *(["1.0,nan,1,1,1,1", "2.0,-3,1,1,1,1", "3.0,,,,,"] * 10), *lines[1:]]
    path.write_text("\n".join(broken) + "\n")
    figures = json.loads(run(path, "--baseline", str(BASELINE + 30)).stdout)
    assert figures["unusable_rows"] == 30
    assert figures["rows"] == 10_030
    assert figures["detectors"]["block_e"]["alarms"] == [row + 30 for row in plain["detectors"]["block_e"]["alarms"]]


BAD_FILES = {
    "empty": ("", "line 1: column start_s is missing"),
    "no header": ("1,2,3,4,5,6\n", "line 1: column start_s is missing"),
    "column missing": ("start_s,ttft_s,prompt_tokens,backlog_tokens,running\n", "line 1: column waiting is missing"),
    "text in a cell": (f"{HEADER}\n1,2,3,4,5,6\n1,2,many,4,5,6\n", "line 3, column prompt_tokens: 'many' is not a number"),
    "cell too few": (f"{HEADER}\n1,2,3,4,5\n", "line 2: 5 cells, but the header has 6"),
    "cell too many": (f"{HEADER}\n1,2,3,4,5,6,7\n", "line 2: 7 cells, but the header has 6"),
    "open quote": (f'{HEADER}\n1,2,3,4,5,"6\n', "not CSV"),
    "too short": (f"{HEADER}\n1,2,3,4,5,6\n", "none is left to judge after a baseline of 20000"),
}


@pytest.mark.parametrize(("text", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_bad_file_is_wrong_usage_and_says_where(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    result = run(path)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    path = write(tmp_path / "r.csv", loaded(7_000, 1))
    plain = json.loads(run(path, "--baseline", str(BASELINE)).stdout)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    marked = json.loads(run(path, "--baseline", str(BASELINE)).stdout)
    assert marked["rows"] == plain["rows"] == 7_000


def test_a_file_out_of_order_says_so(tmp_path: Path) -> None:
    rows = loaded(8_000, 1)
    rows.table[7_000:, 0] -= 7_200
    notes = json.loads(run(write(tmp_path / "r.csv", rows), "--baseline", str(BASELINE)).stdout)["notes"]
    assert any("sort by start_s" in note and note.split()[0] == "1000" for note in notes)


def test_requests_that_do_not_say_their_load_are_no_alarm_of_ks(tmp_path: Path) -> None:
    rows = loaded(12_000, 1)
    rows.table[::11, 3] = float("nan")
    figures = json.loads(run(write(tmp_path / "r.csv", rows), "--baseline", str(BASELINE)).stdout)
    assert figures["detectors"]["ks"]["alarms"] == []


def test_bytes_that_are_no_text_a_missing_file_and_a_folder_are_wrong_usage(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(HEADER.encode() + b"\n\xff\xfe\n")
    for one in (path, tmp_path / "none.csv", tmp_path):
        result = run(one)
        assert result.exit_code == 2
        assert "--input" in result.stderr


def test_a_baseline_of_too_few_blocks_is_wrong_usage(tmp_path: Path) -> None:
    result = run(write(tmp_path / "r.csv", loaded(2_000, 1)), "--baseline", "1000")
    assert result.exit_code == 2
    assert "at least 20 are needed" in result.stderr


def test_alarms_in_a_row_count_once() -> None:
    assert rested([5, 10, 500, 1_011, 1_012, 2_500], first=6) == [10, 1_011, 2_500]


def test_the_same_seed_gives_the_same_stream_and_another_another() -> None:
    one, again, other = (stream(KINDS["other_engine"], 500, seed).table for seed in (1, 1, 2))
    assert (one == again).all()
    assert (one != other).any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_has_its_rate_and_finite_numbers(kind: str) -> None:
    table = stream(KINDS[kind], 3_000, 3).table
    assert np.isfinite(table).all()
    assert (table[:, 1] > 0).all()
    assert 3_000 / (table[-1, 0] - table[0, 0]) == pytest.approx(KINDS[kind].rate_per_s, rel=0.35)


def test_a_queue_of_a_few_hours_is_silent_and_half_as_slow_again_is_found() -> None:
    rows = stream(KINDS["queue"], 40_000, seed=7)
    baseline = fit(rows[:20_000], model_id="m", created_at_s=0.0)
    assert baseline.fit_ratio is not None
    assert baseline.fit_ratio > 0.7
    assert BlockE(baseline).update_many(rows[20_000:]) == ()
    drifted = inject(rows, "all_x1.5", 30_000)
    assert 10_000 < BlockE(baseline).update_many(drifted[20_000:])[0].row < 10_700


def test_the_table_has_a_line_for_each_detector_and_a_column_for_each_drift() -> None:
    size = Size(1, quiet_rows=3_000, clean_rows=1_500, horizon_rows=2_000)
    figures = stream_bench(size, 1, ("iid",))
    detectors = figures["kinds"]["iid"]["detectors"]
    assert all(set(of_detector["drifts"]) == set(DRIFTS) for of_detector in detectors.values())
    assert detectors["block_e"]["false_alarms"] == 0
    assert detectors["block_e"]["drifts"]["all_x1.5"]["found_share"] == 1.0
    lines = table(figures).splitlines()
    assert sum(line.startswith(f"| {name} |") for name in detectors for line in lines) == len(detectors)
    assert lines[-1] == bench_drift.NO_RIVER
