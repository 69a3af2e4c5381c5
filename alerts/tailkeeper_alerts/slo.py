"""What the SLO promises as recorded series: which requests count, which were bad, over which windows. Pure text.

Three promises: requests are answered, the first token comes in time, and the tokens after it do. For each there are, by
backend and window, how many were counted and how many were bad. A late one is *surely* late: it is above the smallest bucket
bound that is not below the SLO, as the watchdog counts it too (``detectors/slo_burn.py``). The other choice, the largest bound
within the SLO, would take 0.7 s for later than 1.2 s where buckets end at 0.64 s and 1.28 s, and page for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailkeeper_alerts.model import RuleSettings
from tailkeeper_alerts.promql import CLUSTER, at_least, bucket, by, count, duration, eq, on, regex, series
from tailkeeper_exporter.catalog import BACKEND, CANARY, ITL, MODEL, OUTCOME, REQUESTS, TTFT, Metric

PLACE = (CLUSTER, BACKEND)
"""What every recorded series of this kind is by, and what alerts are joined on."""
FAILED = regex(OUTCOME, "error|rejected")
COUNTED = regex(OUTCOME, "ok|error|rejected")
"""A request that its client gave up is neither good nor bad."""


@dataclass(frozen=True, slots=True)
class Promise:
    """One of the three. ``signal`` is the alert's label, empty for what is no latency, as in the watchdog's findings.

    ``histogram`` is None where failures are counted. ``what`` is what goes wrong and ``users`` what it is to them, as parts of
    sentences; ``unit`` is what is counted.
    """

    signal: str
    histogram: Metric | None
    limit_s: float
    what: str
    users: str
    unit: str

    @property
    def stem(self) -> str:
        return _stem(self.histogram)

    @property
    def word(self) -> str:
        return "failed" if self.histogram is None else "late"

    @property
    def did(self) -> str:
        """What a bad one did, as a part of a sentence."""
        return "failed" if self.histogram is None else "were late"

    @property
    def total(self) -> str:
        """The recorded counter of late ones, since its engine started."""
        return f"{self.stem}:{self.word}_total"

    def bad(self, window_s: float) -> str:
        return f"{self.stem}:{self.word}_{duration(window_s)}"

    def counted(self, window_s: float) -> str:
        return f"{self.stem}:counted_{duration(window_s)}"

    def ratio(self, window_s: float) -> str:
        return f"{self.stem}:{self.word}_ratio_{duration(window_s)}"

    def burn(self, rule: str) -> str:
        """The recorded condition of an alert: how long the month's budget lasts, or for a trickle the share of bad ones."""
        return f"{self.stem}:burn_{rule}"


def _stem(histogram: Metric | None) -> str:
    return "llm:requests" if histogram is None else f"llm:{histogram.name.removeprefix('llm_')}"


def requests_counted(window_s: float) -> str:
    """How many requests there were, by whoever tells it: the counter of outcomes, or who does without it the first tokens."""
    return " or ".join(f"{_stem(told)}:counted_{duration(window_s)}" for told in (None, TTFT))


def promises(settings: RuleSettings) -> tuple[Promise, ...]:
    ttft, itl = settings.ttft_p99_s, settings.itl_p99_s
    return (
        Promise("", None, 0.0, "requests fail", "get errors instead of answers", "requests"),
        Promise("ttft", TTFT, ttft, "first tokens are late", f"wait longer than {ttft:g} s for the first token", "requests"),
        Promise("itl", ITL, itl, "tokens are slow", f"see answers stall (tokens more than {itl:g} s apart)", "tokens"),
    )


def budget(settings: RuleSettings) -> str:
    """The share of requests that may be bad, as PromQL text: 1 − 0.995 is 0.005 there and not 0.0050000000000000044."""
    return f"{1 - settings.objective:.12g}"


def late_total(promise: Promise) -> str:
    """Late ones as a counter, one for each scraped series: it must fall with its engine's restart and with nothing else.

    Where only +Inf lies beyond the SLO nobody can tell, and none are late.
    """
    assert promise.histogram is not None
    in_time = f"min without (le) ({bucket(promise.histogram, at_least(promise.limit_s))})"
    return f"{count(promise.histogram)} - {in_time}"


def bad_in(promise: Promise, window_s: float) -> str:
    """How many were bad within a window, by backend."""
    return _risen(promise, promise.total if promise.histogram else series(REQUESTS, FAILED), window_s)


def counted_in(promise: Promise, window_s: float) -> str:
    """How many count within a window, by backend. Where nobody tells which requests were answered, none are counted."""
    if promise.histogram is not None:
        return _risen(promise, count(promise.histogram), window_s)
    answered = by("max", PLACE, series(REQUESTS, eq(OUTCOME, "ok")))
    return f"{_risen(promise, series(REQUESTS, COUNTED), window_s)}\nand {on(*PLACE)} {answered}"


def _risen(promise: Promise, counter: str, window_s: float) -> str:
    """Two exporters of one backend tell the same twice: the larger counts. Models and outcomes add up."""
    told = (*PLACE, MODEL) if promise.histogram is not None else (*PLACE, MODEL, OUTCOME, CANARY)
    return by("sum", PLACE, by("max", told, f"increase({counter}[{duration(window_s)}])"))
