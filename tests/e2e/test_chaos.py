"""Half a minute of `make chaos`: real programs, random faults, and nothing that is promised is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.real_programs import binary
from tools.chaos.__main__ import chaos
from tools.chaos.report import figures

pytestmark = pytest.mark.real


def test_half_a_minute_of_random_faults_breaks_no_promise(tmp_path: Path) -> None:
    for program in ("haproxy", "prometheus", "prometheus-alertmanager"):
        binary(program)
    run = chaos(tmp_path, minutes=0.3, every_s=1.0, seed=11, rate=4.0, scale=0.15, calm_s=4.0)
    found = figures(run)
    assert [(one["invariant"], one["words"], one["before"]) for one in found["told"]] == []
    assert found["settled"]["left"] == []
    assert found["faults"]["all"] >= 12
    assert found["looks"]["looks at HAProxy"] > 50
