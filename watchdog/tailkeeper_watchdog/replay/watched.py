"""Who is looked at in a Prometheus server's history: backends of a configuration, or those that the engines' own names tell of.

Our exporter's series are taken where there are any, and the engine's own where not. Each backend has a reader, which turns
its pages, one after the other, into observations.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tailkeeper_exporter import catalog
from tailkeeper_exporter.catalog import Kind
from tailkeeper_exporter.discovery.base import fitted
from tailkeeper_exporter.discovery.prometheus import FOREIGN_LABELS, engines_by_name, engines_in
from tailkeeper_exporter.engines import ENGINES, Engine, engine_named
from tailkeeper_exporter.exposition import SeriesKey
from tailkeeper_exporter.normalise import wanted_by
from tailkeeper_watchdog.collect.native import NativeBackend, Standstill
from tailkeeper_watchdog.collect.native_pages import places_of
from tailkeeper_watchdog.collect.observe import WANTED, observe
from tailkeeper_watchdog.model import Backend, BackendObservation, Target
from tailkeeper_watchdog.replay.simulated import ASSUMED
from tailkeeper_watchdog.settings import WatchedBackend

MAX_BACKENDS = 1_000
"""Backends of one replay; more are better looked at pool by pool."""
DAY_S = 86_400.0
NO_PROGRESS_S = 10.0
"""As `hang.no_progress_s` by default."""
Samples = Iterable[tuple[SeriesKey, float]]


class OursReader:
    """Pages of our exporter. Its word on the state is taken: it had a probe."""

    def __init__(self, name: str) -> None:
        self._name = name

    def take(self, samples: Samples, at: float) -> BackendObservation | None:
        return observe(samples, at, {}).get(self._name)

    def standstill(self, now: float, stale_after_s: float) -> Standstill | None:
        """None: where the exporter was, the probe was sent."""
        return None


@dataclass(frozen=True, slots=True)
class Watched:
    """One backend of the history: who it is, which series are its own, and what reads them."""

    backend: Backend
    selector: str
    kinds: Mapping[str, Kind]
    reader: OursReader | NativeBackend
    instance: str = ""
    """As the server calls the target of the engine's own series."""

    @property
    def name(self) -> str:
        return self.backend.name


@dataclass(frozen=True, slots=True)
class Seen:
    """An engine that the server has scraped."""

    instance: str
    job: str
    engine: Engine
    models: tuple[str, ...]


def engines_query(window_s: float) -> str:
    """The PromQL that finds every engine of the ``window_s`` seconds before its time."""
    names = "|".join(name.replace("_", ".") for name in engines_by_name())
    models = sorted({label for engine in ENGINES for label in engine.model_labels})
    labels = ", ".join(("__name__", "instance", "job", *models, *FOREIGN_LABELS))
    return f'count by ({labels}) (last_over_time({{__name__=~"{names}"}}[{max(1, round(window_s))}s]))'


def ours_query(window_s: float) -> str:
    """The PromQL that finds every backend that our exporter told of."""
    return f"count by (backend) (last_over_time({catalog.BACKEND_STATE.name}[{max(1, round(window_s))}s]))"


def windows(start: float, end: float) -> Iterator[tuple[float, float]]:
    """End and length of the windows that cover the range: a day each, so that no question is too large."""
    while start < end:
        until = min(end, start + DAY_S)
        yield until, until - start
        start = until


def seen_in(rows: Iterable[Mapping[str, Any]]) -> tuple[Seen, ...]:
    """The engines of query rows. Two jobs that scrape one instance are one backend, of the first job."""
    found: dict[str, Seen] = {}
    for (instance, job), engine in engines_in([row["metric"] for row in rows]).items():
        found.setdefault(instance, Seen(instance, job, engine_named(engine.engine), engine.models))
    return tuple(found[instance] for instance in sorted(found))


def native(name: str, seen: Seen, backend: Backend, no_progress_s: float) -> Watched:
    """A backend read from its engine's own series."""
    foreign = "".join(f',{label}=""' for label in FOREIGN_LABELS)
    selector = f"instance={_quoted(seen.instance)},job={_quoted(seen.job)}{foreign}"
    return Watched(
        backend, selector, wanted_by(seen.engine), NativeBackend(name, seen.engine, no_progress_s, trusted=True), seen.instance
    )


def ours(name: str, backend: Backend) -> Watched:
    """A backend read from our exporter's series."""
    return Watched(backend, f"backend={_quoted(name)}", WANTED, OursReader(name))


def assumed(name: str, pool: str, model: str = "") -> Backend:
    """A backend of which no gateway is known: it is taken to have one that could turn its weight."""
    return Backend(name, model, (Target(ASSUMED, name, pool),))


def discovered(engines: Iterable[Seen]) -> Iterator[Watched]:
    """Every engine that was found, pooled by its model, which is what could stand in for it."""
    for seen in engines:
        name = fitted(seen.instance)
        model = seen.models[0] if len(seen.models) == 1 else ""
        yield native(name, seen, assumed(name, model or seen.job, model), NO_PROGRESS_S)


def configured(
    backends: Iterable[WatchedBackend], fleet: Mapping[str, Backend], told_of: frozenset[str], engines: Iterable[Seen]
) -> tuple[tuple[Watched, ...], tuple[str, ...]]:
    """The configured backends of which the server knows anything, and the names of the others."""
    by_place = {seen.instance: seen for seen in engines}
    found: list[Watched] = []
    absent: list[str] = []
    for settings in backends:
        name = settings.name
        seen = next((by_place[place] for place in places_of(settings) if place in by_place), None)
        if name in told_of:
            found.append(ours(name, fleet[name]))
        elif seen is not None:
            found.append(native(name, seen, fleet[name], settings.hang.no_progress_s))
        else:
            absent.append(name)
    return tuple(found), tuple(absent)


def _quoted(value: str) -> str:
    """As PromQL quotes, which is as JSON does."""
    return json.dumps(value)
