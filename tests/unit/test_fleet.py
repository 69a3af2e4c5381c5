"""Who is gone and who is new, and what a memory forgets of whoever is gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.collect.base import LastWord
from tailkeeper_watchdog.detectors import DETECTORS
from tailkeeper_watchdog.fleet import Fleet, succeeded, turnover
from tailkeeper_watchdog.forgetting import forget
from tailkeeper_watchdog.model import DRAIN, SERVE, Backend, BackendObservation, Knob, Lease, Target
from tailkeeper_watchdog.plan import Change, ChangeKind, ReturnMemory, forgotten
from tailkeeper_watchdog.policies import POLICIES
from tailkeeper_watchdog.reconcile import Backoff
from tailkeeper_watchdog.settings import GatewayRef, WatchedBackend
from tailkeeper_watchdog.whole_fleet import WholeFleet

A = Backend("a", "m", (Target("edge", "llm/a", "llm"),), {"az": "1"}, "http://10.0.0.1:8000")


def of(*backends: Backend) -> Fleet:
    return succeeded(Fleet(), backends, (), 0.0)


@pytest.mark.parametrize(
    ("after", "gone", "new"),
    [
        (A, set(), set()),
        (replace(A, model="m2", labels={}), set(), set()),
        (replace(A, targets=(Target("edge", "llm/a", "renamed pool"),)), set(), set()),
        (replace(A, url="http://10.0.0.2:8000"), {"a"}, {"a"}),
        (replace(A, targets=(Target("edge", "llm/a2", "llm"),)), {"a"}, {"a"}),
        (replace(A, targets=()), {"a"}, {"a"}),
        (replace(A, name="b"), {"a"}, {"b"}),
    ],
)
def test_a_backend_is_its_name_its_address_and_its_servers(after: Backend, gone: set[str], new: set[str]) -> None:
    change = turnover(of(A), (after,))
    assert [set(names) for names in (change.gone, change.new, change.vanished)] == [gone, new, gone - new]


def lease(server: str) -> Lease:
    return Lease(1, "a", Target("edge", server, "llm"), Knob.ADMISSION, "p", SERVE, DRAIN, "hung", 0.0, 60.0)


def test_a_server_that_was_left_is_remembered_while_a_lease_lies_on_it_and_nobody_owns_it() -> None:
    left = succeeded(of(A), (), (lease("llm/a"), lease("llm/never-ours")), 5.0)
    assert left.left_at == {("edge", "llm/a"): 5.0}
    assert succeeded(left, (), (lease("llm/a"),), 9.0).left_at == {("edge", "llm/a"): 5.0}, "since it was left, not since now"
    assert succeeded(left, (), (), 9.0).left_at == {}
    assert succeeded(left, (A,), (lease("llm/a"),), 9.0).left_at == {}


@dataclass(frozen=True, slots=True)
class Remembered:
    by_name: Mapping[str, int] = field(default_factory=dict)
    by_pair: Mapping[tuple[str, str], int] = field(default_factory=dict)
    total: int = 0


@given(st.sets(st.sampled_from("abcdef")), st.sets(st.sampled_from("abcdef")))
def test_a_memory_forgets_those_who_are_gone_and_nobody_else(known: set[str], gone: set[str]) -> None:
    memory = Remembered(dict.fromkeys(known, 1), {(name, "ttft"): 2 for name in known}, 7)
    kept = known - gone
    assert forget(memory, frozenset(gone)) == Remembered(dict.fromkeys(kept, 1), {(name, "ttft"): 2 for name in kept}, 7)


@pytest.mark.parametrize("part", [*DETECTORS, *POLICIES], ids=lambda part: part.name)
def test_every_memory_of_this_version_is_one_that_can_be_forgotten_from(part: object) -> None:
    memory = part.new_memory()  # type: ignore[attr-defined]
    assert part.forget(memory, frozenset({"a"})) == memory  # type: ignore[attr-defined]


def test_a_way_back_begins_anew_and_targets_that_nobody_has_are_forgotten() -> None:
    here, gone = Target("edge", "a", "llm"), Target("edge", "b", "llm")
    since = {("a", Knob.WEIGHT): 1.0, ("b", Knob.WEIGHT): 2.0}
    left = forgotten(ReturnMemory(since, since, frozenset({here, gone})), frozenset({"b"}), frozenset({here}))
    assert left == ReturnMemory({("a", Knob.WEIGHT): 1.0}, {("a", Knob.WEIGHT): 1.0}, frozenset({here}))


def test_waits_at_servers_that_nobody_has_are_forgotten() -> None:
    changes = tuple(
        Change(ChangeKind.APPLY, name, Target("edge", name, "llm"), Knob.WEIGHT, 0.5, 1.0, "p", "slow") for name in ("a", "b")
    )
    backoff = Backoff()
    backoff.learn(changes, frozenset((c.target, c.knob) for c in changes), 0.0)
    backoff.keep(frozenset({changes[0].target}))
    assert backoff.ready(changes, 0.5) == changes[1:]


def seen(name: str) -> BackendObservation:
    return BackendObservation(name, State.SERVING, 0.0)


def test_the_last_word_follows_the_fleet_and_takes_no_old_word_for_a_new_backend() -> None:
    last = LastWord(("a", "b"), 10.0)
    last.hear({"a": seen("a"), "b": seen("b")}, {"a": 1.0, "b": 1.0})
    last.follow(("a", "c"), frozenset({"c"}), 5.0)
    last.hear({"b": seen("b"), "c": seen("c")}, {"b": 6.0, "c": 4.0})
    assert {name: s.state for name, s in last.tell(6.0, {}, "not seen").items()} == {"a": State.SERVING, "c": State.UNKNOWN}
    last.hear({"c": seen("c")}, {"c": 5.0})
    assert last.tell(6.0, {}, "not seen")["c"].state is State.SERVING
    last.follow(("a", "b"), frozenset({"b"}), 7.0)
    assert last.tell(7.0, {}, "not seen")["b"].state is State.UNKNOWN, "what was known of the old one is not of the new one"


def watched(name: str, *gateway: GatewayRef) -> WatchedBackend:
    return WatchedBackend(name=name, engine="vllm", url=f"http://{name}:8000", gateway=gateway)


def test_found_backends_are_watched_beside_the_configured_ones_and_worked_out_only_when_they_change() -> None:
    found: tuple[WatchedBackend, ...] = ()
    fleet = WholeFleet((watched("a", GatewayRef(name="edge", server="llm/a")),), lambda: found, {"edge": "haproxy"})
    first = fleet()
    assert (first[0].targets, first[0].url) == ((Target("edge", "llm/a", "llm"),), "http://a:8000")
    assert fleet() is first
    found = (watched("b"),)
    second = fleet()
    assert [b.name for b in second] == ["a", "b"]
    assert fleet() is second
    found = ()
    assert [b.name for b in fleet()] == ["a"]


def test_the_fleet_of_a_configuration_alone_is_one_and_the_same_for_ever() -> None:
    fleet = WholeFleet((watched("a"),), None, {})
    assert fleet() is fleet()
    assert [b.name for b in fleet()] == ["a"]
