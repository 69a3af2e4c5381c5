"""Engines other than vLLM watched for real, on loopback: what their pages let the collector know, and what not."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from tailkeeper_exporter import catalog
from tailkeeper_exporter.engines import engine_named
from tailkeeper_exporter.gpu import GpuSnapshot
from tailkeeper_exporter.health import backend_health
from tailkeeper_exporter.liveness import Why
from tailkeeper_exporter.page_reader import page_url
from tailkeeper_exporter.series import series_of
from tailkeeper_exporter.settings import BackendSettings
from tailkeeper_exporter.state import State
from tailkeeper_exporter.views import Source
from tests.loopback.test_collector import backend, state, until, view, watching
from tests.unit.fake_engine import DONE, LENGTH, TOKEN
from tests.unit.loopback import Handler, Seen, reply, routes, serving, silence, stream

SCRAPES = Path(__file__).parents[1] / "fixtures" / "scrapes"
WELL = stream(TOKEN + LENGTH + DONE)


@dataclass
class FakeLlama:
    """llama-server with one long answer: its captured page, on which only the count of decoding steps moves."""

    processing: float = 1
    decodes: float = 125
    decodes_per_page: float = 5
    prompt: float = 98
    predicted: float = 481
    health: Handler = field(default_factory=lambda: reply(200, {"status": "ok"}))
    probe: Handler = WELL

    async def handle(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        if seen.path == "/metrics":
            await reply(200, self.page())(seen, writer)
        elif seen.path == "/v1/completions":
            await self.probe(seen, writer)
        else:
            await (self.health if seen.path == "/health" else reply(404))(seen, writer)

    def page(self) -> str:
        self.decodes += self.decodes_per_page
        text = (SCRAPES / "llamacpp-b11669.prom").read_text()
        for name, value in {
            "n_decode_total": self.decodes,
            "requests_processing": self.processing,
            "prompt_tokens_total": self.prompt,
            "tokens_predicted_total": self.predicted,
        }.items():
            old = next(line for line in text.splitlines() if line.startswith(f"llamacpp:{name} "))
            text = text.replace(f"{old}\n", f"llamacpp:{name} {value:g}\n")
        return text


async def test_a_long_answer_of_llamacpp_is_serving_though_no_token_is_counted_and_is_hung_once_its_steps_stop() -> None:
    fake = FakeLlama(probe=silence)
    async with serving(fake.handle) as server, watching(backend(server.url, engine="llamacpp")) as exporter:
        await until(lambda: view(exporter).progress_s)
        watched_until = exporter.now() + 2.5
        while exporter.now() < watched_until:
            assert view(exporter).state is not State.HUNG, "every slot is busy, so the probe has to wait"
            await asyncio.sleep(0.01)
        assert view(exporter).state in (State.SERVING, State.BUSY)
        fake.decodes_per_page = 0
        await state(exporter, State.HUNG)
        assert set(view(exporter).liveness.reasons) == {Why.NO_PROGRESS, Why.PROBE_UNANSWERED}
        fake.decodes_per_page, fake.probe = 5, WELL
        await state(exporter, State.SERVING)


async def test_the_prompt_of_a_long_answer_of_llamacpp_is_a_users_though_a_probe_was_sent_a_moment_ago() -> None:
    fake = FakeLlama(processing=0, decodes_per_page=0)
    async with serving(fake.handle) as server, watching(backend(server.url, engine="llamacpp")) as exporter:
        await until(lambda: view(exporter).probes.get("answered"))  # type: ignore[call-overload]
        fake.processing, fake.prompt, fake.decodes = 1, fake.prompt + 40, fake.decodes + 30
        prompt = (catalog.PROMPT_TOKENS.name, ())
        await until(lambda: view(exporter).counters[prompt] == 98 + 56 + 40)


async def test_llamacpp_loading_its_model_is_starting() -> None:
    loading = reply(503, {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}})
    fake = FakeLlama(health=loading, probe=loading, processing=0, decodes_per_page=0)
    async with serving(fake.handle) as server, watching(backend(server.url, engine="llamacpp")) as exporter:
        await state(exporter, State.STARTING)
        fake.health, fake.probe = reply(200, {"status": "ok"}), WELL
        await state(exporter, State.SERVING)


async def test_a_generic_backend_is_serving_by_its_probe_and_has_no_page_to_lose() -> None:
    handler = routes({"/health": reply(200), "/v1/completions": WELL})
    async with serving(handler) as server, watching(backend(server.url, engine="generic")) as exporter:
        await state(exporter, State.SERVING)
        await until(lambda: view(exporter).probes.get("answered"))  # type: ignore[call-overload]
        assert "/metrics" not in server.paths()
        assert view(exporter).liveness.reasons == ()
        assert Source.ENGINE not in view(exporter).sources
        document = backend_health(view(exporter), exporter.now())
        assert document["status"] == "pass"
        assert list(document["checks"]) == ["semantic_probe"]  # type: ignore[call-overload]
        names = {series.metric for series in series_of(view(exporter), GpuSnapshot(), exporter.now())}
        assert not names & {catalog.REQUESTS, catalog.RUNNING, catalog.MISSING_METRICS}
        await until(lambda: server.paths().count("/v1/completions") >= 3)


async def test_a_generic_backend_that_stops_listening_is_down_and_one_whose_model_errs_is_unknown() -> None:
    handler = routes({"/health": reply(200), "/v1/completions": reply(500)})
    async with serving(handler) as server, watching(backend(server.url, engine="generic")) as exporter:
        await until(lambda: Why.PROBE_FAILED in view(exporter).liveness.reasons and view(exporter).state is State.UNKNOWN)
    async with watching(backend(server.url, engine="generic")) as exporter:
        await state(exporter, State.DOWN)


async def test_a_generic_backend_with_a_metrics_url_has_its_page_read() -> None:
    handler = routes({"/health": reply(200), "/v1/completions": WELL, "/stats": reply(200, "process_start_time_seconds 1000\n")})
    async with serving(handler) as server:
        found = backend(server.url, engine="generic", metrics_url=server.url + "/stats")
        async with watching(found) as exporter:
            await until(lambda: Source.ENGINE in view(exporter).sources)
            assert view(exporter).sources[Source.ENGINE].success


def test_tritons_page_is_on_a_port_of_its_own_unless_it_is_configured() -> None:
    def url(at: str, **more: str) -> str | None:
        return page_url(
            BackendSettings.model_validate({"name": "a", "engine": "triton", "url": at, **more}), engine_named("triton")
        )

    assert url("http://10.0.0.1:8000") == "http://10.0.0.1:8002/metrics"
    assert url("https://[::1]:8000/behind") == "https://[::1]:8002/metrics"
    assert url("http://t:8000", metrics_url="http://t:9000/m") == "http://t:9000/m"


async def test_triton_without_a_ready_model_is_starting_and_is_serving_without_a_probe_once_it_has_one() -> None:
    page = (SCRAPES / "triton-2.51.0.prom").read_text()
    answers = {"/v2/health/ready": reply(400), "/metrics": reply(200, page)}
    async with serving(routes(answers)) as server:
        triton = backend(server.url, engine="triton", model=None, metrics_url=server.url + "/metrics")
        async with watching(triton) as exporter:
            await state(exporter, State.STARTING)
            answers["/v2/health/ready"] = reply(200)
            await state(exporter, State.SERVING)
            assert set(server.paths()) == {"/v2/health/ready", "/metrics"}
            document = backend_health(view(exporter), exporter.now())
            assert "semantic_probe" not in document["checks"]  # type: ignore[operator]
            assert document["status"] == "pass"


async def test_triton_whose_configured_model_was_unloaded_is_starting_although_the_server_says_ready() -> None:
    page = (SCRAPES / "triton-2.51.0.prom").read_text()
    of_model = "/v2/models/a%2Fb/ready"
    answers = {"/v2/health/ready": reply(200), of_model: reply(200), "/metrics": reply(200, page)}
    async with serving(routes(answers)) as server:
        triton = backend(server.url, engine="triton", model="a/b", metrics_url=server.url + "/metrics")
        async with watching(triton) as exporter:
            await state(exporter, State.SERVING)
            answers[of_model] = reply(400)
            await state(exporter, State.STARTING)
            answers[of_model] = reply(200)
            await state(exporter, State.SERVING)
            assert "/v2/health/ready" not in server.paths()
