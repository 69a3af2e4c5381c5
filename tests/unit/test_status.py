"""`tailkeeper status`: a table that fits the terminal, and in plain words why nothing happens."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from tailkeeper.cli import app
from tailkeeper.status import fleet_table


def backend(name: str = "sim-a", **more: Any) -> dict[str, Any]:
    plain = {"backend": name, "state": "serving", "hscore": 0.86, "p99_s": 0.236, "p99_saturated": False, "samples": 19}
    actual = {"weight": 1.0, "admission": "serve", "in_service": True, "doubt": None}
    why = "nothing to do: no policy wants a change"
    wanted = {"weight": 1.0, "admission": "serve"}
    return {**plain, "actual": actual, "desired": wanted, "leases": [], "why": why, "hold": None, **more}


def fleet(*backends: dict[str, Any], **more: Any) -> dict[str, Any]:
    at = {"time": 1_000.0, "now": 1_000.4, "tick_s": 0.5, "slo_ttft_p99_s": 1.2}
    plain: dict[str, Any] = {
        **at,
        "tick": 7,
        "mode": "enforce",
        "paused": False,
        "paused_because": None,
        "error": None,
        "gateway_errors": {},
    }
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
    assert lines[0].endswith("tick 7; shard 0/3, 24 backends watched by the others")
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
        (fleet(now=1_003.1), "the last tick was 3 s ago: the watchdog answers, but looks at nothing"),
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


def many(*odd: dict[str, Any], plain: int = 2_000) -> dict[str, Any]:
    return fleet(*(backend(f"v{i:04}") for i in range(plain)), *odd)


ODD = [
    backend("x", state="hung"),
    backend("x", p99_s=1.3),
    backend("x", leases=[{"id": 1}]),
    backend("x", hold={"reason": "deploy", "until": 1.0}),
    backend("x", desired={"weight": 0.5, "admission": "serve"}),
    backend("x", desired={"weight": 1.0, "admission": "drain"}),
]


@pytest.mark.parametrize("odd", ODD)
def test_of_a_large_fleet_those_that_need_a_look_are_shown_and_the_others_counted(odd: dict[str, Any]) -> None:
    lines = fleet_table(many(odd), 200, every=False).splitlines()
    assert len([line for line in lines if line.startswith("x ")]) == 1
    assert lines[-1] == "and 2,000 serving within the SLO with nothing to do; --all shows all"
    assert len(lines) <= 5
    assert fleet_table(many(), 200, every=False).splitlines()[1:] == lines[-1:]


def test_of_many_that_need_a_look_the_first_ones_are_shown() -> None:
    document = fleet(
        *(backend(f"v{i:04}", state="down", actual={**backend()["actual"], "doubt": "no answer"}) for i in range(500))
    )
    lines = fleet_table(document, 200, every=False).splitlines()
    assert len([line for line in lines if line.startswith("v")]) == 50
    assert "  ! and 480 more like these; --all shows all" in lines
    assert lines[-1] == "and 450 more that need a look; --all shows all"
    assert len(fleet_table(document, 200).splitlines()) == 1_002


def test_a_small_fleet_is_shown_whole_and_in_its_order() -> None:
    lines = fleet_table(fleet(backend("b"), backend("a", state="hung")), 200, every=False).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["b", "a"]


@pytest.mark.parametrize("url", ["127.0.0.1:8088", "ftp://x", "http://me:s3cret@x"])
def test_an_address_that_is_none_is_wrong_usage(url: str) -> None:
    result = CliRunner().invoke(app, ["status", "--url", url])
    assert (result.exit_code, "--url: " in result.output, "s3cret" in result.output) == (2, True, False)
