"""The unit of what a PromQL expression gives, worked out from the catalogue as physics does it, and Grafana's name for it.

Seconds of a sum divided by the number of its observations are seconds; requests divided by requests are a share; seconds spent
in a second are a share too; a share multiplied by a hundred is a mistake. Pure.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import promql_parser

from tailkeeper_dashboards.style import COUNT_UNIT, MONEY_UNIT, RATIO_UNIT, SCORES, unit_of
from tailkeeper_exporter.catalog import Kind, Metric, Unit
from tools.promql_walk import PRICE_STAND_IN, with_stand_ins

Dimensions = tuple[tuple[str, int], ...]

_OF_UNIT: Mapping[Unit, Mapping[str, int]] = {
    Unit.SECONDS: {"s": 1},
    Unit.BYTES: {"byte": 1},
    Unit.RATIO: {},
    Unit.TOKENS: {"tok": 1},
    Unit.REQUESTS: {"req": 1},
    Unit.CELSIUS: {"celsius": 1},
    Unit.WATTS: {"watt": 1},
    Unit.HERTZ: {"hertz": 1},
    Unit.TOKENS_PER_SECOND: {"tok": 1, "s": -1},
    Unit.ONE: {},
}
_NAMES: Mapping[Dimensions, str] = {
    (("s", 1),): "s",
    (("req", -1), ("s", 1)): "s",
    (("event", -1), ("s", 1)): "s",
    (("byte", 1),): "bytes",
    (("celsius", 1),): "celsius",
    (("watt", 1),): "watt",
    (("hertz", 1),): "hertz",
    (("req", 1),): COUNT_UNIT,
    (("event", 1),): COUNT_UNIT,
    (("tok", 1),): COUNT_UNIT,
    (("req", 1), ("s", -1)): "reqps",
    (("event", 1), ("s", -1)): "ops",
    (("s", -1), ("tok", 1)): "count:tok/s",
    (("score", 1),): unit_of(SCORES[0]),
}
_SAME_AS_ARGUMENT = frozenset({"round", "label_replace", "abs", "ceil", "floor", "sort", "sort_desc", "clamp_min", "clamp_max"})


@dataclass(frozen=True, slots=True)
class Quantity:
    """What an expression gives. ``share`` says that the whole is 1 but for ``factor``, the product of its literals."""

    dimensions: Dimensions = ()
    share: bool = False
    constant: bool = False
    factor: float = 1.0
    priced: bool = False

    @property
    def name(self) -> str | None:
        """Grafana's unit; None for a constant, and for what no unit of Grafana's fits its powers, which no panel declares."""
        if self.constant:
            return None
        if self.priced:
            return MONEY_UNIT
        if not self.dimensions:
            scaled = self.share and not math.isclose(abs(self.factor), 1.0)
            return f"a share times {self.factor:g}" if scaled else RATIO_UNIT if self.share else COUNT_UNIT
        return _NAMES.get(self.dimensions, " ".join(f"{name}^{power}" for name, power in self.dimensions))


COUNTED = Quantity()
"""A number of things, a code, or a truth."""


def grafana_unit(expr: str, metrics: Mapping[str, Metric]) -> str | None:
    """The unit of ``expr`` by a catalogue's metrics by name; None where it is a constant. Raises ValueError for no PromQL."""
    return _quantity(promql_parser.parse(with_stand_ins(expr)), metrics).name


def _quantity(node: Any, metrics: Mapping[str, Metric]) -> Quantity:
    if isinstance(node, promql_parser.NumberLiteral):
        return Quantity(constant=True, factor=node.val, priced=node.val == PRICE_STAND_IN)
    if isinstance(node, promql_parser.VectorSelector):
        return _of_series(node.name or "", metrics)
    if isinstance(node, promql_parser.MatrixSelector):
        return _quantity(node.vector_selector, metrics)
    if isinstance(node, promql_parser.AggregateExpr):
        return COUNTED if str(node.op) in ("count", "group") else _quantity(node.expr, metrics)
    if isinstance(node, promql_parser.Call):
        return _of_call(node, metrics)
    if isinstance(node, promql_parser.BinaryExpr):
        return _of_pair(node, metrics)
    return _quantity(node.expr, metrics)


def _of_series(name: str, metrics: Mapping[str, Metric]) -> Quantity:
    base = re.sub("_(bucket|count|sum)$", "", name)
    metric = metrics.get(name) or metrics.get(base)
    if metric is None:
        return COUNTED
    if metric.kind is Kind.HISTOGRAM and not name.endswith("_sum"):
        return Quantity((("req", 1),))
    if metric in SCORES:
        return Quantity((("score", 1),))
    if metric.kind is Kind.COUNTER and metric.unit is Unit.ONE:
        return Quantity((("event", 1),))
    return Quantity(_sorted(_OF_UNIT[metric.unit]), share=metric.unit is Unit.RATIO)


def _of_call(node: Any, metrics: Mapping[str, Metric]) -> Quantity:
    name = node.func.name
    if name == "vector":
        return _quantity(node.args[0], metrics)
    if name == "histogram_quantile":
        return _observed(node.args[1], metrics)
    inner = _quantity(node.args[0], metrics) if node.args else COUNTED
    if name in ("rate", "irate", "deriv"):
        return _combined(inner, Quantity((("s", 1),)), -1)
    same = name in _SAME_AS_ARGUMENT or name in ("increase", "delta", "idelta") or name.endswith("_over_time")
    return inner if same else COUNTED


def _observed(node: Any, metrics: Mapping[str, Metric]) -> Quantity:
    """What a histogram's buckets are bounds of: the unit of the first histogram in the expression."""
    found = re.findall(r"(\w+)_bucket\b", str(node))
    metric = metrics.get(found[0]) if found else None
    return COUNTED if metric is None else Quantity(_sorted(_OF_UNIT[metric.unit]))


def _of_pair(node: Any, metrics: Mapping[str, Metric]) -> Quantity:
    left, right = _quantity(node.lhs, metrics), _quantity(node.rhs, metrics)
    operator = str(node.op)
    if operator == "*":
        return _combined(left, right, 1)
    if operator == "/":
        return _combined(left, right, -1)
    if node.modifier is not None and node.modifier.return_bool:
        return COUNTED
    return right if left.constant and operator in ("+", "-") else left


def _combined(left: Quantity, right: Quantity, sign: int) -> Quantity:
    """Product or quotient. Zero times anything is a mere number."""
    if (left.constant and not left.factor) or (right.constant and not right.factor):
        return COUNTED
    powers = Counter(dict(left.dimensions))
    for name, power in right.dimensions:
        powers[name] += sign * power
    dimensions = _sorted(powers)
    if left.constant or right.constant:
        share = left.share or right.share
    else:
        share = not dimensions and (sign < 0 or (left.share and right.share))
    factor = left.factor * right.factor**sign
    return Quantity(dimensions, share, left.constant and right.constant, factor, left.priced or right.priced)


def _sorted(powers: Mapping[str, int]) -> Dimensions:
    return tuple(sorted((name, power) for name, power in powers.items() if power))
