"""The rules for a vLLM that nobody but Prometheus scrapes: real captured pages, a real Prometheus, and our exporter's own reading
of the same pages as the judge."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tailkeeper_alerts.groups import GROUPS, VLLM_ONLY
from tailkeeper_alerts.groups.slo_hours import INTERVAL_S
from tailkeeper_alerts.model import RuleSettings
from tailkeeper_alerts.render import RULES_PATH, VLLM_ONLY_PATH, render
from tailkeeper_exporter import catalog
from tailkeeper_exporter.counters import CounterMemory
from tailkeeper_exporter.engines.vllm import VLLM
from tailkeeper_exporter.exposition import PageParser
from tailkeeper_exporter.normalise import Normalised, normalise, wanted_by
from tests.e2e.real_programs import HttpProgram, prometheus, wait_until
from tests.e2e.tiny_servers import answer, serving

pytestmark = pytest.mark.real

SCRAPES = Path(__file__).parents[1] / "fixtures" / "scrapes"
CAPTURED = ("vllm-0.32.0.prom", "vllm-0.32.0-idle.prom", "vllm-0.32.0-lora-queue.prom", "vllm-0.32.0-preempted.prom")
RENAMED = (("vllm:", "vllm_"), ("kv_cache_usage_perc", "gpu_cache_usage_perc"), ("inter_token_latency", "time_per_output_token"))
"""As an older release has it, and as the client library spells it for Prometheus 2 where OpenMetrics is negotiated."""
OLD, BESIDE, EXPORTER = "an-older-release", "beside-an-exporter", "exporter"
EVALUATIONS_S = 30.0


def _pages() -> dict[str, str]:
    """The page of each target by its name."""
    pages = {name: (SCRAPES / name).read_text(encoding="utf-8") for name in CAPTURED}
    text = pages[CAPTURED[0]]
    pages[BESIDE] = text.replace('model_name="tiny"', 'model_name="exported"')
    for new, old in RENAMED:
        text = text.replace(new, old)
    pages[OLD] = text
    pages[EXPORTER] = 'llm_requests_running{backend="ours",model="exported"} 5\n'
    return pages


PAGES = _pages()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpProgram]:
    """Prometheus with both rule files, after some rounds of them. Read only, so shared."""

    def handle(request: BaseHTTPRequestHandler) -> None:
        answer(request, 200, PAGES[request.path.removeprefix("/")].encode(), Content_Type="text/plain; version=0.0.4")

    with serving(handle) as port:
        target = {"targets": [f"127.0.0.1:{port}"]}
        pages = [{**target, "labels": {"__metrics_path__": f"/{name}", "instance": name}} for name in PAGES]
        config = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "400ms", "evaluation_interval": "500ms"},
            "scrape_configs": [{"job_name": "llm", "static_configs": pages}],
        }
        rendered = render()
        # What is evaluated once a minute would be waited for so long.
        rules = {Path(path).name: rendered[path].replace(f'"{INTERVAL_S}s"', '"1s"') for path in (RULES_PATH, VLLM_ONLY_PATH)}
        with prometheus(config, rules, tmp_path_factory.mktemp("prometheus")) as running:
            wait_until(lambda: _settled(running), "every rule was evaluated, and the exporter is known", EVALUATIONS_S)
            yield running


def _settled(running: HttpProgram) -> bool:
    seen = _by(running, f"count by (backend) ({catalog.BACKEND_STATE.name})", "backend")
    return set(seen) == set(PAGES) - {EXPORTER, BESIDE} and not _by(running, _own(catalog.RUNNING.name, BESIDE), "backend")


def _own(name: str, backend: str) -> str:
    return f'{name}{{backend="{backend}"}}'


def _result(running: HttpProgram, expr: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = running.get("/api/v1/query", query=expr)["data"]["result"]
    return found


def _by(running: HttpProgram, expr: str, *labels: str) -> dict[str, float]:
    """Value by the given labels, joined by commas."""
    return {",".join(s["metric"].get(label, "") for label in labels): float(s["value"][1]) for s in _result(running, expr)}


def _judged(name: str) -> Normalised:
    return normalise(PageParser(wanted_by(VLLM)).parse(PAGES[name].encode()), VLLM, CounterMemory(), 1.0)


@pytest.mark.parametrize("name", [*CAPTURED, OLD])
def test_a_plain_scrape_says_what_the_exporter_reads_on_the_same_page(server: HttpProgram, name: str) -> None:
    judged = _judged(name)
    for (metric, labels), reading in judged.values.items():
        if metric != catalog.REQUESTS.name:
            assert _by(server, _own(metric, name), "model") == {dict(labels)["model"]: reading.value}, metric
    told = _by(server, _own(catalog.REQUESTS.name, name), "outcome")
    outcomes = {
        dict(labels)["outcome"]: r.value for (metric, labels), r in judged.values.items() if metric == catalog.REQUESTS.name
    }
    failed = (outcomes["error"] or 0.0) + (outcomes["rejected"] or 0.0)
    assert told == {"ok": outcomes["ok"], "aborted": outcomes["aborted"], "error": failed}


@pytest.mark.parametrize("name", [*CAPTURED, OLD])
def test_a_plain_scrapes_buckets_are_the_exporters(server: HttpProgram, name: str) -> None:
    judged = _judged(name)
    assert {metric for metric, _ in judged.histograms} >= {catalog.TTFT.name, catalog.ITL.name, catalog.LATENCY.name}
    for (metric, _), reading in judged.histograms.items():
        assert reading.value is not None
        buckets = {float(le): count for le, count in _by(server, _own(f"{metric}_bucket", name), "le").items()}
        assert buckets == dict(zip(reading.value.bounds, reading.value.counts, strict=True)), metric
        assert _by(server, _own(f"{metric}_count", name), "backend") == {name: reading.value.count}
        assert _by(server, _own(f"{metric}_sum", name), "backend")[name] == pytest.approx(reading.value.sum)


def test_what_an_exporter_tells_is_not_told_twice(server: HttpProgram) -> None:
    assert _by(server, f'{catalog.RUNNING.name}{{model="exported"}}', "backend") == {"ours": 5.0}
    recorded = [s for s in _result(server, '{__name__=~"llm_.+",job=""}') if s["metric"].get("model") == "exported"]
    assert recorded == []


def test_every_engine_has_one_state_and_up(server: HttpProgram) -> None:
    names = set(PAGES) - {EXPORTER, BESIDE}
    assert _by(server, f"sum by (backend) ({catalog.BACKEND_STATE.name})", "backend") == dict.fromkeys(names, 1.0)
    assert _by(server, catalog.BACKEND_UP.name, "backend") == dict.fromkeys(names, 1.0)


def test_no_rule_of_either_file_fails_on_a_real_server(server: HttpProgram) -> None:
    def rules() -> list[dict[str, Any]]:
        return [rule for group in server.get("/api/v1/rules")["data"]["groups"] for rule in group["rules"]]

    wait_until(lambda: all(rule["health"] != "unknown" for rule in rules()), "every rule was evaluated", EVALUATIONS_S)
    assert [(rule["name"], rule["lastError"]) for rule in rules() if rule["health"] != "ok"] == []
    assert len(rules()) == sum(len(build(RuleSettings()).rules) for build in (*GROUPS, *VLLM_ONLY))
