"""``tailkeeper status``: one question to the watchdog, one table for a person."""

from __future__ import annotations

from typing import Any

import httpx

DEADLINE_S = 5.0


def fetch_fleet(url: str) -> dict[str, Any]:
    """The fleet document. Raises OSError where nobody answers and ValueError for what is no fleet document."""
    try:
        answer = httpx.get(f"{url.rstrip('/')}/api/v1/fleet", timeout=DEADLINE_S, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise OSError(f"no answer from the watchdog: {error}") from error
    if answer.status_code != 200:
        raise ValueError(f"answered {answer.status_code}: {answer.text[:200]}")
    document = answer.json()
    if not isinstance(document, dict) or not isinstance(document.get("backends"), list):
        raise ValueError("this is not a watchdog's fleet document")
    return document


def fleet_table(fleet: dict[str, Any]) -> str:
    """Lines of text: a sentence, then one line per backend."""
    mode = f"paused: {fleet['paused_because']}" if fleet["paused"] else f"mode {fleet['mode']}"
    able = sum(1 for b in fleet["backends"] if b["state"] in ("serving", "busy"))
    rows = [("backend", "state", "hscore", "P99 TTFT", "weight", "why")]
    rows.extend(_row(b) for b in fleet["backends"])
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = ["  ".join((*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[5])).rstrip() for row in rows]
    return "\n".join([f"{able} of {len(fleet['backends'])} backends serving, {mode}, tick {fleet['tick']}", *lines])


def _row(backend: dict[str, Any]) -> tuple[str, str, str, str, str, str]:
    score = backend["hscore"]
    actual = backend["actual"]
    share = "unknown" if actual["weight"] is None else f"{actual['weight']:.0%}"
    weight = "drained" if actual["admission"] == "drain" else share
    return (
        backend["backend"],
        backend["state"],
        "unknown" if score is None else f"{score:.2f}",
        _p99(backend),
        weight,
        backend["why"],
    )


def _p99(backend: dict[str, Any]) -> str:
    value = backend["p99_s"]
    if value is None:
        return "no traffic"
    text = f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"
    return f"{'≥ ' if backend['p99_saturated'] else ''}{text} (n={backend['samples']})"
