"""`tailkeeper status`: a table that fits the terminal, and in plain words why nothing happens."""

from __future__ import annotations

from typing import Any

import pytest

from tailkeeper.status import fleet_table


def backend(name: str = "sim-a", **more: Any) -> dict[str, Any]:
    plain = {"backend": name, "state": "serving", "hscore": 0.86, "p99_s": 0.236, "p99_saturated": False, "samples": 19}
    actual = {"weight": 1.0, "admission": "serve", "in_service": True, "doubt": None}
    why = "nothing to do: no policy wants a change"
    return {**plain, "actual": actual, "why": why, "hold": None, **more}


def fleet(*backends: dict[str, Any], **more: Any) -> dict[str, Any]:
    plain = {"tick": 7, "mode": "enforce", "paused": False, "paused_because": None, "error": None, "gateway_errors": {}}
    return {**plain, "backends": list(backends) or [backend()], **more}


LONG = backend(why="cap: as many backends of the pool as allowed are acted on already (1 of 4: sim-b); wanted because it is hung")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_it_fits_the_terminal_and_the_reason_is_whole(width: int) -> None:
    said = fleet_table(fleet(LONG, backend("b")), width)
    assert max(len(line) for line in said.splitlines()) <= width
    assert LONG["why"] in " ".join(said.split())


def test_a_shard_says_which_it_is_and_what_it_leaves_to_the_others() -> None:
    part = {"index": 0, "of": 3, "elsewhere": 24, "split_pools": ["edge:llm"]}
    lines = fleet_table(fleet(shard=part), 120).splitlines()
    assert lines[0].endswith("tick 7; shard 0/3, 24 backends are watched by the others")
    assert lines[1].startswith("  ! pool edge:llm is watched by several shards")


def test_a_reason_that_fits_stands_beside_its_backend() -> None:
    line = fleet_table(fleet(), 120).splitlines()[2]
    assert line.startswith("sim-a")
    assert line.endswith("no policy wants a change")


@pytest.mark.parametrize(("state", "said"), [("serving", "no traffic"), ("unknown", "unknown")])
def test_a_backend_of_which_nothing_is_known_is_not_said_to_have_no_traffic(state: str, said: str) -> None:
    line = fleet_table(fleet(backend(state=state, p99_s=None, hscore=0.5)), 120).splitlines()[2]
    assert f"0.50 {said} 100%" in " ".join(line.split())


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (fleet(), ""),
        (fleet(paused=True, paused_because="paused by API"), "nothing is changed while it is paused"),
        (fleet(mode="observe"), "nothing is changed in mode observe"),
        (fleet(error="http://e: refused"), "no fresh evidence, so nothing is decided: http://e: refused"),
        (fleet(gateway_errors={"edge": "cannot connect"}), "gateway edge: cannot connect"),
        (fleet(backend(hold={"reason": "deploy 42", "until": 1.0})), "sim-a is on hold: deploy 42"),
        (
            fleet(backend(actual={"weight": None, "admission": "serve", "doubt": "edge#2 was not read"})),
            "sim-a: edge#2 was not read",
        ),
    ],
)
def test_what_keeps_it_from_acting_is_told_before_the_table(document: dict[str, Any], said: str) -> None:
    lines = fleet_table(document, 100).splitlines()
    held = [line for line in lines if line.startswith("  ! ")]
    assert [said in line for line in held] == ([True] if said else [])
    assert lines.index(next(line for line in lines if line.startswith("backend "))) == 1 + len(held)
