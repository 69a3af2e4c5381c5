"""Counters and histograms that do not fall when an engine or one of its ranks restarts.

``CounterMemory`` holds, per published series, an offset for each of its source series: published is the sum of offset
plus raw value. A raw value below the last one, or a new process start time, adds the last raw value to the offset, so a
restart loses nothing. First sight publishes the engine's own value. A counter is a vector of one number; a histogram is
one of its cumulative bucket counts and its sum. Pure: time is passed in, nothing is logged.

Bounded: ``MAX_PARTS`` source series, ``catalog.MODEL.bound`` models; what was not seen for ``FORGET_AFTER_S`` is dropped
and its last value kept as one number, so that the total still does not fall.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tailkeeper_exporter import catalog
from tailkeeper_exporter.exposition import Labels, SeriesKey

FORGET_AFTER_S = 3_600.0
MAX_PARTS = 20_000
"""As many as the parser remembers for one backend."""
MAX_MODEL_CHARS = 256
_PRUNE_EVERY_S = 60.0
_SAME_START_S = 2.0
"""Start times derived from a boot time move by a clock tick; no engine starts in two seconds."""

Output = tuple[str, Labels]
"""Catalogue name and labels of a published series."""
Vector = tuple[float, ...]
Shape = tuple[float, ...]
"""Bucket bounds; empty for a counter."""


@dataclass(slots=True)
class _Part:
    """One source series of a published one."""

    shape: Shape
    offset: Vector
    last: Vector
    epoch: int
    seen_s: float
    scale: float


@dataclass(slots=True)
class _Total:
    """One published series. ``floor`` keeps a counter from falling where one source is taken off another."""

    parts: dict[SeriesKey, _Part] = field(default_factory=dict)
    retired: dict[Shape, Vector] = field(default_factory=dict)
    floor: float = 0.0


class CounterMemory:
    """What must be remembered of one backend from one page to the next. Owned by the task that scrapes it."""

    def __init__(self) -> None:
        self._totals: dict[Output, _Total] = {}
        self._models: dict[str, float] = {}
        self._part_count = 0
        self._epoch = 0
        self._started_unix_s: float | None = None
        self._pruned_s: float | None = None
        self.resets = 0
        """Restarts seen: raw values that fell, and new process start times."""

    def note_start(self, started_unix_s: float | None) -> None:
        """Take the process start time on the page; another than before means that every raw value began anew."""
        if started_unix_s is None:
            return
        if self._started_unix_s is not None and abs(started_unix_s - self._started_unix_s) > _SAME_START_S:
            self._epoch += 1
            self.resets += 1
        self._started_unix_s = started_unix_s

    def model(self, name: str, now: float) -> str:
        """The model's label value: ``other`` once as many names as the catalogue allows are known."""
        name = name[:MAX_MODEL_CHARS]
        if name not in self._models and len(self._models) >= catalog.MODEL.bound:
            return catalog.OTHER
        self._models[name] = now
        return name

    def advance(
        self,
        output: Output,
        series: SeriesKey,
        raw: Vector,
        now: float,
        *,
        shape: Shape = (),
        scale: float = 1.0,
        implausible: Callable[[Vector], bool] | None = None,
    ) -> bool | None:
        """Take a raw value into a published series.

        True when it was counted, False when the growth since the last page was implausible and left out, None when no
        more source series can be tracked. A vector's last element is exempt from the test for a restart where there is
        a shape: it is the sum of a histogram, which a clock error can lower.
        """
        total = self._totals.setdefault(output, _Total())
        part = total.parts.get(series)
        if part is None or part.shape != shape:
            if part is None and self._part_count >= MAX_PARTS:
                return None
            self._part_count += part is None
            zeros = (0.0,) * len(raw)
            part = total.parts[series] = _Part(shape, zeros, zeros, self._epoch, now, scale)
        self._take_restart(part, raw)
        growth = _minus(raw, part.last)
        plausible = implausible is None or not implausible(growth)
        if not plausible:
            part.offset = _minus(part.offset, growth)
        part.last, part.seen_s = raw, now
        return plausible

    def _take_restart(self, part: _Part, raw: Vector) -> None:
        counts = len(raw) - 1 if part.shape else len(raw)
        fell = any(new < old for new, old in zip(raw[:counts], part.last[:counts], strict=True))
        if fell and part.epoch == self._epoch:
            self.resets += 1
        if fell or part.epoch != self._epoch:
            part.offset = _plus(part.offset, part.last)
            part.last = (0.0,) * len(raw)
            part.epoch = self._epoch

    def total(self, output: Output, shape: Shape = ()) -> Vector:
        """What is published: all source series ever seen of it, those missing from the page with their last value."""
        total = self._totals.get(output) or _Total()
        result = total.retired.get(shape, (0.0,) * (len(shape) + 1))
        for part in total.parts.values():
            if part.shape == shape:
                result = _plus(result, _published(part))
        return result

    def counter(self, output: Output) -> float:
        """A counter's published value; never below what it was."""
        total = self._totals.setdefault(output, _Total())
        total.floor = max(total.floor, self.total(output)[0])
        return total.floor

    def prune(self, now: float) -> None:
        """Forget what was not seen for an hour. Cheap to call on every page."""
        if self._pruned_s is not None and now - self._pruned_s < _PRUNE_EVERY_S:
            return
        self._pruned_s = now
        oldest = now - FORGET_AFTER_S
        for output, total in list(self._totals.items()):
            for series in [key for key, part in total.parts.items() if part.seen_s < oldest]:
                self._retire(total, total.parts.pop(series))
            if not total.parts:
                del self._totals[output]
        self._models = {name: seen for name, seen in self._models.items() if seen >= oldest}

    def _retire(self, total: _Total, part: _Part) -> None:
        self._part_count -= 1
        before = total.retired.get(part.shape)
        # One shape besides the present one is enough: bounds change only with a new configuration.
        total.retired = {part.shape: _plus(before, _published(part)) if before else _published(part)}


def _published(part: _Part) -> Vector:
    return tuple(part.scale * (offset + last) for offset, last in zip(part.offset, part.last, strict=True))


def _plus(a: Vector, b: Vector) -> Vector:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def _minus(a: Vector, b: Vector) -> Vector:
    return tuple(x - y for x, y in zip(a, b, strict=True))
