"""The guardian sheds at once, scales when the load stays, and gives back step by step."""

from __future__ import annotations

from typing import Any

import pytest

from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, KnobValue
from tailkeeper_watchdog.policies import slo_guardian
from tailkeeper_watchdog.policy_params import SloGuardianParams
from tailkeeper_watchdog.window import Window
from tests.unit.situations import Run, backend, seen, situation, window

Wants = dict[tuple[str, Knob], KnobValue]
GOOD = window(10.0, ok=100, ttft={0.2: 100}, itl={0.02: 1_000}, generated_tokens=20_000.0)
SLOW = window(10.0, ok=100, ttft={0.2: 90, 2.0: 10}, itl={0.02: 1_000}, generated_tokens=20_000.0)
FAILING = window(10.0, ok=100, errors=1, ttft={0.2: 100})


class Pool:
    """Two backends in one pool and one in another, ticked from second to second."""

    def __init__(self, **params: float) -> None:
        self.run = Run(slo_guardian.POLICY, SloGuardianParams.model_validate(params))
        self.now = 1_000.0

    def tick(self, seconds: float, recent: Window | None = GOOD, *, heard: bool = True, **values: float) -> Wants:
        self.now += seconds
        said: dict[str, Any] = {"running": 4.0, "waiting": 0.0, "vram_pressure": 0.5} | values
        observations = [seen(n, age_s=0.0 if heard else 60.0, **said) for n in "ab"] + [seen("z")]
        fleet = (backend("a"), backend("b"), backend("z", pool="other"))
        windows = dict.fromkeys("ab", recent) if recent is not None else {}
        return self.run.tick(
            situation(*observations, now=self.now, backends=fleet, recent=windows, knobs={("a", Knob.REPLICAS): 3.0})
        )

    def usual(self, seconds: float = 700.0) -> None:
        for _ in range(int(seconds / 10)):
            assert self.tick(10) == {}


SHED = {("a", Knob.DEGRADE_LEVEL): 1.0, ("b", Knob.DEGRADE_LEVEL): 1.0}


@pytest.mark.parametrize("trouble", [SLOW, FAILING])
def test_the_first_look_at_a_broken_promise_sheds_in_that_pool_and_in_no_other(trouble: Window) -> None:
    assert Pool().tick(0.5, trouble) == SHED


def test_a_slow_tail_between_tokens_sheds_only_with_full_memory() -> None:
    slow = window(10.0, ok=100, itl={0.1: 1_000}, generated_tokens=20_000.0)
    assert Pool().tick(0.5, slow, vram_pressure=0.9) == SHED
    assert Pool().tick(0.5, slow, vram_pressure=0.8) == {}


@pytest.mark.parametrize("quiet", [None, window(10.0, ok=5, ttft={5.0: 5}), window(10.0, ok=5, errors=1)])
def test_too_few_requests_break_no_promise(quiet: Window | None) -> None:
    assert Pool().tick(0.5, quiet) == {}


def test_an_engine_that_does_not_tell_its_failures_does_not_hide_those_of_another() -> None:
    silent = window(10.0, ok=10_000, errors=None, ttft={0.2: 100})
    telling, untold = (situation(seen("a"), seen("b"), recent={"a": a, "b": silent}) for a in (FAILING, silent))
    looks = [slo_guardian.look([0, 1], slo_guardian.asked_of(it), SloGuardianParams()) for it in (telling, untold)]
    assert [look.error_ratio for look in looks] == [pytest.approx(1 / 101), None]


def test_what_it_sheds_is_not_what_it_sheds_for() -> None:
    shedding = window(10.0, ok=100, rejected=50, ttft={0.2: 100})
    pool = Pool()
    pool.tick(10, SLOW)
    assert [bool(pool.tick(10, shedding)) for _ in range(5)][-1] is False


def test_shedding_goes_further_only_when_asked_and_only_where_it_lasts() -> None:
    pool = Pool()
    assert [pool.tick(10, SLOW)["a", Knob.DEGRADE_LEVEL] for _ in range(6)] == [1.0] * 6
    pool = Pool(max_level=2)
    assert [pool.tick(10, SLOW)["a", Knob.DEGRADE_LEVEL] for _ in range(4)] == [1.0, 1.0, 2.0, 2.0]


def test_three_good_periods_give_back_a_step_each_and_all_within_two_minutes() -> None:
    pool = Pool(max_level=2)
    for _ in range(4):
        pool.tick(10, SLOW)
    levels = [pool.tick(10).get(("a", Knob.DEGRADE_LEVEL)) for _ in range(6)]
    assert levels == [2.0, 2.0, 2.0, 1.0, None, None]


def test_a_bad_second_begins_the_good_periods_anew() -> None:
    pool = Pool()
    pool.tick(10, SLOW)
    for _ in range(3):
        pool.tick(10)
    pool.tick(1, SLOW)
    assert [bool(pool.tick(10)) for _ in range(4)] == [True, True, True, False]


def test_silence_gives_nothing_back_and_sheds_nothing() -> None:
    pool = Pool()
    assert pool.tick(10, heard=False) == {}
    pool.tick(10, SLOW)
    assert pool.tick(10, heard=False) == {}  # unknown wants nothing: the lease stays as it is
    pool.tick(60, None)
    assert pool.tick(10, None) == SHED  # heard, and nothing said about latency: no good period


QUIET = window(10.0, ok=5, ttft={0.2: 5}, generated_tokens=100.0)
WAITING: list[tuple[dict[str, float], dict[str, float], bool]] = [
    ({"running": 0.0, "waiting": 0.0}, {"running": 0.0, "waiting": 0.0}, True),
    ({"running": 2.0, "waiting": 0.0}, {"running": 2.0, "waiting": 0.0}, True),
    ({"running": 2.0, "waiting": 9.0}, {"running": 2.0, "waiting": 0.0}, False),
    ({"running": 0.0}, {"running": 0.0}, False),
    ({"running": 2.0}, {"running": 2.0, "waiting": 0.0}, False),
    ({}, {"running": 2.0, "waiting": 0.0}, True),  # one that tells nothing of its requests is judged by the others
]


@pytest.mark.parametrize(("a", "b", "given_back"), WAITING)
def test_a_quiet_pool_gives_back_only_where_it_is_known_that_nobody_waits(
    a: dict[str, Any], b: dict[str, Any], given_back: bool
) -> None:
    run = Run(slo_guardian.POLICY, SloGuardianParams())
    for at, recent in enumerate([SLOW] + [QUIET] * 5):
        told = seen("a", **a), seen("b", **b)
        wants = run.tick(situation(*told, now=1_000.0 + 10 * at, recent=dict.fromkeys("ab", recent)))
    assert wants == ({} if given_back else SHED)


def test_load_far_above_the_usual_scales_after_a_while_and_at_most_doubles() -> None:
    pool = Pool()
    pool.usual()
    assert pool.tick(1, running=9.0) == {}
    assert pool.tick(14, running=9.0) == {}
    assert pool.tick(1, running=9.0) == {("a", Knob.REPLICAS): 6.0}
    assert pool.tick(1, running=40.0) == {("a", Knob.REPLICAS): 6.0}


def test_a_load_of_twice_the_usual_is_none_of_its_business() -> None:
    pool = Pool()
    pool.usual()
    assert [pool.tick(5, running=8.0) for _ in range(10)] == [{}] * 10


def test_nothing_is_usual_before_ten_minutes_are_known() -> None:
    pool = Pool()
    pool.usual(seconds=300.0)
    assert [pool.tick(5, running=40.0) for _ in range(5)] == [{}] * 5


def test_few_tokens_with_room_and_requests_waiting_scale_and_an_idle_pool_does_not() -> None:
    crawling = window(10.0, ok=100, ttft={0.2: 100}, generated_tokens=1_000.0)
    assert Pool().tick(1, crawling, waiting=5.0) == {("a", Knob.REPLICAS): 6.0}
    assert Pool().tick(1, crawling, waiting=0.0) == {}
    assert Pool().tick(1, crawling, waiting=5.0, vram_pressure=0.75) == {}


def test_replicas_are_given_back_after_good_periods() -> None:
    pool = Pool()
    pool.usual()
    for _ in range(4):
        pool.tick(10, running=9.0)
    wants = [pool.tick(10, running=4.0) for _ in range(5)]
    assert wants[0] == {("a", Knob.REPLICAS): 6.0}
    assert wants[-1] == {}


def test_what_ends_late_in_a_backend_that_is_drained_already_sheds_nothing() -> None:
    run = Run(slo_guardian.POLICY, SloGuardianParams())
    fleet = (backend("a"), backend("b"))
    recent = {"a": SLOW, "b": GOOD}

    def tick(now: float, admission: str) -> Wants:
        knobs: dict[tuple[str, Knob], KnobValue] = {("a", Knob.ADMISSION): admission}
        return run.tick(situation(seen("a"), seen("b"), now=now, backends=fleet, recent=recent, knobs=knobs))

    assert tick(1_000.0, DRAIN) == {}
    assert tick(1_009.0, SERVE) == {}, "the last ten seconds have the drain in them"
    assert tick(1_010.0, SERVE) == SHED


def test_where_all_are_drained_their_users_are_still_looked_at() -> None:
    knobs: dict[tuple[str, Knob], KnobValue] = {("a", Knob.ADMISSION): DRAIN}
    at = situation(seen("a"), recent={"a": SLOW}, knobs=knobs)
    assert Run(slo_guardian.POLICY, SloGuardianParams()).tick(at) == {("a", Knob.DEGRADE_LEVEL): 1.0}


@pytest.mark.parametrize(
    ("recent", "running", "comes_back"),
    [
        (None, 0.0, True),  # nearly all of the requests were such as are shed
        (window(10.0, ok=5, ttft={0.2: 5}, generated_tokens=500.0), 1.0, True),
        (window(10.0, ok=0, generated_tokens=0.0), 4.0, False),  # they hang
    ],
)
def test_where_few_requests_are_left_shedding_ends_unless_they_hang(
    recent: Window | None, running: float, comes_back: bool
) -> None:
    pool = Pool()
    pool.tick(10, SLOW)
    assert [bool(pool.tick(10, recent, running=running)) for _ in range(4)] == [True, True, True, not comes_back]
