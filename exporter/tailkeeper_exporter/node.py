"""CPU use of this machine, from ``/proc/stat``: the node of every engine that is reached over loopback.

One reading between two moments; the first gives nothing. Where there is no ``/proc`` (not Linux) there is no reading.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from urllib.parse import urlsplit

from tailkeeper_exporter.readings import Reading, absent, present

STAT = Path("/proc/stat")
MIN_GAP_S = 0.5
"""The kernel counts in hundredths of a second per CPU; over less than this the ratio is mostly rounding."""


def is_on_this_node(url: str) -> bool:
    """Whether the engine at ``url`` runs on this machine, as far as its address tells."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class NodeCpu:
    """Share of all CPUs of this machine that is not idle, since the reading before. One for all backends."""

    def __init__(self, stat: Path = STAT) -> None:
        self._stat = stat
        self._before: tuple[float, float, float] | None = None
        self._reading: Reading[float] = absent("not read twice yet")

    def read(self, now: float) -> Reading[float]:
        """The ratio as of now; one taken less than ``MIN_GAP_S`` ago is given again."""
        if self._before is not None and now - self._before[0] < MIN_GAP_S:
            return self._reading
        times = _times(self._stat)
        if times is None:
            return absent(f"{self._stat} cannot be read")
        before, self._before = self._before, (now, *times)
        if before is not None and times[1] > before[2] and times[0] >= before[1]:
            busy, total = times[0] - before[1], times[1] - before[2]
            self._reading = present(min(1.0, busy / total), now)
        return self._reading


def _times(stat: Path) -> tuple[float, float] | None:
    """Busy and total jiffies of all CPUs together since boot. Waiting for I/O is idle: the CPU is there for others."""
    try:
        with stat.open(encoding="ascii") as file:
            fields = file.readline(4_096).split()
        if fields[0] != "cpu":
            return None
        # user nice system idle iowait irq softirq steal; guest time is within user time already.
        values = [float(field) for field in fields[1:9]]
        return sum(values) - values[3] - values[4], sum(values)
    except (OSError, ValueError, IndexError, UnicodeDecodeError):
        return None
