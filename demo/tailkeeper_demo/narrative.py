"""What happened, as a story: documents of the watchdog and of the load in, events for people out. Pure.

It knows which backend the fault was injected into, and nothing else that the watchdog does not say itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

OBJECTIVE = 0.995
RECOVERED_S = 4
"""The SLA counts as back after this many seconds in a row within it."""
RECOVERED_SAMPLES = 15
MOST_RELAPSES = 2
"""A backend that flaps is let back in and taken out again so often at most; each return waits twice as long as the last."""
HINTS = ("growth", "distortion", "zscore")
"""Kinds of findings that are information by their nature, and often open where nothing is wrong."""

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the story. ``at_s`` since the demo's start; ``word`` names the kind."""

    at_s: float
    word: str
    text: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What was read at one moment. ``now_unix_s`` wall clock; the documents as the programs gave them."""

    at_s: float
    now_unix_s: float
    fleet: Document
    findings: list[Document]
    decisions: list[Document]
    load: Document


@dataclass(slots=True)
class Narrator:
    """Follows one fault from injection to release."""

    victim: str
    fault: str
    gateway: str
    injected_at_s: float
    injected_unix_s: float
    found_at_s: float | None = None
    acted_at_s: float | None = None
    acted_unix_s: float | None = None
    sla_back_at_s: float | None = None
    answers_at_s: float | None = None
    released_at_s: float | None = None
    relapses: int = 0
    """How often it was taken out again after it had been let back in."""
    _returned: bool = False
    _told: set[int] = field(default_factory=set)

    @property
    def ended_well(self) -> bool:
        """Found, acted on, and the SLA came back: for good, after a few relapses at most."""
        well = None not in (self.found_at_s, self.acted_at_s, self.sla_back_at_s)
        return well and self.relapses <= MOST_RELAPSES

    @property
    def over(self) -> bool:
        return self.ended_well and self.released_at_s is not None

    def feed(self, seen: Seen) -> list[Event]:
        """The events since the last look."""
        mine = self._mine(seen)
        events = [*self._found(seen, mine), *self._decided(seen, mine), *self._users(seen), *self._recovery(seen)]
        return [*events, *self._released(seen, mine)]

    def ending(self) -> list[str]:
        """How it went, in lines for the box at the end."""
        times = "once more" if self.relapses == 1 else f"{self.relapses} times more"
        again = f", and {times}" if self.relapses else ""
        found, acted = self._after(self.found_at_s), self._after(self.acted_at_s)
        return [
            f"{self.fault} in {self.victim}: found {found}, acted on {acted}{again}",
            f"users had the SLA back {self._after(self.sla_back_at_s)}",
            f"gateway given back: {self._after(self.released_at_s)}",
        ]

    def _after(self, at_s: float | None) -> str:
        return "not" if at_s is None else f"after {at_s - self.injected_at_s:.1f} s"

    def _mine(self, seen: Seen) -> list[Document]:
        return [d for d in reversed(seen.decisions) if d["backend"] == self.victim and d["time"] >= self.injected_unix_s]

    def _found(self, seen: Seen, mine: list[Document]) -> Iterator[Event]:
        if self.found_at_s is not None:
            return
        finding = next(
            (
                f
                for f in seen.findings
                if f["backend"] == self.victim and f["since"] >= self.injected_unix_s - 1 and f["kind"] not in HINTS
            ),
            None,
        )
        if finding is not None:
            self.found_at_s = seen.at_s
            yield Event(seen.at_s, "found", finding["summary"])
        elif mine:
            self.found_at_s = seen.at_s
            yield Event(seen.at_s, "found", f"{self.victim}: {mine[0]['reason'].partition('; read back')[0]}")

    def _decided(self, seen: Seen, mine: list[Document]) -> Iterator[Event]:
        for decision in mine:
            if decision["id"] in self._told:
                continue
            self._told.add(decision["id"])
            if decision["verdict"] == "applied":
                yield self._applied(seen, decision)
            elif decision["verdict"] in ("refused", "failed", "contended", "expired"):
                yield Event(seen.at_s, decision["verdict"], f"{self.victim} {decision['knob']}: {decision['reason']}")

    def _applied(self, seen: Seen, decision: Document) -> Event:
        to = decision["to"]
        if decision["policy"] == "return":
            self._returned = True
            return Event(seen.at_s, "return", f"{self.victim} back in, at {to:.0%} of its weight")
        if self.acted_at_s is None:
            self.acted_at_s, self.acted_unix_s = seen.at_s, decision["time"]
        elif self._returned and to == "drain":
            self._relapse(decision)
        others = [b for b in seen.fleet["backends"] if b["backend"] != self.victim]
        out = 1 + sum(1 for b in others if b["actual"]["admission"] == "drain" or (b["actual"]["weight"] or 0) < 0.5)
        lease = round((decision["lease_expires"] or 0) - decision["time"])
        what = (
            "drained" if to == "drain" else f"at {to:.0%} of its weight" if isinstance(to, float) else f"{decision['knob']} {to}"
        )
        of = len(seen.fleet["backends"])
        text = f"{self.victim} {what} at edge ({self.gateway}), lease {lease} s, {out} of {of} out, read back"
        return Event(seen.at_s, "acted", text)

    def _relapse(self, decision: Document) -> None:
        """Out again: whatever had come back must come back once more."""
        self.relapses += 1
        self.acted_unix_s = decision["time"]
        self.sla_back_at_s = self.answers_at_s = self.released_at_s = None
        self._returned = False

    def _users(self, seen: Seen) -> Iterator[Event]:
        """One line when the SLA is back: what users saw in the worst second and what they see now."""
        if self.acted_unix_s is None or self.sla_back_at_s is not None:
            return
        since = [b for b in seen.load["buckets"] if b["t"] >= self.injected_unix_s]
        lately = [b for b in since if b["t"] >= self.acted_unix_s][-(RECOVERED_S + 1) : -1]
        share, samples = within(lately)
        if len(lately) < RECOVERED_S or samples < RECOVERED_SAMPLES or share < OBJECTIVE:
            return
        self.sla_back_at_s = seen.at_s
        bad = [b for b in since if b["missed_slo"]]
        worst, _ = within(bad) if bad else (1.0, 0)
        now = max((b["ttft_p99"] for b in lately if b["ttft_p99"] is not None), default=None)
        wait = "" if now is None else f", first token within {_seconds(now)} now"
        yield Event(seen.at_s, "users", f"requests within SLA {worst:.0%} in the bad seconds → {share:.1%}{wait}")

    def _recovery(self, seen: Seen) -> Iterator[Event]:
        if self.acted_at_s is None or self.answers_at_s is not None:
            return
        backend = next((b for b in seen.fleet["backends"] if b["backend"] == self.victim), None)
        if (
            backend is not None
            and backend["state"] in ("serving", "busy")
            and seen.now_unix_s - (self.acted_unix_s or seen.now_unix_s) > 1.0
            and not self._wanted(backend)
        ):
            self.answers_at_s = seen.at_s
            yield Event(seen.at_s, "recovered", f"{self.victim} is well again; traffic returns step by step after a quiet time")

    @staticmethod
    def _wanted(backend: Document) -> bool:
        return bool(backend["desired"]["admission"] == "drain" or backend["desired"]["weight"] < 1.0)

    def _released(self, seen: Seen, mine: list[Document]) -> Iterator[Event]:
        if self.released_at_s is not None or self.answers_at_s is None:
            return
        released = [d for d in mine if d["verdict"] == "released"]
        in_force = [x for b in seen.fleet["backends"] for x in b["leases"]]
        if released and not in_force:
            self.released_at_s = seen.at_s
            yield Event(seen.at_s, "released", "weights are back at their prior values; nothing of ours is left")


def within(buckets: list[Document]) -> tuple[float, int]:
    """Share of verdicts within the SLO, and how many verdicts there are. 1.0 of none."""
    good = sum(b["within_slo"] for b in buckets)
    total = good + sum(b["missed_slo"] for b in buckets)
    return (good / total if total else 1.0), total


def missed_since(load: Document, unix_s: float) -> tuple[int, int]:
    """Requests that missed the SLO, and requests judged, since then."""
    buckets = [b for b in load["buckets"] if b["t"] >= unix_s]
    missed = sum(b["missed_slo"] for b in buckets)
    return missed, missed + sum(b["within_slo"] for b in buckets)


def _seconds(value: float) -> str:
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.2g} s"
