"""Every target of speed that the project has set itself, what was measured, and where it is missed by how much and why.

A target is met or not by its figures alone. ``cause`` is printed only where it is missed, and on a busy machine that alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tools.results.markdown import duration, markdown, mebibytes, number
from tools.results.tables.bench_loop import runs as loop_runs
from tools.results.tables.bench_tick import runs as tick_runs

Figures = Mapping[str, Any]
GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Target:
    """``measure`` gives what is compared with ``limit``, at most which it may be; None where it was not measured.

    ``beside`` adds to what is shown.
    """

    what: str
    limit: float
    result: str
    measure: Callable[[Figures], float | None]
    show: Callable[[float], str]
    cause: str
    beside: Callable[[Figures], str] = lambda figures: ""

    def row(self, results: Mapping[str, Mapping[str, Any]]) -> tuple[str, str, str, str]:
        document = results.get(self.result)
        figures = None if document is None else document["figures"]
        value = None if figures is None else self.measure(figures)
        if document is None or figures is None or value is None:
            return (self.what, "not measured", "", f"`make bench ARGS={self.result.removeprefix('bench_')}`")
        return (self.what, self.show(value) + self.beside(figures), self._verdict(value, document), f"`{document['command']}`")

    def _verdict(self, value: float, document: Mapping[str, Any]) -> str:
        if round(value / self.limit, 2) <= 1.0:  # two runs differ by a percent
            return "met"
        load, cores = document.get("load", 0.0), document["machine"]["cores"]
        cause = f"the machine was busy (load {load:.0f} on {cores} cores)" if load > cores else self.cause
        return f"**missed, {number(value / self.limit)} times over**: {cause}"


def _of_tick(backends: int, part: str, key: str) -> Callable[[Figures], float | None]:
    def measure(figures: Figures) -> float | None:
        return next((float(run[part][key]) for run in tick_runs(figures) if run["backends"] == backends), None)

    return measure


def _beside_p50(backends: int) -> Callable[[Figures], str]:
    p99 = _of_tick(backends, "tick_seconds", "p99")
    cpu = _of_tick(backends, "tick_cpu_seconds", "p50")
    return lambda figures: f", p99 {duration(p99(figures) or 0.0)}; CPU {duration(cpu(figures) or 0.0)}"


def _growth(figures: Figures) -> float | None:
    """How the time of a tick grows from 1,000 to 10,000 backends, as a part of how the fleet grows."""
    small, large = (_of_tick(size, "tick_cpu_seconds", "p50")(figures) for size in (1_000, 10_000))
    return None if not small or not large else large / small / 10.0


def _resident(figures: Figures) -> float | None:
    return next((float(run["rss_bytes"]) for run in tick_runs(figures) if run["backends"] == 10_000), None)


def _tick(backends: int, limit_s: float) -> Target:
    return Target(
        f"a tick of {backends:,} backends under {duration(limit_s)}, on one core",
        limit_s,
        "bench_tick",
        _of_tick(backends, "tick_seconds", "p50"),
        lambda value: f"p50 {duration(value)}",
        "all that a tick does is Python and numpy; what is left is spread over scores, detectors, policies and the ledger",
        _beside_p50(backends),
    )


def _queries(figures: Figures) -> list[float]:
    return [float(count) for size in figures["sizes"] for count in size.get("queries", ())]


def _more_queries(figures: Figures) -> float | None:
    """How many times the fewest queries the most are: 1 where the size of the fleet does not count."""
    counts = _queries(figures)
    return max(counts) / min(counts) if counts else None


def _largest_read(figures: Figures) -> float | None:
    """10,000 as a part of the largest fleet that was read: 1 where it was all of them."""
    read = [int(size["backends"]) for size in figures["sizes"] if "left_out" not in size]
    return 10_000 / max(read) if read else None


def _largest_beside(figures: Figures) -> str:
    read = [size for size in figures["sizes"] if "left_out" not in size]
    largest = max(read, key=lambda size: int(size["backends"]))
    return f", in {duration(largest['seconds'])} with {duration(largest['reader_cpu_s'])} of our CPU"


def _block_e(figures: Figures) -> float | None:
    return max(float(kind["detectors"]["block_e"]["ns_per_update"]) for kind in figures["kinds"].values())


TARGETS = (
    _tick(100, 0.010),
    _tick(1_000, 0.100),
    _tick(10_000, 1.0),
    Target(
        "from 1,000 to 10,000 backends a tick grows no worse than linearly",
        1.0,
        "bench_tick",
        _growth,
        lambda value: f"{number(10 * value)} times the CPU for 10 times the backends",
        "a larger fleet fits less into the processor's caches",
    ),
    Target(
        "the watchdog of 10,000 backends under 1 GiB",
        GIB,
        "bench_tick",
        _resident,
        mebibytes,
        "histories and windows of every backend and signal",
    ),
    Target(
        "backends from a Prometheus-compatible server in a constant number of queries, whatever their number",
        1.0,
        "bench_prometheus",
        _more_queries,
        lambda value: "the same at every size" if value == 1.0 else f"{number(value)} times as many at one size as at another",
        "the number depends on the size of the fleet",
        lambda figures: f": {max(_queries(figures)):.0f} by the server's own count",
    ),
    Target(
        "10,000 backends read so",
        1.0,
        "bench_prometheus",
        _largest_read,
        lambda value: f"{10_000 / value:,.0f} were the most that were read",
        "one answer holds 180 series of each backend, for which the server has no memory or we no patience (30 s). "
        "Read the exporters directly, or shard",
        _largest_beside,
    ),
    Target(
        "an update of the drift test under 300 ns a sample, in batches (of 1,000)",
        300.0,
        "bench_drift",
        _block_e,
        lambda value: f"{number(value)} ns on the worst kind of stream",
        "the score of the load is computed for each request",
    ),
    Target(
        "the exporter under 1 % of a core for each backend at 1 Hz",
        0.01,
        "bench_exporter",
        lambda figures: float(figures["loop"]["cpu_ratio_per_backend"]),
        lambda value: f"{100 * value:.2f} %",
        "the page is larger than usual",
    ),
    Target(
        "`/metrics` from memory, in milliseconds (under 10 for ten backends)",
        10.0,
        "bench_exporter",
        lambda figures: float(figures["render"]["ours_ms"]),
        lambda value: f"{value:.1f} ms",
        "every line is written anew for each request",
    ),
    Target(
        "the tap adds under 1 ms to the first token (one stream, p50)",
        1.0,
        "bench_tap",
        lambda figures: float(figures["one_stream"]["added_first_token_ms"]["p50"]),
        lambda value: f"{value:.2f} ms",
        "engine, tap and client share two cores",
        lambda figures: f"; of {figures['streams']} streams {figures['paced']['added_first_token_ms']['p50']:.2f} ms",
    ),
    Target(
        "from the first page that reports a fault to the changed weight at the gateway, p99 under 1 s (tick 0.5 s)",
        1.0,
        "bench_loop",
        lambda figures: float(loop_runs(figures)[0]["fault_to_weight_seconds"]["p99"]),
        duration,
        "a write to the gateway and its reading back wait for the ledger's disk",
    ),
    Target(
        "a broken promise of the first token is answered by shedding within 800 ms, p99 (tick 0.5 s)",
        0.8,
        "bench_loop",
        lambda figures: float(loop_runs(figures)[0]["shedding"]["broken_page_to_level_seconds"]["p99"]),
        duration,
        "a write to the gateway and its reading back wait for the ledger's disk",
    ),
)


def summary(results: Mapping[str, Mapping[str, Any]]) -> str:
    return markdown(("target", "measured", "met?", "command"), (target.row(results) for target in TARGETS))
