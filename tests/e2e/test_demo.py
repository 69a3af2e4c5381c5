"""The demo as a newcomer runs it: one command, and exit 0 only when the story ended well."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


def _running() -> dict[int, int]:
    """Parent by process, of all that run."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended while we looked
        if fields[0] != "Z":
            found[int(stat.parent.name)] = int(fields[1])
    return found


def _descendants(process: int) -> set[int]:
    parents, found = _running(), {process}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_a_demo_that_is_terminated_leaves_nothing_running() -> None:
    command = [sys.executable, "-m", "tailkeeper.cli", "demo", "--duration", "120", "--port", str(free_port()), "--no-color"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("gateway"):
            assert process.poll() is None
        programs = _descendants(process.pid)
        process.terminate()
        process.communicate(timeout=30)
    assert len(programs) > 3
    assert not programs & _running().keys()


@pytest.mark.parametrize(("fault", "mix", "seconds"), [("blind", "rlhf", 45.0), ("hang", "sft", 45.0)])
def test_other_faults_and_loads_end_well_too(
    fault: str, mix: str, seconds: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stack, "_which", lambda name: None)
    ended_well = story.run_demo(seconds, fault, mix, free_port(), color=False)
    told = capsys.readouterr().out
    assert ended_well, told
    words = [line.split()[1] for line in told.splitlines() if line[:2].isdigit()]
    assert "found" in words
    assert ("acted" in words) is (fault != "blind")


def test_without_any_other_program_the_small_gateway_does_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stack, "_which", lambda name: None)
    assert story.run_demo(45.0, "restart", "online", free_port(), color=False)
    told = capsys.readouterr().out
    assert "(webhook)" in told
    assert "done without: haproxy, prometheus, alertmanager" in told
