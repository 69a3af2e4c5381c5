"""Everything that is generated follows the SLO of the configuration file that is given."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tailkeeper.cli import app
from tailkeeper.config import parse
from tailkeeper.generate import documents, rule_settings
from tailkeeper_alerts.model import RuleSettings
from tailkeeper_alerts.render import RULES_PATH

SLO = "slo: {objective: 0.99, latency: {ttft_p99_s: 2.5, itl_p99_s: 0.05}}\n"


def test_an_empty_configuration_gives_what_is_committed() -> None:
    assert rule_settings(parse({})) == RuleSettings()
    assert documents(config=parse({})) == documents()


def test_rules_and_boards_have_the_numbers_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "tailkeeper.yaml").write_text(SLO, encoding="utf-8")
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["generate", "-c", str(tmp_path / "tailkeeper.yaml"), "--out", str(out)])
    assert done.exit_code == 0, done.output
    rules = (out / RULES_PATH).read_text(encoding="utf-8")
    assert "longer than 2.5 s for the first token" in rules
    assert ">= 0.144" in rules
    assert "2.5 s" in (out / "dashboards/generated/tailkeeper-fleet.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(("objective", "said"), [(1.5, "less than 1"), (0.1, "90% of all requests and more may fail then")])
def test_a_wrong_configuration_ends_with_exit_2_and_writes_nothing(tmp_path: Path, objective: float, said: str) -> None:
    (tmp_path / "tailkeeper.yaml").write_text(f"slo: {{objective: {objective}}}\n", encoding="utf-8")
    done = CliRunner().invoke(app, ["generate", "-c", str(tmp_path / "tailkeeper.yaml"), "--out", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert "slo.objective" in done.output
    assert said in " ".join(done.output.split())
    assert not (tmp_path / "out").exists()
