"""A configuration in another format is refused as a whole, with what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tailkeeper import __version__
from tailkeeper.cli import app
from tailkeeper.config import effective, parse, weights_in
from tailkeeper.config_version import CURRENT

ROOT = Path(__file__).parents[2]


def refused(tmp_path: Path, document: dict[str, Any]) -> str:
    file = tmp_path / "tailkeeper.yaml"
    file.write_text(yaml.safe_dump(document))
    result = CliRunner().invoke(app, ["check-config", "-c", str(file)])
    assert result.exit_code == 2, result.output
    return result.output


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (
            CURRENT + 1,
            [f"version: {CURRENT + 1} is newer", f"tailkeeper {__version__}", "install the tailkeeper", f"version {CURRENT}"],
        ),
        (CURRENT - 1, [f"version: {CURRENT - 1} is older", "docs/operations.md", f"`version: {CURRENT}`"]),
        ("1", ["version: must be a whole number", "'1'"]),
        (1.5, ["version: must be a whole number", "1.5"]),
        (True, ["version: must be a whole number"]),
        (None, ["version: must be a whole number"]),
    ],
)
def test_another_version_ends_with_exit_2_and_what_to_do(tmp_path: Path, version: Any, said: list[str]) -> None:
    output = refused(tmp_path, {"version": version})
    assert all(part in output for part in said), output


def test_a_newer_file_is_not_also_scolded_for_the_keys_that_it_has(tmp_path: Path) -> None:
    output = refused(tmp_path, {"version": CURRENT + 1, "a_key_of_the_future": 1, "backends": "elsewhere"})
    assert "a_key_of_the_future" not in output
    assert len(output.strip().splitlines()) == 1


def test_a_file_without_a_version_is_in_the_current_format_and_the_effective_one_says_so() -> None:
    assert parse({}) == parse({"version": CURRENT})
    assert yaml.safe_load(effective(parse({})))["version"] == CURRENT


def test_a_file_that_becomes_one_of_another_version_changes_no_weight_of_a_running_watchdog(tmp_path: Path) -> None:
    file = tmp_path / "tailkeeper.yaml"
    weights = {"latency": 0.25, "error_rate": 0.25, "cpu_usage": 0.25, "uptime": 0.25}
    file.write_text(yaml.safe_dump({"version": CURRENT + 1, "hscore": {"weights": weights}}))
    with pytest.raises(ValueError, match="is newer"):
        weights_in(file)


def test_the_page_that_the_message_names_has_its_section() -> None:
    assert "## When the configuration's version changes" in (ROOT / "docs" / "operations.md").read_text()
