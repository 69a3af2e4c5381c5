"""Pools over shards: each falls to one, as a whole, whoever asks; few move where the number of shards changes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_watchdog.settings import GatewayRef, WatchedBackend
from tailkeeper_watchdog.shard import MAX_SHARDS, Shard, divided, owner_of, shard_named, split_pools, units_of

KINDS = {"edge": "haproxy", "hook": "webhook", "engines": "engine"}
UNITS = st.text(min_size=1, max_size=30)
NUMBERS = st.integers(1, MAX_SHARDS)


def backend(number: int, pool: int | None) -> WatchedBackend:
    place = () if pool is None else (GatewayRef(name="edge", server=f"pool{pool}/s{number}"),)
    return WatchedBackend(name=f"b{number}", engine="vllm", url=f"http://10.0.0.1:{number + 1}", gateway=place)


@given(UNITS, NUMBERS)
def test_a_pool_falls_to_one_of_the_shards_and_stays_or_moves_to_the_new_one(unit: str, of: int) -> None:
    before = owner_of(unit, of)
    assert 0 <= before < of
    assert owner_of(unit, of + 1) in (before, of)


@given(st.lists(st.tuples(st.integers(0, 500), st.none() | st.integers(0, 20)), unique_by=lambda one: one[0]), NUMBERS)
def test_every_backend_is_watched_by_exactly_one_and_no_pool_is_split(fleet: list[tuple[int, int | None]], of: int) -> None:
    backends = tuple(backend(number, pool) for number, pool in fleet)
    watched = [divided(backends, Shard(index, of), KINDS) for index in range(of)]
    assert Counter(one.name for own, _ in watched for one in own) == Counter(one.name for one in backends)
    for own, others in watched:
        ours, theirs = ({units_of(one, KINDS) for one in some} for some in (own, others))
        assert not ours & theirs
        assert len(own) + len(others) == len(backends)
    assert split_pools(backends, KINDS, of) == ()


@pytest.mark.parametrize("of", [2, 3, 7, 16])
def test_shards_get_about_the_same_and_one_more_takes_its_share_and_no_more(of: int) -> None:
    units = [f"edge:pool-{number}" for number in range(3_000)]
    counts = Counter(owner_of(unit, of) for unit in units)
    assert min(counts[index] for index in range(of)) > 0.7 * len(units) / of
    assert max(counts.values()) < 1.3 * len(units) / of
    moved = sum(owner_of(unit, of) != owner_of(unit, of + 1) for unit in units)
    assert 0.7 < moved / (len(units) / (of + 1)) < 1.3


def test_where_a_pool_falls_is_the_same_in_every_process_and_version() -> None:
    """Python's own hash differs from one start to the next. These numbers must never change: two versions would share a pool."""
    assert [owner_of(f"edge:pool-{number}", 3) for number in range(12)] == KNOWN


KNOWN = [2, 0, 1, 1, 1, 2, 1, 1, 1, 1, 1, 0]


@pytest.mark.parametrize(("text", "shard"), [("0/1", Shard(0, 1)), ("2/3", Shard(2, 3)), ("63/64", Shard(63, 64))])
def test_a_shard_is_named_by_index_and_number_from_0(text: str, shard: Shard) -> None:
    assert shard_named(text) == shard
    assert str(shard) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("3/3", "the last one is 2/3, for they are counted from 0"),
        ("0/0", "0 shards are not possible; allowed are 1 to 64"),
        ("0/65", "65 shards are not possible"),
        ("1", "must be INDEX/NUMBER, counted from 0: of three shards 0/3, 1/3 and 2/3"),
        ("", "must be INDEX/NUMBER"),
        ("-1/3", "must be INDEX/NUMBER"),
        ("1/3/4", "must be INDEX/NUMBER"),
        ("٠/٣", "must be INDEX/NUMBER"),
        ("a/b", "must be INDEX/NUMBER"),
        ("0" * 5_000 + "/3", "must be INDEX/NUMBER"),
    ],
)
def test_what_names_no_shard_is_refused_with_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace(".", "[.]")):
        shard_named(text)
