"""The eye of the chaos run sees what it is there to see: each invariant broken on purpose, and kept."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from tools.chaos.haproxy_eye import Server
from tools.chaos.invariants import (
    FROM_THE_PAGE,
    Leases,
    NotZero,
    Ticks,
    Usage,
    beyond_cap,
    growth,
    uncovered,
)
from tools.chaos.ledger_eye import Book, LeaseRow
from tools.chaos.middle import covered, rubbish


def server(name: str, weight: int = 100, **more: bool) -> Server:
    return Server(name, weight, 100, **{"drained": False, "maintenance": False, "up": True, **more})


def town(*changed: Server) -> dict[str, Server]:
    """Seven servers."""
    return {f"e{n}": server(f"e{n}") for n in range(1, 8)} | {one.name: one for one in changed}


def lease(name: str, knob: str, written: Any, **more: Any) -> LeaseRow:
    prior = "serve" if knob == "admission" else 1.0
    return replace(LeaseRow(1, f"llm/{name}", knob, prior, written, prior, 100.0, True), **more)


def book(*leases: LeaseRow, pending: dict[tuple[str, str], tuple[Any, ...]] | None = None) -> Book:
    return Book(leases, pending or {}, 0)


@pytest.mark.parametrize(
    ("servers", "wrong"),
    [
        (town(), 0),
        (town(server("e1", drained=True), server("e2", 49)), 0),
        (town(server("e1", drained=True), server("e2", 49), server("e3", 60)), 0),
        (town(server("e1", drained=True), server("e2", 49), server("e3", maintenance=True)), 1),
        ({"a": server("a", drained=True)}, 1),
        ({"a": server("a", drained=True), "b": server("b")}, 0),
        ({"a": server("a", drained=True), "b": server("b", 0)}, 2),
    ],
)
def test_more_out_than_the_cap_or_nobody_left_is_seen(servers: dict[str, Server], wrong: int) -> None:
    assert len(beyond_cap(servers)) == wrong


@pytest.mark.parametrize(
    ("changed", "before", "after", "wrong"),
    [
        (server("e1", drained=True), book(), book(), 1),
        (server("e1", drained=True), book(lease("e1", "admission", "drain")), book(), 0),
        (server("e1", drained=True), book(), book(lease("e1", "admission", "drain")), 0),
        (server("e1", drained=True), book(lease("e2", "admission", "drain")), book(), 1),
        (server("e1", drained=True), book(lease("e1", "weight", 0.25)), book(), 1),
        (server("e1", 25), book(lease("e1", "weight", 0.25)), book(), 0),
        (server("e1", 25), book(lease("e1", "weight", 0.5)), book(), 1),
        (server("e1", 25), book(lease("e1", "weight", 0.5, before=0.25)), book(), 0),
        (server("e1", 25), book(lease("e1", "weight", 0.5), pending={("llm/e1", "weight"): (0.25,)}), book(), 0),
        (server("e1"), book(), book(), 0),
    ],
)
def test_a_change_without_a_lease_that_says_so_is_seen(changed: Server, before: Book, after: Book, wrong: int) -> None:
    assert len(uncovered(town(changed), before, after, "llm")) == wrong


@pytest.mark.parametrize(
    ("command", "leases", "is_covered"),
    [
        ("set server llm/e1 state drain", (lease("e1", "admission", "drain"),), True),
        ("set server llm/e1 state ready", (lease("e1", "admission", "drain"),), True),
        ("set server llm/e1 state drain", (), False),
        ("set server llm/e1 state drain", (lease("e2", "admission", "drain"),), False),
        ("set server llm/e1 weight 25", (lease("e1", "weight", 0.25),), True),
        ("set server llm/e1 weight 100", (lease("e1", "weight", 0.25),), True),
        ("set server llm/e1 weight 50", (lease("e1", "weight", 0.25),), False),
        ("set server llm/e1 weight 25", (lease("e1", "admission", "drain"),), False),
    ],
)
def test_a_command_that_no_lease_was_written_for_is_seen(command: str, leases: tuple[LeaseRow, ...], is_covered: bool) -> None:
    assert covered(command.split(), leases)[0] is is_covered


def test_a_lease_that_outlives_its_time_is_seen_and_time_in_which_nothing_could_be_done_does_not_count() -> None:
    held, leases = lease("e1", "admission", "drain"), Leases(lease_s=30, margin_s=15)
    told = [words for at in range(60) for words in leases.look(float(at), [held], able=at % 2 == 0)]
    assert told == []
    told = [words for at in range(60, 90) for words in leases.look(float(at), [held], able=True)]
    assert "neither renewed nor ended in 46 s" in told[0]


def test_a_lease_that_is_renewed_may_go_on() -> None:
    leases = Leases(lease_s=30, margin_s=15)
    for at in range(200):
        held = lease("e1", "admission", "drain", expires=100.0 + 30 * (at // 25))
        assert leases.look(float(at), [held], able=True) == []
    assert leases.longest_s == 24


RUNNING = ("llm_requests_running", 'backend="e1",model="m"')
MEMORY = ("llm_gpu_memory_used_bytes", 'backend="e1",gpu="G"')


@pytest.mark.parametrize(
    ("pages", "wrong"),
    [
        ([{RUNNING: 3.0}, {RUNNING: 0.0}], 1),
        ([{RUNNING: 3.0}, {RUNNING: 3.0}, {}], 0),
        ([{RUNNING: 0.0}, {RUNNING: 0.0}], 0),
        ([{MEMORY: 5.0}, {MEMORY: 0.0}], 1),
        ([{MEMORY: 5.0}, {}], 0),
    ],
)
def test_an_unknown_that_is_shown_as_zero_is_seen(pages: list[dict[tuple[str, str], float]], wrong: int) -> None:
    eye = NotZero()
    assert sum(len(eye.look(page, {"e1": FROM_THE_PAGE})) for page in pages) == wrong


def test_a_zero_that_was_read_is_none() -> None:
    eye = NotZero()
    assert [words for page in ({RUNNING: 3.0}, {RUNNING: 0.0}) for words in eye.look(page, {"e2": FROM_THE_PAGE})] == []


def test_ticks_that_neither_took_place_nor_were_counted_are_seen() -> None:
    good, bad = Ticks(0.5), Ticks(0.5)
    stopped = range(20, 30)
    wrong = []
    for at in [n for n in range(60) if n not in stopped]:
        lost = 20.0 if at >= 30 else 0.0
        assert good.look(float(at), 1, 2.0 * at - lost, lost, explained=True) == []
        wrong += bad.look(float(at), 1, 2.0 * at - lost, 0.0, explained=True)
    assert len(wrong) == 1
    assert "20.0 ticks of" in wrong[0]


def test_ticks_that_were_missed_for_no_reason_are_seen_and_a_new_life_begins_anew() -> None:
    ticks = Ticks(0.5)
    assert ticks.look(0.0, 1, 0.0, 0.0, explained=False) == []
    assert ticks.look(10.0, 1, 15.0, 5.0, explained=False) == ["5 ticks were missed, and nothing that was done explains it"]
    assert ticks.look(11.0, 2, 1.0, 0.0, explained=False) == []
    assert ticks.missed == 5


def a_life(rss: float = 0.0, fds: float = 0.0, threads: float = 0.0, *, seconds: int = 1_200) -> list[Usage]:
    """What it has at first, and what grows by these in an hour; memory in megabytes."""
    rng = random.Random(1)
    return [
        Usage(
            float(at),
            int(100e6 + rng.randint(0, 500_000) + rss * 1e6 * at / 3_600),
            int(20 + fds * at / 3_600),
            int(5 + threads * at / 3_600),
        )
        for at in range(0, seconds, 5)
    ]


@pytest.mark.parametrize(
    ("grows", "is_flat"),
    [({}, True), ({"rss": 10}, True), ({"rss": 200}, False), ({"fds": 60}, False), ({"threads": 30}, False)],
)
def test_a_process_that_grows_is_seen(grows: dict[str, float], is_flat: bool) -> None:
    found = growth(a_life(grows.get("rss", 0), grows.get("fds", 0), grows.get("threads", 0)))
    assert found is not None
    assert found.is_flat is is_flat
    assert found.slope_bytes_per_hour == pytest.approx(grows.get("rss", 0) * 1e6, abs=1e6)


def test_of_a_short_life_nothing_is_said() -> None:
    assert growth(a_life(seconds=100)) is None


def test_rubbish_is_of_many_kinds() -> None:
    rng = random.Random(3)
    assert len({rubbish(rng)[:4] for _ in range(50)}) > 5
