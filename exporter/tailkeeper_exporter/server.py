"""The exporter's HTTP interface. Everything is answered from memory: no handler waits for a backend, a GPU or a file.

Strict JSON (no NaN), errors as JSON that say what is allowed, no request body is read here, unknown paths are 404.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tailkeeper_exporter import answer_headers, openapi
from tailkeeper_exporter.gpu import GpuSnapshot
from tailkeeper_exporter.health import backend_health, fleet_health, http_status
from tailkeeper_exporter.metrics_page import MetricsPage, negotiate
from tailkeeper_exporter.requests_ring import DEFAULT_LIMIT, MAX_CURSOR, MAX_RECORDS, RequestRing
from tailkeeper_exporter.series import Series
from tailkeeper_exporter.views import BackendView

MAX_BODY_BYTES = 4 * 1024 * 1024
"""A batch of a few thousand spans; nothing else that is sent here is longer than a line."""
MAX_UNREAD_BYTES = 32 * 1024 * 1024
UNREAD_S = 5.0
"""How much of a body that is refused is still taken in, and for how long: a connection that is closed over unread bytes is reset,
and the sender, who learns nothing of the 413, sends the same batch again and again."""
_NAMED_IN_ERRORS = 50


class Known(Protocol):
    """What the handlers read."""

    @property
    def views(self) -> Mapping[str, BackendView]: ...

    @property
    def ring(self) -> RequestRing: ...

    def gpu_snapshot(self) -> GpuSnapshot: ...

    def waiting_for(self) -> tuple[str, ...]:
        """Backends whose first page read has not ended yet."""
        ...

    def now(self) -> float: ...


class Json(Response):
    """Strict JSON: a NaN is a bug here, and an error there."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return json.dumps(content, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


class _Door:
    """Refuses a body above the limit with 413, by its announced length and while it comes; adds our headers to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send = answer_headers.adding(send, (*answer_headers.ALWAYS, answer_headers.DATA_POLICY))
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > MAX_BODY_BYTES:
            await _discard(receive)
            refusal = Json({"error": "the body is too large", "allowed": f"at most {MAX_BODY_BYTES} bytes"}, 413)
            await refusal(scope, receive, send)
            return
        await self._app(scope, _counted(receive), send)


async def _discard(receive: Receive) -> None:
    """Take in what still comes of a body, within bounds, and keep none of it."""
    taken, more = 0, True
    try:
        async with asyncio.timeout(UNREAD_S):
            while more and taken < MAX_UNREAD_BYTES:
                message = await receive()
                taken += len(message.get("body", b""))
                more = message.get("more_body", False)
    except TimeoutError:
        return


def _counted(receive: Receive) -> Receive:
    received = 0

    async def counting() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > MAX_BODY_BYTES:
            if message.get("more_body"):
                await _discard(receive)
            raise HTTPException(413, "the body is too large")
        return message

    return counting


Handler = Callable[[Request], Awaitable[Response]]


def make_app(
    known: Known,
    more_routes: Sequence[Route] = (),
    own_series: Callable[[], Iterable[Series]] = tuple,
    *,
    has_token: bool = False,
) -> ASGIApp:
    """The application. ``more_routes`` are those of other parts; ``own_series`` go onto the page beside those of backends;
    ``has_token`` says whether some of them need one."""
    page = MetricsPage(known.ring, own_series)

    async def metrics(request: Request) -> Response:
        dialect = negotiate(request.headers.get("accept"))
        body = page.render(known.views.values(), known.gpu_snapshot(), known.now(), dialect)
        return Response(body, headers={"content-type": dialect.value})

    async def healthz(request: Request) -> Response:
        document = fleet_health(known.views.values(), known.now())
        return Json(document, http_status(document))

    async def healthz_of(request: Request) -> Response:
        name = request.path_params["backend"]
        view = known.views.get(name)
        if view is None:
            names = list(known.views)[:_NAMED_IN_ERRORS]
            return Json({"error": f"no backend {name[:128]!r} is configured here", "backends": names}, 404)
        document = backend_health(view, known.now())
        return Json(document, http_status(document))

    async def livez(request: Request) -> Response:
        return Json({"status": "alive"})

    async def readyz(request: Request) -> Response:
        waiting = known.waiting_for()
        if waiting:
            return Json({"status": "starting", "waiting_for": waiting[:_NAMED_IN_ERRORS]}, 503)
        return Json({"status": "ready"})

    async def requests(request: Request) -> Response:
        return _requests(request, known.ring)

    async def described(request: Request) -> Response:
        return Json(description)

    routes = {
        "/metrics": metrics,
        "/healthz": healthz,
        "/healthz/{backend:path}": healthz_of,
        "/livez": livez,
        "/readyz": readyz,
        "/api/v1/requests": requests,
        openapi.PATH: described,
    }
    paths = [*routes, *(route.path for route in more_routes)]
    description = openapi.document({path.replace(":path}", "}") for path in paths}, has_token=has_token)
    app = Starlette(
        routes=[*(Route(path, handler) for path, handler in routes.items()), *more_routes],
        exception_handlers={HTTPException: _refuse(paths), Exception: _broken},
    )
    # A redirect to the path without its slash would go to whatever host the request names.
    app.router.redirect_slashes = False
    return _Door(app)


async def _broken(request: Request, error: Exception) -> Response:
    """Our own mistake; its traceback is in the log, and nothing of it here."""
    return Json({"error": "the exporter failed at this; its log says why"}, 500)


def _refuse(paths: list[str]) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            return Json({"error": "there is nothing at this path", "paths": paths}, 404)
        return Json({"error": error.detail}, error.status_code, headers=error.headers)

    return refuse


def _requests(request: Request, ring: RequestRing) -> Response:
    cursor = _number(request, "since", 0, 0, MAX_CURSOR)
    limit = _number(request, "limit", DEFAULT_LIMIT, 1, MAX_RECORDS)
    for found in (cursor, limit):
        if isinstance(found, Response):
            return found
    assert isinstance(cursor, int)
    assert isinstance(limit, int)
    batch = ring.since(cursor, limit)
    rows = [record.document() for record in batch.records]
    return Json({"next": batch.next, "dropped": batch.dropped, "requests": rows})


def _number(request: Request, name: str, default: int, low: int, high: int) -> int | Response:
    """A query parameter, or the 400 that says what it may be."""
    values = request.query_params.getlist(name)
    if not values:
        return default
    text = values[0]
    if len(values) == 1 and text.isascii() and text.isdigit() and len(text) <= 19 and low <= int(text) <= high:
        return int(text)
    allowed = f"one integer from {low} to {high}"
    return Json({"error": f"bad value of {name}", "parameter": name, "value": text[:128], "allowed": allowed}, 400)
