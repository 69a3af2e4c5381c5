"""Whatever is seen, in whatever order: what the liveness state machine promises."""

from __future__ import annotations

from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from tailkeeper_exporter.evidence import MUTE, Answer, Evidence, HealthSeen, Memory, PageSeen, ProbeSeen, Work
from tailkeeper_exporter.liveness import Liveness, LivenessSettings, step
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
EVENTS = st.tuples(
    PAUSES, AGES, st.booleans(), st.one_of(st.none(), PAGES), st.one_of(st.none(), ANSWERS), st.one_of(st.none(), PROBED)
)


def _history(
    drawn: list[
        tuple[float, float, bool, tuple[Answer, float, float | None, float | None, bool] | None, Answer | None, Answer | None]
    ],
) -> list[tuple[float, Evidence]]:
    now, tokens, events = 0.0, 0.0, []
    for pause, age, here, page, health, probe in drawn:
        now += pause
        sent = max(0.0, now - age)
        seen_page = None
        if page is not None:
            answer, added, running, waiting, restarted = page
            tokens += added
            work = Work(running, waiting, None, (("tokens", tokens),), restarted)
            seen_page = PageSeen(answer, sent, "r", work, here, own_only=restarted and here)
        seen_health = HealthSeen(health, sent) if health is not None else None
        events.append((now, Evidence(seen_page, seen_health, ProbeSeen(probe, sent) if probe is not None else None)))
    return events


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
