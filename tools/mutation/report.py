"""What came of the mutants: figures for docs/results/mutation.json, and the survivors for people."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.mutation.mutants import Mutant
from tools.mutation.trying import KILLED, TIMED_OUT
from tools.results.envelope import write

LIMIT_RATIO = 0.9
"""Of all mutants of a part, those that nobody can notice included."""
EQUIVALENT = Path(__file__).with_name("equivalent.toml")

Tried = tuple[str, str, Mutant, str | None]
"""Part, module, mutant, and its outcome; None where it was not tried."""


@dataclass(frozen=True, slots=True)
class Equivalent:
    """A survivor that changes nothing anybody could notice, and why. Found again by its words, whatever line they are on."""

    module: str
    function: str
    words: str
    reason: str


def equivalents(file: Path = EQUIVALENT) -> list[Equivalent]:
    """As they are listed. Raises TypeError for an entry that lacks something or has something else."""
    if not file.is_file():
        return []
    return [Equivalent(**entry) for entry in tomllib.loads(file.read_text(encoding="utf-8")).get("mutant", ())]


def report(tried: Sequence[Tried], write_it: bool) -> int:
    """Prints, writes if told so; 1 where a part is under the limit or something was not tried."""
    known = {(one.module, one.function, one.words) for one in equivalents()}
    survivors = [one for one in tried if one[3] is not None and one[3] not in (KILLED, TIMED_OUT)]
    judged: list[Tried] = []
    open_ones: list[Tried] = []
    for one in survivors:
        _, module, mutant, outcome = one
        key = (module, mutant.function, mutant.words)
        (judged if key in known else open_ones).append(one)
        if key not in known:
            print(f"{module}:{mutant.first_line} {mutant.function}: {mutant.kind}: {mutant.words} ({outcome})")
    figures = _figures(tried, judged, open_ones)
    for name, row in figures["parts"].items():
        share = row["killed"] / row["mutants"]
        print(f"{name}: {row['killed']} of {row['mutants']} killed ({share:.1%}), {row['equivalent']} equivalent")
    stale = known - {(module, mutant.function, mutant.words) for _, module, mutant, _ in judged}
    for key in sorted(key for key in stale if key[0] in {module for _, module, *_ in tried}):
        print(f"equivalent.toml: no survivor is {' '.join(key)}", file=sys.stderr)
    missing = sum(outcome is None for *_, outcome in tried)
    if missing:
        print(f"{missing} were not tried", file=sys.stderr)
    elif write_it:
        print(write("mutation", "make mutation", figures))
    return int(bool(missing) or any(row["killed"] < LIMIT_RATIO * row["mutants"] for row in figures["parts"].values()))


def _figures(tried: Iterable[Tried], judged: Sequence[Tried], survived: Sequence[Tried]) -> dict[str, Any]:
    parts: dict[str, dict[str, int]] = {}
    modules: dict[str, dict[str, int]] = {}
    kinds: dict[str, dict[str, int]] = {}
    for part, module, mutant, outcome in tried:
        for table, name in ((parts, part), (modules, module), (kinds, mutant.kind)):
            row = table.setdefault(name, {"mutants": 0, "killed": 0, "equivalent": 0, "survived": 0})
            row["mutants"] += 1
            row["killed"] += outcome in (KILLED, TIMED_OUT)
    for group, column in ((judged, "equivalent"), (survived, "survived")):
        for part, module, mutant, _ in group:
            for table, name in ((parts, part), (modules, module), (kinds, mutant.kind)):
                table[name][column] += 1
    reasons = {(one.module, one.function, one.words): one.reason for one in equivalents()}
    return {
        "limit_ratio": LIMIT_RATIO,
        "parts": parts,
        "modules": modules,
        "kinds": dict(sorted(kinds.items())),
        "equivalent": [
            {**_told(module, mutant), "reason": reasons[module, mutant.function, mutant.words]} for _, module, mutant, _ in judged
        ],
        "survivors": [_told(module, mutant) for _, module, mutant, _ in survived],
    }


def _told(module: str, mutant: Mutant) -> Mapping[str, str]:
    return {"module": module, "function": mutant.function, "words": mutant.words}
