"""How a command says what it does while somebody waits: one line that is written over; elsewhere only the first."""

from __future__ import annotations

from typing import TextIO


class OneLine:
    """A line on ``stream``, for a terminal; a file gets what is said first and no more."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lively = stream.isatty()
        self._said = False

    def say(self, text: str) -> None:
        if self._lively:
            self._write(f"\r\x1b[Ktailkeeper: {text}")
        elif not self._said:
            self._write(f"tailkeeper: {text}\n")
        self._said = True

    def end(self) -> None:
        """Take the line away."""
        if self._lively and self._said:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
