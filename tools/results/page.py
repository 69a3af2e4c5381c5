"""Fills the tables of docs/ from the committed results in docs/results/.

    python -m tools.results.page [--check]

A page has, each on a line of its own, ``<!-- results: NAME -->`` and ``<!-- end of results -->``. Between them goes what
``def table(figures) -> str`` in ``tools/results/tables/NAME.py`` makes of the figures in ``docs/results/NAME.json``, and under it
the command that makes them again, date and machine. So a new table is a JSON, a module and two marks. A module with ``def
summary(results) -> str`` in its place has no JSON of its own: it gets the documents of all results by name. ``--check`` writes
nothing and ends with 1 where a page is not as its results say.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tools.results.envelope import RESULTS

DOCS = RESULTS.parent
TABLES = "tools.results.tables"
_BLOCK = re.compile(r"^<!-- results: (?P<name>\w+) -->$\n(?P<body>.*?)^<!-- end of results -->$", re.M | re.S)
_ANY_MARK = re.compile(r"<!-- *(?:results:|end of results)")

Documents = Mapping[str, Mapping[str, Any]]


def documents(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """All results by name."""
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))}


def names(text: str) -> list[str]:
    """Of the tables of a page. Raises ValueError for a mark without its other."""
    found = _BLOCK.findall(text)
    if any("results:" in body for _, body in found) or len(_ANY_MARK.findall(text)) != 2 * len(found):
        raise ValueError("a mark of results stands without its other, or not on a line of its own")
    return [name for name, _ in found]


def fill(text: str, results: Documents) -> str:
    """The page with its tables. Raises ValueError for a mark without its other and for a table that nothing makes."""
    names(text)
    return _BLOCK.sub(lambda block: _block(block["name"], results), text)


def _block(name: str, results: Documents) -> str:
    if find_spec(f"{TABLES}.{name}") is None:
        raise ValueError(f"results: {name}: there is no tools/results/tables/{name}.py")
    module = import_module(f"{TABLES}.{name}")
    if hasattr(module, "summary"):
        said = module.summary(results).strip()
    elif name in results:
        said = f"{module.table(results[name]['figures']).strip()}\n\n{_origin(results[name])}"
    else:
        said = "*Not measured yet.*"
    return f"<!-- results: {name} -->\n\n{said}\n\n<!-- end of results -->"


def _origin(result: Mapping[str, Any]) -> str:
    of = result["machine"]
    memory = "" if of["memory_gib"] is None else f", {of['memory_gib']:.0f} GiB"
    where = f"{of['cores']} cores of {of['cpu'] or 'an unknown CPU'}{memory}, Python {of['python']}"
    load = f", load {result['load']:.1f} when it began" if "load" in result else ""
    return f"*`{result['command']}`: {result['date']}, version {result['version']}, {where}{load}.*"


def main(arguments: list[str]) -> int:
    check, results, stale = "--check" in arguments, documents(), []
    for file in sorted(DOCS.rglob("*.md")):
        text = file.read_text(encoding="utf-8")
        try:
            filled = fill(text, results)
        except ValueError as error:
            print(f"{file.relative_to(DOCS.parent)}: {error}", file=sys.stderr)
            return 1
        if filled != text:
            stale.append(file.relative_to(DOCS.parent))
            if not check:
                file.write_text(filled, encoding="utf-8")
    for page in stale:
        print(f"{page}: {'is not as docs/results says; run python -m tools.results.page' if check else 'written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
