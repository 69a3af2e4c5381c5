"""Runs commands of ours one after the other, logged down to debug, our own code failing now and then where secrets are near."""

from __future__ import annotations

import itertools
import json
import logging
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from tailkeeper import cli
from tailkeeper.logs import set_up
from tailkeeper_exporter import fetch, server
from tailkeeper_watchdog import loop, notify
from tailkeeper_watchdog.actuators import http_calls
from tailkeeper_watchdog.api import documents

EVERY = 3


def _failing(real: Callable[..., Any], what: str, every: int = EVERY) -> Callable[..., Any]:
    """``real``, and an error of ours instead of every third of its calls."""
    count = itertools.count(1)

    def called(*arguments: Any, **named: Any) -> Any:
        if next(count) % every == 0:
            raise RuntimeError(f"forced in {what}")
        return real(*arguments, **named)

    return called


def _everything(real: Callable[..., None]) -> Callable[..., None]:
    """Down to debug, but for what `set_up` keeps quiet by name: libraries whose debug lines are whole headers."""

    def louder(*arguments: Any, **named: Any) -> None:
        real(*arguments, **named)
        logging.getLogger().setLevel(logging.DEBUG)

    return louder


def _run(argv: Sequence[str]) -> None:
    """One command, as if it were alone."""
    print("==", argv[0], flush=True)
    sys.argv = ["tailkeeper", *argv]
    try:
        cli.main()
    except SystemExit:
        return
    except Exception:
        sys.excepthook(*sys.exc_info())  # which is the command line's own by now


def _fail_in(module: ModuleType, name: str, every: int = EVERY) -> None:
    setattr(module, name, _failing(getattr(module, name), module.__name__.rpartition(".")[2], every))


if __name__ == "__main__":
    setattr(cli, "set_up", _everything(set_up))  # noqa: B010 - it is imported there
    commands = json.loads(sys.argv[1])
    for module, name in ((fetch, "_body"), (http_calls, "_whole"), (notify, "excerpt")):
        _fail_in(module, name)
    if commands[0][0] == "up":
        for module, name, every in ((documents, "policies", 1), (server, "_requests", 1), (loop, "plan", EVERY)):
            _fail_in(module, name, every)
    for command in commands:
        _run(command)
