"""A ledger that cannot be written is told to people, once it lasts."""

from __future__ import annotations

from tailkeeper_watchdog.unwritten import TOLD_AFTER_S, Since, symptoms


def test_people_hear_of_it_once_it_lasts_and_no_longer_than_it_does() -> None:
    since = Since().then(None, 0.0)
    assert since.told(1e6) is None
    since = since.then("disk full", 100.0)
    assert since.told(100.0) is None
    since = since.then("disk still full", 100.0 + TOLD_AFTER_S)
    assert since.told(100.0 + TOLD_AFTER_S) == "disk still full"
    since = since.then(None, 200.0)
    assert since.told(200.0) is None
    assert since.then("again", 300.0).told(300.0 + TOLD_AFTER_S - 0.1) is None


def test_it_is_one_finding_that_stands_in_no_backends_place() -> None:
    (symptom,) = symptoms("disk full")
    assert (symptom.backend, symptom.kind, symptom.severity, symptom.signal) == ("ledger", "advice", "page", "ledger")
    assert symptom.summary == "nothing is changed at any gateway, and nothing given back: the ledger cannot be written. disk full"
    assert symptoms(None) == ()
