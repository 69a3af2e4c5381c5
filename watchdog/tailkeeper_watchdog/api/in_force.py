"""Series of what is open and in force now: findings, their causes, our changes at gateways. Pure; counts, never judges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import product

from tailkeeper_watchdog import metrics
from tailkeeper_watchdog.api.page import Series
from tailkeeper_watchdog.model import Finding, FindingKind, Knob, Lease, Severity, Share

MAX_SHARES = 5
"""Of one finding. A sixth cause is below a fifth of it, and nobody acts on that at night."""
MAX_VALUE_CHARS = 60
"""A cause may be a whole sentence, such as a change that was made; the finding has it in full."""
REST = "other"


def finding_series(findings: Iterable[Finding]) -> Iterator[Series]:
    """How many are open, and what explains them. One without causes has no share: that is not the same as unexplained."""
    opened = tuple(findings)
    counts: Counter[tuple[str, ...]] = Counter({("", k.value, s.value): 0 for k, s in product(FindingKind, Severity)})
    counts.update((f.backend, f.kind.value, f.severity.value) for f in opened)
    yield metrics.FINDINGS_OPEN, [(labels, float(number)) for labels, number in counts.items()]
    shares = [((f.backend, f.kind.value, f.signal), share) for f in opened for share in _largest(f.shares)]
    yield metrics.FINDING_SHARE, [((*of, s.dimension, s.value), s.share) for of, s in shares]
    yield metrics.FINDING_CONFIDENCE, [((*of, s.dimension, s.value), s.confidence) for of, s in shares if s.dimension != REST]


def lease_series(leases: Iterable[Lease]) -> Iterator[Series]:
    """Our changes by backend and knob. One that is written down and not read back yet counts: it may be in force."""
    counts: Counter[tuple[str, ...]] = Counter({("", knob.value): 0 for knob in Knob})
    counts.update((lease.backend, lease.knob.value) for lease in leases)
    yield metrics.LEASES_IN_FORCE, [(labels, float(number)) for labels, number in counts.items()]


def _largest(shares: tuple[Share, ...]) -> Iterator[Share]:
    """The largest ones, those of one name together, and all others as one."""
    named: dict[tuple[str, str], Share] = {}
    for share in sorted(shares, key=lambda s: -s.share):
        key = share.dimension, share.value[:MAX_VALUE_CHARS]
        first = named.get(key)
        named[key] = Share(*key, share.share + (first.share if first else 0.0), first.confidence if first else share.confidence)
    ranked = list(named.values())
    yield from ranked[:MAX_SHARES]
    if ranked[MAX_SHARES:]:
        yield Share(REST, REST, sum(share.share for share in ranked[MAX_SHARES:]), 0.0)
