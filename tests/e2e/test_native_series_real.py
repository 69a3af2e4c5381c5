"""The watchdog's Prometheus source on a real server that scrapes an engine and nothing of ours."""

from __future__ import annotations

import asyncio
import signal

import pytest
import requests
from prometheus_api_client import PrometheusConnect

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.collect.native_pages import NativePages
from tailkeeper_watchdog.collect.prometheus import PrometheusSource
from tailkeeper_watchdog.model import BackendObservation
from tailkeeper_watchdog.settings import WatchedBackend
from tests.e2e.exporter_process import engine_process
from tests.e2e.real_programs import RealPrograms, wait_until

pytestmark = pytest.mark.real

INTERVAL_S = 0.5


def test_an_engine_is_seen_at_work_and_unknown_once_it_is_stopped(programs: RealPrograms) -> None:
    with engine_process(tokens_per_page=1, running=1) as engine:
        address = engine.url.removeprefix("http://")
        prometheus = programs.prometheus(
            {
                "global": {"scrape_interval": "500ms", "scrape_timeout": "400ms"},
                "scrape_configs": [{"job_name": "llm", "static_configs": [{"targets": [address]}]}],
            }
        )
        fleet = (WatchedBackend(name="a", engine="vllm", url=engine.url),)
        session = requests.Session()
        session.trust_env = False
        client = PrometheusConnect(url=prometheus.url, session=session)
        source = PrometheusSource(client, prometheus.url, ("a",), 3 * INTERVAL_S, NativePages(lambda: fleet, INTERVAL_S))

        def seen() -> BackendObservation:
            collected = asyncio.run(source.collect(0.0, 2.0))
            assert collected.error is None
            return collected.observations["a"]

        wait_until(lambda: seen().state is State.SERVING, "seen at work")
        now = seen()
        assert now.value("llm_requests_running") == 1
        assert now.age_s is not None
        assert now.age_s < 3 * INTERVAL_S
        engine.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: seen().state is State.UNKNOWN, "unknown, for nobody asked it")
        engine.process.send_signal(signal.SIGCONT)
        wait_until(lambda: seen().state is State.SERVING, "at work again")
        session.close()
