"""Whatever is seen, in whatever order: what the liveness state machine promises."""

from __future__ import annotations

from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from tailkeeper_exporter.evidence import (
    MUTE,
    TAP_STALE_S,
    Answer,
    Evidence,
    HealthSeen,
    Memory,
    PageSeen,
    ProbeSeen,
    TapSeen,
    Work,
)
from tailkeeper_exporter.liveness import Liveness, LivenessSettings, Why, step
from tailkeeper_exporter.probe_plan import MAX_PATIENCE_S, ProbeTiming, plan_probe
from tailkeeper_exporter.state import State

PAUSES = st.sampled_from([0.0, 0.01, 0.5, 1.0, 2.0, 5.0, 11.0])
AGES = st.sampled_from([0.0, 0.1, 1.2, 6.0, 12.0])
ANSWERS = st.sampled_from(list(Answer))
AMOUNTS = st.sampled_from([None, 0.0, 3.0])
# Silence and standstill are where the judgement is hard, so they are drawn more often than the rest.
PROBED = st.one_of(st.just(Answer.SILENT), ANSWERS)
PAGES = st.one_of(
    st.tuples(
        st.just(Answer.OK), st.sampled_from([0.0, 0.0, 5.0]), AMOUNTS, AMOUNTS, st.sampled_from([False, False, False, True])
    ),
    st.tuples(ANSWERS, st.just(0.0), AMOUNTS, AMOUNTS, st.booleans()),
)
# Running, waiting, and how long ago the last token passed, if one ever did.
TAPS = st.tuples(st.sampled_from([0, 2]), st.sampled_from([0, 2]), st.one_of(st.none(), AGES), AGES)
EVENTS = st.tuples(
    PAUSES,
    AGES,
    st.booleans(),
    st.one_of(st.none(), PAGES),
    st.one_of(st.none(), ANSWERS),
    st.one_of(st.none(), PROBED),
    st.one_of(st.none(), TAPS),
)
Page = tuple[Answer, float, float | None, float | None, bool]
Tap = tuple[int, int, float | None, float]


def _history(
    drawn: list[tuple[float, float, bool, Page | None, Answer | None, Answer | None, Tap | None]],
) -> list[tuple[float, Evidence]]:
    now, tokens, events = 0.0, 0.0, []
    for pause, age, here, page, health, probe, tap in drawn:
        now += pause
        sent = max(0.0, now - age)
        seen_page = None
        if page is not None:
            answer, added, running, waiting, restarted = page
            tokens += added
            work = Work(running, waiting, None, (("tokens", tokens),), restarted)
            seen_page = PageSeen(answer, sent, "r", work, here, own_only=restarted and here)
        seen_health = HealthSeen(health, sent) if health is not None else None
        seen_probe = ProbeSeen(probe, sent) if probe is not None else None
        events.append((now, Evidence(seen_page, seen_health, seen_probe, _tap(tap, now))))
    return events


def _tap(drawn: Tap | None, now: float) -> TapSeen | None:
    if drawn is None:
        return None
    running, waiting, token_age, age = drawn
    at = max(0.0, now - age)
    token = None if token_age is None else max(0.0, at - token_age)
    return TapSeen(at, running, waiting, token, token)


HISTORIES = st.lists(EVENTS, min_size=1, max_size=40).map(_history)
SETTINGS = st.builds(LivenessSettings, no_progress_s=st.sampled_from([1.0, 10.0]), probe_enabled=st.booleans())


def walk(events: list[tuple[float, Evidence]], settings: LivenessSettings) -> list[tuple[float, Memory, Memory, Liveness]]:
    memory, walked = Memory(), []
    for now, evidence in events:
        before = memory
        memory, verdict = step(memory, evidence, now, settings)
        walked.append((now, before, memory, verdict))
    return walked


@examples(deadline=None)
@given(HISTORIES, SETTINGS)
def test_any_evidence_gives_exactly_one_of_the_seven_states_and_never_raises(
    events: list[tuple[float, Evidence]], settings: LivenessSettings
) -> None:
    for now, _, memory, verdict in walk(events, settings):
        assert verdict.state in set(State)
        assert memory.state == verdict.state
        assert verdict.since_s <= now


@examples(deadline=None)
@given(HISTORIES, SETTINGS)
def test_progress_within_the_last_no_progress_s_is_never_hung(
    events: list[tuple[float, Evidence]], settings: LivenessSettings
) -> None:
    for now, _, memory, verdict in walk(events, settings):
        if memory.progress_s is not None and now - memory.progress_s < settings.no_progress_s:
            assert verdict.state is not State.HUNG


@examples(deadline=None)
@given(HISTORIES, SETTINGS)
def test_nothing_becomes_hung_without_an_accepted_probe_that_is_unanswered(
    events: list[tuple[float, Evidence]], settings: LivenessSettings
) -> None:
    silent_sent: list[float] = []
    for (now, evidence), (_, before, memory, verdict) in zip(events, walk(events, settings), strict=True):
        if evidence.probe is not None and evidence.probe.answer is Answer.SILENT:
            silent_sent.append(evidence.probe.sent_s)
        if verdict.state is State.HUNG and before.state != State.HUNG:
            life = memory.life_s if memory.life_s is not None else 0.0
            assert any(sent >= life for sent in silent_sent), "a probe sent since the last life, accepted and unanswered"
            assert memory.probe.answer in MUTE
            assert now - life >= settings.no_progress_s or memory.life_s is None


@examples(deadline=None)
@given(HISTORIES, SETTINGS)
def test_a_backend_is_never_down_at_the_moment_when_its_page_shows_progress(
    events: list[tuple[float, Evidence]], settings: LivenessSettings
) -> None:
    for (now, evidence), (_, _, memory, verdict) in zip(events, walk(events, settings), strict=True):
        if evidence.page is not None and memory.life_s == now and evidence.health is None and evidence.probe is None:
            assert verdict.state is not State.DOWN


@examples(deadline=None)
@given(HISTORIES, SETTINGS)
def test_a_single_refusal_after_an_answer_is_never_down(events: list[tuple[float, Evidence]], settings: LivenessSettings) -> None:
    for _, before, memory, verdict in walk(events, settings):
        if verdict.state is State.DOWN and before.state != State.DOWN:
            assert memory.refusals >= 2 or memory.health.count >= 2


@examples(deadline=None)
@given(HISTORIES, SETTINGS)
def test_the_same_history_gives_the_same_verdicts(events: list[tuple[float, Evidence]], settings: LivenessSettings) -> None:
    assert [verdict for *_, verdict in walk(events, settings)] == [verdict for *_, verdict in walk(events, settings)]


@examples(deadline=None)
@given(HISTORIES, SETTINGS)
def test_the_probe_plan_is_bounded_and_never_crowds_the_engine(
    events: list[tuple[float, Evidence]], settings: LivenessSettings
) -> None:
    timing = ProbeTiming(no_progress_s=settings.no_progress_s)
    for now, _, memory, _ in walk(events, settings):
        plan = plan_probe(memory, now, timing)
        assert timing.first_token_timeout_s <= plan.deadline_s <= MAX_PATIENCE_S
        if memory.probe.answer is not None:
            assert plan.due_s >= memory.probe.sent_s
            assert plan.due_s <= memory.probe.last_s + timing.interval_s or memory.traffic_s is not None


@examples(deadline=None)
@given(HISTORIES, SETTINGS)
def test_a_backend_whose_tap_shows_a_token_now_is_neither_hung_nor_down(
    events: list[tuple[float, Evidence]], settings: LivenessSettings
) -> None:
    now = events[-1][0] + 0.1
    memory = walk(events, settings)[-1][2]
    _, verdict = step(memory, Evidence(tap=TapSeen(now, 1, 0, now, now)), now, settings)
    assert not verdict.state.is_dead


@examples(deadline=None)
@given(HISTORIES, SETTINGS, st.integers(0, 5), st.integers(0, 5), st.floats(0.001, 100.0))
def test_a_stale_report_of_a_tap_never_changes_a_state(
    events: list[tuple[float, Evidence]], settings: LivenessSettings, running: int, waiting: int, older: float
) -> None:
    now, memory = events[-1][0], walk(events, settings)[-1][2]
    at = now - TAP_STALE_S - older
    assert step(memory, Evidence(tap=TapSeen(at, running, waiting, at, at)), now, settings) == step(
        memory, Evidence(), now, settings
    )


@examples(deadline=None)
@given(HISTORIES, SETTINGS)
def test_a_tap_that_no_longer_reports_makes_nothing_hung_that_the_page_does_not(
    events: list[tuple[float, Evidence]], settings: LivenessSettings
) -> None:
    for now, before, memory, verdict in walk(events, settings):
        if verdict.state is State.HUNG and before.state != State.HUNG and Why.NO_PROGRESS in verdict.reasons:
            by_page = memory.work is not None and (memory.work.in_flight or 0.0) > 0
            assert by_page or (memory.tap is not None and memory.tap.is_fresh(now))
