"""Where the source of a module lies, and which tests are the fast ones: said once for the tools that measure either."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("exporter", "watchdog")
FAST = ("tests/unit", "tests/property", "tests/scenario")


def file_of(module: str) -> Path:
    """Of a package its ``__init__.py``. Raises FileNotFoundError for what is in neither folder."""
    for folder in FOLDERS:
        path = ROOT / folder / Path(*module.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file
    raise FileNotFoundError(f"{module}: no such module in {' or '.join(FOLDERS)}")
