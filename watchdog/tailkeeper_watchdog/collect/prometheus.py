"""Prometheus mode: two instant queries whatever the size of the fleet, through ``prometheus-api-client``.

One query returns every series of ours, the other when each backend was last scraped, because the value of an instant
query carries the time of the query and not of the sample. Backends that our exporter does not tell of are read from their
engines' own series, where the server has those: a third query, for a hundred of them at a time, and without a probe's word.
Works with any server that speaks the Prometheus HTTP API; docs/stores.md says which were tried.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, Protocol

from tailkeeper_exporter import catalog
from tailkeeper_exporter.catalog import Kind
from tailkeeper_exporter.discovery.prometheus import FRESH
from tailkeeper_exporter.exposition import SeriesKey
from tailkeeper_watchdog.collect.base import Collected, LastWord
from tailkeeper_watchdog.collect.native_pages import NativePages, Rows, literally
from tailkeeper_watchdog.collect.observe import WANTED, observe
from tailkeeper_watchdog.collect.prometheus_client import words_of
from tailkeeper_watchdog.collect.series import OURS, key_of


class Client(Protocol):
    """The part of ``PrometheusConnect`` that is used; it blocks, so it runs in a thread."""

    def custom_query(self, query: str, params: Mapping[str, Any] | None = None) -> list[dict[str, Any]]: ...
    def close(self) -> None: ...


NAMES_A_QUERY = 250
"""Backends that are asked for by name at once: Prometheus looks up so many one by one, and more only by a slow match of each name
that it has; the address is 5 kB then."""


def series_query(backends: tuple[str, ...] = ()) -> str:
    """One selector for every series that the watchdog reads, of these backends or of all."""
    names = [
        f"{name}_(bucket|sum)" if kind is Kind.HISTOGRAM else name for name, kind in sorted(WANTED.items(), key=lambda i: i[0])
    ]
    return '{__name__=~"' + "|".join(names) + '"' + ("," + _named(backends) if backends else "") + "}"


def freshness_query(backends: tuple[str, ...] = ()) -> str:
    return f"max by (backend) (timestamp({catalog.BACKEND_STATE.name}{{{_named(backends) if backends else ''}}}))"


def _named(backends: tuple[str, ...]) -> str:
    return f"backend=~{json.dumps('|'.join(literally(name) for name in backends))}"


class PrometheusSource:
    """Reads one server. ``wall`` epoch seconds are compared with its sample times: clocks should agree to a second."""

    def __init__(
        self,
        client: Client,
        url: str,
        backends: tuple[str, ...],
        stale_after_s: float,
        native: NativePages | None = None,
        by_name: bool = False,
    ) -> None:
        """``by_name``: most of what the server has is not ours, so it is asked for our backends, some hundreds at a time."""
        self._named: tuple[str, ...] | None = backends if by_name else None
        self._client = client
        self._native = native
        self._url = url
        self._stale_after_s = stale_after_s
        self._last = LastWord(backends, stale_after_s)
        self._busy: asyncio.Future[tuple[Rows, Rows, Rows]] | None = None

    def follow(self, backends: tuple[str, ...], new: frozenset[str], now: float) -> None:
        self._last.follow(backends, new, now)
        if self._named is not None:
            self._named = backends

    async def collect(self, now: float, deadline_s: float) -> Collected:
        error = await self._read(deadline_s)
        why = error or "the server has no series of this backend"
        return Collected(self._last.tell(time.monotonic(), {}, why), (), error)

    async def _read(self, deadline_s: float) -> str | None:
        if self._busy is None:  # one query in flight: a slow server is not asked twice
            self._busy = asyncio.ensure_future(asyncio.to_thread(self._query))
        try:
            async with asyncio.timeout(deadline_s):
                series, times, native = await asyncio.shield(self._busy)
        except TimeoutError:
            # What comes after this is read at the next tick: each sample says how old it is, and a large fleet takes longer.
            return f"{self._url} did not answer within {deadline_s:g} s"
        except Exception as error:  # whatever the client library raises is one fact: nothing could be read
            self._busy = None
            return f"{self._url}: {words_of(error)}"
        self._busy = None
        wall, monotonic = time.time(), time.monotonic()
        taken_at = {
            _labels(row).get("backend", ""): monotonic - max(0.0, wall - at) for row in times if (at := _value(row)) is not None
        }
        observations = observe(_samples(series), monotonic, {})
        self._last.hear({name: seen for name, seen in observations.items() if name in taken_at}, taken_at)
        if self._native is not None:
            found, scraped = self._native.observe(native)
            self._last.hear(found, {name: monotonic - max(0.0, wall - at) for name, at in scraped.items()})
        return None

    def _query(self) -> tuple[Rows, Rows, Rows]:
        series: Rows = []
        times: Rows = []
        for names in self._questions():
            series += self._ask(series_query(names))
            times += self._ask(freshness_query(names))
        native: Rows = []
        if self._native is not None:
            for question in self._native.questions(self._told_of(times)):
                native += self._ask(question)
        return series, times, native

    def _questions(self) -> Iterator[tuple[str, ...]]:
        """The names to ask for at once; none for all."""
        named = self._named
        if named is None:
            yield ()
            return
        for first in range(0, len(named), NAMES_A_QUERY):
            yield named[first : first + NAMES_A_QUERY]

    def _ask(self, promql: str) -> Rows:
        return self._client.custom_query(promql, FRESH)

    def _told_of(self, times: Rows) -> frozenset[str]:
        """Backends that our exporter tells of still. A server that was told of no end, and VictoriaMetrics always, has the time
        of the last scrape for five minutes more: until then nobody would look at what the engine itself says."""
        since = time.time() - self._stale_after_s
        return frozenset(_labels(row).get("backend", "") for row in times if (at := _value(row)) is not None and at >= since)

    async def close(self) -> None:
        if self._busy is not None:
            self._busy.cancel()
        await asyncio.to_thread(self._client.close)


def _samples(rows: Rows) -> Iterator[tuple[SeriesKey, float]]:
    for row in rows:
        value = _value(row)
        key = key_of(_labels(row), OURS)
        if key is not None and value is not None:
            yield key, value


def _labels(row: Mapping[str, Any]) -> Mapping[str, str]:
    labels = row.get("metric")
    return labels if isinstance(labels, dict) else {}


def _value(row: Mapping[str, Any]) -> float | None:
    try:
        value = float(row["value"][1])
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    return value if isfinite(value) else None
