"""One backend's finished requests, as the tap saw them, in counters and histograms of the catalogue. No I/O, no clock.

Which requests count where:

* Only a POST asks for work, and not every one: what lists models, asks for health or counts tokens is in the access log and
  nowhere else (`asks_for_work`).
* ``llm_requests_total`` counts every one, by outcome. Tokens count whenever they are known: the engine made them, whatever
  became of the request. Where answers end and none of them tells, the sum is not known and not published.
* Whole-request latency and decode time are of ``ok`` only. An aborted answer is cut short and would look fast.
* Time to first token, queue, prefill and inter-token times are of ``ok``, and of ``aborted`` once its first token had come:
  those times were over, and leaving them out would hide the answers that people give up on.
* ``error`` and ``rejected`` enter no histogram: a backend that refuses everything at once is not a fast one.
* An answer from the tap's own cache is a request, and nothing else: the backend neither worked nor waited.
* An answer that comes in one piece has no first token that the tap could see; only its whole latency is known.

What the stages are to a tap: the *queue* is the wait for a place under the tap's own concurrency limit; *prefill* is from
asking the backend to its first content token, so the engine's own queue is in it; *decode* is from there to the last. A time
between two content events is an inter-token time, also where the engine sends several tokens in one event.

Bounds: the model is the page's or the configured one and never the client's word, the canary revision is the client's and
is kept for the first ``catalog.CANARY.bound`` values; what comes after is ``other``.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate

from tailkeeper_exporter import catalog
from tailkeeper_exporter.catalog import Metric
from tailkeeper_exporter.page import Labels
from tailkeeper_exporter.readings import Histogram
from tailkeeper_exporter.tap.exchange import GAP_COUNTS, Exchange, is_work
from tailkeeper_exporter.tap.ownership import TAP_HISTOGRAMS

Output = tuple[str, Labels]
_TOKENS = (catalog.PROMPT_TOKENS.name, catalog.GENERATED_TOKENS.name)

MAX_VALUE_CHARS = 128
"""A canary revision is a version or a hash; a longer one is cut."""


def asks_for_work(exchange: Exchange) -> bool:
    """Whether this is a request for inference; an answered health page would look like a very fast one."""
    return is_work(exchange.method, exchange.path)


@dataclass(slots=True)
class _Counts:
    """A histogram that is being filled: counts per bucket, not cumulative, the last above all bounds."""

    bounds: tuple[float, ...]
    buckets: list[int]
    sum: float = 0.0

    def observe(self, value_s: float | None) -> None:
        """Count one time; one that is unknown or cannot be is left out."""
        if value_s is not None and _can_be(value_s):
            self.buckets[bisect_left(self.bounds, value_s)] += 1
            self.sum += value_s

    def observe_all(self, buckets: tuple[int, ...], sum_s: float) -> None:
        if len(buckets) == len(self.buckets) and min(buckets) >= 0 and _can_be(sum_s):
            self.buckets = [a + b for a, b in zip(self.buckets, buckets, strict=True)]
            self.sum += sum_s

    def histogram(self) -> Histogram:
        return Histogram((*self.bounds, float("inf")), tuple(map(float, accumulate(self.buckets))), self.sum)


def _empty(metric: Metric) -> _Counts:
    return _Counts(metric.buckets, [0] * (len(metric.buckets) + 1))


@dataclass(slots=True)
class _Cell:
    """All that is counted under one model label."""

    requests: dict[tuple[str, str], int] = field(default_factory=dict)
    """By outcome and canary revision."""
    tokens: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(_TOKENS, 0))
    """By metric. None where requests have ended and not one told: an answer without `usage` did not generate nothing."""
    times: dict[str, _Counts] = field(default_factory=lambda: {metric.name: _empty(metric) for metric in TAP_HISTOGRAMS})


class Meter:
    """What one backend's tap has counted since the exporter's start. Written in the event loop only."""

    def __init__(self, model: str, canary_revision: str) -> None:
        """Both as configured; empty where they are not."""
        self._model = model
        self._canary = canary_revision
        self._canaries = {canary_revision}
        self._cells: dict[str, _Cell] = {}
        self._of_page: tuple[str, ...] = ()
        self.version = 0
        """Rises with whatever changes the result."""

    def name_models(self, models: tuple[str, ...]) -> None:
        """The models that the page names now; until then, and for a page that names none, it is the configured one."""
        self.version += models != self._of_page
        self._of_page = models

    def take(self, exchange: Exchange) -> None:
        """Count one finished request."""
        self.version += 1
        cell = self._cell(self._label(exchange.model))
        outcome = exchange.outcome if exchange.outcome in catalog.OUTCOMES else "error"
        key = (outcome, self._revision(exchange.canary_revision))
        cell.requests[key] = cell.requests.get(key, 0) + 1
        if exchange.cache_hit:
            return
        _count_tokens(cell, catalog.PROMPT_TOKENS.name, exchange.prompt_tokens, outcome)
        _count_tokens(cell, catalog.GENERATED_TOKENS.name, exchange.generated_tokens, outcome)
        if outcome == "ok":
            _observe_whole(cell, exchange)
        if outcome == "ok" or (outcome == "aborted" and exchange.first_token_s is not None):
            _observe_stages(cell, exchange)

    def counters(self) -> dict[Output, float]:
        """By catalogue name and labels. Those of the model that counts now are there at 0 from the start."""
        found: dict[Output, float] = {}
        for model, cell in self._published():
            label = _model_label(model)
            revisions = dict.fromkeys([self._canary, *(canary for _, canary in cell.requests)])
            zeros = {(outcome, canary): 0 for canary in revisions for outcome in catalog.OUTCOMES}
            for (outcome, canary), count in (zeros | cell.requests).items():
                labels = tuple(sorted((*label, ("outcome", outcome), ("canary_revision", canary))))
                found[(catalog.REQUESTS.name, labels)] = float(count)
            found |= {(name, label): float(count) for name, count in cell.tokens.items() if count is not None}
        return found

    def histograms(self) -> dict[Output, Histogram]:
        """By catalogue name and labels, in the catalogue's buckets."""
        return {
            (name, _model_label(model)): counts.histogram()
            for model, cell in self._published()
            for name, counts in cell.times.items()
        }

    def label(self) -> Labels:
        """The model label of what has no model of its own: gauges."""
        return _model_label(self._label(None))

    def _published(self) -> list[tuple[str, _Cell]]:
        current = self._label(None)
        return list(({current: _Cell()} | self._cells).items())

    def _label(self, model: str | None) -> str:
        """The page's only model, the one of its models that was asked for, else the configured one."""
        if len(self._of_page) == 1:
            return self._of_page[0]
        return model if model is not None and model in self._of_page else self._model

    def _cell(self, model: str) -> _Cell:
        """The label's cell. A page may name other models each time, so there is a bound here as well."""
        if model not in self._cells and len(self._cells) >= catalog.MODEL.bound - 1:
            model = catalog.OTHER
        return self._cells.setdefault(model, _Cell())

    def _revision(self, sent: str | None) -> str:
        """The request's own value beats the backend's label."""
        value = self._canary if sent is None else sent[:MAX_VALUE_CHARS]
        if value not in self._canaries:
            if len(self._canaries) >= catalog.CANARY.bound - 1:
                return catalog.OTHER
            self._canaries.add(value)
        return value


def _model_label(model: str) -> Labels:
    return (("model", model),) if model else ()


def _count_tokens(cell: _Cell, name: str, told: int | None, outcome: str) -> None:
    """Add what a request told; an answer that ended well and does not tell, before any has, makes the sum unknown."""
    if told is not None:
        cell.tokens[name] = (cell.tokens[name] or 0) + max(told, 0)
    elif outcome == "ok" and cell.tokens[name] == 0:
        cell.tokens[name] = None


def _observe_whole(cell: _Cell, exchange: Exchange) -> None:
    cell.times[catalog.LATENCY.name].observe(exchange.end_s)
    if exchange.streaming is not False:
        cell.times[catalog.DECODE_TIME.name].observe(_between(exchange.first_token_s, exchange.last_token_s))


def _observe_stages(cell: _Cell, exchange: Exchange) -> None:
    cell.times[catalog.QUEUE_TIME.name].observe(exchange.sent_s)
    if exchange.streaming is False:
        return
    cell.times[catalog.TTFT.name].observe(exchange.first_token_s)
    cell.times[catalog.PREFILL_TIME.name].observe(_between(exchange.sent_s, exchange.first_token_s))
    if len(exchange.gaps) == GAP_COUNTS:
        cell.times[catalog.ITL.name].observe_all(exchange.gaps, exchange.gap_sum_s)


def _between(start_s: float | None, end_s: float | None) -> float | None:
    if start_s is None or end_s is None or not _can_be(start_s) or not _can_be(end_s):
        return None
    return end_s - start_s


def _can_be(time_s: float) -> bool:
    return 0.0 <= time_s <= catalog.MAX_REQUEST_S
