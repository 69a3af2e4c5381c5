"""Reads one engine's metrics page: fetch, parse, normalise, and take our probes' share off. One read at a time.

The outcome is a value, also for every failure: what it says about liveness, the readings if any, and what was not used by
reason. A large page is parsed in a thread, one at a time over all backends; what that took is told, so that the collector can
read a costly page less often.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx

from tailkeeper_exporter import catalog
from tailkeeper_exporter.catalog import Metric
from tailkeeper_exporter.counters import CounterMemory
from tailkeeper_exporter.engines import Engine
from tailkeeper_exporter.evidence import Answer, HealthSeen, PageSeen, Work
from tailkeeper_exporter.exposition import PageParser
from tailkeeper_exporter.fetch import Fetched, FetchError, fetch
from tailkeeper_exporter.normalise import Normalised, normalise, wanted_by
from tailkeeper_exporter.page import MAX_BYTES, Labels, Page, PageError, Reason
from tailkeeper_exporter.probe_answer import is_loading
from tailkeeper_exporter.probe_share import ProbeShare
from tailkeeper_exporter.readings import Histogram, Reading
from tailkeeper_exporter.settings import BackendSettings
from tailkeeper_exporter.tls import TlsCode

Output = tuple[str, Labels]

THREAD_ABOVE_BYTES = 256 * 1024
"""Below it parsing takes a few milliseconds in the loop, less than the hand-over to a thread is worth."""
BYTES_PER_CPU_S = 50e6
"""What httpx receives in a second of CPU, on the slow side."""
MAX_HEALTH_BYTES = 65_536
_PROGRESS = (catalog.GENERATED_TOKENS, catalog.PROMPT_TOKENS)
_PROGRESS_HISTOGRAMS = (catalog.TTFT, catalog.ITL, catalog.LATENCY)


@dataclass(frozen=True, slots=True)
class PageRead:
    """One read. ``problems`` counts by reason what was not used; ``code`` says in one word why there is no page, ``detail`` in
    more where more is known."""

    seen: PageSeen
    sent_s: float
    ended_s: float
    normalised: Normalised | None = None
    counters: Mapping[Output, float] = field(default_factory=dict)
    histograms: Mapping[Output, Histogram] = field(default_factory=dict)
    gauges: Mapping[Output, Reading[float]] = field(default_factory=dict)
    problems: Mapping[Reason, int] = field(default_factory=dict)
    code: str = ""
    detail: str = ""
    cost_s: float = 0.0
    """CPU seconds that the page took: measured for parsing, estimated from its size for receiving."""
    denied: bool = False
    loading: bool = False


class PageReader:
    """The page of one backend, with all that must be remembered from one read to the next."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        backend: BackendSettings,
        engine: Engine,
        clock: Callable[[], float],
        large: asyncio.Semaphore,
    ) -> None:
        """``large`` is shared by all backends: one large page at a time is parsed."""
        self._client = client
        self._engine = engine
        self._clock = clock
        self._parser = PageParser(wanted_by(engine))
        self._memory = CounterMemory()
        self._large = large
        self._cost_s = 0.0
        self.share = ProbeShare(any(source.metric is catalog.REQUESTS for source in engine.sources))
        self.url = page_url(backend, engine)
        self.on_engine_url = self.url is not None and urlsplit(self.url)[:2] == urlsplit(backend.url)[:2]

    async def read(self, headers: Mapping[str, str], deadline_s: float) -> PageRead:
        """One read, ended ``deadline_s`` after now at the latest (and a large page's parsing after that).

        Only for a backend that has a page.
        """
        assert self.url is not None
        sent, self._cost_s = self._clock(), 0.0
        try:
            fetched = await fetch(self._client, self.url, headers, deadline_s, MAX_BYTES)
            self._cost_s = len(fetched.body) / BYTES_PER_CPU_S
            page = await self._parse(fetched)
        except PageError as error:
            return self._lost(error, sent)
        return self._normalised(page, sent, self._clock())

    async def _parse(self, fetched: Fetched) -> Page:
        if len(fetched.body) <= THREAD_ABOVE_BYTES:
            return self._parse_now(fetched)
        async with self._large:
            return await asyncio.to_thread(self._parse_now, fetched)

    def _parse_now(self, fetched: Fetched) -> Page:
        started = time.thread_time()
        try:
            return self._parser.parse(fetched.body, fetched.is_open_metrics)
        finally:
            self._cost_s += time.thread_time() - started

    def _lost(self, error: PageError, sent: float) -> PageRead:
        code = error.code if isinstance(error, FetchError) else error.reason.value
        if isinstance(error, FetchError):
            self._cost_s = error.received / BYTES_PER_CPU_S
        seen = PageSeen(page_answer(error), sent, code, on_engine_url=self.on_engine_url)
        status = error.status if isinstance(error, FetchError) else None
        return PageRead(
            seen,
            sent,
            self._clock(),
            problems={error.reason: 1},
            code=code,
            detail=error.detail,
            cost_s=self._cost_s,
            denied=status in (401, 403),
            loading=isinstance(error, FetchError) and status == 503 and is_loading(error.body),
        )

    def _normalised(self, page: Page, sent: float, now: float) -> PageRead:
        found = normalise(page, self._engine, self._memory, now)
        raw, whole = counted(found)
        gauges = {o: r for o, r in found.values.items() if not _is_counter(o)}
        work = _work(found, raw, whole, gauges)
        counters, histograms, own = self.share.take(raw, whole, now, sum(found.progress.values()), work.in_flight or 0.0)
        return PageRead(
            PageSeen(Answer.OK, sent, work=work, on_engine_url=self.on_engine_url, own_only=own),
            sent,
            now,
            found,
            counters,
            histograms,
            gauges,
            Counter(found.problems),
            cost_s=self._cost_s,
        )


def page_url(backend: BackendSettings, engine: Engine) -> str | None:
    """Where the page is: as configured, else the engine's usual place; None for an engine without one."""
    if backend.metrics_url is not None or engine.metrics_path is None:
        return backend.metrics_url
    if engine.metrics_port is None:
        return backend.url + engine.metrics_path
    parts = urlsplit(backend.url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}:{engine.metrics_port}{engine.metrics_path}"


def counted(found: Normalised) -> tuple[dict[Output, float], dict[Output, Histogram]]:
    """The counters and the histograms of a page that are known."""
    raw = {o: r.value for o, r in found.values.items() if r.value is not None and _is_counter(o)}
    return raw, {o: r.value for o, r in found.histograms.items() if r.value is not None}


def work_of(found: Normalised) -> Work:
    """What a page tells of work and standstill."""
    raw, whole = counted(found)
    return _work(found, raw, whole, {o: r for o, r in found.values.items() if not _is_counter(o)})


def _is_counter(output: Output) -> bool:
    return output[0].endswith("_total")


def _sum(gauges: Mapping[Output, Reading[float]], metric: Metric) -> float | None:
    values = [r.value for (name, _), r in gauges.items() if name == metric.name and r.value is not None]
    return sum(values) if values else None


def _work(
    found: Normalised,
    counters: Mapping[Output, float],
    histograms: Mapping[Output, Histogram],
    gauges: Mapping[Output, Reading[float]],
) -> Work:
    """What tells work from standstill. Of the requests only those that ended well: others a dead engine's door counts too."""
    moved: dict[str, float] = dict(found.progress)
    for (name, labels), value in counters.items():
        ok = name == catalog.REQUESTS.name and ("outcome", "ok") in labels
        if ok or any(name == metric.name for metric in _PROGRESS):
            moved[name] = moved.get(name, 0.0) + value
    for (name, _), histogram in histograms.items():
        if any(name == metric.name for metric in _PROGRESS_HISTOGRAMS):
            moved[name] = moved.get(name, 0.0) + histogram.count
    usage = [r.value for (name, _), r in gauges.items() if name == catalog.KV_USAGE.name and r.value is not None]
    return Work(
        running=_sum(gauges, catalog.RUNNING),
        waiting=_sum(gauges, catalog.WAITING),
        kv_usage_ratio=max(usage) if usage else None,
        counters=tuple(sorted(moved.items())),
        restarted=found.restarted,
    )


def page_answer(error: PageError) -> Answer:
    """What a lost page says about the engine: silence and refusal count, whatever else was answered does not.

    A handshake that fails is an answer too, and mostly about us: a certificate that runs out must not take a fleet down.
    """
    if not isinstance(error, FetchError) or error.answered:
        return Answer.UNUSABLE
    if error.reason is Reason.TLS:
        return Answer.CUT_OFF if error.tls is TlsCode.CUT_OFF else Answer.UNUSABLE
    if error.reason is Reason.REFUSED:
        return Answer.REFUSED
    if error.reason is Reason.TIMEOUT:
        return Answer.SILENT if error.accepted else Answer.UNREACHABLE
    # Reset as soon as it was used: a proxy on the way that has nobody behind it.
    return Answer.REFUSED if error.accepted else Answer.UNREACHABLE


@dataclass(frozen=True, slots=True)
class HealthRead:
    """One plain health request."""

    seen: HealthSeen
    sent_s: float
    ended_s: float
    code: str = ""
    detail: str = ""


async def read_health(
    client: httpx.AsyncClient,
    url: str,
    headers: Mapping[str, str],
    deadline_s: float,
    clock: Callable[[], float],
    not_ready: tuple[int, ...] = (),
) -> HealthRead:
    """Ask the engine's own health page. Its word is weak, but refusal, loading and silence are worth knowing.

    ``not_ready`` are statuses by which this engine says that no model is ready yet.
    """
    sent = clock()
    try:
        await fetch(client, url, headers, deadline_s, MAX_HEALTH_BYTES)
    except FetchError as error:
        answer = Answer.LOADING if error.status in not_ready else health_answer(error)
        code, detail = ("", "") if answer is Answer.OK else (error.code, error.detail)
        return HealthRead(HealthSeen(answer, sent, error.code), sent, clock(), code, detail)
    return HealthRead(HealthSeen(Answer.OK, sent), sent, clock())


def health_answer(error: FetchError) -> Answer:
    """What a health answer other than 200 means."""
    status = error.status
    if status is None:
        # 200 with a body that nobody needs to read to its end is as good as 200.
        if error.reason is Reason.TLS:
            return Answer.CUT_OFF if error.tls is TlsCode.CUT_OFF else Answer.DENIED
        return Answer.OK if error.reason is Reason.TOO_LARGE else page_answer(error)
    if status in (401, 403, 404):
        return Answer.DENIED
    if status == 503 and is_loading(error.body):
        return Answer.LOADING
    if status in (429, 529):
        return Answer.OVERLOADED
    if status >= 500:
        return Answer.ERROR
    return Answer.OK if status // 100 == 2 else Answer.UNUSABLE
