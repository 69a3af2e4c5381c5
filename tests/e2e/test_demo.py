"""The demo as a newcomer runs it: one command, and exit 0 only when the story ended well."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tailkeeper_demo import stack, story
from tests.e2e.real_programs import binary, free_port

LONG_ENOUGH_S = 62


@pytest.mark.real
def test_a_hang_is_found_acted_on_and_the_sla_comes_back_behind_a_real_haproxy() -> None:
    binary("haproxy")
    command = [sys.executable, "-m", "tailkeeper.cli", "demo", "--duration", str(LONG_ENOUGH_S), "--fault", "hang"]
    done = subprocess.run([*command, "--port", str(free_port()), "--no-color"], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    words = [line.split()[1] for line in done.stdout.splitlines() if line[:2].isdigit()]
    assert words[:3] == ["fault", "found", "acted"]
    assert {"users", "recovered", "return", "released"} <= set(words)
    assert "(HAProxy)" in done.stdout
    assert "it ended well" in done.stdout


def test_without_any_other_program_the_small_gateway_does_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stack, "_which", lambda name: None)
    assert story.run_demo(45.0, "restart", "online", free_port(), color=False)
    told = capsys.readouterr().out
    assert "(webhook)" in told
    assert "done without: haproxy, prometheus, alertmanager" in told
