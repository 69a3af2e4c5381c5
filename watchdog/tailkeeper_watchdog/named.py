"""What the configuration names and everybody tells apart: knobs, modes, kinds of findings, backends and where they are switched.

Frozen values, no I/O. Whoever uses them imports them from ``model``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

EMPTY: Mapping[Any, Any] = MappingProxyType({})


class Knob(StrEnum):
    WEIGHT = "weight"
    ADMISSION = "admission"
    CONCURRENCY_LIMIT = "concurrency_limit"
    BATCH_WINDOW_S = "batch_window_s"
    CACHE_MODE = "cache_mode"
    DEGRADE_LEVEL = "degrade_level"
    REPLICAS = "replicas"
    TAINT = "taint"
    ANNOTATION = "annotation"

    __hash__ = str.__hash__  # an enumeration's own is written in Python, and knobs are in the keys of most look-ups


SERVE = "serve"
DRAIN = "drain"

KnobValue = float | str
Pool = tuple[str, str]
"""Gateway and pool."""
Place = tuple[str, str, Knob]
"""Gateway, server, knob: what the ledger tells leases apart by, because pools and backends are renamed."""
Pending = Mapping[Place, Mapping[KnobValue, float]]
"""Values that we have sent and that may still come to be in force, and until when, in epoch seconds."""


class Mode(StrEnum):
    """How far a policy may go: write it down, tell people, or do it."""

    OBSERVE = "observe"
    ADVISE = "advise"
    ENFORCE = "enforce"


class Severity(StrEnum):
    PAGE = "page"
    TICKET = "ticket"
    INFO = "info"


class FindingKind(StrEnum):
    GROWTH = "growth"
    DISTORTION = "distortion"
    ZSCORE = "zscore"
    BLOCK_E = "block_e"
    SLO_BURN = "slo_burn"
    IMPROVED_BUT_BROKEN = "improved_but_broken"
    TELEMETRY_LOST = "telemetry_lost"
    HUNG = "hung"
    DOWN = "down"
    MEMORY_PRESSURE = "memory_pressure"
    COMMON_CAUSE = "common_cause"
    CONTENDED = "contended"
    ADVICE = "advice"


class Enforceability(StrEnum):
    ENFORCED = "enforced"
    OBSERVED = "observed"
    NOT_ENFORCEABLE = "not_enforceable"


@dataclass(frozen=True, slots=True)
class Target:
    """Where one backend is switched: the gateway by name, the server as that gateway calls it, and its pool."""

    gateway: str
    server: str
    pool: str

    def __hash__(self) -> int:
        """By what differs most: a target is looked up dozens of times a tick for each backend."""
        return hash(self.server)


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend as configured. ``zone`` is its availability zone label, empty where none is given."""

    name: str
    model: str = ""
    targets: tuple[Target, ...] = ()
    labels: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    url: str = ""
    """Where it listens; only to tell a backend from another one that got its name."""
    kv_bytes_per_token: float | None = None
    """Bytes of the keys and values of one token, where the shape of its model is configured."""
    quantization: str = ""
    """Precision as configured."""

    @property
    def zone(self) -> str:
        return self.labels.get("az", "")

    @property
    def pool(self) -> Pool:
        """That of the first of its gateways; two empty names where it has none."""
        return (self.targets[0].gateway, self.targets[0].pool) if self.targets else ("", "")

    @property
    def identity(self) -> tuple[str, frozenset[tuple[str, str]]]:
        """What makes it the same backend beside its name: its address, and its servers by gateway."""
        return self.url, frozenset((t.gateway, t.server) for t in self.targets)
