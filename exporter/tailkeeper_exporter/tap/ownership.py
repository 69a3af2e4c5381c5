"""Which of a backend's metrics the tap supplies, and which its page: one source per name, and at most one change. Pure.

* What the page has given once is the page's for as long as the exporter runs, also while the page is lost: its counters
  stay as they were, and the tap does not fill in. So no series ever goes back and forth.
* Until the first good page what the engine's table names is the page's, and absent: a page that is read late brings the
  engine's whole past, which on top of the tap's count would look like a burst of requests, or of errors.
* What a good page does not offer is the tap's, until the page offers it. Engines make some families with the first request,
  so the hand-over is then from a few to a few; in any case it happens once, and looks like a restarted counter.
* A backend without a page is the tap's alone.

Names that only make sense from one source go together (`_TOGETHER`): the tap's prefill holds the engine's own queue, and
its running requests those that the engine has queued, so beside the page's figure they would be counted twice.
"""

from __future__ import annotations

from tailkeeper_exporter import catalog
from tailkeeper_exporter.catalog import Metric
from tailkeeper_exporter.engines import Engine

TAP_COUNTERS: tuple[Metric, ...] = (catalog.REQUESTS, catalog.PROMPT_TOKENS, catalog.GENERATED_TOKENS)
TAP_HISTOGRAMS: tuple[Metric, ...] = (
    catalog.LATENCY,
    catalog.TTFT,
    catalog.ITL,
    catalog.QUEUE_TIME,
    catalog.PREFILL_TIME,
    catalog.DECODE_TIME,
)
TAP_GAUGES: tuple[Metric, ...] = (catalog.RUNNING, catalog.WAITING)
TAP_METRICS: frozenset[str] = frozenset(metric.name for metric in (*TAP_COUNTERS, *TAP_HISTOGRAMS, *TAP_GAUGES))
_TOGETHER: tuple[frozenset[str], ...] = (
    frozenset({catalog.QUEUE_TIME.name, catalog.PREFILL_TIME.name}),
    frozenset({catalog.RUNNING.name, catalog.WAITING.name}),
)


def tap_supplies(engine: Engine, has_page: bool, read: bool, given: frozenset[str]) -> frozenset[str]:
    """Names of the catalogue that the tap supplies.

    ``given`` is what the page has given since the start, ``read`` whether there was a good page at all.
    """
    if not has_page:
        return TAP_METRICS
    claimed = given if read else frozenset(source.metric.name for source in engine.sources)
    for group in _TOGETHER:
        if claimed & group:
            claimed |= group
    return TAP_METRICS - claimed
