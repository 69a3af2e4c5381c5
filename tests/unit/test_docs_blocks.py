"""Every block of every page is checked by what its language and name say, or carries the reason why nothing can check it."""

from __future__ import annotations

import ast
import configparser
import importlib
import json
import re
import shlex
from collections.abc import Sequence

import promql_parser
import pytest
import yaml

from tailkeeper.config import parse
from tests.docs_pages import Block, Page, blocks, pages
from tests.docs_shell import DocsError, check, check_command, commands

REAL_PROGRAMS = {"haproxy.cfg", "envoy.yaml", "llm.json", "traefik.yml", "llm.yml", "prometheus.yml"}
"""Tried with the programs themselves, in tests/contract/test_docs_getting_started.py."""
PARTS_OF_A_MANIFEST = {"metadata", "spec", "components", "configMapGenerator", "images", "patches", "resources"}
LANGUAGES = {"sh", "console", "yaml", "json", "promql", "haproxy", "ini", "python"}


def _ours(block: Block) -> bool:
    return not block.file or block.file == "tailkeeper.yaml"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_no_block_is_left_unchecked_without_a_reason(page: Page) -> None:
    left = [str(b) for b in page.blocks() if b.untested is None and b.language not in LANGUAGES]
    assert left == [], "give it a language that is checked, or `<!-- not tested: REASON -->` before it"


@pytest.mark.parametrize("block", [b for b in blocks("yaml") if _ours(b)], ids=str)
def test_a_configuration_is_accepted(block: Block) -> None:
    parse(yaml.safe_load(block.body))


@pytest.mark.parametrize("block", [b for b in blocks("yaml", "json", "haproxy") if not _ours(b)], ids=str)
def test_a_file_of_another_program_is_tried_with_it_or_is_a_manifest(block: Block) -> None:
    if block.file in REAL_PROGRAMS:
        return
    for manifest in yaml.safe_load_all(block.body):
        if block.named.endswith(", a part"):
            assert manifest.keys() <= PARTS_OF_A_MANIFEST, block
        else:
            assert isinstance(manifest.get("apiVersion"), str), block
            assert manifest["kind"] == "Kustomization" or manifest["metadata"]["name"], block
        assert all(rule.keys() == {"apiGroups", "resources", "verbs"} for rule in manifest.get("rules", ())), block


@pytest.mark.parametrize("block", blocks("json"), ids=str)
def test_json_is_json(block: Block) -> None:
    json.loads(block.body)


@pytest.mark.parametrize("block", blocks("promql"), ids=str)
def test_a_query_is_one_that_prometheus_can_read(block: Block) -> None:
    for query in re.split(r"\n\s*\n", block.body.strip()):
        promql_parser.parse(re.sub(r"#.*", "", query))


@pytest.mark.parametrize("block", blocks("ini"), ids=str)
def test_a_unit_starts_a_command_that_exists(block: Block) -> None:
    unit = configparser.ConfigParser(strict=True)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's keys have capitals
    unit.read_string(block.body)
    assert {"Unit", "Service", "Install"} == set(unit.sections())
    check_command(shlex.split(unit["Service"]["ExecStart"]))


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_what_python_blocks_import_from_us_is_there(block: Block) -> None:
    for node in ast.walk(ast.parse(block.body)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tailkeeper"):
            module = importlib.import_module(node.module)
            assert all(hasattr(module, name.name) for name in node.names), block


@pytest.mark.parametrize("block", blocks("sh"), ids=str)
def test_every_command_option_target_and_file_of_a_shell_block_exists(block: Block) -> None:
    check(block.body)


@pytest.mark.parametrize("block", blocks("console"), ids=str)
def test_what_is_typed_in_a_session_exists(block: Block) -> None:
    typed = [line.removeprefix("$ ") for line in block.body.splitlines() if line.startswith("$ ")]
    assert typed, f"{block}: nothing is typed; lines that are typed begin with `$ `"
    check("\n".join(typed))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("tailkeeper up --config tailkeeper.yaml", None),
        ("tailkeeper fly -c tailkeeper.yaml", "fly"),
        ("tailkeeper up --colour", "--colour"),
        ("tailkeeper up", "--config"),
        ("tailkeeper bench loop --trials many", "many"),
        ("~/tailkeeper/bin/tailkeeper --version && tailkeeper bench nothing", "nothing"),
        ("sudo tailkeeper status --urls x", "--urls"),
        ("X=1 make demo ARGS='--fault slow' > out.txt", None),
        ("make demo ARGS='--faults slow'", "--faults"),
        ("make coffee", "coffee"),
        ("pip install '.[gpu,wings]'", "wings"),
        ("python tools/nowhere.py", "nowhere.py"),
        ("python3 -c 'import ('", "invalid syntax"),
        ("docker compose exec butler ls", "no service"),
        ("docker build -f deploy/Dockerfile --target moon .", "moon"),
        ("kubectl apply -k deploy/nowhere", "nowhere"),
        ("kubectl exec x -- tailkeeper release-all --now", "--now"),
        ("frobnicate --all", "frobnicate"),
        ("echo 'open", "unexpected EOF"),
    ],
)
def test_the_check_of_shell_blocks_finds_what_could_not_work(script: str, said: str | None) -> None:
    if said is None:
        check(script)
    else:
        with pytest.raises((DocsError, SyntaxError)) as found:
            check(script)
        assert said in str(found.value)


@pytest.mark.parametrize(
    ("script", "split"),
    [
        ("a b \\\n  c && d | e > f", [["a", "b", "c"], ["d"], ["e"]]),
        ("X=1 a 'b; c'   # why", [["a", "b; c"]]),
        ("a -d '{\"x\":\n 1}'\nb", [["a", "-d", '{"x":\n 1}'], ["b"]]),
    ],
)
def test_commands_are_split_as_a_shell_would(script: str, split: Sequence[list[str]]) -> None:
    assert list(commands(script)) == split
