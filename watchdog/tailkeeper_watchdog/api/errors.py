"""Refusals that say what was wrong, where, and what is allowed; the same shape for every call (``{"detail": …}``)."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, model_validator
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.responses import Response
from starlette.routing import Match, Route

from tailkeeper_watchdog.api.received import NotAWebhookError
from tailkeeper_watchdog.api.strict import StrictJson
from tailkeeper_watchdog.leadership import NotLeadingError
from tailkeeper_watchdog.ledger import LedgerError

MAX_ERRORS = 20
MAX_NAMES = 20
"""Names of backends in a message: a fleet of 2,000 would drown it."""
MAX_PARAMETERS = 100
"""Of a query; a path takes three at most."""
NO_NUL = "^[^\\x00]*$"
"""For texts that are kept: a database may not take that character."""


class Strict(BaseModel):
    """Base of every query and body: what is not known is refused, because a mistyped filter would silently not filter."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _only_known(cls, given: Any) -> Any:
        unknown = sorted(set(given) - set(cls.model_fields)) if isinstance(given, dict) else ()
        if unknown:
            raise ValueError(f"unknown: {', '.join(unknown)[:200]}; allowed: {', '.join(sorted(cls.model_fields))}")
        return given


def no_backend(name: str, known: Collection[str]) -> HTTPException:
    """404 that names the nearest backends, or all where they are few."""
    near = get_close_matches(name, known, n=5, cutoff=0.5) if len(known) > MAX_NAMES else sorted(known)
    shown = ", ".join(near) or f"none is near; {len(known)} are configured, see /api/v1/fleet"
    return HTTPException(404, f"no backend {name[:128]!r}; {'nearest' if len(known) > MAX_NAMES else 'known'}: {shown}")


async def given_once(request: Request) -> None:
    """A dependency: of two values of one parameter nobody can say which was meant. Raises RequestValidationError."""
    names = [name for name, _ in request.query_params.multi_items()]
    twice = sorted({name for name in names if names.count(name) > 1})[:MAX_ERRORS] if len(names) <= MAX_PARAMETERS else ["…"]
    if twice:
        rows = [{"loc": ("query", name[:128]), "msg": "given more than once", "type": "ambiguous"} for name in twice]
        raise RequestValidationError(rows)


def add_handlers(api: FastAPI) -> None:
    api.add_exception_handler(StarletteHTTPException, _refused)
    api.add_exception_handler(RequestValidationError, _invalid)
    api.add_exception_handler(LedgerError, _no_ledger)
    api.add_exception_handler(NotLeadingError, _not_leading)
    api.add_exception_handler(NotAWebhookError, _not_a_webhook)
    api.add_exception_handler(Exception, _broken)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["allow"] = ", ".join(sorted(_allowed(request)))
    return StrictJson({"detail": error.detail}, error.status_code, headers)


def _allowed(request: Request) -> set[str]:
    """The methods of every route at this path; of several routes Starlette names the first one's only."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    return {method for route in routes if route.matches(request.scope)[0] is not Match.NONE for method in route.methods or ()}


async def _invalid(request: Request, error: Exception) -> Response:
    """FastAPI's own shape without the values that were sent: they may be secrets, huge, or no JSON (NaN)."""
    assert isinstance(error, RequestValidationError)
    rows = [{"loc": list(e["loc"]), "msg": _message(e), "type": e["type"]} for e in error.errors()[:MAX_ERRORS]]
    return StrictJson({"detail": rows}, 422)


def _message(error: dict[str, Any]) -> str:
    if error["type"] == "bool_parsing":
        return "must be true or false"
    return str(error["msg"]).removeprefix("Value error, ")


async def _not_a_webhook(request: Request, error: Exception) -> Response:
    return StrictJson({"detail": [{"loc": ["body", "alerts"], "msg": str(error), "type": "webhook"}]}, 422)


async def _not_leading(request: Request, error: Exception) -> Response:
    return StrictJson({"detail": f"nothing is done here: {error}"}, 503)


async def _no_ledger(request: Request, error: Exception) -> Response:
    return StrictJson({"detail": f"the ledger cannot be used: {error}"}, 503)


async def _broken(request: Request, error: Exception) -> Response:
    """Our own mistake; its traceback is in the log, and nothing of it here."""
    return StrictJson({"detail": "the watchdog failed at this; its log says why"}, 500)
