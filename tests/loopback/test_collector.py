"""One backend watched for real, on loopback: what becomes of pages, probes and failures. Intervals are short, waits end."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from tailkeeper_exporter import catalog, collector
from tailkeeper_exporter.app import Exporter, build
from tailkeeper_exporter.health import backend_health
from tailkeeper_exporter.liveness import Why
from tailkeeper_exporter.page_reader import PageReader
from tailkeeper_exporter.readings import absent
from tailkeeper_exporter.series import series_of
from tailkeeper_exporter.settings import BackendSettings, ExporterSettings, GpuSettings
from tailkeeper_exporter.state import State
from tailkeeper_exporter.views import INTERNAL, BackendView, Source
from tests.unit.fake_engine import FakeEngine, engine
from tests.unit.loopback import Handler, head, reply, serving, silence, stream

INTERVAL_S, TIMEOUT_S = 0.1, 0.2
CAPTURE = Path(__file__).parents[1] / "fixtures" / "scrapes"
QUIET = structlog.wrap_logger(structlog.ReturnLogger(), processors=[structlog.processors.JSONRenderer()])


def backend(url: str, **more: Any) -> BackendSettings:
    document = {
        "name": "a",
        "engine": "vllm",
        "url": url,
        "model": "configured",
        "probe": {"interval_s": 0.5, "first_token_timeout_s": 0.2, "health_timeout_s": 0.2},
        "hang": {"no_progress_s": 1.0},
    }
    return BackendSettings.model_validate(document | more)


def settings(**more: Any) -> ExporterSettings:
    document = {"scrape_interval_s": INTERVAL_S, "scrape_timeout_s": TIMEOUT_S, "gpu": {"source": "none"}}
    return ExporterSettings.model_validate(document | more)


@asynccontextmanager
async def watching(*backends: BackendSettings, log: Any = QUIET, **more: Any) -> AsyncIterator[Exporter]:
    async with build(backends, settings(**more), log=log).running() as exporter:
        yield exporter


async def until(holds: Callable[[], object], limit_s: float = 5.0) -> float:
    """Wait until it holds, and say how long that took."""
    started = time.monotonic()
    while not holds():
        assert time.monotonic() - started < limit_s, "it did not come to pass"
        await asyncio.sleep(0.005)
    return time.monotonic() - started


def view(exporter: Exporter) -> BackendView:
    return exporter.views["a"]


async def state(exporter: Exporter, wanted: State, limit_s: float = 5.0) -> float:
    return await until(lambda: view(exporter).state is wanted, limit_s)


def counter(exporter: Exporter, metric: catalog.Metric, **labels: str) -> float | None:
    return view(exporter).counters.get((metric.name, tuple(sorted({"model": "tiny", **labels}.items()))))


def gauge(exporter: Exporter, metric: catalog.Metric, **labels: str) -> float | None:
    reading = view(exporter).gauges.get((metric.name, tuple(sorted(labels.items()))))
    return None if reading is None else reading.at(exporter.now(), view(exporter).stale_after_s).value


async def test_an_idle_engine_is_serving_after_its_first_round_and_has_been_probed_once() -> None:
    async with engine() as fake, watching(backend(fake.url)) as exporter:
        assert exporter.waiting_for() == ("a",)
        await state(exporter, State.SERVING)
        await until(lambda: view(exporter).probe)
        assert exporter.waiting_for() == ()
        assert view(exporter).up is True


async def test_what_the_page_says_is_published_under_the_catalogues_names() -> None:
    async with engine(generated=50, running=2, waiting=1, kv=0.25) as fake, watching(backend(fake.url)) as exporter:
        await until(lambda: view(exporter).counters)
        assert counter(exporter, catalog.GENERATED_TOKENS) == 50
        assert gauge(exporter, catalog.RUNNING, model="tiny") == 2
        assert gauge(exporter, catalog.KV_USAGE, model="tiny") == 0.25
        assert view(exporter).missing  # the fake has fewer metrics than vLLM


async def test_our_own_probes_are_counted_as_probes_and_not_as_requests_or_tokens() -> None:
    async with engine() as fake, watching(backend(fake.url)) as exporter:
        await until(lambda: fake.finished >= 3, 5.0)
        pages = fake.asked("/metrics")
        await until(lambda: fake.asked("/metrics") > pages + 2)
        assert counter(exporter, catalog.REQUESTS, outcome="ok") == 0
        assert counter(exporter, catalog.GENERATED_TOKENS) == 0
        assert counter(exporter, catalog.PROMPT_TOKENS) == 0
        histogram = view(exporter).histograms[(catalog.TTFT.name, (("model", "tiny"),))]
        assert histogram.count == 0
        assert view(exporter).probes["answered"] >= 3  # type: ignore[index]
        fake.generated, fake.finished = fake.generated + 40, fake.finished + 1
        await until(lambda: counter(exporter, catalog.GENERATED_TOKENS) == 40)
        assert counter(exporter, catalog.REQUESTS, outcome="ok") == 1


async def test_a_probe_that_was_refused_at_the_door_does_not_hide_a_users_short_request() -> None:
    async with engine() as fake:
        fake.probe = reply(401, b"no")
        async with watching(backend(fake.url)) as exporter:
            await until(lambda: view(exporter).probes.get("unauthorized"))  # type: ignore[call-overload]
            await until(lambda: counter(exporter, catalog.REQUESTS, outcome="ok") == 0)
            fake.generated, fake.prompt, fake.finished = 1, 9, 1
            await until(lambda: counter(exporter, catalog.REQUESTS, outcome="ok") == 1)
            assert counter(exporter, catalog.GENERATED_TOKENS) == 1


async def test_probes_go_on_at_their_pace_although_they_move_the_counters() -> None:
    async with engine() as fake, watching(backend(fake.url)) as exporter:
        await state(exporter, State.SERVING)
        started = time.monotonic()
        await until(lambda: fake.asked("/v1/completions") >= 5)
        assert 1.8 <= time.monotonic() - started <= 3.5


async def test_while_tokens_move_no_probe_is_sent() -> None:
    async with engine(running=3, tokens_per_page=20) as fake, watching(backend(fake.url)) as exporter:
        await state(exporter, State.SERVING)
        await until(lambda: fake.asked("/metrics") > 20)
        assert fake.asked("/v1/completions") <= 1


async def test_a_hang_is_found_when_its_time_is_over_and_ends_with_the_first_answered_probe() -> None:
    async with engine(running=3, tokens_per_page=20) as fake, watching(backend(fake.url)) as exporter:
        await until(lambda: Why.QUEUE not in view(exporter).liveness.reasons and view(exporter).progress_s)
        fake.tokens_per_page, fake.probe = 0, silence
        took = await state(exporter, State.HUNG)
        assert 0.9 <= took <= 2.5, "the last page with progress may be one interval before the freeze"
        assert view(exporter).up is False
        assert set(view(exporter).liveness.reasons) == {Why.NO_PROGRESS, Why.PROBE_UNANSWERED}
        document = backend_health(view(exporter), exporter.now())
        assert document["status"] == "fail"
        fake.running, fake.probe = 0, None
        await state(exporter, State.SERVING)


async def test_a_stopped_process_is_hung_although_it_accepts_connections() -> None:
    async with engine() as fake, watching(backend(fake.url)) as exporter:
        await state(exporter, State.SERVING)
        fake.silent()
        took = await state(exporter, State.HUNG)
        assert 0.9 <= took <= 3.0
        fake.well()
        await state(exporter, State.SERVING)


async def test_a_page_that_is_lost_leaves_the_state_drops_the_gauges_and_keeps_the_counters() -> None:
    async with engine(generated=7, finished=1) as fake, watching(backend(fake.url)) as exporter:
        await until(lambda: counter(exporter, catalog.GENERATED_TOKENS) == 7)
        await state(exporter, State.SERVING)
        fake.page = reply(500, b"boom")
        await until(lambda: gauge(exporter, catalog.RUNNING, model="tiny") is None, 3.0)
        assert view(exporter).state is State.SERVING
        assert counter(exporter, catalog.GENERATED_TOKENS) == 7
        assert view(exporter).sources[Source.ENGINE].code == "http_500"
        assert view(exporter).sources[Source.ENGINE].success is False
        assert view(exporter).invalid["http_status"] >= 1
        fake.page = None
        await until(lambda: gauge(exporter, catalog.RUNNING, model="tiny") == 0)


async def test_a_dead_engine_is_down_with_its_counters_at_zero_and_comes_back_through_starting() -> None:
    async with engine() as fake:
        url = fake.url
    async with watching(backend(url)) as exporter:
        await state(exporter, State.DOWN)
        assert view(exporter).idle_counters
        assert view(exporter).up is False
    async with engine() as fake, watching(backend(fake.url)) as exporter:
        await state(exporter, State.SERVING)
        fake.page = fake.health = fake.probe = _drop
        await state(exporter, State.DOWN)
        assert not view(exporter).idle_counters, "an engine that was read keeps what it had counted"
        fake.restart()
        fake.page, fake.health = None, None
        await state(exporter, State.STARTING)
        fake.probe = None
        await state(exporter, State.SERVING)


async def _drop(seen: object, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def test_an_engine_that_loads_is_starting_and_has_counted_nothing() -> None:
    loading = reply(503, {"status": "loading model"})
    async with engine(page=loading, health=loading, probe=loading) as fake, watching(backend(fake.url)) as exporter:
        await state(exporter, State.STARTING)
        assert view(exporter).idle_counters
        await asyncio.sleep(0.3)
        assert view(exporter).state is State.STARTING
        fake.well()
        await state(exporter, State.SERVING)
        assert not view(exporter).idle_counters


async def test_refused_credentials_are_misconfigured_and_a_rotated_key_file_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "RELOAD_S", 0.2)
    key = tmp_path / "key"
    key.write_text("old\n")

    async with engine() as fake:
        complete = fake._complete

        async def guarded(seen: Any, writer: asyncio.StreamWriter) -> None:
            ok = seen.headers.get("authorization") == "Bearer new"
            await (complete if ok else reply(401, b"no"))(seen, writer)

        fake.probe = guarded
        async with watching(backend(fake.url, api_key_file=str(key))) as exporter:
            await state(exporter, State.MISCONFIGURED)
            assert backend_health(view(exporter), exporter.now())["status"] == "unknown"
            key.write_text("new\n")
            await state(exporter, State.SERVING)


HOSTILE: dict[str, tuple[Handler, str]] = {
    "never answers": (silence, "timeout"),
    "drips a byte at a time": (stream(*[piece for _ in range(50) for piece in (b"#", 0.02)]), "timeout"),
    "HTML": (reply(200, "<html>502</html>\n", "content-type: text/html"), "not_exposition"),
    "a JSON string with escapes": (reply(200, b'"# HELP x y\\nx 1\\n"'), "not_exposition"),
    "nothing": (reply(200, b""), "empty"),
    "a temporary redirect with no end": (reply(307, b"", "location: /metrics"), "redirect_loop"),
    "a redirect to another host": (reply(307, b"", "location: http://127.0.0.2:9/metrics"), "redirect_loop"),
    "501": (reply(501, b"no"), "http_status"),
    "500": (reply(500, b"no"), "http_status"),
    "25 MB announced": (reply(200, b"x" * 25_000_000), "too_large"),
    "a gzip bomb": (reply(200, gzip.compress(b"a 1\n" * 8_000_000), "content-encoding: gzip"), "too_large"),
    "brotli that nobody asked for": (reply(200, b"x", "content-encoding: br"), "not_exposition"),
    "not gzip": (reply(200, b"a 1\n", "content-encoding: gzip"), "not_exposition"),
    "reset": (_drop, "connection"),
}


async def _short(seen: object, writer: asyncio.StreamWriter) -> None:
    writer.write(head(200, length=1000) + b"vllm:num_requests_running 1\n")
    await writer.drain()
    writer.close()


async def _endless(seen: object, writer: asyncio.StreamWriter) -> None:
    writer.write(head(200))
    line = b'x{a="' + b"y" * 60_000 + b'"} 1\n'
    for _ in range(1000):
        writer.write(line)
        await writer.drain()


HOSTILE["cut short"] = (_short, "truncated")
HOSTILE["60 MB without an end announced"] = (_endless, "too_large")


@pytest.mark.parametrize("case", HOSTILE)
async def test_a_hostile_page_costs_only_its_own_readings_and_is_counted_by_reason(case: str) -> None:
    handler, reason = HOSTILE[case]
    async with engine(page=handler) as bad, engine(generated=5) as good:
        # The limit is long enough for 8 MiB to arrive on a busy machine, so that the reason is the page's own.
        limit = TIMEOUT_S if reason == "timeout" else 3.0
        async with watching(backend(bad.url), backend(good.url, name="b"), scrape_timeout_s=limit) as exporter:
            await until(lambda: view(exporter).invalid.get(reason), 10.0)
            await until(lambda: exporter.views["b"].counters and exporter.views["b"].state is State.SERVING)
            assert view(exporter).state in (State.SERVING, State.UNKNOWN)
            assert not view(exporter).counters
            assert not view(exporter).idle_counters, "of an engine that may well run nothing is claimed"
            assert set(view(exporter).invalid) <= {reason, "timeout"}


async def test_a_good_page_labelled_as_json_is_read() -> None:
    async with engine() as fake:
        fake.page = reply(200, FakeEngine(generated=7).text(), "content-type: application/json")
        async with watching(backend(fake.url)) as exporter:
            await until(lambda: counter(exporter, catalog.GENERATED_TOKENS) == 7)


async def test_a_page_behind_a_redirect_on_the_same_host_is_read() -> None:
    async with engine(generated=3) as fake:
        metrics = fake._metrics

        async def moved(seen: Any, writer: asyncio.StreamWriter) -> None:
            await reply(307, b"", "location: /metrics?x=1")(seen, writer)

        fake.page = moved
        inner = fake.handle

        async def handle(seen: Any, writer: asyncio.StreamWriter) -> None:
            await (metrics if seen.path == "/metrics?x=1" else inner)(seen, writer)

        fake.handle = handle  # type: ignore[method-assign]
        async with serving(handle) as server, watching(backend(server.url)) as exporter:
            await until(lambda: counter(exporter, catalog.GENERATED_TOKENS) == 3)


async def test_credentials_never_follow_a_redirect_to_another_origin(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("s3cret")
    async with engine() as other, engine() as fake:
        fake.page = reply(307, b"", f"location: {other.url}/metrics")
        async with watching(backend(fake.url, api_key_file=str(key))) as exporter:
            await until(lambda: other.asked("/metrics"))
            assert all("authorization" not in request.headers for request in other.server.requests)
            assert "s3cret" not in repr(view(exporter))


async def test_derived_gauges_appear_from_the_third_page_on() -> None:
    async with engine(queries=10, hits=5, tokens_per_page=10) as fake, watching(backend(fake.url)) as exporter:
        await until(lambda: fake.asked("/metrics") >= 1 and view(exporter).counters)
        fake.queries, fake.hits = 110, 30
        await until(lambda: gauge(exporter, catalog.KV_HIT_RATIO, model="tiny") is not None)
        assert fake.asked("/metrics") >= 3
        assert gauge(exporter, catalog.KV_HIT_RATIO, model="tiny") == pytest.approx(0.25)
        assert gauge(exporter, catalog.VRAM_PRESSURE) == 0.0
        assert gauge(exporter, catalog.TOKEN_EFFICIENCY) is None, "no GPU is known, so no efficiency is"
        assert catalog.STEP_TIME.name not in {name for name, _ in view(exporter).histograms}


async def test_a_quantile_in_the_top_bucket_is_called_saturated() -> None:
    async with engine() as fake, watching(backend(fake.url)) as exporter:
        await until(lambda: fake.asked("/metrics") >= 3)
        fake.ttft_counts = [0, 0, 1, 100]
        await until(lambda: "ttft" in view(exporter).saturated)
        assert view(exporter).saturated["ttft"].value == 1.0


async def test_cpu_is_the_nodes_for_an_engine_on_loopback() -> None:
    async with engine(cpu_s=1.0) as fake, watching(backend(fake.url)) as exporter:
        await until(lambda: gauge(exporter, catalog.CPU_USAGE) is not None)
        assert 0 <= (gauge(exporter, catalog.CPU_USAGE) or 0) <= 1


def gpu_file(path: Path, used: float, total: float = 100e9) -> None:
    device = {"index": 0, "uuid": "GPU-1", "name": "H200", "memory_total_bytes": total, "memory_used_bytes": used}
    path.write_text(json.dumps({"driver": "1", "gpus": [device]}))


async def test_gpu_headroom_is_measured_against_the_warm_baseline_of_an_engine_that_preallocates(tmp_path: Path) -> None:
    file = tmp_path / "gpus.json"
    gpu_file(file, used=92e9)
    gpus = GpuSettings(source="file", file=file, interval_s=0.1)
    async with engine(tokens_per_page=10) as fake, watching(backend(fake.url, gpus=["0"]), gpu=gpus.model_dump()) as exporter:

        def check() -> dict[str, Any]:
            document: Any = backend_health(view(exporter), exporter.now())
            return dict(document["checks"]["gpu_memory"])

        await until(lambda: check()["status"] == "pass")
        assert check()["value"] == 1.0
        assert gauge(exporter, catalog.TOKEN_EFFICIENCY) is not None
        gpu_file(file, used=99.2e9)
        await until(lambda: check()["status"] == "fail")
        assert check()["value"] == pytest.approx(0.1)
        assert gauge(exporter, catalog.VRAM_PRESSURE) == pytest.approx(0.9)
        file.unlink()
        await until(lambda: check()["status"] == "unknown", 5.0)


async def test_pressure_follows_a_full_gpu_before_the_next_page_is_read(tmp_path: Path) -> None:
    file = tmp_path / "gpus.json"
    gpu_file(file, used=92e9)
    gpus = GpuSettings(source="file", file=file, interval_s=0.1).model_dump()
    async with engine(tokens_per_page=10) as fake, watching(backend(fake.url, gpus=["0"]), gpu=gpus) as exporter:
        await until(lambda: gauge(exporter, catalog.VRAM_PRESSURE) is not None)
        await until(lambda: (view(exporter).memory_headroom or absent("")).value == 1.0)
        fake.page = silence  # No page from here on, and the one before is good for three intervals and a time-out.
        gpu_file(file, used=99.2e9)
        await until(lambda: gauge(exporter, catalog.VRAM_PRESSURE) == pytest.approx(0.9), 0.45)


async def test_gpus_that_cannot_be_told_are_logged_once_and_impossible_values_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "gpus.json"
    gpu_file(file, used=-1)
    gpus = GpuSettings(source="file", file=file, interval_s=0.1).model_dump()
    said: list[tuple[Any, ...]] = []

    def keep(_: object, __: str, line: MutableMapping[str, Any]) -> str:
        if line.get("source") == "gpu":
            said.append((line["backend"], line["event"], line.get("reason")))
        return ""

    def impossible(exporter: Exporter, name: str) -> float:
        series = series_of(exporter.views[name], exporter.gpu_snapshot(), exporter.now())
        labels = (("backend", name), ("reason", "out_of_range"))
        value = next(s.value for s in series if s.metric is catalog.INVALID_SAMPLES and s.labels == labels)
        assert isinstance(value, float)
        return value

    log = structlog.wrap_logger(structlog.ReturnLogger(), processors=[keep])
    async with engine() as fake:
        both = (backend(fake.url, name="a", gpus=["7"]), backend(fake.url, name="b", gpus=["0"]))
        async with watching(*both, log=log, gpu=gpus) as exporter:
            await until(lambda: impossible(exporter, "b") >= 3)
            assert impossible(exporter, "a") == 0
            assert said == [("a", "source failed", "unknown_device")], "once, and nothing of the backend whose GPU is there"
            file.write_text("rubbish")
            await until(lambda: ("b", "source failed", "file_invalid") in said)
            gpu_file(file, used=1)
            await until(lambda: said[-1] == ("b", "source is back", None))


async def test_a_bug_in_one_backends_loop_is_counted_and_costs_no_other_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "PAUSE_AFTER_BUG_S", 0.05)
    original = PageReader.read
    broken: list[str] = []

    async def read(self: PageReader, headers: Any, deadline_s: float) -> Any:
        if self.url in broken:
            raise ZeroDivisionError("nobody had foreseen this")
        return await original(self, headers, deadline_s)

    monkeypatch.setattr(PageReader, "read", read)
    async with engine() as one, engine() as two:
        broken.append(one.url + "/metrics")
        async with watching(backend(one.url), backend(two.url, name="b")) as exporter:
            await until(lambda: view(exporter).invalid.get(INTERNAL, 0) >= 2)
            await until(lambda: exporter.views["b"].state is State.SERVING)
            broken.clear()
            await state(exporter, State.SERVING)


async def test_a_failure_is_logged_when_it_begins_and_when_it_ends_and_not_in_between() -> None:
    with structlog.testing.capture_logs() as lines:
        async with engine() as fake, watching(backend(fake.url), log=structlog.get_logger()) as exporter:
            await state(exporter, State.SERVING)
            fake.page = reply(500, b"x")
            await until(lambda: view(exporter).invalid.get("http_status", 0) >= 5)
            fake.page = None
            await until(lambda: view(exporter).sources[Source.ENGINE].success)
    about_the_page = [line["event"] for line in lines if line.get("source") == "engine"]
    assert about_the_page == ["source failed", "source is back"]


async def test_no_more_than_four_connections_are_open_to_one_backend() -> None:
    open_now, most = 0, 0

    async def slow(seen: object, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        try:
            await asyncio.sleep(30)
        finally:
            open_now -= 1

    async with engine(page=slow, health=slow, probe=slow) as fake, watching(backend(fake.url)) as exporter:
        await state(exporter, State.HUNG)
    # Connections that were given up are closed by us; the server notices a moment later.
    assert most <= 8


async def test_a_separate_metrics_page_that_is_refused_never_means_down() -> None:
    async with engine() as gone:
        dead = gone.url
    async with engine() as fake, watching(backend(fake.url, metrics_url=f"{dead}/metrics")) as exporter:
        await state(exporter, State.SERVING)
        await asyncio.sleep(0.6)
        assert view(exporter).state is State.SERVING
        assert Why.PAGE_LOST in view(exporter).liveness.reasons


async def test_the_collector_stops_when_it_is_told_to_even_while_everything_is_silent() -> None:
    async with engine(page=silence, health=silence, probe=silence) as fake:
        async with watching(backend(fake.url)):
            await until(lambda: fake.asked("/metrics"))
            started = time.monotonic()
        assert time.monotonic() - started < 0.5


async def test_a_redis_that_is_refused_fails_the_kv_check_only() -> None:
    async with engine() as fake, watching(backend(fake.url, kv_service="redis://user:pw@127.0.0.1:9")) as exporter:
        await until(lambda: view(exporter).kv_ping)
        await state(exporter, State.SERVING)
        document: Any = backend_health(view(exporter), exporter.now())
        assert document["status"] == "fail"
        assert document["checks"]["kv_cache"]["reason"] == "refused"
        assert document["state"] == "serving"
        assert "pw" not in json.dumps(document)


def test_two_backends_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="'a' is there twice"):
        build((backend("http://127.0.0.1:1"), backend("http://127.0.0.1:2")), settings())


async def test_clients_take_no_proxy_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with engine() as fake, watching(backend(fake.url)) as exporter:
        await state(exporter, State.SERVING)
