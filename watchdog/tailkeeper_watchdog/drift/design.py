"""The numbers of ``block_e``, each named once. Pure; knows nothing of rows or backends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log


@dataclass(frozen=True, slots=True)
class Design:
    """One configuration of the method. A baseline is fitted for one design and says which.

    The fields' defaults are the method as first written; ``PACED`` is what was found to be better (`docs/drift.md`).
    """

    name: str
    block_s: float = 10.0
    """Requests behind a queue come in clumps; over ten seconds most of what they share has gone by."""
    block_rows: int = 0
    """A block lasts longer where the baseline's rate makes fewer rows than this in ``block_s``."""
    anchors: tuple[float, ...] = (0.5, 0.9, 0.99)
    """Quantiles of the baseline's scores above which excess is summed: the body, the shoulder and the tail."""
    kappas: tuple[float, ...] = (0.1, 0.25, 0.4, 0.55, 0.7, 0.85)
    """Bets κ·u^(κ−1) on a p-value u: the small ones win on rare extremes, the large ones on many mild ones."""
    bin_edges: tuple[float, ...] = tuple(number / 12 for number in range(1, 12))
    """Quantiles of the baseline's predicted latency between which scores have their own median and spread."""
    dead_band_ratio: float = 1.10
    """Latency up to this multiple of the baseline's is no drift."""
    cap: float = 2.0
    """The most that one request adds, in units of its bin's distance from median to 90th percentile."""
    envelope: float = 0.995
    """Beyond this quantile of the baseline's predicted latency the load was never seen, and the score abstains."""
    most_abstained_share: float = 1.0
    """A block with a larger share of abstaining rows is no evidence: the load as a whole was never seen."""
    least_p: float = 0.0
    """p-values are taken for at least this, so that a few blocks, however bad, are not enough."""
    confidence: float = 0.9
    """With which a block's p-value is not too small, given that the baseline has only so many blocks."""
    alarm_evidence: float = 8640.0
    """Ten-second blocks of a day: one nominal false alarm a day for each backend."""
    min_block_share: float = 0.5
    """A block waits until it has this share of the baseline's median of requests: a mean of one is no mean of eighty."""
    min_fit_ratio: float = 0.3
    """Share of the variance of ln(latency) that the load must explain; below it scores are raw and only observed."""

    @property
    def dead_band(self) -> float:
        """In units of ln(latency)."""
        return log(self.dead_band_ratio)


AS_WRITTEN = Design("as_written")
PACED = Design(
    "paced",
    block_rows=60,
    anchors=(0.05, 0.9, 0.99),
    bin_edges=(*AS_WRITTEN.bin_edges, 0.95, 0.975),
    envelope=0.99,
    most_abstained_share=0.1,
    least_p=0.0095,
)
"""Blocks paced by requests, so that a spike of a hundred touches three at most. A low anchor, above which nearly every score
adds its excess, so that a small shift of all is seen sooner. Finer bins where load is high, and no evidence from beyond it."""
BLOCK_E = PACED
"""What ``block_e`` is unless another design is asked for."""
DESIGNS: Mapping[str, Design] = {design.name: design for design in (AS_WRITTEN, PACED)}

MIN_BASELINE_BLOCKS = 20
"""Fewer blocks cannot give a p-value below 0.1, and so no evidence worth the name."""
LATE_BLOCKS = 6
"""A row up to a minute behind the newest is late and counts where it arrives; beyond that the clock was set back."""
