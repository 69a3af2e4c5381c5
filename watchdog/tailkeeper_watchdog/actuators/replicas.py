"""One gateway that runs at several addresses: everything is written to all of them, and read from all of them.

Knows no protocol: it is made of one actuator per address. A state counts as in force only where every replica says so;
else ``ServerState.doubt`` says which replica differs, and of the differing values the one furthest from what was last
written is given, so that whoever compares it with a wish writes again. A replica that fails never keeps the others from
being written or read: a dead standby must not stop a drain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from tailkeeper_watchdog.actuators.calls import turn
from tailkeeper_watchdog.actuators.contract import Actuator, ActuatorError, Doubt, ErrorKind, ServerState, Support
from tailkeeper_watchdog.model import DRAIN, Knob, KnobValue

Answer = ServerState | ActuatorError | None
"""What one replica says of one server: its state, why it could not tell, or that it knows no such server."""

MAX_WRITTEN = 20_000
"""Written values remembered: weight and admission of the largest fleet. Servers come and go; the oldest are forgotten."""

_URGENCY = (
    ErrorKind.UNAUTHORIZED,
    ErrorKind.NOT_FOUND,
    ErrorKind.REFUSED,
    ErrorKind.PROTOCOL,
    ErrorKind.TIMEOUT,
    ErrorKind.UNREACHABLE,
)


def replicated(name: str, addresses: tuple[str, ...], one: Callable[[str, str], Actuator]) -> Actuator:
    """An actuator over ``addresses``, each named once; ``one(name, address)`` makes the actuator of a single address."""
    unique = tuple(dict.fromkeys(addresses))
    if len(unique) == 1:
        return one(name, unique[0])
    named = ((f"{name}#{n}({_shown(address)})", address) for n, address in enumerate(unique, start=1))
    return ReplicatedActuator(name, {label: one(label, address) for label, address in named})


def _shown(address: str) -> str:
    """The address for people, without what may be secret in a URL: user, password and query."""
    parts = urlsplit(address)
    return f"{parts.netloc.rpartition('@')[2]}{parts.path}" if parts.scheme in ("http", "https") else address


@dataclass(slots=True)
class ReplicatedActuator:
    """Satisfies ``Actuator``. ``replicas`` are by their names, which messages carry: `edge#2(/run/haproxy-b.sock)`."""

    name: str
    replicas: Mapping[str, Actuator]
    _written: dict[tuple[str, Knob], KnobValue] = field(default_factory=dict)
    """Last written values, oldest first, only to choose among differing readings."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def kind(self) -> str:
        return next(iter(self.replicas.values())).kind

    def supports(self, knob: Knob) -> Support:
        return next(iter(self.replicas.values())).supports(knob)

    async def read(self, servers: tuple[str, ...], deadline_s: float) -> Mapping[str, ServerState]:
        """Raises ActuatorError only when no replica could be read."""
        async with turn(self._lock, self.name, "*", deadline_s) as ends_at:
            left_s = ends_at - asyncio.get_running_loop().time()
            reads = await asyncio.gather(*(_read(replica, servers, left_s) for replica in self.replicas.values()))
        errors = [read for read in reads if isinstance(read, ActuatorError)]
        if len(errors) == len(reads):
            raise self._failed("*", errors)
        merged: dict[str, ServerState] = {}
        for server in servers:
            answers = [read if isinstance(read, ActuatorError) else read.get(server) for read in reads]
            if any(answer is not None for answer in answers):  # one that could not be asked may well know it
                written = {knob: value for (of, knob), value in self._written.items() if of == server}
                merged[server] = merge(dict(zip(self.replicas, answers, strict=True)), written)
        return merged

    async def write(self, server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
        """One replica after the other, each with an even part of the time left. Raises ActuatorError naming those that failed."""
        clock = asyncio.get_running_loop().time
        errors: list[ActuatorError] = []
        async with turn(self._lock, self.name, server, deadline_s) as ends_at:
            self._note(server, values)
            for left, replica in zip(range(len(self.replicas), 0, -1), self.replicas.values(), strict=True):
                try:
                    await replica.write(server, values, max(0.0, ends_at - clock()) / left)
                except ActuatorError as error:
                    errors.append(error)
        if errors:
            raise self._failed(server, errors)

    def _note(self, server: str, values: Mapping[Knob, KnobValue]) -> None:
        for knob, value in values.items():
            self._written.pop((server, knob), None)
            self._written[server, knob] = value
        while len(self._written) > MAX_WRITTEN:
            del self._written[next(iter(self._written))]

    def _failed(self, server: str, errors: list[ActuatorError]) -> ActuatorError:
        """All that failed in one error. A permanent kind comes first: people must hear of it.

        Where some replicas succeeded it is never UNREACHABLE, which would say that nothing was sent.
        """
        succeeded = len(self.replicas) - len(errors)
        kinds = sorted((error.kind for error in errors), key=_URGENCY.index)
        kind = ErrorKind.PROTOCOL if succeeded and kinds[0] is ErrorKind.UNREACHABLE else kinds[0]
        others = f"; the other {succeeded} succeeded" if succeeded else ""
        words, may_be_done = "; ".join(str(error) for error in errors) + others, any(error.may_be_done for error in errors)
        return ActuatorError(kind, self.name, server, words, may_be_done=may_be_done)

    async def close(self) -> None:
        for replica in self.replicas.values():
            await replica.close()


async def _read(replica: Actuator, servers: tuple[str, ...], deadline_s: float) -> Mapping[str, ServerState] | ActuatorError:
    try:
        return await replica.read(servers, deadline_s)
    except ActuatorError as error:
        return error


def merge(answers: Mapping[str, Answer], written: Mapping[Knob, KnobValue]) -> ServerState:
    """One state from what each replica says of one server; it has no values where none of them has told any."""
    states = {replica: answer for replica, answer in answers.items() if isinstance(answer, ServerState)}
    doubts = [_silence(replica, answer) for replica, answer in answers.items() if not isinstance(answer, ServerState)]
    doubts += [doubt for replica, state in states.items() for doubt in _named(replica, state)]
    values: dict[Knob, KnobValue] = {}
    lowest: dict[Knob, KnobValue] = {}
    for knob in (knob for knob in Knob if any(knob in state.values for state in states.values())):
        said = {replica: state.values.get(knob) for replica, state in states.items()}
        known = [value for value in said.values() if value is not None]
        values[knob] = max(known, key=lambda value: _distance(value, written.get(knob, known[0])))
        if len(set(said.values())) > 1:
            texts = ", ".join(f"{replica} {value}" for replica, value in said.items())
            doubts.append(Doubt(f"{knob.value} differs: {texts}", knob))
            if knob is Knob.WEIGHT:
                lowest[knob] = min(known, key=float)
            elif knob is Knob.ADMISSION:
                lowest[knob] = DRAIN if DRAIN in known else known[0]
    sessions = [state.sessions for state in states.values()]
    total = None if len(states) < len(answers) else _sum(sessions)
    normal = max((s.normal_weight for s in states.values() if s.normal_weight is not None), default=None)
    in_service = all(state.in_service for state in states.values())
    cannot = {knob: f"{replica}: {why}" for replica, state in states.items() for knob, why in state.cannot.items()}
    return ServerState(values, in_service, total, "; ".join(d.text for d in doubts), normal, cannot, lowest, tuple(doubts))


def _named(replica: str, state: ServerState) -> list[Doubt]:
    """The doubts of one replica, each about what it was about."""
    apart = state.doubts or ((Doubt(state.doubt),) if state.doubt else ())
    return [replace(doubt, text=f"{replica}: {doubt.text}") for doubt in apart]


def _silence(replica: str, answer: ActuatorError | None) -> Doubt:
    if answer is None:
        return Doubt(f"{replica} knows no such server", is_absence=True)
    return Doubt(f"{replica} was not read: {answer}")


def _distance(value: KnobValue, wanted: KnobValue) -> float:
    if isinstance(value, str) or isinstance(wanted, str):
        return 0.0 if value == wanted else 1.0
    return abs(value - wanted)


def _sum(counts: list[int | None]) -> int | None:
    """Unknown if any is: a sum with a part missing is too small."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
