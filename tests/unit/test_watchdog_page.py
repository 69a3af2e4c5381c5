"""The watchdog's own metrics page: two dialects that strict readers accept, and nothing on it that is not known."""

from __future__ import annotations

import asyncio
import subprocess
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from tailkeeper_exporter import catalog
from tailkeeper_exporter.state import State
from tailkeeper_watchdog import metrics
from tailkeeper_watchdog.api.page import OPENMETRICS, TEXT, TickDurations, WatchdogCollector, render, wants_openmetrics
from tailkeeper_watchdog.api.security import Gate
from tailkeeper_watchdog.model import Outcome
from tailkeeper_watchdog.policies import POLICIES
from tailkeeper_watchdog.shard import Left, Shard
from tests.e2e.real_programs import binary
from tests.scenario.world import World
from tests.unit.watchdog_http import application, client_of, world_at

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)
ACCEPT = [
    ("", TEXT),
    ("*/*", TEXT),
    ("text/plain", TEXT),
    ("text/html,application/xhtml+xml", TEXT),
    ("application/openmetrics-text", OPENMETRICS),
    ("Application/OpenMetrics-Text; Version=1.0.0", OPENMETRICS),
    (PROMETHEUS_2, OPENMETRICS),
    (PROMETHEUS_3, OPENMETRICS),
    ("application/openmetrics-text;q=0.2,text/plain;q=0.9", TEXT),
    ("application/openmetrics-text;q=0", TEXT),
    ("application/openmetrics-text;version=2.0.0", TEXT),
    ("application/openmetrics-text;version=one", TEXT),
    ("application/openmetrics-text;q=high", TEXT),
    ("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited", TEXT),
    (";;;,,,=;q=", TEXT),
    ("application/openmetrics-text;q=nan", TEXT),
    ("x" * 100_000, TEXT),
]


async def _page(world: World, accept: str = "", durations: TickDurations | None = None) -> tuple[str, str]:
    """Of a watchdog that is one shard of three, which has every series that there is."""
    part = Shard(0, 3), Left(7, frozenset(), ())
    async with client_of(Gate(application(world, durations, part=lambda: part), None)) as client:
        answer = await client.get("/metrics", headers={"accept": accept})
    assert answer.status_code == 200
    return answer.text, answer.headers["content-type"]


def _families(text: str, content_type: str) -> dict[str, Metric]:
    read: Any = read_openmetrics if content_type == OPENMETRICS else read_text
    return {family.name: family for family in read(text)}


def _values(families: dict[str, Metric], name: str) -> dict[tuple[str, ...], float]:
    """By label values in their declared order; the name as on the page. One reader sorts labels, the other does not."""
    declared = next(d for d in metrics.WATCHDOG_CATALOG if name.startswith(d.name))
    order = (*declared.label_names, "le")
    return {
        tuple(sample.labels[label] for label in order if label in sample.labels): sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == name
    }


async def _sick(path: Path) -> World:
    """a hung, b slow, c silent from the start, d well."""
    world = world_at(path)
    world.sick["c"].silent = True
    await world.run(12)
    world.sick["a"].state = State.HUNG
    world.sick["b"].itl_s = 0.2
    await world.run(12)
    return world


@pytest.mark.parametrize(("accept", "dialect"), ACCEPT)
async def test_the_dialect_follows_what_is_asked_for_and_the_body_matches_it(tmp_path: Path, accept: str, dialect: str) -> None:
    world = await _sick(tmp_path)
    text, content_type = await _page(world, accept)
    assert content_type == dialect
    assert text.endswith("# EOF\n") == (dialect == OPENMETRICS)
    families = _families(text, content_type)
    assert _values(families, "tailkeeper_hscore")[("a",)] == 0.0


@given(st.text(st.characters(max_codepoint=255)))
def test_no_accept_header_whatever_makes_the_page_fail(accept: str) -> None:
    assert wants_openmetrics(accept) in (True, False)


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
async def test_every_declared_series_is_on_the_page_and_no_other(tmp_path: Path, accept: str) -> None:
    durations = TickDurations()
    durations.observe(0.003)
    text, content_type = await _page(await _sick(tmp_path), accept, durations)
    on_page = {name.removesuffix("_total") for name in _families(text, content_type)}
    assert on_page == {declared.name.removesuffix("_total") for declared in metrics.WATCHDOG_CATALOG}


async def test_what_is_unknown_is_absent_and_not_zero(tmp_path: Path) -> None:
    text, content_type = await _page(await _sick(tmp_path))
    families = _families(text, content_type)
    for name in (
        "tailkeeper_hscore",
        "tailkeeper_hscore_confidence",
        "tailkeeper_hscore_factor",
        "tailkeeper_backend_p99_seconds",
    ):
        backends = {labels[0] for labels in _values(families, name)}
        assert "d" in backends, name
        assert "c" not in backends, name
    assert ("c",) not in _values(families, "tailkeeper_observation_age_seconds"), "it was never seen"
    assert _values(families, "tailkeeper_desired_weight") == {("a",): 0.0, ("b",): 0.5, ("c",): 1.0, ("d",): 1.0}


async def test_what_costs_most_and_what_the_gateway_has_stand_beside_what_is_wanted(tmp_path: Path) -> None:
    families = _families(*await _page(await _sick(tmp_path)))
    assert _values(families, "tailkeeper_dominant_factor")[("a", "hung")] == 1.0
    actual = _values(families, "tailkeeper_actual_weight")
    assert (actual["a",], actual["d",]) == (0.0, 1.0), "drained and as configured"
    assert 0.0 < actual["b",] < 1.0


async def test_a_weight_that_is_no_share_of_anything_is_absent(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    await world.run(2)
    assert world.loop.latest is not None
    object.__setattr__(world.loop.latest.situation, "actual", {})
    assert _values(_families(*await _page(world)), "tailkeeper_actual_weight") == {}


async def test_the_score_of_an_idle_backend_on_a_busy_node_says_how_little_it_rests_on(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    world.sick["b"].extra[catalog.CPU_USAGE.name] = 0.95
    for name in "ab":
        world.sick[name].ok_per_tick = 0.0 if name == "b" else 20.0
    await world.run(70)
    families = _families(*await _page(world))
    scores, sure = (_values(families, f"tailkeeper_hscore{end}") for end in ("", "_confidence"))
    assert scores[("b",)] < 0.6
    assert sure[("b",)] == pytest.approx(0.25)
    assert sure[("a",)] > 0.8


async def test_an_observation_that_is_lost_tells_its_age(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    await world.run(2)
    world.sick["c"].silent = True
    await world.run(7)
    families = _families(*await _page(world))
    assert _values(families, "tailkeeper_observation_age_seconds")[("c",)] == 7.0
    assert ("c",) not in _values(families, "tailkeeper_hscore")
    assert ("c", "ttft") not in _values(families, "tailkeeper_backend_p99_seconds"), "what was seen last is the past"


async def test_before_the_first_tick_every_decision_is_counted_zero_times(tmp_path: Path) -> None:
    families = _families(*await _page(world_at(tmp_path)))
    counts = _values(families, "tailkeeper_decisions_total")
    turned = {(policy.name, knob.value) for policy in POLICIES for knob in policy.knobs} | {("return", "weight")}
    assert set(counts) == {(policy, knob, outcome.value) for policy, knob in turned for outcome in Outcome}
    assert set(counts.values()) == {0.0}
    assert _values(families, "tailkeeper_hscore") == {}
    assert _values(families, "tailkeeper_tick_duration_seconds_count") == {(): 0.0}


async def test_no_decision_is_counted_under_a_name_that_was_not_there_at_zero(tmp_path: Path) -> None:
    """Otherwise its first occurrence would be no increase."""
    world = await _sick(tmp_path)
    world.sick["a"].state = State.SERVING
    world.sick["b"].itl_s = 0.02
    await world.run(40)
    before = _values(_families(*await _page(World(":memory:", ("x",)))), "tailkeeper_decisions_total")
    after = _values(_families(*await _page(world)), "tailkeeper_decisions_total")
    assert after.keys() == before.keys()
    assert after["gpu_health_gate", "admission", "applied"] == 1
    assert after["return", "weight", "applied"] >= 1


async def test_paused_is_one_while_it_is_on(tmp_path: Path) -> None:
    world = await _sick(tmp_path)
    off = _values(_families(*await _page(world)), "tailkeeper_paused")
    world.switches.pause("by a test")
    on = _values(_families(*await _page(world)), "tailkeeper_paused")
    assert (off, on) == ({(): 0.0}, {(): 1.0})


async def test_a_tick_that_failed_says_nothing_of_what_policies_want(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = await _sick(tmp_path)
    monkeypatch.setattr(world, "collect", None)
    await world.loop.tick()
    families = _families(*await _page(world))
    for name in ("tailkeeper_desired_weight", "tailkeeper_hscore"):
        assert _values(families, name) == {}, name


def test_tick_durations_are_cumulative_buckets() -> None:
    durations = TickDurations()
    for seconds in (0.0005, 0.003, 0.003, 0.7, 60.0):
        durations.observe(seconds)
    text, _ = render(WatchdogCollector(None, durations, {}, False), "")
    families = _families(text.decode(), TEXT)
    buckets = _values(families, "tailkeeper_tick_duration_seconds_bucket")
    assert [buckets[bound,] for bound in ("0.001", "0.0025", "0.005", "1.0", "5.0", "+Inf")] == [1, 1, 3, 4, 4, 5]
    assert _values(families, "tailkeeper_tick_duration_seconds_sum")[()] == pytest.approx(60.7065)


@pytest.mark.parametrize("value", [nan, inf, -inf])
async def test_a_number_that_is_none_is_not_on_the_page(tmp_path: Path, value: float) -> None:
    world = await _sick(tmp_path)
    assert world.loop.latest is not None
    scores = dict(world.loop.latest.situation.scores)
    object.__setattr__(scores["d"], "hscore", value)
    families = _families(*await _page(world))
    assert ("d",) not in _values(families, "tailkeeper_hscore")
    assert ("a",) in _values(families, "tailkeeper_hscore")


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
async def test_hostile_names_of_backends_come_back_as_they_are(tmp_path: Path, accept: str) -> None:
    names = ("a: b", '"} 1\nevil 2', "{{ $labels.x }}", "back\\slash", "ünïcode 🦙", "1e3", "no")
    world = world_at(tmp_path, *names)
    await world.run(2)
    families = _families(*await _page(world, accept))
    assert {labels[0] for labels in _values(families, "tailkeeper_hscore")} == set(names)


@pytest.mark.real
async def test_promtool_finds_nothing_to_say_about_the_page(tmp_path: Path) -> None:
    argv = [binary("promtool"), "check", "metrics"]
    text, _ = await _page(await _sick(tmp_path))
    checked = await asyncio.to_thread(subprocess.run, argv, input=text, capture_output=True, text=True, timeout=60, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


async def test_every_detector_of_what_users_get_tells_quiet_from_found_for_each_of_its_signals(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    world.sick["b"].errors_per_tick = 4.0
    await world.run(240)
    text, _ = await _page(world)
    found = {
        (sample.labels["backend"], sample.labels["detector"], sample.labels["signal"]): sample.value
        for family in read_text(text)
        for sample in family.samples
        if sample.name == metrics.DRIFT_ACTIVE.name
    }
    latency_only = ("growth", "distortion", "zscore", "block_e", "improved_but_broken")
    expected = {(d, "ttft") for d in latency_only} | {("slo_burn", s) for s in ("ttft", "itl", "e2e", "")}
    assert {key[1:] for key in found if key[0] == "a"} == expected
    assert [key for key, value in found.items() if value] == [("b", "slo_burn", "")]
