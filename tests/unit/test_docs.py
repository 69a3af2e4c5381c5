"""Documentation that leads somewhere: every link and anchor, every command and option in a sentence, every path of the HTTP API.

What stands in blocks is checked in test_docs_blocks.py, and with the programs themselves in tests/contract/.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tailkeeper.cli import app
from tailkeeper.config import Config
from tailkeeper_demo.faults import FaultKind
from tailkeeper_demo.mix import Mix
from tailkeeper_exporter.openapi import PATHS as DESCRIBED
from tailkeeper_watchdog.actuators import ACTUATORS
from tailkeeper_watchdog.policies import POLICIES
from tests.docs_pages import ROOT, Page, page, pages
from tests.docs_shell import make_targets, options_of
from tests.unit.watchdog_http import application, world_at

ALL = pages()
IDS = [page.name for page in ALL]
LONG_AGO = {"CHANGELOG.md"}
"""What it says of names was true when it was written."""


@pytest.mark.parametrize("page", ALL, ids=IDS)
def test_every_link_leads_to_a_file_and_every_anchor_to_a_heading(page: Page) -> None:
    for link in page.links():
        path, _, anchor = link.partition("#")
        target = (page.path.parent / path).resolve() if path else page.path
        assert target.exists(), f"{page.name}: {link}: there is no such file"
        if anchor and target.suffix == ".md":
            there = Page(target, target.read_text(encoding="utf-8")).anchors()
            assert anchor in there, f"{page.name}: {link}: there is no such heading"


def test_every_page_of_the_documentation_can_be_found_from_its_index() -> None:
    index = page("docs/README.md")
    listed = {(index.path.parent / link.partition("#")[0]).resolve() for link in index.links()}
    missing = [p.name for p in ALL if p.name.startswith("docs/") and p != index and p.path not in listed]
    assert missing == []


@pytest.mark.parametrize("page", [p for p in ALL if p.name not in LONG_AGO], ids=lambda page: page.name)
def test_every_command_in_a_sentence_exists_and_has_the_options_that_are_named(page: Page) -> None:
    for said in re.findall(r"`tailkeeper ([a-z][^`]*)`", page.prose):
        command, *words = said.split()
        options = {option.partition("=")[0] for word in words for option in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", word)}
        assert options <= options_of(command), f"{page.name}: tailkeeper {said}"


@pytest.mark.parametrize("page", [p for p in ALL if p.name not in LONG_AGO], ids=lambda page: page.name)
def test_every_make_target_in_a_sentence_exists(page: Page) -> None:
    named = {shlex.split(said)[0] for said in re.findall(r"`make ([a-z][^`]*)`", page.prose)}
    assert named <= make_targets()


def _routes(tmp_path: Path) -> set[str]:
    """The paths of watchdog and exporter; a name in them is a star."""
    return {re.sub(r"\{[^}]*\}", "*", path) for path in (*application(world_at(tmp_path)).openapi()["paths"], *DESCRIBED)}


def test_every_path_of_our_http_api_that_is_named_exists(tmp_path: Path) -> None:
    known = _routes(tmp_path)
    wrong = []
    for now in (p for p in ALL if p.name not in LONG_AGO):
        for path in re.findall(r"(?:(?:GET|PUT|POST|DELETE) |:8088|:9400)(/(?:api/)?v1/[\w/{}-]*)", now.text):
            parts = re.sub(r"/(?:backends|taps)/[^/]+", lambda name: f"/{name[0].split('/')[1]}/*", path.rstrip("/"))
            if parts not in known:
                wrong.append(f"{now.name}: {path}")
    assert wrong == []


def test_the_configuration_page_names_every_section() -> None:
    (block,) = [b for b in page("docs/configuration.md").blocks() if b.language == "yaml"]
    assert set(Config.model_fields) == set(yaml.safe_load(block.body))


def test_every_policy_has_its_page() -> None:
    text = (ROOT / "docs" / "policies.md").read_text()
    assert all(f"## {policy.name}" in text for policy in POLICIES)


def test_every_kind_of_gateway_has_its_section_with_an_example() -> None:
    gateways = page("docs/gateways.md")
    for kind in ACTUATORS:
        (section,) = [s for s in gateways.text.split("\n## ") if s.startswith(f"{kind}\n")]
        examples = [b for b in Page(gateways.path, section).blocks() if b.language == "yaml" and not b.file]
        assert kind in {gateway["kind"] for b in examples for gateway in yaml.safe_load(b.body).get("gateways", ())}


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
        (["bench", "tick", "--backends", "0"], "allowed are 1 to 10,000 backends"),
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
