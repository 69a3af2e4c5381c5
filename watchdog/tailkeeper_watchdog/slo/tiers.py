"""Which promise a request was made, and whether it was kept. Pure.

A promise is about the first output: the first token, or the whole answer of a request that has no first token of its
own because it was not streamed. Tiers are asked in the order of the configuration and the first match wins. A request
that no tier matches gets the built-in tier of its modality (``default-speech`` and so on), else ``default``.

A late answer is not worth nothing: what is left of it is the latency sensitivity 1/(1 + (τ/τ₀)²), where τ is by how much
the first output came after the limit and τ₀ how far the limit is from where people feel discomfort. So it is 1 at the
limit, exactly ½ at the discomfort, and near 0 long after. A request that failed is worth 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tailkeeper_watchdog.model import RequestRecord, Slo

DISCOMFORT = 2.0
"""Where nothing else is known, discomfort is felt at twice the limit: an assumption, between the 1.6 of speech and the
2.9 of images."""
FIRST_OUTPUT_S: Mapping[str, tuple[float, float]] = {"speech": (0.25, 0.4), "text": (0.8, 2.1), "image": (1.2, 3.5)}
"""By modality: until when the first output should be there, and when its lack is felt as discomfort."""
DEFAULT = "default"
_FAILED = frozenset(("error", "rejected"))

ATTRIBUTES: Mapping[str, Callable[[RequestRecord], object]] = {
    "tenant": lambda r: r.tenant,
    "operation": lambda r: r.operation,
    "sensitivity": lambda r: r.sensitivity,
    "modality": lambda r: r.modality,
    "model": lambda r: r.model,
    "canary_revision": lambda r: r.canary_revision,
}
"""What a tier may ask of a request."""


@dataclass(frozen=True, slots=True)
class Tier:
    """One promise. ``match`` values are compared as text; ``whole_limit_s`` is for answers that were not streamed."""

    name: str
    match: Mapping[str, str]
    limit_s: float
    discomfort_s: float
    whole_limit_s: float
    whole_discomfort_s: float

    def matches(self, record: RequestRecord) -> bool:
        return all(_said(ATTRIBUTES[key](record)) == wanted for key, wanted in self.match.items())


def _said(value: object) -> str | None:
    return None if value is None else str(value)


def tier(name: str, match: Mapping[str, str], limit_s: float, discomfort_s: float | None = None) -> Tier:
    """A tier that makes one promise for streamed and whole answers alike."""
    discomfort = discomfort_s or DISCOMFORT * limit_s
    return Tier(name, match, limit_s, discomfort, limit_s, discomfort)


def tiers_of(configured: tuple[tuple[str, Mapping[str, str], float], ...], slo: Slo) -> tuple[Tier, ...]:
    """All tiers in the order in which they are asked, ``default`` last. ``configured`` are name, match and limit in seconds."""
    default = Tier(DEFAULT, {}, slo.ttft_p99_s, DISCOMFORT * slo.ttft_p99_s, slo.e2e_p99_s, DISCOMFORT * slo.e2e_p99_s)
    return (
        *(tier(name, match, limit_s) for name, match, limit_s in configured),
        *(tier(f"{DEFAULT}-{kind}", {"modality": kind}, *limits) for kind, limits in FIRST_OUTPUT_S.items()),
        default,
    )


def tier_of(record: RequestRecord, tiers: tuple[Tier, ...]) -> Tier:
    """The first that matches; the last one, ``default``, matches everything."""
    return next(t for t in tiers if t.matches(record))


def worth(latency_s: float, limit_s: float, discomfort_s: float) -> float:
    """What an answer is worth in [0, 1]: 1 within the limit, ½ at the discomfort."""
    if latency_s <= limit_s:
        return 1.0
    ratio = (latency_s - limit_s) / (discomfort_s - limit_s)
    return 1.0 / (1.0 + ratio * ratio)


@dataclass(frozen=True, slots=True)
class Counts:
    """Requests that count, those that kept the promise, and what all of them were worth together."""

    requests: float = 0.0
    good: float = 0.0
    worth: float = 0.0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.requests + other.requests, self.good + other.good, self.worth + other.worth)


NOTHING = Counts()
KEPT = Counts(1.0, 1.0, 1.0)
FAILED = Counts(1.0)


def first_output_s(record: RequestRecord) -> float | None:
    """What the promise is about: until the first token, or the whole answer of one that was not streamed."""
    return record.e2e_s if record.ttft_s is None else record.ttft_s


def judged(record: RequestRecord, of: Tier) -> Counts:
    """What one request counts. Aborted ones are the client's choice, and what is not known is not kept: both count nothing."""
    if record.outcome in _FAILED:
        return FAILED
    if record.outcome != "ok":
        return NOTHING
    latency_s = first_output_s(record)
    if latency_s is None:
        return NOTHING
    streamed = record.ttft_s is not None
    limit_s, discomfort_s = (of.limit_s, of.discomfort_s) if streamed else (of.whole_limit_s, of.whole_discomfort_s)
    if latency_s <= limit_s:
        return KEPT
    return Counts(1.0, 0.0, worth(latency_s, limit_s, discomfort_s))
