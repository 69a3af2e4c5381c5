"""PromQL text from catalogue objects, so that no rule and no panel retypes a metric name or invents a label.

Boards use this file too. Pure text in, text out; a label that a metric does not have is refused when the text is made,
which is earlier than an empty panel at three in the morning. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from tailkeeper_exporter.catalog import Kind, Label, Metric

LE = Label("le", 64, "upper bound of a histogram bucket")
CLUSTER = Label("cluster", 64, "where several clusters send their series to one server: which; else absent")
"""Not ours: Prometheus' `external_labels` or a store before it add it. So every series may have it, and whoever groups by it
loses nothing where it is absent, because an absent label is an empty one."""
JOB = Label("job", 64, "the scrape job, set by Prometheus")
INSTANCE = Label("instance", 2_000, "the scraped address, set by Prometheus")


@dataclass(frozen=True, slots=True)
class Matcher:
    """One label matcher. ``value`` is the value itself; quoting for PromQL happens in ``text``."""

    label: Label
    operator: str
    value: str

    @property
    def text(self) -> str:
        return f"{self.label.name}{self.operator}{quoted(self.value)}"


def quoted(value: str) -> str:
    """A PromQL string: backslash, quote and line break escaped, all else (``$backend`` too) as it is."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def eq(label: Label, value: str) -> Matcher:
    return Matcher(label, "=", value)


def regex(label: Label, value: str) -> Matcher:
    return Matcher(label, "=~", value)


def not_regex(label: Label, value: str) -> Matcher:
    return Matcher(label, "!~", value)


def _selector(metric: Metric, suffix: str, extra: tuple[str, ...], matchers: tuple[Matcher, ...]) -> str:
    allowed = (*metric.label_names, *extra, CLUSTER.name)
    for matcher in matchers:
        if matcher.label.name not in allowed:
            raise ValueError(f"{metric.name}: no label {matcher.label.name!r}; it has {', '.join(allowed) or 'none'}")
    inside = ",".join(matcher.text for matcher in matchers)
    return f"{metric.name}{suffix}{{{inside}}}" if inside else f"{metric.name}{suffix}"


def series(metric: Metric, *matchers: Matcher) -> str:
    """A gauge's or counter's selector. Raises ValueError for a histogram or for a label the metric does not have."""
    if metric.kind is Kind.HISTOGRAM:
        raise ValueError(f"{metric.name}: a histogram is read by bucket() and count()")
    return _selector(metric, "", (), matchers)


def bucket(metric: Metric, *matchers: Matcher) -> str:
    """A histogram's cumulative bucket series. Raises ValueError for another kind or an unknown label."""
    _only_histogram(metric)
    return _selector(metric, "_bucket", (LE.name,), matchers)


def count(metric: Metric, *matchers: Matcher) -> str:
    """A histogram's count series. Raises ValueError for another kind or an unknown label."""
    _only_histogram(metric)
    return _selector(metric, "_count", (), matchers)


def total(metric: Metric, *matchers: Matcher) -> str:
    """A histogram's sum series, in its own unit. Raises ValueError for another kind or an unknown label."""
    _only_histogram(metric)
    return _selector(metric, "_sum", (), matchers)


def _only_histogram(metric: Metric) -> None:
    if metric.kind is not Kind.HISTOGRAM:
        raise ValueError(f"{metric.name}: is a {metric.kind}, not a histogram")


def by(operator: str, labels: tuple[Label, ...], expression: str, parameter: str = "") -> str:
    """``operator by (labels) (parameter, expression)``."""
    names = ", ".join(label.name for label in labels)
    inside = f"{parameter}, {expression}" if parameter else expression
    return f"{operator} by ({names}) ({inside})"


def quantile(q: float, metric: Metric, labels: tuple[Label, ...], window: str, *matchers: Matcher) -> str:
    """A quantile over ``window``, and nothing at all where nothing was observed: flat buckets would give NaN."""
    rate = f"rate({bucket(metric, *matchers)}[{window}])"
    seen = by("sum", labels, f"rate({count(metric, *matchers)}[{window}])")
    return f"histogram_quantile({q:g}, {by('sum', (*labels, LE), rate)}) and {seen} > 0"


def on(*labels: Label) -> str:
    """How two sides are matched: ``on (labels)``. Both sides must have been aggregated to these labels."""
    return f"on ({', '.join(label.name for label in labels)})"


def duration(seconds: float) -> str:
    """A window as PromQL writes it, in the largest unit that leaves a whole number: 5m, 6h, 3d."""
    unit, size = next((unit, size) for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)) if seconds % size == 0)
    return f"{seconds / size:.0f}{unit}"


def at_most(bound: float) -> Matcher:
    """The buckets whose upper bound is at most ``bound`` (seconds, at least 0.0001), however the bound is spelt.

    Engines have their own bounds, so a fixed ``le="1.2"`` would find nothing on most of them; and Prometheus 3 spells
    a whole number ``1.0`` where Prometheus 2 wrote ``1``. The largest of these buckets counts the requests that were
    surely within ``bound``. Raises ValueError for a bound that is no latency.
    """
    below, exactly = _patterns(bound)
    return regex(LE, "|".join([*below, *exactly, _TINY]))


def at_least(bound: float) -> Matcher:
    """The other buckets, and the one that ends at ``bound`` itself: the smallest of them counts all but the requests that
    were surely later than ``bound``. +Inf is among them. Raises ValueError for a bound that is no latency."""
    below, _ = _patterns(bound)
    return not_regex(LE, "|".join([*below, _TINY]))


_TINY = "[0-9.]+e-[0-9]+"
"""Below any bound that is allowed: Go writes what is smaller than 0.0001 this way."""


def _patterns(bound: float) -> tuple[list[str], list[str]]:
    """Regular expressions for all numbers below ``bound`` but the tiny ones, and for those of ``bound`` itself."""
    if not 0.0001 <= bound < 1e15:
        raise ValueError(f"bound: {bound:g} s is outside 0.0001 s to 1e15 s")
    # Decimal of the shortest spelling: formatting the float itself would turn 8192.14 into 8192.139999999999.
    whole, _, fraction = f"{Decimal(repr(float(bound))):f}".partition(".")
    fraction = fraction.rstrip("0")
    exactly = f"{whole}[.]{fraction}0*"
    below = [*_smaller_wholes(whole), *_smaller_fractions(whole, fraction)]
    return below, [exactly] if fraction else [whole, exactly]


def _smaller_wholes(whole: str) -> list[str]:
    """Patterns for every number whose whole part is below ``whole``, without leading zeros."""
    shorter = [f"[0-9]{{1,{len(whole) - 1}}}([.][0-9]+)?"] if len(whole) > 1 else []
    lowest = [1 if i == 0 and len(whole) > 1 else 0 for i in range(len(whole))]
    return shorter + [
        f"{whole[:i]}{_below(low, digit)}{'[0-9]' * (len(whole) - i - 1)}([.][0-9]+)?"
        for i, (low, digit) in enumerate(zip(lowest, whole, strict=True))
        if int(digit) > low
    ]


def _smaller_fractions(whole: str, fraction: str) -> list[str]:
    """Patterns for ``whole`` with a smaller fraction than ``fraction``, which has no trailing zeros."""
    smaller = [f"{whole}[.]{fraction[:i]}{_below(0, digit)}[0-9]*" for i, digit in enumerate(fraction) if digit != "0"]
    prefixes = [f"{whole}[.]{fraction[:i]}" for i in range(1, len(fraction))]
    return [whole, *smaller, *prefixes] if fraction else []


def _below(low: int, digit: str) -> str:
    high = int(digit) - 1
    return str(low) if low == high else f"[{low}-{high}]"
