"""The fixture that starts real programs; the routers among them are kept until the end of the session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.contract.router_worlds import ContractPrograms, KeptRouters
from tests.contract.tls_world import TlsWorld
from tests.contract.tls_world import tls_world as a_tls_world
from tests.e2e.postgres_server import PostgresServer, postgres_server


@pytest.fixture(scope="session")
def kept_routers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeptRouters]:
    with ExitStack() as stack:
        yield KeptRouters(stack, tmp_path_factory.mktemp("routers"))


@pytest.fixture(scope="session")
def tls_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsWorld]:
    with a_tls_world(tmp_path_factory.mktemp("tls")) as world:
        yield world


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for all; a test that makes it sick heals it, and each takes a schema of its own."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def programs(tmp_path: Path, kept_routers: KeptRouters) -> Iterator[ContractPrograms]:
    """Real programs for one test, ended in reverse order of their start."""
    with ExitStack() as stack:
        yield ContractPrograms(stack, tmp_path, kept_routers)
