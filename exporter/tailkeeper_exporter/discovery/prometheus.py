"""Backends from an existing Prometheus: whatever has an engine's own metrics there is an engine. Needs nothing installed.

Which names tell which engine is read from the engines' tables. An engine that hangs stops answering its scrapes, and its series
go stale within minutes; it is still a backend, and the one that matters. So what has had such series within ``WINDOW`` counts
while Prometheus still has it as a target (``up`` exists, 0 or 1), and what this lister has once found counts as long as it is
a target. A server that has no ``up``, because it is written to, tells only what has samples now.

Series that a router passes on carry the label of the worker they are about, and are not the router's own: ``FOREIGN_LABELS``.
Bounds: the exporter's for a page (8 MiB), ``MAX_TARGETS`` backends, one deadline for both queries.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx

from tailkeeper_exporter import catalog
from tailkeeper_exporter.catalog import Kind
from tailkeeper_exporter.clients import Clients, CredentialError, auth_headers
from tailkeeper_exporter.discovery.base import MAX_TARGETS, DiscoveryError, Found, Listing, few, found, host_port
from tailkeeper_exporter.engines import ENGINES, Engine, Given, engine_named
from tailkeeper_exporter.exposition import canonical
from tailkeeper_exporter.fetch import FetchError, fetch
from tailkeeper_exporter.hiding import hidden
from tailkeeper_exporter.settings import PrometheusDiscovery, check_url

WINDOW = "1h"
"""How long ago a hung engine's series may have ended for it to be found after a restart of this process."""
API_PORT = 8_000
"""Where the API is taken to be of an engine whose page has a port of its own (Triton, Ray): their default."""
FOREIGN_LABELS = ("server", "worker_addr")
"""Set by vLLM's production-stack router and by sglang-router on metrics of their workers; engines set neither."""
FRESH: Mapping[str, str] = {"nocache": "1"}
"""Goes with each query: VictoriaMetrics answers by it with what it has now, and without it as of 30 s ago (its
`-search.latencyOffset`), which most evidence may not be. Prometheus and the others do not know the word and leave it aside."""
_TELLING = (catalog.RUNNING, catalog.WAITING, catalog.LATENCY)
"""Rows that tell an engine: one series each per process, and on every page of it."""
_MAX_ERROR_CHARS = 200
Rows = list[dict[str, str]]
"""Label sets, one for each row of an instant query's answer."""
Target = tuple[str, str]
"""Instance and job."""


def telling_names(engine: Engine) -> tuple[str, ...]:
    """Canonical names of the series that this engine alone has, up to the first that every page of it has."""
    names: list[str] = []
    for metric in _TELLING:
        rows = [source for source in engine.sources if source.metric is metric]
        suffix = "_count" if metric.kind is Kind.HISTOGRAM else ""
        names += [name + suffix for source in rows for name in source.names]
        if any(source.expected and source.given is not Given.ABOVE_FOUND for source in rows):
            break
    return tuple(dict.fromkeys(names))


def engines_by_name() -> dict[str, str]:
    """Canonical series name to engine. A name that two engines have is the first one's: NIM's later pages are vLLM's."""
    table: dict[str, str] = {}
    for engine in ENGINES:
        for name in telling_names(engine):
            table.setdefault(name, engine.name)
    return table


def query() -> str:
    """The PromQL that finds every engine, with one row for each of its names, models and jobs."""
    # Canonically a colon is written as an underscore, and only the one after the engine's prefix can have been a colon.
    names = "|".join(name.replace("_", "[:_]", 1) for name in engines_by_name())
    models = sorted({label for engine in ENGINES for label in engine.model_labels})
    labels = ", ".join(("__name__", "instance", "job", *models, *FOREIGN_LABELS))
    matching = f'{{__name__=~"{names}"}}'
    before = f"(last_over_time({matching}[{WINDOW}]) and on (instance, job) up)"
    return f"count by ({labels}) ({matching}) or count by ({labels}) {before}"


TARGETS_QUERY = "count by (instance, job) (up)"


@dataclass(frozen=True, slots=True)
class EngineSeen:
    """What one target's series say."""

    engine: str
    models: tuple[str, ...]


class PrometheusLister:
    """A ``Lister`` over one Prometheus-compatible server."""

    def __init__(self, settings: PrometheusDiscovery, clients: Clients | None = None) -> None:
        self._settings = settings
        self._clients = clients or Clients()
        self._known: dict[Target, EngineSeen] = {}
        """Of the last good listing."""

    async def list(self, deadline_s: float) -> Listing:
        url, auth = self._settings.url, self._settings.auth
        try:
            async with asyncio.timeout(deadline_s), self._clients.client_for((url,), auth, url) as client:
                headers = auth_headers(auth)
                now = engines_in(await self._ask(client, headers, query(), deadline_s))
                self._known = {**await self._hung(client, headers, set(self._known) - set(now), deadline_s), **now}
        except TimeoutError as error:
            raise DiscoveryError(f"{url}: no answer within {deadline_s:g} s") from error
        except CredentialError as error:
            raise DiscoveryError(str(error)) from error
        if len(self._known) > MAX_TARGETS:
            raise DiscoveryError(f"{url}: more than {MAX_TARGETS} engines; name the part to watch in another way")
        return listing_of(self._known)

    async def _hung(
        self, client: httpx.AsyncClient, headers: Mapping[str, str], missing: set[Target], deadline_s: float
    ) -> dict[Target, EngineSeen]:
        """Of those that have no series any more, the ones that are targets still."""
        if not missing:
            return {}
        rows = await self._ask(client, headers, TARGETS_QUERY, deadline_s)
        targets = {_target(row) for row in rows}
        return {target: engine for target, engine in self._known.items() if target in missing and target in targets}

    async def _ask(self, client: httpx.AsyncClient, headers: Mapping[str, str], promql: str, deadline_s: float) -> Rows:
        url = f"{self._settings.url}/api/v1/query?{urlencode({'query': promql, **FRESH})}"
        try:
            fetched = await fetch(client, url, headers, deadline_s)
        except FetchError as error:
            why = error.detail if error.is_ours else error.code + _error_of(error.body)
            raise DiscoveryError(f"{self._settings.url}: {why}") from error
        return label_sets(fetched.body, self._settings.url)


def _error_of(body: bytes) -> str:
    """What an answer that is not 200 says, where it says it as Prometheus does."""
    try:
        said = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return f": {hidden(str(said))[:_MAX_ERROR_CHARS]}"


def label_sets(body: bytes, where: str) -> Rows:
    """The label sets of an instant query's answer. Raises ``DiscoveryError`` for anything else."""
    try:
        document: Any = json.loads(body)
        rows = [row["metric"] for row in document["data"]["result"]]
        if document["status"] == "success" and all(isinstance(row, dict) for row in rows):
            return [{str(name): str(value) for name, value in row.items()} for row in rows]
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise DiscoveryError(f"{where}: the answer is not that of Prometheus's query API")


def _target(row: Mapping[str, str]) -> Target:
    return row.get("instance", ""), row.get("job", "")


def engines_in(rows: Iterable[Mapping[str, str]]) -> dict[Target, EngineSeen]:
    """What runs on each target. Of two engines on one target the one whose line in ``ENGINES`` is first counts."""
    table, order = engines_by_name(), [engine.name for engine in ENGINES]
    names: dict[Target, str] = {}
    models: dict[tuple[Target, str], dict[str, None]] = {}
    for row in rows:
        engine = table.get(canonical(row.get("__name__", "")))
        if engine is None or any(row.get(label) for label in FOREIGN_LABELS):
            continue
        target = _target(row)
        if target not in names or order.index(engine) < order.index(names[target]):
            names[target] = engine
        model = next((row[label] for label in engine_named(engine).model_labels if row.get(label)), None)
        models.setdefault((target, engine), {}).update({} if model is None else {model: None})
    return {target: EngineSeen(engine, tuple(models[target, engine])) for target, engine in sorted(names.items())}


def listing_of(known: Mapping[Target, EngineSeen]) -> Listing:
    """A backend for each target, with its addresses. The list says what could not be one."""
    notes: list[str] = []
    return Listing(tuple(_backends(known, notes)), few(notes))


def _backends(known: Mapping[Target, EngineSeen], notes: list[str]) -> Iterator[Found]:
    # Two jobs that scrape one instance are one backend: the registry keeps the first of one URL.
    for (instance, job), engine in sorted(known.items()):
        try:
            url, metrics = _urls(instance, engine_named(engine.engine))
        except ValueError:
            notes.append(f"instance {instance[:128]!r} of job {job[:128]!r} is no host:port, so its engine's address is unknown")
            continue
        said = {"engine": engine.engine, "job": job, **metrics}
        # With several models on one page none is the backend's.
        yield found(instance, url, said | ({"model": engine.models[0]} if len(engine.models) == 1 else {}))[0]


def _urls(instance: str, engine: Engine) -> tuple[str, dict[str, str]]:
    """The API's URL, and the page's where it has a port of its own. Raises ValueError. http is taken for granted."""
    if not re.fullmatch(r"[^\s/@?#]+:\d{1,5}", instance):
        raise ValueError(instance)
    url = str(check_url(f"http://{instance}"))
    if engine.metrics_port is None:
        return url, {}
    return f"http://{host_port(urlsplit(url).hostname or '', API_PORT)}", {"metrics_url": f"{url}{engine.metrics_path or ''}"}
