"""Failed requests never make a backend look better: whatever fails beside the same work, the score does not rise."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Histogram, present
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.core import Memory, Rules, score_fleet
from tailkeeper_watchdog.model import Backend, BackendObservation, FleetSnapshot, HealthScore, RequestRecord, Slo
from tailkeeper_watchdog.samples import OUTCOME_SLOT
from tailkeeper_watchdog.scoring.history import History, add, over, take_sample
from tailkeeper_watchdog.scoring.hscore import FACTORS, score

BOUNDS = (0.1, 0.5, 1.0, 2.5, inf)
ROUNDING = 1e-9

counts = st.integers(0, 2_000)
finished = st.fixed_dictionaries(
    {}, optional={"ok": counts, "error": counts, "rejected": counts, "aborted": counts}
)  # an engine need not tell every outcome
latencies = st.none() | st.lists(st.integers(0, 200), min_size=len(BOUNDS), max_size=len(BOUNDS))
ratios = st.none() | st.floats(0, 1)
weights = st.lists(st.floats(0, 1), min_size=4, max_size=4).filter(lambda w: sum(w) > 0.01)
slos = st.floats(0.01, 100)


def scored(
    done: Mapping[str, int], ttft: list[int] | None, cpu: float | None, uptime: float | None, shares: list[float], slo_s: float
) -> HealthScore:
    """The score of a backend that did ``done`` within a minute."""
    zero = dict.fromkeys(done, 0)
    newest = _seen(done, ttft, cpu)
    history = add(add(History(), take_sample(_seen(zero, ttft and [0] * len(ttft), cpu), 0.0)), take_sample(newest, 60.0))
    weighed = dict(zip(FACTORS, shares, strict=True))
    return score(newest, over(history, 60.0, uptime), weighed, Slo(ttft_p99_s=slo_s), "a")


def _seen(done: Mapping[str, int], ttft: list[int] | None, cpu: float | None) -> BackendObservation:
    readings = {OUTCOME_SLOT[outcome]: present(float(n), 0.0) for outcome, n in done.items()}
    if cpu is not None:
        readings[catalog.CPU_USAGE.name] = present(cpu, 0.0)
    cumulative = None if ttft is None else tuple(float(sum(ttft[: i + 1])) for i in range(len(ttft)))
    histograms = {} if cumulative is None else {catalog.TTFT.name: Histogram(BOUNDS, cumulative, 0.0)}
    return BackendObservation("a", State.SERVING, 0.0, None, readings, histograms)


@given(finished, st.sampled_from(["error", "rejected"]), st.integers(1, 5_000), latencies, ratios, ratios, weights, slos)
def test_failed_requests_in_a_window_never_raise_the_score(
    done: dict[str, int],
    outcome: str,
    more: int,
    ttft: list[int] | None,
    cpu: float | None,
    uptime: float | None,
    shares: list[float],
    slo_s: float,
) -> None:
    before = scored(done, ttft, cpu, uptime, shares, slo_s)
    after = scored({**done, outcome: done.get(outcome, 0) + more}, ttft, cpu, uptime, shares, slo_s)
    if before.hscore is None and done.get("ok"):
        return  # an engine that begins to tell its failures makes the score known, and most of its requests may be well
    # Where nothing was known before, failures alone may make the score known, and then it is as bad as it can be.
    known_before = 0.0 if before.hscore is None else before.hscore
    assert after.hscore is None or after.hscore <= known_before + ROUNDING


@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=60),
    st.lists(st.tuples(st.sampled_from(["error", "rejected", "aborted", None]), st.floats(0, 100)), max_size=60),
)
def test_failed_requests_never_lower_the_exact_p99(good: list[float], bad: list[tuple[str | None, float]]) -> None:
    """A refusal is quick, and many of them would make any P99 a good one."""
    served = tuple(RequestRecord("a", "ok", value, value, value) for value in good)
    failed = tuple(RequestRecord("a", outcome, value, value, value) for outcome, value in bad)
    rules = Rules(Slo(), dict.fromkeys(FACTORS, 0.25), {}, 3.0)
    snapshot = FleetSnapshot(1, 10.0, 10.0, (Backend("a"),), {})
    _, without_failures = score_fleet(snapshot, served, Memory(), rules)
    _, with_failures = score_fleet(snapshot, (*failed, *served), Memory(), rules)
    assert with_failures.exact == without_failures.exact


@given(st.integers(1, 5_000), st.integers(0, 5_000), latencies, ratios, ratios, slos)
def test_failing_altogether_is_never_better_than_being_slow(
    ok: int, errors: int, ttft: list[int] | None, cpu: float | None, uptime: float | None, slo_s: float
) -> None:
    shares = [0.35, 0.40, 0.15, 0.10]
    slow = scored({"ok": ok, "error": errors}, ttft, cpu, uptime, shares, slo_s)
    failing = scored({"ok": 0, "error": ok + errors}, ttft and [0] * len(ttft), cpu, uptime, shares, slo_s)

    assert slow.hscore is not None
    assert failing.hscore is not None
    assert failing.hscore <= slow.hscore + ROUNDING
