"""Fit the time that an engine waits to fill a batch to how requests arrive, and to the tail latency that is allowed.

How irregular arrivals are is the Shannon entropy H of the times between them in five bins (up to 5, 20, 50, 100 ms, and more),
over log 5, so that 1 is as irregular as can be. Every 5 s:

* H above 0.75: halve the window, down to 10 ms (0.89 halves).
* H from 0.4 to 0.75: keep it.
* H below 0.4: grow it by 20 %, up to 200 ms.

Hard limit: while the P99 is over its target of 200 ms, the window shrinks by a factor of 0.9 for each 100 ms that pass, at most
by half a tick, down to 50 ms. Where no arrivals are told it grows back by 20 % a step while the P99 is within its target, and is
given back. Breaker: three looks in a row at batches that took longer than 300 ms set the window to its floor; after 5 s without a
request it is half open, and the next batch closes it or opens it again.

Where an engine has a window (Triton's queue delay, Ray Serve's batch wait), that is turned, and the P99 is that of the first
token, or of the whole answer where no first token is told. An engine that batches continuously has none; there the limit and the
breaker drive the concurrency limit of the gateway or the tap, by the P99 of the time between tokens, which is what a fuller batch
costs: down by 20 % each 10 s while it is over, up by 20 % after that, given back at twice what is in use. One that is drained, or
was in the last 10 s, gets no limit: what was left in it says nothing of how full a batch may be. The entropy moves no concurrency
limit: irregular arrivals are no reason to turn requests away. Where no gateway has either knob, there is nothing to control and
nothing is written down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import exp, log

from tailkeeper_exporter import catalog
from tailkeeper_watchdog.model import (
    EMPTY,
    Backend,
    BackendObservation,
    DesiredState,
    Knob,
    KnobValue,
    Mode,
    RequestRecord,
    Situation,
)
from tailkeeper_watchdog.policies.base import Policy, has_a_drain
from tailkeeper_watchdog.policy_params import AdaptiveBatchWindowParams

NAME = "adaptive_batch_window"
BINS_S = (0.005, 0.020, 0.050, 0.100)
"""Upper bounds of the first four bins; the fifth has no end."""
MAX_ARRIVALS = 512
"""Remembered of one backend."""
ROUNDING_S = 1e-6
SHRINK_EVERY_S = 0.1
PEAK_KEPT_PER_S = 0.99


@dataclass(frozen=True, slots=True)
class Controller:
    """What is remembered of one backend. Times are monotonic seconds unless named otherwise."""

    arrivals_unix_s: tuple[float, ...] = ()
    """Of its latest requests, by the exporter's clock, in the order in which they were told of."""
    took_s: tuple[float | None, ...] = ()
    """How long each of these took; None is not known."""
    worked_at: float | None = None
    """When a request was last under way or finished."""
    slow_batches: int = 0
    """In a row."""
    open: bool = False
    half_open: bool = False
    peak: float = 0.0
    """Most requests seen running; forgotten by one percent a second."""
    value: float | None = None
    """The window in seconds, or the limit in requests, that this policy has it at; None where it wants none."""
    knob: Knob = Knob.BATCH_WINDOW_S
    seen_at: float | None = None
    drained_at: float | None = None
    """When it was last seen drained."""
    stepped_at: float = float("-inf")


@dataclass(frozen=True, slots=True)
class Memory:
    controllers: Mapping[str, Controller] = field(default_factory=lambda: EMPTY)


def entropy(gaps_s: Iterable[float]) -> float | None:
    """Shannon entropy of the times between arrivals in five bins, over log 5: 0 is regular, 1 as irregular as can be."""
    counts = Counter(sum(gap > bound for bound in BINS_S) for gap in gaps_s)
    total = counts.total()
    if not total:
        return None
    return max(0.0, -sum(n / total * log(n / total) for n in counts.values()) / log(len(BINS_S) + 1))


def by_entropy(window_s: float, h: float, params: AdaptiveBatchWindowParams) -> float:
    """The window after one step for arrivals of that entropy; seconds."""
    if h > params.irregular_above:
        return max(params.floor_s, window_s / 2)
    if h < params.regular_below:
        return min(params.ceiling_s, window_s * params.growth)
    return window_s


def shrunk(window_s: float, elapsed_s: float, params: AdaptiveBatchWindowParams) -> float:
    """The window after ``elapsed_s`` with the P99 over its target: never raised, at most halved."""
    factor = max(0.5, exp(log(params.shrink) * elapsed_s / SHRINK_EVERY_S))
    return min(window_s, max(params.limited_floor_s, window_s * factor))


def decide(
    situation: Situation, params: AdaptiveBatchWindowParams, mode: Mode, memory: Memory
) -> tuple[Memory, tuple[DesiredState, ...]]:
    """A window or a limit for each backend whose arrivals or latency are known."""
    if not memory.controllers and situation.knobs_told.isdisjoint((Knob.BATCH_WINDOW_S, Knob.CONCURRENCY_LIMIT)):
        return memory, ()
    controllers: dict[str, Controller] = {}
    desired: list[DesiredState] = []
    for backend in situation.snapshot.backends:
        name, seen = backend.name, situation.fresh(backend.name)
        windowed = situation.knob(backend, Knob.BATCH_WINDOW_S) is not None
        if not windowed and situation.knob(backend, Knob.CONCURRENCY_LIMIT) is None:  # nothing to control, or not to be seen now
            if name in memory.controllers:
                controllers[name] = replace(memory.controllers[name], seen_at=None)
            continue
        before = memory.controllers.get(name, Controller())
        if windowed:
            before = _arrived(before, situation.requests(name))
        if seen is None:  # unknown turns nothing; how long it lasts is not held against the backend either
            controllers[name] = replace(before, seen_at=None)
            continue
        controller = _watched(before, seen, situation, params)
        after, reason = (_window if windowed else _limit)(controller, backend, situation, params)
        controllers[name] = replace(after, seen_at=situation.snapshot.now)
        if after.value is not None and reason:
            value = round(after.value, 4) if after.knob is Knob.BATCH_WINDOW_S else float(round(after.value))
            desired.append(DesiredState(NAME, name, after.knob, value, reason, mode, ("latency",), seen.age_s))
    return Memory(controllers), tuple(desired)


def _arrived(controller: Controller, records: Iterable[RequestRecord]) -> Controller:
    """With the arrivals that were told of at this tick."""
    told = [(r.start_unix_s, r.ttft_s if r.e2e_s is None else r.e2e_s) for r in records if r.start_unix_s is not None]
    if not told:
        return controller
    arrivals = (*controller.arrivals_unix_s, *(at for at, _ in told))[-MAX_ARRIVALS:]
    return replace(controller, arrivals_unix_s=arrivals, took_s=(*controller.took_s, *(took for _, took in told))[-MAX_ARRIVALS:])


def gaps_of(controller: Controller) -> list[float]:
    """Seconds between its latest arrivals.

    Requests are told of when they end, so of those that came within the longest answer before the last end not all are known:
    what is missing among them would look like irregular arrivals. Where it is not known how long any took, nor is that.
    """
    known = [(at, took) for at, took in zip(controller.arrivals_unix_s, controller.took_s, strict=True) if took is not None]
    if not known:
        return []
    last_end, longest = max(at + took for at, took in known), max(took for _, took in known)
    complete_until = last_end - longest + ROUNDING_S
    return [after - before for before, after in pairwise(sorted(at for at in controller.arrivals_unix_s if at <= complete_until))]


def _watched(
    controller: Controller, seen: BackendObservation, situation: Situation, params: AdaptiveBatchWindowParams
) -> Controller:
    """With this tick's work, peak and breaker."""
    now = situation.snapshot.now
    elapsed = 0.0 if controller.seen_at is None else now - controller.seen_at
    running = seen.value(catalog.RUNNING.name)
    recent = situation.recent.get(seen.backend)
    finished = recent.requests if recent else None
    worked = controller.worked_at if not running and not finished else now
    peak = max(controller.peak * PEAK_KEPT_PER_S**elapsed, running or 0.0)
    controller = replace(controller, worked_at=worked, peak=peak)
    batch_s = recent.mean_s(catalog.STEP_TIME.name) if recent else None
    return _broken(controller, batch_s, now, params)


def _broken(controller: Controller, batch_s: float | None, now: float, params: AdaptiveBatchWindowParams) -> Controller:
    """The breaker after a batch that took ``batch_s`` on average since; None says nothing."""
    quiet = controller.worked_at is not None and now - controller.worked_at >= params.quiet_s
    if controller.open and not controller.half_open and quiet:
        return replace(controller, half_open=True)
    if batch_s is None or quiet:
        return controller
    if batch_s <= params.slow_batch_s:
        waits = controller.open and not controller.half_open
        return controller if waits else replace(controller, slow_batches=0, open=False, half_open=False)
    slow = controller.slow_batches + 1
    return replace(controller, slow_batches=slow, open=controller.open or slow >= params.breaches, half_open=False)


def _window(
    controller: Controller, backend: Backend, situation: Situation, params: AdaptiveBatchWindowParams
) -> tuple[Controller, str]:
    """One step of a batch window, and why it is what it is; empty where nothing says what it should be."""
    controller = _turning(controller, Knob.BATCH_WINDOW_S)
    known, now = situation.knob(backend, Knob.BATCH_WINDOW_S), situation.snapshot.now
    value = controller.value
    if value is None:
        value = float(known.prior) if known is not None else params.ceiling_s
    # A model that answers at once has no first token of its own: its whole answer is what the window delays.
    p99 = situation.p99(backend.name, "ttft") or situation.p99(backend.name, "e2e")
    gaps = gaps_of(controller)
    h = entropy(gaps) if len(gaps) >= params.min_arrivals else None
    if controller.open:
        return replace(controller, value=params.floor_s), _breaker_words(params)
    if p99 is not None and p99.value > params.target_p99_s:
        elapsed = 0.0 if controller.seen_at is None else now - controller.seen_at
        return replace(controller, value=shrunk(value, elapsed, params)), _over_words("of the first token", p99.value, params)
    if h is None:
        return _without_arrivals(controller, known.prior if known else None, p99 is not None, now, params)
    if now - controller.stepped_at >= params.interval_s:
        controller = replace(controller, value=by_entropy(value, h, params), stepped_at=now)
    return controller, f"entropy {h:.2f} of the last {len(gaps)} times between arrivals"


def _without_arrivals(
    controller: Controller, prior: KnobValue | None, well: bool, now: float, params: AdaptiveBatchWindowParams
) -> tuple[Controller, str]:
    """A window that was made smaller, where no arrivals are told: it grows back while the tail is ``well``, and is given back."""
    if controller.value is None:
        return controller, ""
    if not well or prior is None:
        return controller, "too few arrivals to say more: it stays"
    if now - controller.stepped_at >= params.interval_s:
        if controller.value >= float(prior):
            return replace(controller, value=None), ""
        controller = replace(controller, value=min(float(prior), controller.value * params.growth), stepped_at=now)
    return controller, "latency is well: let out by steps"


def _limit(
    controller: Controller, backend: Backend, situation: Situation, params: AdaptiveBatchWindowParams
) -> tuple[Controller, str]:
    """One step of a concurrency limit, and why; empty where none is needed. A step is not taken before the last one shows."""
    controller = _turning(controller, Knob.CONCURRENCY_LIMIT)
    recent, now = situation.recent.get(backend.name), situation.snapshot.now
    if situation.is_drained(backend):
        return replace(controller, value=None, drained_at=now), ""
    if has_a_drain(recent, controller.drained_at, now):
        return replace(controller, value=None), ""
    p99 = recent.quantile("itl", 0.99) if recent else None
    over = p99 is not None and p99.value > params.target_p99_s
    in_use = max(params.least_concurrency, controller.peak)
    if controller.value is None and not over and not controller.open:
        return controller, ""
    value = in_use if controller.value is None else controller.value
    if controller.open:
        return replace(controller, value=params.least_concurrency), _breaker_words(params)
    if now - controller.stepped_at >= params.limit_interval_s and p99 is not None:
        value = max(params.least_concurrency, value * params.limit_step) if over else value * params.growth
        controller = replace(controller, stepped_at=now)
    if not over and value >= 2 * in_use:
        return replace(controller, value=None), ""
    words = _over_words("between tokens", p99.value, params) if p99 is not None and over else "latency is well: let out by steps"
    return replace(controller, value=value), words


def _turning(controller: Controller, knob: Knob) -> Controller:
    """The controller of this knob; one that turned another knob until now begins anew."""
    return controller if controller.knob is knob else replace(controller, knob=knob, value=None)


def _breaker_words(params: AdaptiveBatchWindowParams) -> str:
    return f"breaker open: {params.breaches} batches in a row took longer than {params.slow_batch_s * 1e3:.0f} ms"


def _over_words(what: str, p99_s: float, params: AdaptiveBatchWindowParams) -> str:
    return f"P99 {what} {p99_s * 1e3:.0f} ms, target {params.target_p99_s * 1e3:.0f} ms"


POLICY = Policy(
    name=NAME,
    summary="Fit batching to arrivals and to the tail.",
    knobs=(Knob.BATCH_WINDOW_S, Knob.CONCURRENCY_LIMIT),
    new_memory=Memory,
    decide=decide,
)
