"""Tables in Markdown, and numbers as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table. Each row has a cell for each of ``head``."""
    return "\n".join(["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *("| " + " | ".join(row) + " |" for row in rows)])


def number(value: float, digits: int = 3) -> str:
    """With so many significant digits and commas between thousands, never in the form 1e+05."""
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.0f}" if rounded == int(rounded) and abs(rounded) >= 10 ** (digits - 1) else f"{rounded:,g}"


def duration(seconds: float) -> str:
    """In the unit in which it has at least one digit before the point."""
    for unit, of_a_second in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * of_a_second >= 1.0 or unit == "us":
            return f"{number(seconds * of_a_second)} {unit}"
    raise AssertionError("the last unit takes whatever is left")


def mebibytes(count: float) -> str:
    return f"{count / 1024**2:,.0f} MiB"
