"""What was measured, on which machine, when and by which command: ``docs/results/NAME.json``.

    {"name", "command", "version", "date", "machine": {"cpu", "cores", "memory_gib", "python", "kernel"}, "figures": {…}}

From Python ``write(NAME, COMMAND, figures)``; from a shell, with the figures as JSON on the standard input:

    python -m tools.results.envelope NAME 'COMMAND' < FIGURES.json

A measurement of time also says ``"load"``: how many wanted the machine's cores when it began (``os.getloadavg``), because a busy
machine is another machine.

``COMMAND`` is what makes the figures again, as a reader types it: `make …`, `tailkeeper …` or `python …`. What the figures look
like is theirs alone; ``tables/NAME.py`` reads them, and `page` puts its table where a page of docs/ says so.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tailkeeper import __version__

RESULTS = Path(__file__).parents[2] / "docs" / "results"
_GIB = 1024 * 1024  # of kB


def machine() -> dict[str, Any]:
    """This one. What cannot be known is null; never its name or a path of it."""
    kilobytes = _first(r"^MemTotal: +(\d+) kB", "/proc/meminfo")
    return {
        "cpu": _first(r"^model name\s*: (.+)$", "/proc/cpuinfo") or platform.machine() or None,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": None if kilobytes is None else round(int(kilobytes) / _GIB, 1),
        "python": platform.python_version(),
        "kernel": platform.release(),
    }


def _first(pattern: str, file: str) -> str | None:
    try:
        found = re.search(pattern, Path(file).read_text(), re.M)
    except OSError:
        return None
    return found[1].strip() if found else None


def envelope(name: str, command: str, figures: Mapping[str, Any], load: float | None = None) -> dict[str, Any]:
    """The whole document, dated today (UTC)."""
    found = {
        "name": name,
        "command": command,
        "version": __version__,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "figures": figures,
    }
    return found if load is None else {**found, "load": round(load, 1)}


def write(name: str, command: str, figures: Mapping[str, Any], folder: Path = RESULTS, load: float | None = None) -> Path:
    """Write ``NAME.json``, over an older one. Raises ValueError for a number that JSON does not have."""
    text = json.dumps(envelope(name, command, figures, load), indent=1, allow_nan=False, ensure_ascii=False)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.json"
    file.write_text(text + "\n", encoding="utf-8")
    return file


if __name__ == "__main__":
    print(write(sys.argv[1], sys.argv[2], json.load(sys.stdin)))
