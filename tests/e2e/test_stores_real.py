"""Two stores that speak Prometheus's API, a real Prometheus and a real VictoriaMetrics, scrape the same exporter and engines.

What the watchdog, `init`, `doctor`, `replay`, the boards and the rules make of either must be the same.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tailkeeper.cli import app
from tailkeeper.config import parse
from tailkeeper.doctor import examine
from tailkeeper.doctor.findings import Mistake
from tailkeeper_alerts.render import RULES_PATH, VLLM_ONLY_PATH, render
from tailkeeper_exporter import catalog
from tailkeeper_exporter.settings import Auth
from tailkeeper_exporter.state import State
from tailkeeper_watchdog import core
from tailkeeper_watchdog.collect.native_pages import NativePages
from tailkeeper_watchdog.collect.prometheus import PrometheusSource
from tailkeeper_watchdog.collect.prometheus_client import PrometheusClient
from tailkeeper_watchdog.core import Memory, Rules
from tailkeeper_watchdog.model import Backend, BackendObservation, FleetSnapshot, Situation, Slo
from tailkeeper_watchdog.settings import PrometheusSource as PrometheusSourceSettings
from tailkeeper_watchdog.settings import WatchedBackend, Weights
from tests.e2e.exporter_process import Running, engine_process, exporter_process
from tests.e2e.real_programs import HttpProgram, RealPrograms, binary, free_port, prometheus, victoria_metrics, wait_until
from tests.e2e.test_board_on_real_prometheus import BOARDS, ONLY_SOMETIMES, _filled, _targets
from tools import catalogue_page

pytestmark = pytest.mark.real

SCRAPES = 7
"""Enough for rate() over eight seconds."""
STORES = ("prometheus", "victoria-metrics")


def job(name: str, *urls: str) -> dict[str, Any]:
    return {"job_name": name, "static_configs": [{"targets": [url.removeprefix("http://") for url in urls]}]}


@dataclass(frozen=True)
class World:
    """What is scraped by all of ``stores``: the engine of ``a`` with our exporter, the engine of ``b`` without."""

    stores: Mapping[str, HttpProgram]
    fleet: tuple[WatchedBackend, ...]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Read only, so shared."""
    tmp_path = tmp_path_factory.mktemp("stores")
    with ExitStack() as stack:
        a, b = (stack.enter_context(engine_process(tokens_per_page=10, running=2)) for _ in "ab")
        backends = [{"name": "a", "engine": "vllm", "url": a.url}, {"name": "d", "engine": "vllm", "url": _nowhere()}]
        exporter = stack.enter_context(exporter_process(backends))
        page = stack.enter_context(catalogue_page.server("127.0.0.1", 0))
        threading.Thread(target=page.serve_forever, daemon=True).start()
        stack.callback(page.shutdown)
        catalogue = f"127.0.0.1:{page.server_address[1]}"
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "900ms"},
            "scrape_configs": [job("tailkeeper", exporter.url), job("llm", a.url, b.url), job("catalogue", catalogue)],
        }
        stores = {
            "prometheus": stack.enter_context(prometheus(config, {}, tmp_path)),
            "victoria-metrics": stack.enter_context(victoria_metrics(config, tmp_path)),
        }
        for store in stores.values():
            wait_until(lambda store=store: _scrapes(store) >= SCRAPES, "enough scrapes")  # type: ignore[misc]
        urls = {"a": a.url, "b": b.url, "d": backends[1]["url"]}
        yield World(stores, tuple(WatchedBackend(name=name, engine="vllm", url=url) for name, url in urls.items()))


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, world: World) -> HttpProgram:
    return world.stores[str(request.param)]


def _nowhere() -> str:
    return f"http://127.0.0.1:{free_port()}"


def _scrapes(store: HttpProgram) -> int:
    rows = store.get("/api/v1/query", query="min(count_over_time(up[1m]))", nocache="1")["data"]["result"]
    return int(rows[0]["value"][1]) if rows else 0


def source_of(url: str, fleet: tuple[WatchedBackend, ...], interval_s: float) -> PrometheusSource:
    """As the watchdog builds it."""
    settings = PrometheusSourceSettings(kind="prometheus", url=url, interval_s=interval_s, auth=Auth())
    names = tuple(backend.name for backend in fleet)
    return PrometheusSource(PrometheusClient(settings), url, names, 3 * interval_s, NativePages(lambda: fleet, interval_s))


async def read(source: PrometheusSource) -> Mapping[str, BackendObservation]:
    collected = await source.collect(0.0, 2.0)
    assert collected.error is None
    return collected.observations


async def test_the_watchdog_reads_the_newest_scrape_and_what_nobody_knows_stays_unknown(store: HttpProgram, world: World) -> None:
    source = source_of(store.url, world.fleet, 1.0)
    await read(source)
    await asyncio.sleep(1.5)  # an engine without an exporter must be seen to move
    seen = await read(source)
    await source.close()
    assert {name: one.state for name, one in seen.items()} == {"a": State.SERVING, "b": State.SERVING, "d": State.DOWN}
    assert all(one.age_s is not None and one.age_s < 3.0 for one in seen.values()), "VictoriaMetrics would give what was 30 s ago"
    assert seen["a"].value(catalog.RUNNING.name) == seen["b"].value(catalog.RUNNING.name) == 2
    assert seen["d"].value(catalog.RUNNING.name) is None


TICKS = 4


async def judged(store: HttpProgram, fleet: tuple[WatchedBackend, ...]) -> tuple[Situation, Mapping[str, BackendObservation]]:
    """What the watchdog makes of some ticks, a second apart."""
    source, memory = source_of(store.url, fleet, 1.0), Memory()
    rules = Rules(Slo(), Weights().model_dump(), {}, 3.0)
    backends = tuple(Backend(one.name) for one in fleet)
    for tick in range(TICKS):
        seen = await read(source)
        snapshot = FleetSnapshot(tick, time.monotonic(), time.time(), backends, seen)
        memory, situation = core.score_fleet(snapshot, (), memory, rules)
        await asyncio.sleep(1.0)
    await source.close()
    return situation, seen


async def test_windows_and_scores_by_one_store_are_those_by_the_other(world: World) -> None:
    (ours, seen), (theirs, also_seen) = await asyncio.gather(*(judged(world.stores[name], world.fleet) for name in STORES))
    for name in ("a", "b", "d"):
        assert sorted(seen[name].values) == sorted(also_seen[name].values)
        assert {h: one.bounds for h, one in seen[name].histograms.items()} == {
            h: one.bounds for h, one in also_seen[name].histograms.items()
        }
        assert [f.name for f in ours.scores[name].factors] == [f.name for f in theirs.scores[name].factors]
        assert ours.scores[name].hscore == pytest.approx(theirs.scores[name].hscore, abs=0.02)
    tokens = [situation.windows["a"].rate(catalog.GENERATED_TOKENS.name) for situation in (ours, theirs)]
    assert tokens[0] == pytest.approx(tokens[1], rel=0.5)
    assert (tokens[0] or 0.0) > 0
    assert theirs.windows["d"].rate(catalog.GENERATED_TOKENS.name) in (None, 0.0)


def test_init_finds_the_engines_and_the_interval(store: HttpProgram, world: World, tmp_path: Path) -> None:
    file = tmp_path / "tailkeeper.yaml"
    result = CliRunner().invoke(app, ["init", "--prometheus", store.url, "--out", str(file)])
    assert result.exit_code == 0, result.output
    text = file.read_text()
    assert all(backend.url in text for backend in world.fleet if backend.name != "d")
    assert f'url: "{store.url}", interval_s: 1.0' in text


def test_doctor_has_nothing_to_say_about_what_is_scraped(store: HttpProgram, world: World, tmp_path: Path) -> None:
    source = {"kind": "prometheus", "url": store.url, "interval_s": 1}
    watchdog = {"listen": f"127.0.0.1:{free_port()}", "state": str(tmp_path / "t.db"), "source": source}
    backends = [{"name": one.name, "engine": "vllm", "url": one.url} for one in world.fleet if one.name != "d"]
    report = examine(parse({"backends": backends, "watchdog": watchdog}), lambda done, of: None, None)
    found = {finding.mistake for finding in report.findings}
    assert not found & {Mistake.PROMETHEUS_UNREACHABLE, Mistake.PROMETHEUS_NOT_SCRAPING, Mistake.STALE_LIMIT_TOO_SMALL}
    # VictoriaMetrics has no rules of its own, and says so by an empty list.
    assert (Mistake.RULES_NOT_LOADED in found) == ("prometheus.yml" in " ".join(p.name for p in store.folder.iterdir()))


def test_the_history_is_read_as_it_was_scraped(store: HttpProgram, world: World) -> None:
    now = time.time()
    given = ["replay", "--prometheus", store.url, "--start", f"{now - 6:.0f}", "--end", f"{now:.0f}", "--json"]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    engines = {one.url.removeprefix("http://") for one in world.fleet if one.name != "d"}
    assert report["source"]["interval_s"] == 1
    assert set(report["source"]["engines"]) == engines
    assert all(one["unseen_s"] <= 1 and one["seen_s"] >= 4 for one in report["backends"])


@pytest.mark.parametrize("path", sorted(BOARDS))
def test_every_query_of_a_board_has_the_same_series_in_both(world: World, path: str) -> None:
    """Numbers may differ where a window is longer than the history: VictoriaMetrics reckons with the time that there is."""
    found = 0
    for where, expr in _targets(BOARDS[path]):
        if where in ONLY_SOMETIMES or "topk" in expr:  # of two that are level either may be the first
            continue
        found += len(_level(world, where, _filled(expr)))
    assert found > 0


def _level(world: World, where: str, query: str) -> set[tuple[tuple[str, str], ...]]:
    """What both have. Of one sample VictoriaMetrics tells a rate and Prometheus none; a few scrapes later both do.

    To VictoriaMetrics a new counter began at 0, so that one which stands still since its first sample has risen, and is there
    where a query asks for more than 0; to Prometheus it has not, and is not.
    """
    given_up = time.monotonic() + 6.0
    while True:
        asked = {"query": query, "time": f"{time.time():.3f}", "nocache": "1"}
        one, other = (_series(world.stores[name].get("/api/v1/query", **asked)) for name in STORES)
        if one == other:
            return one
        if time.monotonic() > given_up:
            assert "increase(" in query, f"{where}: {query}: {one ^ other}"
            assert "> 0" in query, f"{where}: {query}: {one ^ other}"
            assert one < other, f"{where}: {query}: {one - other}"
            return one
        time.sleep(0.5)


def _series(answer: Any) -> set[tuple[tuple[str, str], ...]]:
    """Those with a number: what is none VictoriaMetrics leaves out, and a table of a board then lacks the empty row."""
    assert answer["status"] == "success", answer
    rows = [row for row in answer["data"]["result"] if row["value"][1] != "NaN"]
    return {tuple(sorted((k, v) for k, v in row["metric"].items() if k != "__name__")) for row in rows}


@pytest.mark.parametrize("path", [RULES_PATH, VLLM_ONLY_PATH])
def test_vmalert_takes_our_rules_but_for_what_its_old_version_does_not_know(path: str, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text(render()[path])
    whole = _dry_run(rules)
    unknown = [line for line in whole.stderr.splitlines() if "unknown fields" in line]
    assert whole.returncode == 0 or all(line.endswith("unknown fields in rule: keep_firing_for") for line in unknown), (
        whole.stderr
    )
    rules.write_text("".join(line for line in render()[path].splitlines(True) if "keep_firing_for" not in line))
    assert _dry_run(rules).returncode == 0


def _dry_run(rules: Path) -> subprocess.CompletedProcess[str]:
    argv = [binary("vmalert"), "-dryRun", f"-rule={rules}", "-external.url=http://127.0.0.1"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=30)


def test_what_has_ended_is_unknown_in_time_and_the_engine_itself_is_looked_at_then(programs: RealPrograms) -> None:
    with engine_process(tokens_per_page=10, running=2) as engine, exporter_process(_both(engine)) as exporter:
        config = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "400ms"},
            "scrape_configs": [job("tailkeeper", exporter.url), job("llm", engine.url)],
        }
        stores = (programs.prometheus(config), programs.victoria_metrics(config))
        fleet = tuple(WatchedBackend.model_validate(one) for one in _both(engine))
        sources = [source_of(store.url, fleet, 1.0) for store in stores]

        def states(name: str) -> set[State]:
            return {asyncio.run(read(source))[name].state for source in sources}

        wait_until(lambda: (states("a"), states("d")) == ({State.SERVING}, {State.DOWN}), "seen through the exporter")
        exporter.process.kill()
        exporter.process.wait()
        ended = time.monotonic()
        wait_until(lambda: states("d") == {State.UNKNOWN}, "nobody tells of it any more")
        assert 1.5 < time.monotonic() - ended < 6.0, "three intervals"
        wait_until(lambda: states("a") == {State.SERVING}, "its engine's own series are read", 10.0)
        engine.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: states("a") == {State.UNKNOWN}, "nobody asked it", 10.0)
        engine.process.send_signal(signal.SIGCONT)
        for source in sources:
            asyncio.run(source.close())


def _both(engine: Running) -> list[dict[str, Any]]:
    return [{"name": "a", "engine": "vllm", "url": engine.url}, {"name": "d", "engine": "vllm", "url": "http://127.0.0.1:9"}]
