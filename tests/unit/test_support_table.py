"""The support table of ``check-config`` in a terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tailkeeper.cli import app
from tailkeeper.support import MAX_NAMES_WIDTH, MIN_REASON, aligned, support_table

REASON = "HAProxy's Runtime API is used for weight and admission only"
ROWS = (
    ("policy", "backend", "here", "because"),
    ("cache_offload", "a", "not enforceable", REASON),
    ("gpu_health_gate", "a", "observed", "mode is observe: what it would do is written down"),
)


def test_a_reason_goes_on_below_itself_where_the_terminal_is_narrow() -> None:
    assert list(aligned(ROWS[:2], 80)) == [
        "policy         backend  here             because",
        "cache_offload  a        not enforceable  HAProxy's Runtime API is used for",
        "                                         weight and admission only",
    ]


def test_where_nobody_looks_a_row_is_a_line() -> None:
    assert len(list(aligned(ROWS, None))) == len(ROWS)


@given(st.integers(1, 300))
def test_no_word_is_lost_at_any_width_and_lines_fit_where_they_can(width: int) -> None:
    lines = list(aligned(ROWS, width))
    assert sorted(" ".join(lines).split()) == sorted(" ".join(cell for row in ROWS for cell in row).split())
    beside = len("gpu_health_gate  backend  not enforceable  ")
    assert all(len(line) <= max(width, beside + MIN_REASON) for line in lines)


def table(*reaches: tuple[Sequence[str], str]) -> list[dict[str, Any]]:
    """One policy: the backends, and why it is not enforceable there."""
    knob = {"actuation": "not_enforceable"}
    answers = [(name, why) for names, why in reaches for name in names]
    backends = [{"backend": name, **knob, "why": why, "knobs": {"weight": {**knob, "why": why}}} for name, why in answers]
    return [{"policy": "p", "backends": backends}]


@pytest.mark.parametrize(
    ("names", "others", "said"),
    [
        (["a"], ["x"], "a"),
        (["a", "b", "c"], ["x"], "a, b, c"),
        (["a", "b", "c", "d"], ["x"], "a, b, c and 1 more"),
        ([f"v{i:04}" for i in range(1_999)], ["x"], "v0000, v0001, v0002 and 1,996 more"),
        (["a", "b", "c"], [], "a, b, c"),
        ([f"v{i:04}" for i in range(2_000)], [], "all 2,000"),
        (["(found ones)"], ["a"], "(found ones)"),
        (["a", "b", "c", "d", "(found ones)"], ["x"], "(found ones), a, b and 2 more"),
        (["a", "b", "c", "d", "(found ones)"], [], "all 4, (found ones)"),
    ],
)
def test_backends_of_which_the_same_is_true_share_a_line(names: list[str], others: list[str], said: str) -> None:
    _, line, *more = support_table(table((names, "no"), (others, "no door"))).splitlines()
    assert line.removeprefix("p").partition("  not enforceable")[0].strip() == said
    assert len(more) == len(others)


def test_each_backend_has_its_own_line_where_that_is_asked_for() -> None:
    assert len(support_table(table((["a", "b", "c"], "no")), every=True).splitlines()) == 4


def test_names_go_on_below_themselves_where_the_terminal_is_narrow() -> None:
    names = ["first-backend", "second-backend", "third-backend"]
    lines = support_table(table((names, "no")), 60).splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "policy backend here because",
        "p first-backend, not enforceable no",
        "second-backend,",
        "third-backend",
    ]
    assert lines[2].index("second") <= MAX_NAMES_WIDTH


def checked(tmp_path: Path, document: dict[str, Any], *options: str) -> str:
    file = tmp_path / "t.yaml"
    file.write_text(yaml.safe_dump({"watchdog": {"state": str(tmp_path / "t.db")}, **document}))
    result = CliRunner().invoke(app, ["check-config", "-c", str(file), *options])
    assert result.exit_code == 0, result.output
    return result.stdout


def fleet(number: int) -> dict[str, Any]:
    gateway = {"name": "edge", "pool": "llm"}
    backends = [{"name": f"v{i}", "engine": "vllm", "url": f"http://10.0.0.{i}:8000", "gateway": gateway} for i in range(number)]
    return {"backends": backends, "gateways": [{"name": "edge", "kind": "haproxy", "socket": "/run/haproxy/admin.sock"}]}


def test_a_large_fleet_fits_a_screen(tmp_path: Path) -> None:
    lines = checked(tmp_path, fleet(200)).splitlines()
    assert len(lines) < 20
    assert lines[-1].endswith("good, 200 backends, 1 gateway")
    assert len(checked(tmp_path, fleet(200), "--all").splitlines()) > 1_000


def test_a_program_gets_every_backend(tmp_path: Path) -> None:
    document = json.loads(checked(tmp_path, fleet(5), "--json"))
    assert (document["backends"], document["gateways"], document["discovery"]) == (5, 1, [])
    gate = next(policy for policy in document["policies"] if policy["policy"] == "gpu_health_gate")
    assert [row["backend"] for row in gate["backends"]] == ["v0", "v1", "v2", "v3", "v4"]
    assert {row["actuation"] for row in gate["backends"]} == {"observed"}


def test_what_could_be_enforced_at_backends_that_are_found_is_told_before_any_is(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("[]")
    defaults = {"engine": "vllm", "gateway": {"name": "edge", "pool": "llm"}}
    found = {"discovery": [{"kind": "file_sd", "files": [str(tmp_path / "t.json")]}], "defaults": defaults}
    said = checked(tmp_path, {**fleet(0), **found}).splitlines()
    assert any(line.split()[:4] == ["gpu_health_gate", "(found", "ones)", "observed"] for line in said), said
