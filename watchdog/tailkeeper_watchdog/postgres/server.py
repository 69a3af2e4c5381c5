"""A connection to the PostgreSQL server of the configuration. Blocks, within a bound; keeps nothing.

Every wait has an end: ``CONNECT_S`` a host to connect, ``STATEMENT_S`` and ``LOCK_S`` in the server, and TCP's own signs of life
for a machine that is gone. A server that is frozen shows none of these: that is what `line` is for.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import psycopg

from tailkeeper_watchdog.postgres.words import PasswordFileError
from tailkeeper_watchdog.settings import LedgerSettings

CONNECT_S = 2
"""For each host of the URL; libpq waits no shorter. psycopg counts the whole handshake, that of TLS included."""
STATEMENT_S = 1.5
LOCK_S = 1.0
IDLE_IN_TRANSACTION_S = 3.0
"""A leader that is halted in the middle of a write keeps its row locked; the server ends that, so that another can lead."""
MAX_PASSWORD_BYTES = 4_096

Connection = psycopg.Connection[tuple[Any, ...]]


def connect(settings: LedgerSettings) -> Connection:
    """One connection that takes writes, in the ledger's schema. Raises psycopg.Error, OSError.

    The password is read from its file each time, so that it may be changed while the watchdog runs.
    """
    connection = psycopg.connect(settings.url, **_options(settings))
    try:
        connection.execute(
            "SELECT set_config('search_path', %s, false), set_config('statement_timeout', %s, false),"
            " set_config('lock_timeout', %s, false), set_config('idle_in_transaction_session_timeout', %s, false)",
            (f'"{settings.in_schema}"', *(f"{1e3 * s:.0f}ms" for s in (STATEMENT_S, LOCK_S, IDLE_IN_TRANSACTION_S))),
        )
    except BaseException:
        connection.close()
        raise
    return connection


def _options(settings: LedgerSettings) -> dict[str, Any]:
    files = {"sslrootcert": settings.ca_file, "sslcert": settings.cert_file, "sslkey": settings.key_file}
    return {
        "password": _password(settings),
        "sslmode": settings.tls,
        **{key: str(file) for key, file in files.items() if file is not None},
        "target_session_attrs": "read-write",
        "connect_timeout": CONNECT_S,
        "keepalives": 1,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": 10_000,
        "application_name": "tailkeeper",
        "client_encoding": "utf8",
        "autocommit": True,
        "prepare_threshold": None,  # poolers between us and the server do not keep prepared statements
    }


def _password(settings: LedgerSettings) -> str | None:
    """Raises PasswordFileError, without what is in the file."""
    file = settings.password_file
    if file is None:
        return None
    try:
        with file.open("rb") as opened:
            return opened.read(MAX_PASSWORD_BYTES).decode().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise PasswordFileError(f"watchdog.ledger.password_file: {file} cannot be read: {why}") from None


def user_of(settings: LedgerSettings) -> str:
    """Empty where libpq takes that of the process."""
    return urlsplit(settings.url).username or ""


def where(settings: LedgerSettings) -> str:
    """The place for people: it holds no secret, for the URL may carry none."""
    return f"{settings.url} (schema {settings.in_schema})"
