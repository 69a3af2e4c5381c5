"""Wishes that came to nothing, as lines of the decision log: only observed or advised, or refused by a guard.

Each is written down when it changes, and not again while it is merely still so.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from tailkeeper_watchdog.decision_log import DecisionLog
from tailkeeper_watchdog.guards import takes_out
from tailkeeper_watchdog.ledger import Ledger, LedgerError
from tailkeeper_watchdog.model import Decision, DesiredState, Knob, Mode, Outcome, Verdict
from tailkeeper_watchdog.resolve import strictest

MAX_UNACTED_NOTED = 200
"""Lines of the decision log for what was not done, a tick; the others are noted at the next ticks, if they are still so."""
_MOVES = frozenset({Knob.CONCURRENCY_LIMIT, Knob.BATCH_WINDOW_S, Knob.ANNOTATION})

_Line = tuple[DesiredState, Outcome, str, str]
"""The wish, what became of it, why, and the guard's name or nothing."""


def note_unacted(
    ledger: Ledger, log: DecisionLog, tick: int, desired: tuple[DesiredState, ...], verdicts: tuple[Verdict, ...]
) -> tuple[Decision, ...]:
    """The lines that were written, in one transaction of ``ledger``. Raises LedgerError; all is said again after that."""
    try:
        with ledger.together():
            noted = (
                log.note(
                    tick, wish.policy, wish.backend, wish.knob, None, wish.value, outcome, reason, code=f"{guard}|{_gist(wish)}"
                )
                for wish, outcome, reason, guard in _lines(desired, verdicts)
            )
            written = tuple(islice((decision for decision in noted if decision is not None), MAX_UNACTED_NOTED))
    except LedgerError:
        log.forget_all()
        raise
    log.forget_old()
    return written


def _lines(desired: tuple[DesiredState, ...], verdicts: tuple[Verdict, ...]) -> Iterator[_Line]:
    for verdict in verdicts:
        if verdict.refusal is not None:
            reason = f"{verdict.refusal.value} ({verdict.detail}); wanted because {verdict.desired.reason}"
            yield verdict.desired, Outcome.REFUSED, reason, verdict.refusal.name
    for wish in strictest(wish for wish in desired if wish.mode is not Mode.ENFORCE):
        yield wish, Outcome.OBSERVED if wish.mode is Mode.OBSERVE else Outcome.ADVISED, wish.reason, ""


def _gist(wish: DesiredState) -> str:
    """What makes a wish the same one in the log. A weight or a limit that moves a little every tick is one wish, not many."""
    if wish.knob is Knob.WEIGHT:
        return "most of it" if takes_out(wish) else "a part of it"
    return "" if wish.knob in _MOVES else str(wish.value)
