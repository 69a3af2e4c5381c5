"""The gauges that no engine publishes: hit ratio, token efficiency, memory pressure, CPU, saturated quantiles.

One per backend, owned by its collector; fed with each good page and the GPU snapshot of the moment. No I/O, no clock. What
cannot be known is ABSENT and not emitted.
"""

from __future__ import annotations

from collections.abc import Mapping

from tailkeeper_exporter import catalog
from tailkeeper_exporter.gpu import GpuSnapshot
from tailkeeper_exporter.page import Labels
from tailkeeper_exporter.page_reader import PageRead
from tailkeeper_exporter.readings import Reading, absent, present
from tailkeeper_exporter.windows import (
    RATE_WINDOW_S,
    RATIO_WINDOW_S,
    GpuMemory,
    Mark,
    Warmth,
    Window,
    hit_ratios,
    memory_headroom,
    saturation,
    token_efficiency,
    vram_pressure,
)

Output = tuple[str, Labels]


def gpu_memory(snapshot: GpuSnapshot, uuids: tuple[str, ...], now: float, stale_after_s: float) -> tuple[GpuMemory, ...]:
    """Memory of the backend's devices; empty unless every one of them is known and fresh: a part says nothing of the whole."""
    found: list[GpuMemory] = []
    for uuid in uuids:
        state = snapshot.of(uuid)
        if state is None or state.sample is None or state.taken_s is None or now - state.taken_s > stale_after_s:
            return ()
        total, used = state.sample.memory_total_bytes.value, state.sample.memory_used_bytes.value
        if total is None or used is None:
            return ()
        found.append(GpuMemory(uuid, total, used))
    return tuple(found)


class Derived:
    """Windows over one backend's pages, and what follows from them."""

    def __init__(self, preallocates: bool) -> None:
        self._preallocates = preallocates
        self._ratios = Window(RATIO_WINDOW_S)
        self._rates = Window(RATE_WINDOW_S)
        self._kv_usage: float | None = None
        self._cpu: tuple[float, float] | None = None
        self.warmth = Warmth()
        self.headroom: Reading[float] | None = None

    def take(self, read: PageRead, memory: tuple[GpuMemory, ...], warm: bool) -> dict[Output, Reading[float]]:
        """The derived gauges after one more good page; only those that are known."""
        if read.normalised is not None and read.normalised.restarted:
            self.warmth.forget()
        elif warm:
            self.warmth.take(memory)
        usage = [r.value for (name, _), r in read.gauges.items() if name == catalog.KV_USAGE.name and r.value is not None]
        # A restart does not make the counters fall: the normaliser carries them on.
        return self.take_mark(Mark(read.ended_s, read.counters, read.histograms), memory, usage)

    def take_mark(self, mark: Mark, memory: tuple[GpuMemory, ...], usage: list[float]) -> dict[Output, Reading[float]]:
        """The same from counters alone, of a page or of a tap. ``usage`` are the KV shares of the models, if known."""
        now = mark.at_s
        self._ratios.add(mark)
        self._rates.add(mark)
        self._kv_usage = max(usage, default=None)
        pressure = self.pressure(memory)
        efficiency = token_efficiency(memory, self._rates.rate(catalog.GENERATED_TOKENS))
        found = {output: present(value, now) for output, value in hit_ratios(self._ratios).items()}
        for metric, value in ((catalog.VRAM_PRESSURE, pressure), (catalog.TOKEN_EFFICIENCY, efficiency)):
            if value is not None and self._rates.ends() is not None:
                found[(metric.name, ())] = present(value, now)
        return found

    def pressure(self, memory: tuple[GpuMemory, ...]) -> float | None:
        """Memory pressure by the devices as given and by what the last page said."""
        preemptions = self._rates.rate(catalog.PREEMPTIONS)
        return vram_pressure(memory, self.warmth, self._preallocates, self._kv_usage, preemptions)

    def saturated(self, now: float) -> Mapping[str, Reading[float]]:
        """Per signal, 1 where P99 of the last minute is only known to be above the last finite bucket."""
        return {signal: present(float(above), now) for signal, above in saturation(self._ratios).items()}

    def take_headroom(self, memory: tuple[GpuMemory, ...], now: float) -> Reading[float]:
        """What is left of the GPUs' memory: of the warm baseline for engines that take all at start."""
        share = memory_headroom(memory, self.warmth, self._preallocates)
        reason = "no_fresh_sample_of_every_gpu" if not memory else "no_warm_baseline_yet"
        self.headroom = absent(reason) if share is None else present(share, now)
        return self.headroom

    def process_cpu(self, cpu_s: float | None, now: float) -> Reading[float]:
        """CPU use of the process that serves the page, as a share of one CPU: its event loop is one thread."""
        before, self._cpu = self._cpu, None if cpu_s is None else (now, cpu_s)
        if cpu_s is None or before is None or now <= before[0] or cpu_s < before[1]:
            return absent("the engine's process does not say, or has just started")
        return present(min(1.0, (cpu_s - before[1]) / (now - before[0])), now)
