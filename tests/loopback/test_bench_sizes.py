"""The benchmark of ticks as it is called: figures on stdout, progress on stderr, and of a watchdog's log nothing."""

from __future__ import annotations

import json
import subprocess
import sys


def test_each_size_has_a_process_of_its_own_and_no_log_is_among_the_figures() -> None:
    command = [sys.executable, "-m", "tailkeeper.cli", "bench", "tick", "--backends", "2,1", "--ticks", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    figures = json.loads(done.stdout)
    assert [run["backends"] for run in figures["runs"]] == [1, 2]
    assert [(one["from"], one["to"]) for one in figures["growth_exponents"]] == [(1, 2)]
    assert [line.split(",")[0] for line in done.stderr.splitlines()] == ["tailkeeper: 1 backends", "tailkeeper: 2 backends"]
