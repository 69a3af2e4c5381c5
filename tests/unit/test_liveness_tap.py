"""What a tap's reports do to the judgement: its tokens are life, its silence is nothing, and a stopped stream is a standstill."""

from __future__ import annotations

import pytest

from tailkeeper_exporter.evidence import TAP_STALE_S, Answer, Evidence, HealthSeen, Memory, PageSeen, ProbeSeen, TapSeen, Work
from tailkeeper_exporter.liveness import Liveness, LivenessSettings, Signal, Why, step
from tailkeeper_exporter.probe_plan import ProbeTiming, plan_probe
from tailkeeper_exporter.state import State

SETTINGS = LivenessSettings()
TIMING = ProbeTiming()
Event = tuple[float, PageSeen | HealthSeen | ProbeSeen | TapSeen | None]


def walk(*events: Event, settings: LivenessSettings = SETTINGS) -> tuple[Memory, list[Liveness]]:
    memory, verdicts = Memory(), []
    for now, item in events:
        evidence = Evidence(
            page=item if isinstance(item, PageSeen) else None,
            health=item if isinstance(item, HealthSeen) else None,
            probe=item if isinstance(item, ProbeSeen) else None,
            tap=item if isinstance(item, TapSeen) else None,
        )
        memory, verdict = step(memory, evidence, now, settings)
        verdicts.append(verdict)
    return memory, verdicts


def tap(at_s: float, running: int = 0, waiting: int = 0, *, token_s: float | None = None) -> TapSeen:
    return TapSeen(at_s, running, waiting, token_s, token_s)


def page(t: float, tokens: float = 0, running: float = 0) -> PageSeen:
    return PageSeen(Answer.OK, t, work=Work(running, 0.0, None, (("tokens", tokens),)))


def lost(t: float) -> PageSeen:
    return PageSeen(Answer.UNUSABLE, t, "http_500")


def health(t: float, answer: Answer = Answer.OK) -> HealthSeen:
    return HealthSeen(answer, t)


def silent(t: float) -> ProbeSeen:
    return ProbeSeen(Answer.SILENT, t)


def stuck(from_s: int, to_s: int, running: int = 0, waiting: int = 0, *, token_s: float | None = None) -> list[Event]:
    """A tap that reports each second, with a probe of ours that is not answered in between."""
    reports: list[Event] = [(float(t), tap(t, running, waiting, token_s=token_s)) for t in range(from_s, to_s)]
    return sorted([*reports, *((t + 0.5, silent(t - 1)) for t in range(from_s + 2, to_s))], key=lambda event: event[0])


def test_tokens_through_the_tap_are_life_for_a_backend_without_a_page() -> None:
    _, verdicts = walk((0, tap(0, 1, token_s=0)))
    assert verdicts[-1].state is State.SERVING
    assert Signal.PROGRESS in verdicts[-1].signals
    assert Signal.OWN_PROGRESS_ONLY not in verdicts[-1].signals


def test_tokens_through_the_tap_keep_a_backend_serving_whose_page_is_lost() -> None:
    events: list[Event] = [(0, page(0, 5, 1)), (0.5, health(0.5))]
    events += [(t + d, seen) for t in range(1, 6) for d, seen in ((0.0, lost(t)), (0.1, tap(t + 0.1, 1, token_s=t)))]
    _, verdicts = walk(*events)
    assert verdicts[-1].state is State.SERVING
    assert verdicts[-1].reasons == (Why.PAGE_LOST,)


def test_traffic_through_the_tap_spares_the_engine_our_probes() -> None:
    events: list[Event] = [(0, health(0)), (0.1, ProbeSeen(Answer.OK, 0))]
    for t in range(1, 60):
        events.append((t, tap(t, 1, token_s=t)))
        assert plan_probe(walk(*events)[0], t, TIMING).due_s > t + 1
    events.append((60, tap(60, 0, token_s=59.5)))
    assert plan_probe(walk(*events)[0], 60, TIMING).due_s == 59.5 + TIMING.interval_s


def test_a_stream_that_stops_is_probed_well_before_its_time_is_over() -> None:
    memory, _ = walk((0, health(0)), (0.1, ProbeSeen(Answer.OK, 0)), (1, tap(1, 1, token_s=1)), (2, tap(2, 1, token_s=1)))
    plan = plan_probe(memory, 2, TIMING)
    assert plan.urgent
    assert plan.due_s < 1 + SETTINGS.no_progress_s / 2


def test_a_stopped_stream_and_an_unanswered_probe_are_a_hang_also_without_a_page() -> None:
    events: list[Event] = [(0, health(0)), (0.5, tap(0.5, 2, token_s=0.5)), *stuck(1, 14, running=2, token_s=0.5)]
    _, verdicts = walk(*events)
    since = next(verdict.since_s for verdict in verdicts if verdict.state is State.HUNG)
    assert SETTINGS.no_progress_s <= since - 0.5 <= SETTINGS.no_progress_s + 1
    assert verdicts[-1].reasons == (Why.NO_PROGRESS, Why.PROBE_UNANSWERED)


def test_a_stopped_stream_is_a_hang_while_the_page_is_lost() -> None:
    events: list[Event] = [(0, page(0, 5, 1)), (0.2, health(0.2)), *((t, lost(t)) for t in (0.5, 0.6, 0.7))]
    _, verdicts = walk(*events, *stuck(1, 14, running=1, token_s=0.1))
    assert verdicts[-1].state is State.HUNG


@pytest.mark.parametrize(
    "probed",
    [[], [(t + 0.5, ProbeSeen(Answer.OK, t)) for t in range(3, 30, 3)]],
    ids=["not probed", "probe answered"],
)
def test_a_long_prefill_or_a_standstill_with_an_answered_probe_is_no_hang(probed: list[Event]) -> None:
    reports: list[Event] = [(float(t), tap(t, running=1, waiting=1, token_s=0)) for t in range(30)]
    _, verdicts = walk((0, health(0)), *sorted([*reports, *probed], key=lambda event: event[0]))
    assert State.HUNG not in {verdict.state for verdict in verdicts}


def test_without_a_page_requests_that_wait_for_their_first_token_are_never_called_a_hang() -> None:
    """An answer in one piece takes half a minute on an engine with one slot, and the probe waits behind it."""
    _, verdicts = walk((0, health(0)), (0.1, ProbeSeen(Answer.OK, 0)), *stuck(1, 40, waiting=3))
    assert State.HUNG not in {verdict.state for verdict in verdicts}
    assert verdicts[-1].state is State.UNKNOWN


def test_with_a_page_that_says_idle_requests_that_the_tap_has_at_the_engine_are_work_in_flight() -> None:
    """The engine's front door holds them and its scheduler has never seen them."""
    events: list[Event] = [(0, page(0, 5)), (0.1, health(0.1)), (0.2, ProbeSeen(Answer.OK, 0.1))]
    pages: list[Event] = [(t + 0.2, page(t, 5)) for t in range(1, 14)]
    _, verdicts = walk(*events, *sorted([*stuck(1, 14, waiting=2), *pages], key=lambda event: event[0]))
    assert verdicts[-1].state is State.HUNG
    assert Why.NO_PROGRESS in verdicts[-1].reasons


def test_the_first_token_ends_a_hang() -> None:
    events: list[Event] = [(0, health(0)), (0.5, tap(0.5, 2, token_s=0.5)), *stuck(1, 14, running=2, token_s=0.5)]
    _, verdicts = walk(*events, (14, tap(14, 2, token_s=13.9)))
    # Busy, because probes have been slow; the next one in time ends that.
    assert [verdict.state for verdict in verdicts[-2:]] == [State.HUNG, State.BUSY]


def test_a_report_that_comes_late_ends_a_hang_that_was_none() -> None:
    events: list[Event] = [(0, health(0)), (0.5, tap(0.5, 2, token_s=0.5)), *stuck(1, 13, running=2, token_s=0.5)]
    _, verdicts = walk(*events, (13, tap(12.9, 2, token_s=10.0)))
    # Busy, because probes have been slow; the next one in time ends that.
    assert [verdict.state for verdict in verdicts[-2:]] == [State.HUNG, State.BUSY]


def test_a_token_after_two_refusals_began_is_no_death() -> None:
    """A server that closes its door finishes its streams."""
    refused: list[Event] = [(t, HealthSeen(Answer.REFUSED, t)) for t in (1, 2)]
    _, verdicts = walk((0, health(0)), (0.1, tap(0.1, 1, token_s=0.1)), *refused, (2.1, tap(2.1, 1, token_s=2.1)))
    assert [verdict.state for verdict in verdicts[-2:]] == [State.DOWN, State.SERVING]


def test_a_tap_whose_process_died_says_nothing_of_the_backend() -> None:
    """It had a stream open, and no longer reports: with our probe unanswered too, that is still no hang."""
    dead = tap(1, 2, token_s=1)
    silence: list[Event] = [(t, silent(t - 1)) for t in range(3, 40)]
    _, verdicts = walk((0, health(0)), (1, dead), (2, dead), *silence)
    assert State.HUNG not in {verdict.state for verdict in verdicts}
    assert Signal.TAP_REPORTS not in verdicts[-1].signals


def test_an_old_report_or_one_out_of_order_changes_nothing() -> None:
    memory, _ = walk((10, tap(10, 1, token_s=9)))
    for old in (tap(9, 5, token_s=8.5), tap(20 - TAP_STALE_S - 0.1, 7, token_s=9.5)):
        assert step(memory, Evidence(tap=old), 20, SETTINGS) == step(memory, Evidence(), 20, SETTINGS)


def test_a_request_through_the_tap_keeps_a_restarted_exporter_from_trusting_the_health_page() -> None:
    _, verdicts = walk((0, tap(0, waiting=2)), (0.1, health(0)))
    assert verdicts[-1].state is State.UNKNOWN


def test_a_token_after_an_unanswered_probe_takes_the_probes_word_back() -> None:
    memory, _ = walk((0, page(0)), (3, silent(1)), (4, silent(3)), (5, tap(5, 1, token_s=4.5)))
    assert (memory.silent_probes, memory.probe_silent_s) == (0, None)


def test_bytes_that_are_no_tokens_end_total_silence_and_prove_no_life() -> None:
    """Keep-alive comments in a stream: somebody is there, and nothing is made."""
    silence: list[Event] = [
        (t + d, seen) for t in range(1, 14) for d, seen in ((0.0, health(t - 1, Answer.SILENT)), (0.1, silent(t - 1)))
    ]
    assert walk((0, health(0)), *silence)[1][-1].state is State.HUNG
    bytes_only: list[Event] = [(t + 0.5, TapSeen(t + 0.5, 0, 1, None, t + 0.4)) for t in range(1, 14)]
    memory, verdicts = walk((0, health(0)), *sorted([*silence, *bytes_only], key=lambda event: event[0]))
    assert State.HUNG not in {verdict.state for verdict in verdicts}
    assert memory.life_s is None


def test_an_idle_tap_does_not_hide_the_work_of_those_who_go_past_it() -> None:
    pages: list[Event] = [(float(t), page(t, 5, running=2)) for t in range(14)]
    idle: list[Event] = [(t + 0.2, tap(t + 0.2)) for t in range(14)]
    probes: list[Event] = [(t + 0.5, silent(t - 1)) for t in range(3, 14)]
    _, verdicts = walk((0, health(0)), *sorted([*pages, *idle, *probes], key=lambda event: event[0]))
    assert verdicts[-1].state is State.HUNG
    assert verdicts[-1].since_s <= 11, "the standstill is counted from its first page, whatever the tap reports"
    assert Why.NO_PROGRESS in verdicts[-1].reasons
