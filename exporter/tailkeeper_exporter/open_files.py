"""How many files and sockets this process may have open: as many as the system lets it, for the usual soft limit is 1,024."""

from __future__ import annotations

import contextlib
import resource


def raise_limit() -> None:
    """Lift the soft limit to the hard one. Sockets to clients must not use up what the look at engines and gateways needs."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
