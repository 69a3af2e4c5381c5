"""How fast anything may change, in either direction: levels, dwell, step limits, the way back, and how often it is tried."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailkeeper_exporter.readings import present
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import ServerState
from tailkeeper_watchdog.ledger import ATTEMPT_MEMORY_S, Ledger
from tailkeeper_watchdog.model import DRAIN, SERVE, DesiredState, Knob, KnobValue, Lease, Mode, Target
from tailkeeper_watchdog.plan import (
    MAX_RETURN_WAIT_S,
    RETURN_STEPS,
    Change,
    ChangeKind,
    PlanInput,
    ReturnMemory,
    plan,
    ramp_share,
    return_wait_s,
)
from tailkeeper_watchdog.policies import slo_guardian, token_rate_weighting
from tailkeeper_watchdog.policies.adaptive_batch_window import by_entropy
from tailkeeper_watchdog.policies.gpu_health_gate import Breaker, BreakerState, step_breaker
from tailkeeper_watchdog.policies.memory_breaker import Level
from tailkeeper_watchdog.policies.slo_guardian import Guard, Look, step
from tailkeeper_watchdog.policy_params import (
    AdaptiveBatchWindowParams,
    GpuHealthGateParams,
    SloGuardianParams,
    TokenRateWeightingParams,
)
from tailkeeper_watchdog.quarantine import quarantined, symptoms
from tailkeeper_watchdog.resolve import RESTRICTION, resolve
from tailkeeper_watchdog.samples import OUTCOME_SLOT
from tailkeeper_watchdog.settings import GuardsSettings
from tests.unit.situations import Run, seen, situation, window

STEPS_S = st.sampled_from([0.5, 5.0, 9.0, 10.0, 11.0, 31.0])

# Hysteresis and dwell


@given(st.lists(st.tuples(STEPS_S, st.sampled_from([0.5, 0.84, 0.85, 0.89, 0.9, 0.95])), max_size=30))
def test_a_level_begins_after_its_dwell_and_ends_below_its_hysteresis(looks: list[tuple[float, float]]) -> None:
    limit, band, dwell_s = 0.9, 0.05, 10.0
    level, now, above_since, is_on = Level(), 0.0, None, False
    for after_s, pressure in looks:
        now += after_s
        level = level.after(pressure, limit, band, dwell_s, now)
        if is_on:
            is_on = pressure >= limit - band
            above_since = now if is_on else None
        else:
            above_since = None if pressure < limit else now if above_since is None else above_since
            is_on = above_since is not None and now - above_since >= dwell_s
        assert (level.since is not None) == is_on


LOOKS = st.builds(
    Look,
    ttft_p99_s=st.sampled_from([None, 0.1, 0.8, 0.81, 3.0]),
    error_ratio=st.sampled_from([None, 0.0, 0.005, 0.006, 0.5]),
    requests=st.sampled_from([None, 0.0, 4.0, 4.0, 40.0]),
    waiting=st.sampled_from([None, 0.0, 3.0]),
    memory=st.sampled_from([None, 0.2, 0.9]),
    itl_p99_s=st.sampled_from([None, 0.01, 0.5]),
    tokens_per_s=st.sampled_from([None, 10.0, 2_000.0]),
)
MANY_LEVELS = SloGuardianParams(max_level=3, baseline_least_s=20)


@given(st.lists(st.tuples(STEPS_S, LOOKS), max_size=40))
def test_service_is_degraded_and_restored_step_by_step_each_with_its_dwell(looks: list[tuple[float, Look]]) -> None:
    guard, now, stepped_at, good_since, params = Guard(), 0.0, float("-inf"), None, MANY_LEVELS
    for after_s, look in looks:
        now += after_s
        before, guard = guard, step(guard, look, now, params)
        slow = look.itl_p99_s is not None and look.itl_p99_s > 0.035 and look.memory is not None and look.memory > 0.85
        trouble = (look.ttft_p99_s or 0) > 0.8 or (look.error_ratio or 0) > 0.005 or slow
        assert 0 <= guard.level <= params.max_level
        assert 1.0 <= guard.scale <= params.max_scale
        good_since = None if trouble else now if good_since is None else good_since
        if guard.level > before.level:
            assert trouble
            assert guard.level == before.level + 1
            assert before.level == 0 or now - stepped_at >= params.escalate_after_s
        if guard.level < before.level:
            assert good_since is not None
            assert now - good_since >= params.good_periods * params.good_period_s
            assert guard.level == before.level - 1
            assert now - stepped_at >= params.good_period_s
        if trouble and before.level == 0:
            assert guard.level == 1
        if guard.level != before.level or guard.scale != before.scale:
            stepped_at = now


GATE = GpuHealthGateParams()


@given(
    st.lists(
        st.tuples(STEPS_S, st.sampled_from([0.0, 1.0, 12.0]), st.sampled_from([0.0, 3.0, 12.0]), st.sampled_from(State)),
        max_size=20,
    ),
    st.sampled_from([None, 0.0, 0.04, 0.05, 0.9]),
)
def test_a_breaker_opens_for_its_own_failures_only_and_is_tried_after_its_dwell(
    looks: list[tuple[float, float, float, State]], peers: float | None
) -> None:
    breaker, now, ok, failed = Breaker(), 0.0, 100.0, 0.0
    for after_s, more_ok, more_failed, state in looks:
        now, ok, failed = now + after_s, ok + more_ok, failed + more_failed
        before = breaker
        counted = {OUTCOME_SLOT["ok"]: present(ok, now), OUTCOME_SLOT["error"]: present(failed, now)}
        breaker = step_breaker(before, replace(seen("a", state), readings=counted), None, peers, GATE, now)
        if before.state is BreakerState.CLOSED and breaker.state is not BreakerState.CLOSED:
            assert breaker.state is BreakerState.OPEN
            assert peers is not None
            assert peers < GATE.breaker_close_error_ratio
        if before.state is BreakerState.OPEN and breaker.state is not BreakerState.OPEN:
            assert breaker.state is BreakerState.TRIAL
            assert now - before.changed_at >= GATE.breaker_open_s
            assert state.takes_work
        if before.state is BreakerState.TRIAL and breaker.state is BreakerState.CLOSED:
            tried = before.trial_ok + before.trial_errors + more_ok + more_failed
            assert tried >= GATE.breaker_trial_requests
            assert before.trial_errors + more_failed < GATE.breaker_close_error_ratio * tried


# Step limits


@given(st.lists(st.tuples(STEPS_S, st.sampled_from([0.01, 0.02, 0.1, 1.0])), min_size=1, max_size=15))
def test_a_weight_by_speed_moves_by_at_most_one_step_at_a_time_and_never_below_its_floor(
    looks: list[tuple[float, float]],
) -> None:
    params = TokenRateWeightingParams()
    run, now, weight, at = Run(token_rate_weighting.POLICY, params), 0.0, 1.0, float("-inf")
    for after_s, mean_s in looks:
        now += after_s
        spoken = {
            "a": window(itl={mean_s: 500.0}, generated_tokens=500.0),
            "b": window(itl={0.01: 500.0}, generated_tokens=500.0),
        }
        wanted = run.tick(situation(seen("a"), seen("b"), now=now, windows=spoken))
        given = float(wanted.get(("a", Knob.WEIGHT), 1.0))
        to_the_end = given == 1.0 and weight > 1.0 - params.max_step - token_rate_weighting.AS_GOOD_AS_ALL
        assert abs(given - weight) <= params.max_step + 1e-4 or to_the_end
        assert params.floor_weight <= given <= 1.0
        if given != weight:
            assert now - at >= params.interval_s
            at = now
        assert ("b", Knob.WEIGHT) not in wanted
        weight = given


@given(st.floats(0.001, 0.5), st.floats(0.0, 1.0))
def test_a_batch_window_is_halved_or_grown_by_a_fifth_within_its_bounds(window_s: float, entropy: float) -> None:
    params = AdaptiveBatchWindowParams()
    after = by_entropy(window_s, entropy, params)
    if entropy > params.irregular_above:
        assert after == max(params.floor_s, window_s / 2)
    elif entropy < params.regular_below:
        assert after == min(params.ceiling_s, window_s * params.growth)
    else:
        assert after == window_s


# Slow start


TARGET = Target("edge", "a", "llm")
PRIOR = 10.0


class Returning:
    """A backend that we have drained and nobody wants out any more, and a gateway that does at once what it is told."""

    def __init__(self, settings: GuardsSettings, attempts: int, *, lighter: bool) -> None:
        self.settings, self.attempts, self.memory, self.now = settings, attempts, ReturnMemory(), 1_000.0
        self.values: dict[Knob, KnobValue] = {Knob.ADMISSION: DRAIN, Knob.WEIGHT: 1.0 if lighter else PRIOR}
        self.leases = [self._lease(1, Knob.ADMISSION, SERVE, DRAIN)]
        if lighter:
            self.leases.append(self._lease(2, Knob.WEIGHT, PRIOR, 1.0))

    def _lease(self, number: int, knob: Knob, prior: KnobValue, written: KnobValue) -> Lease:
        return Lease(number, "a", TARGET, knob, "p", prior, written, "why", 0.0, self.now + 300, confirmed=True)

    def tick(self, state: State, after_s: float, age_s: float = 0.0) -> tuple[Change, ...]:
        self.now += after_s
        given = PlanInput(
            situation(seen("a", state, age_s), now=self.now),
            self.settings,
            (),
            frozenset(),
            tuple(self.leases),
            {TARGET: ServerState(dict(self.values), normal_weight=PRIOR)},
            {"a": self.attempts},
        )
        self.memory, changes = plan(given, self.memory)
        for change in changes:
            self._do(change)
        return changes

    def _do(self, change: Change) -> None:
        assert change.kind in (ChangeKind.APPLY, ChangeKind.RENEW, ChangeKind.RELEASE, ChangeKind.EXPIRE)
        self.leases = [lease for lease in self.leases if lease.knob is not change.knob]
        if change.kind is ChangeKind.RENEW:
            assert change.lease is not None
            self.leases.append(replace(change.lease, expires_unix_s=self.now + 300))
        else:
            self.values[change.knob] = change.value
        if change.kind is ChangeKind.APPLY:
            lease = self._lease(3, change.knob, change.prior, change.value)
            self.leases.append(replace(lease, policy=change.policy, expires_unix_s=self.now + 300))

    @property
    def share(self) -> float:
        return 0.0 if self.values[Knob.ADMISSION] == DRAIN else float(self.values[Knob.WEIGHT]) / PRIOR


WAYS_BACK = st.builds(
    GuardsSettings,
    cooldown_s=st.sampled_from([0.0, 10.0, 30.0]),
    return_ramp_s=st.sampled_from([0.0, 20.0, 60.0]),
)


@given(
    WAYS_BACK,
    st.integers(0, 3),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from([1.0, 5.0]), st.sampled_from([State.SERVING] * 9 + [State.HUNG])), max_size=60),
)
def test_traffic_comes_back_after_good_evidence_and_by_steps_and_always_comes_back(
    settings: GuardsSettings, attempts: int, lighter: bool, looks: Sequence[tuple[float, State]]
) -> None:
    way, good_since, let_in_at = Returning(settings, attempts, lighter=lighter), None, None
    wait_s = return_wait_s(settings, attempts)
    for after_s, state in [*looks, *[(5.0, State.SERVING)] * int(4 + (wait_s + settings.return_ramp_s) / 2)]:
        before = way.share
        way.tick(state, after_s)
        good_since = None if state is State.HUNG else way.now if good_since is None else good_since
        if way.share > before:
            assert good_since is not None
            assert before > 0 or way.now - good_since >= wait_s
            let_in_at = way.now if before == 0 else let_in_at
            assert let_in_at is not None
            if settings.return_ramp_s:
                # One tick to make the weight low, which the ramp has begun to count at.
                assert way.share <= ramp_share(way.now - let_in_at + 5.0, settings.return_ramp_s)
                assert before > 0 or way.share == RETURN_STEPS[0] or lighter
    assert (way.share, way.leases) == (1.0, [])


@given(st.floats(0, 200), st.sampled_from([0.0, 1.0, 30.0, 300.0]))
def test_the_way_back_is_a_quarter_a_half_and_all(elapsed_s: float, ramp_s: float) -> None:
    share = ramp_share(elapsed_s, ramp_s)
    if elapsed_s >= ramp_s:
        assert share == 1.0
    else:
        assert share == (0.25 if elapsed_s < ramp_s / 2 else 0.5)


@given(st.sampled_from([0.0, 1.0, 30.0, 700.0]), st.integers(-1, 50))
def test_who_was_taken_out_often_waits_longer_each_time_up_to_a_bound(cooldown_s: float, attempts: int) -> None:
    guards = GuardsSettings(cooldown_s=cooldown_s)
    wait_s = return_wait_s(guards, attempts)
    assert cooldown_s <= wait_s <= max(MAX_RETURN_WAIT_S, cooldown_s)
    assert return_wait_s(guards, attempts + 1) in (wait_s, min(2 * wait_s, max(MAX_RETURN_WAIT_S, cooldown_s)))
    assert return_wait_s(guards, 1) == cooldown_s
    assert return_wait_s(guards, 2) == min(2 * cooldown_s, max(MAX_RETURN_WAIT_S, cooldown_s))


# Attempts and quarantine


LEASES = st.lists(
    st.builds(
        lambda name, knob, drained: Lease(
            1, name, Target("g", name, "p"), knob, "p", SERVE, DRAIN if drained else SERVE, "why", 0.0, 1.0
        ),
        st.sampled_from("abc"),
        st.sampled_from([Knob.ADMISSION, Knob.TAINT]),
        st.booleans(),
    ),
    max_size=5,
)


@given(LEASES, st.dictionaries(st.sampled_from("abc"), st.integers(0, 9)), st.integers(2, 8))
def test_in_quarantine_is_whoever_is_drained_and_was_often_enough_and_a_person_is_called(
    leases: list[Lease], attempts: dict[str, int], after: int
) -> None:
    kept = quarantined(leases, attempts, GuardsSettings(quarantine_after=after))
    drained = {lease.backend for lease in leases if lease.knob is Knob.ADMISSION and lease.written == DRAIN}
    assert kept == {name: n for name, n in attempts.items() if name in drained and n >= after}
    assert {(s.backend, s.severity.value, s.evidence["attempts"]) for s in symptoms(kept)} == {
        (n, "page", c) for n, c in kept.items()
    }


@settings(max_examples=15)
@given(
    st.lists(st.tuples(st.sampled_from([1.0, 600.0, ATTEMPT_MEMORY_S, ATTEMPT_MEMORY_S - 1]), st.sampled_from("ab")), max_size=12)
)
def test_attempts_are_remembered_for_an_hour_after_the_last_whatever_restarts(removals: list[tuple[float, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        now, expected = 1_000.0, dict[str, tuple[int, float]]()
        for after_s, name in removals:
            now += after_s
            ledger = Ledger(Path(folder) / "l.db")
            count, last = expected.get(name, (0, 0.0))
            expected[name] = (count + 1 if now - last < ATTEMPT_MEMORY_S else 1, now)
            assert ledger.count_attempt(name, now) == expected[name][0]
            assert ledger.attempts(now) == {n: c for n, (c, at) in expected.items() if now - at < ATTEMPT_MEMORY_S}
            ledger.close()


# Minimum samples


@pytest.mark.parametrize(("count", "heard"), [(19.0, False), (20.0, True)])
@given(data=st.data())
def test_a_pool_is_judged_by_twenty_requests_and_not_by_fewer(count: float, heard: bool, data: st.DataObject) -> None:
    failed = data.draw(st.floats(1.0, count))
    run = Run(slo_guardian.POLICY, SloGuardianParams())
    few = window(10.0, ok=count - failed, errors=failed, ttft={2.5: count})
    assert bool(run.tick(situation(seen("a"), recent={"a": few}))) == heard


@given(st.sampled_from([0.0, 199.0, 200.0, 5_000.0]))
def test_a_speed_is_one_of_two_hundred_tokens_and_not_of_fewer(tokens: float) -> None:
    spoken = {"a": window(itl={0.16: 300.0}, generated_tokens=tokens), "b": window(itl={0.02: 300.0}, generated_tokens=900.0)}
    wanted = Run(token_rate_weighting.POLICY, TokenRateWeightingParams()).tick(situation(seen("a"), seen("b"), windows=spoken))
    assert bool(wanted) == (tokens >= 200)


@given(st.floats(0, 200), st.floats(0.26, 1.0))
def test_a_breaker_opens_by_share_only_over_enough_requests(count: float, share: float) -> None:
    recent = window(10.0, ok=count * (1 - share), errors=count * share)
    opened = step_breaker(Breaker(), seen("a"), recent, 0.0, GATE, 1.0).state is BreakerState.OPEN
    finished = recent.taken
    assert finished is not None
    assert opened == (finished[0] >= GATE.breaker_min_requests and finished[1] > GATE.breaker_error_ratio * finished[0])


# Whose wish counts


WISHES = st.lists(
    st.builds(
        lambda policy, name, knob, value, mode: DesiredState(policy, name, knob, value, "why", mode, ("x",), 0.0),
        st.sampled_from(["p", "q", "r"]),
        st.sampled_from("ab"),
        st.sampled_from([Knob.WEIGHT, Knob.BATCH_WINDOW_S, Knob.DEGRADE_LEVEL, Knob.CONCURRENCY_LIMIT, Knob.REPLICAS]),
        st.sampled_from([0.0, 0.25, 1.0, 3.0]),
        st.sampled_from(Mode),
    ),
    max_size=12,
).map(tuple)


@given(WISHES)
def test_a_policy_that_only_observes_changes_nothing_of_what_is_enforced(wishes: tuple[DesiredState, ...]) -> None:
    enforced = tuple(wish for wish in wishes if wish.mode is Mode.ENFORCE)
    others = tuple(wish for wish in wishes if wish.mode is not Mode.ENFORCE)
    assert resolve(wishes) == (*resolve(enforced), *others)


@given(WISHES)
def test_of_what_is_enforced_each_knob_gets_its_most_restrictive_wish(wishes: tuple[DesiredState, ...]) -> None:
    resolved = {(w.backend, w.knob): w for w in resolve(wishes) if w.mode is Mode.ENFORCE}
    for wish in wishes:
        if wish.mode is Mode.ENFORCE:
            kept = resolved.pop((wish.backend, wish.knob), None) or next(
                w for w in resolve(wishes) if (w.backend, w.knob) == (wish.backend, wish.knob) and w.mode is Mode.ENFORCE
            )
            assert RESTRICTION[wish.knob](kept.value) <= RESTRICTION[wish.knob](wish.value)
    assert resolved == {}
