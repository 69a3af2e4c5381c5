"""Takes a PromQL expression of a board apart: which series and labels it reads, over which windows, and what comes out.

Parsed and type-checked by promql-parser, which is a developers' dependency. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import promql_parser

STAND_INS = {"$__rate_interval": "7m13s", "$__range": "11m17s"}
"""Durations that nobody would write, in the place of Grafana's own, which no PromQL parser knows."""
SECONDS = {"$__rate_interval": 433, "$__range": 677}
PRICE, PRICE_STAND_IN = "$price", 1.0625003
"""The one variable that stands for a number, and a number that nobody would write."""


@dataclass(frozen=True, slots=True)
class Selector:
    name: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """One function over a range, for example rate(metric[window])."""

    function: str
    metric: str
    window: str


@dataclass(frozen=True, slots=True)
class Expression:
    """What is in an expression, and its ``text`` as Grafana has it."""

    selectors: tuple[Selector, ...]
    windows: tuple[Window, ...]
    grouping: frozenset[str]
    functions: frozenset[str]
    text: str
    valued: frozenset[str]
    """Series whose values matter; the others stand to the right of `and` or `unless` and lend their labels only."""

    @property
    def metrics(self) -> frozenset[str]:
        return frozenset(selector.name for selector in self.selectors)


def with_stand_ins(expr: str) -> str:
    """The expression as PromQL; variables inside label values stay, as they are only text there."""
    for name, duration in STAND_INS.items():
        expr = expr.replace(f"[{name}]", f"[{duration}]")
    expr = re.sub(rf"{re.escape(PRICE)}\b", str(PRICE_STAND_IN), expr)
    left = re.findall(r"\[\$[^]]*\]", expr)
    if left:
        raise ValueError(f"unknown window {left[0]}; allowed: {', '.join(STAND_INS)}")
    return expr


def read(expr: str) -> Expression:
    """Raises ValueError where the expression is not PromQL."""
    root = promql_parser.parse(with_stand_ins(expr))
    nodes = list(_walk(root))
    return Expression(
        selectors=tuple(_selector(node) for node in nodes if isinstance(node, promql_parser.VectorSelector)),
        windows=tuple(window for node in nodes if isinstance(node, promql_parser.Call) for window in _windows(node)),
        grouping=frozenset(label for node in nodes for label in _grouping(node)),
        functions=frozenset(node.func.name for node in nodes if isinstance(node, promql_parser.Call)),
        text=expr,
        valued=frozenset(_valued(root)),
    )


def _children(node: Any) -> list[Any]:
    if isinstance(node, promql_parser.BinaryExpr):
        return [node.lhs, node.rhs]
    if isinstance(node, promql_parser.Call):
        return list(node.args)
    if isinstance(node, promql_parser.MatrixSelector):
        return [node.vector_selector]
    inner = getattr(node, "expr", None)
    return [] if inner is None else [inner]


def _walk(node: Any) -> Iterator[Any]:
    yield node
    for child in _children(node):
        yield from _walk(child)


def _valued(node: Any) -> Iterator[str]:
    if isinstance(node, promql_parser.VectorSelector):
        yield node.name or ""
    lends = isinstance(node, promql_parser.BinaryExpr) and str(node.op) in ("and", "unless")
    for child in _children(node)[: 1 if lends else None]:
        yield from _valued(child)


def _selector(node: Any) -> Selector:
    if node.name is None:
        raise ValueError("a selector without a metric name reads the whole server")
    return Selector(node.name, tuple(matcher.name for matcher in node.matchers.matchers))


def _windows(call: Any) -> Iterator[Window]:
    for argument in call.args:
        if isinstance(argument, promql_parser.MatrixSelector):
            seconds = int(argument.range.total_seconds())
            name = next((name for name, value in SECONDS.items() if value == seconds), f"{seconds}s")
            yield Window(call.func.name, argument.vector_selector.name or "", name)


def _grouping(node: Any) -> list[str]:
    modifier = getattr(node, "modifier", None)
    if modifier is None:
        return []
    if isinstance(node, promql_parser.AggregateExpr):
        return list(modifier.labels)
    matching = modifier.matching
    return [*(matching.labels if matching is not None else []), *(modifier.group_labels or [])]
