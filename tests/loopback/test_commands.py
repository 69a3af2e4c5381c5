"""The services as processes: what a wrong address, a broken ledger or an empty token file ends with."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.e2e.real_programs import free_port


def run(folder: Path, command: str, document: dict[str, object], *more: str) -> subprocess.CompletedProcess[str]:
    file = folder / "t.yaml"
    file.write_text(yaml.safe_dump(document))
    argv = [sys.executable, "-m", "tailkeeper.cli", command, "-c", str(file), *more]
    return subprocess.run(argv, capture_output=True, text=True, timeout=30, cwd=folder)


@pytest.mark.parametrize("command", ["exporter", "watchdog"])
def test_an_address_in_use_ends_with_exit_1_and_names_the_setting(tmp_path: Path, command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run(tmp_path, command, {}, "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert done.returncode == 1
    assert f"{command}.listen: 127.0.0.1" in done.stderr
    assert "in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_empty_token_file_lets_nobody_in_and_ends_with_exit_2(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("\n")
    done = run(tmp_path, "watchdog", {"watchdog": {"listen": f"127.0.0.1:{free_port()}", "token_file": str(token)}})
    assert done.returncode == 2
    assert str(token) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_ledger_that_is_no_database_ends_with_exit_1_and_is_left_as_it_is(tmp_path: Path) -> None:
    ledger = tmp_path / "tailkeeper.db"
    ledger.write_text("something else, and long enough to be taken for a database" * 50)
    done = run(tmp_path, "watchdog", {"watchdog": {"listen": f"127.0.0.1:{free_port()}", "state": str(ledger)}})
    assert done.returncode == 1
    assert "watchdog.state" in done.stderr
    assert ledger.read_text().startswith("something else")
