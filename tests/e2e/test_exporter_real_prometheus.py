"""The exporter as a process: a real Prometheus reads it, promtool checks it, real signals stop and kill the engine behind it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import threading
import urllib.request
from typing import Any

import pytest
import uvicorn

from tailkeeper_exporter import catalog
from tailkeeper_exporter.app import build
from tailkeeper_exporter.requests_ring import RequestRecord
from tailkeeper_exporter.serving import bind, server_config
from tailkeeper_exporter.settings import BackendSettings, ExporterSettings
from tests.e2e.exporter_process import Running, backend_state, engine_process, exporter_process, get, seconds_until
from tests.e2e.real_programs import RealPrograms, binary, free_port, open_url, wait_until
from tests.unit.test_exporter_page import PROMETHEUS_2, PROMETHEUS_3, open_metrics_families

pytestmark = pytest.mark.real


def backend(url: str, name: str = "a", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "engine": "vllm",
        "url": url,
        "model": "tiny",
        "probe": {"interval_s": 1.0, "first_token_timeout_s": 0.3},
        "hang": {"no_progress_s": 2.0},
        **more,
    }


def value(prometheus: Any, query: str) -> float | None:
    found = prometheus.get("/api/v1/query", query=query)["data"]["result"]
    return float(found[0]["value"][1]) if found else None


def test_a_real_prometheus_scrapes_the_exporter_and_its_counters_rise(programs: RealPrograms) -> None:
    with engine_process(tokens_per_page=10, running=2) as engine:
        dead = f"http://127.0.0.1:{free_port()}"
        with exporter_process([backend(engine.url), backend(dead, "dead"), backend(dead, 'na"me\\{}')]) as exporter:
            target = exporter.url.removeprefix("http://")
            job = {"job_name": "tailkeeper", "scrape_interval": "1s", "static_configs": [{"targets": [target]}]}
            prometheus = programs.prometheus({"scrape_configs": [job]})
            wait_until(lambda: value(prometheus, "up") == 1.0, "the target up")
            wait_until(
                lambda: (value(prometheus, "rate(llm_generated_tokens_total{backend='a'}[10s])") or 0) > 10, "a token rate"
            )
            wait_until(lambda: value(prometheus, "llm_backend_state{backend='dead',state='down'}") == 1.0, "down")
            assert value(prometheus, "sum(llm_backend_state)") == 3.0
            assert value(prometheus, "llm_requests_total{backend='dead',outcome='error'}") == 0.0
            names = set(prometheus.get("/api/v1/label/backend/values")["data"])
            assert names == {"a", "dead", 'na"me\\{}'}
            target_state = prometheus.get("/api/v1/targets")["data"]["activeTargets"][0]
            assert target_state["lastError"] == ""


def test_a_real_prometheus_takes_a_page_with_exemplars(programs: RealPrograms) -> None:
    """Field report A4: an exemplar in the wrong dialect or place takes the whole target down."""
    ready, stop = threading.Event(), threading.Event()
    port = free_port()

    async def run(url: str) -> None:
        exporter = build(
            (BackendSettings.model_validate(backend(url)),), ExporterSettings.model_validate({"gpu": {"source": "none"}})
        )
        exporter.ring.append(RequestRecord("a", request_id="r1", trace_id="ab" * 16, start=1.7e9, ttft_s=0.05, e2e_s=1.0))
        with bind(f"127.0.0.1:{port}", "exporter.listen") as listening:
            server = uvicorn.Server(server_config(exporter.app))
            async with exporter.running():
                await exporter.ready()
                serving = asyncio.create_task(server.serve(sockets=[listening]))
                ready.set()
                await asyncio.to_thread(stop.wait)
                server.should_exit = True
                await serving

    with engine_process() as engine:
        thread = threading.Thread(target=lambda: asyncio.run(run(engine.url)))
        thread.start()
        try:
            assert ready.wait(10)
            # The engine's first requests are our probe's, and are taken off; so the bucket has to be filled by somebody else.
            for _ in range(3):
                request = urllib.request.Request(f"{engine.url}/v1/completions", b"{}", method="POST")
                open_url(request, timeout=5).read()
            url = f"http://127.0.0.1:{port}/metrics"
            wait_until(lambda: "trace_id" in get(url, PROMETHEUS_2)[2], "an exemplar on the page")
            assert "trace_id" not in get(url)[2]
            job = {"job_name": "t", "scrape_interval": "1s", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
            prometheus = programs.prometheus({"scrape_configs": [job]})
            wait_until(lambda: value(prometheus, "up") is not None, "the first scrape")
            assert value(prometheus, "up") == 1.0
            assert prometheus.get("/api/v1/targets")["data"]["activeTargets"][0]["lastError"] == ""
        finally:
            stop.set()
            thread.join()


@pytest.mark.parametrize("accept", ["text/plain", "*/*"])
def test_promtool_finds_nothing_to_say_about_the_text_page(accept: str) -> None:
    with engine_process(tokens_per_page=10) as engine, exporter_process([backend(engine.url)]) as exporter:
        wait_until(lambda: "llm_generated_tokens_total" in get(exporter.url + "/metrics")[2], "the first page")
        _, content_type, text = get(exporter.url + "/metrics", accept)
        assert content_type == "text/plain; version=0.0.4; charset=utf-8"
        checked = subprocess.run([binary("promtool"), "check", "metrics"], input=text, capture_output=True, text=True)
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


@pytest.mark.parametrize("accept", [PROMETHEUS_2, PROMETHEUS_3])
def test_the_headers_of_real_prometheus_versions_get_open_metrics_that_a_strict_parser_reads(accept: str) -> None:
    with engine_process(tokens_per_page=10) as engine, exporter_process([backend(engine.url)]) as exporter:
        wait_until(lambda: "llm_generated_tokens_total" in get(exporter.url + "/metrics")[2], "the first page")
        _, content_type, text = get(exporter.url + "/metrics", accept)
        assert content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        names = {family.name for family in open_metrics_families(text)}
        assert names <= {metric.name.removesuffix("_total") for metric in catalog.CATALOG}


def test_a_stopped_process_is_hung_in_time_a_continued_one_serves_and_a_killed_one_is_down() -> None:
    with engine_process(tokens_per_page=10, running=2) as engine, exporter_process([backend(engine.url)]) as exporter:
        wait_until(lambda: backend_state(exporter) == "serving", "serving")
        engine.process.send_signal(signal.SIGSTOP)
        took = seconds_until(lambda: backend_state(exporter) == "hung", "hung")
        assert 1.9 <= took <= 4.0
        assert get(f"{exporter.url}/healthz/a")[0] == 503
        engine.process.send_signal(signal.SIGCONT)
        assert seconds_until(lambda: backend_state(exporter) in ("serving", "busy"), "serving again") < 3.0
        engine.process.kill()
        engine.process.wait()
        assert seconds_until(lambda: backend_state(exporter) == "down", "down") < 3.0


def test_a_restarted_engine_goes_from_down_through_starting_to_serving_and_its_counters_do_not_fall() -> None:
    port = free_port()
    with engine_process(port, tokens_per_page=10) as engine, exporter_process([backend(engine.url)]) as exporter:
        wait_until(lambda: (tokens(exporter) or 0) > 50, "tokens")
        engine.process.kill()
        engine.process.wait()
        wait_until(lambda: backend_state(exporter) == "down", "down")
        before = tokens(exporter)
        assert before is not None
        with engine_process(port, tokens_per_page=10):
            wait_until(lambda: backend_state(exporter) == "serving", "serving")
            after = tokens(exporter)
            assert after is not None
            assert after >= before


def tokens(exporter: Running) -> float | None:
    for line in get(exporter.url + "/metrics")[2].splitlines():
        if line.startswith("llm_generated_tokens_total{"):
            return float(line.rsplit(" ", 1)[1])
    return None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_exporter_ends_cleanly_on_a_signal_while_an_engine_hangs(number: signal.Signals) -> None:
    with engine_process() as engine, exporter_process([backend(engine.url)]) as exporter:
        wait_until(lambda: backend_state(exporter) == "serving", "serving")
        engine.process.send_signal(signal.SIGSTOP)
        exporter.process.send_signal(number)
        assert exporter.process.wait(5) == 0
        engine.process.send_signal(signal.SIGCONT)


def kv_check(exporter: Running) -> dict[str, Any]:
    document = json.loads(get(f"{exporter.url}/healthz/a")[2])
    return dict(document["checks"]["kv_cache"])


def test_a_real_redis_is_pinged_and_a_stopped_or_dead_one_fails_its_check_and_no_other(programs: RealPrograms) -> None:
    redis = programs.redis()
    with engine_process() as engine, exporter_process([backend(engine.url, kv_service=redis.url)]) as exporter:
        wait_until(lambda: kv_check(exporter)["status"] == "pass", "the ping")
        assert kv_check(exporter)["value"] < 0.2
        redis.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: kv_check(exporter).get("reason") == "timeout", "the time-out")
        assert get(f"{exporter.url}/healthz/a")[0] == 503
        assert backend_state(exporter) == "serving"
        redis.process.send_signal(signal.SIGCONT)
        wait_until(lambda: kv_check(exporter)["status"] == "pass", "the ping again")
        redis.process.terminate()
        wait_until(lambda: kv_check(exporter).get("reason") == "refused", "the refusal")


@pytest.mark.parametrize(
    ("credentials", "reason"), [(":right@", None), (":wrong@", "unauthorized"), ("", "unauthorized"), ("default:right@", None)]
)
def test_a_redis_with_a_password_is_asked_with_the_urls_credentials(
    programs: RealPrograms, credentials: str, reason: str | None
) -> None:
    redis = programs.redis()
    command = [binary("redis-cli"), "-p", str(redis.port), "config", "set", "requirepass", "right"]
    subprocess.run(command, check=True, capture_output=True)
    url = redis.url.replace("redis://", f"redis://{credentials}")
    with engine_process() as engine, exporter_process([backend(engine.url, kv_service=url)]) as exporter:
        wait_until(lambda: kv_check(exporter)["age_s"] is not None, "the ping")
        found = kv_check(exporter)
        assert (found["status"], found.get("reason")) == ("pass" if reason is None else "fail", reason)
