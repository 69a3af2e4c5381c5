"""Request records from a CSV file. A cell that is no number is an error with its line and column; an empty cell is unknown."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from math import nan
from pathlib import Path

import numpy as np

from tailkeeper_watchdog.drift import Rows
from tailkeeper_watchdog.drift.rows import AT, LATENCY

CSV_COLUMNS = ("start_s", "ttft_s", "prompt_tokens", "backlog_tokens", "running", "waiting")
MOST_ROWS = 5_000_000
"""240 MB of numbers."""
_SHOWN = 40


def read_requests(path: Path) -> Rows:
    """The rows in the file's order, with the time of the first token where the file has the start.

    Raises ValueError naming line and column, OSError where the file cannot be read.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            lines = np.fromiter(_lines(reader), dtype=np.dtype((np.float64, len(CSV_COLUMNS))))
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"line {reader.line_num + 1}: not CSV in UTF-8 ({error})") from error
    table = np.asarray(lines, dtype=np.float64)
    table[:, AT] += table[:, LATENCY]
    return Rows(table)


def _lines(reader: Iterator[list[str]]) -> Iterator[tuple[float, ...]]:
    header = [name.strip() for name in next(reader, [])]
    missing = [name for name in CSV_COLUMNS if name not in header]
    if missing:
        raise ValueError(f"line 1: column {missing[0]} is missing; wanted are {', '.join(CSV_COLUMNS)}")
    places = [header.index(name) for name in CSV_COLUMNS]
    for number, cells in enumerate(reader, 2):
        if not cells:
            continue
        if number > MOST_ROWS:
            raise ValueError(f"line {number}: more than {MOST_ROWS:,} rows")
        yield _numbers(cells, places, number, len(header))


def _numbers(cells: Sequence[str], places: Sequence[int], line: int, wanted: int) -> tuple[float, ...]:
    if len(cells) != wanted:
        raise ValueError(f"line {line}: {len(cells)} cells, but the header has {wanted} columns")
    try:
        return tuple(float(cells[place]) if cells[place].strip() else nan for place in places)
    except ValueError:
        name = next(name for name, place in zip(CSV_COLUMNS, places, strict=True) if not _is_number(cells[place]))
        cell = repr(cells[places[CSV_COLUMNS.index(name)]])[:_SHOWN]
        raise ValueError(f"line {line}, column {name}: {cell} is not a number") from None


def _is_number(cell: str) -> bool:
    try:
        float(cell or "0")
    except ValueError:
        return not cell.strip()
    return True
