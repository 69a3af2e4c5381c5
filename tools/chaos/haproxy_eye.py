"""HAProxy as somebody else reads it: its socket, sharing no code with the watchdog's actuator."""

from __future__ import annotations

import socket
from dataclasses import dataclass

WAIT_S = 1.0
DRAINED, MAINTENANCE = 0x08, 0x01


@dataclass(frozen=True, slots=True)
class Server:
    """A server. Weights are HAProxy's own whole numbers."""

    name: str
    weight: int
    configured: int
    drained: bool
    maintenance: bool
    up: bool

    @property
    def acted_on(self) -> bool:
        """Drained, in maintenance, or below half of its configured weight."""
        return self.drained or self.maintenance or self.weight < 0.5 * self.configured

    @property
    def as_configured(self) -> bool:
        return not self.drained and not self.maintenance and self.weight == self.configured


def servers(path: str, backend: str) -> dict[str, Server]:
    """All servers of ``backend`` by their names there. Raises OSError, and ValueError for an answer that is cut short."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(WAIT_S)
        client.connect(path)
        client.sendall(f"show servers state {backend}\n".encode())
        text = b"".join(iter(lambda: client.recv(65_536), b"")).decode()
    lines = text.splitlines()
    if len(lines) < 2 or not text.endswith("\n\n"):
        raise ValueError(f"not a whole answer: {text[:80]!r}")
    header = lines[1].lstrip("# ").split()
    found = [dict(zip(header, line.split(), strict=False)) for line in lines[2:] if line]
    return {row["srv_name"]: _server(row) for row in found}


def _server(row: dict[str, str]) -> Server:
    bits = int(row["srv_admin_state"])
    return Server(
        row["srv_name"],
        int(row["srv_uweight"]),
        int(row["srv_iweight"]),
        bool(bits & DRAINED),
        bool(bits & MAINTENANCE),
        row["srv_op_state"] in ("1", "2"),
    )
