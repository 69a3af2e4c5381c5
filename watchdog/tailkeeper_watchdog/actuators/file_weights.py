"""Weights of a pool that stand as whole numbers in a gateway's configuration file: what changes when one server's share does.

Pure, and knows no file format. A gateway with weights of 1 cannot express 0.18 of one, so while any share is not normal all
weights of the pool are multiplied by ``FINE_SCALE``, which changes nobody's part of the traffic. Once every server is normal
again the configured numbers themselves stand in the file, as if nobody had been there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.contract import ErrorKind
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, KnobValue

FINE_SCALE = 100
"""Makes 1 % of a configured weight of 1 a whole number."""
MAX_UNITS = 100_000_000
"""Far above what anybody configures, and 40 such servers still fit into the 32 bits that Envoy has for their sum."""
_PORTS = {"http": 80, "https": 443}
Pool = Mapping[str, "Entry"]
"""By server, as host:port."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One server of the pool. ``configured`` is its normal weight in the file's own units, ``share`` the part of it wanted.

    A configured weight of 0 has no shares: its ``share`` is 0.
    """

    configured: int
    share: float = 1.0
    drained: bool = False

    @property
    def out(self) -> bool:
        """Whether it is to get no traffic."""
        return self.drained or self.share == 0 or self.configured == 0

    @property
    def is_normal(self) -> bool:
        return not self.drained and (self.share == 1.0 or self.configured == 0)

    def units(self, scale: int) -> int:
        """Whole units of the share; a positive share is never rounded to 0."""
        exact = self.share * self.configured * scale
        return 0 if exact == 0 else max(1, round(exact))


def place(name: str) -> str:
    """A server as host:port. Of a URL its host, and the port that its scheme implies."""
    if "://" not in name:
        return name
    try:
        parts = urlsplit(name)
        port = parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError):
        return name
    host = parts.hostname or ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def share_of(units: int, configured: int, scale: int) -> float:
    return units / (configured * scale) if configured > 0 else 0.0


def scale_of(pool: Pool) -> int:
    """By what all weights are multiplied: 1 while every share is normal or 0, and where the weights are fine enough."""
    configured = [entry.configured for entry in pool.values() if entry.configured > 0]
    if all(entry.share in (0.0, 1.0) for entry in pool.values()) or min(configured) >= FINE_SCALE:
        return 1
    return FINE_SCALE if max(configured) * FINE_SCALE <= MAX_UNITS else 1


def changed(pool: Pool, server: str, values: Mapping[Knob, KnobValue], serving: frozenset[str]) -> tuple[Pool, CallError | None]:
    """The pool with ``values`` in force at ``server``, and why a part of them was left out, if one was.

    Drain first, then weight, and only then in again, so a weight that must be refused never keeps a drain from happening
    and does keep traffic out. ``serving`` are the servers that the gateway gives traffic now.
    """
    entry = pool[server]
    try:
        for step in _steps(entry, values):
            if step.out and not entry.out:
                _check_not_last(pool, server, serving)
            entry = step
    except CallError as refusal:
        return {**pool, server: entry}, refusal
    return {**pool, server: entry}, None


def _steps(entry: Entry, values: Mapping[Knob, KnobValue]) -> Iterator[Entry]:
    admission = values.get(Knob.ADMISSION, DRAIN if entry.drained else SERVE)
    if admission not in (SERVE, DRAIN):
        raise CallError(ErrorKind.REFUSED, f"admission {admission!r} is not known; allowed: {SERVE}, {DRAIN}")
    if admission == DRAIN:
        entry = replace(entry, drained=True)
        yield entry
    if Knob.WEIGHT in values:
        entry = replace(entry, share=_share(values[Knob.WEIGHT], entry.configured))
        yield entry
    if admission == SERVE:
        yield replace(entry, drained=False)


def _share(value: KnobValue, configured: int) -> float:
    if isinstance(value, (str, bool)) or not math.isfinite(value) or value < 0:
        raise CallError(ErrorKind.REFUSED, f"weight {value!r} is not a share; it must be a number from 0 up")
    if value > 0 and configured == 0:
        raise CallError(
            ErrorKind.REFUSED, "its configured weight is 0, of which there are no shares; give it a weight in the file"
        )
    if value * configured * FINE_SCALE > MAX_UNITS:
        raise CallError(ErrorKind.REFUSED, f"weight {value:g} of {configured} is above the limit of {MAX_UNITS // FINE_SCALE}")
    return float(value)


def _check_not_last(pool: Pool, server: str, serving: frozenset[str]) -> None:
    if not any(name in serving and not entry.out for name, entry in pool.items() if name != server):
        raise CallError(ErrorKind.REFUSED, "it is the last one of its pool that takes traffic, so it stays")
