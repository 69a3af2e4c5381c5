"""The HTTP application: reads come from the last tick, changes go to the switches and the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any

from fastapi import Body, Depends, FastAPI, HTTPException, Query, Request, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from tailkeeper_exporter.otlp.counts import Counts
from tailkeeper_watchdog import kube_announcer
from tailkeeper_watchdog.api import capacity, documents, forecast, in_force, shard, slo
from tailkeeper_watchdog.api.console import add_console
from tailkeeper_watchdog.api.described import describe
from tailkeeper_watchdog.api.errors import NO_NUL, Strict, add_handlers, given_once, no_backend
from tailkeeper_watchdog.api.hscorer import add_weights
from tailkeeper_watchdog.api.live import Event, Live, Stream, event
from tailkeeper_watchdog.api.page import Series, TickDurations, WatchdogCollector, render
from tailkeeper_watchdog.api.received import WEBHOOK, Received
from tailkeeper_watchdog.api.strict import StrictJson
from tailkeeper_watchdog.api.trends import Trends
from tailkeeper_watchdog.decision_log import DecisionLog
from tailkeeper_watchdog.insights import Insights
from tailkeeper_watchdog.ledger import Ledger, LedgerError
from tailkeeper_watchdog.loop import Loop
from tailkeeper_watchdog.metrics import LEDGER_WRITABLE, TICKS_FAILED, TICKS_MISSED, TICKS_UNRECORDED
from tailkeeper_watchdog.model import Mode
from tailkeeper_watchdog.otlp.service import series_of
from tailkeeper_watchdog.switches import MAX_HOLD_S, Switches

MAX_DECISIONS = 1_000
PICTURE_DECISIONS = 50
"""Of the stream's pictures; the decision log has the others."""
READY_TICKS = 3
"""Not ready after this many tick times without a good tick."""
NAME_LIMIT_CHARS = 128

BackendName = Annotated[str, Field(min_length=1, max_length=NAME_LIMIT_CHARS, pattern=NO_NUL)]


ONCE = [Depends(given_once)]


class FindingsQuery(Strict):
    open: bool | None = None


class DecisionsQuery(Strict):
    """``since`` in epoch seconds."""

    backend: BackendName | None = None
    since: float | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_DECISIONS)] = 100


class HoldRequest(Strict):
    reason: Annotated[str, Field(min_length=1, max_length=300, pattern=NO_NUL)]
    for_s: Annotated[float, Field(gt=0, le=MAX_HOLD_S)]


class ReleaseRequest(Strict):
    backend: BackendName | None = None


@dataclass(frozen=True, slots=True)
class Watched:
    """What the API tells of and turns. Everything is asked on the event loop; only writing documents leaves it."""

    loop: Loop
    ledger: Ledger
    decisions: DecisionLog
    switches: Switches
    durations: TickDurations
    modes: Mapping[str, Mode]
    tick_s: float
    insights: Insights
    telemetry: Counts
    announcers: Sequence[kube_announcer.KubeAnnouncer]
    part: shard.Part | None
    unrecorded: Callable[[], int] | None

    @property
    def names(self) -> frozenset[str]:
        return self.loop.fleet.names

    def require(self, backend: str) -> None:
        """Raises HTTPException 404 for a backend that is not in the fleet now."""
        if backend not in self.names:
            raise no_backend(backend, self.names)

    def view(self) -> documents.FleetView:
        """Raises HTTPException 503 before the first tick has ended."""
        loop = self.loop
        if loop.latest is None:
            raise HTTPException(503, "the first tick has not ended yet")
        return documents.FleetView(
            record=loop.latest,
            now_unix_s=loop.parts.wall(),
            tick_s=self.tick_s,
            support=loop.support,
            modes=self.modes,
            servers=loop.report.servers,
            gateway_errors=loop.report.errors,
            paused=self.switches.paused(),
            leases=self.ledger.leases(),
            holds=self.switches.holds(),
            shard=shard.document(self.part),
        )

    async def picture(self) -> Event:
        """What the console shows, of one moment. Raises as ``view`` does, and LedgerError."""
        view, findings, made = self.view(), self.loop.memory.book.open_findings, self.ledger.decisions(limit=PICTURE_DECISIONS)

        def written() -> Event:
            told = {"findings": map(documents.finding, findings), "decisions": map(documents.decision, made)}
            return event("picture", {"fleet": documents.fleet(view), **{name: list(rows) for name, rows in told.items()}})

        return await run_in_threadpool(written)

    async def noted(self) -> None:
        """Returns once a change by a person outlives this process. Raises LedgerError, after which it holds only here."""
        try:
            await self.ledger.settled()
        except LedgerError as error:
            raise LedgerError(f"it is done here, and could not be written down for whoever leads next: {error}") from error

    def paused_or_unknown(self) -> bool | None:
        try:
            return self.switches.paused() is not None
        except LedgerError:
            return None

    def lease_series(self) -> tuple[Series, ...]:
        """None at all where the ledger cannot be read: how many changes are in force is not known then."""
        try:
            return tuple(in_force.lease_series(self.ledger.leases()))
        except LedgerError:
            return ()


def build_api(
    loop: Loop,
    ledger: Ledger,
    decisions: DecisionLog,
    switches: Switches,
    durations: TickDurations,
    modes: Mapping[str, Mode],
    tick_s: float,
    insights: Insights,
    telemetry: Counts | None = None,
    announcers: Sequence[kube_announcer.KubeAnnouncer] = (),
    live: Live | None = None,
    part: shard.Part | None = None,
    *,
    has_token: bool = False,
    unrecorded: Callable[[], int] | None = None,
) -> FastAPI:
    """The application, without the gate in front of it (``security.Gate``), which ``has_token`` or not. ``telemetry`` and
    ``announcers`` know what became of what we send; ``live`` are the streams, for who wants to end them; ``part`` says which
    shard this is, if it is one; ``unrecorded`` how many ticks were not recorded, where records are kept."""
    trends, live, sent = Trends(), live or Live(), telemetry or Counts()
    watched = Watched(loop, ledger, decisions, switches, durations, modes, tick_s, insights, sent, announcers, part, unrecorded)
    # A redirect to the path without its slash would go to whatever host the request names.
    api = FastAPI(
        title="Tailkeeper watchdog",
        version="1",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_beside(lambda: trends.follow(lambda: loop.latest), lambda: live.follow(lambda: loop.latest, watched.picture)),
    )
    add_handlers(api)
    _add_reads(api, watched)
    _add_baselines(api, watched)
    _add_trends(api, trends)
    _add_stream(api, live, loop.parts.wall)
    _add_insights(api, watched)
    _add_own(api, watched)
    _add_changes(api, watched)
    add_weights(api, loop.parts.weighing, watched.noted)
    _add_alerts(api, Received(), loop.parts.wall)
    add_console(api)
    describe(api, has_token=has_token)
    return api


def _beside(*works: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """What goes on for as long as the application is served."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(work()) for work in works]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    return lifespan


def _add_reads(api: FastAPI, watched: Watched) -> None:
    @api.get("/api/v1/fleet")
    async def fleet() -> Response:
        view = watched.view()
        return await run_in_threadpool(lambda: StrictJson(documents.fleet(view)))

    @api.get("/api/v1/findings", dependencies=ONCE)
    async def findings(query: Annotated[FindingsQuery, Query()]) -> Response:
        book = watched.loop.memory.book
        rows = (*(() if query.open is False else book.open_findings), *(() if query.open else book.closed))
        newest_first = sorted(rows, key=lambda f: -f.since_unix_s)
        return StrictJson([documents.finding(f) for f in newest_first])

    @api.get("/api/v1/decisions", dependencies=ONCE)
    async def decided(query: Annotated[DecisionsQuery, Query()]) -> Response:
        rows = watched.ledger.decisions(query.backend, query.since, query.limit)
        if not rows and query.backend is not None and not watched.ledger.decisions(query.backend, limit=1):
            watched.require(query.backend)  # one that is gone from the fleet keeps its history
        return StrictJson([documents.decision(d) for d in rows])

    @api.get("/api/v1/policies")
    async def policies() -> Response:
        backends, support = watched.loop.fleet.backends, watched.loop.support  # of one moment: the fleet may change meanwhile
        return await run_in_threadpool(lambda: StrictJson(documents.policies(backends, support, watched.modes)))


def _add_baselines(api: FastAPI, watched: Watched) -> None:
    @api.get("/api/v1/baselines")
    async def baselines() -> Response:
        drift = watched.loop.drift
        used, gathering = drift.baselines, drift.gathering  # of one moment; a baseline itself never changes
        return await run_in_threadpool(lambda: StrictJson(documents.baselines(used, drift.given, gathering)))


def _add_trends(api: FastAPI, trends: Trends) -> None:
    @api.get("/api/v1/trends")
    async def trends_() -> Response:
        return StrictJson(trends.document())


def _add_stream(api: FastAPI, live: Live, wall: Callable[[], float]) -> None:
    @api.get("/api/v1/stream")
    async def stream() -> Response:
        return Stream(live, wall)


def _add_insights(api: FastAPI, watched: Watched) -> None:
    @api.get("/api/v1/slo")
    async def promises() -> Response:
        return StrictJson(slo.document(watched.insights.slo, watched.loop.parts.wall()))

    @api.get("/api/v1/capacity")
    async def hardware() -> Response:
        record = watched.view().record
        view = watched.insights.capacity.view(record.situation)
        return await run_in_threadpool(lambda: StrictJson(capacity.document(view, record.time_unix_s)))

    @api.get("/api/v1/forecast")
    async def forecasts() -> Response:
        record, book = watched.view().record, watched.insights.forecast
        pages, error = book.view(record.situation.snapshot.backends), book.training_error
        return await run_in_threadpool(lambda: StrictJson(forecast.document(pages, error, record.time_unix_s)))


def _insight_series(watched: Watched) -> Iterator[Series]:
    """Views are taken now, in the loop's own thread; what is computed from them is computed where this is iterated."""
    loop, insights = watched.loop, watched.insights
    latest = loop.latest
    promises = tuple(slo.series(insights.slo, loop.parts.wall()))
    hardware = () if latest is None else insights.capacity.view(latest.situation)
    pages = insights.forecast.view(loop.fleet.backends)
    ticks = [(TICKS_MISSED, [((), float(loop.beat.missed))]), (TICKS_FAILED, [((), float(loop.failed))])]
    if watched.unrecorded is not None:
        ticks.append((TICKS_UNRECORDED, [((), float(watched.unrecorded()))]))
    now = () if latest is None else tuple(in_force.finding_series(latest.findings))
    more = (capacity.series(hardware), forecast.series(pages), tuple(series_of(watched.telemetry)))
    told = tuple(kube_announcer.series_of(watched.announcers))
    parts = tuple(shard.series(watched.part, len(watched.names)))
    writable: Series = (LEDGER_WRITABLE, [((), float(watched.ledger.trouble is None))])
    return chain(ticks, (writable,), promises, now, watched.lease_series(), *more, told, parts)


def _add_own(api: FastAPI, watched: Watched) -> None:
    @api.get("/metrics")
    async def metrics(request: Request) -> Response:
        counts = watched.decisions.counts
        more = _insight_series(watched)
        collector = WatchdogCollector(watched.loop.latest, watched.durations, counts, watched.paused_or_unknown(), more)
        body, content_type = await run_in_threadpool(render, collector, request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type, "cache-control": "no-store"})

    @api.get("/livez")
    async def livez() -> Response:
        return StrictJson({"status": "pass"})

    @api.get("/readyz")
    async def readyz() -> Response:
        why_not = _why_not_ready(watched)
        document = {"status": "fail" if why_not else "pass", "reason": why_not}
        if watched.part is not None:
            document["shard"] = str(watched.part()[0])
        return StrictJson(document, 503 if why_not else 200)


def _why_not_ready(watched: Watched) -> str:
    """Empty when the last tick was good and is recent. By the monotonic clock: a clock step is no outage."""
    latest = watched.loop.latest
    if watched.switches.standing_by is not None:
        return watched.switches.standing_by
    if latest is None:
        return "no tick yet"
    age_s = watched.loop.parts.monotonic() - latest.situation.snapshot.now
    limit_s = READY_TICKS * max(watched.tick_s, 1.0)
    late = f"the last tick was {age_s:.1f} s ago, limit {limit_s:g} s" if age_s > limit_s else ""
    return latest.error or late


def _add_changes(api: FastAPI, watched: Watched) -> None:
    _add_pause(api, watched)
    _add_holds(api, watched)

    @api.post("/api/v1/release")
    async def release(wanted: Annotated[ReleaseRequest | None, Body()] = None) -> Response:
        backend = wanted.backend if wanted else None
        if backend is not None and not any(lease.backend == backend for lease in watched.ledger.leases()):
            watched.require(backend)  # a lease of a backend that is gone from the fleet can be given back too
        try:
            done = await watched.loop.release("released by API", backend)
        except* LedgerError as errors:  # gateways are written side by side, so their errors come as a group
            raise LedgerError("; ".join(str(error) for error in errors.exceptions)) from None
        left = [x for x in watched.ledger.leases() if backend in (None, x.backend)]
        told = [documents.decision(d) for d in done.decisions]
        return StrictJson({"decisions": told, "kept": [documents.kept(x, why) for x, why in done.kept], "failed": len(left)})


def _add_pause(api: FastAPI, watched: Watched) -> None:
    switches = watched.switches

    async def answer() -> Response:
        await watched.noted()
        why = switches.paused()
        return StrictJson({"paused": why is not None, "paused_because": why})

    @api.post("/api/v1/pause")
    async def pause() -> Response:
        switches.pause("paused by API")
        return await answer()

    @api.post("/api/v1/resume")
    async def resume() -> Response:
        switches.resume()
        return await answer()


def _add_holds(api: FastAPI, watched: Watched) -> None:
    # ``:path`` because a backend may be called namespace/pod; a slash in a name arrives decoded.
    @api.post("/api/v1/backends/{backend:path}/hold")
    async def hold(backend: str, wanted: HoldRequest) -> Response:
        watched.require(backend)
        held = watched.switches.hold(backend, wanted.reason, wanted.for_s)
        await watched.noted()
        return StrictJson({"backend": backend, "reason": held.reason, "until": held.until_unix_s})

    @api.delete("/api/v1/backends/{backend:path}/hold")
    async def unhold(backend: str) -> Response:
        if not watched.switches.unhold(backend):
            watched.require(backend)
            raise HTTPException(404, f"there is no hold on {backend!r}")
        await watched.noted()
        return StrictJson({"backend": backend, "held": False})


def _add_alerts(api: FastAPI, received: Received, wall: Callable[[], float]) -> None:
    @api.post("/api/v1/alerts", openapi_extra=WEBHOOK)
    async def take(document: Annotated[dict[str, Any], Body()]) -> Response:
        taken = received.take(document, wall())
        return StrictJson({"taken": taken.taken, "refused": taken.refused})

    @api.get("/api/v1/alerts")
    async def alerts() -> Response:
        return StrictJson(received.newest_first())
