"""HAProxy through its Runtime API: weight and admission of `backend/server`. One connection a command, nothing remembered.

Seen on HAProxy 2.6 and relied on here:

* `show servers state` has the configured weight, the weight in force, and the administrative state as bits; `show stat`
  has the sessions. Sent as one batch they come one after the other, each ended by a blank line.
* Success of `set server` is a blank line, anything else is an error. A failed command in a batch does not stop the next
  one, so each `set server` has its own connection and the first failure ends the write.
* A weight in percent is cut to a whole number (50 % of 1 becomes 0, which takes the server out), so weights are absolute.
* `state drain` and `state ready` both end a maintenance, so they are never sent to a server that somebody put there.
* A drained server still gets the requests that a cookie or a stick table binds to it; only maintenance stops those.
* `state ready` does not restore a weight. Changes are lost on reload; the reconciler finds that out by reading.
"""

from __future__ import annotations

import asyncio
import csv
import io
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tailkeeper_watchdog.actuators.calls import CallError, excerpt, turn
from tailkeeper_watchdog.actuators.contract import Actuator, ErrorKind, ServerState, Support
from tailkeeper_watchdog.actuators.replicas import replicated
from tailkeeper_watchdog.gateways import Gateway, HaproxyGateway
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, KnobValue

KIND = "haproxy"
ANSWER_LIMIT_BYTES = 16 * 1024 * 1024
"""4,000 servers were 1.2 MB in the answer to ``read``, so 10,000, the most we watch, are 3 MB, and with long names and check
texts perhaps 6 MB. Over twice that is not an answer to our question."""
MAX_UNITS = 256
"""HAProxy's largest weight."""
FINE_UNITS = 100
"""From this configured weight on, one unit is at most 1 % and every share is rounded without complaint."""
COARSE_ERROR = 0.1
"""Below FINE_UNITS a share that rounding would change by more than this part of itself is refused."""

FORCED_MAINTENANCE = 0x01
MAINTENANCE = 0x63
"""Forced, inherited, by name resolution, by hostname change. 0x04 only says that the configuration had it disabled once."""
FORCED_DRAIN = 0x08
INHERITED_DRAIN = 0x10
RUNNING = (1, 2)
"""Operational states that take new traffic: starting and running. 0 is stopped, 3 is stopping (404 on its check)."""

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,256}/[A-Za-z0-9_.:-]{1,256}")
"""The characters that HAProxy allows in names. Nothing else may stand in a command."""
_TCP = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):(\d{1,5})")
_STATE_COLUMNS = ("be_name", "srv_name", "srv_op_state", "srv_admin_state", "srv_uweight", "srv_iweight")
_STAT_HEADER = "\n# pxname,"
_ERRORS = (
    ("no such server", ErrorKind.NOT_FOUND, ""),
    ("no such backend", ErrorKind.NOT_FOUND, ""),
    ("can't find backend", ErrorKind.NOT_FOUND, ""),
    ("permission denied", ErrorKind.UNAUTHORIZED, "; the socket needs `level admin` in haproxy.cfg"),
    ("backend is using a static", ErrorKind.REFUSED, "; use `balance roundrobin` or `leastconn` for weights in between"),
)
_WHY_NOT = "HAProxy's Runtime API is used for weight and admission only"


@dataclass(frozen=True, slots=True)
class ServerRow:
    """One server in `show servers state`. Units are HAProxy's own weights, 0 to 256."""

    units: int
    initial_units: int
    admin_bits: int
    operational: int

    @property
    def drained(self) -> bool:
        return bool(self.admin_bits & FORCED_DRAIN)

    @property
    def in_service(self) -> bool:
        """Whether new traffic would reach it, our own drain aside. Weight 0 is out of service, whoever set it."""
        kept_away = self.admin_bits & (MAINTENANCE | INHERITED_DRAIN)
        return not kept_away and self.operational in RUNNING and self.units > 0

    def state(self, sessions: int | None) -> ServerState:
        """Weight is left out where the configured weight is 0: a share of nothing is not known."""
        values: dict[Knob, KnobValue] = {Knob.ADMISSION: DRAIN if self.drained else SERVE}
        if self.initial_units > 0:
            values[Knob.WEIGHT] = self.units / self.initial_units
        return ServerState(values, self.in_service, sessions, normal_weight=1.0)


def is_server_name(server: str) -> bool:
    return _NAME.fullmatch(server) is not None


def parse_servers_state(text: str) -> Mapping[str, ServerRow]:
    """`show servers state`, complete to its blank line, by `backend/server`. Raises CallError(PROTOCOL, NOT_FOUND, …)."""
    lines = text.split("\n")
    if len(lines) < 2 or not lines[1].startswith("# be_id "):
        raise _sorted_error(text, otherwise=ErrorKind.PROTOCOL)
    if not text.endswith("\n\n"):
        raise CallError(ErrorKind.PROTOCOL, "`show servers state` was cut short")
    header = lines[1][2:].split(" ")
    if missing := [column for column in _STATE_COLUMNS if column not in header]:
        raise CallError(ErrorKind.PROTOCOL, f"`show servers state` lacks the column {missing[0]}")
    at = [header.index(column) for column in _STATE_COLUMNS]
    return dict(_server_row(line.split(" "), at) for line in lines[2:] if line)


def _server_row(fields: list[str], at: list[int]) -> tuple[str, ServerRow]:
    try:
        backend, server, operational, admin, units, initial = (fields[i] for i in at)
        row = ServerRow(int(units), int(initial), int(admin), int(operational))
    except (IndexError, ValueError):
        raise CallError(ErrorKind.PROTOCOL, f"`show servers state` has an unreadable row: {excerpt(' '.join(fields))}") from None
    if not (0 <= row.units <= MAX_UNITS and 0 <= row.initial_units <= MAX_UNITS):
        raise CallError(ErrorKind.PROTOCOL, f"`show servers state` gives {backend}/{server} a weight outside 0 to {MAX_UNITS}")
    return f"{backend}/{server}", row


def parse_sessions(text: str) -> Mapping[str, int]:
    """Current sessions by `backend/server` from `show stat`, complete to its blank line. Raises CallError(PROTOCOL)."""
    if not text.startswith("# pxname,") or not text.endswith("\n\n"):
        raise CallError(ErrorKind.PROTOCOL, f"`show stat` was cut short or is not CSV: {excerpt(text)}")
    sessions: dict[str, int] = {}
    try:
        for row in csv.DictReader(io.StringIO(text[2:], newline=""), strict=True):
            if row["scur"]:
                sessions[f"{row['pxname']}/{row['svname']}"] = max(0, int(row["scur"]))
    except (csv.Error, KeyError, ValueError) as error:
        raise CallError(ErrorKind.PROTOCOL, f"`show stat` cannot be read: {excerpt(str(error))}") from None
    return sessions


def parse_read(text: str) -> tuple[Mapping[str, ServerRow], Mapping[str, int]]:
    """The answer to the batch that ``read`` sends. The second header cannot occur in the first part: names have no `#`."""
    state, header, stat = text.partition(_STAT_HEADER)
    rows = parse_servers_state(state + "\n" if header else text)
    if not header:
        raise CallError(ErrorKind.PROTOCOL, "`show stat` is missing from the answer")
    return rows, parse_sessions(header[1:] + stat)


def _sorted_error(text: str, otherwise: ErrorKind) -> CallError:
    words = excerpt(text)
    for start, kind, advice in _ERRORS:
        if words.lower().startswith(start):
            return CallError(kind, f"HAProxy says: {words}{advice}")
    return CallError(otherwise, f"HAProxy says: {words}" if words else "an empty answer")


def units_for(share: KnobValue, initial_units: int) -> int:
    """A share of the configured weight in HAProxy's whole units; a positive share never becomes 0. Raises CallError(REFUSED)."""
    if isinstance(share, (str, bool)) or not math.isfinite(share) or share < 0:
        raise CallError(ErrorKind.REFUSED, f"weight {share!r} is not a share; it must be a number from 0 up")
    if share == 0:
        return 0
    if initial_units == 0:
        raise CallError(
            ErrorKind.REFUSED, "its configured weight is 0, of which there are no shares; set `weight 100` in haproxy.cfg"
        )
    if share * initial_units > MAX_UNITS:
        raise CallError(ErrorKind.REFUSED, f"weight {share:g} of {initial_units} is above HAProxy's limit of {MAX_UNITS}")
    units = max(1, round(share * initial_units))
    error = abs(units / initial_units - share) / share
    if initial_units < FINE_UNITS and error > COARSE_ERROR:
        raise CallError(
            ErrorKind.REFUSED,
            f"weight {share:g} cannot be expressed: the configured weight is {initial_units}, so it would become "
            f"{units / initial_units:.2g}; set `weight {FINE_UNITS}` on this server and its peers in haproxy.cfg",
        )
    return units


def commands(server: str, row: ServerRow, values: Mapping[Knob, KnobValue]) -> Iterator[str]:
    """What must be sent to get from ``row`` to ``values``: drain first, then weight, and only then let traffic in.

    Lazy on purpose: each command is sent before the next is worked out, so a weight that must be refused does not keep a
    drain from happening, and does keep traffic out. Raises CallError(REFUSED).
    """
    admission = values.get(Knob.ADMISSION, DRAIN if row.drained else SERVE)
    if admission not in (SERVE, DRAIN):
        raise CallError(ErrorKind.REFUSED, f"admission {admission!r} is not known; allowed: {SERVE}, {DRAIN}")
    if (admission == DRAIN) != row.drained and row.admin_bits & FORCED_MAINTENANCE:
        raise CallError(ErrorKind.REFUSED, "someone put it into maintenance; changing its admission would end that, so it stays")
    if admission == DRAIN and not row.drained:
        yield f"set server {server} state drain"
    if Knob.WEIGHT in values and (units := units_for(values[Knob.WEIGHT], row.initial_units)) != row.units:
        yield f"set server {server} weight {units}"
    if admission == SERVE and row.drained:
        yield f"set server {server} state ready"


class HaproxyActuator:
    """One HAProxy process, by the path of its stats socket or HOST:PORT. Satisfies ``Actuator``."""

    kind = KIND

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self._address = address
        self._lock = asyncio.Lock()

    def supports(self, knob: Knob) -> Support:
        return Support(True) if knob in (Knob.WEIGHT, Knob.ADMISSION) else Support(False, _WHY_NOT)

    async def read(self, servers: tuple[str, ...], deadline_s: float) -> Mapping[str, ServerState]:
        async with turn(self._lock, self.name, "*", deadline_s) as ends_at, asyncio.timeout_at(ends_at):
            rows, sessions = parse_read(await ask(self._address, "show servers state; show stat -1 4 -1"))
        return {server: rows[server].state(sessions.get(server)) for server in servers if server in rows}

    async def write(self, server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
        async with turn(self._lock, self.name, server, deadline_s) as ends_at, asyncio.timeout_at(ends_at):
            if not is_server_name(server):
                raise CallError(ErrorKind.NOT_FOUND, "not a HAProxy server name; write backend/server, as in llm/a")
            if refused := [knob.value for knob in values if not self.supports(knob).enforceable]:
                raise CallError(ErrorKind.REFUSED, f"{refused[0]}: {_WHY_NOT}")
            row = await self._row(server)
            for command in commands(server, row, values):
                check_success(await ask(self._address, command))

    async def _row(self, server: str) -> ServerRow:
        backend = server.partition("/")[0]
        rows = parse_servers_state(await ask(self._address, f"show servers state {backend}"))
        if server not in rows:
            raise CallError(ErrorKind.NOT_FOUND, f"HAProxy's backend {backend} has no such server; see `show servers state`")
        return rows[server]

    async def close(self) -> None:
        """Nothing is kept open between calls."""


def create(settings: Gateway) -> Actuator:
    """Raises TypeError for another gateway's settings."""
    if not isinstance(settings, HaproxyGateway):
        raise TypeError(f"haproxy cannot be made from {type(settings).__name__}")
    return replicated(settings.name, (settings.socket, *settings.replicas), HaproxyActuator)


def check_success(answer: str) -> None:
    """Of a `set server` command. Raises CallError."""
    if not answer.endswith("\n"):
        raise CallError(ErrorKind.PROTOCOL, "the answer was cut short, so the effect is unknown")
    if answer.strip():
        raise _sorted_error(answer, otherwise=ErrorKind.REFUSED)


async def ask(address: str, command: str) -> str:
    """One command line on a connection of its own; HAProxy closes it after the answer. Raises CallError."""
    reader, writer = await _connect(address)
    try:
        writer.write(command.encode("ascii") + b"\n")
        await writer.drain()
        return await _whole_answer(reader)
    except OSError as error:
        raise CallError(ErrorKind.PROTOCOL, f"the connection broke before the answer ({error.strerror})") from error
    finally:
        # A close would wait for a peer that may never read; all that mattered has been sent and read by now.
        writer.transport.abort()


async def _connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    tcp = _TCP.fullmatch(address)
    try:
        if tcp:
            return await asyncio.open_connection(tcp[1].strip("[]"), int(tcp[2]))
        return await asyncio.open_unix_connection(address)
    except (OSError, ValueError, OverflowError) as error:
        # ValueError and OverflowError are what a path with a NUL, a host name of dots or a port of 99999 give.
        raise CallError(ErrorKind.UNREACHABLE, f"cannot connect to {address}: {excerpt(str(error))}") from error


async def _whole_answer(reader: asyncio.StreamReader) -> str:
    answer = bytearray()
    while chunk := await reader.read(65_536):
        answer += chunk
        if len(answer) > ANSWER_LIMIT_BYTES:
            raise CallError(ErrorKind.PROTOCOL, f"the answer is longer than {ANSWER_LIMIT_BYTES} bytes")
    return answer.decode("utf-8", errors="replace")
