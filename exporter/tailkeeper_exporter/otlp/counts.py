"""What became of spans and logs, counted, as series of our own page. Every outcome is there at 0 from the start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import StrEnum

from tailkeeper_exporter import catalog
from tailkeeper_exporter.series import Series


class Outcome(StrEnum):
    """Label value of ``tailkeeper_exporter_otlp_spans_total``; a span has several, one for each thing that became of it.

    The first group is of spans that were received and what was read of them, the second of the sender.
    """

    RECEIVED = "received"
    RECORDED = "recorded"
    DUPLICATE = "duplicate"
    OTHER = "not_a_request"
    UNMATCHED = "unmatched"
    AMBIGUOUS = "ambiguous"
    LIMITED = "over_limit"
    IMPLAUSIBLE = "implausible_time"

    OFFERED = "offered"
    SENT = "sent"
    DROPPED = "dropped"
    REFUSED = "refused"


SENDER = (Outcome.OFFERED, Outcome.SENT, Outcome.DROPPED, Outcome.REFUSED)
"""Those that log records have too."""


class Counts:
    """Written in the event loop only."""

    def __init__(self) -> None:
        self.spans: Counter[Outcome] = Counter()
        self.logs: Counter[Outcome] = Counter()

    def series(self) -> Iterator[Series]:
        """For the page. They are of this exporter and not of one backend, so they carry no ``backend``."""
        for outcome in Outcome:
            yield Series(catalog.OTLP_SPANS, (("outcome", outcome.value),), float(self.spans[outcome]))
        for outcome in SENDER:
            yield Series(catalog.OTLP_LOGS, (("outcome", outcome.value),), float(self.logs[outcome]))
