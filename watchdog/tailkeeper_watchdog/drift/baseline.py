"""What no drift looks like on one backend: fitted once, frozen, saved and loaded as plain JSON. Pure; files are the caller's.

A document from outside is believed field by field: a wrong one is a ValueError that names the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

import numpy as np

from tailkeeper_watchdog.drift import load
from tailkeeper_watchdog.drift.blocks import excess, pace, whole_blocks
from tailkeeper_watchdog.drift.design import BLOCK_E, DESIGNS, MIN_BASELINE_BLOCKS, Design
from tailkeeper_watchdog.drift.document import Fields
from tailkeeper_watchdog.drift.load import LoadModel
from tailkeeper_watchdog.drift.rows import AT, Rows, has_latency, has_load

VERSION = 1
MIN_LOADED_SHARE = 0.9
"""Where fewer rows than this say their load, the rest could not be judged, and raw scores are the better baseline."""
MOST_BLOCKS = 100_000
MOST_BINS = 100


@dataclass(frozen=True, slots=True)
class Baseline:
    """Everything that was fitted. ``statistics`` are the blocks' statistics, one ascending tuple for each anchor."""

    design: Design
    block_s: float
    """How long a block lasts: the design's, or longer where requests are few."""
    model_id: str
    created_at_s: float
    """Wall clock, epoch seconds."""
    requests: int
    fit_ratio: float | None
    """Share of the variance of ln(latency) that the load explains; None where the rows did not say their load."""
    model: LoadModel
    anchors: tuple[float, ...]
    statistics: tuple[tuple[float, ...], ...]
    min_rows: int
    """A block waits until it has this many rows."""

    @property
    def is_raw(self) -> bool:
        """Scores take no account of load, so a busy hour looks like drift: to be observed, never acted on."""
        return self.model.weights is None

    @property
    def blocks(self) -> int:
        return len(self.statistics[0])

    @property
    def why_raw(self) -> str | None:
        """A sentence for people; None where the scores are load-normalised."""
        if not self.is_raw:
            return None
        if self.fit_ratio is None:
            return "the requests do not say under what load they came, so drift is only observed"
        return f"the load explains only {self.fit_ratio:.0%} of the latency, so drift is only observed"

    def document(self) -> dict[str, Any]:
        """Plain JSON, without infinities."""
        model = asdict(self.model) | {"ceiling_s": None if self.model.ceiling_s == inf else self.model.ceiling_s}
        head = {"version": VERSION, "kind": "block_e", "design": self.design.name, "block_s": self.block_s}
        own = {name: getattr(self, name) for name in ("model_id", "created_at_s", "requests", "fit_ratio", "min_rows")}
        lists = {"anchors": list(self.anchors), "statistics": [list(column) for column in self.statistics]}
        return head | own | {"model": {k: list(v) if isinstance(v, tuple) else v for k, v in model.items()}} | lists


def fit(rows: Rows, *, model_id: str, created_at_s: float, design: Design = BLOCK_E) -> Baseline:
    """A baseline over ``rows``. Raises ValueError with what is missing where they are too few."""
    table = rows.table[has_latency(rows.table)]
    if len(table) < MIN_BASELINE_BLOCKS:
        raise ValueError(
            f"a baseline of {len(table)} usable requests is too short: at least {MIN_BASELINE_BLOCKS} blocks are needed"
        )
    loaded = table[has_load(table)]
    fit_ratio = None
    if len(loaded) >= MIN_LOADED_SHARE * len(table):
        model, fit_ratio = load.fit(loaded, design)
        if fit_ratio >= design.min_fit_ratio:
            table = loaded
    if fit_ratio is None or fit_ratio < design.min_fit_ratio:
        model = load.fit_raw(table)
    scores, abstained = load.score(model, table, 0.0)
    anchors = np.quantile(scores[np.isfinite(scores)], design.anchors)
    block_s = pace(table[:, AT], design)
    blocks, least = whole_blocks(table[:, AT], excess(scores, anchors, design), abstained, block_s, design)
    if len(blocks) < MIN_BASELINE_BLOCKS:
        raise ValueError(
            f"a baseline of {len(blocks)} whole blocks of {block_s:g} s is too short: at least {MIN_BASELINE_BLOCKS} are needed"
        )
    columns = tuple(tuple(sorted(column)) for column in zip(*blocks, strict=True))
    anchor_values = tuple(float(a) for a in anchors)
    return Baseline(design, block_s, model_id, created_at_s, len(table), fit_ratio, model, anchor_values, columns, least)


def from_document(document: Mapping[str, Any]) -> Baseline:
    """The baseline that ``document()`` wrote. Raises ValueError naming the field that cannot be right."""
    fields = Fields(document, "baseline")
    fields.equals("version", VERSION)
    fields.equals("kind", "block_e")
    design = DESIGNS.get(fields.text("design"))
    if design is None:
        raise fields.error("design", f"one of {', '.join(sorted(DESIGNS))}")
    return Baseline(
        design,
        fields.number("block_s", design.block_s, 1e6),
        fields.text("model_id"),
        fields.number("created_at_s", 0, 1e11),
        int(fields.number("requests", 1, 1e12)),
        fields.optional_number("fit_ratio", 0, 1),
        _model(fields.inner("model")),
        fields.numbers("anchors", len(design.anchors), -1e9, 1e9, ascending=True),
        fields.number_lists("statistics", len(design.anchors), MIN_BASELINE_BLOCKS, MOST_BLOCKS, 0, design.cap, ascending=True),
        int(fields.number("min_rows", 1, 1e9)),
    )


def _model(fields: Fields) -> LoadModel:
    weights = None if fields.is_null("weights") else fields.numbers("weights", 6, -1e9, 1e9)
    edges = fields.any_numbers("edges_s", 0, MOST_BINS, 0, 1e9, ascending=True)
    ceiling_s = fields.optional_number("ceiling_s", 0, 1e9)
    if weights is not None and ceiling_s is None:
        raise fields.error("ceiling_s", "a number, where there are weights")
    return LoadModel(
        weights,
        fields.number("floor_s", 1e-12, 1e5),
        inf if ceiling_s is None else ceiling_s,
        edges,
        fields.numbers("medians", len(edges) + 1, -100, 100),
        fields.numbers("scales", len(edges) + 1, load.MIN_SCALE, 100),
    )
