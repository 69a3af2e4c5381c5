"""What can be turned at a tap, as one small document: the gateway side of the tap. Pure.

The document is that of the webhook contract, so that one actuator speaks to both; ``weight`` is always 1, because a tap
stands before one backend and has nobody to send traffic to instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

SERVE, DRAIN = "serve", "drain"
CACHE_OFF, CACHE_LOCAL = "off", "local"
MAX_CONCURRENCY = 100_000


class Degrade(IntEnum):
    """Which classes of requests (``x-priority``) are refused, so that the others are served well."""

    NOTHING = 0
    LOW = 1
    """Low is refused."""
    NORMAL = 2
    """Only high is served."""
    ALL = 3


@dataclass(frozen=True, slots=True)
class Knobs:
    """The settings in force. ``concurrency_limit`` None is unlimited."""

    admission: str = SERVE
    concurrency_limit: int | None = None
    cache_mode: str = CACHE_OFF
    degrade_level: Degrade = Degrade.NOTHING

    def document(self) -> dict[str, object]:
        """As the webhook contract writes it. 0 stands for no concurrency limit."""
        return {
            "weight": 1.0,
            "admission": self.admission,
            "concurrency_limit": self.concurrency_limit or 0,
            "cache_mode": self.cache_mode,
            "degrade_level": int(self.degrade_level),
        }


class KnobError(ValueError):
    """The document asks for what a tap cannot do. The message names the field, the value and what is allowed."""


def knobs_of(document: object) -> Knobs:
    """The knobs in a document; a field that is left out has its default. Raises KnobError."""
    if not isinstance(document, dict):
        raise KnobError(f"a JSON object is needed, not {type(document).__name__}")
    unknown = sorted(set(document) - set(Knobs().document()))
    if unknown:
        raise KnobError(f"{unknown[0][:64]}: unknown; allowed: {', '.join(Knobs().document())}")
    if document.get("weight", 1) != 1:
        raise KnobError("weight: a tap has one backend and nobody to send traffic to instead; only 1 is allowed")
    return Knobs(
        _one_of(document, "admission", (SERVE, DRAIN)),
        _whole(document, "concurrency_limit", MAX_CONCURRENCY) or None,
        _one_of(document, "cache_mode", (CACHE_OFF, CACHE_LOCAL)),
        Degrade(_whole(document, "degrade_level", max(Degrade))),
    )


def _one_of(document: dict[object, object], name: str, allowed: tuple[str, ...]) -> str:
    value = document.get(name, allowed[0])
    if value not in allowed:
        raise KnobError(f"{name}: {str(value)[:64]!r}; allowed: {', '.join(allowed)}")
    return str(value)


def _whole(document: dict[object, object], name: str, most: int) -> int:
    value = document.get(name, 0)
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= most
    if not number or value != int(value):  # type: ignore[call-overload]
        raise KnobError(f"{name}: {str(value)[:64]!r}; allowed: a whole number from 0 to {most}")
    return int(value)  # type: ignore[call-overload,no-any-return]
