"""What the exporter and its tap process say to each other: lines of JSON, each with a letter before it for its kind. Pure.

From the tap: ``E`` an exchange, ``S`` all statuses, ``A`` an acknowledgement, ``L`` something for the log. To the tap: ``C`` the
configuration, once and first; ``K`` knobs; ``Q`` quit. A line that is too long is thrown away and counted, never kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tailkeeper_exporter.settings import Auth
from tailkeeper_exporter.tap.knobs import Knobs, knobs_of
from tailkeeper_exporter.tap.status import TapStatus

EXCHANGE, STATUSES, ACKNOWLEDGED, LOG = b"E", b"S", b"A", b"L"
CONFIGURE, KNOBS, QUIT = b"C", b"K", b"Q"
MAX_LINE_BYTES = 1_048_576
"""The statuses of some 3,000 taps. An exchange has 2 kB at most, because its texts are capped."""


class Splitter:
    """Bytes in whatever pieces into lines. ``oversized`` counts what was thrown away."""

    def __init__(self, limit_bytes: int = MAX_LINE_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._tail = bytearray()
        self._skipping = False
        self.oversized = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that ended with these bytes, without their ends."""
        *ended, rest = data.split(b"\n")
        lines = []
        for piece in ended:
            line = bytes(self._tail) + piece
            self._tail.clear()
            if self._skipping or len(line) > self._limit_bytes:
                self.oversized += not self._skipping
                self._skipping = False
            else:
                lines.append(line)
        if not self._skipping:
            self._tail += rest
            if len(self._tail) > self._limit_bytes:
                self._tail.clear()
                self._skipping = True
                self.oversized += 1
        return lines


def line(kind: bytes, document: object) -> bytes:
    """One line, with its end."""
    return kind + json.dumps(document, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def document_of(content: bytes) -> dict[str, Any]:
    """What comes after the letter. Raises ValueError."""
    document = json.loads(content)
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    return document


def statuses_line(statuses: Mapping[str, TapStatus], dropped: int) -> bytes:
    """All taps as they stand, and how many exchanges were thrown away because nobody read them."""
    taps = {name: {**asdict(status), "knobs": status.knobs.document()} for name, status in statuses.items()}
    return line(STATUSES, {"taps": taps, "dropped": dropped})


def statuses_of(content: bytes) -> tuple[dict[str, TapStatus], int]:
    """The other direction. Raises ValueError where it is something else."""
    document = document_of(content)
    try:
        taps = {n: TapStatus(**{**status, "knobs": knobs_of(status["knobs"])}) for n, status in document["taps"].items()}
        return taps, int(document["dropped"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a list of statuses: {error!r}") from None


@dataclass(frozen=True, slots=True)
class Order:
    """Turn these knobs at this backend's tap, and say so by this number."""

    number: int
    backend: str
    knobs: Knobs

    def line(self) -> bytes:
        return line(KNOBS, {"number": self.number, "backend": self.backend, "knobs": self.knobs.document()})


def order_of(content: bytes) -> Order:
    """The other direction. Raises ValueError."""
    document = document_of(content)
    try:
        return Order(int(document["number"]), str(document["backend"]), knobs_of(document["knobs"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"not an order: {error!r}") from None


@dataclass(frozen=True, slots=True)
class TapPlan:
    """What the tap's process has to know of one backend. Paths of files, and no secrets."""

    name: str
    url: str
    fd: int
    """The listening socket, inherited."""
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @property
    def auth(self) -> Auth:
        """What of the backend's `auth` is for connections; headers are the clients' own, and none is added to them."""
        return Auth.model_validate({"ca_file": self.ca_file, "cert_file": self.cert_file, "key_file": self.key_file})


def plans_line(plans: tuple[TapPlan, ...]) -> bytes:
    return line(CONFIGURE, {"taps": [asdict(plan) for plan in plans]})


def plans_of(content: bytes) -> tuple[TapPlan, ...]:
    """The other direction. Raises ValueError."""
    try:
        return tuple(TapPlan(**plan) for plan in document_of(content)["taps"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a configuration: {error!r}") from None
