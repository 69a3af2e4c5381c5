"""Programs that are started, stopped, killed and started again at the same address, each with a log of its own. No shell.

Only the harness may end one: a program that ends by itself is what `check` tells. Ended by pid, all of them at the end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

END_WITHIN_S = 10.0


@dataclass(slots=True)
class Life:
    """One process of a program. Monotonic seconds; ``ended`` None while it lives."""

    pid: int
    started: float
    ended: float | None = None


@dataclass
class Program:
    """``ours`` are judged by their memory; others are only told of. ``ready`` says whether it answers."""

    name: str
    argv: Sequence[str]
    log: Path
    ready: Callable[[], bool]
    ours: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    lives: list[Life] = field(default_factory=list)
    is_paused: bool = False
    _process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """None while it is not there."""
        return None if self._process is None else self._process.pid

    @property
    def life(self) -> Life | None:
        return self.lives[-1] if self._process is not None else None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                list(self.argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
                start_new_session=True,  # Ctrl-C reaches the harness alone, which ends the others
            )
        self.lives.append(Life(self._process.pid, time.monotonic()))

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)
            self.is_paused = True

    def go_on(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
        self.is_paused = False

    def end(self) -> int | None:
        """Ask it to end, then insist; its exit code, None where it had to be killed."""
        if self._process is None:
            return None
        self.go_on()
        self._process.terminate()
        try:
            code: int | None = self._process.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            code = None
        self._end(signal.SIGKILL)
        return code

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(number)
        self._process.wait()
        self.lives[-1].ended = time.monotonic()
        self._process, self.is_paused = None, False

    def check(self) -> str | None:
        """In words, where it has ended although nobody told it to; it counts as not there from then on."""
        if self._process is None or self._process.poll() is None:
            return None
        code = self._process.returncode
        self.lives[-1].ended = time.monotonic()
        self._process = None
        return f"{self.name} ended by itself with {code}: {self.tail()}".strip()

    def tail(self, chars: int = 800) -> str:
        return self.log.read_text(errors="replace")[-chars:] if self.log.exists() else ""


def wait_ready(programs: Sequence[Program], within_s: float) -> None:
    """Raises RuntimeError with the end of the log of one that does not become ready."""
    end = time.monotonic() + within_s
    for program in programs:
        while not program.ready():
            told = program.check()
            if told is not None or time.monotonic() > end:
                raise RuntimeError(told or f"{program.name} was not ready within {within_s:g} s: {program.tail()}")
            time.sleep(0.05)
