"""What every actuator must promise. The shared contract suite (tests/contract) holds each of them to it.

* ``read`` tells what is in force now, asked from the gateway itself, never remembered.
* ``write`` is idempotent and returns only when the gateway took the command; it never says whether the effect is
  there: the reconciler reads back.
* Both keep to the deadline they are given, whatever the other side does, and raise only ``ActuatorError``.
* One call at a time per gateway: the actuator serialises its own.
* What cannot be done is said beforehand by ``supports``, in words for people, and never silently skipped.

A weight is a share of the weight that the gateway's own configuration gives the server: 1.0 is normal, 0.18 is 18 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from tailkeeper_watchdog.model import EMPTY, Knob, KnobValue


class ErrorKind(StrEnum):
    """What went wrong, sorted by what the reconciler may do next."""

    UNREACHABLE = "unreachable"  # nothing was sent: repeat at the next tick
    TIMEOUT = "timeout"  # the effect is unknown: read before anything else
    REFUSED = "refused"  # the gateway said no: repeating will not help
    UNAUTHORIZED = "unauthorized"  # our credential is wrong: tell people
    NOT_FOUND = "not_found"  # the server is not known there: a configuration error
    PROTOCOL = "protocol"  # an answer that cannot be read: the effect is unknown


class ActuatorError(Exception):
    """The one exception of an actuator. Carries what was asked of whom; never a credential."""

    def __init__(self, kind: ErrorKind, gateway: str, server: str, message: str, *, may_be_done: bool | None = None) -> None:
        """``may_be_done`` is what the kind says of it unless given, as by whoever makes one error of several."""
        super().__init__(f"{gateway}/{server}: {message}")
        self.kind = kind
        self.gateway = gateway
        self.server = server
        self.may_be_done = kind in (ErrorKind.TIMEOUT, ErrorKind.PROTOCOL) if may_be_done is None else may_be_done
        """Of a write: whether the gateway may have it and do it yet, because it has not said what became of it."""

    @property
    def retryable(self) -> bool:
        return self.kind in (ErrorKind.UNREACHABLE, ErrorKind.TIMEOUT, ErrorKind.PROTOCOL)


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a knob can be turned here; ``why_not`` is a sentence for people."""

    enforceable: bool
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Doubt:
    """One reason of a state's doubt: about one knob, or about the server. ``is_absence``: a replica does not know the server."""

    text: str
    knob: Knob | None = None
    is_absence: bool = False


@dataclass(frozen=True, slots=True)
class ServerState:
    """What a gateway says of one server.

    ``in_service`` is False where the gateway itself, or someone else, keeps traffic away (health check down,
    maintenance): such a removal counts against the cap. ``sessions`` is the number of requests in flight, if told.
    A knob that is absent from ``values`` is not known. ``doubt`` is a sentence for people, empty where all is well: part
    of this could not be read, or replicas disagree, so it is not in force everywhere and never counts as confirmed.
    ``normal_weight`` is the weight that the gateway's own configuration gives, on the scale of ``values``; None where the
    gateway does not tell it. ``cannot`` holds the knobs that this kind of gateway has and this server turned out not to have,
    each with a sentence for people: what was found out at run time beats ``supports``.
    """

    values: Mapping[Knob, KnobValue]
    in_service: bool = True
    sessions: int | None = None
    doubt: str = ""
    normal_weight: float | None = None
    cannot: Mapping[Knob, str] = field(default_factory=lambda: EMPTY)
    lowest: Mapping[Knob, KnobValue] = field(default_factory=lambda: EMPTY)
    """Weight and admission at the replica that gives the server least, where replicas differ: it counts for every cap."""
    doubts: tuple[Doubt, ...] = ()
    """What ``doubt`` says, taken apart; empty where it is one reason about the whole server."""

    def least(self, knob: Knob) -> KnobValue | None:
        """What the server has at least of weight or admission, at whichever replica."""
        return self.lowest.get(knob, self.values.get(knob))

    def doubt_of(self, knob: Knob, *, giving_back: bool) -> str:
        """What is doubtful about one knob. Where a replica does not know the server there is nothing to give back, and much to
        doubt while something is wanted of it: it may have it under another name."""
        if not self.doubts:
            return self.doubt
        return "; ".join(d.text for d in self.doubts if d.knob in (None, knob) and not (giving_back and d.is_absence))


class Actuator(Protocol):
    """One gateway. Create it with its settings; it opens connections only when called."""

    @property
    def name(self) -> str:
        """The gateway's name in the configuration."""
        ...

    @property
    def kind(self) -> str: ...

    def supports(self, knob: Knob) -> Support:
        """What this kind of gateway can do, without asking it."""
        ...

    async def read(self, servers: tuple[str, ...], deadline_s: float) -> Mapping[str, ServerState]:
        """The state of each of ``servers``; those that the gateway does not know are left out.

        Raises ActuatorError when nothing could be read.
        """
        ...

    async def write(self, server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
        """Make ``values`` so, in an order that never lets traffic in before its weight is set.

        Raises ActuatorError. Of whatever kind it is, a part of ``values`` may have been written before (a drain is never
        held back by a weight that must be refused): read before the change is given up.
        """
        ...

    async def close(self) -> None: ...
