"""Watches one backend: reads its page, asks for health, probes, pings its KV service, hears its tap, publishes one view.

Tasks of one backend share nothing with another's: own connections, own parser, own deadlines, so a slow or hostile backend
costs only its own readings. Within a backend at most one page read, one health request, one probe and one PING are open.
All state is written in the event loop, by this class only; readers get ``view``, a reference that is swapped. An exception
that nobody had foreseen ends here: it becomes a count under ``internal``, a log line, and a pause.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import httpx

from tailkeeper_exporter import catalog
from tailkeeper_exporter.clients import CredentialError, credentials
from tailkeeper_exporter.derive import Derived, gpu_memory
from tailkeeper_exporter.engines import engine_named
from tailkeeper_exporter.evidence import ALIVE, GONE, TAP_STALE_S, Answer, Evidence, Memory
from tailkeeper_exporter.gpu import GpuSampler, Trouble, trouble_of
from tailkeeper_exporter.kv_service import ping
from tailkeeper_exporter.liveness import Liveness, LivenessSettings, Why, step
from tailkeeper_exporter.node import NodeCpu, is_on_this_node
from tailkeeper_exporter.page_reader import HealthRead, PageRead, PageReader, read_health
from tailkeeper_exporter.probe import Prober, ProbeResult
from tailkeeper_exporter.probe_answer import Outcome
from tailkeeper_exporter.probe_plan import ProbeTiming, plan_probe
from tailkeeper_exporter.readings import present
from tailkeeper_exporter.settings import BackendSettings, ExporterSettings
from tailkeeper_exporter.state import State
from tailkeeper_exporter.tap.exchange import Exchange
from tailkeeper_exporter.tap.status import Taps
from tailkeeper_exporter.tap.watch import POLL_S, TapWatch, as_evidence
from tailkeeper_exporter.views import INTERNAL, BackendView, Source, SourceView
from tailkeeper_exporter.windows import GpuMemory, Mark

SUSPECT_INTERVAL_S = 1.0
"""While something is wrong a backend is looked at this often, however slowly it is scraped otherwise."""
KV_INTERVAL_S = 2.0
KV_DEADLINE_S = 1.0
"""Five times the limit for healthy, so that slow is told from silent."""
PAUSE_AFTER_BUG_S = 1.0
PAGE_SHARE = 0.05
"""Of one CPU that one backend's pages may take. vLLM's page takes 2 ms; a page of 8 MiB that is new in every line takes two
seconds, and is then read every 40 s only."""
RELOAD_S = 10.0
"""A refused credential is read anew from its file at most this often (it may have been rotated)."""
_WELL = (State.SERVING, State.BUSY)


class BackendCollector:
    """One backend. ``run`` watches until cancelled; ``view`` is the last that is known, at once."""

    def __init__(
        self,
        backend: BackendSettings,
        settings: ExporterSettings,
        client: httpx.AsyncClient,
        gpus: GpuSampler,
        cpu: NodeCpu,
        clock: Callable[[], float],
        log: Any,
        large_pages: asyncio.Semaphore,
        taps: Taps | None = None,
    ) -> None:
        """``taps`` are asked only for a backend that has one."""
        self._backend = backend
        self._settings = settings
        self._client = client
        self._gpus = gpus
        self._gpu_trouble: Trouble | None = None
        self._cpu = cpu
        self._clock = clock
        self._log = log.bind(backend=backend.name)
        self._engine = engine_named(backend.engine)
        self._reader = PageReader(client, backend, self._engine, clock, large_pages)
        self._has_page = self._reader.url is not None
        self._tap = (
            TapWatch(backend, self._engine, self._has_page, taps) if backend.tap is not None and taps is not None else None
        )
        self._prober = Prober(client, backend.url, self._engine, backend.model, backend.probe.first_token_timeout_s, clock)
        self._probing = backend.probe.enabled and self._prober.possible
        self._judging = LivenessSettings(
            no_progress_s=backend.hang.no_progress_s,
            probe_enabled=self._probing,
            probe_interval_s=backend.probe.interval_s,
        )
        self._timing = ProbeTiming(backend.probe.interval_s, backend.probe.first_token_timeout_s, backend.hang.no_progress_s)
        self._headers = credentials(backend)
        self._headers_read_s = clock()
        self._memory = Memory()
        self._derived = Derived(self._engine.preallocates)
        self._models: tuple[str, ...] = ()
        self._invalid: Counter[str] = Counter()
        self._probes: Counter[Outcome] = Counter()
        self._sources: dict[Source, SourceView] = {}
        self._health: HealthRead | None = None
        self._page_loads = False
        self._changed = asyncio.Event()
        self._started_s = clock()
        self.first_round = asyncio.Event()
        """Set when the first page read has ended, whatever came of it."""
        self._on_this_node = is_on_this_node(backend.url)
        self._stale_after_s = 3 * settings.scrape_interval_s + settings.scrape_timeout_s
        nothing = Liveness(State.UNKNOWN, (Why.NOTHING_YET,), (), self._started_s)
        self._gpu_stale_after_s = 3 * settings.gpu.interval_s + settings.scrape_timeout_s
        self.view = BackendView(
            backend,
            nothing,
            stale_after_s=self._stale_after_s,
            gpu_stale_after_s=self._gpu_stale_after_s,
            started_s=self._started_s,
            has_page=self._has_page,
        )

    async def run(self, delay_s: float = 0.0) -> None:
        """Watch until cancelled. ``delay_s`` spreads the first rounds of a fleet over one interval."""
        await asyncio.sleep(delay_s)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._for_ever(self._page_round))
            if self._probing:
                tasks.create_task(self._for_ever(self._probe_when_due))
            if self._backend.kv_service is not None:
                tasks.create_task(self._for_ever(self._kv_round))
            if self._tap is not None:
                tasks.create_task(self._for_ever(self._tap_round))

    async def _for_ever(self, once: Callable[[], Awaitable[None]]) -> None:
        """The boundary of one backend: a bug in one turn costs that turn."""
        while True:
            try:
                await once()
            except Exception as error:
                self.count_bug(once.__name__, error)
                self.first_round.set()
                await asyncio.sleep(PAUSE_AFTER_BUG_S)

    def count_bug(self, where: str, error: Exception) -> None:
        """Log and count an exception that nobody had foreseen. To be called where it is caught."""
        self._count({INTERNAL: 1})
        self._log.exception("internal error", where=where, error=type(error).__name__)
        self._step(Evidence())

    # --- the page, and the health page when there is doubt ---

    async def _page_round(self) -> None:
        started = self._clock()
        cost_s = await self._read_page() if self._has_page else self._note_no_page()
        self._note_gpus(self._clock())
        if self._health_is_due():
            await self._ask_health()
        self.first_round.set()
        interval = self._settings.scrape_interval_s
        if (self._has_page and self._memory.page.answer is not Answer.OK) or self._memory.state not in _WELL:
            interval = min(interval, SUSPECT_INTERVAL_S)
        interval = max(interval, cost_s / PAGE_SHARE)
        await asyncio.sleep(max(0.0, started + interval - self._clock()))

    async def _read_page(self) -> float:
        """Read the page once; the CPU seconds that it cost."""
        read = await self._reader.read(self._headers, self._settings.scrape_timeout_s)
        self._take_page(read)
        if read.denied:
            self._reload_credentials()
        return read.cost_s

    def _note_no_page(self) -> float:
        """A round of a backend without a page: its health page and our probe are all there is, and GPUs as ever."""
        now = self._clock()
        memory = self._gpu_memory(now)
        if self._backend.gpus:
            self.view = replace(self.view, memory_headroom=self._derived.take_headroom(memory, now))
        if self._tap is not None:
            numbers = self._tap.numbers()
            derived = self._derived.take_mark(Mark(now, numbers.counters, numbers.histograms), memory, [])
            self.view = replace(self.view, gauges=MappingProxyType(derived), saturated=self._derived.saturated(now))
        self.view = replace(self.view, asked=True)
        return 0.0

    def _gpu_memory(self, now: float) -> tuple[GpuMemory, ...]:
        uuids = tuple(device.uuid for device in self._gpus.match(self._backend.gpus).devices)
        return gpu_memory(self._gpus.snapshot(), uuids, now, self._gpu_stale_after_s)

    def _take_page(self, read: PageRead) -> None:
        good = read.normalised is not None
        self._note(Source.ENGINE, good, read.sent_s, read.ended_s, read.code, read.detail)
        self._count({reason.value: count for reason, count in read.problems.items()})
        self._page_loads = read.loading
        self._step(Evidence(page=read.seen))
        memory = self._gpu_memory(read.ended_s)
        if self._backend.gpus:
            self.view = replace(self.view, memory_headroom=self._derived.take_headroom(memory, read.ended_s))
        self.view = replace(self.view, asked=True)
        if good:
            self._publish_page(read, memory)

    def _is_known_not_to_run(self) -> bool:
        """Whether an engine whose page was never read cannot have counted anything yet: it is refused, or loading."""
        memory = self._memory
        if memory.work is not None or memory.life_s is not None:
            return False
        last = [memory.health.answer, memory.page.answer if memory.page_on_engine_url else None]
        return self._page_loads or Answer.REFUSED in last or Answer.LOADING in last

    def _publish_page(self, read: PageRead, memory: tuple[GpuMemory, ...]) -> None:
        found = read.normalised
        assert found is not None
        now = read.ended_s
        self._models = found.models
        if self._tap is not None:
            self._tap.take_page(found)
        warm = self.view.state in _WELL and self._memory.life_s is not None
        derived = self._derived.take(self._with_tap(read), memory, warm)
        cpu = self._cpu.read(now) if self._on_this_node else self._derived.process_cpu(found.cpu_s, now)
        kept_counters = {o: self.view.counters[o] for o in found.values if o in self.view.counters}
        kept_histograms = {o: self.view.histograms[o] for o in found.histograms if o in self.view.histograms}
        self.view = replace(
            self.view,
            # A counter that is invalid on this page keeps its last value: it has not gone away.
            counters=MappingProxyType(kept_counters | dict(read.counters)),
            histograms=MappingProxyType(kept_histograms | dict(read.histograms)),
            gauges=MappingProxyType({**read.gauges, **derived, (catalog.CPU_USAGE.name, ()): cpu}),
            missing=tuple(name for name in found.missing if self._tap is None or name not in self._tap.supplies),
            saturated=self._derived.saturated(now),
        )

    def _with_tap(self, read: PageRead) -> PageRead:
        """The page with what the tap supplies beside it, for what is derived from counters."""
        if self._tap is None:
            return read
        numbers = self._tap.numbers()
        return replace(read, counters={**read.counters, **numbers.counters}, histograms={**read.histograms, **numbers.histograms})

    def _health_is_due(self) -> bool:
        """Always while there is doubt; else now and then, because its word is weak and asking costs the engine."""
        if self._memory.page.answer is not Answer.OK or self._memory.state not in _WELL or self._memory.failed_probes > 0:
            return True
        if self._health is None or self._health.seen.answer is not Answer.OK:
            return True
        return self._clock() - self._health.sent_s >= self._backend.probe.interval_s

    async def _ask_health(self) -> None:
        url = self._backend.url + self._engine.health_path_of(self._backend.model)
        limit_s, not_ready = self._backend.probe.health_timeout_s, self._engine.not_ready_status
        read = await read_health(self._client, url, self._headers, limit_s, self._clock, not_ready)
        self._health = read
        self._note(Source.HEALTH, read.seen.answer is Answer.OK, read.sent_s, read.ended_s, read.code, read.detail)
        if read.seen.answer is Answer.DENIED:
            self._reload_credentials()
        self._step(Evidence(health=read.seen))

    # --- the probe ---

    async def _probe_when_due(self) -> None:
        await self.first_round.wait()
        now = self._clock()
        plan = plan_probe(self._memory, now, self._timing)
        if plan.due_s > now:
            await self._until_changed(plan.due_s - now)
            return
        share, sent = self._reader.share, now
        share.expect(sent)
        self.view = replace(self.view, open_probe_s=sent)
        try:
            result = await self._prober.ask(self._models, self._headers, plan.deadline_s)
        finally:
            self.view = replace(self.view, open_probe_s=None)
        seen = result.seen()
        if seen.answer in (Answer.REFUSED, Answer.UNREACHABLE, Answer.DENIED, Answer.CUT_OFF):
            share.forget(sent)
        if seen.answer is Answer.DENIED:
            self._reload_credentials()
        self._take_probe(result)

    def _take_probe(self, result: ProbeResult) -> None:
        seen = result.seen()
        self._probes[result.outcome] += 1
        self._note(Source.PROBE, seen.answer in ALIVE, result.sent_s, result.ended_s, result.code, result.detail)
        self.view = replace(self.view, probe=result, probes=MappingProxyType(dict(self._probes)))
        self._step(Evidence(probe=seen))

    async def _until_changed(self, wait_s: float) -> None:
        """Until ``wait_s`` is over or something new is known: then the plan may be another."""
        self._changed.clear()
        try:
            async with asyncio.timeout(wait_s):
                await self._changed.wait()
        except TimeoutError:
            return

    # --- the KV service ---

    async def _kv_round(self) -> None:
        url = self._backend.kv_service
        assert url is not None
        started = self._clock()
        result = await ping(url, KV_DEADLINE_S, self._clock)
        self._note(Source.KV_SERVICE, result.reason is None, started, result.ended_s, result.reason or "")
        self.view = replace(self.view, kv_ping=result, sources=MappingProxyType(dict(self._sources)))
        await asyncio.sleep(max(0.0, started + KV_INTERVAL_S - self._clock()))

    # --- the tap ---

    async def _tap_round(self) -> None:
        assert self._tap is not None
        now, known = self._clock(), self._sources.get(Source.TAP)
        status = self._tap.news(now)
        if status is not None:
            self._note(Source.TAP, True, None, status.at_s, "")
            self._step(Evidence(tap=as_evidence(status)))
        elif not self._tap.is_fresh(now) and (known.success if known is not None else now - self._started_s > TAP_STALE_S):
            self._note(Source.TAP, False, None, now, "no_report")
            self._step(Evidence())
        await asyncio.sleep(POLL_S)

    def take_exchange(self, exchange: Exchange) -> None:
        """Count a request that the backend's tap has finished."""
        if self._tap is not None:
            self._tap.take(exchange)

    def latest(self) -> BackendView:
        """``view`` with what the tap has counted, and with what follows from the newest sample of the GPUs.

        That may be younger than the page: else memory would be shown full, and its pressure not. How old the page is, which the
        pressure rests on too, it says as before.
        """
        if self._tap is not None and self.view.tap is not (numbers := self._tap.numbers()):
            self.view = replace(self.view, tap=numbers)
        if not self._backend.gpus:
            return self.view
        now, output = self._clock(), (catalog.VRAM_PRESSURE.name, ())
        memory, said = self._gpu_memory(now), self.view.gauges.get(output)
        pressure = self._derived.pressure(memory)
        gauges = self.view.gauges
        if pressure is not None and said is not None and said.taken_s is not None:
            gauges = MappingProxyType({**gauges, output: present(pressure, said.taken_s)})
        return replace(self.view, gauges=gauges, memory_headroom=self._derived.take_headroom(memory, now))

    def first_gpu(self) -> str | None:
        """UUID of the first of the backend's GPUs that is there."""
        devices = self._gpus.match(self._backend.gpus).devices if self._backend.gpus else ()
        return devices[0].uuid if devices else None

    # --- what all of them end in ---

    def _step(self, evidence: Evidence) -> None:
        now, before = self._clock(), self.view.liveness
        self._memory, liveness = step(self._memory, evidence, now, self._judging)
        if liveness.state is State.DOWN:
            self._derived.warmth.forget()
        if liveness.state is not before.state:
            self._log.info(
                "state", state=liveness.state.value, before=before.state.value, reasons=[why.value for why in liveness.reasons]
            )
        memory = self._memory
        self.view = replace(
            self.view,
            liveness=liveness,
            idle_counters=self._is_known_not_to_run(),
            up=_is_up(liveness.state, memory),
            sources=MappingProxyType(dict(self._sources)),
            invalid=MappingProxyType(dict(self._invalid)),
            progress_s=memory.progress_s,
            stalled_since_s=memory.stalled_since_s,
            in_flight=memory.in_flight(now),
            bad_probes=max(memory.failed_probes, memory.slow_probes),
        )
        self._changed.set()

    def _note(self, source: Source, success: bool, sent_s: float | None, ended_s: float, code: str, detail: str = "") -> None:
        """Remember how a source did; a failure is logged when it begins and when it changes, not each time."""
        before = self._sources.get(source)
        good = ended_s if success else before.good_s if before is not None else self._started_s
        took_s = None if sent_s is None else ended_s - sent_s
        self._sources[source] = SourceView(success, took_s, good, ended_s, "" if success else code)
        if before is None and success:
            return
        if before is None or (before.success, before.code) != (success, self._sources[source].code):
            if success:
                self._log.info("source is back", source=source.value)
            else:
                self._log.warning("source failed", source=source.value, reason=code, **({"detail": detail} if detail else {}))

    def _note_gpus(self, now: float) -> None:
        """Log what is wrong with the backend's GPUs when it begins, when it changes and when it is over."""
        before = self._gpu_trouble
        found = trouble_of(self._gpus.snapshot(), self._backend.gpus, now, self._gpu_stale_after_s)
        self._gpu_trouble = found
        if found is None and before is not None:
            self._log.info("source is back", source=Source.GPU.value)
        elif found is not None and (before is None or before.reason is not found.reason):
            self._log.warning("source failed", source=Source.GPU.value, reason=found.reason.value, detail=found.detail)

    def _count(self, problems: dict[str, int]) -> None:
        self._invalid.update({reason: count for reason, count in problems.items() if count})

    def _reload_credentials(self) -> None:
        now = self._clock()
        if now - self._headers_read_s < RELOAD_S:
            return
        self._headers_read_s = now
        try:
            self._headers = credentials(self._backend)
        except CredentialError as error:
            self._log.warning("credentials", error=str(error))


def _is_up(state: State, memory: Memory) -> bool | None:
    """``llm_backend_up``: whether the engine answered its last check; None while nothing is known of it."""
    if state in _WELL:
        return True
    if state in (State.HUNG, State.DOWN, State.STARTING):
        return False
    last = [s.answer for s in (memory.health, memory.probe) if s.answer is not None]
    if memory.page_on_engine_url and memory.page.answer is not None:
        last.append(memory.page.answer)
    if any(answer not in GONE for answer in last):
        return True
    return None
