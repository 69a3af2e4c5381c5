"""The engines' own series in a Prometheus, for backends that our exporter does not tell of: questions out, observations in.

Asked are the raw samples of the last scrapes, because only they carry the time of the scrape; samples of one target with one
time are one page. Whose page it is tells the host and port of a backend's address. No I/O: `PrometheusSource` asks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite, isnan
from typing import Any
from urllib.parse import urlsplit

from tailkeeper_exporter.catalog import Kind
from tailkeeper_exporter.discovery.prometheus import FOREIGN_LABELS
from tailkeeper_exporter.engines import engine_named
from tailkeeper_exporter.exposition import SeriesKey
from tailkeeper_exporter.normalise import wanted_by
from tailkeeper_watchdog.collect.native import NativeBackend
from tailkeeper_watchdog.collect.series import key_of, names_matching
from tailkeeper_watchdog.model import BackendObservation
from tailkeeper_watchdog.settings import WatchedBackend

PLACES_A_QUESTION = 100
"""More would make an address too long for some proxies on the way."""
SCRAPES_ASKED = 2.5
"""So many intervals are asked for: the newest scrape is among them even where one was late."""

Rows = list[dict[str, Any]]
Pages = dict[float, list[tuple[SeriesKey, float]]]
"""Samples by the time of their scrape, epoch seconds."""


def places_of(settings: WatchedBackend) -> Iterator[str]:
    """What a server may call the target: host and port of the backend's page, or of its address."""
    for url in (settings.metrics_url, settings.url):
        if url is not None:
            parts = urlsplit(url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
            yield parts.netloc.rpartition("@")[2] if parts.port else f"{parts.hostname}:{port}"


def points_of(row: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
    """Times and values of a row of raw samples; whatever is none is left out."""
    values = row.get("values")
    for pair in values if isinstance(values, list) else ():
        try:
            at, value = float(pair[0]), float(pair[1])
        except (TypeError, ValueError, IndexError, KeyError):
            continue
        if isfinite(at):
            yield at, value


def without_ends(pages: Pages) -> Pages:
    """Without pages that hold no number at all: VictoriaMetrics hands out the mark at the end of a series as a sample that is
    not a number, and at the end of a target every series has one. Prometheus keeps the mark to itself."""
    return {at: samples for at, samples in pages.items() if not all(isnan(value) for _, value in samples)}


@dataclass(slots=True)
class _Known:
    """One backend of the fleet: what reads it, and up to when it has been read."""

    settings: WatchedBackend
    kinds: Mapping[str, Kind]
    reader: NativeBackend
    read_until: float = float("-inf")


@dataclass(slots=True)
class NativePages:
    """The fleet's backends by where they are. ``fleet`` is asked each round; ``interval_s`` is the server's scrape interval."""

    fleet: Callable[[], tuple[WatchedBackend, ...]]
    interval_s: float
    _given: tuple[WatchedBackend, ...] = ()
    _known: dict[str, _Known] = field(default_factory=dict)
    _by_place: dict[str, str] = field(default_factory=dict)

    def questions(self, told_of: frozenset[str]) -> Iterator[str]:
        """The PromQL for the backends that are not ``told_of`` otherwise."""
        self._follow()
        asked = {name: known for name, known in self._known.items() if name not in told_of and known.kinds}
        places = sorted(place for place, name in self._by_place.items() if name in asked)
        kinds = {name: kind for known in asked.values() for name, kind in known.kinds.items()}
        foreign = "".join(f',{label}=""' for label in FOREIGN_LABELS)
        for first in range(0, len(places), PLACES_A_QUESTION):
            these = "|".join(literally(place) for place in places[first : first + PLACES_A_QUESTION])
            window = f"[{round(1_000 * SCRAPES_ASKED * self.interval_s)}ms]"
            yield f'{{__name__=~"{names_matching(kinds)}",instance=~{json.dumps(these)}{foreign}}}{window}'

    def _follow(self) -> None:
        """Take the fleet as it is now. A backend with another address or engine is another one and begins anew."""
        given = self.fleet()
        if given is self._given:
            return
        self._given, before, self._known = given, self._known, {}
        for settings in given:
            known = before.get(settings.name)
            if known is None or known.settings != settings:
                engine = engine_named(settings.engine)
                kinds = wanted_by(engine) if engine.sources else {}
                reader = NativeBackend(settings.name, engine, settings.hang.no_progress_s, trusted=False)
                known = _Known(settings, kinds, reader)
            self._known[settings.name] = known
        self._by_place = {place: settings.name for settings in given for place in places_of(settings)}

    def observe(self, rows: Iterable[Mapping[str, Any]]) -> tuple[dict[str, BackendObservation], dict[str, float]]:
        """The newest observation of each backend that has a newer page than before, and when it was scraped, epoch seconds."""
        found: dict[str, BackendObservation] = {}
        taken: dict[str, float] = {}
        for name, pages in self._pages(rows).items():
            known = self._known[name]
            for at in sorted(at for at in pages if at > known.read_until):
                known.read_until = at
                found[name], taken[name] = known.reader.take(pages[at], at), at
        return found, taken

    def _pages(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, Pages]:
        """Pages by backend. Of two jobs that scrape one target the first one counts."""
        by_job: dict[tuple[str, str], Pages] = {}
        for row in rows:
            labels = row.get("metric")
            name = self._by_place.get(str(labels.get("instance"))) if isinstance(labels, dict) else None
            key = None if name is None else key_of(labels or {}, self._known[name].kinds)
            if name is None or key is None:
                continue
            pages = by_job.setdefault((name, str((labels or {}).get("job", ""))), {})
            for at, value in points_of(row):
                pages.setdefault(at, []).append((key, value))
        found: dict[str, Pages] = {}
        for (name, _), pages in sorted(by_job.items(), key=lambda item: item[0]):
            found.setdefault(name, without_ends(pages))
        return found


def literally(text: str) -> str:
    """``text`` as a regular expression of PromQL that matches it alone."""
    return "".join(f"[{c}]" if not c.isalnum() and c not in "-_:" else c for c in text)
