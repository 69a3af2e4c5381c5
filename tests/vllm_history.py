"""A made-up hour of vLLM pages, as a Prometheus would have scraped them. The names are those of a captured page.

Backends are what tests ask of them: well, slow after a while, standing still with work in flight and then silent, restarted,
or with a page that is half nonsense. Times are epoch seconds; one page each ``interval_s``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
PER_PAGE = 30
"""Requests that end between two pages."""

Sample = tuple[str, dict[str, str], float]


@dataclass
class Vllm:
    """One engine. Periods are seconds after the start of the history, from and to."""

    instance: str
    slow: tuple[float, float] | None = None
    partly_slow: tuple[float, float] | None = None
    """One request of twenty is."""
    frozen: tuple[float, float] | None = None
    silent: tuple[float, float] | None = None
    restarts_at: float | None = None
    nonsense: bool = False
    idle: bool = False
    model: str = "llama"
    done: float = 0.0
    counts: list[float] = field(default_factory=lambda: [0.0] * (len(BOUNDS) + 1))
    total_s: float = 0.0

    def page(self, after_s: float, interval_s: float) -> list[Sample]:
        """The page at this time; nothing while it is silent."""
        if self.restarts_at is not None and after_s - interval_s < self.restarts_at <= after_s:
            self.done, self.total_s, self.counts = 0.0, 0.0, [0.0] * (len(BOUNDS) + 1)
        frozen = _within(self.frozen, after_s)
        if not frozen and not self.idle:
            late = 1.0 if _within(self.slow, after_s) else 0.05 if _within(self.partly_slow, after_s) else 0.0
            self._serve(4.0, late * PER_PAGE)
            self._serve(0.2, (1.0 - late) * PER_PAGE)
        return [] if _within(self.silent, after_s) else list(self._samples(0.0 if self.idle else 9.0 if frozen else 3.0))

    def _serve(self, first_token_s: float, requests: float) -> None:
        self.done += requests
        self.total_s += requests * first_token_s
        for place, bound in enumerate((*BOUNDS, float("inf"))):
            self.counts[place] += requests * (first_token_s <= bound)

    def _samples(self, running: float) -> Iterator[Sample]:
        labels = {"model_name": self.model, "engine": "0"}
        yield "vllm:num_requests_running", labels, float("nan") if self.nonsense else running
        yield "vllm:num_requests_waiting", labels, 0.0
        yield "vllm:kv_cache_usage_perc", labels, 42.0 if self.nonsense else 0.4
        yield "vllm:generation_tokens_total", labels, 100.0 * self.done
        yield "vllm:request_success_total", labels | {"finished_reason": "stop"}, self.done
        for name in ("vllm:time_to_first_token_seconds", "vllm:e2e_request_latency_seconds"):
            for bound, count in zip((*map(str, BOUNDS), "+Inf"), self.counts, strict=True):
                yield f"{name}_bucket", labels | {"le": bound}, count
            yield f"{name}_count", labels, self.done
            yield f"{name}_sum", labels, self.total_s


def _within(period: tuple[float, float] | None, after_s: float) -> bool:
    return period is not None and period[0] <= after_s < period[1]


def samples(engines: tuple[Vllm, ...], start: float, seconds: float, interval_s: float) -> Iterator[tuple[Sample, float]]:
    """All samples with their times, ``up`` among them."""
    for number in range(int(seconds / interval_s) + 1):
        after_s = number * interval_s
        for engine in engines:
            target = {"instance": engine.instance, "job": "vllm"}
            page = engine.page(after_s, interval_s)
            yield ("up", target, float(bool(page))), start + after_s
            for name, labels, value in page:
                yield (name, labels | target, value), start + after_s


def open_metrics(engines: tuple[Vllm, ...], start: float, seconds: float, interval_s: float) -> str:
    """The same as promtool reads it: series by series."""
    series: dict[str, list[str]] = {}
    for (name, labels, value), at in samples(engines, start, seconds, interval_s):
        text = name + "{" + ",".join(f'{k}="{v}"' for k, v in sorted(labels.items())) + "}"
        series.setdefault(text, []).append(f"{text} {value} {at:.3f}")
    return "\n".join(line for lines in series.values() for line in lines) + "\n# EOF\n"
