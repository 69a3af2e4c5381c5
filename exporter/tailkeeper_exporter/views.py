"""What is known of one backend at one moment, as an immutable value: all that `/metrics` and `/healthz` read.

The collector makes a new view and swaps one reference; nobody else writes. Times are monotonic seconds.

Staleness: a gauge is a statement about now, so one from a page older than ``stale_after_s`` (three intervals and a time-out)
is not published any more. Counters and histograms are facts up to the last page and stay; the age of the page, which grows,
says how old they are. What a tap counts is a fact too, and stays. Before an engine has ever been read its
counters are published at 0 while it is known not to run (``idle_counters``), so that its first failure is an increase; of an
engine that merely cannot be read nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from tailkeeper_exporter.kv_service import Ping
from tailkeeper_exporter.liveness import Liveness
from tailkeeper_exporter.page import Labels, Reason
from tailkeeper_exporter.probe import ProbeResult
from tailkeeper_exporter.probe_answer import Outcome
from tailkeeper_exporter.readings import Histogram, Reading
from tailkeeper_exporter.settings import BackendSettings
from tailkeeper_exporter.state import State
from tailkeeper_exporter.tap.watch import TapNumbers

Output = tuple[str, Labels]


def nothing() -> Mapping[Any, Any]:
    """An empty mapping that nobody can write to."""
    return MappingProxyType({})


INTERNAL = "internal"
"""Reason of a failure of our own: one backend's loop met an exception that nobody had foreseen."""
REASONS: tuple[str, ...] = (*(reason.value for reason in Reason), INTERNAL)


class Source(StrEnum):
    """Where readings come from: label value of ``tailkeeper_exporter_scrape_…``."""

    ENGINE = "engine"
    HEALTH = "health"
    PROBE = "probe"
    GPU = "gpu"
    KV_SERVICE = "kv_service"
    TAP = "tap"


@dataclass(frozen=True, slots=True)
class SourceView:
    """The last read of one source. ``good_s`` is when it last gave readings, else when asking began."""

    success: bool
    duration_s: float | None
    good_s: float
    tried_s: float
    code: str = ""
    """Why it failed, in one word (``timeout``, ``http_503``)."""


@dataclass(frozen=True, slots=True)
class BackendView:
    """One backend. ``asked`` is false until its first page read has ended, whatever came of it."""

    settings: BackendSettings
    liveness: Liveness
    asked: bool = False
    has_page: bool = True
    """False for an engine without a metrics page: there is nothing to lose, and nothing to tell work from standstill."""
    up: bool | None = None
    stale_after_s: float = 5.0
    counters: Mapping[Output, float] = field(default_factory=nothing)
    histograms: Mapping[Output, Histogram] = field(default_factory=nothing)
    gauges: Mapping[Output, Reading[float]] = field(default_factory=nothing)
    """From the page, and derived from it."""
    tap: TapNumbers = field(default_factory=TapNumbers)
    """What the tap supplies: names that the page does not give."""
    idle_counters: bool = False
    sources: Mapping[Source, SourceView] = field(default_factory=nothing)
    missing: tuple[str, ...] = ()
    invalid: Mapping[str, int] = field(default_factory=nothing)
    probes: Mapping[Outcome, int] = field(default_factory=nothing)
    saturated: Mapping[str, Reading[float]] = field(default_factory=nothing)
    probe: ProbeResult | None = None
    """The last probe that was sent."""
    open_probe_s: float | None = None
    """When the probe that is open now was sent."""
    bad_probes: int = 0
    """Probes in a row without a token in time."""
    kv_ping: Ping | None = None
    memory_headroom: Reading[float] | None = None
    progress_s: float | None = None
    stalled_since_s: float | None = None
    in_flight: float | None = None
    gpu_stale_after_s: float = 5.0
    started_s: float = 0.0
    """When watching it began."""

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def state(self) -> State:
        return self.liveness.state
