"""Who we are and what we may do with a file, as the system sees it. Looks only."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path


def may(path: Path, mode: int) -> bool:
    """Whether the effective user may use ``path`` so (``os.R_OK | os.W_OK`` …); also False on a read-only file system."""
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def user() -> str:
    """Who runs this."""
    return names(os.geteuid(), 0)[0]


def names(uid: int, gid: int) -> tuple[str, str]:
    """Of user and group; their numbers where they have none, as in a container."""
    try:
        owner = pwd.getpwuid(uid).pw_name
    except KeyError:
        owner = str(uid)
    try:
        return owner, grp.getgrgid(gid).gr_name
    except KeyError:
        return owner, str(gid)
