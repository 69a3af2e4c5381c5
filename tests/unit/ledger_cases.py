"""What every ledger must do, wherever it is kept: each case is handed ``opened``, which opens the same one anew, as a restart.

The unit tests run them on a file, the contract tests on a real PostgreSQL server too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from tailkeeper_watchdog.ledger import ATTEMPT_MEMORY_S, Ledger
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, KnobValue, Outcome, Pending, Target, WeightsChange

B = Target("edge", "llm/b", "llm")
Opened = Callable[[], Ledger]


def an_intent_is_there_after_a_restart_and_not_confirmed(opened: Opened) -> None:
    opened().intend("b", B, Knob.ADMISSION, "p", SERVE, DRAIN, "hung", 10.0, 310.0)
    (lease,) = opened().leases()
    assert (lease.prior, lease.written, lease.confirmed, lease.expires_unix_s) == (SERVE, DRAIN, False, 310.0)
    assert (lease.backend, lease.target, lease.reason, lease.created_unix_s) == ("b", B, "hung", 10.0)


def a_second_change_of_the_same_knob_keeps_the_first_prior_value(opened: Opened) -> None:
    ledger = opened()
    first = ledger.intend("b", B, Knob.WEIGHT, "p", 1.0, 0.5, "slow", 10.0, 310.0)
    ledger.confirm(first.id, 0.5)
    second = ledger.intend("b", B, Knob.WEIGHT, "p", 0.5, 0.1, "slower", 20.0, 320.0)
    assert (second.id, second.prior, second.written, second.confirmed) == (first.id, 1.0, 0.1, False)
    assert opened().leases() == (second,)


def what_was_done_with_a_lease_is_there_after_a_restart(opened: Opened) -> None:
    ledger = opened()
    lease = ledger.intend("b", B, Knob.WEIGHT, "p", 1.0, 0.5, "slow", 10.0, 310.0)
    ledger.confirm(lease.id, 0.498)
    ledger.note_reverts(lease.id, 2)
    ledger.renew(lease.id, 610.0)
    (found,) = opened().leases()
    assert (found.written, found.reverts, found.expires_unix_s, found.confirmed) == (0.498, 2, 610.0, True)


def a_lease_that_has_run_out_is_as_if_its_write_had_not_come_yet(opened: Opened) -> None:
    ledger = opened()
    lease = ledger.intend("b", B, Knob.WEIGHT, "p", 1.0, 0.25, "slow", 10.0, 310.0, before=0.5)
    ledger.confirm(lease.id, 0.25)
    ledger.run_out(lease.id, 20.0)
    for found in (*ledger.leases(), *opened().leases()):
        assert (found.expires_unix_s, found.confirmed, found.written, found.before) == (20.0, False, 0.25, 1.0)


def what_is_pending_is_there_after_a_restart(opened: Opened) -> None:
    pending: Pending = {("edge", "b", Knob.WEIGHT): {0.5: 1_010.0, 1.0: 1_011.5}, ("edge", "b", Knob.ADMISSION): {DRAIN: 1_012.0}}
    opened().note_pending(pending)
    again = opened()
    assert again.pending() == pending
    again.note_pending({})
    assert opened().pending() == {}


def an_ended_lease_makes_room_for_a_new_one(opened: Opened) -> None:
    ledger = opened()
    first = ledger.intend("b", B, Knob.WEIGHT, "p", 1.0, 0.5, "slow", 10.0, 310.0)
    ledger.end(first.id, Outcome.RELEASED, 20.0)
    assert ledger.leases() == ()
    again = opened()
    assert again.leases() == ()
    assert again.intend("b", B, Knob.WEIGHT, "p", 1.0, 0.5, "slow", 30.0, 330.0).id > first.id


def decisions_come_newest_first_and_can_be_filtered(opened: Opened) -> None:
    ledger = opened()
    made = [
        ledger.record(time, 1, "p", backend, Knob.WEIGHT, None, 0.5, Outcome.OBSERVED, "r", expires)
        for time, backend, expires in [(1.0, "a", None), (2.0, "b", 5.0), (3.0, "a", None)]
    ]
    for found in (ledger, opened()):
        assert found.decisions() == tuple(reversed(made))
        assert [d.time_unix_s for d in found.decisions(backend="a", since=2.0)] == [3.0]
        assert len(found.decisions(limit=2)) == 2


def attempts_are_remembered_across_restarts_and_forgotten_after_an_hour(opened: Opened) -> None:
    opened().count_attempt("b", 100.0)
    ledger = opened()
    assert ledger.count_attempt("b", 200.0) == 2
    assert ledger.attempts(200.0 + ATTEMPT_MEMORY_S + 1) == {}


def a_person_who_has_looked_makes_attempts_count_anew(opened: Opened) -> None:
    ledger = opened()
    for name in ("a", "b", "b"):
        ledger.count_attempt(name, 100.0)
    ledger.forget_attempts(["b", "unknown"])
    for found in (ledger, opened()):
        assert found.attempts(100.0) == {"a": 1}


def changes_of_weights_come_newest_first(opened: Opened) -> None:
    ledger = opened()
    ledger.record_weights(20.0, "maria", {"latency": 1.0}, {"latency": 0.5})
    ledger.record_weights(21.0, "file", {"latency": 0.5}, {"latency": 0.25})
    newest = WeightsChange(21.0, "file", {"latency": 0.5}, {"latency": 0.25})
    for found in (ledger, opened()):
        assert found.weights_changes(1) == (newest,)
        assert len(found.weights_changes(9)) == 2


def small_facts_are_there_after_a_restart_until_they_are_taken_back(opened: Opened) -> None:
    ledger = opened()
    ledger.set_meta("paused", "by hand")
    ledger.set_meta("paused", "by API")
    again = opened()
    assert again.get_meta("paused") == "by API"
    again.set_meta("paused", None)
    assert opened().get_meta("paused") is None


def what_belongs_together_is_there_as_a_whole_or_not_at_all(opened: Opened) -> None:
    ledger = opened()
    lease = ledger.intend("b", B, Knob.WEIGHT, "p", 1.0, 0.5, "slow", 10.0, 310.0)
    with contextlib.suppress(RuntimeError), ledger.together():
        ledger.renew(lease.id, 999.0)
        ledger.record(1.0, 1, "p", "b", Knob.WEIGHT, None, 0.5, Outcome.APPLIED, "r")
        raise RuntimeError("as if the disk were full")
    with ledger.together():
        ledger.renew(lease.id, 320.0)
    for found in (ledger, opened()):
        assert [x.expires_unix_s for x in found.leases()] == [320.0]
        assert found.decisions() == ()


def words_in_any_language_and_values_of_any_kind_come_back_as_they_were(opened: Opened) -> None:
    ledger = opened()
    reason = "langsam: 3 › 2 %s ? 'quoted' \\ 🐢"
    values: tuple[KnobValue, ...] = (0.1, 3, "gpu=high:NoSchedule", "")
    for number, value in enumerate(values):
        ledger.intend("b", Target("edge", f"s{number}", "llm"), Knob.WEIGHT, "p", value, value, reason, 1e9 + 0.1, 2e9)
    assert opened().leases() == ledger.leases()
    assert [lease.reason for lease in ledger.leases()] == [reason] * 4


def an_intent_remembers_what_was_in_force_before_it(opened: Opened) -> None:
    ledger = opened()
    first = ledger.intend("b", B, Knob.WEIGHT, "p", 1.0, 0.25, "returning", 10.0, 310.0)
    ledger.confirm(first.id, 0.25)
    second = ledger.intend("b", B, Knob.WEIGHT, "p", 1.0, 0.5, "returning", 20.0, 320.0, 0.25)
    assert (first.before, second.before, second.prior) == (1.0, 0.25, 1.0)


CASES: tuple[Callable[[Opened], None], ...] = (
    an_intent_is_there_after_a_restart_and_not_confirmed,
    a_second_change_of_the_same_knob_keeps_the_first_prior_value,
    what_was_done_with_a_lease_is_there_after_a_restart,
    a_lease_that_has_run_out_is_as_if_its_write_had_not_come_yet,
    what_is_pending_is_there_after_a_restart,
    an_ended_lease_makes_room_for_a_new_one,
    decisions_come_newest_first_and_can_be_filtered,
    attempts_are_remembered_across_restarts_and_forgotten_after_an_hour,
    a_person_who_has_looked_makes_attempts_count_anew,
    changes_of_weights_come_newest_first,
    small_facts_are_there_after_a_restart_until_they_are_taken_back,
    what_belongs_together_is_there_as_a_whole_or_not_at_all,
    words_in_any_language_and_values_of_any_kind_come_back_as_they_were,
    an_intent_remembers_what_was_in_force_before_it,
)


def in_words(case: Callable[[Opened], None]) -> str:
    return case.__name__
