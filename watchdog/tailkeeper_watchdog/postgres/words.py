"""What is the matter with a PostgreSQL server, in words: which kind of trouble it is, and what is to be done. No I/O.

Messages of the server are cut and never hold a password: libpq does not put it there, and the configuration's URL may carry none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import reduce

import psycopg

MAX_SAID_CHARS = 300


class Trouble(Enum):
    """Kinds of trouble, each with what to do; ``{user}`` and ``{schema}`` are filled in."""

    UNREACHABLE = "is it running, and may this machine reach it? A server that is down or slow is tried again by itself"
    REFUSED = "check user and database in watchdog.ledger.url, the password in its password_file, and the server's pg_hba.conf"
    TLS = "check watchdog.ledger.sslmode and ca_file, and that the certificate is for the host in watchdog.ledger.url"
    READ_ONLY = "name the primary in watchdog.ledger.url, or all servers as host1,host2: the one that takes writes is found"
    NO_RIGHTS = (
        "let an administrator run: CREATE SCHEMA IF NOT EXISTS {schema} AUTHORIZATION {user} (where its tables are there and"
        " belong to another role: GRANT USAGE on it, and SELECT, INSERT, UPDATE, DELETE on all of them)"
    )
    NEWER = "upgrade this program, or name another schema in watchdog.ledger.in_schema"
    OTHER = "it is tried again by itself"


@dataclass(frozen=True, slots=True)
class Said:
    """``what`` is a sentence without a place in it."""

    trouble: Trouble
    what: str


class NewerSchemaError(Exception):
    """The tables were made by a newer version."""


class NoAnswerError(Exception):
    """The server did not answer within its time."""


class PasswordFileError(OSError):
    """The file with the password cannot be used."""


_BY_STATE = {
    "25006": Trouble.READ_ONLY,
    "55P03": Trouble.OTHER,
    "57014": Trouble.OTHER,
    "42501": Trouble.NO_RIGHTS,
    "3F000": Trouble.NO_RIGHTS,
    "28000": Trouble.REFUSED,
    "28P01": Trouble.REFUSED,
    "3D000": Trouble.REFUSED,
}
_BY_PHRASE: Iterable[tuple[tuple[str, ...], Trouble]] = (
    (("session is read-only", "server is in hot standby mode"), Trouble.READ_ONLY),
    (("authentication failed", "no password supplied", "no pg_hba.conf entry", "does not exist"), Trouble.REFUSED),
    (("certificate", "ssl", "tls"), Trouble.TLS),
    (
        ("timeout", "refused", "no answer", "closed the connection", "could not translate", "unreachable", "resolve",
         "starting up", "shutting down", "terminating connection", "connection is lost", "too many clients", "connection slots"),
        Trouble.UNREACHABLE,
    ),
)  # fmt: skip
"""A refused connection has no SQLSTATE, only libpq's words, here in lower case; the first that fits counts."""
_CHATTER = (
    "connection failed: ",
    "consuming input failed: ",
    " Is the server running on that host and accepting TCP/IP connections?",
    " Is the server running locally and accepting connections on that socket?",
    " This probably means the server terminated abnormally before or while processing the request.",
)


def said(error: BaseException) -> Said:
    """What is the matter, from what was raised while the server was used."""
    if isinstance(error, NewerSchemaError):
        return Said(Trouble.NEWER, str(error))
    if isinstance(error, PasswordFileError):
        return Said(Trouble.REFUSED, str(error))
    text = reduce(lambda words, chatter: words.replace(chatter, ""), _CHATTER, " ".join(str(error).split()))
    text = text[:MAX_SAID_CHARS].rstrip(" .") or type(error).__name__
    state = getattr(error, "sqlstate", None)
    if state in _BY_STATE:
        return Said(_BY_STATE[state], text)
    lower = text.lower()
    found = next((trouble for phrases, trouble in _BY_PHRASE if any(phrase in lower for phrase in phrases)), None)
    if found is None:
        found = Trouble.UNREACHABLE if isinstance(error, psycopg.OperationalError | OSError | NoAnswerError) else Trouble.OTHER
    return Said(found, text)


def what_to_do(trouble: Trouble, user: str, schema: str) -> str:
    return trouble.value.format(user=user or "ITS_USER", schema=schema)


def sentence(error: BaseException, where: str, user: str, schema: str) -> str:
    """What was wrong, where, what to do."""
    found = said(error)
    return f"the ledger at {where}: {found.what}; {what_to_do(found.trouble, user, schema)}"
