"""What the watchdog answers, for ``/openapi.json``: FastAPI knows what may be asked, and this what comes back. Pure.

Held to what is really answered by Schemathesis in the tests. A field that is not known is null.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from tailkeeper_exporter.json_schema import (
    ANY,
    FLAG,
    NUMBER,
    TEXT,
    WHOLE,
    Schema,
    by_name,
    json_answer,
    maybe,
    record,
    rows,
    words,
)
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.api.live import Stream
from tailkeeper_watchdog.model import Enforceability, FindingKind, Knob, Mode, Outcome, Severity

BEARER = "token"
"""The security scheme's name in the document."""
_MAYBE_NUMBER = maybe(NUMBER)
_REACH = words(*(reach.value for reach in Enforceability))
_KNOB = words(*(knob.value for knob in Knob))
_VALUE: Schema = {"type": ["number", "string"]}
_FACTOR = record(goodness=NUMBER, weight=NUMBER, value=NUMBER, unit=TEXT)
_TURNED = record(weight=_MAYBE_NUMBER, admission=maybe(TEXT))
_LEASE = record(
    id=WHOLE, gateway=TEXT, server=TEXT, knob=_KNOB, prior=_VALUE, written=_VALUE, policy=TEXT, reason=TEXT,
    since=NUMBER, expires=NUMBER, confirmed=FLAG,
)  # fmt: skip
_BACKEND = record(
    backend=TEXT, model=TEXT, state=words(*(state.value for state in State)), reasons=rows(TEXT),
    hscore=_MAYBE_NUMBER, confidence=NUMBER, dominant_factor=maybe(TEXT), factors=by_name(_FACTOR), unknown_factors=rows(TEXT),
    p99_s=_MAYBE_NUMBER, p99_saturated=FLAG, samples=NUMBER, age_s=_MAYBE_NUMBER,
    desired=_TURNED, actual=_TURNED, actuation=_REACH, why=TEXT,
    leases=rows(_LEASE), hold=maybe(record(reason=TEXT, until=NUMBER)),
    running=_MAYBE_NUMBER, waiting=_MAYBE_NUMBER, kv_usage_ratio=_MAYBE_NUMBER, gpu_utilization_ratio=_MAYBE_NUMBER,
)  # fmt: skip
_FLEET = record(
    time=NUMBER, now=NUMBER, tick=WHOLE, tick_s=NUMBER, mode=words(*(mode.value for mode in Mode)), paused=FLAG,
    paused_because=maybe(TEXT), error=maybe(TEXT), gateway_errors=by_name(TEXT), backends=rows(_BACKEND),
)  # fmt: skip
_FINDING = record(
    id=TEXT, kind=words(*(kind.value for kind in FindingKind)), backend=TEXT, severity=words(*(s.value for s in Severity)),
    since=NUMBER, until=_MAYBE_NUMBER, summary=TEXT, signal=maybe(TEXT), evidence={"type": "object"},
    shares=rows(record(dimension=TEXT, value=TEXT, share=NUMBER, confidence=NUMBER)),
)  # fmt: skip
_DECISION = record(
    {"from": {"type": ["number", "string", "null"]}},
    id=WHOLE, time=NUMBER, tick=WHOLE, policy=TEXT, backend=TEXT, knob=_KNOB, to=_VALUE,
    verdict=words(*(outcome.value for outcome in Outcome)), reason=TEXT, lease_expires=_MAYBE_NUMBER,
)  # fmt: skip
_SUPPORT = record(backend=TEXT, actuation=_REACH, why=TEXT, knobs=by_name(record(actuation=_REACH, why=TEXT)))
_POLICY = record(policy=TEXT, summary=TEXT, mode=TEXT, knobs=rows(_KNOB), backends=rows(_SUPPORT))
_WEIGHTS = record(latency=NUMBER, error_rate=NUMBER, cpu_usage=NUMBER, uptime=NUMBER)
_SCORER = record(weights=_WEIGHTS, history=rows(record({"from": _WEIGHTS}, time=NUMBER, by=TEXT, to=_WEIGHTS)))
_ALERT = record(fingerprint=TEXT, starts_at=TEXT, status=words("firing", "resolved"), labels=by_name(TEXT), received=NUMBER)
_TIER = record(tier=TEXT, match=by_name(TEXT), objective=NUMBER, limit_s=_MAYBE_NUMBER, windows=rows({"type": "object"}))
_PAUSED = record(paused=FLAG, paused_because=maybe(TEXT))
_HOLD = "/api/v1/backends/{backend}/hold"

ANSWERS: dict[tuple[str, str], Schema] = {
    ("get", "/api/v1/fleet"): _FLEET,
    ("get", "/api/v1/findings"): rows(_FINDING),
    ("get", "/api/v1/decisions"): rows(_DECISION),
    ("get", "/api/v1/policies"): rows(_POLICY),
    ("get", "/api/v1/baselines"): record(version=WHOLE, backends=by_name(rows({"type": "object"})), gathering=by_name(ANY)),
    ("get", "/api/v1/trends"): record(spacing_s=NUMBER, p99_s=by_name(rows(_MAYBE_NUMBER))),
    ("get", "/api/v1/slo"): record(time=NUMBER, objective=NUMBER, source=maybe(TEXT), note=TEXT, tiers=rows(_TIER)),
    ("get", "/api/v1/capacity"): record(time=NUMBER, window_s=NUMBER, candidates=rows(TEXT), backends=rows(record(backend=TEXT))),
    ("get", "/api/v1/forecast"): record(time=NUMBER, horizon_s=NUMBER, backends=rows(record(backend=TEXT, p99_s=_MAYBE_NUMBER))),
    ("get", "/api/v1/hscorer/config"): _SCORER,
    ("put", "/api/v1/hscorer/config"): _SCORER,
    ("get", "/api/v1/alerts"): rows(_ALERT),
    ("post", "/api/v1/alerts"): record(taken=WHOLE, refused=WHOLE),
    ("post", "/api/v1/pause"): _PAUSED,
    ("post", "/api/v1/resume"): _PAUSED,
    ("post", "/api/v1/release"): record(decisions=rows(_DECISION), kept=rows(_LEASE), failed=WHOLE),
    ("post", _HOLD): record(backend=TEXT, reason=TEXT, until=NUMBER),
    ("delete", _HOLD): record(backend=TEXT, held=FLAG),
    ("get", "/livez"): record(status=TEXT),
    ("get", "/readyz"): record(status=TEXT, reason=TEXT),
}
"""What is answered with 200, by method and path."""
_OTHER_THAN_JSON = {
    "/metrics": ("text/plain; version=0.0.4; charset=utf-8", "application/openmetrics-text; version=1.0.0; charset=utf-8"),
    "/api/v1/stream": (Stream.media_type,),
}
_DETAIL = record(detail={"anyOf": [TEXT, rows(record(loc=rows(ANY), msg=TEXT, type=TEXT))]})
_READ_REFUSALS = {
    "404": "No such backend; the answer names those there are",
    "422": "A parameter is not allowed, or has a value that is not",
    "503": "Not known yet, another watchdog leads, the ledger cannot be used, or too many ask",
}
_CHANGE_REFUSALS = {
    **_READ_REFUSALS,
    "400": "The body is no JSON",
    "401": "The bearer token is missing or wrong",
    "403": "Called by a page of another site",
    "411": "The body has no Content-Length",
    "413": "The body is too large",
    "422": "Names the field, the value and what is allowed",
}


def describe(api: FastAPI, *, has_token: bool) -> None:
    """Give ``api`` the whole description. Without a token no call is said to need one."""

    def document() -> dict[str, Any]:
        if api.openapi_schema is None:
            asked = get_openapi(title=api.title, version=api.version, routes=api.routes)
            api.openapi_schema = _whole(asked, has_token)
        return api.openapi_schema

    api.openapi = document  # type: ignore[method-assign]


def _whole(document: dict[str, Any], has_token: bool) -> dict[str, Any]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            operation["responses"] = {"200": _good(method, path), **_refusals(method, path, asks="parameters" in operation)}
            if method != "get" and has_token:
                operation["security"] = [{BEARER: []}]
    if has_token:
        document.setdefault("components", {})["securitySchemes"] = {BEARER: {"type": "http", "scheme": "bearer"}}
    return document


def _refusals(method: str, path: str, *, asks: bool) -> Schema:
    why = _CHANGE_REFUSALS if method != "get" else _READ_REFUSALS if asks else {"503": _READ_REFUSALS["503"]}
    found = {status: json_answer(sentence, _DETAIL) for status, sentence in why.items()}
    return {**found, "503": json_answer("Not now, and why", ANSWERS[("get", path)])} if path == "/readyz" else found


def _good(method: str, path: str) -> Schema:
    others = _OTHER_THAN_JSON.get(path)
    if others is None:
        return json_answer("Done" if method != "get" else "What is known", ANSWERS[(method, path)])
    return {"description": "What is known", "content": {media: {"schema": TEXT} for media in others}}
