"""The report for people: plain text, short, about users first. Pure.

Times are UTC. A number stands with its unit; what is not known is said, never shown as 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from tailkeeper_exporter.counted import plural

MAX_LINES = 40
"""Of findings and of decisions each: a page that a person reads. ``--json`` has all of them."""
SIGNALS = {"ttft": "the first token", "itl": "each token", "e2e": "the whole answer"}
_GRAVITY = ("page", "ticket", "info")
_OFTEN_WRONG = ("growth", "distortion", "zscore")
_DONE = {
    "applied": "would have done",
    "already": "was so already",
    "observed": "would have wanted",
    "advised": "would have advised",
    "refused": "a guard refused",
    "failed": "would have tried",
    "expired": "lease ran out",
    "released": "would have given back",
    "contended": "would have let go",
}


def text(report: dict[str, Any]) -> str:
    """The whole page, without a line feed at its end."""
    return "\n".join(line.rstrip() for part in (_head, _backends, _found, _done, _policies, _unknown) for line in part(report))


def when(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%d %H:%M:%S")


def long(seconds: float) -> str:
    """A duration as people say it."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def short_s(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    return f"{1_000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def share(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.3g} %"


def _head(report: dict[str, Any]) -> Iterator[str]:
    source, period, slo = report["source"], report["period"], report["slo"]
    yield f"Replay of {source['where']}"
    if period["start"] is not None:
        span = f"{when(period['start'])} to {when(period['end'])} UTC, {long(period['seconds'])}"
        yield f"{span}, {plural(period['ticks'], 'tick')}, {plural(len(report['backends']), 'backend')}"
    yield f"Decided by {source['decides']}"
    yield f"Promise: P99 of the first token {short_s(slo['ttft_p99_s'])}, {100 * slo['objective']:g} % of requests good"
    yield from _compared(report.get("compared"))
    yield ""


def _compared(compared: dict[str, Any] | None) -> Iterator[str]:
    if compared is None:
        return
    same, ticks = compared["same"], compared["ticks"]
    yield f"Computed again: {same} of {ticks} ticks gave the same findings and decisions, bit for bit"
    if compared["warming_up"]:
        yield f"  {compared['warming_up']} others belong to a run whose begin is not recorded: what it remembered is not known"
    yield from (f"  differs: {line[:200]}" for line in compared["differences"])
    if compared["lost"]:
        yield f"  missing in the records: {plural(compared['lost'], 'tick')}"


def _backends(report: dict[str, Any]) -> Iterator[str]:
    yield "Did users get what was promised?"
    width = max([len(b["backend"]) for b in report["backends"]], default=8)
    # Where there is no room for all of them, those are shown for which something was broken, or at least unknown.
    shown = sorted(report["backends"], key=lambda b: (b["sla_kept"] is True, b["sla_kept"] is None))[:MAX_LINES]
    for b in sorted(shown, key=lambda b: str(b["backend"])):
        kept = {True: "kept", False: "BROKEN", None: "unknown"}[b["sla_kept"]]
        requests = "requests unknown" if b["requests"] is None else f"{b['requests']:.0f} requests, {b['failed']:.0f} failed"
        late = f"{share(b['late_first_tokens_share'])} late"
        time = f"{share(b['over_slo_time_share'])} of the time over"
        yield f"  {b['backend']:<{width}}  {kept:<7}  {requests}, {late}, {time}, worst P99 {short_s(b['worst_p99_s'])}"
        states = ", ".join(f"{state} {long(s)}" for state, s in b["states_s"].items())
        yield f"  {'':<{width}}  {'':<7}  seen {long(b['seen_s'])} ({states or 'never'}), not seen {long(b['unseen_s'])}"
    yield from _more(report["backends"])
    if not report["backends"]:
        yield "  no backend"
    yield ""
    yield from _waits(report)


def _waits(report: dict[str, Any]) -> Iterator[str]:
    """Each time that users waited longer than promised, and whether anything about that backend was found then."""
    waits = [(b["backend"], w) for b in report["backends"] for w in b["breaches"]]
    yield f"When users waited longer than promised ({len(waits)})"
    for backend, wait in sorted(waits, key=lambda one: float(one[1]["since"]))[:MAX_LINES]:
        kinds = sorted({f["kind"] for f in report["findings"] if f["backend"] == backend and _belongs(f, wait)})
        found = f"found: {', '.join(kinds)}" if kinds else "nothing found it"
        lasted = long(wait["until"] - wait["since"])
        named = SIGNALS[wait["signal"]]
        yield f"  {when(wait['since'])}  {backend}: P99 of {named} up to {short_s(wait['worst_s'])}, for {lasted}; {found}"
    yield from _more(waits)
    if not waits:
        yield "  never, as far as that is known"
    yield ""


def _belongs(finding: dict[str, Any], wait: dict[str, Any]) -> bool:
    felt = finding["users_felt"]
    return felt is not None and bool(felt["since"] <= wait["until"] and wait["since"] <= (finding["until"] or wait["since"]))


def _found(report: dict[str, Any]) -> Iterator[str]:
    findings = report["findings"]
    yield f"What {'was' if _is_past(report) else 'would have been'} found ({len(findings)})"
    for f in _gravest(findings):
        until = "still open" if f["until"] is None else f"for {long(f['until'] - f['since'])}"
        yield f"  {when(f['since'])}  {f['severity']:<6}  {f['kind']:<16}  {f['summary'][:200]}; {until}"
        if f["users_felt"] is not None:
            yield f"  {'':<19}  {'':<6}  {'':<16}  {_felt(f)}"
    yield from _more(findings)
    if not findings:
        yield "  nothing"
    yield ""


def _is_past(report: dict[str, Any]) -> bool:
    """Whether the report tells what was done then, and not what would have been."""
    return report.get("compared") is not None


def _gravest(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As many as there is room for, the grave ones rather than the others, in the order of time."""
    places = sorted(range(len(findings)), key=lambda place: _weight(findings[place]))
    return [findings[place] for place in sorted(places[:MAX_LINES])]


def _weight(finding: dict[str, Any]) -> tuple[int, bool]:
    """Detectors that are often wrong come last among equals, or they would fill the page and hide advice."""
    return _GRAVITY.index(finding["severity"]), finding["kind"] in _OFTEN_WRONG


def _felt(finding: dict[str, Any]) -> str:
    felt, lead_s = finding["users_felt"], finding["found_before_users_s"]
    named = SIGNALS[felt["signal"]]
    order = "found at once" if lead_s == 0 else f"found {long(lead_s)} before" if lead_s > 0 else f"found {long(-lead_s)} after"
    return f"users felt it at {when(felt['since'])} (P99 of {named} up to {short_s(felt['worst_s'])}): {order}"


def _done(report: dict[str, Any]) -> Iterator[str]:
    decisions = report["decisions"]
    past = _is_past(report)
    yield f"What {'was' if past else 'would have been'} done ({len(decisions) + report['decisions_left_out']})"
    for d in decisions[:MAX_LINES]:
        to = f"{d['to']:.3g}" if isinstance(d["to"], float) else d["to"]
        verdict = d["verdict"] if past else _DONE.get(d["verdict"], d["verdict"])
        yield f"  {when(d['time'])}  {verdict:<21}  {d['backend']} {d['knob']} {to} ({d['policy']}): {d['reason'][:200]}"
    yield from _more(decisions)
    if not decisions:
        yield "  nothing"
    yield ""


def _more(rows: list[Any]) -> Iterator[str]:
    if len(rows) > MAX_LINES:
        yield f"  and {len(rows) - MAX_LINES} more; --json has all of them"


def _policies(report: dict[str, Any]) -> Iterator[str]:
    for p in report["policies"]:
        counted = ", ".join(f"{n} {verdict}" for verdict, n in p["verdicts"].items()) or "nothing to do"
        yield f"Policy {p['policy']} ({p['mode']}): {counted}"
        yield from (f"  refused {n}×: {why}" for why, n in p["refusals"].items())
    yield ""


def _unknown(report: dict[str, Any]) -> Iterator[str]:
    yield "What could not be known"
    lines = report["unknown"]
    yield from (f"  {line}" for line in lines[:MAX_LINES])
    yield from _more(lines)
    if not lines:
        yield "  nothing that matters here"
