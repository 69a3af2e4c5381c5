"""Numbers and names in the sentences that people read: how many of what, and a few names for many. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def plural(number: int, word: str) -> str:
    """``1 gateway``, ``2,000 backends``: for words that get an s."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def some(names: Sequence[str], most: int) -> str:
    """At most ``most`` of the names, and how many more there are."""
    more = len(names) - most
    return f"{', '.join(names[:most])} and {more:,} more" if more > 0 else ", ".join(names)
