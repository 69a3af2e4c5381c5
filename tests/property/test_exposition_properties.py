"""Whatever bytes arrive, the parser answers with a page or a reason, and a page it wrote itself is read back."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_exporter.catalog import Kind
from tailkeeper_exporter.exposition import Page, PageError, PageParser

WANTED = {"g": Kind.GAUGE, "c_total": Kind.COUNTER, "h": Kind.HISTOGRAM}
PIECES = ("c_total", "h_bucket", "h_sum", "le", "-1", "NaN", "+Inf", "1_0", "# EOF", "# {", 'a="b"', "}}")
LINES = ('{le="1"} 5\n', "g 1\n", "other 2\n")
FRAGMENTS = st.sampled_from([*'g{}"\\=, \t\n\r#1e.١\x00\ufeff', *PIECES, *LINES])
HOSTILE = st.one_of(st.binary(max_size=300), st.lists(FRAGMENTS, max_size=60).map(lambda parts: "".join(parts).encode()))


def outcome(parser: PageParser, body: bytes) -> Page | str:
    try:
        return parser.parse(body)
    except PageError as error:
        return error.reason.value


@given(HOSTILE)
def test_any_bytes_give_a_page_of_finite_values_or_a_reason(body: bytes) -> None:
    result = outcome(PageParser(WANTED), body)
    if isinstance(result, Page):
        assert all(math.isfinite(value) for _, value in result.samples)
        assert len({key for key, _ in result.samples}) == len(result.samples)
        assert all(count > 0 for count in result.problems.values())
        assert len(result.samples) <= result.series


@given(st.lists(HOSTILE, min_size=1, max_size=4), HOSTILE)
def test_what_was_read_before_does_not_change_how_a_page_is_read(earlier: list[bytes], body: bytes) -> None:
    used = PageParser(WANTED)
    for page in earlier:
        outcome(used, page)
    assert outcome(used, body) == outcome(PageParser(WANTED), body)


LABEL_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=20)


def escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


@given(
    st.dictionaries(
        st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), LABEL_TEXT, max_size=3).map(
            lambda labels: tuple(sorted(labels.items()))
        ),
        st.floats(allow_nan=False, allow_infinity=False),
        min_size=1,
        max_size=8,
    )
)
def test_a_written_page_is_read_back_exactly(series: dict[tuple[tuple[str, str], ...], float]) -> None:
    lines = [
        "g{" + ",".join(f'{key}="{escaped(text)}"' for key, text in labels) + f"}} {value!r}" for labels, value in series.items()
    ]
    page = PageParser(WANTED).parse(("\n".join(lines) + "\n").encode())
    assert {key.labels: value for key, value in page.samples} == series
    assert not page.problems


@given(st.text(alphabet='"\\{}=,ab ', min_size=1_000, max_size=3_000))
def test_a_long_line_of_quotes_costs_no_backtracking(text: str) -> None:
    # Hypothesis' own deadline of 200 ms per example is the judge.
    outcome(PageParser(WANTED), f"g{{{text}\ng 1\n".encode())
