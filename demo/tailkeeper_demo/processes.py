"""Child processes of the demo: started with a log file each, watched, and ended in reverse order. No shell."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

END_GRACE_S = 5.0


class ProcessEndedError(RuntimeError):
    """A part of the demo ended by itself. The message has the end of its log."""


_PORTS = range(15_000, 32_000)
"""Below those that systems give to outgoing connections: one of these would not stay free until its program listens."""
_TRIES = 50


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    for port in (*random.sample(_PORTS, _TRIES), 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise OSError("no loopback port is free")


class Processes:
    """Owns the children; ``stop`` ends them, also after an error."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: list[str], **environment: str) -> None:
        """Start ``command`` in its own process group, with both outputs in ``name``.log."""
        with (self._folder / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C reaches the story alone, which ends the others in order
            )

    def check(self) -> None:
        """Raise ProcessEndedError where a child has ended."""
        for name, process in self._running.items():
            code = process.poll()
            if code is not None:
                raise ProcessEndedError(f"{name} ended with {code}:\n{self.tail(name)}")

    def tail(self, name: str, lines: int = 15) -> str:
        text = (self._folder / f"{name}.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def wait_for(self, what: str, ready: Callable[[], bool], deadline_s: float) -> None:
        """Poll until ``ready``. Raises ProcessEndedError, also when the deadline passes."""
        end = time.monotonic() + deadline_s
        while not ready():
            self.check()
            if time.monotonic() > end:
                raise ProcessEndedError(f"{what} was not ready within {deadline_s:g} s; logs are in {self._folder}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Ask politely, last started first; after the grace insist."""
        for process in reversed(self._running.values()):
            _signal(process, signal.SIGTERM)
        end = time.monotonic() + END_GRACE_S
        for process in self._running.values():
            try:
                process.wait(max(0.01, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                _signal(process, signal.SIGKILL)
                process.wait()
        self._running.clear()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.poll() is None:
        process.send_signal(number)
