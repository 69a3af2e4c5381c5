"""How a command ends that cannot do what was asked: a line on stderr and an exit code.

0 is done, 1 failed at run time, 2 wrong usage or configuration.
"""

from __future__ import annotations

from typing import NoReturn

import typer

FAILED, USAGE = 1, 2


def fail(code: int, *lines: str) -> NoReturn:
    """Say what was wrong on stderr and end."""
    for line in lines:
        typer.echo(f"tailkeeper: {line}", err=True)
    raise typer.Exit(code)


def need(extra: str, error: ImportError) -> NoReturn:
    """``error`` says what is missing, ``extra`` what brings it."""
    fail(FAILED, f"this command needs more than is installed ({error.name}): pip install 'tailkeeper[{extra}]'")
