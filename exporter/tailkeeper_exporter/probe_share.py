"""What our own probes have added to an engine's counters, so that it is neither published nor taken for traffic.

An engine counts a probe like any request. Probes are sent while there is no traffic, so nearly always the pages before and
after one differ by nothing else: then the whole difference, in every counter and bucket, is the probe's, and is taken off
from there on. An interval with more in it than the probes can explain is left alone: beside real traffic one token in
thousands does not matter, and guessing its bucket would invent observations.

What the probes can explain: one request, one or two tokens and ``PROMPT_TOKENS`` prompt tokens each. A single request of one
token by somebody else in the second of a probe is mistaken for it; that is the price.
"""

from __future__ import annotations

from collections.abc import Mapping

from tailkeeper_exporter import catalog
from tailkeeper_exporter.page import Labels
from tailkeeper_exporter.readings import Histogram

Output = tuple[str, Labels]

PROMPT_TOKENS = 256.0
"""Above the prompt of a probe with any chat template around it."""
GENERATED_TOKENS = 2.0
"""One was asked for; an engine that counts the end mark as well has two."""
EXPECTED_FOR_S = 30.0
"""An engine may count a probe late, when the one that hung goes on; after this long it has dropped it."""


class ProbeShare:
    """Offsets of one backend's published counters and histograms. Owned by the task that reads its page."""

    def __init__(self) -> None:
        self._expected: list[float] = []
        self._before: tuple[Mapping[Output, float], Mapping[Output, Histogram]] | None = None
        self._counters: dict[Output, float] = {}
        self._histograms: dict[Output, Histogram] = {}

    def expect(self, now: float) -> None:
        """A probe is being sent; the engine may count it at any time from now on."""
        self._expected.append(now)

    def forget(self, since: float) -> None:
        """The probe announced at ``since`` did not reach the engine after all."""
        if since in self._expected:
            self._expected.remove(since)

    def take(
        self, counters: Mapping[Output, float], histograms: Mapping[Output, Histogram], now: float
    ) -> tuple[dict[Output, float], dict[Output, Histogram], bool]:
        """The page's counters and histograms without the probes' share, and whether all that is new is the probes'."""
        self._expected = [since for since in self._expected if now - since <= EXPECTED_FOR_S]
        before, self._before = self._before, (dict(counters), dict(histograms))
        own = before is not None and bool(self._expected) and self._explained(_growth(before[0], counters))
        if before is not None and own:
            self._set_off(before, counters, histograms)
        return (
            {output: max(0.0, value - self._counters.get(output, 0.0)) for output, value in counters.items()},
            {output: self._without(output, histogram) for output, histogram in histograms.items()},
            own,
        )

    def _explained(self, grown: dict[Output, float]) -> bool:
        """Whether the probes expected can have caused all of it, and have caused something."""
        requests = _total(grown, catalog.REQUESTS.name)
        tokens = _total(grown, catalog.GENERATED_TOKENS.name)
        prompt = _total(grown, catalog.PROMPT_TOKENS.name)
        each, count = max(requests, 1.0), len(self._expected)
        # Whatever these requests were: the probes that were expected are taken to be among them, and are not waited for.
        del self._expected[: int(requests)]
        if not requests and not tokens and not prompt:
            return False
        return requests <= count and tokens <= each * GENERATED_TOKENS and prompt <= each * PROMPT_TOKENS

    def _set_off(
        self,
        before: tuple[Mapping[Output, float], Mapping[Output, Histogram]],
        counters: Mapping[Output, float],
        histograms: Mapping[Output, Histogram],
    ) -> None:
        for output, amount in _growth(before[0], counters).items():
            self._counters[output] = self._counters.get(output, 0.0) + amount
        for output, histogram in histograms.items():
            earlier = before[1].get(output)
            added = histogram.minus(earlier) if earlier is not None else None
            if added is not None and added.count > 0:
                known = self._histograms.get(output)
                comparable = known if known is not None and known.bounds == added.bounds else None
                self._histograms[output] = added if comparable is None else _plus(comparable, added)

    def _without(self, output: Output, histogram: Histogram) -> Histogram:
        share = self._histograms.get(output)
        return histogram if share is None else histogram.minus(share) or histogram


def _growth(before: Mapping[Output, float], after: Mapping[Output, float]) -> dict[Output, float]:
    return {o: value - before[o] for o, value in after.items() if o in before and value > before[o]}


def _total(grown: Mapping[Output, float], name: str) -> float:
    return sum(amount for (of, _), amount in grown.items() if of == name)


def _plus(a: Histogram, b: Histogram) -> Histogram:
    return Histogram(a.bounds, tuple(x + y for x, y in zip(a.counts, b.counts, strict=True)), a.sum + b.sum)
