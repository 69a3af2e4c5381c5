"""The ledger's PostgreSQL server: reached, let in, allowed to write, of a version that is known. Looks, and writes nothing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tailkeeper.doctor.findings import Finding, Findings, Mistake
from tailkeeper_watchdog.settings import LedgerSettings

if TYPE_CHECKING:
    from tailkeeper_watchdog.postgres.words import Said

KEY = "watchdog.ledger"
LOOK_S = 8.0
"""Two hosts that do not answer, and the server's own time."""
_KEYS = {"UNREACHABLE": "url", "REFUSED": "password_file", "TLS": "ca_file", "READ_ONLY": "url"}
"""Where the setting stands that is most likely wrong; others are about the ledger as a whole."""


async def check_ledger(settings: LedgerSettings) -> Findings:
    try:
        from tailkeeper_watchdog.postgres.server import connect, user_of, where
    except ImportError:
        do = "pip install 'tailkeeper[postgres]'"
        return [Finding(Mistake.LEDGER_NO_CLIENT, KEY, "the client of PostgreSQL is not installed", do)]
    from tailkeeper_watchdog.postgres.leadership import EXPECTED
    from tailkeeper_watchdog.postgres.line import Line
    from tailkeeper_watchdog.postgres.tables import obstacle
    from tailkeeper_watchdog.postgres.words import said, what_to_do

    line = Line(partial(connect, settings))
    found: Said | None
    try:
        found = await line.use(partial(obstacle, schema=settings.in_schema), LOOK_S)
    except EXPECTED as error:
        found = said(error)
    finally:
        await line.close()
    if found is None:
        return []
    trouble = found.trouble
    key = f"{KEY}.{_KEYS[trouble.name]}" if trouble.name in _KEYS else KEY
    do = what_to_do(trouble, user_of(settings), settings.in_schema)
    return [Finding(Mistake[f"LEDGER_{trouble.name}"], key, f"the ledger at {where(settings)}: {found.what}", do)]
