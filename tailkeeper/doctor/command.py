"""The command around the checks: a line of progress while they run, then the report."""

from __future__ import annotations

import json
import shutil
from typing import TextIO

from tailkeeper.config import Config
from tailkeeper.doctor import examine, report
from tailkeeper_exporter.settings import check_url


class ProgressLine:
    """One line that is written over, on a terminal; elsewhere one line at the beginning and no more."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lively = stream.isatty()
        self._said = False

    def __call__(self, done: int, of: int) -> None:
        if self._lively:
            self._write(f"\rtailkeeper: checked {done} of {of} ")
        elif not self._said:
            self._write(f"tailkeeper: checking {of} connections and things of this machine\n")
        self._said = True

    def end(self) -> None:
        if self._lively and self._said:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def run(config: Config, file: str, prometheus_url: str | None, as_json: bool, progress: ProgressLine) -> tuple[str, int]:
    """What to print, and how many things are wrong. Raises ValueError for a URL that is none."""
    found = examine(config, progress, check_url(prometheus_url))
    progress.end()
    width = shutil.get_terminal_size((80, 24)).columns
    return (json.dumps(report.document(found), indent=2) if as_json else report.text(found, file, width)), found.wrong
