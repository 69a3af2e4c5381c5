"""A watched backend with a tap: what the tap knows reaches the page, the state, the ring and the access log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import structlog
from prometheus_client import Metric as Family
from prometheus_client.openmetrics import parser as open_metrics_parser
from prometheus_client.samples import Sample

from tailkeeper_exporter import evidence
from tailkeeper_exporter.app import Exporter, build
from tailkeeper_exporter.health import backend_health
from tailkeeper_exporter.metrics_page import Dialect
from tailkeeper_exporter.state import State
from tailkeeper_exporter.tap.meter import Meter
from tailkeeper_exporter.views import Source
from tests.loopback.test_collector import INTERVAL_S, QUIET, backend, settings, state, until, view
from tests.unit.fake_engine import engine
from tests.unit.loopback import reply, serving
from tests.unit.tap_exchanges import TRACE, LocalTaps, exchange, gaps, status

# The strict parser has no types of its own.
open_metrics_families: Callable[[str], Iterable[Family]] = open_metrics_parser.text_string_to_metric_families
TAP = {"tap": {"listen": "127.0.0.1:9500"}}
GENERIC = TAP | {"engine": "generic"}


@dataclass
class Watched:
    exporter: Exporter
    taps: LocalTaps

    async def page(self) -> list[Sample]:
        transport = httpx.ASGITransport(app=self.exporter.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
            answer = await client.get("/metrics", headers={"accept": Dialect.OPEN_METRICS.value})
        return [sample for family in open_metrics_families(answer.text) for sample in family.samples]

    async def value(self, name: str, **labels: str) -> float | None:
        found = [s.value for s in await self.page() if s.name == name and labels.items() <= s.labels.items()]
        assert len(found) <= 1, f"{name} is there {len(found)} times"
        return found[0] if found else None


@asynccontextmanager
async def tapped(url: str, log: Any = QUIET, **more: Any) -> AsyncIterator[Watched]:
    made: list[LocalTaps] = []

    def make(*arguments: Any) -> LocalTaps:
        made.append(LocalTaps(*arguments))
        return made[0]

    async with build((backend(url, **(TAP | more)),), settings(), log=log, make_taps=make).running() as exporter:
        await exporter.ready()
        yield Watched(exporter, made[0])


@asynccontextmanager
async def reporting(taps: LocalTaps, **counts: Any) -> AsyncIterator[None]:
    """Reports a few times a second for as long as the block lasts; a callable is asked anew each time."""

    async def report() -> None:
        while True:
            values = {name: value() if callable(value) else value for name, value in counts.items()}
            taps.statuses["a"] = status(time.monotonic(), **values)
            await asyncio.sleep(0.05)

    task = asyncio.create_task(report())
    try:
        yield
    finally:
        task.cancel()


async def test_a_backend_without_a_page_has_the_taps_metrics_at_zero_and_then_its_requests() -> None:
    async with engine() as fake, tapped(fake.url, engine="generic") as watched:
        ok, failed = {"outcome": "ok", "model": "configured"}, {"outcome": "error", "model": "configured"}
        assert await watched.value("llm_requests_total", **failed) == 0.0
        assert await watched.value("llm_time_to_first_token_seconds_count") == 0.0
        watched.taps.finish(exchange())
        watched.taps.finish(exchange(outcome="error", status=500, end_s=0.001, first_token_s=None, gaps=()))
        assert await watched.value("llm_requests_total", **ok) == 1.0
        assert await watched.value("llm_requests_total", **failed) == 1.0
        assert await watched.value("llm_time_to_first_token_seconds_count") == 1.0
        assert await watched.value("llm_inference_latency_seconds_sum", quantization="unknown") == 0.9
        assert await watched.value("llm_inter_token_latency_seconds_count") == 2.0


async def test_the_openmetrics_page_shows_a_tapped_request_as_an_exemplar() -> None:
    async with engine() as fake, tapped(fake.url, engine="generic") as watched:
        watched.taps.finish(exchange())
        shown = [s for s in await watched.page() if s.exemplar is not None and s.name == "llm_time_to_first_token_seconds_bucket"]
        assert [(s.labels["le"], s.exemplar.labels) for s in shown if s.exemplar] == [
            ("0.32", {"trace_id": TRACE, "request_id": "r-1"})
        ]


async def test_what_the_engines_page_gives_is_the_pages_and_the_tap_fills_in_the_rest() -> None:
    async with engine(finished=7, generated=70) as fake, tapped(fake.url) as watched:
        for _ in range(3):
            watched.taps.finish(exchange())
        assert await watched.value("llm_generated_tokens_total") == 70.0
        assert await watched.value("llm_requests_total", outcome="ok") == 7.0
        # The fake's page has no inter-token times: the tap's stand under the page's own model name, and miss nothing.
        assert await watched.value("llm_inter_token_latency_seconds_count", model="tiny") == 6.0
        assert "llm_inter_token_latency_seconds" not in {
            s.labels["metric"] for s in await watched.page() if s.name == "tailkeeper_exporter_missing_metrics"
        }


async def test_a_page_that_is_lost_hands_nothing_over_to_the_tap_and_takes_nothing_back() -> None:
    async with engine(generated=70) as fake, tapped(fake.url) as watched:
        watched.taps.finish(exchange())
        fake.page = reply(500, {"detail": "no"})
        await until(lambda: not view(watched.exporter).sources[Source.ENGINE].success)
        assert await watched.value("llm_generated_tokens_total") == 70.0
        assert await watched.value("llm_inter_token_latency_seconds_count") == 2.0
        fake.well()
        await until(lambda: view(watched.exporter).sources[Source.ENGINE].success)
        assert await watched.value("llm_generated_tokens_total") == 70.0


async def test_an_engine_that_is_not_read_yet_keeps_its_names_and_the_tap_its_own() -> None:
    async with engine() as fake:
        fake.page = reply(500, {"detail": "no"})
        async with tapped(fake.url, engine="llamacpp") as watched:
            watched.taps.finish(exchange())
            assert await watched.value("llm_generated_tokens_total") is None
            assert await watched.value("llm_requests_total", outcome="ok") == 1.0


async def test_gauges_of_a_backend_without_a_page_are_what_the_tap_has_in_flight_and_in_its_queue() -> None:
    async with engine() as fake, tapped(fake.url, engine="generic") as watched:
        assert await watched.value("llm_requests_running") is None
        watched.taps.statuses["a"] = status(time.monotonic(), running=3, waiting=2, queued=4)
        assert await watched.value("llm_requests_running", model="configured") == 5.0
        assert await watched.value("llm_requests_waiting", model="configured") == 4.0
        watched.taps.statuses["a"] = status(time.monotonic() - 60, running=3)
        assert await watched.value("llm_requests_running") is None


async def test_rates_are_derived_from_what_the_tap_counts() -> None:
    async with engine() as fake, tapped(fake.url, engine="generic") as watched:
        watched.taps.finish(exchange(end_s=500.0))
        await asyncio.sleep(2 * INTERVAL_S)
        for _ in range(5):
            watched.taps.finish(exchange(end_s=500.0))
            await asyncio.sleep(INTERVAL_S)
        assert await watched.value("tailkeeper_exporter_quantile_saturated", signal="e2e") == 1.0
        assert await watched.value("tailkeeper_exporter_quantile_saturated", signal="ttft") == 0.0


async def test_what_is_derived_rests_on_page_and_tap_alike() -> None:
    async with engine(tokens_per_page=3) as fake, tapped(fake.url) as watched:
        for _ in range(5):
            watched.taps.finish(exchange(**gaps(20.0)))
            await asyncio.sleep(INTERVAL_S)
        assert await watched.value("tailkeeper_exporter_quantile_saturated", signal="itl") == 1.0


async def test_tokens_through_the_tap_prove_life_and_spare_the_engine_our_probes() -> None:
    async with (
        engine() as fake,
        tapped(fake.url, engine="generic") as watched,
        reporting(watched.taps, running=1, progress_s=time.monotonic),
    ):
        await state(watched.exporter, State.SERVING)
        await asyncio.sleep(0.3)
        before = fake.asked("/v1/completions")
        await asyncio.sleep(1.5)
        assert fake.asked("/v1/completions") == before, "three intervals, and no probe"
        found = backend_health(view(watched.exporter), time.monotonic())["checks"]
        assert isinstance(found, dict)
        assert found["progress"]["status"] == "pass"


async def test_a_frozen_engine_without_a_page_is_hung_by_the_streams_that_stopped() -> None:
    async with engine() as fake, tapped(fake.url, engine="generic") as watched:
        tokens = [time.monotonic]
        async with reporting(watched.taps, running=2, progress_s=lambda: tokens[0]()):
            await state(watched.exporter, State.SERVING)
            stopped = time.monotonic()
            # Its health page goes on answering: only the tap sees that nothing comes.
            tokens[0], fake.probe = lambda: stopped, _never
            took = await state(watched.exporter, State.HUNG)
            assert took >= 0.9, "not before no_progress_s"
            found = backend_health(view(watched.exporter), time.monotonic())["checks"]
            assert isinstance(found, dict)
            assert (found["progress"]["status"], found["progress"]["reason"]) == ("fail", "no_progress")
            tokens[0] = time.monotonic
            await until(lambda: view(watched.exporter).state.takes_work)


async def _never(seen: object, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


async def test_a_tap_that_no_longer_reports_is_a_failed_source_and_no_dead_backend(monkeypatch: Any) -> None:
    monkeypatch.setattr(evidence, "TAP_STALE_S", 0.3)
    async with engine() as fake, tapped(fake.url, engine="generic") as watched:
        async with reporting(watched.taps, running=2, progress_s=time.monotonic):
            await state(watched.exporter, State.SERVING)
            await until(lambda: Source.TAP in view(watched.exporter).sources)
            assert await watched.value("tailkeeper_exporter_scrape_success", source="tap") == 1.0
            age = await watched.value("tailkeeper_exporter_scrape_age_seconds", source="tap")
            assert age is not None
            assert age < 2.0
        await until(lambda: not view(watched.exporter).sources[Source.TAP].success)
        fake.probe = _never
        await asyncio.sleep(2.0)
        assert view(watched.exporter).state is not State.HUNG
        assert await watched.value("tailkeeper_exporter_scrape_success", source="tap") == 0.0


async def test_a_finished_request_is_in_the_ring_and_in_the_access_log_once(monkeypatch: Any) -> None:
    traced: list[tuple[str, str | None]] = []
    lines: list[MutableMapping[str, Any]] = []

    def keep(_: object, __: str, line: MutableMapping[str, Any]) -> str:
        lines.append(line)
        return ""

    log = structlog.wrap_logger(structlog.ReturnLogger(), processors=[keep])
    async with engine() as fake, tapped(fake.url, log=log, engine="generic") as watched:
        monkeypatch.setattr(watched.exporter.otlp, "on_exchange", lambda ended, gpu: traced.append((ended.request_id, gpu)))
        watched.taps.finish(exchange(tenant="t"))
        watched.taps.finish(exchange(request_id="r-2", method="GET", path="/v1/models", first_token_s=None))
        watched.taps.finish(exchange(request_id="r-3", cache_hit=True, sent_s=None))
        watched.taps.finish(exchange(backend="unknown"))
        records = watched.exporter.ring.since(0, 10).records
        assert [(r.request_id, r.tenant, r.ttft_s, r.gpu) for r in records] == [("r-1", "t", 0.3, None)]
        logged = [line["request_id"] for line in lines if line["event"] == "request"]
        assert logged == ["r-1", "r-2", "r-3"], "what asks for no work, or is cached, is logged"
        assert traced == [("r-1", None), ("r-2", None), ("r-3", None)]
        assert await watched.value("llm_requests_total", outcome="ok") == 2.0


async def test_a_record_says_what_the_backends_labels_say_where_the_request_says_nothing() -> None:
    labels = {"canary_revision": "v1", "tenant": "all", "sensitivity": "3", "az": "az1"}
    async with engine() as fake, tapped(fake.url, engine="generic", model="configured", labels=labels) as watched:
        watched.taps.finish(exchange())
        watched.taps.finish(exchange(canary_revision="v2", tenant="premium", sensitivity=0, model="lora"))
        records = watched.exporter.ring.since(0, 10).records
        told = [(r.canary_revision, r.tenant, r.sensitivity, r.operation, r.model) for r in records]
        assert told == [("v1", "all", 3, None, "configured"), ("v2", "premium", 0, None, "lora")]


async def test_a_bug_costs_one_requests_record_and_is_counted(monkeypatch: Any) -> None:
    async with engine() as fake, tapped(fake.url, engine="generic") as watched:
        with monkeypatch.context() as broken:
            broken.setattr(Meter, "take", lambda self, finished: 1 // 0)
            watched.taps.finish(exchange())
        watched.taps.finish(exchange())
        assert await watched.value("tailkeeper_exporter_invalid_samples_total", reason="internal") == 1.0
        assert await watched.value("llm_requests_total", outcome="ok") == 1.0


async def test_only_backends_with_a_tap_get_one() -> None:
    async with serving(reply(200, {})) as server:
        made: list[tuple[str, ...]] = []

        def make(backends: Any, take: Any) -> LocalTaps:
            made.append(tuple(b.name for b in backends))
            return LocalTaps(backends, take)

        plain, with_tap = backend(server.url), backend(server.url, name="b", **TAP)
        async with build((plain, with_tap), settings(), log=QUIET, make_taps=make).running() as exporter:
            await exporter.ready()
            assert Source.TAP not in exporter.views["a"].sources
        async with build((plain,), settings(), log=QUIET, make_taps=make).running() as exporter:
            assert exporter.taps is None
        assert made == [("b",)]
