"""The pure part of a tick: score, detect, decide, guard, plan. Values and ``now`` in, values out.

The same functions run live and in replay, so what is replayed is what would have been done. ``Memory`` is everything
that is remembered from tick to tick; the loop owns it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import ServerState
from tailkeeper_watchdog.attribution import attend
from tailkeeper_watchdog.columns import gauges_of
from tailkeeper_watchdog.detectors import DETECTORS, Symptom
from tailkeeper_watchdog.detectors.base import is_latency
from tailkeeper_watchdog.findings import Book, close_gone, update
from tailkeeper_watchdog.fleet import GONE
from tailkeeper_watchdog.forgetting import forget as forget_backends
from tailkeeper_watchdog.forgetting import without
from tailkeeper_watchdog.guards import GuardContext, judge
from tailkeeper_watchdog.model import (
    EMPTY,
    Decision,
    DesiredState,
    Epoch,
    FindingKind,
    FleetSnapshot,
    Lease,
    Mode,
    Refusal,
    RequestRecord,
    Severity,
    Situation,
    Slo,
    Target,
    Verdict,
)
from tailkeeper_watchdog.plan import ReturnMemory, forgotten
from tailkeeper_watchdog.policies import POLICIES
from tailkeeper_watchdog.resolve import resolve
from tailkeeper_watchdog.samples import Layout, Sample
from tailkeeper_watchdog.scoring.epochs import follow
from tailkeeper_watchdog.scoring.history import RECENT_S, WINDOW_S, History, add, over, take_sample
from tailkeeper_watchdog.scoring.hscore import Scores
from tailkeeper_watchdog.scoring.ring import LatencyRing
from tailkeeper_watchdog.scoring.uptime import Uptime, observe
from tailkeeper_watchdog.window import Window

MIN_RECORDS = 20
"""Fewer request records than this have no P99 worth the name."""
_HOSTILE = np.errstate(over="ignore", invalid="ignore", divide="ignore")
"""What a hostile page counts may leave the range of a double: NumPy is not to warn of it, as Python's own floats do not."""
RECORDS_FRESH_S = WINDOW_S
"""A ring that nothing was added to for longer describes the past; the buckets are asked instead."""


@dataclass(frozen=True, slots=True)
class PolicySetting:
    mode: Mode
    params: Any


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds throughout one tick. ``weights`` are put in by the loop when it begins, the rest is configured."""

    slo: Slo
    weights: Mapping[str, float]
    policies: Mapping[str, PolicySetting]
    stale_after_s: float


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered from tick to tick."""

    histories: Mapping[str, History] = field(default_factory=lambda: EMPTY)
    uptimes: Mapping[str, Uptime] = field(default_factory=lambda: EMPTY)
    rings: Mapping[tuple[str, str], tuple[LatencyRing, float]] = field(default_factory=lambda: EMPTY)
    epochs: Mapping[str, Epoch] = field(default_factory=lambda: EMPTY)
    detectors: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    policies: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    book: Book = field(default_factory=Book)
    returning: ReturnMemory = field(default_factory=ReturnMemory)
    attribution: attend.State = field(default_factory=attend.State)


def forget(memory: Memory, gone: frozenset[str], targets: frozenset[Target], wall: float) -> Memory:
    """The memory without the backends that are gone. What was open about them closes at ``wall`` with that reason.

    ``targets`` are the servers that somebody still has to do with: the fleet's, and those on which a lease lies.
    """
    before, detectors, policies = memory, {d.name: d for d in DETECTORS}, {p.name: p for p in POLICIES}
    return Memory(
        histories=without(before.histories, gone),
        uptimes=without(before.uptimes, gone),
        rings=without(before.rings, gone),
        epochs=without(before.epochs, gone),
        detectors={name: detectors[name].forget(held, gone) for name, held in before.detectors.items()},
        policies={name: policies[name].forget(held, gone) for name, held in before.policies.items()},
        book=close_gone(before.book, gone, GONE, wall),
        returning=forgotten(before.returning, gone, targets),
        attribution=forget_backends(before.attribution, gone),
    )


@_HOSTILE
def score_fleet(
    snapshot: FleetSnapshot, records: tuple[RequestRecord, ...], memory: Memory, rules: Rules
) -> tuple[Memory, Situation]:
    """Windows, uptimes, exact quantiles and scores of every backend."""
    now = snapshot.now
    histories: dict[str, History] = {}
    epochs: dict[str, Epoch] = dict(memory.epochs)
    uptimes: dict[str, Uptime] = {}
    windows: dict[str, Window] = {}
    recent: dict[str, Window] = {}
    restarted: set[str] = set()
    bare = Situation(snapshot, EMPTY, EMPTY, EMPTY, rules.slo, rules.stale_after_s)
    heard_of, no_history, no_uptime, no_window = bare.heard, History(), Uptime(), Window()
    like: Layout | None = None
    samples: dict[str, Sample] = {}
    gauges: dict[str, list[float]] = {}
    for backend in snapshot.backends:
        name = backend.name
        history = memory.histories.get(name, no_history)
        uptime = memory.uptimes.get(name, no_uptime)
        seen = heard_of.get(name)
        if seen is not None and seen.age_s is not None:
            sample = samples[name] = take_sample(seen, now - seen.age_s, history.samples[-1].layout if history.samples else like)
            gauges[name] = gauges_of(seen)
            like, before, history = sample.layout, history, add(history, sample)
            if seen.state is State.STARTING or (history.anew and history is not before):
                restarted.add(name)
            uptime = observe(uptime, seen.state, now)
            epochs[name] = follow(epochs.get(name), seen, now)
        histories[name], uptimes[name] = history, uptime
        # A backend that is not heard of did nothing that we know of: its last window is the past, not the present.
        window = over(history, WINDOW_S, uptime.ratio()) if seen else Window(uptime_ratio=uptime.ratio())
        windows[name], recent[name] = window, over(history, RECENT_S) if seen else no_window
    # The past of an engine that was started anew is no baseline for it. What ended in the same round came after the restart:
    # an engine that is away answers no page, and its last requests were read while it did not.
    kept = without(memory.rings, frozenset(restarted)) if restarted else memory.rings
    heard = _by_backend(records, histories)
    rings = _fill(kept, tuple(r for of_one in heard.values() for r in of_one), now)
    exact = {
        key: quantile
        for key, (ring, at) in rings.items()
        if now - at <= RECORDS_FRESH_S and len(ring) >= MIN_RECORDS and (quantile := ring.quantile(0.99)) is not None
    }
    memory = replace(memory, histories=histories, uptimes=uptimes, rings=rings, epochs=epochs)
    situation = Situation(snapshot, windows, recent, EMPTY, rules.slo, rules.stale_after_s, exact, records=heard, epochs=epochs)
    situation.knowing(heard=heard_of, samples=samples, gauges=gauges)
    return memory, situation.with_scores(Scores(situation, rules.weights))


def with_gateways(situation: Situation, servers: Mapping[Target, ServerState], leases: tuple[Lease, ...]) -> Situation:
    """The situation with what the gateways have in force, and what was there before our leases."""
    actual = {target: state.values for target, state in servers.items()}
    return situation.at_gateways(actual, {(lease.target, lease.knob): lease.prior for lease in leases})


def _by_backend(records: tuple[RequestRecord, ...], known: Mapping[str, History]) -> dict[str, tuple[RequestRecord, ...]]:
    """The records of the fleet's backends; whoever else was told of is nobody's."""
    heard: dict[str, list[RequestRecord]] = {}
    for record in records:
        if record.backend in known:
            heard.setdefault(record.backend, []).append(record)
    return {name: tuple(of_one) for name, of_one in heard.items()}


def _fill(
    rings: Mapping[tuple[str, str], tuple[LatencyRing, float]], records: tuple[RequestRecord, ...], now: float
) -> Mapping[tuple[str, str], tuple[LatencyRing, float]]:
    """Add the latencies of requests that ended well: a failed request is no fast one."""
    batches: dict[tuple[str, str], list[float]] = {}
    for record in records:
        if record.outcome != "ok":
            continue
        for signal, value in (("ttft", record.ttft_s), ("itl", record.itl_s), ("e2e", record.e2e_s)):
            if value is not None and is_latency(value):
                batches.setdefault((record.backend, signal), []).append(value)
    if not batches:
        return rings
    filled = dict(rings)
    for key, values in batches.items():
        ring = filled[key][0] if key in filled else LatencyRing()
        ring.extend(np.asarray(values))
        filled[key] = (ring, now)
    return filled


@_HOSTILE
def detect_all(situation: Situation, memory: Memory, extra: tuple[Symptom, ...]) -> tuple[Memory, tuple[Symptom, ...]]:
    """The symptoms of this tick; ``extra`` are those that acting brought to light (contended knobs)."""
    states: dict[str, Any] = {}
    symptoms: list[Symptom] = list(extra)
    for detector in DETECTORS:
        before = memory.detectors.get(detector.name)
        states[detector.name], found = detector.detect(situation, detector.new_memory() if before is None else before)
        symptoms.extend(found)
    return replace(memory, detectors=states), tuple(symptoms)


@_HOSTILE
def decide_all(situation: Situation, memory: Memory, rules: Rules) -> tuple[Memory, tuple[DesiredState, ...]]:
    """What every policy wants, resolved to one wish per knob among the enforced ones."""
    states: dict[str, Any] = {}
    desired: list[DesiredState] = []
    for policy in POLICIES:
        setting = rules.policies.get(policy.name)
        if setting is None:
            continue
        before = memory.policies.get(policy.name)
        states[policy.name], wants = policy.decide(
            situation, setting.params, setting.mode, policy.new_memory() if before is None else before
        )
        desired.extend(wants)
    return replace(memory, policies=states), resolve(tuple(desired))


def guard_all(desired: tuple[DesiredState, ...], context: GuardContext) -> tuple[Verdict, ...]:
    """Verdicts on the enforced wishes; those that are only observed need none."""
    return judge(tuple(wish for wish in desired if wish.mode is Mode.ENFORCE), context)


def common_cause(verdicts: tuple[Verdict, ...], snapshot: FleetSnapshot) -> tuple[Symptom, ...]:
    """Too much of a pool is bad for it to be these backends' fault: one finding a pool, for a person."""
    pools = {b.name: next((f"{t.gateway}:{t.pool}" for t in b.targets), "") for b in snapshot.backends}
    found = {pools.get(v.desired.backend, ""): v.detail for v in verdicts if v.refusal is Refusal.PANIC}
    return tuple(
        Symptom(
            FindingKind.COMMON_CAUSE,
            pool,
            Severity.PAGE,
            f"common cause in pool {pool}: {detail}; nobody is taken out, look at what they share",
            {"pool": pool, "detail": detail},
        )
        for pool, detail in found.items()
    )


def keep_book(memory: Memory, symptoms: tuple[Symptom, ...], situation: Situation) -> Memory:
    return replace(memory, book=update(memory.book, symptoms, DETECTORS, situation))


@_HOSTILE
def attribute(
    memory: Memory, records: tuple[RequestRecord, ...], decisions: tuple[Decision, ...], situation: Situation
) -> Memory:
    """The memory with what this tick taught, and with causes in the open findings. ``decisions`` are those of this tick."""
    state = attend.learn(memory.attribution, records, decisions, situation)
    state, book = attend.attend(state, memory.book, situation)
    return replace(memory, attribution=state, book=book)
