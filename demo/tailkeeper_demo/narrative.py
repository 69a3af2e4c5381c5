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

PACED = "cooldown"
"""A refusal that only says "not yet" is no news: policies that steer all the time hear it all the time."""
IMPOSSIBLE = "not enforceable"

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
    shed_level: int = 0
    """Requests refused at all taps: 0 none, 1 of low priority, 2 all but of high priority."""
    _returned: bool = False
    _told: set[int] = field(default_factory=set)
    _latest: dict[str, Any] = field(default_factory=dict)
    """What each knob was last set to: the tap may follow the edge a look later, and is no second act."""
    _helped: set[str] = field(default_factory=set)
    """What was done beside moving traffic, in words for the ending."""

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
        events = [*self._found(seen, mine), *self._decided(seen, mine), *self._shed(seen), *self._users(seen)]
        return [*events, *self._recovery(seen), *self._released(seen, mine)]

    def ending(self) -> list[str]:
        """How it went, in lines for the box at the end."""
        times = "once more" if self.relapses == 1 else f"{self.relapses} times more"
        again = f", and {times}" if self.relapses else ""
        found, acted = self._after(self.found_at_s), self._after(self.acted_at_s)
        helped = f"also {', '.join(sorted(self._helped))}" if self._helped else ""
        return [
            f"{self.fault} in {self.victim}: found {found}, acted on {acted}{again}",
            *([helped] if helped else []),
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
        new = [d for d in mine if d["id"] not in self._told and d["knob"] != "degrade_level"]
        self._told |= {d["id"] for d in new}
        for decision, places in _together(new):
            verdict, reason = decision["verdict"], decision["reason"]
            before = self._latest.get(decision["knob"])
            if verdict in ("applied", "released", "expired"):
                self._latest[decision["knob"]] = decision["to"]
            if verdict == "applied" and _is_less(decision) and before != decision["to"]:
                yield self._applied(seen, decision, places)
            elif verdict == "refused" and reason.startswith(IMPOSSIBLE):
                wanted = f"{self.victim}: {decision['knob']} {decision['to']} wanted"
                yield Event(seen.at_s, "noted", f"{wanted}; no gateway of this demo can do it")
            elif verdict in ("refused", "failed", "contended", "expired") and not reason.startswith(PACED):
                yield Event(seen.at_s, verdict, f"{self.victim} {decision['knob']}: {reason.partition('; wanted because')[0]}")

    def _applied(self, seen: Seen, decision: Document, places: int) -> Event:
        knob, to = decision["knob"], decision["to"]
        if knob in _AT_THE_TAP:
            return self._at_the_tap(seen, decision)
        if _is_return(decision):
            self._returned = True
            return Event(seen.at_s, "return", f"{self.victim} back in, at {to:.0%} of its weight")
        self._acted(seen, decision)
        others = [b for b in seen.fleet["backends"] if b["backend"] != self.victim]
        is_out = to == "drain" or (isinstance(to, float) and to < 0.5)
        out = is_out + sum(_is_out(b["actual"]) for b in others)
        what = "drained" if to == "drain" else f"at {to:.0%} of its weight" if isinstance(to, float) else f"{knob} {to}"
        where = f"at edge ({self.gateway}){' and at its tap' if places > 1 else ''}"
        text = (
            f"{self.victim} {what} {where}, lease {_lease_s(decision)} s, {out} of {len(seen.fleet['backends'])} out, read back"
        )
        return Event(seen.at_s, "acted", text)

    def _acted(self, seen: Seen, decision: Document) -> None:
        if self.acted_at_s is None:
            self.acted_at_s, self.acted_unix_s = seen.at_s, decision["time"]
        elif self._returned and decision["to"] == "drain":
            self._relapse(decision)

    def _at_the_tap(self, seen: Seen, decision: Document) -> Event:
        self._acted(seen, decision)
        word, helped, text = _AT_THE_TAP[decision["knob"]]
        self._helped.add(helped)
        told = text.format(victim=self.victim, to=decision["to"])
        return Event(seen.at_s, word, f"{told}, lease {_lease_s(decision)} s, read back")

    def _shed(self, seen: Seen) -> Iterator[Event]:
        """A pool's shedding is told once, not for each of its taps."""
        of_the_pool = [d for d in seen.decisions if d["knob"] == "degrade_level" and d["time"] >= self.injected_unix_s]
        latest = next((d for d in of_the_pool if d["verdict"] in ("applied", "released", "expired")), None)
        level = self.shed_level if latest is None else int(latest["to"])
        if latest is None or level == self.shed_level:
            return
        self.shed_level = level
        if level:
            self._helped.add("shed")
            whom = "requests of low priority" if level == 1 else "all requests but those of high priority"
            yield Event(seen.at_s, "shed", f"{whom} are refused for now: {latest['reason'].partition('; read back')[0]}")
        else:
            yield Event(seen.at_s, "restored", "requests of every priority are taken again")

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
        # A first token that comes only now may be of a request that was missed long before: no word about those that are well.
        wait = "" if now is None or now > seen.load.get("slo_ttft_s", now) else f", first token within {_seconds(now)} now"
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


_AT_THE_TAP: Mapping[str, tuple[str, str, str]] = {
    "concurrency_limit": ("limited", "limited", "{victim} gets {to:.0f} requests at once at most, others wait at its tap"),
    "cache_mode": ("cached", "answered from a cache", "{victim}: its tap answers repeated requests from its cache ({to})"),
}
"""By knob: the word of the event, the word of the ending, and the sentence."""


def _together(decisions: list[Document]) -> Iterator[tuple[Document, int]]:
    """Decisions of one look, with at how many gateways: what is done at the edge is often done at the tap, too."""
    places: dict[tuple[str, str, str], list[Document]] = {}
    for d in decisions:
        places.setdefault((d["knob"], str(d["to"]), d["verdict"]), []).append(d)
    for same in places.values():
        yield same[0], len(same)


def _is_return(decision: Document) -> bool:
    return bool(decision["policy"] == "return" or decision["reason"].startswith("returning"))


def _is_out(actual: Document) -> bool:
    """Whether a gateway tells that this backend is drained, or below half; one that tells nothing has nobody out."""
    weight = actual["weight"]
    return actual["admission"] == "drain" or (weight is not None and weight < 0.5)


def _is_less(decision: Document) -> bool:
    """Whether it takes something away, or is a step of a return: a policy that steers up a little is no news."""
    before, to = decision.get("from"), decision["to"]
    steered_up = decision["knob"] in ("weight", "concurrency_limit") and isinstance(before, float) and 0 < before < to
    return _is_return(decision) or not steered_up


def _lease_s(decision: Document) -> int:
    expires, now = decision["lease_expires"], decision["time"]
    return 0 if expires is None else round(float(expires) - float(now))


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
