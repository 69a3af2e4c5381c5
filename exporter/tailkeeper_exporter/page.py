"""What a metrics page is once it is read: samples, and the reasons for which pages, samples and readings are not used.

Pure types, without the parser. ``Reason`` is the one list of reasons, those of the fetch and of the normaliser too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tailkeeper_exporter.catalog import Kind

MAX_BYTES = 8 * 1024 * 1024
"""A hundred times the page of vLLM 0.32; larger ones came from a configuration dumped into a label."""
MAX_LINE_CHARS = 64 * 1024
MAX_LINES = 200_000

Labels = tuple[tuple[str, str], ...]


class Reason(StrEnum):
    """Why a page, a sample or a reading was not used: label value of ``tailkeeper_exporter_invalid_samples_total``.

    The first group is for the fetch, the second refuses a whole page, the third costs one line, the fourth one reading.
    """

    TIMEOUT = "timeout"
    REFUSED = "refused"
    HTTP_STATUS = "http_status"
    REDIRECT_LOOP = "redirect_loop"
    CONNECTION = "connection"
    TLS = "tls"

    TOO_LARGE = "too_large"
    EMPTY = "empty"
    NOT_EXPOSITION = "not_exposition"
    TRUNCATED = "truncated"
    TOO_MANY_SERIES = "too_many_series"

    LINE_TOO_LONG = "line_too_long"
    MALFORMED = "malformed"
    NON_FINITE = "non_finite"
    NEGATIVE = "negative"
    DUPLICATE = "duplicate"

    OUT_OF_RANGE = "out_of_range"
    INCOMPLETE = "incomplete"
    NOT_MONOTONE = "not_monotone"
    COUNT_MISMATCH = "count_mismatch"
    BOUNDS_DIFFER = "bounds_differ"
    IMPLAUSIBLE = "implausible"

    @property
    def sentence(self) -> str:
        """The reason for people."""
        return _SENTENCES[self]


_SENTENCES: dict[Reason, str] = {
    Reason.TIMEOUT: "the page was not complete before the deadline",
    Reason.REFUSED: "nothing listens at the address",
    Reason.HTTP_STATUS: "the server answered with a status other than 200",
    Reason.REDIRECT_LOOP: "the server redirected too often, or elsewhere",
    Reason.CONNECTION: "the connection failed before the page was complete",
    Reason.TLS: "the server and we could not agree on TLS: a certificate, a name or an authority",
    Reason.TOO_LARGE: f"the page is larger than {MAX_BYTES} bytes",
    Reason.EMPTY: "the page has no samples",
    Reason.NOT_EXPOSITION: "the body is not a metrics page",
    Reason.TRUNCATED: "the page ends in the middle of a line",
    Reason.TOO_MANY_SERIES: f"there are more than {MAX_LINES} lines, or more series than are tracked",
    Reason.LINE_TOO_LONG: f"the line is longer than {MAX_LINE_CHARS} characters",
    Reason.MALFORMED: "the line is not a sample",
    Reason.NON_FINITE: "the value is NaN or infinite",
    Reason.NEGATIVE: "a counter or a bucket is below zero",
    Reason.DUPLICATE: "the series was on the page before; the first one counts",
    Reason.OUT_OF_RANGE: "the value is impossible for this metric",
    Reason.INCOMPLETE: "the histogram lacks its sum or its +Inf bucket",
    Reason.NOT_MONOTONE: "the buckets do not rise with their bounds",
    Reason.COUNT_MISMATCH: "the count is not that of the +Inf bucket",
    Reason.BOUNDS_DIFFER: "series to be merged have different bucket bounds",
    Reason.IMPLAUSIBLE: "the latencies since the last page are impossibly long or negative",
}


class PageError(Exception):
    """A page that gave nothing. ``reason`` is the bounded label value, ``detail`` is for people."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason.sentence}: {detail}" if detail else reason.sentence)
        self.reason = reason
        self.detail = detail


class Part(StrEnum):
    """What of a metric a sample is."""

    VALUE = "value"
    BUCKET = "bucket"
    SUM = "sum"
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class SeriesKey:
    """One series. ``name`` is canonical and without a histogram's suffix; ``labels`` are sorted and without ``le``."""

    name: str
    labels: Labels = ()
    kind: Kind = Kind.GAUGE
    part: Part = Part.VALUE
    le: float | None = None
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        # Keys live for thousands of pages and are looked up on each; hashing nested tuples every time would cost more
        # than all the rest.
        object.__setattr__(self, "_hash", hash((self.name, self.labels, self.part, self.le)))

    def __hash__(self) -> int:
        return self._hash

    def label(self, name: str) -> str:
        """The label's value; empty where there is none, as Prometheus has it."""
        for key, value in self.labels:
            if key == name:
                return value
        return ""


@dataclass(frozen=True, slots=True)
class Page:
    """What a page offered of what was wanted.

    ``dropped`` are wanted series that were there with an impossible value: not absent, and not to be summed without.
    ``series`` counts all sample lines of the page, wanted or not.
    """

    samples: tuple[tuple[SeriesKey, float], ...]
    problems: Mapping[Reason, int]
    dropped: tuple[tuple[SeriesKey, Reason], ...]
    series: int

    @property
    def offered(self) -> frozenset[str]:
        """Canonical names of the wanted metrics that the page has, valid or not."""
        return frozenset([key.name for key, _ in self.samples] + [key.name for key, _ in self.dropped])
