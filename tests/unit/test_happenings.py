"""The one vocabulary: every policy, verdict and kind of finding has its word, and the words of boards are a closed set."""

from __future__ import annotations

import re

import pytest

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.happenings import names, triggers
from tailkeeper_watchdog.happenings.names import Phase, Step, Trigger
from tailkeeper_watchdog.model import DesiredState, FindingKind, Knob, Mode, Outcome
from tailkeeper_watchdog.plan import RETURN_POLICY
from tailkeeper_watchdog.policies import POLICIES


def wish(*signals: str, policy: str = "gpu_health_gate") -> DesiredState:
    return DesiredState(policy, "a", Knob.WEIGHT, 0.5, "words", Mode.ENFORCE, signals)


def test_every_verdict_has_a_phase_and_every_policy_a_trigger() -> None:
    assert set(triggers.PHASES) == set(Outcome)
    assert set(triggers.BY_POLICY) == {policy.name for policy in POLICIES} | {RETURN_POLICY}


@pytest.mark.parametrize("kind", FindingKind)
def test_a_finding_is_its_own_trigger_by_the_same_word(kind: FindingKind) -> None:
    assert triggers.of_finding(kind).value == kind.value


CASES = [
    (("no_progress", "probe_unanswered"), State.HUNG, Trigger.HUNG),
    (("no_progress", "probe_unanswered"), State.DOWN, Trigger.DOWN),
    (("no_progress",), None, Trigger.DOWN),
    (("errors", "peers_unaffected"), State.SERVING, Trigger.ERRORS),
    (("memory_pressure", "preemptions"), State.BUSY, Trigger.MEMORY_PRESSURE),
    (("gpu_lost", "errors"), State.SERVING, Trigger.GPU_LOST),
    (("gpu",), State.SERVING, Trigger.SLOW),
    ((), State.SERVING, Trigger.ERRORS),
]


@pytest.mark.parametrize(("signals", "state", "trigger"), CASES)
def test_a_wish_is_set_off_by_the_signal_it_rests_on(signals: tuple[str, ...], state: State | None, trigger: Trigger) -> None:
    assert triggers.of_wish(wish(*signals), state) is trigger


def test_a_policy_that_nobody_knows_is_unknown_and_no_error() -> None:
    assert triggers.of_wish(wish(policy="of tomorrow"), None) is Trigger.UNKNOWN


def test_words_are_fit_for_labels_queries_and_annotations() -> None:
    words = [*Trigger, *Phase, *Step]
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", word) for word in words)
    attributes = [names.STRATEGY, names.TRIGGER, names.PHASE, *names.ANNOTATED, names.REFUSAL, names.FINDING_ID, names.TICK]
    assert all(re.fullmatch(r"[a-z][a-z_]*", name) for name in attributes)
    assert (names.STRATEGY, names.TRIGGER, names.PHASE) == ("strategy_id", "trigger_reason", "phase")
    assert [*Phase] == ["triggered", "applied", "resolved"]
    assert len(Trigger) <= 24  # a label value in somebody's store
