"""Documentation that runs: every YAML block is a valid configuration, every command named exists, every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tailkeeper.cli import app
from tailkeeper.config import Config, parse
from tailkeeper_demo.faults import FaultKind
from tailkeeper_demo.mix import Mix
from tailkeeper_watchdog.actuators import ACTUATORS
from tailkeeper_watchdog.policies import POLICIES

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
IDS = [str(p.relative_to(ROOT)) for p in PAGES]


def blocks(text: str) -> list[str]:
    """The YAML blocks of a page, without the indentation they have inside a list."""
    found = re.findall(r"^( *)```yaml\n(.*?)^ *```", text, re.M | re.S)
    return [re.sub(rf"^{indent}", "", body, flags=re.M) for indent, body in found]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_yaml_block_is_a_configuration_that_is_accepted(page: Path) -> None:
    for block in blocks(page.read_text()):
        parse(yaml.safe_load(block))


def test_the_configuration_page_names_every_section() -> None:
    (block,) = blocks((ROOT / "docs" / "configuration.md").read_text())
    assert set(Config.model_fields) == set(yaml.safe_load(block))


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_command_named_on_a_page_exists(page: Path) -> None:
    for command in set(re.findall(r"`tailkeeper ([a-z-]+)", page.read_text())):
        result = CliRunner().invoke(app, [command, "--help"])
        assert result.exit_code == 0, f"{page.name}: tailkeeper {command}"


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_every_make_target_in_the_readme_is_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"make ([a-z-]+)", (ROOT / "README.md").read_text())) <= targets


def test_every_policy_has_its_page() -> None:
    text = (ROOT / "docs" / "policies.md").read_text()
    assert all(f"## {policy.name}" in text for policy in POLICIES)


def test_every_kind_of_gateway_has_its_section_with_an_example() -> None:
    sections = (ROOT / "docs" / "gateways.md").read_text().split("\n## ")
    for kind in ACTUATORS:
        (section,) = [section for section in sections if section.startswith(f"{kind}\n")]
        kinds = {gateway["kind"] for block in blocks(section) for gateway in yaml.safe_load(block).get("gateways", ())}
        assert kind in kinds


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["bench", "--help"], ["demo", "--help"]])
def test_the_command_line_explains_itself(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demo", "--fault", "fire"], "hang, slow, oom, errors, restart, flap, throttle, blind"),
        (["demo", "--mix", "batch"], "online, rlhf, sft"),
        (["exporter", "-c", "nowhere.yaml"], "cannot be read"),
        (["watchdog"], "--config"),
        (["bench", "tick", "--backends", "0"], "greater than or equal to 1"),
    ],
)
def test_wrong_usage_ends_with_exit_2_and_says_what_was_wrong(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert said in result.output


def test_the_demos_help_names_every_fault_and_every_load() -> None:
    shown = CliRunner().invoke(app, ["demo", "--help"], env={"COLUMNS": "300", "TERM": "dumb"}).output
    assert all(fault in shown for fault in FaultKind)
    assert all(mix in shown for mix in Mix)
