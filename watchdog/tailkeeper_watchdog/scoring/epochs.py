"""When the life of an engine ends and another one begins. Pure.

The exporter's counters do not fall when an engine restarts, so a restart shows in the state: an engine that was down or
starting and takes work again is another process. One that restarts between two looks is not noticed. A backend that was
hung and came to itself is the same process. A page on which none of the models is left that were there is another life as
well; one that names none for a while, or one model more, is not.
"""

from __future__ import annotations

from dataclasses import replace

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.model import BackendObservation, Epoch

RESTARTED = "the engine was restarted"
_ENDED = (State.DOWN, State.STARTING)


def follow(epoch: Epoch | None, seen: BackendObservation, now: float) -> Epoch:
    """The epoch after a fresh observation; the very same object while nothing changes. ``now`` is monotonic seconds."""
    if epoch is None:
        return Epoch(0, now, seen.models, ended=seen.state in _ENDED)
    models = seen.models or epoch.models
    if epoch.models and epoch.models.isdisjoint(models):
        return Epoch(epoch.number + 1, now, models, f"the model is {', '.join(sorted(models))} now", epoch.ended)
    if seen.state in _ENDED and not epoch.ended:
        return replace(epoch, models=models, ended=True)
    if epoch.ended and seen.state.takes_work:
        return Epoch(epoch.number + 1, now, models, RESTARTED)
    return epoch if models == epoch.models else replace(epoch, models=models)
