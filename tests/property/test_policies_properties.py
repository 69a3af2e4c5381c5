"""Whatever a policy is shown: it does not raise, wants nothing of whom it does not hear, and only what a knob can be."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.forgetting import forget
from tailkeeper_watchdog.model import DRAIN, Knob, KnobValue, Mode, RequestRecord
from tailkeeper_watchdog.policies import POLICIES, Policy
from tailkeeper_watchdog.settings import PoliciesSettings
from tests.unit.situations import seen, situation, window

NAMES = "abc"
ratios = st.floats(-1, 3)
amounts = st.floats(0, 1e6)
gauges = st.fixed_dictionaries(
    {},
    optional={"kv_usage": ratios, "vram_pressure": ratios, "running": amounts, "waiting": amounts},
)
spreads = st.dictionaries(st.sampled_from([0.005, 0.05, 0.5, 5.0, 50.0]), st.floats(0, 1e4), max_size=3)
windows = st.builds(
    window,
    st.sampled_from([0.5, 10.0, 60.0]),
    ok=st.none() | amounts,
    errors=amounts,
    ttft=spreads,
    itl=spreads,
    step_time=spreads,
    generated_tokens=amounts,
    preemptions=amounts,
)
records = st.lists(
    st.builds(
        RequestRecord,
        st.just("a"),
        st.sampled_from(["ok", "error", None]),
        st.none() | amounts,
        st.none() | amounts,
        st.none() | amounts,
        start_unix_s=st.none() | st.floats(0, 2e9),
    ),
    max_size=60,
)
knobs = st.dictionaries(
    st.tuples(st.sampled_from(NAMES), st.sampled_from([Knob.REPLICAS, Knob.CONCURRENCY_LIMIT, Knob.BATCH_WINDOW_S])),
    st.floats(0, 100),
    max_size=4,
)


@st.composite
def looks(draw: st.DrawFn) -> dict[str, object]:
    return {
        "gauges": {n: draw(gauges) for n in NAMES},
        "states": {n: draw(st.sampled_from(list(State))) for n in NAMES},
        "ages": {n: draw(st.sampled_from([0.0, 1.0, 30.0])) for n in NAMES},
        "windows": {n: draw(windows) for n in NAMES},
        "records": tuple(draw(records)),
        "knobs": draw(knobs),
        "after_s": draw(st.sampled_from([0.5, 5.0, 30.0, 700.0])),
    }


def is_possible(knob: Knob, value: KnobValue) -> bool:
    if knob is Knob.WEIGHT:
        return isinstance(value, float) and 0.0 < value <= 1.0
    if knob is Knob.ADMISSION:
        return value == DRAIN
    if knob in (Knob.TAINT, Knob.ANNOTATION, Knob.CACHE_MODE):
        return isinstance(value, str) and value != ""
    assert not isinstance(value, str)
    whole = knob is Knob.BATCH_WINDOW_S or value == int(value)
    return value not in (inf, -inf) and value == value and value >= 0 and whole and value is not nan


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@settings(max_examples=20)
@given(seen_in_turn=st.lists(looks(), min_size=1, max_size=6))
def test_a_policy_takes_whatever_comes(policy: Policy, seen_in_turn: list[dict[str, dict[str, object]]]) -> None:
    memory, now = policy.new_memory(), 1_000.0
    params = getattr(PoliciesSettings(), policy.name).params
    for look in seen_in_turn:
        now += look["after_s"]  # type: ignore[operator]
        observations = [
            seen(n, look["states"][n], look["ages"][n], **look["gauges"][n])  # type: ignore[arg-type]
            for n in NAMES
        ]
        at = situation(
            *observations,
            now=now,
            windows=look["windows"],  # type: ignore[arg-type]
            recent=look["windows"],  # type: ignore[arg-type]
            records={"a": look["records"]},  # type: ignore[dict-item]
            knobs=look["knobs"],  # type: ignore[arg-type]
        )
        memory, desired = policy.decide(at, params, Mode.ENFORCE, memory)
        heard = {n for n in NAMES if at.fresh(n) is not None}
        assert {wish.backend for wish in desired} <= heard
        assert {wish.knob for wish in desired} <= set(policy.knobs)
        assert [wish for wish in desired if not is_possible(wish.knob, wish.value)] == []
        assert all(wish.reason and wish.evidence_age_s is not None for wish in desired)
    forget(memory, frozenset(NAMES))
