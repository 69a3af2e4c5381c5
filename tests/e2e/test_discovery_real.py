"""Discovery with the real thing: a Prometheus that scrapes engines, and the exporter as a process that gains and loses one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tailkeeper_exporter.discovery import DiscoveryError, Listing
from tailkeeper_exporter.discovery.prometheus import PrometheusLister
from tailkeeper_exporter.settings import PrometheusDiscovery
from tests.e2e.exporter_process import Running, answers, engine_process, get
from tests.e2e.real_programs import RealPrograms, free_port, wait_until

pytestmark = pytest.mark.real


def write_targets(file: Path, *addresses: str, **labels: str) -> None:
    """As a program should: into another file first, then into place."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps([{"targets": list(addresses), "labels": labels}]))
    os.replace(new, file)


def listed(lister: PrometheusLister) -> dict[str, str | None]:
    """Names and models of what is found now."""
    try:
        listing: Listing = asyncio.run(lister.list(5))
    except DiscoveryError as error:
        raise AssertionError(str(error)) from error
    return {found.name: found.key("model") for found in listing.found}


def test_a_real_prometheus_tells_of_engines_of_hung_ones_too_and_no_more_of_those_it_does_not_scrape(
    programs: RealPrograms, tmp_path: Path
) -> None:
    sd = tmp_path / "sd.json"
    with engine_process(tokens_per_page=1, running=1) as well, engine_process() as hung:
        addresses = [engine.url.removeprefix("http://") for engine in (well, hung)]
        write_targets(sd, *addresses)
        prometheus = programs.prometheus(
            {
                "global": {"scrape_interval": "500ms", "scrape_timeout": "400ms"},
                "scrape_configs": [
                    {"job_name": "llm", "file_sd_configs": [{"files": [str(sd)], "refresh_interval": "500ms"}]},
                    {"job_name": "itself", "static_configs": [{"targets": ["127.0.0.1:1"]}]},
                ],
            }
        )
        settings = PrometheusDiscovery.model_validate({"kind": "prometheus", "url": prometheus.url})
        lister = PrometheusLister(settings)
        both = dict.fromkeys(addresses, "tiny")
        wait_until(lambda: listed(lister) == both, "both engines found")
        hung.process.send_signal(signal.SIGSTOP)
        series = f"vllm:num_requests_running{{instance='{addresses[1]}'}}"
        wait_until(lambda: prometheus.get("/api/v1/query", query=series)["data"]["result"] == [], "its series stale")
        assert listed(lister) == both
        # So does one that starts now, and never saw it well.
        assert listed(PrometheusLister(settings)) == both
        write_targets(sd, addresses[0])
        wait_until(lambda: listed(lister) == {addresses[0]: "tiny"}, "the other gone")
        assert listed(PrometheusLister(settings)) == {addresses[0]: "tiny"}
        hung.process.send_signal(signal.SIGCONT)


@contextmanager
def exporter_command(folder: Path, *arguments: str, **document: Any) -> Iterator[Running]:
    """`tailkeeper exporter -c FILE` as a process; its log is in ``folder``/log."""
    port = free_port()
    exporter = {"listen": f"127.0.0.1:{port}", "scrape_interval_s": 0.2, "scrape_timeout_s": 0.3, "gpu": {"source": "none"}}
    file = folder / "tailkeeper.yaml"
    file.write_text(yaml.safe_dump({"exporter": exporter, **document}))
    argv = [sys.executable, "-m", "tailkeeper.cli", "exporter", "-c", str(file), *arguments]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, stderr=log, cwd=folder)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until(lambda: process.poll() is not None or answers(url + "/livez") is not None, "the exporter answering")
            assert process.poll() is None, (folder / "log").read_text()
            yield Running(url, process)
            process.send_signal(signal.SIGTERM)
            assert process.wait(5) == 0
        finally:
            process.kill()
            process.wait()


def backends_on(exporter: Running) -> set[str]:
    """The backends that the page has any series of."""
    page = get(exporter.url + "/metrics")[2]
    return {line.partition('backend="')[2].partition('"')[0] for line in page.splitlines() if 'backend="' in line}


def test_the_exporter_gains_and_loses_a_backend_and_keeps_no_phantom_of_it(tmp_path: Path) -> None:
    sd = tmp_path / "sd.json"
    with engine_process(tokens_per_page=5) as listed_one, engine_process(tokens_per_page=5) as found_one:
        write_targets(sd)
        configured = {"name": "listed", "url": listed_one.url}
        discovery = [{"kind": "file_sd", "files": [str(sd)], "interval_s": 1}]
        with exporter_command(tmp_path, backends=[configured], discovery=discovery, defaults={"engine": "vllm"}) as exporter:
            wait_until(lambda: answers(exporter.url + "/readyz") == 200, "ready")
            assert backends_on(exporter) == {"listed"}
            write_targets(sd, found_one.url.removeprefix("http://"), backend="found", az="a1")
            wait_until(lambda: backends_on(exporter) == {"listed", "found"}, "the found one on the page", 5)
            wait_until(lambda: 'llm_generated_tokens_total{backend="found"' in get(exporter.url + "/metrics")[2], "its tokens")
            assert json.loads(get(exporter.url + "/healthz/found")[2])["state"] == "serving"
            found_one.process.kill()
            write_targets(sd)
            wait_until(lambda: backends_on(exporter) == {"listed"}, "the found one gone", 5)
            assert get(exporter.url + "/healthz/found")[0] == 404
            assert answers(exporter.url + "/readyz") == 200
            assert answers(exporter.url + "/healthz/listed") == 200
        log = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
        changes = [(line.get("added"), line.get("removed")) for line in log if line["event"] == "backends found"]
        assert changes == [(["found"], None), (None, ["found"])]


def test_with_a_backend_chosen_by_name_nothing_is_discovered_and_that_is_said(tmp_path: Path) -> None:
    sd = tmp_path / "sd.json"
    with engine_process() as engine:
        write_targets(sd, "127.0.0.1:9", engine="vllm")
        configured = {"name": "listed", "url": engine.url, "engine": "vllm"}
        discovery = [{"kind": "file_sd", "files": [str(sd)], "interval_s": 1}]
        with exporter_command(tmp_path, "--backend", "listed", backends=[configured], discovery=discovery) as exporter:
            wait_until(lambda: answers(exporter.url + "/readyz") == 200, "ready")
            assert backends_on(exporter) == {"listed"}
        assert "discovery is off" in (tmp_path / "log").read_text()
