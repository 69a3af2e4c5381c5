"""The version of the configuration's format: which one is read here, and what to do with a file in another one.

It is a number of its own and not the program's: it goes up only when a key that was valid goes, or means something else. New
keys do not change it. A file without one is taken to be in the current format.
"""

from __future__ import annotations

from typing import Any

from tailkeeper import __version__

CURRENT = 1
HOW = 'docs/operations.md, section "When the configuration\'s version changes"'


def wrong_version(document: dict[str, Any]) -> str | None:
    """What is wrong with the ``version`` of a file and what to do about it, or None."""
    if "version" not in document:
        return None
    given = document["version"]
    if not isinstance(given, int) or isinstance(given, bool):
        return f"version: must be a whole number; this version reads {CURRENT} (given: {given!r})"
    if given > CURRENT:
        return (
            f"version: {given} is newer than what tailkeeper {__version__} reads ({CURRENT}), so none of the file was used; "
            f"install the tailkeeper that it was written for, or write it in version {CURRENT} ({HOW})"
        )
    if given < CURRENT:
        return (
            f"version: {given} is older than what tailkeeper {__version__} reads ({CURRENT}), so none of the file was used; "
            f"change what {HOW}, lists, then set `version: {CURRENT}`"
        )
    return None
