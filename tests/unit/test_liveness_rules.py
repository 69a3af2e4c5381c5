"""Each rule of the verdict on its own, with every condition at its edge: a memory in, a state and its reasons out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tailkeeper_exporter.evidence import Answer, Evidence, HealthSeen, Memory, PageSeen, ProbeSeen, Streak, TapSeen, Work
from tailkeeper_exporter.liveness import Liveness, LivenessSettings, Signal, Why, judge, step
from tailkeeper_exporter.state import State

NOW = 100.0
SETTINGS = LivenessSettings()
NO_PROBE = LivenessSettings(probe_enabled=False)
OK, LATE, SILENT, REFUSED, UNREACHABLE = Answer.OK, Answer.LATE, Answer.SILENT, Answer.REFUSED, Answer.UNREACHABLE
ERROR, DENIED, LOADING, OVERLOADED, UNUSABLE = Answer.ERROR, Answer.DENIED, Answer.LOADING, Answer.OVERLOADED, Answer.UNUSABLE
GONE = (SILENT, UNREACHABLE, REFUSED)


def said(answer: Answer | None, count: int = 5, first_s: float = 90.0, last_s: float = 99.0) -> Streak:
    return Streak() if answer is None else Streak(answer, count, "", first_s, last_s, last_s)


def verdict(settings: LivenessSettings = SETTINGS, **known: Any) -> tuple[str, tuple[Why, ...]]:
    """The verdict on a memory of which ``known`` is known; an answer stands for a streak of it."""
    given: dict[str, Any] = {name: said(value) if isinstance(value, Answer) else value for name, value in known.items()}
    state, reasons = judge(Memory(**given), NOW, settings)
    return state.value, reasons


IDLE, AT_WORK, QUEUED = Work(0, 0), Work(1, 0), Work(1, 1)
SEEN: dict[str, Any] = {"page": OK, "work": IDLE}
MOVING: dict[str, Any] = {"page": OK, "work": AT_WORK, "progress_s": 95.0, "traffic_s": 95.0, "life_s": 95.0}
NOTHING = ("unknown", (Why.NOTHING_YET,))
SERVING = ("serving", ())


# Down


@pytest.mark.parametrize(
    ("known", "down"),
    [
        ({"refusals": 2, "refused_since_s": 99.5}, True),
        ({"refusals": 2, "refused_since_s": 99.6}, False),
        ({"refusals": 1, "refused_since_s": 90.0}, False),
        ({"refusals": 3, "refused_since_s": None}, False),
        ({"refusals": 0, "refused_since_s": 90.0}, False),
    ],
)
def test_refusals_are_down_from_the_second_on_once_they_have_lasted(known: dict[str, Any], down: bool) -> None:
    assert verdict(**SEEN, **known) == (("down", (Why.REFUSED,)) if down else NOTHING)


BROKEN = said(ERROR, 2, first_s=95.0)
BOTH = ("down", (Why.HEALTH_ERROR, Why.PROBE_FAILED))


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"health": BROKEN, "probe": said(ERROR, 1, last_s=95.0)}, BOTH),
        *[({"health": BROKEN, "probe": said(gone, 1, last_s=99.0)}, BOTH) for gone in GONE],
        ({"health": BROKEN, "probe": said(ERROR, 1, last_s=94.9)}, ("unknown", (Why.PROBE_FAILED,))),
        ({"health": replace(BROKEN, count=1), "probe": said(ERROR, 1)}, ("unknown", (Why.PROBE_FAILED,))),
        ({"health": BROKEN, "probe": OK}, SERVING),
        ({"health": BROKEN, "probe": None}, NOTHING),
        ({"health": BROKEN, "probe": said(ERROR, 1), "progress_s": 94.9}, BOTH),
        ({"health": BROKEN, "probe": said(ERROR, 1), "progress_s": 95.0}, SERVING),
        ({"health": said(UNUSABLE, 5, 95.0), "probe": said(ERROR, 1)}, ("unknown", (Why.PROBE_FAILED,))),
    ],
)
def test_an_engine_that_says_that_it_is_broken_is_down_where_a_probe_agrees_since(
    known: dict[str, Any], expected: tuple[str, tuple[Why, ...]]
) -> None:
    given = {name: value for name, value in known.items() if value is not None}
    assert verdict(**SEEN, **given) == expected


@pytest.mark.parametrize(("count", "down"), [(1, False), (2, False), (3, True)])
def test_without_a_probe_the_one_witness_says_so_once_more(count: int, down: bool) -> None:
    expected = ("down", (Why.HEALTH_ERROR,)) if down else NOTHING
    assert verdict(NO_PROBE, **SEEN, health=said(ERROR, count)) == expected


# Starting


@pytest.mark.parametrize(
    ("known", "starting"),
    [
        ({"health": said(LOADING, last_s=99.0), "probe": said(SILENT, last_s=98.0)}, True),
        ({"health": said(OK, last_s=98.0), "probe": said(LOADING, last_s=99.0)}, True),
        ({"health": said(LOADING, last_s=98.0), "probe": said(OK, last_s=99.0)}, False),
        ({"probe": said(LOADING, 1, 0.0, 0.0)}, True),
        ({"health": said(LOADING), "progress_s": 89.9}, True),
        ({"health": said(LOADING), "progress_s": 90.0, "life_s": 20.0}, False),
        ({"health": said(LOADING), "life_s": 90.0}, False),
    ],
)
def test_the_newest_word_says_whether_it_is_loading_unless_it_was_seen_to_work_since(
    known: dict[str, Any], starting: bool
) -> None:
    assert (verdict(**SEEN, **known) == ("starting", (Why.LOADING,))) == starting


@pytest.mark.parametrize(
    ("state", "count", "expected"),
    [
        ("serving", 1, "serving"),
        ("busy", 1, "busy"),
        ("serving", 2, "starting"),
        ("unknown", 1, "starting"),
        ("hung", 1, "starting"),
    ],
)
def test_one_word_of_loading_changes_nothing_for_whoever_serves(state: str, count: int, expected: str) -> None:
    assert verdict(**SEEN, health=said(LOADING, count), state=state, state_since_s=10.0) == (expected, (Why.LOADING,))


# Hung


STANDING: dict[str, Any] = {
    "page": OK, "work": AT_WORK, "stalled_since_s": 90.0, "probe": said(SILENT, 1), "probe_silent_s": 95.0, "silent_probes": 1,
}  # fmt: skip
IN_WORK = ("hung", (Why.NO_PROGRESS, Why.PROBE_UNANSWERED))


@pytest.mark.parametrize(
    ("changes", "hung"),
    [
        ({}, True),
        ({"probe": said(UNREACHABLE, 1)}, True),
        ({"stalled_since_s": 90.1}, False),
        ({"stalled_since_s": None}, False),
        ({"probe_silent_s": 90.0}, True),
        ({"probe_silent_s": 89.9}, False),
        ({"probe_silent_s": None}, False),
        ({"probe": said(REFUSED, 1)}, False),
        ({"probe": said(ERROR, 1)}, False),
        ({"work": IDLE}, False),
        ({"work": Work(0, 1)}, True),
        ({"work": Work(None, None)}, False),
    ],
)
def test_work_that_stands_still_for_the_whole_time_with_a_probe_unanswered_in_it_is_hung(
    changes: dict[str, Any], hung: bool
) -> None:
    assert (verdict(**{**STANDING, **changes}) == IN_WORK) == hung


@pytest.mark.parametrize(("silent_probes", "stalled_since_s", "hung"), [(2, 90.0, True), (1, 90.0, False), (2, 90.1, False)])
def test_an_idle_engine_is_hung_after_two_probes_and_the_whole_time(
    silent_probes: int, stalled_since_s: float, hung: bool
) -> None:
    known = {**STANDING, "work": IDLE, "silent_probes": silent_probes, "stalled_since_s": stalled_since_s}
    assert (verdict(**known) == ("hung", (Why.PROBE_UNANSWERED,))) == hung


MUTE: dict[str, Any] = {
    "page": SILENT, "health": SILENT, "probe": said(SILENT, 1), "mute_since_s": 90.0, "probe_silent_s": 95.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "hung"),
    [
        ({}, True),
        ({"mute_since_s": 90.1}, False),
        ({"mute_since_s": None}, False),
        ({"probe_silent_s": 90.0}, True),
        ({"probe_silent_s": 89.9}, False),
        ({"health": UNREACHABLE}, True),
        ({"health": OK}, False),
        ({"health": REFUSED}, False),
        ({"page": OK, "work": IDLE}, False),
        ({"work": AT_WORK, "stalled_since_s": 90.0}, True),
    ],
)
def test_without_a_page_only_silence_of_all_for_all_of_the_time_is_hung(changes: dict[str, Any], hung: bool) -> None:
    assert (verdict(**{**MUTE, **changes}) == ("hung", (Why.ALL_SILENT, Why.PROBE_UNANSWERED))) == hung


@pytest.mark.parametrize(
    ("tap", "hung"),
    [
        (TapSeen(99.0, running=1), True),
        (TapSeen(99.0, running=0, waiting=3), False),
        (TapSeen(96.9, running=1), False),
        (None, False),
    ],
)
def test_without_a_page_streams_that_had_begun_are_work_and_a_queue_is_none(tap: TapSeen | None, hung: bool) -> None:
    known = {**STANDING, "page": said(SILENT), "work": None, "tap": tap}
    assert (verdict(**known) == IN_WORK) == hung


@pytest.mark.parametrize(("count", "hung"), [(1, True), (2, False)])
def test_a_page_that_was_lost_only_just_now_still_shows_its_work(count: int, hung: bool) -> None:
    assert (verdict(**{**STANDING, "page": said(SILENT, count)}) == IN_WORK) == hung


# Not recovered


def was(state: str, since_s: float = 80.0, **more: Any) -> dict[str, Any]:
    return {**SEEN, "state": state, "state_since_s": since_s, **more}


WAITS = {state: (state, (Why.NOT_RECOVERED,)) for state in ("hung", "down")}
WARMING = ("starting", (Why.WARMING_UP,))


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (was("hung"), WAITS["hung"]),
        (was("hung", life_s=79.9), WAITS["hung"]),
        (was("hung", life_s=80.0, probe=OK), SERVING),
        (was("hung", restarted_s=80.0), WARMING),
        (was("hung", restarted_s=79.9), WAITS["hung"]),
        (was("hung", tap=TapSeen(99.0, 1, progress_s=90.0)), SERVING),
        (was("hung", tap=TapSeen(99.0, 1, progress_s=89.9)), WAITS["hung"]),
        (was("down", page=SILENT), WAITS["down"]),
        (was("down", page=SILENT, health=OK), WARMING),
        (was("down", page=OK), WARMING),
        (was("down", page=said(OK, last_s=80.0)), WAITS["down"]),
        (was("down", page=said(OK, last_s=80.1)), WARMING),
        (was("down", page=SILENT, health=SILENT), WAITS["down"]),
        (was("starting", page=SILENT), WARMING),
        (was("starting", life_s=85.0, probe=OK), SERVING),
    ],
)
def test_what_was_out_stays_out_until_life_and_a_new_engine_is_starting(
    known: dict[str, Any], expected: tuple[str, tuple[Why, ...]]
) -> None:
    assert verdict(**known) == expected


def test_a_state_that_was_never_entered_keeps_nobody_out() -> None:
    assert verdict(**{**was("down", probe=OK), "state_since_s": None}) == SERVING


@pytest.mark.parametrize(
    ("known", "settled"),
    [
        ({"probe": said(DENIED, 1, last_s=81.0)}, True),
        ({"probe": said(ERROR, 1, last_s=81.0)}, False),
        ({"probe": said(ERROR, 2, last_s=81.0)}, True),
        ({"probe": said(ERROR, 2, last_s=80.0)}, False),
        ({"probe": said(UNUSABLE, 2, last_s=81.0)}, True),
        *[({"probe": said(gone, 5, last_s=81.0)}, False) for gone in GONE],
        ({"probe": None}, False),
    ],
)
def test_an_answer_that_is_no_token_settles_the_matter_once_it_is_sure(known: dict[str, Any], settled: bool) -> None:
    given = {name: value for name, value in known.items() if value is not None}
    assert (verdict(**was("down", **given)) != WARMING) == settled


@pytest.mark.parametrize(
    ("known", "recovered"),
    [
        ({"page": said(OK, 2, last_s=81.0)}, True),
        ({"page": said(OK, 1, last_s=81.0)}, False),
        ({"page": said(OK, 2, last_s=80.0)}, False),
        ({"page": SILENT, "health": said(OK, 2, last_s=81.0)}, True),
        ({"page": SILENT, "health": said(OK, 1, last_s=81.0)}, False),
        ({"page": SILENT, "health": said(SILENT, 5, last_s=81.0)}, False),
    ],
)
@pytest.mark.parametrize("state", ["down", "starting"])
def test_without_a_probe_the_engines_own_word_has_to_be_said_twice(state: str, known: dict[str, Any], recovered: bool) -> None:
    assert (verdict(NO_PROBE, **was(state, **known)) == (state, (Why.NOT_RECOVERED,))) != recovered


# Misconfigured


@pytest.mark.parametrize("state", [*State, "unknown"])
@pytest.mark.parametrize("count", [1, 2])
def test_refused_credentials_are_believed_at_once_by_whoever_knows_nothing_better(state: str, count: int) -> None:
    at_once = state in ("unknown", "misconfigured", "starting", "down")
    found = verdict(**SEEN, probe=said(DENIED, count), state=str(state), state_since_s=80.0, life_s=85.0)
    assert (found == ("misconfigured", (Why.PROBE_DENIED,))) == (at_once or count == 2)


@pytest.mark.parametrize(
    ("known", "misconfigured"),
    [
        ({"health": said(DENIED, 1)}, True),
        ({"health": said(DENIED, 1), "state": "serving"}, False),
        ({"health": said(DENIED, 2), "state": "serving"}, True),
        ({"health": said(DENIED, 2), "probe": OK}, False),
        ({"health": said(DENIED, 2), "probe": LATE}, False),
        ({"health": said(DENIED, 2), "traffic_s": 90.0}, False),
        ({"health": said(DENIED, 2), "traffic_s": 89.9}, True),
        ({"health": said(UNUSABLE, 2)}, False),
    ],
)
def test_a_refused_health_page_matters_while_nothing_else_proves_life(known: dict[str, Any], misconfigured: bool) -> None:
    assert (verdict(**SEEN, **known) == ("misconfigured", (Why.HEALTH_DENIED,))) == misconfigured


# Seen to work


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, SERVING),
        ({"progress_s": 90.0}, SERVING),
        ({"progress_s": 89.9}, NOTHING),
        ({"queued_pages": 2, "work": QUEUED}, ("busy", (Why.QUEUE,))),
        ({"queued_pages": 1, "work": QUEUED}, ("busy", (Why.QUEUE,))),
        ({"queued_pages": 1, "work": QUEUED, "state": "serving"}, SERVING),
        ({"queued_pages": 1, "state": "busy"}, ("busy", (Why.QUEUE,))),
        ({"queued_pages": -1, "state": "busy"}, ("busy", (Why.QUEUE,))),
        ({"queued_pages": -2, "state": "busy"}, SERVING),
        ({"queued_pages": 0, "state": "busy"}, SERVING),
        ({"queued_pages": -1, "state": "serving"}, SERVING),
        ({"slow_probes": 2}, ("busy", (Why.PROBE_SLOW,))),
        ({"slow_probes": 1}, SERVING),
    ],
)
def test_progress_is_serving_and_a_queue_or_slow_probes_make_it_busy(
    known: dict[str, Any], expected: tuple[str, tuple[Why, ...]]
) -> None:
    assert verdict(**{**MOVING, **known}) == expected


TAP = TapSeen(99.0, running=1, progress_s=95.0)


@pytest.mark.parametrize(
    ("known", "reasons"),
    [
        ({"page": OK, "work": IDLE}, ()),
        ({}, ()),
        ({"page": said(SILENT, 1), "work": IDLE}, ()),
        ({"page": said(SILENT, 2), "work": IDLE}, (Why.PAGE_LOST,)),
        ({"page": said(SILENT, 1)}, (Why.PAGE_LOST,)),
    ],
    ids=["page seen", "no page", "lost just now", "lost", "never read"],
)
def test_tokens_that_pass_the_tap_are_life_and_a_lost_page_is_told_beside_it(
    known: dict[str, Any], reasons: tuple[Why, ...]
) -> None:
    assert verdict(**known, tap=TAP) == ("serving", reasons)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"probe": OK}, ("busy", (Why.NO_PROGRESS,))),
        ({"probe": LATE}, ("busy", (Why.NO_PROGRESS,))),
        ({"probe": OVERLOADED}, ("busy", (Why.NO_PROGRESS,))),
        ({"probe": said(ERROR, 1)}, ("unknown", (Why.NO_PROGRESS,))),
        ({"probe": OVERLOADED, "stalled_since_s": 90.1}, ("busy", (Why.OVERLOADED,))),
        ({"probe": OVERLOADED, "stalled_since_s": None}, ("busy", (Why.OVERLOADED,))),
        ({"probe": OVERLOADED, "work": IDLE}, ("busy", (Why.OVERLOADED,))),
        ({"probe": OVERLOADED, "work": Work(0.5, 0)}, ("busy", (Why.NO_PROGRESS,))),
    ],
)
def test_a_standstill_is_judged_by_the_probe(known: dict[str, Any], expected: tuple[str, tuple[Why, ...]]) -> None:
    assert verdict(**{"page": OK, "work": AT_WORK, "stalled_since_s": 90.0, **known}) == expected


# Judged by answers alone


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"probe": OK}, SERVING),
        ({"probe": LATE, "slow_probes": 2}, ("busy", (Why.PROBE_SLOW,))),
        ({"probe": OVERLOADED}, ("busy", (Why.OVERLOADED,))),
        ({"probe": said(ERROR, 2)}, ("unknown", (Why.PROBE_FAILED,))),
        ({"probe": said(ERROR, 2), "state": "serving"}, ("unknown", (Why.PROBE_FAILED,))),
        ({"probe": said(ERROR, 1), "state": "serving"}, ("serving", (Why.PROBE_FAILED,))),
        ({"probe": said(ERROR, 1), "health": OK}, ("unknown", (Why.PROBE_FAILED,))),
        ({"probe": said(SILENT, 1), "state": "busy"}, ("busy", (Why.PROBE_UNANSWERED,))),
        ({"probe": said(SILENT, 1)}, ("unknown", (Why.PROBE_FAILED,))),
        ({"state": "serving"}, SERVING),
        ({}, NOTHING),
        ({"health": OK}, SERVING),
        ({"health": SILENT}, NOTHING),
        ({"health": OK, "probe": said(UNUSABLE, 1)}, SERVING),
        ({"health": OK, "work": AT_WORK}, NOTHING),
        ({"health": OK, "work": AT_WORK, "progress_s": 20.0}, SERVING),
        ({"health": OK, "work": Work(0.0, 0.5)}, NOTHING),
        ({"health": OK, "work": AT_WORK, "probe": said(UNUSABLE, 1)}, SERVING),
    ],
)
def test_without_traffic_the_probe_has_the_word_and_else_the_health_page(
    known: dict[str, Any], expected: tuple[str, tuple[Why, ...]]
) -> None:
    assert verdict(**{**SEEN, "state_since_s": 50.0, **known}) == expected


def test_without_a_probe_to_wait_for_the_health_page_is_believed_at_the_first_look() -> None:
    assert verdict(NO_PROBE, page=OK, work=AT_WORK, health=OK) == SERVING


# Blind


LOST = ("unknown", (Why.PAGE_LOST,))


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"probe": OK}, ("serving", (Why.PAGE_LOST,))),
        ({"probe": said(OK, last_s=70.0)}, ("serving", (Why.PAGE_LOST,))),
        ({"probe": said(OK, last_s=69.9)}, LOST),
        ({"probe": OVERLOADED}, ("busy", (Why.OVERLOADED, Why.PAGE_LOST))),
        ({"probe": said(ERROR, 1)}, LOST),
        ({"probe": said(ERROR, 1), "state": "serving"}, LOST),
        ({"page": said(UNUSABLE, 1), "state": "serving"}, ("serving", (Why.PAGE_LOST,))),
        ({"page": said(UNUSABLE, 1), "state": "busy"}, ("busy", (Why.PAGE_LOST,))),
        ({"page": said(UNUSABLE, 1)}, LOST),
        ({"probe": said(SILENT, 1), "silent_probes": 1, "state": "serving"}, ("serving", (Why.PAGE_LOST,))),
        ({"probe": said(SILENT, 1), "silent_probes": 2, "state": "serving"}, LOST),
        ({"probe": said(ERROR, 1), "silent_probes": 1, "state": "serving"}, LOST),
        ({"state": "serving"}, LOST),
    ],
)
def test_behind_a_lost_page_only_the_probe_can_say_serving(known: dict[str, Any], expected: tuple[str, tuple[Why, ...]]) -> None:
    assert verdict(**{"page": UNUSABLE, "state_since_s": 50.0, **known}) == expected


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, NOTHING),
        ({"health": OK}, SERVING),
        ({"probe": OK}, SERVING),
        ({"probe": said(SILENT, 1), "life_s": 70.0, "state": "serving"}, ("serving", (Why.PROBE_UNANSWERED,))),
        ({"probe": said(SILENT, 1), "life_s": 69.9, "state": "serving"}, ("unknown", (Why.PROBE_UNANSWERED,))),
        ({"probe": said(SILENT, 1), "state": "serving"}, ("unknown", (Why.PROBE_UNANSWERED,))),
        ({"probe": said(REFUSED, 1), "life_s": 95.0, "stalled_since_s": 90.0}, ("unknown", (Why.PROBE_UNANSWERED,))),
        ({"probe": said(REFUSED, 1), "life_s": 95.0, "stalled_since_s": 90.1}, ("unknown", (Why.PROBE_FAILED,))),
        ({"probe": said(ERROR, 1), "stalled_since_s": 80.0, "state": "serving"}, ("serving", (Why.PROBE_FAILED,))),
        ({"health": said(SILENT, 2)}, ("unknown", (Why.HEALTH_UNANSWERED,))),
        ({"health": said(SILENT, 1)}, NOTHING),
        ({"health": said(SILENT, 2), "probe": OK}, SERVING),
        ({"health": said(ERROR, 2), "probe": OK}, SERVING),
        ({"health": said(UNUSABLE, 2)}, NOTHING),
    ],
)
def test_where_no_page_was_ever_asked_for_the_answers_decide(
    known: dict[str, Any], expected: tuple[str, tuple[Why, ...]]
) -> None:
    assert verdict(**{"state_since_s": 50.0, **known}) == expected


# Signals, and how the state changes


def signals(**known: Any) -> set[Signal]:
    given: dict[str, Any] = {name: said(value) if isinstance(value, Answer) else value for name, value in known.items()}
    return set(step(Memory(**given), Evidence(), NOW, SETTINGS)[1].signals)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, set()),
        ({"page": OK}, {Signal.PAGE_READ}),
        ({"page": SILENT}, set()),
        ({"tap": TapSeen(97.0, 0)}, {Signal.TAP_REPORTS}),
        ({"tap": TapSeen(96.9, 5)}, set()),
        ({"tap": TapSeen(97.0, 0, 1)}, {Signal.TAP_REPORTS, Signal.IN_FLIGHT}),
        ({"work": Work(0, 0.5)}, {Signal.IN_FLIGHT}),
        ({"work": IDLE}, set()),
        ({"progress_s": 90.0, "traffic_s": 90.0}, {Signal.PROGRESS}),
        ({"progress_s": 90.0, "traffic_s": 89.9}, {Signal.PROGRESS, Signal.OWN_PROGRESS_ONLY}),
        ({"progress_s": 89.9, "traffic_s": 89.9}, set()),
        ({"stalled_since_s": 90.0}, {Signal.STANDSTILL}),
        ({"stalled_since_s": 90.1}, set()),
        ({"probe": OK}, {Signal.PROBE_ANSWERED}),
        ({"probe": LATE}, {Signal.PROBE_ANSWERED}),
        ({"probe": SILENT}, {Signal.PROBE_UNANSWERED}),
        ({"probe": REFUSED}, set()),
        ({"health": OK}, {Signal.HEALTH_ANSWERED}),
        ({"health": ERROR}, set()),
        ({"refusals": 1}, {Signal.REFUSED}),
    ],
)
def test_each_signal_says_one_thing(known: dict[str, Any], expected: set[Signal]) -> None:
    assert signals(**known) == expected


@pytest.mark.parametrize(("after_s", "state", "since_s"), [(2.9, "serving", 50.0), (3.0, "busy", 53.0)])
def test_serving_and_busy_change_places_after_the_dwell_time(after_s: float, state: str, since_s: float) -> None:
    memory = Memory(state="serving", state_since_s=50.0, page=said(OK), work=QUEUED, progress_s=50.0, queued_pages=3)
    after, found = step(memory, Evidence(), 50.0 + after_s, SETTINGS)
    assert (found.state.value, found.since_s, after.state, after.state_since_s) == (state, since_s, state, since_s)
    assert found.reasons == (Why.QUEUE,)


def test_any_other_change_waits_for_nothing() -> None:
    memory = Memory(state="serving", state_since_s=50.0, refusals=2, refused_since_s=40.0)
    after, found = step(memory, Evidence(), 50.1, SETTINGS)
    assert found == Liveness(State.DOWN, (Why.REFUSED,), (Signal.REFUSED,), 50.1)
    assert (after.state, after.state_since_s) == ("down", 50.1)


def test_a_first_verdict_is_since_now_and_one_that_stays_since_it_began() -> None:
    memory, found = step(Memory(), Evidence(), 7.0, SETTINGS)
    assert (found, memory.state_since_s) == (Liveness(State.UNKNOWN, (Why.NOTHING_YET,), (), 7.0), 7.0)
    memory, found = step(memory, Evidence(), 9.0, SETTINGS)
    assert (found.since_s, memory.state_since_s) == (7.0, 7.0)


def test_the_newest_of_all_evidence_is_judged() -> None:
    seen = Evidence(PageSeen(OK, 9.0, work=IDLE), HealthSeen(OK, 9.0), ProbeSeen(OK, 9.0), TapSeen(9.5, 0))
    _, found = step(Memory(), seen, 10.0, SETTINGS)
    assert found.state is State.SERVING
    assert set(found.signals) == {Signal.PAGE_READ, Signal.TAP_REPORTS, Signal.PROBE_ANSWERED, Signal.HEALTH_ANSWERED}


def test_the_times_it_goes_by_are_those_of_the_public_contract() -> None:
    assert LivenessSettings(10.0, True, 10.0, 2, 0.5, 3.0) == SETTINGS


@pytest.mark.parametrize(
    ("why", "words"),
    [
        (Why.NO_PROGRESS, "no token, prompt or request has moved"),
        (Why.PROBE_UNANSWERED, "accepted and got no answer"),
        (Why.REFUSED, "refuses connections"),
        (Why.PROBE_SLOW, "probe.first_token_timeout_s"),
    ],
)
def test_a_reason_is_told_in_a_sentence_of_its_own(why: Why, words: str) -> None:
    assert words in why.sentence
    assert len({one.sentence for one in Why}) == len(Why)
