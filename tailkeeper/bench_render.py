"""``bench exporter``, its own page: written by us and by ``prometheus_client.generate_latest``, the same series in one run.

The peer gets metric families that are already made, so only its writing is timed; ours begins at what is held in memory of each
backend, as a request does. Both pages must say the same, or the run fails.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from tailkeeper_exporter.app import build
from tailkeeper_exporter.bench_loop import Silent, moving_engines, synthetic_page
from tailkeeper_exporter.metrics_page import Dialect, MetricsPage
from tailkeeper_exporter.settings import BackendSettings, ExporterSettings

BACKENDS = 10
ROUNDS = 41
SETTLE_S = 3.0
"""Three pages of each backend: from the third on derived gauges are there too."""

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class _Made(Collector):
    """Families that somebody else has made."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def render_bench(backends: int = BACKENDS, rounds: int = ROUNDS, settle_s: float = SETTLE_S) -> dict[str, Any]:
    """Median milliseconds of CPU for a page, by writer. Raises RuntimeError where the two pages differ."""
    with moving_engines(synthetic_page()) as engines:
        return asyncio.run(_measured(f"http://127.0.0.1:{engines.port}", backends, rounds, settle_s))


async def _measured(url: str, backends: int, rounds: int, settle_s: float) -> dict[str, Any]:
    configured = tuple(BackendSettings(name=f"bench-{n}", engine="vllm", url=url) for n in range(backends))
    exporter = build(configured, ExporterSettings.model_validate({"gpu": {"source": "none"}}), log=Silent())
    async with exporter.running():
        await exporter.ready()
        await asyncio.sleep(settle_s)
        page = MetricsPage(exporter.ring)
        views, gpus, now = tuple(exporter.views.values()), exporter.gpu_snapshot(), exporter.now()
        # Nothing is read meanwhile: there is no await from here on.
        return _in_turns(lambda: page.render(views, gpus, now, Dialect.TEXT), backends, rounds)


def _in_turns(ours: Callable[[], bytes], backends: int, rounds: int) -> dict[str, Any]:
    written = ours()
    registry = CollectorRegistry()
    registry.register(_Made(list(text_string_to_metric_families(written.decode()))))
    samples = _samples(written)
    if samples != _samples(generate_latest(registry)):
        raise RuntimeError("the two writers do not say the same")
    times: dict[str, list[float]] = {"ours": [], "prometheus_client": []}
    for _ in range(rounds):
        for name, write in (("ours", ours), ("prometheus_client", lambda: generate_latest(registry))):
            started = time.thread_time()
            write()
            times[name].append(1_000 * (time.thread_time() - started))
    found = {name: median(of_it) for name, of_it in times.items()}
    return {
        "backends": backends,
        "series": len(samples),
        "page_bytes": len(written),
        "ours_ms": round(found["ours"], 3),
        "prometheus_client_ms": round(found["prometheus_client"], 3),
        "ratio": round(found["prometheus_client"] / found["ours"], 2),
    }


def _samples(page: bytes) -> Samples:
    families = text_string_to_metric_families(page.decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}
