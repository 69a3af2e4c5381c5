"""The doubles' query languages take any text: it is a query, or it is refused as one."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.doubles import logql, traceql
from tools.doubles.lexing import QueryError

PIECES = [
    '"x"',
    "`y`",
    "{",
    "}",
    "(",
    ")",
    "|",
    "||",
    "&&",
    "=",
    "!=",
    "=~",
    ">",
    "1",
    "1.5s",
    "[5m]",
    ",",
    "span.a",
    ".b",
    "name",
    "nil",
]
PIECES += ["true", "select", "json", "and", "or", "sum", "by", "rate", "count_over_time", "line_format", "error", '"(', "\\", "é"]
TEXTS = st.one_of(st.text(max_size=40), st.lists(st.sampled_from(PIECES), max_size=14).map(" ".join))


@pytest.mark.parametrize("parse", [traceql.parse, logql.parse], ids=["TraceQL", "LogQL"])
@given(text=TEXTS)
def test_any_text_is_a_query_or_is_refused(parse: Any, text: str) -> None:
    with contextlib.suppress(QueryError):
        parse(text)
