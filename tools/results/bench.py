"""``make bench``: the benchmarks one after the other, their figures into docs/results/bench_NAME.json and the pages' tables.

    python -m tools.results.bench [NAME …]

Each run is ``tailkeeper bench …`` in a process of its own, so that none inherits another's heap. Where a benchmark has several
runs its figures are ``{"runs": […]}``. One that fails keeps its older result and is told at the end; the others run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tools.results import page
from tools.results.envelope import write

BENCHES: Mapping[str, Sequence[str]] = {
    "exporter": ("exporter",),
    "tick": ("tick --backends 100,1000,10000",),
    "drift": ("drift --streams 2",),
    "p99": ("p99",),
    "attribution": ("attribution",),
    "ledger": ("ledger",),
    "replay": ("replay",),
    "tap": ("tap --seconds 3",),
    "prometheus": ("prometheus",),
    "loop": ("loop --trials 30", "loop --trials 30 --tick-s 0.1"),
    "peers": ("loop --trials 1 --peers",),
}
"""By the name of the result, in the order in which they run: what follows ``tailkeeper bench``."""
LIMIT_S = 1_800
"""Of one run: several times what the longest takes on a quiet machine."""


def main(names: Sequence[str]) -> int:
    unknown = set(names) - BENCHES.keys()
    if unknown:
        print(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    failed = [name for name in BENCHES if (not names or name in names) and not _measured(name)]
    if failed:
        print(f"no new figures of {', '.join(failed)}", file=sys.stderr)
    return page.main([]) or int(bool(failed))


def _measured(name: str) -> bool:
    """Whether there are new figures. What goes wrong is said."""
    started, load = time.monotonic(), os.getloadavg()[0]
    print(f"{name} …", flush=True)
    try:
        runs = [_run(arguments) for arguments in BENCHES[name]]
        figures = runs[0] if len(runs) == 1 else {"runs": runs}
        file = write(f"bench_{name}", f"make bench ARGS={name}", figures, load=load)
    except (RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
        print(f"{name}: failed after {time.monotonic() - started:.0f} s: {error}", file=sys.stderr, flush=True)
        return False
    print(f"{name}: {time.monotonic() - started:.0f} s, docs/results/{file.name}", flush=True)
    return True


def _run(arguments: str) -> dict[str, Any]:
    """Figures of one run. Its log is shown only where it fails: a benchmark's watchdog has thousands of decisions to tell."""
    command = [sys.executable, "-m", "tailkeeper.cli", "bench", *arguments.split(), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)  # noqa: S603  our own program
    if done.returncode:
        raise RuntimeError(f"tailkeeper bench {arguments} ended with {done.returncode}: {done.stderr[-1_000:]}")
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
