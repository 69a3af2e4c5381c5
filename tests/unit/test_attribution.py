"""The arithmetic of causes: exact shares, what explains what, and what nobody can say."""

from __future__ import annotations

from itertools import permutations
from math import fsum, nan

import numpy as np
import pytest

from tailkeeper_watchdog.attribution.changes import MAX_CLAIM, RECENT_S, Change, candidates, configured, kept, of_decision
from tailkeeper_watchdog.attribution.combine import attribute
from tailkeeper_watchdog.attribution.hand_down import ERRORS, Given
from tailkeeper_watchdog.attribution.request_log import ROW, RequestLog, Sample
from tailkeeper_watchdog.attribution.resources import RESOURCES, STAGE_MEANS, compared, rank, stage_rises
from tailkeeper_watchdog.attribution.segments import Values, alone, segment_shift
from tailkeeper_watchdog.attribution.shapley import shapley
from tailkeeper_watchdog.attribution.stages import Staged, own_share, p99, stage_shift
from tailkeeper_watchdog.attribution.words import RESOURCE_WORDS, causes, evidence, rank_error, said, sentence
from tailkeeper_watchdog.model import DRAIN, SERVE, Backend, Decision, Knob, KnobValue, Outcome, RequestRecord, Share
from tests.incidents import FAULTS, incident

RNG = np.random.default_rng


def by_definition(worth: np.ndarray, players: int) -> list[float]:
    """Over all orders of joining, what each adds on average."""
    added = [0.0] * players
    orders = list(permutations(range(players)))
    for order in orders:
        mask = 0
        for player in order:
            added[player] += float(worth[mask | 1 << player] - worth[mask]) / len(orders)
            mask |= 1 << player
    return added


@pytest.mark.parametrize("players", [1, 2, 4, 5])
def test_shapley_is_the_average_over_all_orders(players: int) -> None:
    worth = RNG(players).normal(size=1 << players)
    assert shapley(worth) == pytest.approx(by_definition(worth, players))


@pytest.mark.parametrize("size", [0, 1, 3, 2_048])
def test_a_table_that_is_none_or_of_too_many_players_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"worth: {size} values"):
        shapley(np.zeros(size))


def _staged(**parts: np.ndarray) -> Staged:
    return Staged(np.zeros(0, ROW), sum(parts.values(), np.zeros(next(iter(parts.values())).size)), parts)


def test_a_stage_that_did_not_change_has_no_part_in_the_shift() -> None:
    queue, prefill = RNG(1).exponential(0.1, 1_000), RNG(2).exponential(0.5, 1_000)
    shift = stage_shift(_staged(queue=queue, prefill=prefill), _staged(queue=queue, prefill=3 * prefill), RNG(0))
    assert shift.seconds["queue"] == 0.0
    assert shift.seconds["prefill"] + shift.residual_s == pytest.approx(shift.shift_s)
    assert shift.shift_s == pytest.approx(p99(queue + 3 * prefill) - p99(queue + prefill))


def test_the_stages_and_the_residual_add_up_to_the_shift() -> None:
    before = _staged(queue=RNG(1).exponential(0.1, 800), prefill=RNG(2).exponential(0.5, 800), network=RNG(3).random(800))
    now = _staged(queue=RNG(4).exponential(0.9, 300), prefill=RNG(5).exponential(0.7, 300), network=RNG(6).random(300))
    shift = stage_shift(before, now, RNG(0))
    assert fsum([*shift.seconds.values(), shift.residual_s]) == pytest.approx(shift.shift_s)
    assert shift.seconds["queue"] > shift.seconds["prefill"] > abs(shift.seconds["network"])


def test_behind_a_tap_the_time_in_the_engine_is_shared_with_the_tokens_ahead() -> None:
    rows = np.zeros(3, ROW)
    rows["prompt_tokens"], rows["cached_tokens"] = [1_000, 1_000, nan], [0, 500, nan]
    rows["backlog_tokens"] = [3_000, 500, 3_000]
    assert own_share(rows).tolist() == [0.25, 0.5, 1.0]


def _mixture_p99(values: list[np.ndarray], masses: list[float]) -> float:
    """P99 of a mixture by sorting it, to judge the bisection by."""
    pooled = np.concatenate(values)
    weights = np.concatenate([np.full(v.size, m / v.size) for v, m in zip(values, masses, strict=True) if v.size])
    order = np.argsort(pooled, kind="stable")
    reached = np.cumsum(weights[order]) >= 0.99 * weights.sum() - 1e-12
    return float(pooled[order][np.argmax(reached)])


def test_mix_and_within_of_segments_are_exact() -> None:
    before = Values(np.concatenate([RNG(1).random(700), 2 + RNG(2).random(300)]), np.repeat([1, 2], [700, 300]))
    now = Values(np.concatenate([RNG(3).random(300), 4 + RNG(4).random(200)]), np.repeat([1, 2], [300, 200]))
    players = [[before.of[:700], now.of[:300]], [before.of[700:], now.of[300:]]]
    masses = [[0.7, 0.6], [0.3, 0.4]]
    worth = [
        _mixture_p99([players[s][mask >> (2 + s) & 1] for s in (0, 1)], [masses[s][mask >> s & 1] for s in (0, 1)])
        for mask in range(16)
    ]
    mix_a, mix_b, within_a, within_b = shapley(np.array(worth))
    found = {p.value: p for p in segment_shift(before, now, [1, 2], ("none", "a", "b"))}
    assert (found["a"].mix, found["a"].within) == pytest.approx((mix_a, within_a))
    assert (found["b"].mix, found["b"].within) == pytest.approx((mix_b, within_b))
    assert found["other"].total == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("factor_of_one", "factor_of_the_others", "expected"),
    [(4.0, 1.0, pytest.approx(1.0, abs=0.15)), (4.0, 4.0, 0.0), (1.0, 1.0, 0.0)],
)
def test_a_segment_explains_what_is_gone_without_it(factor_of_one: float, factor_of_the_others: float, expected: object) -> None:
    codes = np.repeat([1, 2], [500, 4_500])
    times = RNG(1).lognormal(0.0, 0.5, 5_000)
    slower = np.where(codes == 1, factor_of_one, factor_of_the_others) * RNG(2).permutation(times)
    assert alone(Values(times, codes), Values(slower, codes), [1]) == expected


def _line(**values: float) -> np.ndarray:
    return np.array([values.get(name, nan) for name in (*(r.name for r in RESOURCES), *STAGE_MEANS)])


@pytest.mark.parametrize(
    ("now", "usual", "peers", "named"),
    [
        ({"gpu_throttled": 1.0}, {"gpu_throttled": 0.0}, {"gpu_throttled": 0.0}, True),
        ({"gpu_throttled": 1.0}, {"gpu_throttled": 1.0}, {"gpu_throttled": 1.0}, False),
        ({"gpu_sm_clock": 1.2e9}, {"gpu_sm_clock": 1.9e9}, {"gpu_sm_clock": 1.9e9}, True),
        ({"gpu_sm_clock": 1.95e9}, {"gpu_sm_clock": 1.9e9}, {"gpu_sm_clock": 1.9e9}, False),
        ({"cpu_usage": 0.42}, {"cpu_usage": 0.4}, {"cpu_usage": 0.4}, False),
        ({"cpu_usage": 0.95}, {}, {"cpu_usage": 0.3}, True),
        ({"cpu_usage": 0.95}, {}, {}, False),
        ({}, {"cpu_usage": 0.4}, {"cpu_usage": 0.4}, False),
    ],
)
def test_what_is_unusual_against_itself_and_its_pool_is_evidence(
    now: dict[str, float], usual: dict[str, float], peers: dict[str, float], named: bool
) -> None:
    found = rank(compared(_line(**now), np.stack([_line(**usual)] * 10), [_line(**peers)] * 3))
    assert [e.name for e in found] == (list(now) if named else [])
    assert all(0 < e.strength <= 1 for e in found)


def test_a_change_of_the_whole_pool_counts_half() -> None:
    usual = np.stack([_line(cpu_usage=0.3)] * 10)
    (mine,) = rank(compared(_line(cpu_usage=0.9), usual, [_line(cpu_usage=0.3)] * 3))
    (all_of_us,) = rank(compared(_line(cpu_usage=0.9), usual, [_line(cpu_usage=0.9)] * 3))
    assert all_of_us.strength == pytest.approx(0.5 * mine.strength / (0.5 + 0.5 * 0.75))


def test_only_changes_shortly_before_are_candidates_and_age_weakens_them() -> None:
    changes = (
        Change("deploy", "old", 0.0),
        Change("config", "az b", 900.0),
        Change("action", "weight 1", 1_190.0),
        Change("x", "late", 1_300.0),
    )
    found = candidates(changes, 1_200.0)
    assert [(c.text, c.age_s) for c in found] == [("weight 1", 10.0), ("az b", 300.0)]
    assert MAX_CLAIM >= found[0].claim > found[1].claim > 0
    assert [c.text for c in kept(changes, (), 2 * RECENT_S + 1)] == ["az b", "weight 1", "late"]


def test_a_new_label_is_a_deploy_or_a_change_of_configuration() -> None:
    before = Backend("a", "llama", labels={"canary_revision": "v1", "az": "1"})
    after = Backend("a", "llama-2", labels={"canary_revision": "v2", "az": "2"})
    assert [(c.kind, c.text) for c in configured(before, after, 1.0)] == [
        ("deploy", "model llama-2"),
        ("config", "az 2"),
        ("deploy", "canary_revision v2"),
    ]


@pytest.mark.parametrize(
    ("knob", "before", "after", "verdict", "told"),
    [
        (Knob.WEIGHT, 0.5, 1.0, Outcome.APPLIED, True),
        (Knob.WEIGHT, 0.5, 1.0, Outcome.RELEASED, True),
        (Knob.WEIGHT, 0.5, 1.0, Outcome.REFUSED, False),
        (Knob.WEIGHT, 0.5, 1.0, Outcome.OBSERVED, False),
        (Knob.WEIGHT, 1.0, 0.5, Outcome.APPLIED, False),
        (Knob.ADMISSION, SERVE, DRAIN, Outcome.APPLIED, False),
        (Knob.ADMISSION, DRAIN, SERVE, Outcome.RELEASED, True),
        (Knob.CACHE_MODE, None, "warm", Outcome.APPLIED, True),
    ],
)
def test_only_what_we_did_and_what_brought_more_to_do_is_a_change(
    knob: Knob, before: KnobValue | None, after: KnobValue, verdict: Outcome, told: bool
) -> None:
    decision = Decision(1, 0.0, 1, "slo_guardian", "a", knob, before, after, verdict, "why")
    assert (of_decision(decision, 1.0) is not None) == told


def test_what_we_do_as_a_finding_opens_is_the_answer_and_not_the_cause() -> None:
    at_once = (Change("action", "weight 1", 100.0), Change("deploy", "model b", 100.0))
    assert [c.text for c in candidates(at_once, 100.0)] == ["model b"]


def _total(shares: tuple[Share, ...]) -> float:
    return fsum(s.share for s in shares)


def test_without_anything_all_is_unknown() -> None:
    assert attribute(Given("ttft"), 1).shares == (Share("unknown", "unknown", 1.0, 0.0),)


def test_without_records_gauges_and_means_are_told_with_less_confidence() -> None:
    usual = np.stack([_line(gpu_throttled=0.0, queue=0.1, prefill=0.2)] * 10)
    line = _line(gpu_throttled=1.0, queue=0.1, prefill=0.9)
    given = Given("ttft", resources=rank(compared(line, usual, [usual[0]] * 3)), stage_rises=stage_rises(line, usual))
    found = attribute(given, 1)
    assert given.stage_rises == {"prefill": pytest.approx(0.7)}
    assert (found.shares[0].dimension, found.shares[0].value) == ("resource", "gpu_throttled")
    assert all(s.confidence <= 0.5 for s in found.shares)
    assert _total(found.shares) == pytest.approx(1.0, abs=1e-9)


def _failing(part_of_b: float, count: int = 3_000) -> Sample:
    rng = RNG(5)
    log = RequestLog()
    log.extend(
        [
            RequestRecord(
                "a",
                "error" if tenant == "b" and rng.random() < part_of_b else "ok",
                0.1,
                0.01,
                1.0,
                start_unix_s=float(i),
                tenant=tenant,
            )
            for i, tenant in enumerate(rng.choice(["a", "b", "c"], count))
        ],
        1.0,
        10_000,
    )
    return log.between(0.0, 2.0)


def test_the_tenant_whose_requests_fail_is_named() -> None:
    given = Given(ERRORS, _failing(0.0), _failing(0.5))
    found = attribute(given, 1)
    assert (found.shares[0].dimension, found.shares[0].value) == ("tenant", "b")
    assert found.shares[0].share > 0.8
    assert "The share of failed requests went from 0" in sentence(found, given)


def test_the_same_seed_gives_the_same_shares_and_another_hardly_others() -> None:
    given = incident("tenant", 3).given
    once, again, other = attribute(given, 1).shares, attribute(given, 1).shares, attribute(given, 2).shares
    assert once == again
    assert (once[0].dimension, once[0].value) == (other[0].dimension, other[0].value)


def test_the_sentence_and_the_evidence_say_what_was_compared() -> None:
    given = incident("throttle", 3).given
    found = attribute(given, 1)
    assert sentence(found, given).startswith("Mostly throttled GPU clocks (")
    told = evidence(found, given)
    assert found.shift is not None
    assert told["records"] == {"before": found.shift.samples[0], "now": found.shift.samples[1]}
    assert told["resources"][0]["resource"] == "gpu_throttled"
    assert set(told["stages_s"]) >= {"queue", "prefill", "unknown"}
    assert rank_error(5_000) == pytest.approx(0.00276, abs=1e-5)


def test_causes_are_one_line() -> None:
    shares = (Share("unknown", "unknown", 0.1, 0.9), Share("tenant", "x", 0.7, 0.6), Share("stage", "queue", 0.2, 0.9))
    assert causes(shares) == "tenant x 70%, stage queue 20%, unknown 10%; confidence medium"
    assert causes(()) == ""


@pytest.mark.parametrize(
    ("dimension", "value", "words"),
    [
        ("resource", "gpu_sm_clock", "the clock of the GPU's multiprocessors"),
        ("resource", "of_tomorrow", "of tomorrow"),
        ("canary_revision", "gpu_sm_clock", "canary revision gpu_sm_clock"),
        ("unknown", "unknown", "unknown"),
    ],
)
def test_what_a_share_is_of_is_said_in_words_and_a_persons_own_names_as_they_are(dimension: str, value: str, words: str) -> None:
    assert said(Share(dimension, value, 1.0, 1.0)) == words


def test_every_resource_has_words() -> None:
    assert {resource.name for resource in RESOURCES} <= set(RESOURCE_WORDS)
    assert not [words for words in RESOURCE_WORDS.values() if "_" in words]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_cause_is_named_first(fault: str) -> None:
    """A few of each, seeded; the 200 of the published table are in tests/loopback/test_incidents.py."""
    right = 0
    for seed in range(100, 104):
        planted = incident(fault, seed)
        shares = attribute(planted.given, seed).shares
        assert _total(shares) == pytest.approx(1.0, abs=1e-9)
        right += (shares[0].dimension, shares[0].value) == planted.expected
    assert right >= 3
