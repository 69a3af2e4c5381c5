"""LogQL as the double of Loki knows it: stream selector, line filters, ``json``, label filters, line_format, counts. Pure.

After Loki's documentation ("Log queries", "Metric queries"): ``{service_name="x"}`` chooses streams; then come stages in order.
Regular expressions match a label's whole value, in a line filter a part of the line. A label that a line does not have is the
empty text. ``| json`` makes labels of the line's fields (nested ones with underscores); one that is there already gets
``_extracted``.
Metric queries: ``count_over_time`` and ``rate`` over a range, a label's numbers by ``unwrap`` in ``OVER_TIME`` and
``quantile_over_time``, and ``sum``, ``min``, ``max`` and ``count`` with ``by`` over them.
Everything else is refused by name: an empty answer that only says "the double cannot" would pass for "there is none".
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tools.doubles.lexing import DURATION, Cursor, QueryError, Token, anchored, seconds, tokens, unquoted
from tools.doubles.store import LogRow

_TOKEN = re.compile(
    rf"""(?P<space>\s+) | (?P<string>"(?:[^"\\]|\\.)*"|`[^`]*`) | (?P<range>\[{DURATION}\]) | (?P<duration>{DURATION})
    | (?P<number>-?\d+(?:\.\d+)?) | (?P<op>\|=|\|~|=~|!~|!=|==|>=|<=|=|>|<) | (?P<mark>[{{}}(),|])
    | (?P<name>[a-zA-Z_][a-zA-Z0-9_]*)""",
    re.VERBOSE,
)
_NUMBERS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne}
FOLDS: dict[str, Callable[[Sequence[float]], float]] = {"sum": sum, "min": min, "max": max, "count": len}
RANGES = ("count_over_time", "rate")
OVER_TIME: dict[str, Callable[[Sequence[float]], float]] = {
    "sum_over_time": sum,
    "min_over_time": min,
    "max_over_time": max,
    "avg_over_time": lambda values: sum(values) / len(values),
}
QUANTILE = "quantile_over_time"


@dataclass(frozen=True, slots=True)
class Line:
    """A line on its way through the stages: Loki's three kinds of labels are kept apart, as Grafana asks for them."""

    row: LogRow
    text: str
    parsed: tuple[tuple[str, str], ...] = ()

    def label(self, name: str) -> str:
        found = dict(self.parsed).get(name)
        return self.row.labels.get(name, self.row.metadata.get(name, "")) if found is None else found

    def labels(self) -> dict[str, str]:
        return {**self.row.metadata, **self.row.labels, **dict(self.parsed)}


Stage: TypeAlias = Callable[[Line], Line | None]
Holds: TypeAlias = Callable[[Line], bool]


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Lines that pass every stage. ``unwrap`` is the label whose number is a line's value."""

    stages: tuple[Stage, ...]
    unwrap: str | None = None

    def of(self, row: LogRow) -> Line | None:
        line: Line | None = Line(row, row.line)
        for stage in self.stages:
            line = stage(line) if line is not None else None
        return line

    def number_of(self, line: Line) -> float | None:
        """What ``unwrap`` finds in a line; 1 without it, so that lines can be counted."""
        return 1.0 if self.unwrap is None else _number(line.label(self.unwrap))


@dataclass(frozen=True, slots=True)
class RangeQuery:
    """``fold`` over the numbers of the lines of the last ``range_s`` seconds, by the labels ``by`` or by all."""

    fold: Callable[[Sequence[float]], float]
    query: LogQuery
    range_s: float
    by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fold:
    """An aggregation of ``inner`` by labels."""

    function: str
    by: tuple[str, ...]
    inner: Metric


Metric: TypeAlias = RangeQuery | Fold


def parse(text: str) -> LogQuery | Metric:
    """Raises QueryError, also for what is LogQL and not known here."""
    try:
        return _whole(Cursor(tokens(text, _TOKEN)))
    except RecursionError:
        raise QueryError("the query is nested too deeply") from None


def _whole(cursor: Cursor) -> LogQuery | Metric:
    found = _log_query(cursor) if cursor.here.text == "{" else _metric(cursor)
    if isinstance(found, LogQuery) and found.unwrap is not None:
        raise QueryError("parse error: unwrap stands in a range alone, such as avg_over_time({…} | unwrap label [5m])")
    if cursor.here.kind != "end":
        raise QueryError(f"this double of Loki does not know what begins with {cursor.here.text!r} at character {cursor.here.at}")
    return found


def _metric(cursor: Cursor) -> Metric:
    name = cursor.kind("name").text
    if name in (*RANGES, *OVER_TIME, QUANTILE):
        return _range(name, cursor)
    if name not in FOLDS:
        raise QueryError(f"{name}: this double of Loki knows {', '.join((*RANGES, *OVER_TIME, QUANTILE, *FOLDS))}")
    by = _by(cursor)
    cursor.expect("(")
    inner = _metric(cursor)
    cursor.expect(")")
    return Fold(name, by or _by(cursor), inner)


def _range(name: str, cursor: Cursor) -> RangeQuery:
    cursor.expect("(")
    share = float(cursor.kind("number").text) if name == QUANTILE else 0.0
    if name == QUANTILE:
        cursor.expect(",")
    query, range_s = _log_query(cursor), seconds(cursor.kind("range").text)
    cursor.expect(")")
    if (query.unwrap is None) is not (name in RANGES):
        raise QueryError(f"{name}: {'takes lines and no' if name in RANGES else 'needs'} '| unwrap label'")
    if name == QUANTILE and not 0 <= share <= 1:
        raise QueryError(f"{name}: {share:g} is not a share; 0 to 1 are allowed")
    by = _by(cursor) if name not in RANGES else ()
    folds = {
        "count_over_time": sum,
        "rate": lambda values: sum(values) / range_s,
        QUANTILE: lambda values: _quantile(share, values),
        **OVER_TIME,
    }
    return RangeQuery(folds[name], query, range_s, by)


def _quantile(share: float, values: Sequence[float]) -> float:
    """Between the two nearest, by distance, as Prometheus and Loki do."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    below = ordered[int(at)]
    return below + (at - int(at)) * (ordered[min(int(at) + 1, len(ordered) - 1)] - below)


def _by(cursor: Cursor) -> tuple[str, ...]:
    if not cursor.skip("by"):
        return ()
    cursor.expect("(")
    names = [cursor.kind("name").text]
    while cursor.skip(","):
        names.append(cursor.kind("name").text)
    cursor.expect(")")
    return tuple(names)


def _log_query(cursor: Cursor) -> LogQuery:
    stages = [_selector(cursor)]
    while cursor.here.text in ("|", "|=", "|~", "!=", "!~"):
        token = cursor.take()
        if token.text == "|" and cursor.skip("unwrap"):
            return LogQuery(tuple(stages), cursor.kind("name").text)
        stages.append(_stage(cursor) if token.text == "|" else _line_filter(token, cursor.kind("string")))
    return LogQuery(tuple(stages))


def _selector(cursor: Cursor) -> Stage:
    cursor.expect("{")
    matchers = [_matcher(cursor)]
    while cursor.skip(","):
        matchers.append(_matcher(cursor))
    cursor.expect("}")
    if all(holds("") for _, holds in matchers):
        raise QueryError("parse error: queries require at least one matcher that does not match the empty text")
    return lambda line: line if all(holds(line.row.labels.get(name, "")) for name, holds in matchers) else None


def _matcher(cursor: Cursor) -> tuple[str, Callable[[str], bool]]:
    name, op = cursor.kind("name").text, cursor.expect("=", "!=", "=~", "!~").text
    return name, _on_text(op, unquoted(cursor.kind("string").text))


def _on_text(op: str, wanted: str) -> Callable[[str], bool]:
    if op in ("=~", "!~"):
        pattern = anchored(wanted)
        return lambda value: (pattern.match(value) is not None) is (op == "=~")
    return lambda value: (value == wanted) is (op == "=")


def _line_filter(token: Token, text: Token) -> Stage:
    wanted = unquoted(text.text)
    if token.text in ("|=", "!="):
        return lambda line: line if (wanted in line.text) is (token.text == "|=") else None
    try:
        pattern = re.compile(wanted)
    except re.error as error:
        raise QueryError(f"{wanted!r}: is not a regular expression: {error}") from None
    return lambda line: line if (pattern.search(line.text) is not None) is (token.text == "|~") else None


def _stage(cursor: Cursor) -> Stage:
    if cursor.skip("json"):
        return _json
    if cursor.skip("line_format"):
        return _line_format(unquoted(cursor.kind("string").text))
    holds = _either(cursor)
    return lambda line: line if holds(line) else None


def _either(cursor: Cursor) -> Holds:
    parts = [_both(cursor)]
    while cursor.skip("or"):
        parts.append(_both(cursor))
    return lambda line: any(part(line) for part in parts)


def _both(cursor: Cursor) -> Holds:
    parts = [_one(cursor)]
    while cursor.skip("and", ","):
        parts.append(_one(cursor))
    return lambda line: all(part(line) for part in parts)


def _one(cursor: Cursor) -> Holds:
    if cursor.skip("("):
        inside = _either(cursor)
        cursor.expect(")")
        return inside
    name = cursor.kind("name")
    if cursor.here.kind != "op":
        raise QueryError(f"this double of Loki knows '| json', '| line_format' and label filters, and no '| {name.text}'")
    op, value = cursor.take().text, cursor.kind("string", "number", "duration")
    if value.kind == "string":
        holds = _on_text(op, unquoted(value.text)) if op in ("=", "!=", "=~", "!~") else None
        if holds is None:
            raise QueryError(f"{name.text} {op} {value.text}: texts are compared by =, !=, =~ and !~")
        return lambda line: holds(line.label(name.text))
    compare = _NUMBERS.get("==" if op == "=" else op)
    if compare is None:
        raise QueryError(f"{name.text} {op} {value.text}: numbers are compared by {', '.join(_NUMBERS)}")
    wanted = float(value.text) if value.kind == "number" else seconds(value.text)
    return lambda line: (number := _number(line.label(name.text))) is not None and compare(number, wanted)


def _number(text: str) -> float | None:
    """A label's number, or its duration in seconds; None for what is neither."""
    try:
        return seconds(text) if re.fullmatch(DURATION, text) else float(text)
    except ValueError:
        return None


def _json(line: Line) -> Line:
    try:
        document = json.loads(line.text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        return replace(line, parsed=(*line.parsed, ("__error__", "JSONParserErr")))
    known = line.labels()
    pairs = [(f"{name}_extracted" if name in known else name, value) for name, value in _flat("", document)]
    return replace(line, parsed=(*line.parsed, *pairs))


def _flat(prefix: str, document: dict[str, object]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, value in document.items():
        name = prefix + re.sub(r"[^a-zA-Z0-9_]", "_", key)
        if isinstance(value, dict):
            found.extend(_flat(f"{name}_", value))
        elif not isinstance(value, list) and value is not None:
            found.append((name, value if isinstance(value, str) else json.dumps(value)))
    return found


_FIELD = re.compile(r"\{\{\s*\.(\w+)\s*\}\}")


def _line_format(template: str) -> Stage:
    if "{{" in _FIELD.sub("", template):
        raise QueryError(f"line_format {template!r}: this double of Loki knows {{{{.label}}}} and no functions")
    return lambda line: replace(line, text=_FIELD.sub(lambda match: line.label(match[1]), template))
