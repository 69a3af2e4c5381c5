"""Mutants by module, and which of those that nobody noticed are judged to change nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

HEAD = ("| {} | mutants | killed | judged equivalent | survived | killed of all |", "|---|---|---|---|---|---|")


def table(figures: Mapping[str, Any]) -> str:
    """By part and by module, by kind of mistake, the equivalent ones with their reasons, and the other survivors."""
    return "\n".join(
        (
            *_rows("part", figures["parts"]),
            "",
            *_rows("module", figures["modules"]),
            "",
            *_rows("kind of mistake", figures["kinds"]),
            "",
            *_folded("Judged equivalent: nobody could notice them", _equivalent(figures["equivalent"])),
            "",
            *_folded("Survived", (f"- {_told(one)}" for one in figures["survivors"])),
        )
    )


def _rows(what: str, rows: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    yield HEAD[0].format(what)
    yield HEAD[1]
    for name, row in rows.items():
        counts = " | ".join(f"{row[column]:,}" for column in ("mutants", "killed", "equivalent", "survived"))
        yield f"| {name} | {counts} | {row['killed'] / row['mutants']:.1%} |"


def _equivalent(found: Iterable[Mapping[str, str]]) -> Iterator[str]:
    for reason, same in groupby(sorted(found, key=lambda one: one["reason"]), key=lambda one: one["reason"]):
        yield f"- {reason}"
        yield from (f"  - {_told(one)}" for one in same)


def _told(one: Mapping[str, str]) -> str:
    before, _, after = one["words"].partition(" → ")
    where = f"{one['module'].partition('.')[2]}.{one['function']}".strip(".")
    return f"{where}: ``{_cut(before)}`` → ``{_cut(after)}``"


def _cut(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:97]}…"


def _folded(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield from ("<details>", f"<summary>{title}</summary>", "", *lines, "", "</details>")
