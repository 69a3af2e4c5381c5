"""``block_e`` for a fleet: which requests go to which test, when a baseline begins and ends, and what an alarm means. Pure.

The method is ``drift/``'s. Each backend has up to two tests: over its request records, and over its buckets; the buckets are
judged only while there is no test over records, or no records come. A baseline is gathered in each life of an engine
(``Epoch``) and then frozen; one from ``watchdog.baselines`` is used in every life instead of gathering, because a person
says that it fits. While one is gathered, ``Memory.gathering`` says what is missing; that is no finding.

An alarm of one backend by itself is a ticket. It is a page where e-BH over its pool says so, which counts how many backends
are looked at. Scores that take no account of load (``is_raw``) find busy hours: they are severity info, and nothing more.
Requests that were aborted after their first token are counted: how long that token took is known, and leaving out those who
gave up waiting for the rest would be choosing among the latencies.

The tests are objects that the loop owns and that change in place; a baseline never changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from tailkeeper_exporter import catalog
from tailkeeper_watchdog.baseline_set import AnyBaseline, BaselineSet, Form
from tailkeeper_watchdog.detectors.base import Detector, Symptom
from tailkeeper_watchdog.drift import (
    BLOCK_E,
    Baseline,
    BlockE,
    BucketCollector,
    BucketE,
    BucketReading,
    Collector,
    FleetE,
    Rows,
    page_evidence,
    pages,
)
from tailkeeper_watchdog.drift.rows import PROMPT
from tailkeeper_watchdog.drift_watch import CONFIGURED, GATHERED, RESTORED, Alarm, Watch, seen_of, told_of
from tailkeeper_watchdog.forgetting import without
from tailkeeper_watchdog.model import EMPTY, Backend, Epoch, FindingKind, Pool, RequestRecord, Situation

SIGNAL = "ttft"
READ_SPACING_S = BLOCK_E.block_s
"""Between two readings of a backend's buckets: one block."""
SLICES = 20
RECORDS_FRESH_S = 60.0
"""Without a record for this long a backend's buckets are judged again."""
HOLD_S = 900.0
"""After an alarm the evidence starts anew, and a small drift at a low rate takes minutes to prove again: so long the symptom
stays without being proved once more."""
CALM_SHARE = 0.01
"""Of the evidence of an alarm. Without drift the evidence goes up and down below this; the last time it did is when the drift
began, near enough."""
STABLE_S = 24 * 3_600.0
"""A shift that was there for a whole day, load of night and day alike, is what is usual now. Nobody is asked, so it takes
that long."""
MAX_GATHERING = 256
"""Backends that gather over one form at a time, at 1 MB and less each; the others wait for a place."""
CAPACITY_ROWS = 20_000
_Line = tuple[float | None, ...]
"""One request, in the order of ``drift.COLUMNS``."""


@dataclass(frozen=True, slots=True)
class Memory:
    given: BaselineSet = field(default_factory=BaselineSet)
    """From the configuration: used in every epoch."""
    restored: BaselineSet = field(default_factory=BaselineSet)
    """From before the last start: used in the epoch in which a backend is first seen."""
    rows: Mapping[str, Watch] = field(default_factory=lambda: EMPTY)
    buckets: Mapping[str, Watch] = field(default_factory=lambda: EMPTY)
    tests: Mapping[str, BlockE] = field(default_factory=lambda: EMPTY)
    fleet: FleetE = field(default_factory=lambda: FleetE({}, BLOCK_E))
    """The same ``tests`` over records, to be updated together; made anew when one comes or goes."""

    def watches(self) -> Iterator[tuple[str, Form, Watch]]:
        yield from ((name, Form.ROWS, watch) for name, watch in self.rows.items())
        yield from ((name, Form.BUCKETS, watch) for name, watch in self.buckets.items())

    def of(self, backend: str) -> list[Watch]:
        return [found[backend] for found in (self.rows, self.buckets) if backend in found]

    @property
    def gathering(self) -> dict[str, str]:
        """For each backend without a test, what is missing for one, in words. Records come before buckets."""
        told = {name for name, _, watch in self.watches() if watch.test is not None}
        waits = {name: _missing(w) for found in (self.buckets, self.rows) for name, w in found.items()}
        return {name: why for name, why in waits.items() if name not in told}

    @property
    def baselines(self) -> BaselineSet:
        """Those in use that were gathered here, by backend; the configuration's are in ``given``."""
        used = ((name, form, w) for name, form, w in self.watches() if w.source != CONFIGURED)
        return BaselineSet({(name, form): w.test.baseline for name, form, w in used if w.test is not None}, {})


def _missing(watch: Watch) -> str:
    if watch.collector is None:
        return f"waits for a place: {MAX_GATHERING} backends gather a baseline at a time"
    why = f" (new, because {watch.why_new})" if watch.why_new else ""
    return f"{watch.collector.missing() or 'its baseline is being fitted'}{why}"


def detect(situation: Situation, memory: Memory) -> tuple[Memory, tuple[Symptom, ...]]:
    memory = _with_fleet(_with_watches(situation, memory))
    _feed_records(situation, memory)
    _feed_buckets(situation, memory)
    _page(situation, memory)
    return memory, tuple(_symptoms(memory, situation.snapshot.now))


def _symptoms(memory: Memory, now: float) -> Iterator[Symptom]:
    """One for a backend: what its records say comes before what its buckets say."""
    told: set[str] = set()
    for name, form, watch in memory.watches():
        if watch.alarm is not None and now - watch.alarm.last_at <= HOLD_S and name not in told:
            told.add(name)
            severity, summary, evidence = told_of(name, form, watch, watch.alarm, STABLE_S)
            yield Symptom(FindingKind.BLOCK_E, name, severity, summary, evidence, SIGNAL)


# Baselines


def _models(situation: Situation, backend: Backend) -> frozenset[str]:
    epoch = situation.epoch(backend.name)
    return epoch.models or (frozenset({backend.model}) if backend.model else frozenset())


def _with_watches(situation: Situation, memory: Memory) -> Memory:
    """With a watch for each form that a backend has shown, of its present epoch, and a collector for as many as there is room."""
    rows, buckets = dict(memory.rows), dict(memory.buckets)
    for backend in situation.snapshot.backends:
        name, epoch = backend.name, situation.epoch(backend.name)
        known = buckets.get(name)
        if known is None or known.epoch != epoch.number:
            seen = situation.fresh(name)
            if seen is not None and catalog.TTFT.name in seen.histograms:
                place = len(buckets)
                buckets[name] = _new_watch(situation, backend, memory, Form.BUCKETS, epoch)
                # Spread over a block's time, or every tenth second would be the whole fleet's.
                buckets[name].fed_at = situation.snapshot.now - READ_SPACING_S * (1.0 - place % SLICES / SLICES)
        known = rows.get(name)
        if (known is None or known.epoch != epoch.number) and (known is not None or situation.requests(name)):
            rows[name] = _new_watch(situation, backend, memory, Form.ROWS, epoch)
    _admit(rows, Form.ROWS)
    _admit(buckets, Form.BUCKETS)
    return replace(memory, rows=rows, buckets=buckets)


def _new_watch(situation: Situation, backend: Backend, memory: Memory, form: Form, epoch: Epoch) -> Watch:
    models, wall = _models(situation, backend), situation.snapshot.time_unix_s
    baseline, source = memory.given.of(backend.name, models, form), CONFIGURED
    if baseline is None and epoch.number == 0:
        baseline, source = _of_model(memory.restored.of(backend.name, models, form), models), RESTORED
    watch = Watch(epoch.number, source=source, why_new=epoch.why if epoch.number else "", calm_unix_s=wall)
    if baseline is not None:
        watch.test = _test(baseline)
    return watch


def _of_model(baseline: AnyBaseline | None, models: frozenset[str]) -> AnyBaseline | None:
    """A restored one only where the backend serves what it served then."""
    if baseline is None or (baseline.model_id and models and baseline.model_id not in models):
        return None
    return baseline


def _test(baseline: AnyBaseline) -> BlockE | BucketE:
    return BlockE(baseline) if isinstance(baseline, Baseline) else BucketE(baseline)


def _admit(watches: Mapping[str, Watch], form: Form) -> None:
    """Give those that wait a collector, as far as there is room."""
    waiting = [w for w in watches.values() if w.test is None and w.collector is None]
    if not waiting:
        return
    room = MAX_GATHERING - sum(watch.collector is not None for watch in watches.values())
    for watch in waiting[: max(0, room)]:
        watch.collector = Collector(capacity=CAPACITY_ROWS) if form is Form.ROWS else BucketCollector()
        watch.source = GATHERED


def _settle(situation: Situation, backend: str, watch: Watch) -> None:
    """Fit the baseline as soon as enough is gathered. Where what was gathered makes none, begin again."""
    collector = watch.collector
    if collector is None or collector.missing() is not None:
        return
    model_id = next(iter(sorted(situation.epoch(backend).models)), "")
    watch.collector = None
    try:
        watch.test = _test(collector.fit(model_id=model_id, created_at_s=situation.snapshot.time_unix_s))
    except ValueError as error:
        watch.why_new = f"what was gathered makes no baseline: {error}"


def _with_fleet(memory: Memory) -> Memory:
    tests = {name: watch.test for name, watch in memory.rows.items() if isinstance(watch.test, BlockE)}
    same = tests.keys() == memory.tests.keys() and all(memory.tests[name] is test for name, test in tests.items())
    return memory if same else replace(memory, tests=tests, fleet=FleetE(tests, BLOCK_E))


# Evidence


def rows_of(records: Iterable[RequestRecord], heard_unix_s: float) -> list[_Line]:
    """Requests that saw a first token, in the order of ``drift.COLUMNS``.

    Each counts when it ended, because a tap or a span tells of it then: by first tokens a block would stay open for as long as
    its slowest answer takes, most of all on an engine that became slow. Those without a start count when they were heard of.
    """
    return [
        (
            heard_unix_s if record.start_unix_s is None else record.start_unix_s + max(record.ttft_s, record.e2e_s or 0.0),
            record.ttft_s,
            record.prompt_tokens,
            record.backlog_tokens,
            record.running,
            record.waiting,
        )
        for record in records
        if record.outcome in ("ok", "aborted") and record.ttft_s is not None
    ]


def with_prompts(lines: list[_Line], recent: Iterable[_Line]) -> list[_Line]:
    """The lines, with the median prompt of ``recent`` where they do not tell theirs.

    An engine says how long a prompt was with the last token of its answer, so of an answer that was aborted nobody knows.
    Left out, the ones who gave up would leave only those who had it quick.
    """
    if all(line[PROMPT] is not None for line in lines):
        return lines
    known = [prompt for line in (*recent, *lines) if (prompt := line[PROMPT]) is not None]
    if not known:
        return lines
    usual = median(known)
    return [line if line[PROMPT] is not None else (*line[:PROMPT], usual, *line[PROMPT + 1 :]) for line in lines]


def _feed_records(situation: Situation, memory: Memory) -> None:
    snapshot = situation.snapshot
    batches: dict[str, Rows] = {}
    for name, records in situation.records.items():
        watch = memory.rows.get(name)
        lines = rows_of(records, snapshot.time_unix_s)
        if watch is None or not lines:
            continue
        watch.fed_at = snapshot.now
        watch.recent.extend(lines)
        lines = with_prompts(lines, watch.recent)
        if watch.test is not None:
            batches[name] = Rows.of(lines)
        elif isinstance(watch.collector, Collector):
            watch.collector.add(Rows.of(lines))
            _settle(situation, name, watch)
    alarms = memory.fleet.update(batches)
    for name in batches:
        reached = max((alarm.evidence for alarm in alarms.get(name, ())), default=None)
        _judge(situation, memory.rows[name], reached)


def _feed_buckets(situation: Situation, memory: Memory) -> None:
    now = situation.snapshot.now
    for name, watch in memory.buckets.items():
        if now - watch.fed_at < READ_SPACING_S or (watch.test is None and watch.collector is None):
            continue
        rows = memory.rows.get(name)
        if rows is not None and rows.test is not None and now - rows.fed_at <= RECORDS_FRESH_S:
            continue
        seen = situation.fresh(name)
        histogram = seen.histograms.get(catalog.TTFT.name) if seen else None
        if seen is None or seen.age_s is None or histogram is None:
            continue
        # By the time of its turn and not by now: after one long tick the whole fleet would have its turn at once, for ever.
        watch.fed_at = now - (now - watch.fed_at) % READ_SPACING_S
        load = (seen.value(catalog.RUNNING.name), seen.value(catalog.WAITING.name), seen.value(catalog.GENERATED_TOKENS.name))
        reading = BucketReading(now - seen.age_s, histogram, *load)
        watch.readings.append(reading)
        if isinstance(watch.test, BucketE):
            _judge(situation, watch, watch.test.update(reading))
        elif isinstance(watch.collector, BucketCollector):
            watch.collector.add(reading)
            _settle(situation, name, watch)


def _judge(situation: Situation, watch: Watch, reached: float | None) -> None:
    """Note an alarm, and since when the evidence has been rising."""
    if watch.test is None:
        return
    evidence, snapshot = watch.test.evidence, situation.snapshot
    if watch.alarm is not None and snapshot.now - watch.alarm.last_at > HOLD_S:
        watch.alarm = None
    if reached is not None:
        if watch.alarm is None:
            blocks = evidence.blocks - watch.calm_block
            watch.alarm = Alarm(watch.calm_unix_s, snapshot.time_unix_s, snapshot.now, snapshot.now, reached, blocks)
        watch.alarm.last_at, watch.alarm.evidence = snapshot.now, reached
        watch.alarm.seen = seen_of(watch, watch.alarm.began_unix_s) or watch.alarm.seen
    if evidence.value < CALM_SHARE * watch.test.baseline.design.alarm_evidence and watch.alarm is None:
        watch.calm_unix_s, watch.calm_block = snapshot.time_unix_s, evidence.blocks
    if watch.alarm is not None and snapshot.now - watch.alarm.first_at >= STABLE_S and watch.source != CONFIGURED:
        _take_for_usual(watch)


def _take_for_usual(watch: Watch) -> None:
    """After a day the shift is no news any more: a new baseline begins, and the finding closes by itself."""
    watch.test, watch.alarm, watch.source = None, None, GATHERED
    watch.why_new = f"the shift was there for {STABLE_S / 3600:.0f} hours and is taken for usual"


def _page(situation: Situation, memory: Memory) -> None:
    """Mark the backends that are a page; their evidence for the next one starts anew."""
    backends = situation.snapshot.backends
    least = page_evidence(1)  # what each needs where all of a fleet are one pool and page together: nobody pages with less
    if not any(_page_value(watch) >= least for _, _, watch in memory.watches()):
        return
    pools: dict[Pool, dict[str, float | None]] = {}
    for backend in backends:
        own = max((_page_value(watch) for watch in memory.of(backend.name)), default=None)
        pools.setdefault(backend.pool, {})[backend.name] = own
    for of_pool in pools.values():
        for name in pages(of_pool, len(backends)):
            _start_page(situation, max(memory.of(name), key=_page_value))


def _page_value(watch: Watch) -> float:
    """Raw scores are no evidence for a page."""
    return 0.0 if watch.test is None or watch.test.baseline.is_raw else watch.test.evidence.page_value


def _start_page(situation: Situation, watch: Watch) -> None:
    if watch.test is None or watch.test.baseline.is_raw:
        return
    snapshot, reached = situation.snapshot, watch.test.evidence.page_value
    if watch.alarm is None:
        blocks = watch.test.evidence.blocks - watch.calm_block
        watch.alarm = Alarm(watch.calm_unix_s, snapshot.time_unix_s, snapshot.now, snapshot.now, reached, blocks)
    watch.alarm.page_evidence, watch.alarm.last_at = reached, snapshot.now
    watch.alarm.seen = seen_of(watch, watch.alarm.began_unix_s) or watch.alarm.seen
    watch.test.evidence.start_page()


def forget(memory: Memory, gone: frozenset[str]) -> Memory:
    """The memory without the tests and the baselines of backends that are gone; what the configuration gives stays."""
    restored = replace(memory.restored, backends=without(memory.restored.backends, gone))
    kept = replace(memory, rows=without(memory.rows, gone), buckets=without(memory.buckets, gone), restored=restored)
    return _with_fleet(kept)


DETECTOR = Detector("block_e", (FindingKind.BLOCK_E,), Memory, detect, close_after_s=60.0, forget=forget)
