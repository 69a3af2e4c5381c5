"""``make bench``: the benchmarks one after the other, their figures into docs/results/bench_NAME.json and the pages' tables.

    python -m tools.results.bench [NAME …]

Each runs as ``tailkeeper bench NAME --json`` in a process of its own, so that none inherits another's heap. One that fails keeps
its older result, is told at the end, and does not keep the others from running.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from tools.results import page
from tools.results.envelope import write

BENCHES: Mapping[str, Sequence[str]] = {
    "exporter": (),
    "tick": ("--backends", "1000"),
    "drift": (),
    "p99": (),
    "tap": (),
    "loop": ("--trials", "50"),
}
"""In the order in which they run; what follows the name is how the committed results are made."""
LIMIT_S = 1_200
"""Of one benchmark: several times what the longest takes on a quiet machine."""


def main(names: Sequence[str]) -> int:
    unknown = set(names) - BENCHES.keys()
    if unknown:
        print(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    failed = [name for name in BENCHES if (not names or name in names) and not _run(name)]
    if failed:
        print(f"no new figures of {', '.join(failed)}", file=sys.stderr)
    return page.main([]) or int(bool(failed))


def _run(name: str) -> bool:
    command = [sys.executable, "-m", "tailkeeper.cli", "bench", name, *BENCHES[name], "--json"]
    started = time.monotonic()
    print(f"{name}: {' '.join(command[3:])} …", flush=True)
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=LIMIT_S)  # noqa: S603  our own program
        file = write(f"bench_{name}", f"make bench ARGS={name}", json.loads(done.stdout))
    except (subprocess.SubprocessError, ValueError) as error:
        print(f"{name}: failed after {time.monotonic() - started:.0f} s: {error}", file=sys.stderr, flush=True)
        return False
    print(f"{name}: {time.monotonic() - started:.0f} s, {file.name}", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
