"""Generated texts and the files below a folder: written, or compared. Knows nothing of what is in them."""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path

MAX_DIFF_LINES = 12


def write(rendered: dict[str, str], base: Path) -> None:
    for path, text in rendered.items():
        file = base / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def differences(rendered: dict[str, str], base: Path) -> list[str]:
    """One entry for each file that is missing or differs, with the beginning of the difference."""
    wrong = []
    for path, text in rendered.items():
        file = base / path
        if not file.is_file():
            wrong.append(f"{path}: missing")
            continue
        found = file.read_text(encoding="utf-8")
        if found != text:
            lines = list(unified_diff(found.splitlines(), text.splitlines(), "committed", "generated", lineterm="", n=1))
            wrong.append("\n".join([f"{path}: differs", *lines[:MAX_DIFF_LINES]]))
    return wrong
