"""Scores, histories, uptimes and epochs to the last field: what people see of a score must be what it was made of."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log

import numpy as np
import pytest

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Quantile, present
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.model import BackendObservation, Epoch, Factor, HealthScore, Slo
from tailkeeper_watchdog.samples import OUTCOME_SLOT
from tailkeeper_watchdog.scoring.epochs import RESTARTED, follow
from tailkeeper_watchdog.scoring.history import RECENT_S, SPACING_S, WINDOW_S, History, add, over, take_sample
from tailkeeper_watchdog.scoring.hscore import Scores, error_goodness, latency_goodness, may_be_below, score
from tailkeeper_watchdog.scoring.ring import DEFAULT_SIZE, LatencyRing
from tailkeeper_watchdog.scoring.uptime import Uptime, observe
from tailkeeper_watchdog.window import Window
from tests.unit.situations import situation, window
from tests.unit.test_hscore import SLO, WEIGHTS, Measured, scored

# The score


def test_a_score_shows_each_factor_with_what_was_measured_in_its_unit_and_what_it_weighs() -> None:
    result = scored(2.4, 0.02, 0.9, 0.75)
    assert result.factors == (
        Factor("latency", 0.5, pytest.approx(0.35), 2.4, "s"),  # type: ignore[arg-type]
        Factor("error_rate", error_goodness(0.02), pytest.approx(0.40), pytest.approx(0.02), "ratio"),  # type: ignore[arg-type]
        Factor("cpu_usage", pytest.approx(exp(-1)), pytest.approx(0.15), 0.9, "ratio"),  # type: ignore[arg-type]
        Factor("uptime", 0.75, pytest.approx(0.10), 0.75, "ratio"),  # type: ignore[arg-type]
    )
    assert result.hscore == pytest.approx(0.35 * 0.5 + 0.40 * error_goodness(0.02) + 0.15 * exp(-1) + 0.10 * 0.75)
    assert (result.backend, result.unknown_factors, result.veto) == ("a", (), None)


def test_the_weight_of_what_is_not_known_is_shared_by_what_is_and_the_rest_named_in_order() -> None:
    result = scored(cpu=0.9, uptime=0.5)
    assert [factor.weight for factor in result.factors] == pytest.approx([0.6, 0.4])
    assert result.hscore == pytest.approx(0.6 * exp(-1) + 0.4 * 0.5)
    assert result.unknown_factors == ("latency", "error_rate")
    assert scored(0.1, 0.0).unknown_factors == ("cpu_usage", "uptime")


def test_a_dead_backend_keeps_what_was_measured_and_is_vetoed_by_its_state() -> None:
    result = scored(2.4, state=State.HUNG)
    assert result == HealthScore("a", 0.0, (Factor("latency", 0.5, 1.0, 2.4, "s"),), result.unknown_factors, State.HUNG, 1.0)
    assert result.unknown_factors == ("error_rate", "cpu_usage", "uptime")
    nothing = scored(state=State.DOWN)
    assert nothing == HealthScore("a", 0.0, (), ("latency", "error_rate", "cpu_usage", "uptime"), State.DOWN, 1.0)


def test_a_backend_that_is_not_heard_of_knows_none_of_its_factors() -> None:
    assert score(None, None, WEIGHTS, SLO, "a") == HealthScore("a", None, (), ("latency", "error_rate", "cpu_usage", "uptime"))
    seen = BackendObservation("a", State.SERVING, 0.0)
    assert score(seen, None, WEIGHTS, SLO, "a") == HealthScore("a", None, (), ("latency", "error_rate", "cpu_usage", "uptime"))


def failing(p95: Quantile | None, finished: int, errors: float | None) -> HealthScore:
    class Minute(Measured):
        __slots__ = ()

        @property
        def seconds(self) -> float:
            return 60.0

    return score(BackendObservation("a", State.SERVING, 0.0), Minute(p95, errors, None, finished), WEIGHTS, SLO, "a")


def test_where_all_fail_the_latency_is_as_bad_as_can_be_and_its_value_is_the_time_without_a_token() -> None:
    result = failing(None, 10, 1.0)
    latency, errors = result.factors
    assert (latency.name, latency.goodness, latency.value, latency.unit) == ("latency", 0.0, 60.0, "s")
    assert (errors.value, errors.unit) == (1.0, "ratio")
    assert result.confidence == pytest.approx(0.35 * 10 / 20 + 0.40 * 10 / 100)
    assert failing(None, 40, 1.0).confidence == pytest.approx(0.35 + 0.40 * 0.4)


@pytest.mark.parametrize(
    ("finished", "errors"),
    [(10, 0.9), (10, 0.0), (0, 1.0), (10, None)],
    ids=["one succeeded", "all did", "none ended", "not told"],
)
def test_where_not_all_fail_a_missing_latency_is_not_known(finished: int, errors: float | None) -> None:
    assert "latency" in failing(None, finished, errors).unknown_factors


def test_one_request_that_failed_is_all_of_them() -> None:
    assert failing(None, 1, 1.0).factors[0].goodness == 0.0


def test_more_evidence_than_enough_makes_no_factor_surer() -> None:
    assert scored(errors=0.0, samples=200).confidence == pytest.approx(0.40)
    assert scored(p95_s=0.1, samples=200).confidence == pytest.approx(0.35)


def test_weights_count_by_their_share_whatever_they_sum_to() -> None:
    doubled = {name: 2 * weight for name, weight in WEIGHTS.items()}
    seen = BackendObservation("a", State.SERVING, 0.0, readings={catalog.CPU_USAGE.name: present(0.9, 0.0)})
    minute = Measured(Quantile(2.4, 10), 0.1, None, 50)
    once, twice = score(seen, minute, WEIGHTS, SLO, "a"), score(seen, minute, doubled, SLO, "a")
    assert twice.hscore == pytest.approx(once.hscore)
    assert twice.confidence == pytest.approx(once.confidence)


def test_the_latency_of_a_score_is_the_p95_of_the_first_token_of_the_last_minute() -> None:
    """Ninety-four of a hundred are quick, so the P95 is one of the others; of one by one and of all at once."""
    told = {"a": window(60.0, ok=100.0, ttft={0.02: 94.0, 2.4: 6.0})}
    given = situation(observed_now("a"), windows=told)
    (latency, *_) = score(observed_now("a"), told["a"], WEIGHTS, SLO, "a").factors
    assert latency.name == "latency"
    assert 1.28 < latency.value <= 2.5
    assert Scores(given, WEIGHTS)["a"].factors[0] == latency


@pytest.mark.parametrize("limit", [0.2, 0.4, 0.6, 0.9])
def test_who_may_be_below_a_limit_is_who_has_one_part_below_it_and_nobody_else(limit: float) -> None:
    """Each part alone, a millionth beside the limit; what is at it counts as below, for a sum has rounding."""
    usage = 0.85 - 0.05 * log(limit)
    ratio = 0.01 + 0.0025 * log((1.0 + exp(-4.0)) / limit - 1.0)
    slow = window(60.0, ttft={0.02: 90.0, 2.4: 10.0})
    p95 = slow.quantile("ttft", 0.95)
    assert p95 is not None
    up = {"up below": limit - 1e-6, "up at": limit, "up above": limit + 1e-6}
    busy = {"busy below": usage + 1e-6, "busy above": usage - 1e-6}
    failed = {"failed below": 1e6 * (ratio + 1e-6), "failed above": 1e6 * (ratio - 1e-6), "all failed": 1e6}
    told = {
        **{name: Window(uptime_ratio=ratio) for name, ratio in {**up, "dead": 0.0, "silent": 0.0}.items()},
        **{name: window(60.0, ok=1e6 - errors, errors=errors) for name, errors in failed.items()},
        "slow": slow,
        "nothing was asked of it": window(60.0, ok=0.0),
    }
    seen = [observed_now(name) for name in told if name not in ("dead", "silent")]
    seen += [BackendObservation("dead", State.HUNG, 0.0), BackendObservation("silent", State.SERVING, 99.0)]
    seen += [BackendObservation(n, State.SERVING, 0.0, None, {catalog.CPU_USAGE.name: present(u, 0.0)}) for n, u in busy.items()]
    below = {"up below", "up at", "busy below", "failed below", "all failed"}
    for slo_s, late in ((p95.value * (limit - 1e-6), {"slow"}), (p95.value * (limit + 1e-6), set[str]())):
        given = replace(situation(*seen, windows=told), slo=Slo(ttft_p99_s=slo_s))
        scores = Scores(given, WEIGHTS)
        assert {it.backend for it in may_be_below(scores, limit)} == below | late
        sure = {name for name, it in scores.items() if it.hscore is not None and it.veto is None and it.hscore < limit}
        assert sure == (below | late) - {"up at"}


def test_of_many_at_once_where_all_failed_the_latency_is_the_time_in_which_no_first_token_came() -> None:
    told = {"a": window(42.0, ok=0.0, errors=10.0)}
    given = situation(observed_now("a"), windows=told)
    (latency, *_) = Scores(given, WEIGHTS)["a"].factors
    assert (latency.name, latency.goodness, latency.value) == ("latency", 0.0, 42.0)
    assert Scores(given, WEIGHTS)["a"] == score(observed_now("a"), told["a"], WEIGHTS, SLO, "a")


def observed_now(name: str) -> BackendObservation:
    return BackendObservation(name, State.SERVING, 0.0)


def test_a_known_latency_counts_also_where_all_fail() -> None:
    assert failing(Quantile(0.6, 5), 10, 1.0).factors[0].goodness == 1.0


def test_no_error_ratio_is_too_large_and_no_latency_too_small() -> None:
    assert error_goodness(1e9) == pytest.approx(0.0, abs=1e-300)
    assert error_goodness(1.751) > 0.0
    assert latency_goodness(0.0, 1.2) == 1.0


def test_factors_that_weigh_nothing_make_no_score() -> None:
    weightless = {**WEIGHTS, "uptime": 0.0}
    seen = BackendObservation("a", State.SERVING, 0.0)
    result = score(seen, Measured(None, None, 0.5, 0), weightless, SLO, "a")
    assert (result.hscore, result.factors, result.confidence) == (None, (), 0.0)


def test_a_cpu_that_does_nothing_is_a_measurement() -> None:
    assert scored(cpu=0.0).hscore == 1.0


# Histories


def sample_at(at: float, ok: float = 0.0) -> History:
    return add(History(), take_sample(seen(ok), at))


def seen(ok: float) -> BackendObservation:
    return BackendObservation("a", State.SERVING, 0.0, readings={OUTCOME_SLOT["ok"]: present(ok, 0.0)})


def history(*looks: tuple[float, float]) -> History:
    result = History()
    for at, ok in looks:
        result = add(result, take_sample(seen(ok), at))
    return result


def times(result: History) -> list[float]:
    return [sample.at for sample in result.samples]


def test_a_minute_is_kept_with_one_sample_every_five_seconds_and_the_newest_one() -> None:
    assert (WINDOW_S, RECENT_S, SPACING_S) == (60.0, 10.0, 5.0)
    assert times(history(*((float(n), float(n)) for n in range(201)))) == [*range(135, 201, 5)]
    assert times(history(*((2.0 * n, 0.0) for n in range(51)))) == [36, 42, 48, 54, 60, 66, 72, 78, 84, 90, 96, 100]
    assert times(history((0, 0), (4.9, 0), (9.8, 0))) == [0, 9.8]
    assert times(history((0, 0), (5, 0), (9, 0))) == [0, 5, 9]
    assert times(history((0, 0), (65, 0))) == [0, 65]
    assert times(history((0, 0), (65.1, 0))) == [65.1]


def test_a_counter_that_fell_begins_the_history_anew_and_says_so_once() -> None:
    fallen = history((0, 10), (5, 20), (10, 3))
    assert (times(fallen), fallen.anew) == ([10], True)
    assert not history((0, 10), (5, 20), (10, 20)).anew
    assert times(history((0, 10), (5, 30), (10, 20))) == [10]
    assert not add(fallen, take_sample(seen(4), 15.0)).anew
    assert not history((0, 10)).anew


@pytest.mark.parametrize(("at", "ok"), [(10.0, 30.0), (9.0, 30.0), (10.0, 3.0), (9.0, 3.0)])
def test_a_sample_that_is_not_newer_changes_nothing(at: float, ok: float) -> None:
    before = history((0, 10), (10, 20))
    assert add(before, take_sample(seen(ok), at)) is before


def test_a_window_begins_at_the_latest_sample_that_is_old_enough_whatever_their_number() -> None:
    for number in range(2, 15):
        kept = history(*((5.0 * n, float(n)) for n in range(number)))
        newest, earlier = kept.samples[-1].at, times(kept)[:-1]
        for half_seconds in range(160):
            seconds = half_seconds / 2
            old_enough = [at for at in earlier if newest - at >= seconds]
            start = over(kept, seconds).start
            assert start is not None
            assert start.at == (old_enough[-1] if old_enough else earlier[0])


def test_a_window_carries_the_uptime_and_is_empty_without_two_samples() -> None:
    assert over(History(), 60.0, 0.5) == Window(uptime_ratio=0.5)
    assert over(history((0, 10)), 60.0, 0.5) == Window(uptime_ratio=0.5)
    two = over(history((0, 10), (10, 30)), 60.0, 0.5)
    assert (two.seconds, two.requests, two.uptime_ratio) == (10.0, 20.0, 0.5)
    assert over(history((0, 10), (10, 30)), 60.0).uptime_ratio is None


def test_a_samples_layout_is_taken_from_one_like_it() -> None:
    first = take_sample(seen(1.0), 0.0)
    assert take_sample(seen(2.0), 5.0, first.layout).layout is first.layout


# Uptimes


def lived(*looks: tuple[float, State]) -> Uptime:
    uptime = Uptime()
    for at, state in looks:
        uptime = observe(uptime, state, at)
    return uptime


S, H, U = State.SERVING, State.HUNG, State.UNKNOWN


def test_a_minute_that_is_over_is_kept_with_its_sums_and_the_running_one_is_added_to() -> None:
    uptime = lived((50, S), (58, S), (61, H), (71, S), (125, S))
    assert uptime == Uptime(((0, 8, 8),), (60, 13, 10), 125, 8, 8)
    assert lived((50, S), (58, S), (61, H), (71, S), (121, S), (125, S)) == Uptime(
        ((0, 8, 8), (60, 13, 10)), (120, 4, 4), 125, 21, 18
    )
    assert uptime.ratio() == 18 / 21


@pytest.mark.parametrize(("gap_s", "observed"), [(30.0, True), (30.1, False)])
def test_a_gap_of_more_than_half_a_minute_was_not_lived_through(gap_s: float, observed: bool) -> None:
    assert lived((0, S), (gap_s, S)).ratio() == (1.0 if observed else None)


@pytest.mark.parametrize("state", [State.UNKNOWN, State.STARTING, State.MISCONFIGURED])
def test_states_that_say_nothing_stop_the_count(state: State) -> None:
    uptime = lived((0, S), (10, state))
    assert (uptime.last_at, uptime.ratio()) == (None, None)
    assert observe(uptime, state, 20.0) is uptime
    assert observe(uptime, S, 25.0) == Uptime((), None, 25.0)


def test_time_that_stands_still_or_runs_backwards_is_no_time() -> None:
    still = lived((70, S), (70, S))
    assert (still.ratio(), still.running) == (None, (60, 0, 0))
    back = lived((70, S), (80, S), (75, H))
    assert back.ratio() == 1.0


def test_an_hour_is_remembered_and_no_more() -> None:
    down = lived((0, S), (10, H))
    steps = [(10.0 + 30 * n, S) for n in range(1, 125)]
    hour = down
    for at, state in steps:
        hour = observe(hour, state, at)
    assert hour.ratio() == 1.0
    assert hour.minutes[0][0] == 120.0
    assert hour.observed_s == sum(minute[1] for minute in hour.minutes)


def test_a_minute_that_ended_an_hour_ago_is_forgotten_to_the_second() -> None:
    looks = [(10.0, S), (40.0, H), *((60.0 + 30 * n, S) for n in range(120))]
    assert lived(*looks, (3_659.0, S)).minutes[0][0] == 0
    assert lived(*looks, (3_660.0, S)).minutes[0][0] == 60


def test_less_than_a_second_says_something_too() -> None:
    assert lived((0, S), (0.5, S)).ratio() == 1.0


# Epochs


def observed(state: State, *models: str) -> BackendObservation:
    return BackendObservation("a", state, 0.0, models=frozenset(models))


def test_an_epoch_says_since_when_with_which_models_and_why() -> None:
    first = follow(None, observed(S, "m"), 5.0)
    assert first == Epoch(0, 5.0, frozenset({"m"}), "first seen", ended=False)
    assert follow(None, observed(State.STARTING), 5.0) == Epoch(0, 5.0, frozenset(), ended=True)
    more = follow(first, observed(S, "m", "adapter"), 6.0)
    assert more == Epoch(0, 5.0, frozenset({"m", "adapter"}), "first seen")
    other = follow(more, observed(S, "z", "new"), 7.0)
    assert other == Epoch(1, 7.0, frozenset({"z", "new"}), "the model is new, z now")
    away = follow(other, observed(State.DOWN), 8.0)
    assert away == Epoch(1, 7.0, frozenset({"z", "new"}), "the model is new, z now", ended=True)
    assert follow(away, observed(State.DOWN), 9.0) is away
    back = follow(away, observed(S, "z"), 10.0)
    assert back == Epoch(2, 10.0, frozenset({"z"}), RESTARTED)
    assert follow(back, observed(S, "y"), 11.0) == Epoch(3, 11.0, frozenset({"y"}), "the model is y now")
    renamed = follow(back, observed(State.DOWN, "z", "adapter"), 11.0)
    assert renamed == Epoch(2, 10.0, frozenset({"z", "adapter"}), RESTARTED, ended=True)


def test_another_model_of_an_engine_that_is_away_begins_an_epoch_that_has_ended_already() -> None:
    away = follow(follow(None, observed(S, "m"), 1.0), observed(State.DOWN, "m"), 2.0)
    assert follow(away, observed(State.STARTING, "n"), 3.0) == Epoch(1, 3.0, frozenset({"n"}), "the model is n now", ended=True)


def test_a_page_that_names_no_model_for_a_while_changes_nothing() -> None:
    first = follow(None, observed(S, "m"), 1.0)
    assert follow(first, observed(S), 2.0) is first


# The ring


def test_a_ring_holds_a_thousand_unless_said_and_as_few_as_one() -> None:
    ring = LatencyRing()
    ring.extend(np.arange(1.0, DEFAULT_SIZE + 8.0))
    assert (len(ring), DEFAULT_SIZE) == (1_000, 1_000)
    assert ring.quantile(0.0) == Quantile(8.0, 1_000)
    one = LatencyRing(1)
    assert one.extend(np.array([3.0, 4.0])) == 0
    assert one.quantile(0.99) == Quantile(4.0, 1)
    with pytest.raises(ValueError, match="size: -1 is refused; a ring holds at least one sample"):
        LatencyRing(-1)


def test_a_latency_of_nothing_is_possible() -> None:
    ring = LatencyRing(3)
    assert ring.extend(np.array([0.0, -0.0, 1.0])) == 0
    assert ring.quantile(0.0) == Quantile(0.0, 3)


def test_what_is_known_of_a_cpu_is_its_catalogue_name() -> None:
    assert catalog.CPU_USAGE.name == "llm_cpu_usage_ratio"


def test_a_quantile_far_below_the_largest_is_searched_for_among_what_was_put_in_and_nothing_else() -> None:
    half_full, full = LatencyRing(400), LatencyRing(400)
    half_full.extend(np.arange(200.0, 0.0, -1.0))
    full.extend(np.arange(500.0, 0.0, -1.0))
    assert half_full.quantile(0.5) == Quantile(100.0, 200)
    assert half_full.quantile(0.1) == Quantile(20.0, 200)
    assert full.quantile(0.5) == Quantile(200.0, 400)
