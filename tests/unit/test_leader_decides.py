"""Who may take a Lease, from what was seen of it. Pure: no API and no clock but the one that is passed in."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.leader_lease import LeaseRecord, Watched, decide, new_identity, parse_lease, watched
from tailkeeper_watchdog.settings import LeaderSettings

LEASE_S = 15.0


def record(holder: str, renewed: str = "2026-11-29T00:00:00.000000Z", duration_s: int | None = 15) -> LeaseRecord:
    return LeaseRecord(holder, renewed, renewed, duration_s, 3, "7")


CASES = [
    ("nobody holds it", record(""), 0.0, True),
    ("it is ours", record("us"), 0.0, True),
    ("another has just renewed it", record("other"), 0.0, False),
    ("another is silent, and not yet for a lease", record("other"), 14.9, False),
    ("another is silent for a lease", record("other"), 15.0, True),
    ("another asked to be waited for longer", record("other", duration_s=60), 59.9, False),
    ("another asked to be waited for longer, and was", record("other", duration_s=60), 60.0, True),
    ("another asked for less than we would wait", record("other", duration_s=1), 14.9, False),
    ("another says no duration", record("other", duration_s=None), 15.0, True),
    ("another says that it renewed it in ten years", record("other", renewed="2036-01-01T00:00:00Z"), 15.0, True),
]


@pytest.mark.parametrize(("_", "seen", "silent_s", "take"), CASES, ids=[case[0] for case in CASES])
def test_a_lease_is_taken_when_its_holder_was_silent_long_enough(_: str, seen: LeaseRecord, silent_s: float, take: bool) -> None:
    decision = decide(Watched(seen, 100.0), "us", 100.0 + silent_s, LEASE_S)
    assert decision.take is take
    assert ("other leads" in decision.wait) is not take


def test_silence_is_counted_from_the_last_change_that_we_saw_ourselves() -> None:
    first = watched(None, record("other"), 100.0)
    again = watched(first, record("other"), 107.0)
    renewed = watched(again, record("other", renewed="2026-11-29T00:00:09.000000Z"), 109.0)
    taken = watched(renewed, record("third", renewed="2026-11-29T00:00:09.000000Z"), 111.0)
    assert [seen.since for seen in (first, again, renewed, taken)] == [100.0, 100.0, 109.0, 111.0]


def test_a_renewal_by_a_clock_that_stands_still_is_a_sign_of_life() -> None:
    first = watched(None, record("other"), 100.0)
    renewed = LeaseRecord("other", first.record.renewed, first.record.acquired, 15, 3, "8")
    assert watched(first, renewed, 110.0) == Watched(renewed, 110.0)


DOCUMENTS: list[tuple[object, object]] = [
    ({}, LeaseRecord("", "", "", None, 0, "")),
    ({"spec": None, "metadata": {"resourceVersion": "9"}}, LeaseRecord("", "", "", None, 0, "9")),
    ({"spec": {"holderIdentity": "x", "leaseDurationSeconds": 10**400}}, LeaseRecord("x", "", "", None, 0, "")),
    ({"spec": {"holderIdentity": "x", "leaseDurationSeconds": True}}, LeaseRecord("x", "", "", None, 0, "")),
    ({"spec": {"holderIdentity": "x", "leaseDurationSeconds": -1}}, LeaseRecord("x", "", "", None, 0, "")),
]


@pytest.mark.parametrize(("document", "expected"), DOCUMENTS)
def test_a_lease_that_says_little_or_nonsense_is_read_as_far_as_it_goes(document: dict[str, object], expected: object) -> None:
    assert parse_lease(document) == expected


def test_what_is_no_lease_is_refused() -> None:
    with pytest.raises(CallError):
        parse_lease({"spec": ["x"]})


def test_two_processes_on_one_machine_have_different_identities() -> None:
    assert new_identity() != new_identity()


BAD_SETTINGS: list[dict[str, object]] = [
    {},
    {"namespace": "LLM"},
    {"namespace": "llm", "name": "../x"},
    {"namespace": "llm", "lease_s": 9},
    {"namespace": "llm", "kubeconfig": "/k", "in_cluster": True},
]


@pytest.mark.parametrize("document", BAD_SETTINGS)
def test_settings_that_name_no_lease_are_refused(document: dict[str, object]) -> None:
    assert LeaderSettings.model_validate({"namespace": "llm"}).lease_s == 15
    with pytest.raises(ValidationError):
        LeaderSettings.model_validate(document)
