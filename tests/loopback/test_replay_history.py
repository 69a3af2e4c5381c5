"""The history of a Prometheus as it is told by a transport in memory: gaps, large answers, nonsense, our own series."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tailkeeper_exporter import catalog
from tailkeeper_exporter.clients import Clients
from tailkeeper_watchdog.core import PolicySetting, Rules
from tailkeeper_watchdog.model import Backend, Mode, Slo, Target
from tailkeeper_watchdog.policy_params import GpuHealthGateParams
from tailkeeper_watchdog.records.in_force import InForce
from tailkeeper_watchdog.replay import from_prometheus
from tailkeeper_watchdog.replay.from_prometheus import Range
from tailkeeper_watchdog.replay.simulated import Decider, NothingToReplayError
from tailkeeper_watchdog.settings import GuardsSettings, WatchedBackend, Weights
from tests.vllm_history import Vllm, samples

START = 1_780_000_000.0
Answer = tuple[int, str]
"""Status and body."""
Series = dict[str, tuple[dict[str, str], list[tuple[float, float]]]]


class MemoryPrometheus:
    """A fake of the query API (labelled so): range selectors over samples in memory. It knows matchers, and no functions."""

    def __init__(self) -> None:
        self.series: Series = {}
        self.largest = 10**9
        self.told: dict[str, Any] = {}
        self.queries: list[str] = []
        self.broken: Callable[[str], Answer | None] = lambda query: None

    def add(self, name: str, labels: dict[str, str], at: float, value: float) -> None:
        key = name + json.dumps(labels, sort_keys=True)
        self.series.setdefault(key, ({"__name__": name, **labels}, []))[1].append((at, value))

    def engines(self, *engines: Vllm, seconds: float) -> None:
        for (name, labels, value), at in samples(engines, START, seconds, 15.0):
            self.add(name, labels, at, value)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        parts = urlsplit(str(request.url))
        if parts.path != "/api/v1/query":
            told = self.told.get(parts.path)
            return httpx.Response(404 if told is None else 200, stream=httpx.ByteStream(json.dumps(told).encode()))
        asked = {k: v[0] for k, v in parse_qs(parts.query).items()}
        self.queries.append(asked["query"])
        broken = self.broken(asked["query"])
        status, body = broken if broken is not None else self._answer(asked["query"], float(asked["time"]))
        return httpx.Response(status, stream=httpx.ByteStream(body.encode()))

    def _answer(self, query: str, end: float) -> Answer:
        selector, length = re.findall(r"([a-z_]*\{[^}]*\}|llm_[a-z_]+)\[(\d+)m?s\]", query)[0]
        seconds = float(length) / (1_000 if f"{length}ms" in query else 1)
        rows = []
        for labels, points in self.series.values():
            inside = [(at, str(value)) for at, value in points if end - seconds <= at <= end]
            if inside and matches(selector, labels):
                rows.append({"metric": labels, "values": inside})
        if sum(len(row["values"]) for row in rows) > self.largest:
            return 422, json.dumps({"status": "error", "error": "query processing would load too many samples"})
        return 200, json.dumps({"status": "success", "data": {"result": rows}})


def matches(selector: str, labels: dict[str, str]) -> bool:
    name, _, inside = selector.rstrip("}").partition("{")
    wanted = re.findall(r'(\w+)(=~|=)"((?:[^"\\]|\\.)*)"', inside) + ([("__name__", "=", name)] if name else [])
    return all(
        re.fullmatch(text, labels.get(label, "")) if kind == "=~" else labels.get(label, "") == text
        for label, kind, text in wanted
    )


@pytest.fixture
def prometheus(monkeypatch: pytest.MonkeyPatch) -> MemoryPrometheus:
    server = MemoryPrometheus()
    monkeypatch.setattr(from_prometheus, "Clients", lambda: Clients(httpx.MockTransport(server)))
    return server


async def replay(seconds: float, decider: Decider | None = None) -> dict[str, Any]:
    return await from_prometheus.replay(Range("http://prometheus", START, START + seconds), decider, lambda line: None)


def decided(*backends: WatchedBackend) -> Decider:
    fleet = {b.name: Backend(b.name, "m", (Target("edge", b.name, "llm"),)) for b in backends}
    rules = Rules(
        Slo(),
        Weights().model_dump(),
        {"gpu_health_gate": PolicySetting(Mode.ENFORCE, GpuHealthGateParams())},
        3.0,
    )
    return Decider("mine.yaml", InForce(rules, GuardsSettings(), 5.0), fleet, {}, backends)


async def test_engines_are_found_by_their_names_and_a_gap_stays_a_gap(prometheus: MemoryPrometheus) -> None:
    prometheus.engines(Vllm("a:8000"), Vllm("b:8000", silent=(300, 500)), seconds=900)
    report = await replay(900)
    seen = {b["backend"]: (b["seen_s"], b["unseen_s"]) for b in report["backends"]}
    assert seen["a:8000"] == (900, 0)
    # Three scrapes may be missed before what is known is too old: the gap of 200 s less those 45 s.
    assert seen["b:8000"][1] == pytest.approx(165, abs=15)
    assert {f["kind"] for f in report["findings"] if f["backend"] == "b:8000"} == {"telemetry_lost", "advice"}


TARGETS = {"activeTargets": [{"labels": {"instance": i}, "scrapeInterval": s} for i, s in (("a:8000", "1m30s"), ("x", "1h"))]}
AT_VICTORIA_METRICS = {"labels": {"instance": "a:8000"}, "discoveredLabels": {"__scrape_interval__": "1m"}}
CONFIG = {"yaml": "global:\n  scrape_interval: 30s\n  scrape_timeout: 10s\n"}


@pytest.mark.parametrize(
    ("told", "interval_s"),
    [
        ({"/api/v1/targets": {"data": TARGETS}, "/api/v1/status/config": {"data": CONFIG}}, 90),
        ({"/api/v1/targets": {"data": {"activeTargets": []}}, "/api/v1/status/config": {"data": CONFIG}}, 30),
        ({"/api/v1/targets": {"data": {"activeTargets": []}}, "/api/v1/status/config": {"data": {"yaml": "global: {}"}}}, 15),
        ({"/api/v1/targets": {"data": {"activeTargets": [AT_VICTORIA_METRICS]}}}, 60),
        ({"/api/v1/targets": 3}, 15),
        ({}, 15),
    ],
)
async def test_a_tick_is_the_servers_scrape_interval(
    prometheus: MemoryPrometheus, told: dict[str, Any], interval_s: float
) -> None:
    prometheus.engines(Vllm("a:8000"), seconds=300)
    prometheus.told = told
    assert (await replay(300))["source"]["interval_s"] == interval_s


async def test_every_key_of_the_report_is_in_its_documentation(prometheus: MemoryPrometheus) -> None:
    prometheus.engines(Vllm("a:8000", slow=(60, 300)), seconds=300)
    report = await replay(300)
    page = (Path(__file__).parents[2] / "docs" / "replay.md").read_text()
    assert [key for key in report if f"`{key}`" not in page] == []
    assert set(report["source"]) == {"kind", "where", "decides", "interval_s", "engines"}
    assert json.loads(json.dumps(report, allow_nan=False)) == report


async def test_a_standstill_is_advice_and_never_a_hang(prometheus: MemoryPrometheus) -> None:
    prometheus.engines(Vllm("a:8000"), Vllm("b:8000", frozen=(300, 420)), seconds=900)
    report = await replay(900)
    (advice,) = [f for f in report["findings"] if f["kind"] == "advice"]
    assert advice["backend"] == "b:8000"
    assert "would have been probed: 9 in flight and no progress" in advice["summary"]
    assert 300 < advice["since"] - START <= 345
    assert 420 <= advice["until"] - START <= 450
    assert not {"hung", "down"} & {f["kind"] for f in report["findings"]}
    assert report["decisions"] == []


async def test_an_idle_engine_stands_still_and_nobody_minds(prometheus: MemoryPrometheus) -> None:
    for number in range(61):
        for name in ("running", "waiting"):
            prometheus.add(f"vllm:num_requests_{name}", {"instance": "a:8000", "job": "j"}, START + 15 * number, 0.0)
    report = await replay(900)
    assert report["findings"] == []
    (only,) = report["backends"]
    assert only["states_s"] == {"serving": 900}
    assert only["sla_kept"] is None, "without a request nothing was kept and nothing broken"


async def test_an_answer_that_is_too_large_is_asked_for_in_halves(prometheus: MemoryPrometheus) -> None:
    prometheus.engines(Vllm("a:8000"), seconds=900)
    whole = await replay(900)
    prometheus.largest = 700
    again = await replay(900)
    assert again["backends"] == whole["backends"]
    assert again["backends"][0]["requests"] == 60 * 30


async def test_a_day_of_engines_too_large_to_be_found_at_once_is_asked_for_in_halves(prometheus: MemoryPrometheus) -> None:
    prometheus.engines(Vllm("a:8000"), Vllm("b:8000", silent=(0, 3_000)), seconds=3_600)
    prometheus.largest = 200
    report = await replay(3_600)
    assert [b["backend"] for b in report["backends"]] == ["a:8000", "b:8000"]
    assert any("[3600s]" in query for query in prometheus.queries), "the whole was asked for first"


async def test_where_the_server_was_away_no_engine_is_blamed(prometheus: MemoryPrometheus) -> None:
    prometheus.engines(Vllm("a:8000"), seconds=900)
    for _, points in prometheus.series.values():
        points[:] = [(at, value) for at, value in points if at <= START + 300]
    report = await replay(900)
    (lost,) = [f for f in report["findings"] if f["kind"] == "telemetry_lost"]
    assert lost["evidence"]["why"] == "the server has no sample of it"


async def test_a_finding_is_told_as_it_was_at_its_gravest_and_not_at_its_end(prometheus: MemoryPrometheus) -> None:
    prometheus.engines(Vllm("a:8000", slow=(3_600, 6_000), partly_slow=(6_000, 9_000)), seconds=9_000)
    (burn,) = [f for f in (await replay(9_000))["findings"] if f["kind"] == "slo_burn" and f["signal"] == "ttft"]
    assert burn["severity"] == "page"
    assert "in the last hour" in burn["summary"]
    assert burn["evidence"]["rule"] == "slow", "the end of it was milder"


async def test_one_backend_that_the_server_does_not_answer_for_does_not_cost_the_others(prometheus: MemoryPrometheus) -> None:
    prometheus.engines(Vllm("a:8000"), Vllm("b:8000"), seconds=300)
    prometheus.broken = lambda query: (500, "") if 'instance="b:8000"' in query else None
    report = await replay(300)
    assert {b["backend"]: b["requests"] for b in report["backends"]} == {"a:8000": 600, "b:8000": None}
    assert any("1 of 2 backends" in line for line in report["unknown"])


@pytest.mark.parametrize("stretches", [1, 2])
async def test_one_stretch_without_any_answer_does_not_cost_the_rest(prometheus: MemoryPrometheus, stretches: int) -> None:
    prometheus.engines(Vllm("a:8000"), seconds=4_500)
    reads = 0

    def broken(query: str) -> Answer | None:
        nonlocal reads
        reads += 'instance="a:8000"' in query
        return (500, "") if 1 < reads <= 1 + stretches else None

    prometheus.broken = broken
    if stretches > 1:
        with pytest.raises(NothingToReplayError, match="http_500"):
            await replay(4_500)
        return
    report = await replay(4_500)
    assert any("1 of 1 backends" in line for line in report["unknown"])
    assert report["backends"][0]["seen_s"] > 3_000


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((500, ""), "http_500"),
        ((401, ""), "HTTP 401: the credential is not accepted; check the file that --auth names, or name one"),
        ((403, ""), "--auth bearer_file=FILE"),
        ((400, '{"error": "a wrong query"}'), "http_400: a wrong query"),
        ((200, "<html>"), "no JSON"),
        ((200, '{"status": "success"}'), "not that of Prometheus"),
        ((200, '{"status": "success", "data": {"result": []}}'), "no series of an engine"),
    ],
)
async def test_a_server_that_tells_nothing_is_said_with_its_reason(
    prometheus: MemoryPrometheus, answer: Answer, said: str
) -> None:
    prometheus.broken = lambda query: answer
    with pytest.raises(NothingToReplayError, match=said):
        await replay(300)


def exporter_page(prometheus: MemoryPrometheus, backend: str, at: float, state: str) -> None:
    labels = {"backend": backend, "instance": "exporter:9400", "job": "tailkeeper"}
    for one in ("serving", "hung"):
        prometheus.add(catalog.BACKEND_STATE.name, labels | {"state": one}, at, float(one == state))
    prometheus.add(catalog.RUNNING.name, labels | {"model": "m"}, at, 4.0)
    prometheus.add(catalog.REQUESTS.name, labels | {"model": "m", "outcome": "ok"}, at, (at - START) * 2)


async def test_where_our_exporter_was_its_word_is_taken_and_the_configuration_decides(prometheus: MemoryPrometheus) -> None:
    for number in range(61):
        at = START + 15 * number
        for name in "abcd":
            exporter_page(prometheus, name, at, "hung" if name == "b" and 300 <= at - START < 480 else "serving")
    backends = [WatchedBackend(name=name, engine="vllm", url=f"http://{name}:8000") for name in "abcde"]
    prometheus.engines(Vllm("e:8000"), seconds=900)
    report = await replay(900, decided(*backends, WatchedBackend(name="f", engine="vllm", url="http://f:8000")))
    assert report["source"]["engines"] == {**dict.fromkeys("abcd", "our exporter"), "e": "vllm"}
    (hung,) = [f for f in report["findings"] if f["kind"] == "hung"]
    assert (hung["backend"], hung["since"] - START) == ("b", 300)
    verdicts = [(d["backend"], d["knob"], d["verdict"], d["to"]) for d in report["decisions"]]
    assert verdicts[0] == ("b", "admission", "applied", "drain")
    assert verdicts[-1][2] == "released"
    assert "f: neither our exporter's series nor its engine's own are there" in report["unknown"]


async def test_a_router_that_passes_on_its_workers_series_is_no_engine(prometheus: MemoryPrometheus) -> None:
    for number in range(21):
        labels = {"instance": "router:80", "job": "j", "server": "http://a:8000"}
        prometheus.add("vllm:num_requests_running", labels, START + 15 * number, 1.0)
    with pytest.raises(NothingToReplayError):
        await replay(300)
