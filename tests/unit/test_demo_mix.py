"""The kinds of load: whose lengths they have, when they come, and that the engines can take them."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from tailkeeper_demo.engine_stats import FinishReason
from tailkeeper_demo.engine_types import Arrival, EngineParams
from tailkeeper_demo.mix import Mix, rate_per_s, requests
from tailkeeper_demo.trace import Source, TraceRow, arrivals, load_trace
from tests.unit.test_demo_driver import Bench

ROWS = load_trace()
SLO_TTFT_S, SLO_WHOLE_S = 1.2, 30.0


def minute(mix: Mix, seed: int = 7) -> list[TraceRow]:
    return list(requests(mix, users_per_s=10, duration_s=60, seed=seed))


def test_online_is_the_trace_as_it_was() -> None:
    assert minute(Mix.ONLINE) == list(arrivals(ROWS, rate_per_s=10, duration_s=60, seed=7))


@pytest.mark.parametrize("mix", list(Mix))
def test_requests_come_in_order_at_the_promised_rate_and_the_same_for_the_same_seed(mix: Mix) -> None:
    rows = minute(mix)
    assert all(a.at_s <= b.at_s for a, b in itertools.pairwise(rows))
    assert len(rows) / 60 == pytest.approx(rate_per_s(mix, 10), rel=0.02)
    assert rows == minute(mix)
    endless = requests(mix, users_per_s=10, duration_s=None, seed=7)
    assert len(list(itertools.takewhile(lambda row: row.at_s < 90, endless))) > len(rows)


@pytest.mark.parametrize("mix", [Mix.RLHF, Mix.SFT])
def test_users_are_always_there_beside_a_batch(mix: Mix) -> None:
    by_source = Counter(row.source for row in minute(mix))
    assert by_source[Source.ONLINE] == 360
    assert len(by_source) == 2


def test_a_rollout_is_a_wave_of_groups_that_share_a_prompt_and_have_long_answers_of_the_trace() -> None:
    rows = [row for row in minute(Mix.RLHF) if row.source is Source.ROLLOUT]
    waves = {at_s: list(wave) for at_s, wave in itertools.groupby(rows, lambda row: row.at_s)}
    assert len(waves) == 5
    assert min(waves) > 0, "the first does not come with the first request"
    long = {min(row.output_tokens, 600) for row in ROWS if row.output_tokens >= 250}
    for wave in waves.values():
        groups = Counter(row.prompt_key for row in wave)
        assert list(groups.values()) == [8] * 4
        assert all(len({row.prompt_tokens for row in wave if row.prompt_key == key}) == 1 for key in groups)
        assert {row.output_tokens for row in wave} <= long
        assert len({row.output_tokens for row in wave}) > 10, "samples differ in length"
    assert len({row.prompt_key for row in rows}) == 20


def test_an_evaluation_has_long_prompts_of_its_own_and_short_answers() -> None:
    rows = [row for row in minute(Mix.SFT) if row.source is Source.EVALUATION]
    pairs = {(min(r.prompt_tokens, 4000), r.output_tokens) for r in ROWS if r.prompt_tokens >= 1500 and r.output_tokens <= 32}
    assert {(row.prompt_tokens, row.output_tokens) for row in rows} <= pairs
    assert {row.prompt_key for row in rows} == {None}


@pytest.mark.parametrize("mix", list(Mix))
@pytest.mark.parametrize("engines", [4, 3])
def test_four_engines_and_three_of_the_four_keep_the_service_level(mix: Mix, engines: int) -> None:
    """One engine with every n-th request, as a gateway gives them out in turn; its clock is turned."""
    bench = Bench(EngineParams())
    firsts: dict[str, float] = {}
    ends: dict[str, float] = {}

    def note() -> None:
        for token in bench.tokens:
            firsts.setdefault(token.request_id, bench.clock.time())
            if token.finish:
                ends[token.request_id] = bench.clock.time()
        bench.tokens.clear()

    mine = minute(mix, random.Random(1).randrange(100))[::engines]
    for number, row in enumerate(mine):
        while bench.clock.time() < row.at_s:
            bench.clock.turn(min(0.02, row.at_s - bench.clock.time()))
            note()
        bench.driver.submit(
            Arrival(str(number), row.prompt_tokens, row.output_tokens, FinishReason.STOP, row.at_s, row.prompt_key)
        )
    for _ in range(2000):
        bench.clock.turn(0.02)
        note()
    users = [firsts[str(n)] - row.at_s for n, row in enumerate(mine) if row.source is Source.ONLINE]
    batch = [ends[str(n)] - row.at_s for n, row in enumerate(mine) if row.source is not Source.ONLINE]
    assert sum(wait_s > SLO_TTFT_S for wait_s in users) <= 0.005 * len(users)
    assert max(batch, default=0.0) < SLO_WHOLE_S
    assert bench.engine.stats.preemptions == 0
