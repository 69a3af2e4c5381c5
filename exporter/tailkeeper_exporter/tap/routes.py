"""The taps as a gateway, over HTTP: who has one here, what is in force at each, and turning it.

``GET /api/v1/taps``, and ``GET`` and ``PUT /api/v1/taps/{backend}`` of the webhook contract's document. A ``PUT`` is the whole
document: a field that is left out gets its default. Its answer is what is in force, as the tap's process reports it. Waits for
nobody but that process, and for it ``APPLY_DEADLINE_S`` at most.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tailkeeper_exporter import change_rights, strict_json
from tailkeeper_exporter.server import Json
from tailkeeper_exporter.settings import is_loopback
from tailkeeper_exporter.tap.knobs import KnobError, Knobs, knobs_of
from tailkeeper_exporter.tap.status import SILENT_S, Taps, TapStatus

MAX_DOCUMENT_BYTES = 4_096
"""The document has under 150; a longer one is something else."""
BODY_DEADLINE_S = 2.0
APPLY_DEADLINE_S = 1.5
"""Less than the 2 s that the watchdog gives one call, so that it hears why."""
LOOK_EVERY_S = 0.01
_NAMED_IN_ERRORS = 50


class _RefusalError(Exception):
    """An answer other than 200, with what is wrong and more that helps."""

    def __init__(self, status: int, error: str, **more: object) -> None:
        super().__init__(error)
        self.response = _answer({"error": error, **more}, status)
        if status == 401:
            self.response.headers["www-authenticate"] = change_rights.CHALLENGE


def tap_routes(taps: Taps, token: str | None, listen: str, clock: Callable[[], float] = time.monotonic) -> list[Route]:
    """The routes. ``token`` is the content of ``exporter.token_file`` and ``listen`` the address that is listened on: beyond
    loopback nothing can be changed without a token. ``clock`` is the one of ``TapStatus``."""
    pages = _Pages(taps, token, listen, clock)
    return [
        Route("/api/v1/taps", pages.all_taps, methods=["GET"]),
        Route("/api/v1/taps/{backend:path}", pages.one_tap, methods=["GET", "PUT"]),
    ]


@dataclass(frozen=True, slots=True)
class _Pages:
    taps: Taps
    token: str | None
    listen: str
    clock: Callable[[], float]

    async def all_taps(self, request: Request) -> Response:
        now = self.clock()
        return _answer([_row(backend, status, now) for backend, status in self.taps.statuses.items()])

    async def one_tap(self, request: Request) -> Response:
        backend = request.path_params["backend"]
        try:
            if request.method == "PUT":
                self._check_rights(request)
                await self._turn(backend, _knobs(await _body(request)))
            return _answer(self._in_force(backend).document())
        except _RefusalError as refused:
            return refused.response

    def _check_rights(self, request: Request) -> None:
        if self.token is None and not is_loopback(self.listen):
            raise _RefusalError(
                403, f"nothing can be changed here: {self.listen} is not loopback and exporter.token_file is not set; set it"
            )
        refused = change_rights.refused(dict(request.headers.raw), None if self.token is None else self.token.encode())
        if refused is not None:
            raise _RefusalError(*refused)

    async def _turn(self, backend: str, knobs: Knobs) -> None:
        self._status(backend)
        ends_s = self.clock() + APPLY_DEADLINE_S
        try:
            await self.taps.apply(backend, knobs, APPLY_DEADLINE_S)
            await self._reported(backend, knobs, ends_s)
        except KeyError:
            raise self._unknown(backend) from None
        except TimeoutError:
            raise _RefusalError(
                504, f"the tap did not confirm within {APPLY_DEADLINE_S:g} s; read what is in force before repeating"
            ) from None
        except OSError as error:
            raise _RefusalError(503, f"the tap cannot be reached: {error.strerror or type(error).__name__}") from None

    async def _reported(self, backend: str, knobs: Knobs, ends_s: float) -> None:
        """Wait for a status that is later than the confirmation, which may overtake it: an answer or a read in between would
        tell the knobs of before. Raises TimeoutError."""
        confirmed_s = self.clock()
        while (status := self._status(backend)).knobs != knobs and status.at_s < confirmed_s:
            if self.clock() >= ends_s:
                raise TimeoutError
            await asyncio.sleep(LOOK_EVERY_S)

    def _in_force(self, backend: str) -> Knobs:
        status = self._status(backend)
        age_s = self.clock() - status.at_s
        if age_s > SILENT_S:
            raise _RefusalError(503, f"the tap has not reported for {age_s:.1f} s, so what is in force is not known")
        return status.knobs

    def _status(self, backend: str) -> TapStatus:
        status = self.taps.statuses.get(backend)
        if status is None:
            raise self._unknown(backend)
        return status

    def _unknown(self, backend: str) -> _RefusalError:
        known = list(self.taps.statuses)[:_NAMED_IN_ERRORS]
        return _RefusalError(404, f"no backend {backend[:128]!r} has a tap here", backends=known)


def _row(backend: str, status: TapStatus, now: float) -> dict[str, object]:
    return {
        "backend": backend,
        "document": status.knobs.document(),
        "running": status.running,
        "waiting": status.waiting,
        "queued": status.queued,
        "age_s": round(max(0.0, now - status.at_s), 3),
    }


async def _body(request: Request) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_DEADLINE_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_DOCUMENT_BYTES:
                    raise _RefusalError(413, f"the document may have at most {MAX_DOCUMENT_BYTES} bytes")
    except TimeoutError:
        raise _RefusalError(408, f"the document did not arrive within {BODY_DEADLINE_S:g} s") from None
    return bytes(body)


def _knobs(body: bytes) -> Knobs:
    try:
        return knobs_of(strict_json.loads(body))
    except KnobError as error:
        raise _RefusalError(422, str(error), allowed=Knobs().document()) from None
    except (ValueError, RecursionError) as error:
        raise _RefusalError(400, f"the body is not strict JSON: {error}", allowed=Knobs().document()) from None


def _answer(content: object, status: int = 200) -> Json:
    return Json(content, status, headers={"cache-control": "no-store"})
