"""A page may count whatever it likes: no number of one backend stops a tick of all, or changes what another one is worth."""

from __future__ import annotations

from math import inf

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Histogram, present
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.columns import GAUGES, p99_by_backend
from tailkeeper_watchdog.core import Memory, PolicySetting, Rules, attribute, decide_all, detect_all, keep_book, score_fleet
from tailkeeper_watchdog.model import Backend, BackendObservation, FleetSnapshot, HealthScore, Mode, Slo, Target
from tailkeeper_watchdog.policies import POLICIES
from tailkeeper_watchdog.samples import COUNTERS
from tailkeeper_watchdog.settings import PoliciesSettings

RULES = Rules(
    Slo(),
    {"latency": 0.35, "error_rate": 0.4, "cpu_usage": 0.15, "uptime": 0.1},
    {policy.name: PolicySetting(Mode.ENFORCE, getattr(PoliciesSettings(), policy.name).params) for policy in POLICIES},
    3.0,
)
BACKENDS = tuple(Backend(name, "m", (Target("edge", name, "pool"),)) for name in ("hostile", "well"))
KEPT = (catalog.TTFT.name, catalog.ITL.name, catalog.LATENCY.name, catalog.STEP_TIME.name, catalog.PREPROCESS_TIME.name)
NUMBERS = st.sampled_from([0.0, 1.0, 40.0, 5e-324, 2.0**63, 2.0**64, 1e300, 1.7e308, inf])
FINITE_BOUNDS = st.lists(st.sampled_from([-inf, -1.0, 0.0, 5e-324, 0.1, 1.0, 1.7e308]), unique=True, max_size=3).map(sorted)


@st.composite
def pages(draw: st.DrawFn) -> BackendObservation:
    told = st.sampled_from([*GAUGES, *COUNTERS])
    readings = {name: present(value, 0.0) for name, value in draw(st.dictionaries(told, NUMBERS)).items()}
    histograms = {}
    for name in draw(st.sets(st.sampled_from(KEPT))):
        bounds = (*draw(FINITE_BOUNDS), inf)
        counts = tuple(draw(NUMBERS) for _ in bounds)
        counts = tuple(sorted(counts)) if draw(st.booleans()) else counts
        histograms[name] = Histogram(bounds, counts, draw(NUMBERS) * draw(st.sampled_from([1.0, -1.0])))
    return BackendObservation("hostile", draw(st.sampled_from([State.SERVING, State.HUNG])), 0.0, None, readings, histograms)


def well_at(number: int) -> BackendObservation:
    counters = {name: present(50.0 * number, 0.0) for name in COUNTERS[:1]}
    bounds, counts = (0.1, 0.2, 0.4, inf), (0.0, 40.0 * number, 50.0 * number, 50.0 * number)
    ttft = Histogram(bounds, counts, 8.0 * number)
    return BackendObservation("well", State.SERVING, 0.0, None, counters, {catalog.TTFT.name: ttft})


def scores_of_the_other(told: list[BackendObservation]) -> list[HealthScore]:
    memory, scores = Memory(), []
    for number, hostile in enumerate(told):
        now = 1_000.0 + 61.0 * number
        snapshot = FleetSnapshot(number, now, now, BACKENDS, {"hostile": hostile, "well": well_at(number)})
        memory, situation = score_fleet(snapshot, (), memory, RULES)
        memory, symptoms = detect_all(situation, memory, ())
        memory, _ = decide_all(situation, memory, RULES)
        memory = attribute(keep_book(memory, symptoms, situation), (), (), situation)
        for signal in catalog.SIGNALS:
            found = p99_by_backend(situation, signal)
            alone = {name: p99 for name in ("hostile", "well") if (p99 := situation.p99(name, signal)) is not None}
            assert found == {name: p99 for name, p99 in alone.items() if p99.value == p99.value}
        scores.append(situation.scores["well"])
    return scores


def counted(number: float) -> BackendObservation:
    ttft = Histogram((0.1, inf), (0.0, number), 1.0)
    return BackendObservation("hostile", State.SERVING, 0.0, histograms={catalog.TTFT.name: ttft})


@settings(deadline=None, max_examples=60)
@given(st.lists(pages(), min_size=2, max_size=4))
@example([counted(0.0), counted(2.0**63)])
@example([counted(0.0), counted(inf), counted(inf)])
def test_a_tick_is_whole_whatever_a_page_counts(told: list[BackendObservation]) -> None:
    quiet = BackendObservation("hostile", State.SERVING, 0.0)
    assert scores_of_the_other(told) == scores_of_the_other([quiet] * len(told))
