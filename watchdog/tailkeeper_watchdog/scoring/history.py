"""The recent samples of each backend, from which windows are cut. Pure.

A history keeps one sample every ``SPACING_S`` for ``WINDOW_S``, so its size is bounded (15 samples) whatever the tick.
Nothing is averaged over a gap: a counter that fell starts the history anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailkeeper_watchdog.model import BackendObservation
from tailkeeper_watchdog.samples import Layout, Sample, sample_of
from tailkeeper_watchdog.window import Window

WINDOW_S = 60.0
RECENT_S = 10.0
SPACING_S = 5.0


@dataclass(slots=True)
class History:
    """Samples of one backend, oldest first. The last is always the newest seen. Not frozen, as a sample is not."""

    samples: tuple[Sample, ...] = ()
    anew: bool = False
    """The newest sample is of another life of the engine than those before it: a counter had fallen."""


def take_sample(seen: BackendObservation, now: float, like: Layout | None = None) -> Sample:
    """``like`` is the layout that it probably has: that of the backend's last sample, or of another one of its kind."""
    return sample_of(now, seen.values, seen.histograms, like)


def add(history: History, sample: Sample) -> History:
    """The history with ``sample`` as its newest, old ones thinned to the spacing and dropped past the window."""
    samples = history.samples
    if samples and (sample.at <= samples[-1].at or sample.went_back(samples[-1])):
        return History((sample,), anew=True) if sample.at > samples[-1].at else history
    if len(samples) >= 2 and samples[-1].at - samples[-2].at < SPACING_S:
        samples = samples[:-1]
    oldest = sample.at - WINDOW_S - SPACING_S
    first = 0
    while first < len(samples) and samples[first].at < oldest:
        first += 1
    return History((*samples[first:], sample))


def over(history: History, seconds: float, uptime_ratio: float | None = None) -> Window:
    """The window from at least ``seconds`` before the newest sample (or from the oldest there is) up to it."""
    samples = history.samples
    if len(samples) < 2:
        return Window(uptime_ratio=uptime_ratio)
    newest = samples[-1]
    return Window(samples[_start(samples, newest.at, seconds)], newest, uptime_ratio)


def _start(samples: tuple[Sample, ...], newest_at: float, seconds: float) -> int:
    """The latest one that is at least ``seconds`` old, sought from the end that is nearer to it; else the oldest."""
    last = len(samples) - 2
    if newest_at - samples[last // 2].at >= seconds:
        while last > 0 and newest_at - samples[last].at < seconds:
            last -= 1
        return last
    first = 0
    while first < last and newest_at - samples[first + 1].at >= seconds:
        first += 1
    return first
