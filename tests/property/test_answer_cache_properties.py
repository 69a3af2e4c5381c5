"""Whatever is kept and asked for: the cache stays inside its bounds and answers only what it was given, in its time."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from tailkeeper_exporter.tap.cache import TTL_S, CachedAnswer, LocalCache

JSON = ((b"content-type", b"application/json"),)
KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
STEPS = st.lists(
    st.tuples(KEYS, st.one_of(st.none(), st.binary(max_size=1_200)), st.sampled_from([0.0, 1.0, TTL_S / 2, TTL_S])), max_size=60
)


@examples(max_examples=150, deadline=None)
@given(STEPS, st.integers(0, 4_000), st.integers(0, 2_000))
def test_the_bounds_hold_and_only_what_was_put_within_its_time_is_found(
    steps: list[tuple[bytes, bytes | None, float]], max_bytes: int, max_entry_bytes: int
) -> None:
    kept, now, gets = LocalCache(max_bytes, max_entry_bytes), 0.0, 0
    last: dict[bytes, tuple[float, bytes]] = {}
    for key, body, pause in steps:
        now += pause
        if body is None:
            found, gets = kept.get(key, now), gets + 1
            if found is not None:
                put_s, expected = last[key]
                assert found == CachedAnswer(200, JSON, expected)
                assert now - put_s < TTL_S
        elif CachedAnswer(200, JSON, body).size_bytes <= min(max_bytes, max_entry_bytes):
            last[key] = (now, body)
            kept.put(key, CachedAnswer(200, JSON, body), now)
            assert kept.get(key, now) == CachedAnswer(200, JSON, body)
            gets += 1
        assert kept.size_bytes <= max_bytes
        assert kept.hits + kept.misses == gets


def _key(tenant: str | None, authorization: str | None, body: bytes) -> bytes | None:
    return LocalCache(10_000, 10_000).key(tenant, authorization, "POST", "/v1/completions", "", "application/json", body)


PARTS = st.one_of(st.none(), st.text(max_size=8))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=6,
)


@examples(max_examples=150, deadline=None)
@given(PARTS, PARTS, PARTS, PARTS, VALUES, VALUES)
def test_two_requests_share_a_key_only_where_caller_and_question_are_the_same(
    tenant: str | None, other: str | None, auth: str | None, other_auth: str | None, prompt: object, other_prompt: object
) -> None:
    first, second = ({"temperature": 0, "prompt": value} for value in (prompt, other_prompt))
    keys = (_key(tenant, auth, json.dumps(first).encode()), _key(other, other_auth, json.dumps(second).encode()))
    same = (tenant, auth, json.dumps(prompt, sort_keys=True)) == (other, other_auth, json.dumps(other_prompt, sort_keys=True))

    assert None not in keys
    assert (keys[0] == keys[1]) == same


@examples(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.text(max_size=30))
def test_any_body_and_any_type_give_a_key_or_none(body: bytes, content_type: str) -> None:
    kept = LocalCache(10_000, 10_000)
    for kind in (content_type, "application/json"):
        key = kept.key(None, None, "POST", "/v1/embeddings", "", kind, body)
        assert key is None or len(key) == 32
