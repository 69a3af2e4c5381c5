"""Prometheus mode takes what it can read; a bad series costs only itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from tailkeeper_exporter import catalog
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.collect.native_pages import NativePages
from tailkeeper_watchdog.collect.prometheus import PrometheusSource
from tailkeeper_watchdog.settings import WatchedBackend
from tests.vllm_history import Vllm


def row(name: str, value: object, **labels: str) -> dict[str, Any]:
    return {"metric": {"__name__": name, **labels}, "value": [0, value]}


class FakePrometheus:
    """A fake of the client: series to the first query, times to the second."""

    def __init__(self, bad: dict[str, Any]) -> None:
        self.series = [row(catalog.BACKEND_STATE.name, "1", backend="a", state="serving"), bad]
        self.times = [bad, row("", str(time.time()), backend="a")]

    def custom_query(self, query: str, params: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        return self.times if "timestamp" in query else self.series

    def close(self) -> None:
        """Nothing was opened."""


@pytest.mark.parametrize(
    "bad",
    [
        row(f"{catalog.TTFT.name}_bucket", "3", backend="a"),
        row(f"{catalog.TTFT.name}_bucket", "3", backend="a", le="soon"),
        row(f"{catalog.TTFT.name}_bucket", "3", backend="a", le="NaN"),
        {"value": [0, "1"]},
        {"metric": None, "value": [0, "1"]},
        row(catalog.TTFT.name, "many", backend="a"),
    ],
)
async def test_a_series_that_cannot_be_read_costs_only_itself(bad: dict[str, Any]) -> None:
    source = PrometheusSource(FakePrometheus(bad), "http://prometheus", ("a",), 45.0)
    collected = await source.collect(0.0, 2.0)
    assert collected.error is None
    assert collected.observations["a"].state is State.SERVING
    assert collected.observations["a"].histograms == {}


class EnginesOnly:
    """A fake of the client: no series of ours, and engines' own raw samples to the third question.

    ``times`` are what our exporter's series end with.
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.times: list[dict[str, Any]] = []
        self.questions: list[str] = []
        self.params: list[Mapping[str, Any] | None] = []

    def custom_query(self, query: str, params: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        self.params.append(params)
        if "vllm" not in query:
            return self.times if "timestamp" in query else []
        self.questions.append(query)
        return self.rows

    def close(self) -> None:
        """Nothing was opened."""

    def scrape(self, engine: Vllm, at: float, **labels: str) -> None:
        for name, own, value in engine.page(at, 1.0):
            metric = {"__name__": name, "instance": engine.instance, "job": "llm", **own, **labels}
            self.rows.append({"metric": metric, "values": [[at, str(value)]]})


def watched(*names: str) -> tuple[WatchedBackend, ...]:
    return tuple(WatchedBackend(name=n, engine="vllm", url=f"http://{n}:8000") for n in names)


async def test_a_backend_without_our_exporter_is_read_from_its_engines_own_series() -> None:
    client, fleet = EnginesOnly(), watched("a", "b")
    source = PrometheusSource(client, "http://prometheus", ("a", "b"), 45.0, NativePages(lambda: fleet, 15.0))
    engine = Vllm("a:8000")
    now = time.time()
    client.scrape(engine, now - 20)
    first = (await source.collect(0.0, 2.0)).observations
    assert first["a"].state is State.UNKNOWN, "nobody asked it, and it has not been seen at work"
    assert first["b"].state is State.UNKNOWN
    client.scrape(engine, now - 5)
    seen = (await source.collect(0.0, 2.0)).observations["a"]
    assert seen.state is State.SERVING
    assert seen.age_s == pytest.approx(5, abs=1)
    assert seen.value(catalog.RUNNING.name) == 3
    assert seen.histograms[catalog.TTFT.name].count == 60
    assert "a:8000|b:8000" in client.questions[0]


@pytest.mark.parametrize(("age_s", "looked_at"), [(5.0, False), (44.0, False), (46.0, True), (290.0, True)])
async def test_an_exporter_that_tells_no_more_hides_its_engine_no_longer_than_evidence_lasts(
    age_s: float, looked_at: bool
) -> None:
    client, fleet = EnginesOnly(), watched("a")
    source = PrometheusSource(client, "http://prometheus", ("a",), 45.0, NativePages(lambda: fleet, 15.0))
    client.times = [row("", str(time.time() - age_s), backend="a")]
    await source.collect(0.0, 2.0)
    assert bool(client.questions) is looked_at
    assert client.params == [{"nocache": "1"}] * len(client.params), "VictoriaMetrics would answer as of 30 s ago"


async def test_the_mark_at_the_end_of_a_target_is_no_page_of_it() -> None:
    client, fleet = EnginesOnly(), watched("a")
    source = PrometheusSource(client, "http://prometheus", ("a",), 45.0, NativePages(lambda: fleet, 15.0))
    engine, now = Vllm("a:8000"), time.time()
    for age_s in (40, 25):
        client.scrape(engine, now - age_s)
    for one in list(client.rows):  # as VictoriaMetrics hands it out
        client.rows.append({**one, "values": [[now - 10, "NaN"]]})
    seen = (await source.collect(0.0, 2.0)).observations["a"]
    assert seen.state is State.SERVING
    assert seen.age_s == pytest.approx(25, abs=1)


async def test_an_engine_that_stands_still_is_unknown_without_a_probe_and_stays_so_when_its_clients_give_up() -> None:
    client, fleet = EnginesOnly(), watched("a")
    source = PrometheusSource(client, "http://prometheus", ("a",), 45.0, NativePages(lambda: fleet, 1.0))
    engine, now = Vllm("a:8000"), time.time()
    states = []
    for number in range(8):
        engine.frozen = (0.0, 1e12) if number in (2, 3, 4) else None
        engine.idle = number >= 5
        client.scrape(engine, now - 200 + 20 * number)
    for number in range(8):
        last = now - 200 + 20 * number
        rows, client.rows = client.rows, [r for r in client.rows if r["values"][0][0] <= last]
        source._last = type(source._last)(("a",), 1e6)
        states.append((await source.collect(0.0, 2.0)).observations["a"].state)
        client.rows = rows
    assert states[1] is State.SERVING
    assert states[4:] == [State.UNKNOWN] * 4


async def test_where_our_exporter_tells_the_engines_own_series_are_not_asked_for() -> None:
    client = FakePrometheus(row(catalog.RUNNING.name, "3", backend="a"))
    pages = NativePages(lambda: watched("a"), 15.0)
    source = PrometheusSource(client, "http://prometheus", ("a",), 45.0, pages)
    assert (await source.collect(0.0, 2.0)).observations["a"].state is State.SERVING
    assert list(pages.questions(frozenset({"a"}))) == []


@pytest.mark.parametrize(
    "row", [{}, {"metric": 3}, {"metric": {"instance": "a:8000"}}, {"metric": {"instance": "a:8000"}, "values": 3}]
)
async def test_a_row_that_is_none_costs_only_itself(row: dict[str, Any]) -> None:
    client, fleet = EnginesOnly(), watched("a")
    source = PrometheusSource(client, "http://prometheus", ("a",), 45.0, NativePages(lambda: fleet, 15.0))
    client.rows = [row]
    client.scrape(Vllm("a:8000"), time.time() - 20)
    assert (await source.collect(0.0, 2.0)).error is None


def test_another_backend_under_a_known_name_begins_anew() -> None:
    fleets = iter([watched("a"), (watched("b")[0].model_copy(update={"name": "a"}),)])
    pages = NativePages(lambda: next(fleets), 15.0)
    assert "a:8000" in next(pages.questions(frozenset()))
    question = next(pages.questions(frozenset()))
    assert '"b:8000"' in question


async def test_an_answer_that_comes_between_two_ticks_is_read_at_the_next_one() -> None:
    client, asked = FakePrometheus(row("", "1")), threading.Event()
    go_on, answer = threading.Event(), FakePrometheus.custom_query

    def slow(query: str, params: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        asked.set()
        assert go_on.wait(10)
        return answer(client, query, params)

    client.custom_query = slow  # type: ignore[method-assign]
    source = PrometheusSource(client, "http://prometheus", ("a",), 45.0)
    first = await source.collect(0.0, 0.01)
    assert first.error == "http://prometheus did not answer within 0.01 s"
    go_on.set()
    assert source._busy is not None
    await source._busy
    asked.clear()
    second = await source.collect(0.0, 0.01)
    assert (second.error, second.observations["a"].state) == (None, State.SERVING)
    assert not asked.is_set(), "the answer was there"
    assert (await source.collect(0.0, 2.0)).error is None
    assert asked.is_set()


async def test_one_of_many_asks_for_its_own_backends_by_name_some_hundreds_at_a_time() -> None:
    client = EnginesOnly()
    asked: list[str] = []
    client.custom_query = lambda query, params=None: asked.append(query) or []  # type: ignore[func-returns-value, method-assign]
    names = tuple(f"llm/b.{number}" for number in range(600))
    source = PrometheusSource(client, "http://prometheus", names, 45.0, by_name=True)
    await source.collect(0.0, 2.0)
    assert len(asked) == 6
    assert 'backend=~"llm[/]b[.]0|llm[/]b[.]1|' in asked[0]
    assert "b[.]249|" not in asked[0]
    source.follow(("only",), frozenset(), 0.0)
    asked.clear()
    await source.collect(0.0, 2.0)
    assert [query.partition("backend=~")[2].partition("}")[0] for query in asked] == ['"only"', '"only"']
    source.follow((), frozenset(), 0.0)
    asked.clear()
    await source.collect(0.0, 2.0)
    assert asked == []
