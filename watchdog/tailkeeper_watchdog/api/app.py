"""The HTTP application: reads come from the last tick, changes go to the switches and the loop."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from importlib import resources
from typing import Annotated, Any

from fastapi import Body, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from tailkeeper_watchdog.api import documents
from tailkeeper_watchdog.api.page import TickDurations, WatchdogCollector, render
from tailkeeper_watchdog.decision_log import DecisionLog
from tailkeeper_watchdog.ledger import Ledger
from tailkeeper_watchdog.loop import Loop
from tailkeeper_watchdog.model import Mode
from tailkeeper_watchdog.switches import MAX_HOLD_S, Switches

MAX_ALERTS_KEPT = 500
MAX_DECISIONS = 1_000
READY_TICKS = 3
"""Not ready after this many tick times without a good tick."""
_CONSOLE = {
    "/": ("index.html", "text/html"),
    "/console.js": ("console.js", "text/javascript"),
    "/console.css": ("console.css", "text/css"),
}


class HoldRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    reason: Annotated[str, Field(min_length=1, max_length=300)]
    for_s: Annotated[float, Field(gt=0, le=MAX_HOLD_S)]


class ReleaseRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    backend: str | None = None


class Received:
    """Alerts that Alertmanager told us of: information, never a command. Bounded; the oldest goes first."""

    def __init__(self) -> None:
        self._alerts: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def take(self, document: Mapping[str, Any], now: float) -> int:
        """How many alerts of the document were understood."""
        taken = 0
        rows = document.get("alerts")
        for row in rows[:MAX_ALERTS_KEPT] if isinstance(rows, list) else ():
            if not isinstance(row, dict) or not isinstance(row.get("fingerprint"), str):
                continue
            labels = row.get("labels")
            self._alerts[row["fingerprint"][:64]] = {
                "fingerprint": row["fingerprint"][:64],
                "starts_at": str(row.get("startsAt", ""))[:64],
                "status": str(row.get("status", ""))[:32],
                "labels": {str(k)[:128]: str(v)[:256] for k, v in list(labels.items())[:32]} if isinstance(labels, dict) else {},
                "received": now,
            }
            self._alerts.move_to_end(row["fingerprint"][:64])
            taken += 1
        while len(self._alerts) > MAX_ALERTS_KEPT:
            self._alerts.popitem(last=False)
        return taken

    def list(self) -> list[dict[str, Any]]:
        return list(reversed(self._alerts.values()))


def build_api(
    loop: Loop,
    ledger: Ledger,
    decisions: DecisionLog,
    switches: Switches,
    durations: TickDurations,
    modes: Mapping[str, Mode],
    tick_s: float,
) -> FastAPI:
    """The application, without the gate in front of it (``security.Gate``)."""
    api = FastAPI(title="Tailkeeper watchdog", version="1", docs_url=None, redoc_url=None)
    received = Received()
    known = {b.name for b in loop.parts.backends}
    _add_reads(api, loop, ledger, switches, modes)
    _add_own(api, loop, decisions, switches, durations, tick_s)
    _add_changes(api, loop, switches, known)
    _add_alerts(api, received)
    _add_console(api)
    return api


def _add_reads(api: FastAPI, loop: Loop, ledger: Ledger, switches: Switches, modes: Mapping[str, Mode]) -> None:
    @api.get("/api/v1/fleet")
    async def fleet() -> JSONResponse:
        if loop.latest is None:
            raise HTTPException(503, "the first tick has not ended yet")
        document = documents.fleet(loop.latest, switches.paused(), loop.report.servers, loop.support, modes, ledger.leases())
        return JSONResponse(document)

    @api.get("/api/v1/findings")
    async def findings(open: bool | None = None) -> JSONResponse:
        book = loop.memory.book
        rows = list(book.open_findings) if open else [*book.open_findings, *reversed(book.closed)]
        return JSONResponse([documents.finding(f) for f in sorted(rows, key=lambda f: -f.since_unix_s)])

    @api.get("/api/v1/decisions")
    async def decided(
        backend: str | None = None,
        since: float | None = None,
        limit: Annotated[int, Query(ge=1, le=MAX_DECISIONS)] = 100,
    ) -> JSONResponse:
        return JSONResponse([documents.decision(d) for d in ledger.decisions(backend, since, limit)])

    @api.get("/api/v1/policies")
    async def policies() -> JSONResponse:
        return JSONResponse(documents.policies(loop.parts.backends, loop.support, modes))


def _add_own(
    api: FastAPI, loop: Loop, decisions: DecisionLog, switches: Switches, durations: TickDurations, tick_s: float
) -> None:
    @api.get("/metrics")
    async def metrics(request: Request) -> Response:
        collector = WatchdogCollector(loop.latest, durations, decisions.counts, switches.paused() is not None)
        body, content_type = render(collector, request.headers.get("accept", ""))
        return Response(body, media_type=None, headers={"content-type": content_type})

    @api.get("/livez")
    async def livez() -> JSONResponse:
        return JSONResponse({"status": "pass"})

    @api.get("/readyz")
    async def readyz() -> JSONResponse:
        latest = loop.latest
        limit_s = READY_TICKS * max(tick_s, 1.0)
        age_s = None if latest is None else time.time() - latest.time_unix_s
        good = latest is not None and latest.error is None and age_s is not None and age_s <= limit_s
        reason = "no tick yet" if latest is None else latest.error or ("" if good else f"last tick {age_s:.1f} s ago")
        return JSONResponse({"status": "pass" if good else "fail", "reason": reason}, status_code=200 if good else 503)


def _add_changes(api: FastAPI, loop: Loop, switches: Switches, known: set[str]) -> None:
    @api.post("/api/v1/pause")
    async def pause() -> JSONResponse:
        switches.pause("paused by API")
        return JSONResponse({"paused": True})

    @api.post("/api/v1/resume")
    async def resume() -> JSONResponse:
        switches.resume()
        still = switches.paused()
        return JSONResponse({"paused": still is not None, "paused_because": still})

    @api.post("/api/v1/release")
    async def release(wanted: Annotated[ReleaseRequest | None, Body()] = None) -> JSONResponse:
        backend = wanted.backend if wanted else None
        if backend is not None and backend not in known:
            raise HTTPException(404, f"no backend {backend!r}; known: {', '.join(sorted(known))}")
        done = await loop.release("released by API", backend)
        return JSONResponse({"decisions": [documents.decision(d) for d in done.decisions], "failed": len(done.failed)})

    @api.post("/api/v1/backends/{backend}/hold")
    async def hold(backend: str, wanted: HoldRequest) -> JSONResponse:
        if backend not in known:
            raise HTTPException(404, f"no backend {backend!r}; known: {', '.join(sorted(known))}")
        held = switches.hold(backend, wanted.reason, wanted.for_s)
        return JSONResponse({"backend": backend, "reason": held.reason, "until": held.until_unix_s})

    @api.delete("/api/v1/backends/{backend}/hold")
    async def unhold(backend: str) -> JSONResponse:
        if not switches.unhold(backend):
            raise HTTPException(404, f"no hold on {backend!r}")
        return JSONResponse({"backend": backend, "held": False})


def _add_alerts(api: FastAPI, received: Received) -> None:
    @api.post("/api/v1/alerts")
    async def take(document: Annotated[dict[str, Any], Body()]) -> JSONResponse:
        return JSONResponse({"taken": received.take(document, time.time())})

    @api.get("/api/v1/alerts")
    async def alerts() -> JSONResponse:
        return JSONResponse(received.list())


def _add_console(api: FastAPI) -> None:
    folder = resources.files("tailkeeper_watchdog") / "console"
    for path, (name, media_type) in _CONSOLE.items():
        content = (folder / name).read_bytes()
        api.add_api_route(path, _static(content, media_type), methods=["GET"], include_in_schema=False)


def _static(content: bytes, media_type: str) -> Any:
    async def answer() -> Response:
        return Response(content, media_type=media_type, headers={"cache-control": "no-cache"})

    return answer
