"""What the load generator saw, second by second: counts, service level, time to first token.

Pure: events with their time in, a JSON-ready document out. A request is judged once against the service level: at its first
content, when it fails before that, or at the very moment the limit passes without content. So a hung backend shows within
`slo_ttft_s`, not when the client's patience ends. An answer wanted as a whole is judged likewise, at its end and by the limit for
whole answers; it has no time to first token.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from enum import StrEnum

KEEP_BUCKETS = 600
"""Ten minutes of seconds in the file: longer than any demo, some 80 kB."""
_RECENT_TTFT = 1000
"""Samples behind the totals' quantiles; a P99 needs a few hundred."""


class Outcome(StrEnum):
    """How a request ended."""

    OK = "ok"
    ERROR = "error"
    """An HTTP error, a refused connection, or an answer cut before its end."""
    TIMEOUT = "timeout"
    """The client's patience ended."""
    ABORTED = "aborted"
    """The generator stopped while it was in flight."""


@dataclass(slots=True)
class Bucket:
    """One second. `ok`, `errors`, `timeouts` count endings in it, `sent` sends; the verdicts fall when they are reached."""

    t: int
    sent: int = 0
    ok: int = 0
    errors: int = 0
    timeouts: int = 0
    refused: int = 0
    within_slo: int = 0
    missed_slo: int = 0
    in_flight: int = 0
    ttft_s: list[float] = field(default_factory=list)

    def document(self) -> dict[str, object]:
        names = ("t", "sent", "ok", "errors", "timeouts", "refused", "within_slo", "missed_slo", "in_flight")
        quantiles = {"ttft_p50": quantile(self.ttft_s, 0.50), "ttft_p99": quantile(self.ttft_s, 0.99)}
        return {name: getattr(self, name) for name in names} | quantiles


def quantile(values: list[float], q: float) -> float | None:
    """Lower-rank quantile: a value really observed. None when there are none."""
    if not values:
        return None
    return round(sorted(values)[int(q * (len(values) - 1))], 4)


class LoadStats:
    """Collects events of one run. `started_unix_s` turns run time into wall time for the reader."""

    def __init__(self, *, rate_per_s: float, slo_ttft_s: float, started_unix_s: float) -> None:
        self._rate_per_s = rate_per_s
        self._slo_ttft_s = slo_ttft_s
        self.started_unix_s = started_unix_s
        self._buckets: deque[Bucket] = deque(maxlen=KEEP_BUCKETS)
        self._totals: Counter[str] = Counter()
        self._error_kinds: Counter[str] = Counter()
        self._by_source: dict[str, Counter[str]] = {}
        self._recent_ttft_s: deque[float] = deque(maxlen=_RECENT_TTFT)
        self.in_flight = 0

    def sent(self, at_s: float) -> None:
        self.in_flight += 1
        self._add(at_s, "sent")

    def refused(self, at_s: float) -> None:
        """Not sent: too many were in flight already."""
        self._add(at_s, "refused")

    def first_content(self, at_s: float, ttft_s: float) -> None:
        self._bucket(at_s).ttft_s.append(ttft_s)
        self._recent_ttft_s.append(ttft_s)

    def verdict(self, at_s: float, *, within: bool, source: str = "online") -> None:
        name = "within_slo" if within else "missed_slo"
        self._add(at_s, name)
        self._by_source.setdefault(source, Counter(within_slo=0, missed_slo=0))[name] += 1

    def ended(self, at_s: float, outcome: Outcome, kind: str | None = None) -> None:
        """`kind` names an error, out of a small fixed set: `http_500`, `connect`, `truncated`, `protocol`."""
        self.in_flight -= 1
        field_name = {Outcome.OK: "ok", Outcome.ERROR: "errors", Outcome.TIMEOUT: "timeouts", Outcome.ABORTED: "aborted"}[outcome]
        self._add(at_s, field_name)
        if outcome is Outcome.ERROR:
            self._error_kinds[kind or "other"] += 1

    def document(self, at_s: float, *, done: bool) -> dict[str, object]:
        """The stats file at run time `at_s`. The last bucket is the second in progress."""
        self._bucket(at_s)
        recent = list(self._recent_ttft_s)
        names = ("sent", "ok", "errors", "timeouts", "aborted", "refused", "within_slo", "missed_slo")
        totals: dict[str, object] = {name: self._totals[name] for name in names}
        totals |= {"in_flight": self.in_flight, "errors_by_kind": dict(self._error_kinds)}
        totals["by_source"] = {source: dict(counts) for source, counts in self._by_source.items()}
        totals |= {"ttft_p50": quantile(recent, 0.50), "ttft_p99": quantile(recent, 0.99), "ttft_samples": len(recent)}
        return {
            "started_unix_s": self.started_unix_s,
            "updated_unix_s": self.started_unix_s + at_s,
            "done": done,
            "rate_per_s": self._rate_per_s,
            "slo_ttft_s": self._slo_ttft_s,
            "totals": totals,
            "buckets": [bucket.document() for bucket in self._buckets],
        }

    def _add(self, at_s: float, name: str) -> None:
        self._totals[name] += 1
        bucket = self._bucket(at_s)
        if name != "aborted":
            setattr(bucket, name, getattr(bucket, name) + 1)
        bucket.in_flight = self.in_flight

    def _bucket(self, at_s: float) -> Bucket:
        """The bucket of `at_s`; quiet seconds in between are filled in, for a reader must not take them for missing."""
        second = int(self.started_unix_s + at_s)
        if not self._buckets:
            self._buckets.append(Bucket(second))
        first = max(self._buckets[-1].t + 1, second - KEEP_BUCKETS)
        for t in range(first, second + 1):
            self._buckets.append(Bucket(t, in_flight=self.in_flight))
        return self._buckets[-1]
