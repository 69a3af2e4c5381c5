"""Ours beside others doing the same, each pair in turns in one run. No target: a measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tools.results.markdown import markdown, number

Figures = Mapping[str, Any]


def _segments(figures: Figures) -> str:
    largest = max(figures["segments"], key=lambda size: int(size["requests"]))
    return f"{number(largest['ratio'], 2)} times faster, of {largest['requests']:,} requests"


def _p99(figures: Figures) -> str:
    structures = figures["windows"][0]["structures"]
    ours, theirs = (structures[name]["us_per_tick_of_5"] for name in ("tail_ring", "numpy_percentile"))
    return f"{number(theirs / ours, 2)} times faster (window 1,000, five new samples and one P99)"


def _tap(figures: Figures) -> str | None:
    if figures["one_stream"]["haproxy_alone"] is None:
        return None
    cases = [figures[case] for case in ("one_stream", "paced")]
    ours, theirs = ([case["added_first_token_ms"]["p50"] for case in cases], [_haproxy(case)["p50"] for case in cases])
    one, many = (f"{mine:.2f} ms to a first token, HAProxy {other:.2f}" for mine, other in zip(ours, theirs, strict=True))
    return f"one stream: adds {one}; {figures['streams']}: {many}"


def _haproxy(case: Figures) -> Mapping[str, float]:
    added: Mapping[str, float] = case["haproxy_alone"]["added_first_token_ms"]
    return added


ROWS: tuple[tuple[str, str, str, Callable[[Figures], str | None]], ...] = (
    ("reading a page", "`prometheus_client.parser`", "bench_exporter", lambda f: f"{f['parse']['ratio']:.1f} times faster"),
    (
        "writing a page",
        "`prometheus_client.generate_latest`",
        "bench_exporter",
        lambda f: f"{f['render']['ratio']:.1f} times faster",
    ),
    ("an exact sliding P99", "`numpy.percentile`", "bench_p99", _p99),
    ("exact Shapley values of five segments", "enumeration of all coalitions", "bench_attribution", _segments),
    (
        "an intent in the ledger",
        "bare SQLite, one row, as carefully written",
        "bench_ledger",
        lambda f: f"takes {number(f['intent_against_sqlite_full'])} times as long",
    ),
    (
        "the same",
        "bare SQLite that waits for no disk",
        "bench_ledger",
        lambda f: f"takes {number(f['intent_against_sqlite_off'])} times as long: what a power cut must not take",
    ),
    ("the tap", "HAProxy alone, one thread", "bench_tap", _tap),
)


def summary(results: Mapping[str, Mapping[str, Any]]) -> str:
    rows = []
    for what, peer, name, tell in ROWS:
        told = tell(results[name]["figures"]) if name in results else None
        rows.append((what, peer, told or "not measured", f"`make bench ARGS={name.removeprefix('bench_')}`"))
    return markdown(("ours", "beside", "ratio", "command"), rows)
