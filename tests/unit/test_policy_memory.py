"""The two policies that act on memory pressure: the breaker, and the caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tailkeeper_exporter.readings import absent, present
from tailkeeper_watchdog.model import DRAIN, BackendObservation, GpuObservation, Knob, KnobValue
from tailkeeper_watchdog.policies import cache_offload, memory_breaker
from tailkeeper_watchdog.policies.memory_breaker import TAINT
from tailkeeper_watchdog.policy_params import CacheOffloadParams, MemoryBreakerParams
from tailkeeper_watchdog.window import Window
from tests.unit.situations import Run, seen, situation, window

Wants = dict[tuple[str, Knob], KnobValue]
PREEMPTING = window(10.0, preemptions=20.0)


def breaker(run: Run, pressures: list[tuple[float, float | None]], recent: Window | None = None) -> list[Wants]:
    """What is wanted at each (seconds, pressure); a pressure of None is one that is not told."""
    wants = []
    for at, pressure in pressures:
        observed = seen("a") if pressure is None else seen("a", vram_pressure=pressure)
        wants.append(run.tick(situation(observed, now=1_000.0 + at, recent={"a": recent} if recent else {})))
    return wants


def new_breaker(**params: float) -> Run:
    return Run(memory_breaker.POLICY, MemoryBreakerParams(**params))


LEVEL1 = {("a", Knob.ANNOTATION): "oom-risk=level1"}
LEVEL2 = {("a", Knob.ADMISSION): DRAIN, ("a", Knob.ANNOTATION): "oom-risk=level2"}


def test_eighty_percent_for_thirty_seconds_is_noted() -> None:
    assert breaker(new_breaker(), [(0, 0.8), (29.9, 0.85), (30, 0.8)]) == [{}, {}, LEVEL1]


def test_ninety_percent_for_ten_seconds_stops_new_work_and_after_the_grace_the_node_is_tainted() -> None:
    wants = breaker(new_breaker(), [(0, 0.9), (9.9, 0.95), (10, 0.9), (14.9, 0.9), (15, 0.9)], PREEMPTING)

    assert wants == [{}, {}, LEVEL2, LEVEL2, {**LEVEL2, ("a", Knob.TAINT): TAINT}]


def test_a_dip_begins_the_waiting_anew() -> None:
    assert breaker(new_breaker(), [(0, 0.95), (9, 0.89), (10, 0.95), (19, 0.95)])[-1] == {}


def test_a_gap_in_the_evidence_begins_the_waiting_anew() -> None:
    assert breaker(new_breaker(), [(0, 0.95), (5, None), (12, 0.95), (21, 0.95)])[-1] == {}


def test_what_is_not_told_wants_nothing_though_it_did_a_moment_ago() -> None:
    assert breaker(new_breaker(), [(0, 0.95), (10, 0.95), (11, None)]) == [{}, LEVEL2, {}]


def test_a_level_ends_only_five_points_below_its_limit() -> None:
    wants = breaker(new_breaker(), [(0, 0.95), (10, 0.95), (40, 0.86), (50, 0.849), (60, 0.76), (70, 0.74)])

    assert wants[2] == LEVEL2
    assert wants[3:5] == [LEVEL1, LEVEL1]
    assert wants[5] == {}


def gpu(copying: float | None = None, ecc: float | None = None) -> GpuObservation:
    nothing = (absent(),) * 9
    return GpuObservation(
        "GPU-1",
        *nothing[:8],
        memory_copy_ratio=absent() if copying is None else present(copying, 0.0),
        ecc_single_bit_total=absent() if ecc is None else present(ecc, 0.0),
    )


def with_gpu(observed: BackendObservation, device: GpuObservation) -> BackendObservation:
    return replace(observed, gpus=(device,))


@pytest.mark.parametrize(
    ("before", "after", "recent", "signal"),
    [
        (gpu(), gpu(), None, None),
        (gpu(), gpu(), PREEMPTING, "preemptions"),
        (gpu(), gpu(), window(10.0, ttft={5.0: 100}), "latency"),
        (gpu(0.2), gpu(0.9), None, "memory_copy"),
        (gpu(0.9), gpu(0.85), None, None),
        (gpu(ecc=7), gpu(ecc=8), None, "ecc_errors"),
        (gpu(ecc=7), gpu(ecc=7), None, None),
    ],
)
def test_a_drain_says_which_second_signal_agrees(
    before: GpuObservation, after: GpuObservation, recent: Window | None, signal: str | None
) -> None:
    run = new_breaker()
    given = {"a": recent} if recent else {}
    run.tick(situation(with_gpu(seen("a", vram_pressure=0.95), before), now=0.0, recent=given))
    run.tick(situation(with_gpu(seen("a", vram_pressure=0.95), after), now=10.0, recent=given))

    (drain,) = [wish for wish in run.desired if wish.knob is Knob.ADMISSION]
    assert drain.signals == (("memory_pressure",) if signal is None else ("memory_pressure", signal))


def test_without_a_second_signal_no_node_is_tainted() -> None:
    wants = breaker(new_breaker(), [(0, 0.95), (10, 0.95), (30, 0.95)])
    assert ("a", Knob.TAINT) not in wants[-1]


# Caches


def new_offload(**params: object) -> Run:
    return Run(cache_offload.POLICY, CacheOffloadParams.model_validate(params))


def modes(run: Run, looks: Sequence[tuple[float, float | None, float]]) -> list[KnobValue | None]:
    """The cache mode at each (seconds, pressure, requests waiting)."""
    found = []
    for at, pressure, waiting in looks:
        observed = seen("a", waiting=waiting) if pressure is None else seen("a", vram_pressure=pressure, waiting=waiting)
        found.append(run.tick(situation(observed, now=1_000.0 + at)).get(("a", Knob.CACHE_MODE)))
    return found


def test_ten_seconds_of_pressure_bring_the_first_tier_and_thirty_more_the_next() -> None:
    run = new_offload(tiers=["local", "redis", "object"])
    looks = [(0, 0.8, 3), (9, 0.9, 3), (10, 0.8, 3), (39, 0.9, 3), (40, 0.9, 3), (70, 0.9, 3), (200, 0.9, 3)]

    assert modes(run, looks) == [None, None, "local", "local", "redis", "object", "object"]


def test_a_warm_cache_is_kept_under_load_and_given_up_tier_by_tier() -> None:
    run = new_offload(tiers=["local", "redis"])
    modes(run, [(0, 0.9, 3), (10, 0.9, 3), (40, 0.9, 3)])

    assert modes(run, [(50, 0.5, 3), (200, 0.5, 3)]) == ["redis", "redis"]  # requests wait
    assert modes(run, [(210, 0.5, 0), (269, 0.5, 0), (270, 0.5, 0), (330, 0.5, 0)]) == ["redis", "redis", "local", None]


def test_pressure_that_is_not_known_wants_nothing_and_forgets_no_tier() -> None:
    run = new_offload(tiers=["local", "redis"])
    modes(run, [(0, 0.9, 3), (10, 0.9, 3)])

    assert modes(run, [(20, None, 3), (21, 0.7, 3)]) == [None, "local"]


def test_waiting_that_is_not_known_is_not_idle() -> None:
    run = new_offload()
    modes(run, [(0, 0.9, 3), (10, 0.9, 3)])
    for at in (20.0, 100.0, 200.0):
        wants = run.tick(situation(seen("a", vram_pressure=0.2), now=1_000.0 + at))
        assert wants == {("a", Knob.CACHE_MODE): "local"}
