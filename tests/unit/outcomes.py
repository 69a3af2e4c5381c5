"""For properties of functions that may refuse: the value or the error, so that the property can speak about both."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tailkeeper_watchdog.actuators.calls import CallError

T = TypeVar("T")


def outcome(call: Callable[[], T]) -> T | CallError:
    """What ``call`` gives, or its CallError. Any other exception fails the test."""
    try:
        return call()
    except CallError as error:
        return error
