"""The command: what may be asked, how it ends, and the page that people read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tailkeeper.cli import app
from tailkeeper_watchdog.records.lines import FORMAT
from tailkeeper_watchdog.replay.times import parse_time
from tailkeeper_watchdog.replay.words import text
from tests.e2e.real_programs import free_port
from tests.unit.test_records import write

NOW = 1_787_000_000.0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("now", NOW),
        ("-2d", NOW - 172_800),
        ("-90m", NOW - 5_400),
        ("-1.5h", NOW - 5_400),
        ("1786000000", 1_786_000_000.0),
        ("1786000000.25", 1_786_000_000.25),
        ("2026-08-22T14:00:00Z", 1_787_407_200.0),
        ("2026-08-22T16:00:00+02:00", 1_787_407_200.0),
        ("2026-08-22", 1_787_356_800.0),
    ],
)
def test_a_time_is_taken_as_people_write_it(given: str, expected: float) -> None:
    assert parse_time(given, NOW) == expected


@pytest.mark.parametrize("given", ["", "yesterday", "-2", "2d", "-2y", "nan", "inf", "-5", "1787407200000", "2026-13-01"])
def test_what_is_no_time_is_refused_with_what_is_allowed(given: str) -> None:
    with pytest.raises(ValueError, match="is no time; allowed: RFC 3339"):
        parse_time(given, NOW)


def test_a_prometheus_that_is_not_there_is_told_with_what_to_look_at() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    result = CliRunner().invoke(app, ["replay", "--prometheus", url, "--start", "-1h", "--end", "now"])
    assert result.exit_code == 1
    assert f"{url}: nothing listens there; is it the server's address" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "either --records FILE or --prometheus URL"),
        (["--records", "x", "--prometheus", "http://p"], "not both"),
        (["--records", "x", "--start", "-1d"], "belong to --prometheus"),
        (["--prometheus", "http://p"], "needs --start T and --end T"),
        (["--prometheus", "http://p", "--start", "-1d"], "needs --start T and --end T"),
        (["--prometheus", "http://p", "--start", "x", "--end", "now"], "--start: 'x' is no time"),
        (["--prometheus", "http://p", "--start", "now", "--end", "-1d"], "must be before"),
        (["--prometheus", "http://p", "--start", "now", "--end", "2200-01-01"], "--start must be in the past"),
        (["--prometheus", "p", "--start", "-1d", "--end", "now"], "--prometheus"),
        (["--records", "x", "-c", "/nowhere.yaml"], "/nowhere.yaml"),
        (["--records", "x", "--auth", "bearer_file=t"], "--auth belongs to --prometheus"),
        (["--prometheus", "http://p", "--start", "-1d", "--end", "now", "--auth", "bearer_file=/nowhere/t"], "/nowhere/t cannot"),
    ],
)
def test_wrong_usage_is_said_and_ends_with_2(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["replay", *arguments])
    assert result.exit_code == 2, result.output
    assert said in result.stderr


@pytest.mark.parametrize("body", [None, b"", b"no records"])
def test_records_that_cannot_be_read_are_said_and_end_with_1(tmp_path: Path, body: bytes | None) -> None:
    path = tmp_path / "r"
    if body is not None:
        path.write_bytes(body)
    result = CliRunner().invoke(app, ["replay", "--records", str(path)])
    assert result.exit_code == 1
    assert str(path) in result.stderr


def test_records_of_a_newer_version_are_said_to_be_so(tmp_path: Path) -> None:
    line = {"run": "1", "format": FORMAT + 1, "continued": False, "configuration": {}}
    (tmp_path / "r").write_bytes(gzip.compress(json.dumps(line).encode() + b"\n"))
    result = CliRunner().invoke(app, ["replay", "--records", str(tmp_path / "r")])
    assert result.exit_code == 1
    assert f"a newer version wrote it, in format {FORMAT + 1}; this one reads format {FORMAT}" in result.stderr


def test_where_there_is_no_room_advice_is_told_rather_than_a_detector_that_is_often_wrong() -> None:
    kinds = ["zscore"] * 50 + ["advice", "block_e"]
    findings = [
        {"kind": kind, "severity": "page" if kind == "block_e" else "info", "since": 60.0 * number, "until": None,
         "summary": f"{kind} {number}", "users_felt": None}
        for number, kind in enumerate(kinds)
    ]  # fmt: skip
    report = {
        "source": {"where": "x", "decides": "y"}, "period": {"start": None}, "slo": {"ttft_p99_s": 1.2, "objective": 0.995},
        "backends": [], "findings": findings, "decisions": [], "decisions_left_out": 0, "policies": [], "unknown": [],
    }  # fmt: skip
    page = text(report)
    assert "advice 50" in page
    assert "block_e 51" in page
    assert "and 12 more" in page


def test_a_server_that_is_not_there_is_said_and_ends_with_1() -> None:
    result = CliRunner().invoke(app, ["replay", "--prometheus", "http://127.0.0.1:9", "--start", "-1h", "--end", "now"])
    assert result.exit_code == 1
    assert "http://127.0.0.1:9" in result.stderr


def test_a_recorded_configuration_that_is_none_is_said_and_ends_with_1(tmp_path: Path) -> None:
    write(tmp_path / "r", range(3))  # their configuration is empty
    result = CliRunner().invoke(app, ["replay", "--records", str(tmp_path / "r")])
    assert result.exit_code == 1
    assert "the recorded configuration cannot be used" in result.stderr


def test_the_page_says_what_is_unknown_and_never_zero_for_it() -> None:
    backend = {
        "backend": "a", "seen_s": 0, "unseen_s": 60, "states_s": {}, "requests": None, "failed": None,
        "late_first_tokens_share": None, "over_slo_time_share": None, "sla_kept": None, "worst_p99_s": None, "breaches": [],
    }  # fmt: skip
    report = {
        "source": {"where": "x", "decides": "y"}, "period": {"start": None}, "slo": {"ttft_p99_s": 1.2, "objective": 0.995},
        "backends": [backend], "findings": [], "decisions": [], "decisions_left_out": 0, "policies": [], "unknown": ["all of it"],
    }  # fmt: skip
    page = text(report)
    assert "unknown  requests unknown, unknown late" in page
    assert "all of it" in page
    assert json.loads(json.dumps(report)) == report
