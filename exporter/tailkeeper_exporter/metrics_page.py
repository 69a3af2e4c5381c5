"""Our own ``/metrics`` page, from memory, in the dialect that the reader asked for.

Views, GPU snapshot and request ring in, bytes out: no I/O, nothing waits. Only what the catalogue names is emitted, with the
labels that it names. An unknown value is no line. Exemplars and ``# EOF`` are for OpenMetrics only: in the text dialect they
make Prometheus drop the whole page.

The lines are written here and not through prometheus_client's exposition, which needs several times as long (a test parses
them with prometheus_client's strict OpenMetrics parser, and ``promtool check metrics`` reads the text).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from tailkeeper_exporter import catalog
from tailkeeper_exporter.catalog import Kind, Metric
from tailkeeper_exporter.gpu import GpuSnapshot
from tailkeeper_exporter.readings import Histogram
from tailkeeper_exporter.requests_ring import Exemplar, RequestRing
from tailkeeper_exporter.series import Series, bounded, series_of
from tailkeeper_exporter.views import BackendView


class Dialect(Enum):
    """What we can write. The value is the content type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    OPEN_METRICS_OLD = "application/openmetrics-text; version=0.0.1; charset=utf-8"

    @property
    def is_open_metrics(self) -> bool:
        return self is not Dialect.TEXT


MAX_ACCEPT_CHARS = 4_096
"""Prometheus sends about 250 characters; a longer header is read up to here."""


@dataclass(frozen=True, slots=True)
class _Range:
    """One item of an Accept header."""

    media: str
    version: str
    quality: float


def negotiate(accept: str | None) -> Dialect:
    """The dialect for an Accept header. Whatever cannot be served, or understood, gets text."""
    best, best_quality = Dialect.TEXT, 0.0
    for item in _ranges((accept or "")[:MAX_ACCEPT_CHARS]):
        dialect = _dialect(item)
        # Of equals the first counts: that is the order in which Prometheus lists what it prefers.
        if dialect is not None and item.quality > best_quality:
            best, best_quality = dialect, item.quality
    return best


def _dialect(item: _Range) -> Dialect | None:
    if item.media == "application/openmetrics-text":
        return {"": Dialect.OPEN_METRICS, "1.0.0": Dialect.OPEN_METRICS, "0.0.1": Dialect.OPEN_METRICS_OLD}.get(item.version)
    if item.media in ("text/plain", "text/*", "*/*"):
        return Dialect.TEXT
    return None


def _ranges(accept: str) -> Iterator[_Range]:
    for item in accept.split(","):
        media, *parameters = (part.strip().lower() for part in item.split(";"))
        values = dict(part.split("=", 1) for part in parameters if "=" in part)
        try:
            quality = float(values.get("q", "1"))
        except ValueError:
            quality = 0.0
        yield _Range(media, values.get("version", "").strip('"'), quality if 0 <= quality <= 1 else 0.0)


_STAGES = frozenset({catalog.QUEUE_TIME.name, catalog.PREFILL_TIME.name})


class MetricsPage:
    """Writes the page. Remembers only how bucket bounds are spelt. ``own`` are series of the exporter as a whole."""

    def __init__(self, ring: RequestRing, own: Callable[[], Iterable[Series]] = tuple) -> None:
        self._ring = ring
        self._own = own
        self._bounds: dict[tuple[float, ...], tuple[str, ...]] = {}

    def render(self, views: Iterable[BackendView], gpus: GpuSnapshot, now: float, dialect: Dialect) -> bytes:
        """The whole page as things stand at monotonic ``now``."""
        families: dict[str, list[str]] = {metric.name: [] for metric in catalog.CATALOG}
        for view in views:
            exemplars = self._exemplars(view) if dialect.is_open_metrics else {}
            for metric, members in bounded(series_of(view, gpus, now)):
                lines = families[metric.name]
                for series in members:
                    self._write(lines, series, exemplars.get(metric.name, ()))
        for series in self._own():
            self._write(families[series.metric.name], series, ())
        parts = [_head(metric, dialect) + "\n".join(families[metric.name]) for metric in catalog.CATALOG if families[metric.name]]
        if dialect.is_open_metrics:
            parts.append("# EOF")
        return ("\n".join(parts) + "\n").encode()

    def _exemplars(self, view: BackendView) -> dict[str, tuple[Exemplar, ...]]:
        """Of each histogram. A tap's stages are no examples of the engine's: its queue is the tap's own."""
        found = self._ring.exemplars(view.name)
        told = {name for name, _ in view.tap.histograms}
        if view.settings.tap is None:
            return found
        return {name: exemplars for name, exemplars in found.items() if name in told or name not in _STAGES}

    def _write(self, lines: list[str], series: Series, exemplars: tuple[Exemplar, ...]) -> None:
        metric = series.metric
        assert tuple(name for name, _ in series.labels) == metric.label_names, f"{metric.name}: {series.labels}"
        labels = ",".join([f'{name}="{_escaped(value)}"' for name, value in series.labels])
        if not isinstance(series.value, Histogram):
            lines.append(f"{metric.name}{{{labels}}} {series.value!r}")
            return
        histogram = series.value
        start = f'{metric.name}_bucket{{{labels},le="'
        for bound, count in zip(self._spelt(histogram.bounds), histogram.counts, strict=True):
            lines.append(f'{start}{bound}"}} {count!r}')
        if exemplars:
            _attach(lines, histogram, exemplars)
        lines.append(f"{metric.name}_count{{{labels}}} {histogram.count!r}")
        lines.append(f"{metric.name}_sum{{{labels}}} {histogram.sum!r}")

    def _spelt(self, bounds: tuple[float, ...]) -> tuple[str, ...]:
        """``1.0`` and never ``1``: Prometheus 3 writes it so, and one series must not become two."""
        found = self._bounds.get(bounds)
        if found is None:
            found = tuple("+Inf" if bound == float("inf") else repr(float(bound)) for bound in bounds)
            if len(self._bounds) < 256:  # an engine has a handful of bucket layouts
                self._bounds[bounds] = found
        return found


def _head(metric: Metric, dialect: Dialect) -> str:
    family = metric.name
    if dialect.is_open_metrics and metric.kind is Kind.COUNTER:
        family = family.removesuffix("_total")
    text = metric.help.replace("\\", r"\\").replace("\n", r"\n")
    lines = [f"# HELP {family} {text}", f"# TYPE {family} {metric.kind.value}"]
    if dialect.is_open_metrics and family.endswith("_" + metric.unit.value):
        lines.append(f"# UNIT {family} {metric.unit.value}")
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return value


def _attach(lines: list[str], histogram: Histogram, exemplars: tuple[Exemplar, ...]) -> None:
    """Write the newest exemplar of each bucket behind the bucket's line, which are the last lines written."""
    first = len(lines) - len(histogram.bounds)
    taken: set[int] = set()
    for exemplar in exemplars:
        index = next((i for i, bound in enumerate(histogram.bounds) if exemplar.value <= bound), None)
        if index is None or index in taken:
            continue
        # A bucket without an observation cannot have an example of one.
        below = histogram.counts[index - 1] if index else 0.0
        if histogram.counts[index] > below:
            taken.add(index)
            labels = ",".join([f'{name}="{_escaped(value)}"' for name, value in exemplar.labels])
            at = "" if exemplar.at_unix_s is None else f" {exemplar.at_unix_s!r}"
            lines[first + index] += f" # {{{labels}}} {exemplar.value!r}{at}"
