"""Refusals that say what was wrong, where, and what is allowed; the same shape for every call (``{"detail": …}``)."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, model_validator
from starlette.responses import Response

from tailkeeper_watchdog.api.received import NotAWebhookError
from tailkeeper_watchdog.api.strict import StrictJson
from tailkeeper_watchdog.leadership import NotLeadingError
from tailkeeper_watchdog.ledger import LedgerError

MAX_ERRORS = 20
MAX_NAMES = 20
"""Names of backends in a message: a fleet of 2,000 would drown it."""

DOCUMENTED: dict[int | str, dict[str, Any]] = {
    401: {"description": "Changing calls: the bearer token is missing or wrong"},
    403: {"description": "Changing calls: called by a page of another site"},
    404: {"description": "No such backend; the answer names those there are"},
    411: {"description": "Changing calls: the body has no Content-Length"},
    413: {"description": "Changing calls: the body is too large"},
    503: {"description": "Not known yet, another watchdog leads, or the ledger cannot be used"},
}
"""Answers beside the good one and 422, for the description at ``/openapi.json``."""


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


def add_handlers(api: FastAPI) -> None:
    api.add_exception_handler(RequestValidationError, _invalid)
    api.add_exception_handler(LedgerError, _no_ledger)
    api.add_exception_handler(NotLeadingError, _not_leading)
    api.add_exception_handler(NotAWebhookError, _not_a_webhook)
    api.add_exception_handler(Exception, _broken)


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
