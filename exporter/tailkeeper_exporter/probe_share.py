"""What our own probes have added to an engine's counters, so that it is neither published nor taken for traffic.

An engine counts a probe like any request. Probes are sent while there is no traffic, so nearly always the pages before and
after one differ by nothing else: then the whole difference, in every counter and bucket, is the probe's, and is taken off
from there on. An interval with more in it than the probes can explain is left alone: beside real traffic one token in
thousands does not matter, and guessing its bucket would invent observations.

What the probes can explain: one request, one or two tokens, ``STEPS`` decoding steps and ``PROMPT_TOKENS`` prompt tokens each.
A single request of one token by somebody else in the second of a probe is mistaken for it; that is the price. An engine that
does not count requests has finished one when it counts tokens.
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
STEPS = 8.0
"""A prompt takes one step, or a few where the engine splits it, and the one token none or one more. A user's answer that
has only begun takes a step per token, while its own tokens may not be counted before its end."""
EXPECTED_FOR_S = 30.0
"""An engine may count a probe late, when the one that hung goes on; after this long it has dropped it."""


class ProbeShare:
    """Offsets of one backend's published counters and histograms. Owned by the task that reads its page."""

    def __init__(self, counts_requests: bool = True) -> None:
        """``counts_requests``: whether the engine's page can count finished requests."""
        self._counts_requests = counts_requests
        self._steps = 0.0
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
        self,
        counters: Mapping[Output, float],
        histograms: Mapping[Output, Histogram],
        now: float,
        steps: float = 0.0,
        in_flight: float = 0.0,
    ) -> tuple[dict[Output, float], dict[Output, Histogram], bool]:
        """The page's counters and histograms without the probes' share, and whether all that is new is the probes'.

        ``steps`` is the engine's count of decoding steps, 0 where it has none; ``in_flight`` are the requests on the page,
        0 where it tells of none.
        """
        stepped, self._steps = steps - self._steps, steps
        self._expected = [since for since in self._expected if now - since <= EXPECTED_FOR_S]
        before, self._before = self._before, (dict(counters), dict(histograms))
        # Where requests are not counted, those in flight tell that a prompt was computed for somebody else.
        others = not self._counts_requests and in_flight > len(self._expected)
        own = (
            before is not None and bool(self._expected) and not others and self._explained(_growth(before[0], counters), stepped)
        )
        if before is not None and own:
            self._set_off(before, counters, histograms)
        return (
            {output: max(0.0, value - self._counters.get(output, 0.0)) for output, value in counters.items()},
            {output: self._without(output, histogram) for output, histogram in histograms.items()},
            own,
        )

    def _explained(self, grown: dict[Output, float], steps: float) -> bool:
        """Whether the probes expected can have caused all of it, and have caused something."""
        requests = _total(grown, catalog.REQUESTS.name)
        tokens = _total(grown, catalog.GENERATED_TOKENS.name)
        prompt = _total(grown, catalog.PROMPT_TOKENS.name)
        finished = requests if self._counts_requests else float(tokens > 0)
        each, count = max(finished, 1.0), len(self._expected)
        # Whatever these requests were: the probes that were expected are taken to be among them, and are not waited for.
        del self._expected[: int(finished)]
        if not requests and not tokens and not prompt:
            return False
        small = tokens <= each * GENERATED_TOKENS and prompt <= each * PROMPT_TOKENS and steps <= each * STEPS
        return finished <= count and small

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
