"""From tick to tick: remember requests, machines and changes, and attribute the open findings. Pure; the loop owns the state.

A finding is attributed when it opens and again every ``REFRESH_S`` while it is open, at most ``MAX_PER_TICK`` a tick, those
that waited longest first. The baseline is frozen when the first finding of a backend opens: an incident of hours must not
become its own baseline. It ends ``BLUR_S`` before, because detectors look back so far and the trouble began before it was
told; what is compared with it begins half of that before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any
from zlib import crc32

import numpy as np

from tailkeeper_exporter import catalog
from tailkeeper_exporter.state import State as BackendState
from tailkeeper_watchdog.attribution import changes, resources, stated, words
from tailkeeper_watchdog.attribution.changes import Change
from tailkeeper_watchdog.attribution.combine import MIN_BASELINE, MOST, Attribution, attribute
from tailkeeper_watchdog.attribution.hand_down import ERRORS, Given
from tailkeeper_watchdog.attribution.request_log import OK, RequestLog, Sample, joined, rows_per_backend, thinned
from tailkeeper_watchdog.attribution.resources import ResourceLog, line_of, stage_rises
from tailkeeper_watchdog.attribution.shapley import Floats
from tailkeeper_watchdog.attribution.stages import SIGNAL_FIELD
from tailkeeper_watchdog.findings import Book
from tailkeeper_watchdog.model import (
    EMPTY,
    Backend,
    BackendObservation,
    Decision,
    Epoch,
    Finding,
    FindingKind,
    RequestRecord,
    Share,
    Situation,
)
from tailkeeper_watchdog.scoring.epochs import RESTARTED

KINDS = frozenset(
    {
        FindingKind.GROWTH,
        FindingKind.DISTORTION,
        FindingKind.ZSCORE,
        FindingKind.BLOCK_E,
        FindingKind.SLO_BURN,
        FindingKind.IMPROVED_BUT_BROKEN,
        *stated.KINDS,
    }
)
REFRESH_S = 30.0
SOON_S = 2.0
"""Where too few records could be compared, or the finding says itself what is wrong: then it costs next to nothing."""
MIN_LATEST = 5
STILL_BAD = 1.3
"""Times the usual median, or nine tenths, of the latest half minute: under it the trouble is over."""
MAX_PER_TICK = 2
"""Each takes up to 50 ms, after the gateways have been written to."""
MAX_INCIDENTS = 200
"""Backends with a frozen baseline; their samples take 60 MB at most. A fleet with more has one cause, and these show it."""
BLUR_S = 60.0
HOUR_S = 3_600.0
MAX_PEERS = 16
MIN_LINES_A_TICK = 200
"""Backends whose gauges are noted in one tick, or an eighth of the fleet."""
ENGINE_RESTART = "engine restart"
ONCE_S = 60.0
"""The same change is seen in more than one way, and for longer than one tick: within this it is one."""
WATCHED_LABELS = ("canary_revision", "model")
"""Whose new values in the traffic are a change worth telling."""


@dataclass(frozen=True, slots=True)
class Incident:
    """What was usual before the first open finding of a backend opened at ``opened_at``, monotonic."""

    opened_at: float
    baseline: Sample
    usual: Any
    """Lines of resources from before; see ``resources``."""


@dataclass(frozen=True, slots=True)
class Result:
    """What was last found, at ``at`` monotonic."""

    at: float
    shares: tuple[Share, ...]
    evidence: Mapping[str, Any]
    again_s: float = REFRESH_S
    """After so long it is found anew."""


@dataclass(frozen=True, slots=True)
class State:
    """All that is remembered. Keys are backends, or (backend, finding)."""

    logs: Mapping[str, RequestLog] = field(default_factory=lambda: EMPTY)
    lines: Mapping[str, ResourceLog] = field(default_factory=lambda: EMPTY)
    changes: Mapping[str, tuple[Change, ...]] = field(default_factory=lambda: EMPTY)
    generated: Mapping[str, float] = field(default_factory=lambda: EMPTY)
    """Tokens generated since the engine's start, as last noted: fewer means a new start."""
    epochs: Mapping[str, Epoch] = field(default_factory=lambda: EMPTY)
    away_at: Mapping[str, float] = field(default_factory=lambda: EMPTY)
    """Since when engines that are down or starting are, monotonic."""
    incidents: Mapping[str, Incident] = field(default_factory=lambda: EMPTY)
    results: Mapping[tuple[str, str], Result] = field(default_factory=lambda: EMPTY)
    fleet: tuple[Backend, ...] = ()


def learn(state: State, records: tuple[RequestRecord, ...], decisions: tuple[Decision, ...], situation: Situation) -> State:
    """Remember what this tick brought."""
    now = situation.snapshot.now
    names = {b.name for b in situation.snapshot.backends}
    new: list[tuple[str, Change]] = [
        (d.backend, change) for d in decisions if d.backend in names and (change := changes.of_decision(d, now))
    ]
    new.extend(_reconfigured(state.fleet, situation.snapshot.backends, now))
    new.extend(_begun(state, situation))
    state = _with_epochs(replace(state, fleet=situation.snapshot.backends), situation)
    state, seen = _take_records(state, records, names, now)
    state, restarted = _note_gauges(state, situation)
    return _with_changes(state, [*new, *seen, *restarted], now)


def _reconfigured(before: tuple[Backend, ...], after: tuple[Backend, ...], now: float) -> Iterable[tuple[str, Change]]:
    if before is after:
        return
    known = {b.name: b for b in before}
    for backend in after:
        if backend.name in known:
            yield from ((backend.name, change) for change in changes.configured(known[backend.name], backend, now))


def _begun(state: State, situation: Situation) -> Iterable[tuple[str, Change]]:
    """Engines that were started anew, as of when they went away: that is what the others saw of it first."""
    now = situation.snapshot.now
    for name, epoch in situation.epochs.items():
        known = state.epochs.get(name)
        if known is None or known is epoch or epoch.number == known.number:
            continue
        if epoch.why == RESTARTED:
            yield name, Change(stated.RESTART, ENGINE_RESTART, state.away_at.get(name, now))
        else:
            yield name, Change("deploy", epoch.why, now)
    for name, away_at in state.away_at.items():
        seen = situation.fresh(name)
        if seen is not None and seen.state is BackendState.STARTING and name in state.incidents:
            yield name, Change(stated.RESTART, ENGINE_RESTART, away_at)


def _with_epochs(state: State, situation: Situation) -> State:
    before, now = state.away_at, situation.snapshot.now
    ended = {name: before.get(name, now) for name, epoch in situation.epochs.items() if epoch.ended}
    return replace(state, epochs=situation.epochs, away_at=ended)


def _take_records(
    state: State, records: tuple[RequestRecord, ...], names: set[str], now: float
) -> tuple[State, list[tuple[str, Change]]]:
    by_backend: dict[str, list[RequestRecord]] = {}
    for record in records:
        if record.backend in names:
            by_backend.setdefault(record.backend, []).append(record)
    if not by_backend:
        return state, []
    logs = dict(state.logs)
    new: list[tuple[str, Change]] = []
    for name, found in by_backend.items():
        log = logs.setdefault(name, RequestLog())
        settled = len(log) >= MIN_BASELINE
        before = {label: log.values(label) for label in WATCHED_LABELS}
        log.extend(found, now, rows_per_backend(len(names)))
        for label, values in before.items() if settled else ():
            new.extend((name, Change("traffic", f"{label} {value}", now)) for value in log.values(label)[len(values) :])
    return replace(state, logs=logs), new


def _note_gauges(state: State, situation: Situation) -> tuple[State, list[tuple[str, Change]]]:
    """A line a minute for each backend that is well; ill ones keep what was usual, and are only looked at for a restart."""
    now, backends = situation.snapshot.now, situation.snapshot.backends
    due = []
    for backend in backends:
        log = state.lines.get(backend.name)
        if (log is None or now - log.last_at >= resources.SPACING_S) and backend.name not in state.incidents:
            due.append(backend.name)
    lines, generated, restarted = dict(state.lines), dict(state.generated), []
    for name in due[: max(MIN_LINES_A_TICK, len(backends) // 8)]:
        seen = situation.fresh(name)
        if seen is not None:
            lines.setdefault(name, ResourceLog()).add(line_of(seen, situation.windows.get(name)), now)
    for name in [*due[: max(MIN_LINES_A_TICK, len(backends) // 8)], *state.incidents]:
        tokens = _tokens(situation.fresh(name))
        if tokens is not None:
            if tokens < generated.get(name, 0.0):
                restarted.append((name, Change(stated.RESTART, ENGINE_RESTART, now)))
            generated[name] = tokens
    return (replace(state, lines=lines, generated=generated) if due or state.incidents else state), restarted


def _tokens(seen: BackendObservation | None) -> float | None:
    """A starting engine has generated nothing yet: that it starts is told by its first tokens being fewer than before."""
    return None if seen is None or seen.state is BackendState.STARTING else seen.value(catalog.GENERATED_TOKENS.name)


def _with_changes(state: State, new: list[tuple[str, Change]], now: float) -> State:
    if not new:
        return state
    known = dict(state.changes)
    for name, change in new:
        of_it = known.get(name, ())
        if not any(c.text == change.text and c.kind == change.kind and change.at - c.at < ONCE_S for c in of_it):
            known[name] = changes.kept(of_it, (change,), now)
    return replace(state, changes=known)


def attend(state: State, book: Book, situation: Situation) -> tuple[State, Book]:
    """Attribute what is due, and put what is known into the open findings."""
    wanted = [f for f in book.open_findings if f.kind in KINDS and f.backend]
    if not wanted and not state.results:
        return state, book
    state = _keep_only(state, wanted)
    for finding in _due(state, wanted, situation.snapshot.now):
        state = _attributed(state, finding, situation)
    opened = {
        key: finding if (result := state.results.get((finding.backend, finding.id))) is None else _told(finding, result)
        for key, finding in book.open.items()
    }
    return state, replace(book, open=opened)


def _keep_only(state: State, wanted: list[Finding]) -> State:
    keys = {(f.backend, f.id) for f in wanted}
    ill = {f.backend for f in wanted}
    return replace(
        state,
        results={key: result for key, result in state.results.items() if key in keys},
        incidents={name: incident for name, incident in state.incidents.items() if name in ill},
    )


def _due(state: State, wanted: list[Finding], now: float) -> list[Finding]:
    """Those never attributed first, oldest first; then those whose attribution is oldest."""

    def last(finding: Finding) -> float:
        result = state.results.get((finding.backend, finding.id))
        return float("-inf") if result is None else result.at

    def is_due(finding: Finding) -> bool:
        result = state.results.get((finding.backend, finding.id))
        return result is None or now - result.at >= result.again_s

    room = MAX_INCIDENTS - len(state.incidents)
    able = [f for f in wanted if is_due(f) and (room > 0 or f.backend in state.incidents)]
    return sorted(able, key=lambda f: (last(f), f.since_unix_s, f.id))[:MAX_PER_TICK]


def _attributed(state: State, finding: Finding, situation: Situation) -> State:
    now, name, seed = situation.snapshot.now, finding.backend, crc32(finding.id.encode())
    incident = state.incidents.get(name) or _opened(state, name, now, seed)
    given = _given(state, incident, finding, situation)
    known = state.results.get((name, finding.id))
    if finding.kind in stated.KINDS:
        result = _stated(finding, given, now)
    elif known is not None and known.again_s == REFRESH_S and not _still_bad(state, given, name, now):
        result = replace(known, at=now)  # a finding outlives its trouble: what is seen after it would acquit whoever did it
    else:
        result = _measured(attribute(given, seed), given, now)
    return replace(
        state,
        incidents={**state.incidents, name: incident},
        results={**state.results, (name, finding.id): result},
    )


def _still_bad(state: State, given: Given, name: str, now: float) -> bool:
    """Whether the latest requests are like those of the incident. Of too few of them nothing new is learned."""
    latest = state.logs.get(name, RequestLog()).between(now - REFRESH_S, inf)
    if given.signal == ERRORS:
        return bool((latest.rows["outcome"] != OK).any())
    field_ = SIGNAL_FIELD[given.signal]
    now_s, usual_s = (_finite(s.rows[field_]) if s is not None else np.empty(0) for s in (latest, given.baseline))
    if now_s.size < MIN_LATEST or not usual_s.size:
        return now_s.size >= MIN_LATEST
    return any(np.quantile(now_s, q) > STILL_BAD * np.quantile(usual_s, q) for q in (0.5, 0.9))


def _finite(values: Floats) -> Floats:
    return np.asarray(values[np.isfinite(values)], dtype=np.float64)


def _measured(found: Attribution, given: Given, now: float) -> Result:
    told = {"cause": words.sentence(found, given), "attribution": words.evidence(found, given)}
    return Result(now, found.shares, told, SOON_S if found.shift is None else REFRESH_S)


def _stated(finding: Finding, given: Given, now: float) -> Result:
    found = stated.attribute(finding, given)
    told = {**stated.evidence(finding), **words.gauges(given)}
    return Result(now, found.shares, {"cause": stated.sentence(finding, found), "attribution": told}, SOON_S)


def _opened(state: State, name: str, now: float, seed: int) -> Incident:
    end = now - BLUR_S
    baseline = state.logs.get(name, RequestLog()).between(end - HOUR_S, end)
    most = min(MOST, rows_per_backend(len(state.fleet)))
    return Incident(now, thinned(baseline, most, np.random.default_rng(seed)), state.lines.get(name, ResourceLog()).before(end))


def _given(state: State, incident: Incident, finding: Finding, situation: Situation) -> Given:
    name, since = finding.backend, incident.opened_at
    current = state.logs.get(name, RequestLog()).between(since - BLUR_S / 2, inf)
    peers = _peers(situation, name)
    is_pool = len(incident.baseline) < MIN_BASELINE
    baseline = incident.baseline
    if is_pool:
        baseline = _of_pool(state, peers, since - BLUR_S / 2, current)
        current = replace(current, names=baseline.names)
    seen, given = situation.fresh(name), Given(_signal(finding, current), baseline, current, is_pool=is_pool)
    given = replace(given, changes=changes.candidates(state.changes.get(name, ()), _onset(finding, since, situation)))
    if seen is None:
        return given
    line, others = line_of(seen, situation.windows.get(name)), [line_of(s, situation.windows.get(s.backend)) for s in peers]
    found = resources.compared(line, incident.usual, others)
    return replace(
        given,
        resources=resources.rank(found),
        usual=resources.as_it_should_be(found),
        stage_rises=stage_rises(line, incident.usual),
    )


def _onset(finding: Finding, since: float, situation: Situation) -> float:
    """Monotonic. What a finding states itself began with it, whatever else was wrong with the backend before."""
    if finding.kind not in stated.KINDS:
        return since
    return max(since, situation.snapshot.now - (situation.snapshot.time_unix_s - finding.since_unix_s))


def _of_pool(state: State, peers: list[BackendObservation], start: float, current: Sample) -> Sample:
    """What those of the pool that are well had since ``start``: a backend that was watched for a minute has no past, but its
    equals under the same traffic tell what is usual."""
    well = [s.backend for s in peers if s.backend in state.logs and s.backend not in state.incidents]
    return joined([state.logs[name].between(start, float("inf")) for name in well], current.names)


def _signal(finding: Finding, current: Sample) -> str:
    """What the finding is about; the first token where it says nothing, and the whole answer where no answer is streamed."""
    if finding.signal in SIGNAL_FIELD:
        return finding.signal
    # A burn that names no latency is of requests that failed.
    if finding.kind in (FindingKind.IMPROVED_BUT_BROKEN, FindingKind.SLO_BURN) or finding.signal.startswith("error"):
        return ERRORS
    good = current.rows[current.rows["outcome"] == OK]
    return "e2e" if len(good) and np.isnan(good["ttft_s"]).mean() > 0.5 else "ttft"


def _peers(situation: Situation, name: str) -> list[BackendObservation]:
    """What is known of the other backends of its pool now; of those with the same model where it has no pool."""
    backend = next((b for b in situation.snapshot.backends if b.name == name), None)
    if backend is None:
        return []
    if backend.targets:
        pool = situation.snapshot.pool_of(backend.pool)
    else:
        pool = tuple(b for b in situation.snapshot.backends if b.model == backend.model)
    others = [b.name for b in pool if b.name != name][: 2 * MAX_PEERS]
    return [seen for other in others if (seen := situation.fresh(other)) is not None][:MAX_PEERS]


def _told(finding: Finding, result: Result) -> Finding:
    return replace(finding, shares=result.shares, evidence={**finding.evidence, **result.evidence})
