"""What one backend's tap adds to its view: counts, gauges, and evidence for the liveness judgement. No I/O.

Owned by the backend's collector. ``ownership`` says which names are the tap's; only those are in the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar

from tailkeeper_exporter import catalog
from tailkeeper_exporter.engines import Engine
from tailkeeper_exporter.evidence import TAP_STALE_S, TapSeen
from tailkeeper_exporter.normalise import Normalised
from tailkeeper_exporter.page import Labels
from tailkeeper_exporter.readings import Histogram, Reading, present
from tailkeeper_exporter.settings import BackendSettings
from tailkeeper_exporter.tap.exchange import Exchange
from tailkeeper_exporter.tap.meter import Meter
from tailkeeper_exporter.tap.ownership import tap_supplies
from tailkeeper_exporter.tap.status import Taps, TapStatus

T = TypeVar("T")
Output = tuple[str, Labels]

POLL_S = 0.25
"""How often a tap's status is looked at: a dictionary look-up, and a judgement where something has changed."""
REPEAT_S = TAP_STALE_S / 3
"""A status that says the same again is taken as evidence this often, so that it does not go stale."""


def _nothing() -> Mapping[Any, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class TapNumbers:
    """What the tap supplies, by catalogue name and labels, without what is the page's."""

    counters: Mapping[Output, float] = field(default_factory=_nothing)
    histograms: Mapping[Output, Histogram] = field(default_factory=_nothing)
    gauges: Mapping[Output, Reading[float]] = field(default_factory=_nothing)


class TapWatch:
    """One backend's tap as its collector sees it."""

    def __init__(self, backend: BackendSettings, engine: Engine, has_page: bool, taps: Taps) -> None:
        self._name = backend.name
        self._engine = engine
        self._has_page = has_page
        self._taps = taps
        self._meter = Meter(backend.model or "", backend.canary_revision)
        self._given: frozenset[str] = frozenset()
        self._taken: TapStatus | None = None
        self._counted_at = -1
        self._shown: TapStatus | None = None
        self._numbers = TapNumbers()
        self.supplies = tap_supplies(engine, has_page, False, self._given)
        """Catalogue names that the tap supplies as things stand."""

    def take(self, exchange: Exchange) -> None:
        """Count a finished request."""
        self._meter.take(exchange)

    def take_page(self, found: Normalised) -> None:
        """A good page: what it offers is its own from now on, valid or not, and it names the models."""
        self._given |= {name for name, _ in (*found.values, *found.histograms)}
        self.supplies = tap_supplies(self._engine, self._has_page, True, self._given)
        self._meter.name_models(found.models)
        self._counted_at, self._shown = -1, None

    def news(self, now: float) -> TapStatus | None:
        """The tap's status where it says something new, or the same again after a while; None where it is stale."""
        status = self._taps.statuses.get(self._name)
        if status is None or not as_evidence(status).is_fresh(now):
            return None
        before = self._taken
        if before is not None and _same(before, status) and status.at_s - before.at_s < REPEAT_S:
            return None
        self._taken = status
        return status

    def is_fresh(self, now: float) -> bool:
        """Whether the tap's process reports."""
        status = self._taps.statuses.get(self._name)
        return status is not None and as_evidence(status).is_fresh(now)

    def numbers(self) -> TapNumbers:
        """What the tap supplies now. Cheap where nothing was counted since the last call: the same object again."""
        if self._counted_at != self._meter.version:
            self._counted_at = self._meter.version
            counters, histograms = self._meter.counters(), self._meter.histograms()
            self._numbers = replace(self._numbers, counters=self._own(counters), histograms=self._own(histograms))
        status = self._taps.statuses.get(self._name)
        if self._shown is not status:
            self._shown = status
            self._numbers = replace(self._numbers, gauges=self._own(self._gauges(status)))
        return self._numbers

    def _own(self, found: dict[Output, T]) -> Mapping[Output, T]:
        return MappingProxyType({output: value for output, value in found.items() if self._is_own(output)})

    def _is_own(self, output: Output) -> bool:
        """Also of requests that the page counts, the outcomes that no page of this engine tells are the tap's: or a server
        that fails would have no errors."""
        name, labels = output
        return name in self.supplies or (name == catalog.REQUESTS.name and dict(labels)["outcome"] not in self._engine.outcomes)

    def _gauges(self, status: TapStatus | None) -> dict[Output, Reading[float]]:
        """Running is all that was given to the backend, for what it queues itself the tap cannot tell; waiting is in the tap."""
        if status is None:
            return {}
        label = self._meter.label()
        return {
            (catalog.RUNNING.name, label): present(float(status.running + status.waiting), status.at_s),
            (catalog.WAITING.name, label): present(float(status.queued), status.at_s),
        }


def as_evidence(status: TapStatus) -> TapSeen:
    """The status as evidence. What waits in the tap itself is not work of the backend."""
    return TapSeen(status.at_s, status.running, status.waiting, status.progress_s, status.answered_s)


def _same(before: TapStatus, status: TapStatus) -> bool:
    return replace(before, at_s=status.at_s) == status
