"""The command around the checks: a line of progress while they run, then the report."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from typing import TextIO

from tailkeeper.auth_options import auth_in
from tailkeeper.config import Config
from tailkeeper.doctor import Also, examine, report
from tailkeeper_exporter.hiding import hidden
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


def server_of(prometheus: str | None, auth: Sequence[str]) -> Also | None:
    """The Prometheus that the command line names, with its credentials as KEY=FILE. Raises ValueError with a sentence."""
    try:
        url = check_url(prometheus)
    except ValueError as error:
        raise ValueError(f"--prometheus: {error} (given: {hidden(prometheus or '')!r})") from error
    credentials = auth_in(auth, url)
    return None if url is None else Also(url, credentials)


def run(config: Config, file: str, prometheus: Also | None, as_json: bool, progress: ProgressLine) -> tuple[str, int]:
    """What to print, and how many things are wrong."""
    found = examine(config, progress, prometheus)
    progress.end()
    width = shutil.get_terminal_size((80, 24)).columns
    return (json.dumps(report.document(found), indent=2) if as_json else report.text(found, file, width)), found.wrong
