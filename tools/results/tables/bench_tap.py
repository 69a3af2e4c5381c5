"""Streams straight from an engine, through the tap, and through HAProxy alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.results.markdown import markdown, number

WAYS = {"direct": "direct", "tapped": "through the tap", "haproxy": "through HAProxy alone"}


def table(figures: Mapping[str, Any]) -> str:
    streams = figures["streams"]
    ways = [way for way in WAYS if way in figures["paced"]["first_token_ms"]]
    rows = [
        ("first token, one stream, p50", *_first(figures["one_stream"], ways, "p50")),
        (f"first token, {streams} streams at 25 tokens/s each, p50", *_first(figures["paced"], ways, "p50")),
        ("the same, p99", *_first(figures["paced"], ways, "p99")),
        (f"tokens a second, the same {streams} streams", *_rates(figures["paced"], ways)),
        (f"tokens a second, {streams} streams as fast as they are taken", *_rates(figures["unpaced"], ways)),
        ("CPU for each event, one by one", *_cpu(figures["paced"], ways)),
        ("CPU for each event, in bunches", *_cpu(figures["unpaced"], ways)),
    ]
    return markdown(("what", *(WAYS[way] for way in ways)), rows)


def _first(case: Mapping[str, Any], ways: list[str], key: str) -> list[str]:
    return [f"{number(case['first_token_ms'][way][key])} ms" for way in ways]


def _rates(case: Mapping[str, Any], ways: list[str]) -> list[str]:
    return [f"{case['tokens_per_second'][way]:,}" for way in ways]


def _cpu(case: Mapping[str, Any], ways: list[str]) -> list[str]:
    told = {"tapped": case["tap_cpu_us_per_event"], "haproxy": (case["haproxy_alone"] or {}).get("cpu_us_per_event")}
    return ["" if told.get(way) is None else f"{number(told[way])} us" for way in ways]
