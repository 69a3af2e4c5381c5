"""TraceQL as the double of Tempo knows it: span set filters, child and descendant, ``select``. Pure.

After Tempo's documentation ("Construct a TraceQL query"): ``{ … }`` chooses spans; inside stand comparisons of attributes
(``span.``, ``resource.``, or ``.`` for both) and of the intrinsics below with strings, numbers, durations, statuses and kinds,
joined by ``&&`` and ``||``. Regular expressions match the whole value, and what a span does not have compares as false, unless
with ``nil``. ``{ … } > { … }`` are spans whose parent is of the first set, ``>>`` those with such an ancestor. ``| select(…)``
adds attributes to what is shown. Everything else of the language, such as other structural operators, aggregates and metrics, is
refused by name: an empty answer that only says "the double cannot" would pass for "there is none".
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tools.doubles.lexing import DURATION, Cursor, QueryError, Token, anchored, seconds, tokens, unquoted
from tools.doubles.store import KINDS, STATUSES, SpanRow, Value

_TOKEN = re.compile(
    rf"""(?P<space>\s+) | (?P<string>"(?:[^"\\]|\\.)*"|`[^`]*`) | (?P<duration>{DURATION}) | (?P<number>-?\d+(?:\.\d+)?)
    | (?P<op>&&|\|\||=~|!~|!=|>=|<=|=|>>|>|<) | (?P<mark>[{{}}(),|])
    | (?P<name>[a-zA-Z_.][^\s{{}}()=~!<>&|^,"`]*)""",
    re.VERBOSE,
)
INTRINSICS: Mapping[str, Callable[[SpanRow, Trace], Value]] = {
    "name": lambda span, _: span.name,
    "status": lambda span, _: span.status,
    "kind": lambda span, _: span.kind,
    "duration": lambda span, _: (span.end_ns - span.start_ns) / 1e9,
    "traceDuration": lambda _, trace: trace.duration_s,
    "rootName": lambda _, trace: trace.root.name if trace.root else "",
    "rootServiceName": lambda _, trace: trace.root.service if trace.root else "",
}
"""Durations in seconds. The newer spellings ``span:name`` and ``trace:duration`` are in `_ALIASES`."""
_ALIASES = {f"span:{name}": name for name in ("name", "status", "kind", "duration")}
_ALIASES |= {"trace:duration": "traceDuration", "trace:rootName": "rootName", "trace:rootService": "rootServiceName"}
_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


@dataclass(frozen=True, slots=True)
class Trace:
    """All spans of one trace that were sent."""

    spans: tuple[SpanRow, ...]

    @property
    def root(self) -> SpanRow | None:
        """The span without a parent of ours, the first where there are several."""
        ids = {span.span_id for span in self.spans}
        return next((span for span in self.spans if span.parent_id not in ids), None)

    def ancestors(self, span: SpanRow) -> list[SpanRow]:
        """From the parent up to the root; each span once, whatever ids a sender made up."""
        by_id = {one.span_id: one for one in self.spans}
        found: list[SpanRow] = []
        at = by_id.get(span.parent_id)
        while at is not None and at not in (span, *found):
            found.append(at)
            at = by_id.get(at.parent_id)
        return found

    @property
    def start_ns(self) -> int:
        return min(span.start_ns for span in self.spans)

    @property
    def end_ns(self) -> int:
        return max(span.end_ns for span in self.spans)

    @property
    def duration_s(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


@dataclass(frozen=True, slots=True)
class Attribute:
    """``scope`` is span, resource, intrinsic, or empty for span before resource."""

    scope: str
    name: str

    def of(self, span: SpanRow, trace: Trace) -> Value | None:
        if self.scope == "intrinsic":
            return INTRINSICS[self.name](span, trace)
        found = span.attributes.get(self.name) if self.scope in ("span", "") else None
        return span.resource.get(self.name) if found is None and self.scope in ("resource", "") else found


Matches: TypeAlias = Callable[[SpanRow, Trace], bool]


@dataclass(frozen=True, slots=True)
class Query:
    """``matches`` chooses spans; ``shown`` are the attributes of the filter and of select, in the query's order."""

    matches: Matches
    shown: tuple[Attribute, ...]


def parse(text: str) -> Query:
    """Raises QueryError, also for what is TraceQL and not known here."""
    try:
        return _whole(Cursor(tokens(text, _TOKEN)))
    except RecursionError:
        raise QueryError("the query is nested too deeply") from None


def _whole(cursor: Cursor) -> Query:
    shown: list[Attribute] = []
    matches = _spanset(cursor, shown)
    while cursor.here.text in (">", ">>"):
        nearest = cursor.take().text == ">"
        matches = _below(matches, _spanset(cursor, shown), nearest)
    while cursor.skip("|"):
        stage = cursor.kind("name").text
        if stage != "select":
            raise QueryError(f"this double of Tempo knows '| select(…)' and no '| {stage}'")
        cursor.expect("(")
        shown.append(_attribute(cursor.kind("name")))
        while cursor.skip(","):
            shown.append(_attribute(cursor.kind("name")))
        cursor.expect(")")
    if cursor.here.kind != "end":
        raise QueryError(
            f"this double of Tempo knows {{ … }}, > and >>, and '| select(…)', not what begins with {cursor.here.text!r}"
        )
    return Query(matches, tuple(dict.fromkeys(shown)))


def _spanset(cursor: Cursor, shown: list[Attribute]) -> Matches:
    cursor.expect("{")
    matches = _always if cursor.here.text == "}" else _either(cursor, shown)
    cursor.expect("}")
    return matches


def _below(upper: Matches, lower: Matches, nearest: bool) -> Matches:
    """Spans of ``lower`` whose parent, or where not ``nearest`` any ancestor, is one of ``upper``."""

    def matches(span: SpanRow, trace: Trace) -> bool:
        above = trace.ancestors(span)
        return lower(span, trace) and any(upper(one, trace) for one in (above[:1] if nearest else above))

    return matches


def _always(_span: SpanRow, _trace: Trace) -> bool:
    return True


def _either(cursor: Cursor, shown: list[Attribute]) -> Matches:
    parts = [_both(cursor, shown)]
    while cursor.skip("||"):
        parts.append(_both(cursor, shown))
    return lambda span, trace: any(part(span, trace) for part in parts)


def _both(cursor: Cursor, shown: list[Attribute]) -> Matches:
    parts = [_one(cursor, shown)]
    while cursor.skip("&&"):
        parts.append(_one(cursor, shown))
    return lambda span, trace: all(part(span, trace) for part in parts)


def _one(cursor: Cursor, shown: list[Attribute]) -> Matches:
    if cursor.skip("("):
        inside = _either(cursor, shown)
        cursor.expect(")")
        return inside
    if cursor.skip("true"):
        return _always
    attribute = _attribute(cursor.kind("name"))
    op = cursor.kind("op").text
    shown.append(attribute)
    return _comparison(attribute, op, cursor.kind("string", "number", "duration", "name"))


def _attribute(token: Token) -> Attribute:
    name = _ALIASES.get(token.text, token.text)
    if name in INTRINSICS:
        return Attribute("intrinsic", name)
    scope, dot, rest = name.partition(".")
    if dot and rest and scope in ("span", "resource", ""):
        return Attribute(scope, rest)
    raise QueryError(f"{token.text}: this double of Tempo knows span.…, resource.…, .… and {', '.join(INTRINSICS)}")


def _comparison(attribute: Attribute, op: str, token: Token) -> Matches:
    if token.text == "nil" and token.kind == "name":
        if op not in ("=", "!="):
            raise QueryError(f"nil: is compared by = and != and not by {op}")
        return lambda span, trace: (attribute.of(span, trace) is None) is (op == "=")
    wanted = _literal(attribute, token)
    if op in ("=~", "!~"):
        pattern = anchored(str(wanted))
        return lambda span, trace: _is_text(attribute.of(span, trace), lambda v: (pattern.match(v) is not None) is (op == "=~"))
    if op in ("=", "!="):
        return lambda span, trace: _same(attribute.of(span, trace), wanted, op == "=")
    return lambda span, trace: _ordered(attribute.of(span, trace), wanted, _ORDER[op])


def _literal(attribute: Attribute, token: Token) -> Value:
    if token.kind == "string":
        return unquoted(token.text)
    if token.kind == "duration":
        return seconds(token.text)
    if token.kind == "number":
        return float(token.text)
    if token.text in ("true", "false"):
        return token.text == "true"
    known = {"status": STATUSES, "kind": KINDS}.get(attribute.name, ()) if attribute.scope == "intrinsic" else ()
    if token.text not in known:
        raise QueryError(
            f"{token.text}: is not a value; texts stand in quotes" + (f"; allowed: {', '.join(known)}" if known else "")
        )
    return token.text


def _is_text(value: Value | None, holds: Callable[[str], bool]) -> bool:
    return isinstance(value, str) and holds(value)


def _kind_of(value: Value) -> type:
    return float if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value)


def _same(value: Value | None, wanted: Value, equal: bool) -> bool:
    """Values of different kinds are neither equal nor different: Tempo finds no such span."""
    return value is not None and _kind_of(value) is _kind_of(wanted) and (value == wanted) is equal


def _ordered(value: Value | None, wanted: Value, order: Callable[[Any, Any], bool]) -> bool:
    return value is not None and _kind_of(value) is _kind_of(wanted) and order(value, wanted)
