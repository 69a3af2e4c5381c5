"""rotel, an OpenTelemetry collector that shares no code with us: it prints every span it gets, or sends it on over OTLP/HTTP."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.e2e.real_programs import free_port, running


def rotel_binary() -> str:
    """The agent in the wheel `rotel`, or the end of this test: skipped, or failed under ``TAILKEEPER_REAL=1``."""
    spec = find_spec("rotel")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        if (program := Path(folder) / "rotel-agent").exists():
            return str(program)
    message = "rotel-agent is missing; pip install rotel"
    if os.environ.get("TAILKEEPER_REAL") == "1":
        pytest.fail(message)
    pytest.skip(message)


@dataclass(frozen=True)
class Printed:
    """One span or log record as rotel printed it; ``attributes`` as text with rotel's type, such as ``Int(20)``."""

    fields: dict[str, str]
    attributes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Rotel:
    url: str
    log: Path

    def spans(self) -> list[Printed]:
        return self._printed("Span #")

    def logs(self) -> list[Printed]:
        return self._printed("LogRecord #")

    def _printed(self, heading: str) -> list[Printed]:
        parts = re.split(rf"^{heading}\d+\n", self.log.read_text(), flags=re.MULTILINE)[1:]
        return [_one(re.split(r"^(?:Resource|Scope|Span|LogRecord)\w* #", part, flags=re.MULTILINE)[0]) for part in parts]


def _one(text: str) -> Printed:
    printed = Printed({})
    for line in text.splitlines():
        name, _, value = line.strip().removeprefix("-> ").partition(":")
        (printed.attributes if line.strip().startswith("->") else printed.fields)[name.strip()] = value.strip()
    return printed


@contextmanager
def rotel(tmp_path: Path, exporter: Sequence[str] = ("--exporter", "blackhole"), at: int | None = None) -> Iterator[Rotel]:
    """A running agent with everything it gets printed in detail; ``exporter`` says where it sends, ``at`` its port."""
    port, grpc = at or free_port(), free_port()
    argv = [rotel_binary(), "start", "--pid-file", str(tmp_path / f"{port}.pid"), *exporter]
    argv += ["--otlp-http-endpoint", f"127.0.0.1:{port}", "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}"]
    argv += ["--debug-log", "traces", "--debug-log", "logs", "--debug-log-verbosity", "detailed", "--batch-timeout", "100ms"]
    log = tmp_path / f"rotel-{port}.log"
    with running(argv, log, ready=lambda: _listens(port)):
        yield Rotel(f"http://127.0.0.1:{port}", log)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except OSError:
        return False
    return True
