"""The exporter's reason codes and checks as sentences that a tired person understands. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tailkeeper_exporter.liveness import Why
from tailkeeper_exporter.tls import TlsCode

MAX_REASONS = 10
MAX_CHARS = 300
MAX_STALLED_S = 1e9
"""Of thirty years or more a tired person needs no tenth of a second, and a number of 400 digits cannot be written so."""


def reasons_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Sentences for one element of ``/healthz``; whatever is not of its shape is left out."""
    codes = row.get("reasons")
    checks = row.get("checks")
    if not isinstance(codes, list):
        return ()
    known = checks if isinstance(checks, dict) else {}
    return tuple(s[:MAX_CHARS] for s in _sentences([str(c) for c in codes[:MAX_REASONS]], known))


def _sentences(codes: list[str], checks: Mapping[str, Any]) -> Iterator[str]:
    whys = {why.value: why for why in Why}
    for code in codes:
        if code == Why.NO_PROGRESS.value:
            yield f"work in flight and no token{_stalled(checks)}"
        elif code == Why.PROBE_UNANSWERED.value:
            yield "own probe accepted and not answered"
        elif code in (Why.PROBE_DENIED.value, Why.HEALTH_DENIED.value) and (tls := _tls(checks)) is not None:
            yield f"TLS to the engine fails: {tls.sentence}"
        elif code in whys:
            sentence = whys[code].sentence.rstrip(".")
            yield sentence[0].lower() + sentence[1:]
        elif code in checks:
            yield from _failing_check(code, checks, codes)
        else:
            yield code


def _tls(checks: Mapping[str, Any]) -> TlsCode | None:
    """Why TLS fails, where a check says so; the sentence is of a list of ours, and nothing of it the exporter's."""
    said = [check.get("reason") for check in checks.values() if isinstance(check, dict)]
    return next((code for code in TlsCode if code.value in said), None)


def _stalled(checks: Mapping[str, Any]) -> str:
    progress = checks.get("progress")
    value = progress.get("value") if isinstance(progress, dict) else None
    return f" for {value:.1f} s" if isinstance(value, (int, float)) and 0 <= value < MAX_STALLED_S else ""


def _failing_check(name: str, checks: Mapping[str, Any], codes: list[str]) -> Iterator[str]:
    """A configured check that fails, unless a reason above says the same better."""
    told = {"progress": Why.NO_PROGRESS.value, "semantic_probe": Why.PROBE_UNANSWERED.value}.get(name)
    if told in codes:
        return
    check = checks[name]
    detail = check.get("reason") if isinstance(check, dict) else None
    yield f"check {name} fails" + (f": {detail}" if isinstance(detail, str) else "")
