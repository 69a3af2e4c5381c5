"""What an engine is to the exporter: a table of sources. No engine's name appears here, and no I/O happens."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import quote

from tailkeeper_exporter.catalog import OUTCOMES, REQUESTS, Metric


class Given(StrEnum):
    """When a row of the table counts, told by the row above it."""

    ALWAYS = "always"
    ABOVE_FOUND = "above_found"
    """Only beside the row above: the two together are the fact, and this one alone is not."""
    ABOVE_LACKING = "above_lacking"
    """Only instead of the row above: another witness of the same fact, in another unit or under other labels."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where one catalogue metric comes from on an engine's page.

    ``names`` are canonical (``:`` written ``_``), newest first; the first that the page offers is used, so that a page
    with the old and the new spelling is counted once. ``fixed`` adds labels to the result, ``where`` keeps only series
    whose label has one of the values (any but an empty one where no value is given), ``scale`` turns the page's unit into
    the catalogue's.
    """

    metric: Metric
    names: tuple[str, ...]
    where: tuple[tuple[str, tuple[str, ...]], ...] = ()
    fixed: tuple[tuple[str, str], ...] = ()
    scale: float = 1.0
    expected: bool = True
    """Whether a page of this engine without it counts as missing a metric."""
    given: Given = Given.ALWAYS


@dataclass(frozen=True, slots=True)
class Progress:
    """A counter that moves with each step of work, and is evidence of life without being published.

    Engines that count tokens only when an answer is complete would look frozen during a long one. ``name`` is canonical;
    ``where`` keeps only series whose label has one of the values.
    """

    name: str
    where: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """How to ask this engine for one token."""

    path: str = "/v1/completions"
    chat: bool = False


@dataclass(frozen=True, slots=True)
class Engine:
    """One inference engine: its page, its table, and how to ask whether it lives."""

    name: str
    metrics_path: str | None
    """None where the engine has no page that is known; then one is read only where `metrics_url` names it."""
    health_path: str
    sources: tuple[Source, ...]
    model_labels: tuple[str, ...] = ("model_name",)
    """Labels that carry the model's name, in order of preference."""
    preallocates: bool = False
    """Whether it takes its GPU memory at start, so that raw use says nothing about pressure."""
    probe: ProbeRequest | None = field(default_factory=ProbeRequest)
    progress: tuple[Progress, ...] = ()
    """Counters of decoding steps, for engines whose token counters stand still during an answer."""
    metrics_port: int | None = None
    """The page's usual port, where it is not that of the API."""
    not_ready_status: tuple[int, ...] = ()
    """Statuses of the health page that say: no model is ready yet."""
    model_health_path: str | None = None
    """Asked instead where the model is configured: a server of several models can be well without this one. ``{model}`` is
    its name."""
    cannot_tell: str = ""
    """What no page of this engine says, in a sentence for the documentation."""

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The outcomes of requests that its page can tell, in the catalogue's order."""
        told = {
            value for source in self.sources if source.metric is REQUESTS for name, value in source.fixed if name == "outcome"
        }
        return tuple(outcome for outcome in OUTCOMES if outcome in told)

    def health_path_of(self, model: str | None) -> str:
        """Where this engine says whether it can serve ``model``; None is a model that is not configured."""
        if model is None or self.model_health_path is None:
            return self.health_path
        return self.model_health_path.format(model=quote(model, safe=""))
