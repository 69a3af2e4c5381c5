"""What one tap knows of all its requests together: how many wait and run, how much is waiting, when the backend last moved.

No I/O; times are passed in.
"""

from __future__ import annotations

SMOOTHING = 0.1
"""Weight of the newest request in the ratio of tokens to bytes: of the last twenty or so, whatever the mix of languages."""


class Book:
    """The counts of one tap. Written by its requests as they go."""

    def __init__(self) -> None:
        self.held = 0
        self.waiting = 0
        self.running = 0
        self.progress_s: float | None = None
        self.answered_s: float | None = None
        self.tokens_per_byte: float | None = None
        self._backlog_bytes = 0

    def enter(self) -> None:
        """A request has come, and waits for its first token."""
        self.held += 1

    def add(self, size: int) -> None:
        """So many bytes more (or less, where negative) wait for a first token."""
        self._backlog_bytes += size

    def send(self) -> None:
        """A request that was held in the tap goes to the backend."""
        self.held -= 1
        self.waiting += 1

    def first_token(self, size: int) -> None:
        """A request of ``size`` bytes has its first token."""
        self.waiting -= 1
        self.running += 1
        self._backlog_bytes -= size

    def leave(self, *, sent: bool, first_token: bool, size: int) -> None:
        """A request has ended, however it ended."""
        if first_token:
            self.running -= 1
            return
        self._backlog_bytes -= size
        if sent:
            self.waiting -= 1
        else:
            self.held -= 1

    @property
    def backlog_tokens(self) -> int | None:
        """Prompt tokens of the requests without a first token; None while the ratio is unknown and there are some."""
        if self._backlog_bytes == 0:
            return 0
        return None if self.tokens_per_byte is None else round(self._backlog_bytes * self.tokens_per_byte)

    def learn(self, size: int, prompt_tokens: int) -> None:
        """A request of ``size`` bytes had so many prompt tokens."""
        ratio = prompt_tokens / size
        before = ratio if self.tokens_per_byte is None else self.tokens_per_byte
        self.tokens_per_byte = before + SMOOTHING * (ratio - before)
