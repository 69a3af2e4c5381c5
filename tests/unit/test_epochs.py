"""When one life of an engine ends and another begins."""

from __future__ import annotations

import pytest

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.model import BackendObservation, Epoch
from tailkeeper_watchdog.scoring.epochs import RESTARTED, follow


def seen(state: State, *models: str) -> BackendObservation:
    return BackendObservation("a", state, 0.0, models=frozenset(models))


def lives(*observations: BackendObservation) -> Epoch:
    epoch: Epoch | None = None
    for now, observation in enumerate(observations):
        epoch = follow(epoch, observation, float(now))
    assert epoch is not None
    return epoch


SERVING, BUSY, DOWN, STARTING, HUNG = State.SERVING, State.BUSY, State.DOWN, State.STARTING, State.HUNG


@pytest.mark.parametrize(
    ("states", "number", "why"),
    [
        ((SERVING, BUSY, SERVING), 0, "it serves on"),
        ((SERVING, HUNG, SERVING), 0, "what hung and came to itself is the same process"),
        ((SERVING, State.MISCONFIGURED, SERVING), 0, "a refused probe is no restart"),
        ((SERVING, DOWN, DOWN), 0, "down, and not back yet"),
        ((SERVING, DOWN, STARTING, SERVING), 1, "one restart is one, however it looked on the way"),
        ((SERVING, HUNG, STARTING, BUSY), 1, "a hung engine that was restarted"),
        ((STARTING, SERVING), 1, "it was starting when we came: nothing known from before fits it"),
        ((SERVING, DOWN, SERVING, DOWN, SERVING), 2, "two restarts"),
    ],
)
def test_a_restart_is_a_new_epoch(states: tuple[State, ...], number: int, why: str) -> None:
    epoch = lives(*(seen(state, "m") for state in states))
    assert epoch.number == number, why
    assert epoch.why == (RESTARTED if number else "first seen")


@pytest.mark.parametrize(
    ("models", "number"),
    [
        ((("m",), (), ("m",)), 0),
        (((), ("m",)), 0),
        ((("m",), ("m", "adapter"), ("adapter",)), 0),
        ((("m",), ("other",)), 1),
        ((("m",), (), ("other",)), 1),
    ],
)
def test_another_model_is_a_new_epoch_and_one_more_is_not(models: tuple[tuple[str, ...], ...], number: int) -> None:
    assert lives(*(seen(SERVING, *names) for names in models)).number == number


def test_while_nothing_changes_it_is_the_very_same_object() -> None:
    epoch = follow(None, seen(SERVING, "m"), 1.0)
    assert follow(epoch, seen(BUSY, "m"), 2.0) is epoch
