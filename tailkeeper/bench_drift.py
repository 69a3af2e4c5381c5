"""``bench drift``: how often each detector is wrong, and how soon it is right. Prints figures, decides nothing.

Over a file of request records it says where each detector would have alarmed. Without one it measures them on simulated
streams (`driftlab/`): false alarms where nothing drifts, and share and delay of detection for each drift. All detectors see
the same rows in one run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tailkeeper.driftlab.detectors import KS_PEER, OURS, RIVER_PEERS, SLOW_PEERS, Case, Run, has_river, prepare, timed
from tailkeeper.driftlab.request_csv import read_requests
from tailkeeper.driftlab.streams import DRIFTS, KINDS, Kind, stream, with_drift
from tailkeeper_watchdog.drift import DESIGNS, Rows
from tailkeeper_watchdog.drift.rows import AT, LATENCY, has_latency

BASELINE_ROWS = 20_000
OUT_OF_ORDER_S = 60.0
"""Six blocks: `block_e` takes a clock that falls back further for one that was set back."""
NO_RIVER = "river is not installed: adwin, page_hinkley and kswin are left out"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is simulated."""

    streams: int
    quiet_rows: int = 200_000
    """Monitored in each stream without drift."""
    clean_rows: int = 20_000
    """Monitored before a drift begins."""
    horizon_rows: int = 20_000
    """In which a drift must be found."""
    spike_horizon_rows: int = 2_000
    kswin_rows: int = 5_000


QUICK = Size(1, quiet_rows=20_000, clean_rows=2_000, horizon_rows=6_000, kswin_rows=500)


def input_bench(path: Path, baseline_rows: int) -> dict[str, Any]:
    """Every detector over the records of a file. Raises ValueError with line and column, or what the baseline lacks; OSError."""
    rows = read_requests(path)
    if len(rows) <= baseline_rows:
        raise ValueError(f"{len(rows)} rows: none is left to judge after a baseline of {baseline_rows}")
    usable = has_latency(rows.table)
    numbers = np.flatnonzero(usable)
    case = prepare(rows[usable], int(usable[:baseline_rows].sum()), DESIGNS.values())
    detectors: dict[str, Any] = {}
    for name, run in {**OURS, **KS_PEER, **(RIVER_PEERS if has_river() else {})}.items():
        alarms, cost_ns = timed(run, case)
        detectors[name] = {"alarms": numbers[alarms].tolist() if alarms else [], "ns_per_update": round(cost_ns, 1)}
    fitted = next(iter(case.baselines.values()))
    return {
        "rows": len(rows),
        "baseline": baseline_rows,
        "detectors": detectors,
        "unusable_rows": len(rows) - len(case.rows),
        "fit_ratio": fitted.fit_ratio,
        "why_raw": fitted.why_raw,
        "notes": [*([] if has_river() else [NO_RIVER]), *_out_of_order(rows)],
    }


def _out_of_order(rows: Rows) -> list[str]:
    """What is to be said of a file that is not in the order of time; requests written as they end are near enough."""
    starts_s = rows.table[:, AT] - rows.table[:, LATENCY]
    back = int(np.count_nonzero(np.fmax.accumulate(starts_s) - starts_s > OUT_OF_ORDER_S))
    return [f"{back} rows begin over a minute before one above them: sort by start_s, or the alarms mean little"] if back else []


@dataclass(slots=True)
class _Tally:
    """Of one detector on one kind of stream."""

    false_alarms: int = 0
    rows: int = 0
    costs_ns: list[float] = field(default_factory=list)
    delays: dict[str, list[float]] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        return {
            "false_alarms": self.false_alarms,
            "rows": self.rows,
            "false_alarms_per_100k": round(1e5 * self.false_alarms / self.rows, 3) if self.rows else None,
            "ns_per_update": round(median(self.costs_ns), 1) if self.costs_ns else None,
            "drifts": {drift: _detection(delays) for drift, delays in self.delays.items()},
        }


def _detection(delays: Sequence[float]) -> dict[str, Any]:
    found = [delay for delay in delays if math.isfinite(delay)]
    return {"found_share": len(found) / len(delays), "median_delay_requests": median(found) if found else None}


def stream_bench(size: Size, seed: int, kinds: Sequence[str] = tuple(KINDS)) -> dict[str, Any]:
    """All detectors on all kinds. ``seed`` and the numbers after it are used, so runs a hundred apart share no stream."""
    runs = {**OURS, **KS_PEER, **(RIVER_PEERS if has_river() else {})}
    return {
        "seed": seed,
        "streams": size.streams,
        "kinds": {name: _kind(KINDS[name], runs, size, seed) for name in kinds},
        "notes": [] if has_river() else [NO_RIVER],
    }


def _kind(kind: Kind, runs: Mapping[str, Run], size: Size, seed: int) -> dict[str, Any]:
    tallies = {name: _Tally() for name in runs}
    fits: list[float] = []
    for number in range(size.streams):
        case = prepare(stream(kind, BASELINE_ROWS + size.quiet_rows, seed + number), BASELINE_ROWS, DESIGNS.values())
        fits.extend(b.fit_ratio for b in case.baselines.values() if b.fit_ratio is not None)
        for name, run in runs.items():
            alarms, cost_ns = timed(run, case)
            tallies[name].false_alarms += len(alarms)
            tallies[name].rows += size.quiet_rows
            tallies[name].costs_ns.append(cost_ns)
        if number == 0 and has_river():
            tallies |= {name: _slow(run, case, size) for name, run in SLOW_PEERS.items()}
    for drift, case in _drifting(kind, size, seed):
        for name, run in runs.items():
            tallies[name].delays.setdefault(drift, []).append(_delay(run(case), drift, size))
    return {"fit_ratio": round(min(fits), 3), "detectors": {name: tally.document() for name, tally in tallies.items()}}


def _slow(run: Run, case: Case, size: Size) -> _Tally:
    """False alarms only, over a few rows."""
    part = Case(case.rows[: BASELINE_ROWS + size.kswin_rows], BASELINE_ROWS, case.baselines)
    alarms, cost_ns = timed(run, part)
    return _Tally(len(alarms), size.kswin_rows, [cost_ns])


def _drifting(kind: Kind, size: Size, seed: int) -> Iterator[tuple[str, Case]]:
    """Each drift on each of the streams, beginning after the baseline and a clean stretch."""
    at = BASELINE_ROWS + size.clean_rows
    for number in range(size.streams):
        for drift in DRIFTS:
            rows = with_drift(kind, at + size.horizon_rows, seed + 50 + number, drift, at)
            yield drift, prepare(rows, BASELINE_ROWS, DESIGNS.values())


def _delay(alarms: Sequence[int], drift: str, size: Size) -> float:
    """Requests from the drift to the first alarm after it; infinite where there is none within the horizon."""
    at = BASELINE_ROWS + size.clean_rows
    horizon = size.spike_horizon_rows if drift == "spike" else size.horizon_rows
    return next((row - at for row in alarms if at < row <= at + horizon), math.inf)


def table(figures: Mapping[str, Any]) -> str:
    """The figures for people, as a Markdown table for each kind of stream."""
    lines: list[str] = []
    for kind, of_kind in figures["kinds"].items():
        lines += [f"## {kind} (load explains {of_kind['fit_ratio']:.0%} or more)", ""]
        lines += ["| detector | false alarms per 100,000 | " + " | ".join(DRIFTS) + " | ns |", "|---" * (len(DRIFTS) + 3) + "|"]
        for name, of_detector in of_kind["detectors"].items():
            cells = [_cell(of_detector["drifts"].get(drift)) for drift in DRIFTS]
            rate = f"{of_detector['false_alarms_per_100k']:.2f} ({of_detector['false_alarms']} in {of_detector['rows']:,})"
            lines.append(f"| {name} | {rate} | " + " | ".join(cells) + f" | {of_detector['ns_per_update']:,.0f} |")
        lines.append("")
    return "\n".join([*lines, *figures["notes"]]).rstrip()


def _cell(detection: Mapping[str, Any] | None) -> str:
    if detection is None:
        return "not run"
    delay = detection["median_delay_requests"]
    return f"{detection['found_share']:.0%}" + ("" if delay is None else f" @{delay:,.0f}")
