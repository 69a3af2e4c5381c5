"""The state machine on its own: evidence in, state out, on a fake clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from tailkeeper_exporter.evidence import Answer, Evidence, HealthSeen, Memory, PageSeen, ProbeSeen, Work
from tailkeeper_exporter.liveness import Liveness, LivenessSettings, Signal, Why, step
from tailkeeper_exporter.probe_plan import ProbePlan, ProbeTiming, plan_probe, retry_after_s, urgent_after_s
from tailkeeper_exporter.state import State

SETTINGS = LivenessSettings()
NO_PROBE = LivenessSettings(probe_enabled=False)
NEVER = float("inf")


def page(
    t: float, tokens: float = 0, *, running: float = 0, waiting: float = 0, kv: float = 0.0, restarted: bool = False
) -> PageSeen:
    work = Work(running, waiting, kv, (("llm_generated_tokens_total", tokens),), restarted)
    return PageSeen(Answer.OK, t, work=work)


def lost(t: float, answer: Answer = Answer.UNUSABLE, *, on_engine_url: bool = True) -> PageSeen:
    return PageSeen(answer, t, "http_500", on_engine_url=on_engine_url)


def run(*events: tuple[float, object], settings: LivenessSettings = SETTINGS) -> list[Liveness]:
    """The verdict after each event; an event is the time of its arrival and what was seen (None: time passes)."""
    memory, verdicts = Memory(), []
    for now, seen in events:
        evidence = Evidence(
            page=seen if isinstance(seen, PageSeen) else None,
            health=seen if isinstance(seen, HealthSeen) else None,
            probe=seen if isinstance(seen, ProbeSeen) else None,
        )
        memory, verdict = step(memory, evidence, now, settings)
        verdicts.append(verdict)
    return verdicts


def health(t: float, answer: Answer = Answer.OK) -> HealthSeen:
    return HealthSeen(answer, t)


def probe(t: float, answer: Answer = Answer.OK) -> ProbeSeen:
    return ProbeSeen(answer, t)


def states(verdicts: list[Liveness]) -> list[str]:
    return [verdict.state.value for verdict in verdicts]


def test_before_anything_has_answered_the_state_is_unknown() -> None:
    assert run((0, None))[-1].state is State.UNKNOWN


def test_an_idle_backend_with_a_good_health_page_is_serving() -> None:
    assert states(run((0, page(0)), (0.1, health(0)))) == ["unknown", "serving"]


def test_a_hung_backend_is_never_called_serving_by_an_exporter_that_has_just_started() -> None:
    events: list[tuple[float, object]] = [(0, page(0, 100, running=2)), (0.1, health(0))]
    events += [(t, page(t, 100, running=2)) for t in (1, 2)]
    events += [(t + 0.5, seen) for t in range(3, 14) for seen in (page(t, 100, running=2), probe(t - 1, Answer.SILENT))]
    found = states(run(*events))
    assert set(found) == {"unknown", "hung"}
    assert found[-1] == "hung"


CUT_OFF: list[tuple[float, object]] = [
    (t, seen) for t in (1, 2, 3) for seen in (lost(t, Answer.CUT_OFF), health(t, Answer.CUT_OFF), probe(t, Answer.CUT_OFF))
]


def test_tls_that_is_cut_off_is_down_where_it_let_us_in_before_and_misconfigured_where_it_never_did() -> None:
    assert states(run(*CUT_OFF))[-1] == "misconfigured"
    assert {"down", "hung"}.isdisjoint(states(run(*CUT_OFF)))
    assert states(run((0, page(0)), (0.1, health(0)), *CUT_OFF))[-1] == "down"
    refused: list[tuple[float, object]] = [(0, lost(0, Answer.UNUSABLE)), (0.1, health(0.1, Answer.DENIED))]
    assert "down" not in states(run(*refused, *CUT_OFF)), "an answer that shuts us out is no way in"


@pytest.mark.parametrize("settings", [SETTINGS, NO_PROBE], ids=["with a probe", "without"])
def test_a_backend_at_work_is_serving_from_the_first_page_that_shows_progress(settings: LivenessSettings) -> None:
    found = states(run((0, page(0, 100, running=2)), (0.1, health(0)), (1, page(1, 150, running=2)), settings=settings))
    assert found == ["unknown", "unknown" if settings.probe_enabled else "serving", "serving"]


def test_progress_is_serving_and_a_standing_queue_is_busy() -> None:
    verdicts = run(*((t, page(t, t * 50, running=8, waiting=3)) for t in range(8)), settings=SETTINGS)
    assert verdicts[1].state is State.BUSY
    assert verdicts[-1].reasons == (Why.QUEUE,)


def test_busy_is_never_dead_even_while_every_probe_is_unanswered_in_the_queue() -> None:
    events: list[tuple[float, object]] = [(0, page(0)), (0, health(0))]
    for t in range(1, 120):
        events.append((t, page(t, t * 5, running=8, waiting=40)))
        events.append((t + 0.5, probe(t - 0.7, Answer.SILENT)))
    assert "hung" not in states(run(*events))
    assert run(*events)[-1].state is State.BUSY


def test_work_in_flight_without_progress_is_hung_exactly_when_the_time_is_over_and_the_probe_is_unanswered() -> None:
    frozen = [(100.0 + t, page(100 + t, 500, running=9)) for t in range(1, 12)]
    verdicts = run(
        (99, page(99, 400, running=9)), (100, page(100, 500, running=9)), (104.2, probe(103, Answer.SILENT)), *frozen[4:]
    )
    at_109, at_110 = verdicts[-3], verdicts[-2]
    assert at_109.state is State.SERVING
    assert at_110.state is State.HUNG
    assert at_110.reasons == (Why.NO_PROGRESS, Why.PROBE_UNANSWERED)
    assert {Signal.STANDSTILL, Signal.PROBE_UNANSWERED, Signal.IN_FLIGHT} <= set(at_110.signals)


def test_a_standstill_with_an_answered_probe_is_busy_not_hung() -> None:
    events: list[tuple[float, object]] = [(0, page(0, 10, running=1)), (1, page(1, 20, running=1)), (5, probe(4.9))]
    events += [(t, page(t, 20, running=1)) for t in range(6, 30)]
    verdicts = run(*events)
    assert "hung" not in states(verdicts)
    assert verdicts[-1].state is State.BUSY
    assert verdicts[-1].reasons == (Why.NO_PROGRESS,)


def test_a_standstill_without_a_probe_cannot_be_called_hung() -> None:
    events = [(float(t), page(t, 20, running=1)) for t in range(40)]
    assert run(*events, settings=NO_PROBE)[-1].state is State.UNKNOWN


def test_kv_use_that_rises_is_progress_through_a_long_prefill() -> None:
    events: list[tuple[float, object]] = [(t, page(t, 20, running=1, kv=t / 100)) for t in range(40)]
    events.append((40, probe(38, Answer.SILENT)))
    assert "hung" not in states(run(*events))


def test_errors_and_rejections_are_not_among_the_progress_counters_so_only_the_given_ones_move_the_clock() -> None:
    stuck = [(float(t), page(t, 20, running=1)) for t in range(1, 13)]
    verdicts = run((0, page(0, 10, running=1)), stuck[0], (4, probe(3, Answer.SILENT)), *stuck[5:])
    assert verdicts[-1].state is State.HUNG


def test_an_idle_engine_that_answers_its_pages_but_no_probe_is_hung_after_two_probes_and_the_full_time() -> None:
    """A paused vLLM: health 200, page idle, requests hang."""
    events: list[tuple[float, object]] = [(0, page(0)), (0.1, health(0)), (21.2, probe(20, Answer.SILENT))]
    events += [(t, page(t)) for t in (22, 23, 24, 29)]
    events += [(30.0, probe(22, Answer.SILENT)), (31.0, page(31))]
    verdicts = run(*events)
    assert states(verdicts)[1:-2] == ["serving"] * 6
    assert states(verdicts)[-2:] == ["hung", "hung"]
    assert verdicts[-2].reasons == (Why.PROBE_UNANSWERED,)


def test_a_stopped_process_is_hung_when_page_health_and_probe_have_all_been_silent_for_the_whole_time() -> None:
    events: list[tuple[float, object]] = [(0, page(0)), (0.1, health(0))]
    for t in range(1, 14, 3):
        events += [
            (t + 2.0, lost(t, Answer.SILENT)),
            (t + 2.5, health(t + 2, Answer.SILENT)),
            (t + 2.9, probe(t + 1.5, Answer.SILENT)),
        ]
    verdicts = run(*events)
    hung_at = next(now for (now, _), verdict in zip(events, verdicts, strict=True) if verdict.state is State.HUNG)
    assert 11.0 <= hung_at <= 12.6
    assert verdicts[-1].state is State.HUNG


def test_silence_is_total_only_when_the_health_page_was_asked_as_well() -> None:
    events: list[tuple[float, object]] = [(0, page(0)), (0.1, probe(0))]
    for t in range(1, 30, 3):
        events += [(t + 2.0, lost(t, Answer.SILENT)), (t + 2.9, probe(t + 1.5, Answer.SILENT))]
    assert "hung" not in states(run(*events))


def unreachable(t: float) -> list[tuple[float, object]]:
    gone = Answer.UNREACHABLE
    return [(t, lost(t, gone)), (t + 0.1, health(t, gone)), (t + 0.2, probe(t, gone))]


def test_a_host_that_was_never_reached_is_unknown_for_ever() -> None:
    """No connection and no refusal: it may be our own network."""
    events: list[tuple[float, object]] = []
    for t in range(1, 60, 3):
        events += [
            (t, lost(t, Answer.UNREACHABLE)),
            (t + 0.5, health(t, Answer.UNREACHABLE)),
            (t + 1, probe(t, Answer.UNREACHABLE)),
        ]
    assert set(states(run(*events))) == {"unknown"}


def test_the_silence_of_a_stopped_process_counts_from_its_first_accepted_request() -> None:
    events = [event for t in range(1, 10) for event in unreachable(t)]
    for t in range(10, 18, 3):
        events += [(t + 2, lost(t, Answer.SILENT)), (t + 2.5, health(t, Answer.SILENT)), (t + 2.9, probe(t + 1, Answer.SILENT))]
    assert "hung" not in states(run(*events))
    assert run(*events, (21.5, health(21, Answer.SILENT)))[-1].state is State.HUNG


def test_a_stopped_process_whose_accept_queue_has_filled_up_is_hung_all_the_same() -> None:
    events: list[tuple[float, object]] = [
        (0, page(0)),
        (0.1, health(0)),
        (3, lost(1, Answer.SILENT)),
        (3.5, health(3, Answer.SILENT)),
    ]
    events += [(4.2, probe(3, Answer.SILENT))]
    for t in range(5, 14):
        events += [
            (t, lost(t, Answer.UNREACHABLE)),
            (t + 0.1, health(t, Answer.UNREACHABLE)),
            (t + 0.2, probe(t, Answer.UNREACHABLE)),
        ]
    assert run(*events)[-1].state is State.HUNG


def test_a_probe_that_was_open_at_the_last_progress_says_nothing_about_the_time_since() -> None:
    busy: list[tuple[float, object]] = [(float(t), page(t, 10.0 * t, running=3)) for t in range(9)]
    stuck = [(float(t), page(t, 80, running=3)) for t in range(9, 20)]
    # Sent at 2 s, before the progress of 8 s; given up at 17 s. The next one is answered.
    verdicts = run(*busy, *stuck[:8], (16.5, probe(2, Answer.SILENT)), *stuck[8:], (19.5, None))
    assert "hung" not in states(verdicts)


@pytest.mark.parametrize("answer", [Answer.UNUSABLE, Answer.SILENT, Answer.REFUSED, Answer.UNREACHABLE])
def test_a_lost_metrics_page_alone_never_means_hung_or_down(answer: Answer) -> None:
    on_engine_url = answer in (Answer.UNUSABLE, Answer.SILENT)
    events: list[tuple[float, object]] = [(0, page(0)), (0.1, health(0)), (0.2, probe(0))]
    for t in range(1, 60):
        events += [(t, lost(t, answer, on_engine_url=on_engine_url)), (t + 0.1, health(t))]
        if t % 10 == 0:
            events.append((t + 0.2, probe(t)))
    verdicts = run(*events)
    assert set(states(verdicts[1:])) == {"serving"}
    assert Why.PAGE_LOST in verdicts[-1].reasons


def test_a_lost_page_with_an_inconclusive_or_disabled_probe_is_unknown() -> None:
    blind: list[tuple[float, object]] = [(0, page(0)), (0.1, health(0))]
    for t in range(1, 6):
        blind += [(t, lost(t)), (t + 0.1, health(t))]
    assert run(*blind, settings=NO_PROBE)[-1].state is State.UNKNOWN
    assert run(*blind, (6, probe(5, Answer.UNUSABLE)), (7, lost(7)), (8, lost(8)))[-1].state is State.UNKNOWN


def test_a_silent_probe_behind_a_lost_page_with_an_answering_health_page_is_unknown_not_hung() -> None:
    events: list[tuple[float, object]] = [(0, page(0, 5, running=4, waiting=90)), (0.1, health(0))]
    for t in range(1, 60):
        events += [(t, lost(t, Answer.SILENT)), (t + 0.1, health(t)), (t + 0.3, probe(t - 1, Answer.SILENT))]
    assert "hung" not in states(run(*events))
    assert run(*events)[-1].state is State.UNKNOWN


def test_a_backend_without_a_page_is_serving_by_its_probe_and_nothing_is_lost() -> None:
    verdicts = run((0, health(0)), (0.1, probe(0)), *((float(t), health(t)) for t in range(1, 9)))
    assert set(states(verdicts)) == {"serving"}
    assert verdicts[-1].reasons == ()


@pytest.mark.parametrize("answer", [Answer.SILENT, Answer.UNREACHABLE])
def test_without_a_page_an_unanswered_probe_is_unknown_in_time_and_never_hung_while_the_health_page_answers(
    answer: Answer,
) -> None:
    events: list[tuple[float, object]] = [(0, health(0)), (0.1, probe(0))]
    for t in range(2, 60, 2):
        events += [(t, probe(t - 1, answer)), (t + 0.1, health(t))]
    verdicts = run(*events)
    assert states(verdicts[:3]) == ["serving"] * 3, "one silent probe acts on nothing"
    assert verdicts[-1].state is State.UNKNOWN
    assert verdicts[-1].reasons == (Why.PROBE_UNANSWERED,)
    assert "hung" not in states(verdicts)
    assert run(*events, (60, probe(60)))[-1].state is State.SERVING


def test_without_a_page_silence_of_probe_and_health_page_together_is_hung_and_refusal_is_down() -> None:
    well: list[tuple[float, object]] = [(0, health(0)), (0.1, probe(0))]
    mute = [
        event for t in range(2, 20) for event in [(t, probe(t - 1, Answer.SILENT)), (t + 0.1, health(t - 0.5, Answer.SILENT))]
    ]
    assert run(*well, *mute)[-1].state is State.HUNG
    assert run(*well, (2, health(2, Answer.REFUSED)), (3, health(3, Answer.REFUSED)))[-1].state is State.DOWN


def test_without_a_page_and_a_probe_the_health_page_decides_and_its_silence_is_unknown() -> None:
    verdicts = run((0, health(0)), (1, health(1, Answer.SILENT)), (2, health(2, Answer.SILENT)), settings=NO_PROBE)
    assert states(verdicts) == ["serving", "serving", "unknown"]
    assert verdicts[-1].reasons == (Why.HEALTH_UNANSWERED,)


def test_one_refusal_never_acts_and_two_that_last_are_down() -> None:
    verdicts = run(
        (0, page(0)),
        (0.1, health(0)),
        (1, lost(1, Answer.REFUSED)),
        (1.01, health(1, Answer.REFUSED)),  # the same round: not a second observation
        (2, lost(2, Answer.REFUSED)),
    )
    assert states(verdicts) == ["unknown", "serving", "serving", "serving", "down"]
    assert verdicts[-1].reasons == (Why.REFUSED,)


def test_refusals_that_alternate_with_answers_are_not_down() -> None:
    events: list[tuple[float, object]] = [(0, page(0)), (0.1, health(0))]
    for t in range(1, 40):
        events.append((t, lost(t, Answer.REFUSED)) if t % 2 else (t, page(t)))
    assert set(states(run(*events)[1:])) == {"serving"}


def test_a_killed_engine_core_as_captured_is_down_by_health_503_and_probe_500_then_by_refusal() -> None:
    """Capture vllm_engine_killed: t=1 health 503, metrics 200, completions 500; t=2 connections fail."""
    verdicts = run(
        (0, page(0)),
        (0.1, health(0)),
        (1, page(1)),
        (1.1, health(1, Answer.ERROR)),
        (1.2, probe(1, Answer.ERROR)),
        (1.6, health(1.6, Answer.ERROR)),
        (2, lost(2, Answer.REFUSED)),
        (3, lost(3, Answer.REFUSED)),
    )
    assert states(verdicts)[4:] == ["serving", "down", "down", "down"]
    assert verdicts[5].reasons == (Why.HEALTH_ERROR, Why.PROBE_FAILED)
    assert verdicts[-1].reasons == (Why.REFUSED,)


def test_a_health_page_in_error_while_tokens_move_is_not_down() -> None:
    events: list[tuple[float, object]] = []
    for t in range(30):
        events += [(t, page(t, t * 10, running=2)), (t + 0.1, health(t, Answer.ERROR))]
    assert "down" not in states(run(*events))


def test_an_engine_that_loads_for_twelve_minutes_is_starting_all_the_time_and_then_serves() -> None:
    events: list[tuple[float, object]] = []
    for t in range(0, 720, 5):
        events += [(t, lost(t, Answer.UNUSABLE)), (t + 0.1, health(t, Answer.LOADING))]
    events += [(721, health(721)), (721.1, page(721)), (721.4, probe(721.2))]
    verdicts = run(*events)
    assert set(states(verdicts[1:-1])) == {"starting"}
    assert verdicts[-1].state is State.SERVING


def test_down_ends_with_an_answered_probe_and_passes_through_starting() -> None:
    verdicts = run(
        (1, lost(1, Answer.REFUSED)),
        (2, lost(2, Answer.REFUSED)),
        (30, page(30, restarted=True)),
        (30.1, health(30)),
        (31, page(31)),
        (31.3, probe(31)),
    )
    assert states(verdicts) == ["unknown", "down", "starting", "starting", "starting", "serving"]


def test_down_without_a_probe_ends_when_the_engine_itself_has_answered_twice() -> None:
    verdicts = run(
        (1, lost(1, Answer.REFUSED)),
        (2, lost(2, Answer.REFUSED)),
        (3, page(3)),
        (3.1, health(3)),
        (4, page(4)),
        settings=NO_PROBE,
    )
    assert states(verdicts) == ["unknown", "down", "down", "down", "serving"]


@pytest.mark.parametrize(
    ("life", "after"),
    [
        (page(40, 501, running=9), "serving"),
        (probe(39.5), "serving"),
        (page(40, 500, running=9), "hung"),
        (health(40), "hung"),
        (probe(39, Answer.OVERLOADED), "hung"),
        (page(40, 0, restarted=True), "starting"),
    ],
)
def test_a_hang_ends_with_progress_or_an_answered_probe_and_nothing_else(life: object, after: str) -> None:
    stuck = [(float(t), page(t, 500, running=9)) for t in range(1, 13)]
    verdicts = run((0, page(0, 400, running=9)), *stuck[:4], (5, probe(4, Answer.SILENT)), *stuck[5:], (40, life))
    assert verdicts[-2].state is State.HUNG
    assert verdicts[-1].state == after


def test_401_is_misconfigured_and_clears_when_the_probe_is_answered() -> None:
    verdicts = run((0, page(0)), (0.1, probe(0, Answer.DENIED)), (1, health(1)), (2, page(2)), (60, probe(60)))
    assert states(verdicts) == ["unknown", "misconfigured", "misconfigured", "misconfigured", "serving"]


def test_one_401_on_a_serving_backend_changes_nothing_and_two_do() -> None:
    verdicts = run((0, page(0)), (0.1, health(0)), (1, probe(1, Answer.DENIED)), (2, probe(2, Answer.DENIED)))
    assert states(verdicts) == ["unknown", "serving", "serving", "misconfigured"]


def test_a_health_path_that_does_not_exist_matters_only_while_nothing_else_proves_life() -> None:
    denied = (0.1, health(0, Answer.DENIED))
    assert run((0, page(0)), denied)[-1].state is State.MISCONFIGURED
    assert run((0, page(0)), denied, (0.3, probe(0.2)))[-1].state is State.SERVING


def test_429_is_busy() -> None:
    verdicts = run((0, page(0)), (0.1, health(0)), (10, page(10)), (10.1, probe(10, Answer.OVERLOADED)))
    assert verdicts[-1].state is State.BUSY
    assert verdicts[-1].reasons == (Why.OVERLOADED,)


def test_a_probe_that_takes_just_less_and_just_more_than_its_limit_by_turns_never_changes_the_state() -> None:
    """Field report C4: 0.98 and 1.02 times the limit, and a health page that does the same."""
    events: list[tuple[float, object]] = [(0, page(0)), (0.1, health(0))]
    for t in range(1, 200, 2):
        events += [(t, page(t)), (t + 0.6, probe(t)), (t + 0.7, health(t))]
        events += [(t + 1, page(t + 1)), (t + 1.8, probe(t + 1, Answer.SILENT)), (t + 1.9, health(t, Answer.SILENT))]
    assert set(states(run(*events)[1:])) == {"serving"}


def test_a_queue_that_comes_and_goes_every_page_does_not_flap() -> None:
    events: list[tuple[float, object]] = [(0, page(0)), (0.1, health(0))]
    events += [(t, page(t, t * 10, running=8, waiting=t % 2)) for t in range(1, 100)]
    verdicts = states(run(*events))
    assert sum(a != b for a, b in pairwise(verdicts[1:])) == 0


def test_serving_and_busy_change_places_no_more_often_than_once_per_dwell_time() -> None:
    events: list[tuple[float, object]] = [(0, page(0)), (0.1, health(0))]
    events += [(t / 2, page(t / 2, t * 10, running=8, waiting=(t // 3) % 2)) for t in range(1, 400)]
    verdicts = run(*events)
    changes = [
        now
        for (now, _), before, after in zip(events[1:], verdicts, verdicts[1:], strict=False)
        if before.state is not after.state
    ]
    assert len(changes) > 4
    assert min(b - a for a, b in pairwise(changes[1:])) >= SETTINGS.dwell_s


def test_progress_that_only_our_probes_explain_is_labelled_as_such() -> None:
    own = PageSeen(Answer.OK, 2, work=Work(0, 0, 0.0, (("tokens", 1.0),)), own_only=True)
    first = PageSeen(Answer.OK, 1, work=Work(0, 0, 0.0, (("tokens", 0.0),)))
    assert Signal.OWN_PROGRESS_ONLY in run((1, first), (2, own))[-1].signals


def test_every_reason_has_a_sentence() -> None:
    assert all(why.sentence.endswith(".") for why in Why)


# --- the plan of probes, and both together on simulated engines ------------------------------------------------------


@dataclass
class Engine:
    """How a simulated engine behaves: what it answers at time t. None: it accepts and never answers."""

    tokens: Callable[[float], float] = lambda t: 0.0
    running: Callable[[float], float] = lambda t: 0.0
    page_s: Callable[[float], float | None] = lambda t: 0.01
    health_s: Callable[[float], float | None] = lambda t: 0.01
    first_token_s: Callable[[float], float | None] = lambda t: 0.1


@dataclass
class Watch:
    """A collector in miniature on a fake clock: a page each second, health where needed, probes as planned."""

    engine: Engine
    timing: ProbeTiming = field(default_factory=ProbeTiming)
    page_timeout_s: float = 2.0
    memory: Memory = field(default_factory=Memory)
    history: list[tuple[float, State]] = field(default_factory=list)
    probes: list[tuple[float, float, Answer]] = field(default_factory=list)

    def run(self, until_s: float) -> Watch:
        settings = LivenessSettings(self.timing.no_progress_s, True, self.timing.interval_s)
        page_at, page_end, seen_page = 0.0, NEVER, None
        probe_end, seen_probe = NEVER, None
        now = 0.0
        while now < until_s:
            now = round(now + 0.05, 6)
            evidence = Evidence()
            if page_end <= now and seen_page is not None:
                evidence, page_at, page_end = (
                    Evidence(page=seen_page, health=self._health(seen_page, now)),
                    max(page_at + 1, now),
                    NEVER,
                )
            elif page_at <= now and page_end == NEVER:
                page_end, seen_page = self._page(now)
            if probe_end <= now and seen_probe is not None:
                evidence, probe_end = Evidence(evidence.page, evidence.health, seen_probe), NEVER
            if evidence != Evidence():
                self.memory, verdict = step(self.memory, evidence, now, settings)
                if not self.history or self.history[-1][1] is not verdict.state:
                    self.history.append((now, verdict.state))
            if probe_end == NEVER and (plan := plan_probe(self.memory, now, self.timing)).due_s <= now:
                probe_end, seen_probe = self._probe(now, plan)
        return self

    def _page(self, now: float) -> tuple[float, PageSeen]:
        took = self.engine.page_s(now)
        if took is None or took > self.page_timeout_s:
            return now + self.page_timeout_s, lost(now, Answer.SILENT)
        return now + took, page(now, self.engine.tokens(now), running=self.engine.running(now))

    def _health(self, seen: PageSeen, now: float) -> HealthSeen | None:
        if seen.answer is Answer.OK and self.memory.state in ("serving", "busy"):
            return None
        took = self.engine.health_s(now)
        return health(now, Answer.SILENT if took is None or took > 0.5 else Answer.OK)

    def _probe(self, now: float, plan: ProbePlan) -> tuple[float, ProbeSeen]:
        took = self.engine.first_token_s(now)
        if took is None or took > plan.deadline_s:
            end, answer = now + plan.deadline_s, Answer.SILENT
        else:
            end, answer = now + took, Answer.LATE if took > self.timing.first_token_timeout_s else Answer.OK
        self.probes.append((now, plan.deadline_s, answer))
        return end, probe(now, answer)

    def first(self, state: State) -> float:
        return next(t for t, seen in self.history if seen is state)


def test_the_first_probe_is_sent_at_once_and_the_next_after_the_interval_while_idle() -> None:
    watch = Watch(Engine()).run(45)
    gaps = [b[0] - a[0] for a, b in pairwise(watch.probes)]
    assert watch.probes[0][0] <= 0.1
    assert gaps == pytest.approx([10.0] * len(gaps), abs=0.2)
    assert {state for _, state in watch.history} <= {State.UNKNOWN, State.SERVING}


def test_while_traffic_proves_life_no_probe_is_sent() -> None:
    watch = Watch(Engine(tokens=lambda t: t * 100, running=lambda t: 4)).run(120)
    assert len(watch.probes) == 1


def test_a_hang_in_traffic_is_found_when_the_time_is_over() -> None:
    frozen = 60.0
    engine = Engine(
        tokens=lambda t: min(t, frozen) * 100, running=lambda t: 4, first_token_s=lambda t: 0.1 if t < frozen else None
    )
    watch = Watch(engine).run(90)
    # The last page with progress is at most one interval after the freeze; from then on the clock runs.
    assert frozen + 10 <= watch.first(State.HUNG) <= frozen + 11.2
    asked = [sent for sent, _, _ in watch.probes if frozen < sent < watch.first(State.HUNG)]
    assert len(asked) == 2, "one in time, then one that stays open"


def test_a_hang_of_an_idle_engine_is_found_by_probes_alone() -> None:
    engine = Engine(first_token_s=lambda t: 0.1 if t < 35 else None)
    watch = Watch(engine).run(70)
    asked = next(sent for sent, _, answer in watch.probes if answer is Answer.SILENT)
    assert watch.first(State.HUNG) == pytest.approx(asked + 10.0, abs=0.1)


def test_a_stopped_process_is_found_when_the_time_is_over() -> None:
    stop = 30.5

    def alive(took: float) -> Callable[[float], float | None]:
        return lambda t: took if t < stop else None

    watch = Watch(Engine(page_s=alive(0.01), health_s=alive(0.01), first_token_s=alive(0.1))).run(60)
    assert stop + 10 <= watch.first(State.HUNG) <= stop + 11.3


def test_an_engine_that_is_always_slower_than_the_limit_is_busy_and_never_hung() -> None:
    watch = Watch(Engine(first_token_s=lambda t: 1.5)).run(300)
    assert State.HUNG not in {state for _, state in watch.history}
    assert watch.history[-1][1] is State.BUSY


def test_recovery_is_seen_at_the_first_answered_probe() -> None:
    engine = Engine(first_token_s=lambda t: None if 20 < t < 60 else 0.1)
    watch = Watch(engine).run(90)
    assert watch.first(State.HUNG) < 35
    assert watch.history[-1][1] is State.SERVING
    assert 60 <= watch.history[-1][0] <= 75


def test_a_probe_is_never_sent_sooner_than_a_second_after_the_one_before() -> None:
    for engine in (Engine(first_token_s=lambda t: None), Engine(page_s=lambda t: None), Engine(running=lambda t: 1)):
        sent = [t for t, _, _ in Watch(engine).run(120).probes]
        assert min(b - a for a, b in pairwise(sent)) >= 1.0


def test_an_open_probe_is_bounded_however_long_the_standstill_may_last() -> None:
    timing = ProbeTiming(no_progress_s=3600)
    watch = Watch(Engine(first_token_s=lambda t: None), timing).run(300)
    assert max(deadline for _, deadline, _ in watch.probes) <= 60


@pytest.mark.parametrize(
    ("no_progress_s", "expected_s"),
    [(10.0, 3.0), (60.0, 3.0), (4.0, 2.0), (2.0, 0.8), (1.0, 0.0)],
)
def test_the_urgent_probe_leaves_time_for_its_answer(no_progress_s: float, expected_s: float) -> None:
    assert urgent_after_s(ProbeTiming(no_progress_s=no_progress_s)) == pytest.approx(expected_s)


def test_the_pause_between_failed_probes_grows_to_the_interval() -> None:
    pauses = [retry_after_s(failures, ProbeTiming()) for failures in range(1, 12)]
    assert pauses[:4] == [1.0, 1.5, 2.25, 3.375]
    assert pauses[-1] == 10.0


def test_a_full_engine_that_asks_to_be_left_alone_is_left_alone() -> None:
    asked = ProbeSeen(Answer.OVERLOADED, 1.0, "http_429", retry_after_s=30.0)
    memory, _ = step(Memory(), Evidence(probe=asked), 1.1, SETTINGS)
    assert plan_probe(memory, 5.0, ProbeTiming()).due_s == pytest.approx(31.1)
