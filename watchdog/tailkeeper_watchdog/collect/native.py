"""One backend from an engine's own series, without our exporter: the same tables and rules, and what cannot be known left open.

Nobody asks the engine anything here, so nobody can say that it hangs: work in flight without progress makes the state
unknown, and `standstill` says since when our probe would have been sent. Pure but for what it remembers of its backend.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tailkeeper_exporter import catalog
from tailkeeper_exporter.catalog import BY_NAME, Merge
from tailkeeper_exporter.counters import CounterMemory
from tailkeeper_exporter.derive import Derived
from tailkeeper_exporter.engines import Engine
from tailkeeper_exporter.evidence import Work
from tailkeeper_exporter.exposition import Reason, SeriesKey, page_of
from tailkeeper_exporter.normalise import Normalised, normalise
from tailkeeper_exporter.page_reader import counted, work_of
from tailkeeper_exporter.readings import Histogram, Reading, present
from tailkeeper_exporter.state import State
from tailkeeper_exporter.windows import Mark
from tailkeeper_watchdog.model import BackendObservation

STILL_PAGES = 2
"""Pages in a row without progress before it counts: a prefill may well last from one scrape to the next."""
_RISE = 1e-9


@dataclass(frozen=True, slots=True)
class Standstill:
    """Work in flight, and since when none of it is known to move. ``blind`` where the pages themselves have ended."""

    since_s: float
    in_flight: float
    blind: bool


class NativeBackend:
    """What must be remembered of one backend from one page to the next. ``no_progress_s`` as in `hang` of the configuration.

    ``trusted`` says that an idle engine counts as serving before it was ever seen at work. Where its state may bring traffic
    back to it, that would be rash: a frozen engine whose clients have given up looks idle. After a standstill only progress
    makes it serve again, trusted or not.
    """

    def __init__(self, name: str, engine: Engine, no_progress_s: float, trusted: bool) -> None:
        self._name, self._engine, self._no_progress_s = name, engine, no_progress_s
        self._alive = trusted
        self._memory = CounterMemory()
        self._derived = Derived(engine.preallocates)
        self._work: Work | None = None
        self._taken_s = float("-inf")
        self._still_since_s: float | None = None
        self._still_pages = 0
        self.problems: Counter[Reason] = Counter()
        self.missing: frozenset[str] = frozenset()

    @property
    def engine(self) -> str:
        """The engine's name."""
        return self._engine.name

    def take(self, samples: Iterable[tuple[SeriesKey, float]], at: float) -> BackendObservation:
        """The observation by one page, taken at ``at`` (seconds of the clock of the caller)."""
        found = normalise(page_of(samples), self._engine, self._memory, at)
        self.problems.update(found.problems)
        self.missing = frozenset(found.missing)
        self._watch(work_of(found), at)
        readings = self._readings(found, at)
        state, why = self._state(found, at)
        return BackendObservation(self._name, state, 0.0, why or None, readings, _histograms(found))

    def standstill(self, now: float, stale_after_s: float) -> Standstill | None:
        """Since when there has been work in flight without known progress, if for long enough to have been asked."""
        in_flight = None if self._work is None else self._work.in_flight
        if not in_flight:
            return None
        if now - self._taken_s > stale_after_s:
            return Standstill(self._still_since_s or self._taken_s, in_flight, True)
        since = self._still_since_s
        if since is None or self._still_pages < STILL_PAGES or now - since < self._no_progress_s:
            return None
        return Standstill(since, in_flight, False)

    def _watch(self, work: Work, at: float) -> None:
        """Whether something moved since the page before."""
        before, since = self._work, self._taken_s
        self._work, self._taken_s = work, at
        moved = before is not None and not work.restarted and _moved(before, work)
        self._alive = self._alive or moved
        if before is None or not work.in_flight or work.restarted or moved:
            self._still_since_s, self._still_pages = None, 0
            return
        self._still_pages += 1
        if self._still_since_s is None:
            self._still_since_s = since

    def _state(self, found: Normalised, at: float) -> tuple[State, str]:
        if not any(reading.is_present for reading in found.values.values()):
            return State.UNKNOWN, f"the page has none of the series of {self._engine.name} that could be used"
        still = self.standstill(at, float("inf"))
        if still is not None:
            self._alive = False
            seconds = at - still.since_s
            why = f"{still.in_flight:.0f} in flight and no progress for {seconds:.0f} s; busy or hung, nobody asked"
            return State.UNKNOWN, why
        if not self._alive:
            return State.UNKNOWN, "no progress has been seen yet, and nobody asked"
        work = self._work
        return (State.BUSY if work is not None and work.waiting else State.SERVING), ""

    def _readings(self, found: Normalised, at: float) -> dict[str, Reading[float]]:
        values: dict[str, float] = {}
        for (name, labels), reading in found.values.items():
            if reading.value is not None:
                slot = f"{name}{{{dict(labels)['outcome']}}}" if name == catalog.REQUESTS.name else name
                known = values.get(slot)
                merged = max if BY_NAME[name].merge is Merge.MAX else _plus
                values[slot] = reading.value if known is None else merged(known, reading.value)
        for name, reading in self._derive(found, at).items():
            if reading.value is not None:
                values[name] = reading.value
        return {slot: present(value, at) for slot, value in values.items()}

    def _derive(self, found: Normalised, at: float) -> dict[str, Reading[float]]:
        """What no engine publishes. GPUs are not known here, and what needs them stays unknown."""
        counters, histograms = counted(found)
        usage = [r.value for (name, _), r in found.values.items() if name == catalog.KV_USAGE.name and r.value is not None]
        derived = self._derived.take_mark(Mark(at, counters, histograms), (), usage)
        whole = {name: reading for (name, labels), reading in derived.items() if not labels}
        return whole | {catalog.CPU_USAGE.name: self._derived.process_cpu(found.cpu_s, at)}


def _plus(a: float, b: float) -> float:
    return a + b


def _moved(before: Work, now: Work) -> bool:
    """Whether a counter of progress rose, or the KV cache fills. A counter that is new on the page tells nothing yet."""
    then = dict(before.counters)
    if any(value > then.get(name, value) for name, value in now.counters):
        return True
    a, b = before.kv_usage_ratio, now.kv_usage_ratio
    return a is not None and b is not None and b > a + _RISE


def _histograms(found: Normalised) -> dict[str, Histogram]:
    """By catalogue name, models added up. Where they have different buckets the sum would be a lie, and there is none."""
    merged: dict[str, Histogram] = {}
    refused: set[str] = set()
    for (name, _), reading in found.histograms.items():
        one, known = reading.value, merged.get(name)
        if one is None or (known is not None and known.bounds != one.bounds):
            refused.add(name)
        elif known is None:
            merged[name] = one
        else:
            counts = tuple(a + b for a, b in zip(known.counts, one.counts, strict=True))
            merged[name] = replace(known, counts=counts, sum=known.sum + one.sum)
    return {name: histogram for name, histogram in merged.items() if name not in refused}
