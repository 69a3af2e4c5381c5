"""`tailkeeper replay --prometheus`: a range of a server's history, found, decided and told. Only reads.

Without a configuration the backends are found by the engines' own metric names, every policy is taken to be allowed to act, and
each backend to have a gateway that could turn its weight: a first look at a fleet with nothing installed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tailkeeper_exporter.clients import Clients, CredentialError, auth_headers
from tailkeeper_exporter.counted import plural
from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.collect.base import Collected, LastWord
from tailkeeper_watchdog.collect.native import NativeBackend, Standstill
from tailkeeper_watchdog.core import PolicySetting, Rules
from tailkeeper_watchdog.model import Finding, FindingKind, Mode, Severity, Slo
from tailkeeper_watchdog.records.in_force import InForce
from tailkeeper_watchdog.replay.history import CHUNK_S, AskError, History, Read
from tailkeeper_watchdog.replay.own import NOT_SIMULATED
from tailkeeper_watchdog.replay.report import Asked, document
from tailkeeper_watchdog.replay.simulated import Decider, NothingToReplayError, Simulation, Step
from tailkeeper_watchdog.replay.story import Story
from tailkeeper_watchdog.replay.watched import (
    MAX_BACKENDS,
    Seen,
    Watched,
    assumed,
    configured,
    discovered,
    engines_query,
    ours,
    ours_query,
    seen_in,
    windows,
)
from tailkeeper_watchdog.settings import STALE_INTERVALS, GuardsSettings, PoliciesSettings, Weights

LEAST_TICK_S = 1.0
CHUNK_BACKENDS = 20
"""So many are held in memory for a whole chunk of time, about half a million samples; of more a shorter one."""
SHOWN = ("memory_breaker", "gpu_health_gate", "slo_guardian")
"""What decides where nobody has configured anything: those that act on trouble. What steers weights all the time would fill the
report of a healthy fleet."""
MAX_ADVICE = 1_000
DECIDED_BY_DEFAULT = "the defaults, with every policy allowed to act at a gateway that is taken to be there"
NO_PROBE = (
    "whether an engine without progress was hung or only busy: that takes a probe, and there is none in history. Findings of "
    "kind advice say when one would have been sent"
)
NO_RECORDS = "latencies of single requests: Prometheus keeps buckets, so a P99 is as fine as they are"
NO_GPU = "GPU memory, clocks and errors: engines do not publish them"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Range:
    """What to ask: the server, and from when to when, epoch seconds."""

    url: str
    start: float
    end: float
    auth: Auth = field(default_factory=Auth)


async def replay(asked: Range, decider: Decider | None, say: Say) -> dict[str, Any]:
    """The report. Raises NothingToReplayError."""
    try:
        async with Clients().client_for((asked.url,), asked.auth, asked.url) as client:
            return await _Replay(asked, decider, say, History(client, asked.url, auth_headers(asked.auth))).report()
    except (AskError, CredentialError) as error:
        raise NothingToReplayError(str(error)) from error


class _Replay:
    """One replay of one range."""

    def __init__(self, asked: Range, decider: Decider | None, say: Say, history: History) -> None:
        self._asked, self._decider, self._say, self._history = asked, decider, say, history
        self._notes: list[str] = []
        self._answered = False
        """Whether the server has answered for any backend in the stretch of time before this one."""

    async def report(self) -> dict[str, Any]:
        watched = await self._who()
        if not watched:
            raise NothingToReplayError(
                f"{self._asked.url}: no series of an engine or of our exporter between --start and --end; "
                "is it the server that scrapes the engines, and were they running then?"
            )
        tick_s = max(LEAST_TICK_S, await self._history.interval_s(frozenset(w.instance for w in watched)))
        self._say(f"{plural(len(watched), 'backend')} found at {self._asked.url}, read every {tick_s:g} s")
        rules = self._rules(tick_s)
        story = Story(rules.rules.slo, tick_s)
        simulation = Simulation(rules, {} if self._decider is None else self._decider.abilities, story.take)
        teller = _Teller(watched, rules.rules.stale_after_s)
        await self._play(watched, tick_s, simulation, teller)
        story.add(teller.findings(self._asked.end))
        name = DECIDED_BY_DEFAULT if self._decider is None else self._decider.name
        notes = (*self._notes, *teller.notes(), *_limits(watched), NOT_SIMULATED)
        where = Asked("prometheus", self._asked.url, name, notes, {"interval_s": tick_s, "engines": _engines(watched)})
        return document(story, where, rules.rules.policies)

    async def _who(self) -> tuple[Watched, ...]:
        rows: list[Mapping[str, Any]] = []
        told_of: set[str] = set()
        for until, length in windows(self._asked.start, self._asked.end):
            rows += await self._history.rows_over(engines_query, until, length)
            if self._decider is not None:
                ours_rows = await self._history.rows_over(ours_query, until, length)
                told_of |= {row["metric"].get("backend", "") for row in ours_rows}
        found = self._chosen(seen_in(rows), frozenset(told_of - {""}))
        if len(found) > MAX_BACKENDS:
            self._notes.append(
                f"{len(found) - MAX_BACKENDS} backends beyond the first {MAX_BACKENDS}: name a part of them in FILE"
            )
        return found[:MAX_BACKENDS]

    def _chosen(self, engines: tuple[Seen, ...], told_of: frozenset[str]) -> tuple[Watched, ...]:
        if self._decider is None:
            return tuple(discovered(engines))
        if not self._decider.backends:
            return (*(ours(name, assumed(name, "all")) for name in sorted(told_of)), *(() if told_of else discovered(engines)))
        found, absent = configured(self._decider.backends, self._decider.fleet, told_of, engines)
        self._notes += [f"{name}: neither our exporter's series nor its engine's own are there" for name in absent]
        return found

    def _rules(self, tick_s: float) -> InForce:
        """What decides, with a limit for stale evidence that fits how often there was any."""
        stale_after_s = STALE_INTERVALS * tick_s
        if self._decider is None:
            defaults = PoliciesSettings()
            policies = {name: PolicySetting(Mode.ENFORCE, getattr(defaults, name).params) for name in SHOWN}
            rules = Rules(Slo(), Weights().model_dump(), policies, stale_after_s)
            return InForce(rules, GuardsSettings(), tick_s)
        given = self._decider.in_force
        limit = max(given.rules.stale_after_s, stale_after_s)
        return replace(given, rules=replace(given.rules, stale_after_s=limit), tick_s=tick_s)

    async def _play(self, watched: tuple[Watched, ...], tick_s: float, simulation: Simulation, teller: _Teller) -> None:
        backends = tuple(w.backend for w in watched)
        start, end = self._asked.start, self._asked.end
        chunk_s = max(4 * tick_s, CHUNK_S * min(1.0, CHUNK_BACKENDS / len(watched)))
        number, told = 0, 0
        begun = start - tick_s  # what was scraped just before the first tick is what that tick knows
        while begun < end:
            until = min(end, begun + chunk_s)
            for one, read in zip(watched, await self._read(watched, begun, until), strict=True):
                teller.has(one.name, read)
            while (at := start + number * tick_s) <= until:
                await simulation.take(Step(at, at, backends, teller.collected(at)))
                number += 1
            begun = until
            tenth = int(10 * (until - start) / (end - start))
            if tenth > told:
                told = tenth
                self._say(f"{10 * tenth} % read")

    async def _read(self, watched: tuple[Watched, ...], start: float, end: float) -> list[Read | None]:
        """What the server has of each backend; None where it did not answer."""
        answers = await asyncio.gather(
            *(self._history.read(one.selector, one.kinds, start, end) for one in watched), return_exceptions=True
        )
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        for error in failed:
            if not isinstance(error, AskError):
                raise error
        before, self._answered = self._answered, len(failed) < len(answers)
        if not self._answered and not before:  # from the first, or twice in a row: it will not answer for the rest either
            raise failed[0]
        if failed:
            self._notes.append(f"{len(failed)} of {len(answers)} backends from {start:.0f} to {end:.0f}: {failed[0]}")
        return [answer if isinstance(answer, Read) else None for answer in answers]


class _Teller:
    """Plays the pages that were read as the source of each tick, and keeps when a probe would have been sent."""

    def __init__(self, watched: tuple[Watched, ...], stale_after_s: float) -> None:
        self._watched = watched
        self._stale_after_s = stale_after_s
        self._last = LastWord(tuple(w.name for w in watched), stale_after_s)
        self._waiting: dict[str, Read] = {w.name: Read() for w in watched}
        self._why: dict[str, tuple[float, str]] = {}
        """Why the newest scrape that is known of brought nothing, and when it was."""
        self._open: dict[str, Finding] = {}
        self._done: dict[str, Finding] = {}

    def has(self, name: str, read: Read | None) -> None:
        """What one chunk brought of one backend."""
        if read is not None:
            waiting = self._waiting[name]
            waiting.pages.update(read.pages)
            waiting.up.update(read.up)

    def collected(self, now: float) -> Collected:
        """What was known at ``now``: every page up to it."""
        for one in self._watched:
            waiting = self._waiting[one.name]
            for at in sorted(at for at in waiting.pages if at <= now):
                seen = one.reader.take(waiting.pages.pop(at), at)
                if seen is not None:
                    self._last.hear({one.name: seen}, {one.name: at})
            for at in sorted(at for at in waiting.up if at <= now):
                failed = waiting.up.pop(at) == 0
                why = "the server could not scrape it (up is 0)" if failed else "its page had no series of the engine"
                self._why[one.name] = (at, why)
            self._note(one.name, one.reader.standstill(now, self._stale_after_s), now)
        # A scrape of long ago says nothing of now: where the server itself was away, no engine is to blame.
        known = {name: said for name, (at, said) in self._why.items() if now - at <= self._stale_after_s}
        return Collected(self._last.tell(now, known, "the server has no sample of it"))

    def _note(self, name: str, still: Standstill | None, now: float) -> None:
        known = self._open.get(name)
        if still is None:
            if known is not None:
                self._done[known.id] = replace(known, until_unix_s=now)
                del self._open[name]
            return
        if known is None and len(self._done) >= MAX_ADVICE:
            return
        self._open[name] = _advice(name, still, now, known)

    def findings(self, end: float) -> dict[str, Finding]:
        """When a probe would have been sent; those that were still open at the end are so."""
        return {**self._done, **{finding.id: finding for finding in self._open.values()}}

    def notes(self) -> list[str]:
        """What of the pages could not be used."""
        lines = []
        for one in self._watched:
            if isinstance(one.reader, NativeBackend):
                bad = ", ".join(f"{count} × {reason.sentence}" for reason, count in one.reader.problems.most_common(3))
                missing = ", ".join(sorted(one.reader.missing)[:5])
                lines += [f"{one.name}: samples that were not used: {bad}"] if bad else []
                lines += [f"{one.name}: its page lacks what makes {missing}"] if missing else []
        return lines


def _advice(name: str, still: Standstill, now: float, known: Finding | None) -> Finding:
    since = known.since_unix_s if known is not None else now
    seconds = now - still.since_s
    what = "its page has ended" if still.blind else "no progress"
    summary = (
        f"{name}: would have been probed: {still.in_flight:.0f} in flight and {what} for {seconds:.0f} s; "
        "an unanswered probe would have meant hung"
    )
    evidence = {"in_flight": still.in_flight, "no_progress_s": seconds, "since": still.since_s, "page_lost": still.blind}
    ident = known.id if known is not None else f"{FindingKind.ADVICE}:{name}:probe:{now:.3f}"
    return Finding(ident, FindingKind.ADVICE, name, Severity.INFO, since, summary, evidence, signal="probe")


def _limits(watched: tuple[Watched, ...]) -> tuple[str, ...]:
    own = any(isinstance(one.reader, NativeBackend) for one in watched)
    return (NO_PROBE, NO_GPU, NO_RECORDS) if own else (NO_RECORDS,)


def _engines(watched: tuple[Watched, ...]) -> dict[str, str]:
    """Of which engine, or by whom, each backend was told of."""
    return {w.name: w.reader.engine if isinstance(w.reader, NativeBackend) else "our exporter" for w in watched}
