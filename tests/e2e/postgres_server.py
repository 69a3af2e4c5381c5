"""A real PostgreSQL server for tests: a cluster of its own in a folder of its own, on a loopback port and a socket there.

It is made and run as a user that is not root, which PostgreSQL refuses; where root runs the tests, that is ``postgres`` or
``nobody``. Nothing is synced to disk: what the kernel has outlives a killed server, and no test cuts the power. Ended by its pid.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.e2e.real_programs import free_port, wait_until

INSTALL = "PostgreSQL is missing; apt-get install -y --no-install-recommends postgresql"
ADMIN, ROLE, DATABASE, PASSWORD = "admin", "tailkeeper", "tailkeeper", "only-for-tests"
_SETTINGS = ("fsync=off", "full_page_writes=off", "shared_buffers=16MB", "max_connections=40", "autovacuum=off")


def program(name: str) -> str:
    """The path of a program of PostgreSQL, or the end of this test as in ``real_programs.binary``."""
    found = shutil.which(name) or next((str(p) for p in sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))[::-1]), None)
    if found is not None:
        return found
    if os.environ.get("TAILKEEPER_REAL") == "1":
        pytest.fail(INSTALL)
    pytest.skip(INSTALL)


def _user() -> str | None:
    """Who runs the server where root may not; None where we are somebody else already."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


class PostgresServer:
    """Makes the cluster; ``start`` runs it. ``folder`` must be one that any user may go to."""

    def __init__(self, folder: Path, replica_of: PostgresServer | None = None) -> None:
        self.folder, self.port = folder, free_port()
        self._user = _user()
        self._process: subprocess.Popen[bytes] | None = None
        secret = folder / "admin"
        secret.write_text(PASSWORD)
        if self._user is not None:
            shutil.chown(folder, self._user)
            shutil.chown(secret, self._user)
        words = [program("initdb"), "-U", ADMIN, f"--pwfile={secret}", "-A", "scram-sha-256", "-E", "UTF8", "--locale=C"]
        if replica_of is not None:
            source = f"host=127.0.0.1 port={replica_of.port} user={ADMIN} password={PASSWORD}"
            words = [program("pg_basebackup"), "-d", source, "-R", "-c", "fast"]
        argv = [*words, "-D", str(self.data), "--no-sync"]
        subprocess.run(argv, check=True, capture_output=True, user=self._user, cwd=folder)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def url(self) -> str:
        return f"postgresql://{ROLE}@127.0.0.1:{self.port}/{DATABASE}"

    @property
    def socket_url(self) -> str:
        return f"postgresql://{ROLE}@/{DATABASE}?host={self.folder}&port={self.port}"

    def start(self, *settings: str) -> None:
        given = [
            word for setting in (*_SETTINGS, f"unix_socket_directories={self.folder}", *settings) for word in ("-c", setting)
        ]
        words = ["-D", str(self.data), "-p", str(self.port), "-c", "listen_addresses=127.0.0.1", *given]
        with (self.folder / "log").open("ab") as log:
            argv = [program("postgres"), *words]
            self._process = subprocess.Popen(
                argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, user=self._user, cwd=self.folder
            )
        wait_until(self._is_up, "PostgreSQL takes connections")

    def start_with_tls(self, cert: Path, key: Path) -> None:
        """Both are copied, for the server wants its key to be its own."""
        for name, file in (("server.crt", cert), ("server.key", key)):
            copy = self.folder / name
            copy.write_bytes(file.read_bytes())
            copy.chmod(0o600)
            if self._user is not None:
                shutil.chown(copy, self._user)
        self.start("ssl=on", f"ssl_cert_file={self.folder}/server.crt", f"ssl_key_file={self.folder}/server.key")

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()[-2_000:]
        with contextlib.suppress(psycopg.OperationalError), self.admin("postgres"):
            return True
        return False

    def admin(self, database: str = DATABASE) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection of the administrator, each statement on its own."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=ADMIN, password=PASSWORD, dbname=database, autocommit=True, connect_timeout=5
        )

    def make_database(self) -> None:
        with self.admin("postgres") as admin:
            admin.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}'".encode())
            admin.execute(f"CREATE DATABASE {DATABASE} OWNER {ROLE}".encode())

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """By the administrator; rows of the last one."""
        with self.admin() as admin:
            for statement in statements:
                cursor = admin.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def _all(self) -> Sequence[int]:
        """The server's process and those that serve connections, its children."""
        assert self._process is not None
        listed = (Path("/proc") / name / "stat" for name in os.listdir("/proc") if name.isdigit())
        children = []
        for stat in listed:
            with contextlib.suppress(OSError):
                pid, _, rest = stat.read_text().partition(" (")
                if rest.rpartition(")")[2].split()[1] == str(self._process.pid):
                    children.append(int(pid))
        return [self._process.pid, *children]

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in self._all():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def freeze(self) -> None:
        """Nothing in it moves any more; its kernel goes on acknowledging what it is sent."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)

    def promote(self) -> None:
        """A replica takes writes from now on."""
        with self.admin() as admin:
            admin.execute("SELECT pg_promote()")

    def kill(self) -> None:
        """SIGKILL to all of it."""
        assert self._process is not None
        self._signal_all(signal.SIGKILL)
        self._process.wait(10)

    def stop(self) -> None:
        """At once, connections or not."""
        if self._process is not None and self._process.poll() is None:
            self.thaw()
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()


@contextlib.contextmanager
def postgres_server(replica_of: PostgresServer | None = None) -> Iterator[PostgresServer]:
    """A running server with the database and the role of the tests, or a replica of one that has them."""
    program("initdb")
    folder = Path(tempfile.mkdtemp(prefix="tk-pg-"))
    folder.chmod(0o755)
    server = None
    try:
        server = PostgresServer(folder, replica_of)
        server.start()
        if replica_of is None:
            server.make_database()
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)
