"""The exporters that the watchdog reads in direct mode, and whether our own ports are free or ours. Reads only."""

from __future__ import annotations

from dataclasses import dataclass

from tailkeeper.asking import Asker, AskError, Trouble
from tailkeeper.config import Config
from tailkeeper.doctor.findings import Finding, Findings, Mistake, Severity
from tailkeeper.doctor.sentences import skewed, unreachable
from tailkeeper_exporter import catalog
from tailkeeper_exporter.clients import Clients
from tailkeeper_exporter.exposition import PageParser
from tailkeeper_exporter.page import Page, PageError
from tailkeeper_exporter.settings import Auth, is_same_server
from tailkeeper_exporter.views import Source as SourceName

ASK_S = 3.0
OPEN_METRICS = "application/openmetrics-text;version=1.0.0"
MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class Source:
    """One exporter of ``watchdog.source.urls``."""

    url: str
    key: str
    is_own: bool
    """Whether it is the exporter of the same file, which may well not run yet."""


async def check_exporter(source: Source, config: Config, clients: Clients) -> Findings:
    try:
        async with Asker(source.url, Auth(), clients) as asker:
            answer = await asker.get("/metrics", ASK_S, accept=OPEN_METRICS)
    except AskError as error:
        return [_not_there(source, error)]
    try:
        page = PageParser().parse(answer.body, "openmetrics" in answer.content_type)
    except PageError:
        return [_taken(source)]
    if not any(key.name.startswith("tailkeeper_exporter_") for key, _ in page.samples):
        return [_taken(source)]
    clock = skewed(answer.clock, source.key, "this exporter")
    return [*clock, *_of_ages(source, config, page), *_of_exemplars(source, config, answer.text())]


def _not_there(source: Source, error: AskError) -> Finding:
    if source.is_own and error.trouble is Trouble.REFUSED:
        what = f"no exporter runs at {source.url} yet"
        do = "nothing, if you have not started it: `tailkeeper up -c FILE` runs it with the watchdog"
        return Finding(Mistake.EXPORTER_NOT_RUNNING, source.key, what, do, Severity.WARNING)
    if error.trouble is Trouble.STATUS:
        return _taken(source)
    return unreachable(error, Mistake.EXPORTER_UNREACHABLE, source.key, source.url, "the exporter", source.key)


def _taken(source: Source) -> Finding:
    what = f"something answers at {source.url}, and it is no exporter of ours"
    do = "give one of them another port: DCGM's exporter uses 9400, too. exporter.listen and watchdog.source.urls must agree"
    return Finding(Mistake.PORT_TAKEN, source.key, what, do)


def backends_on(page: bytes) -> frozenset[str]:
    """The backends that an exporter's page tells of; none where it is no page."""
    try:
        samples = PageParser().parse(page).samples
    except PageError:
        return frozenset()
    return frozenset(key.label("backend") for key, _ in samples if key.name == catalog.BACKEND_UP.name)


async def check_all_told(sources: tuple[Source, ...], config: Config, clients: Clients) -> Findings:
    """Backends that none of the exporters tells of, where all of them answer: else it is not known."""
    told: set[str] = set()
    for source in sources:
        try:
            async with Asker(source.url, Auth(), clients) as asker:
                told |= backends_on((await asker.get("/metrics", ASK_S)).body)
        except AskError:
            return []
    if not told:
        return []
    do = "start the exporter with the file that you check, or restart it: it was started with another one"
    return [
        Finding(Mistake.BACKEND_NOT_EXPORTED, "watchdog.source.urls", f"no exporter tells of {b.name!r}", do, backend=b.name)
        for b in config.backends
        if b.name not in told
    ]


def _of_ages(source: Source, config: Config, page: Page) -> Findings:
    """Evidence that is older than what counts as fresh, though the exporter gets it without an error."""
    limit_s = config.watchdog.stale_limit_s(config.exporter.scrape_interval_s)
    well = {(k.label("backend"), k.label("source")) for k, v in page.samples if k.name == catalog.SCRAPE_SUCCESS.name and v == 1}
    ages = {
        (k.label("backend"), k.label("source")): v
        for k, v in page.samples
        if k.name == catalog.SCRAPE_AGE.name and k.label("source") == SourceName.ENGINE
    }
    old = {backend: age for (backend, kind), age in ages.items() if (backend, kind) in well and age > limit_s}
    if not old:
        return []
    name, age = max(old.items(), key=lambda item: item[1])
    what = f"evidence is stale after {limit_s:g} s, and this exporter last read {name!r} {age:.1f} s ago, without an error"
    do = (
        "set watchdog.source.interval_s to its scrape_interval_s, and leave watchdog.stale_after_s out; or let it read more often"
    )
    return [Finding(Mistake.STALE_LIMIT_TOO_SMALL, "watchdog.source.interval_s", what, do, backend=name)]


def _of_exemplars(source: Source, config: Config, text: str) -> Findings:
    """Exemplars lead from a latency on a board to the request. Engines' own pages have none."""
    if " # {" in text:
        return []
    if any(backend.tap is not None for backend in config.backends):
        what = "no latency of this exporter has an exemplar: no request has come through a tap yet"
        do = "let clients, or the gateway, use the address of the taps (tap.listen) instead of the engines'"
    else:
        what = "no latency of this exporter has an exemplar: it hears of no single request"
        do = "give the backends a tap (tap: {listen: …}), or send the engines' OTLP spans to its /v1/traces; docs/tracing.md"
    return [Finding(Mistake.NO_EXEMPLARS, source.key, what, do, Severity.WARNING)]


def sources_in(config: Config) -> tuple[Source, ...]:
    """The exporters that the file's watchdog reads; none where it reads a Prometheus."""
    source = config.watchdog.source
    if source.kind != "exporter":
        return ()
    listen = config.exporter.listen
    urls = enumerate(source.urls)
    return tuple(Source(url, f"watchdog.source.urls.{n}", is_same_server(url, listen)) for n, url in urls)
