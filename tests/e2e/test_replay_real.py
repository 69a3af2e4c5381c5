"""Replay of the history in a real Prometheus, with nothing but its address: backends found, and what happened to them."""

from __future__ import annotations

import json
import time

import pytest
from typer.testing import CliRunner

from tailkeeper.cli import app
from tests.e2e.real_programs import RealPrograms
from tests.vllm_history import Vllm, open_metrics

pytestmark = pytest.mark.real

FLEET = (
    Vllm("10.0.0.1:8000"),
    Vllm("10.0.0.2:8000", frozen=(600, 900), silent=(720, 900)),
    Vllm("10.0.0.3:8000", slow=(1_200, 1_500)),
    Vllm("10.0.0.4:8000", restarts_at=605, nonsense=True),
)
SECONDS = 1_800.0


def test_a_real_prometheus_is_all_that_a_first_look_needs(programs: RealPrograms) -> None:
    start = float(int(time.time()) - 3_600)
    prometheus = programs.prometheus({"global": {"scrape_interval": "15s"}}, history=open_metrics(FLEET, start, SECONDS, 15.0))
    given = ["replay", "--prometheus", prometheus.url, "--start", f"{start:.0f}", "--end", f"{start + SECONDS:.0f}"]
    began = time.monotonic()
    result = CliRunner().invoke(app, [*given, "--json"])
    took_s = time.monotonic() - began
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["source"]["interval_s"] == 15
    assert report["source"]["engines"] == {engine.instance: "vllm" for engine in FLEET}
    backends = {b["backend"]: b for b in report["backends"]}
    assert backends["10.0.0.1:8000"]["sla_kept"] is True
    assert backends["10.0.0.3:8000"]["sla_kept"] is False
    assert abs(backends["10.0.0.3:8000"]["first_breach"] - (start + 1_200)) <= 60
    # A restarted counter loses nothing: 121 pages of 30 requests, the first of which has nothing before it.
    assert backends["10.0.0.4:8000"]["requests"] == 120 * 30
    found = {(f["kind"], f["backend"]): f for f in report["findings"]}
    advice = found["advice", "10.0.0.2:8000"]
    assert "would have been probed: 9 in flight" in advice["summary"]
    assert 0 < advice["since"] - (start + 600) <= 60
    assert not {kind for kind, _ in found} & {"hung", "down"}, "nobody asked them"
    assert any("10.0.0.4:8000: samples that were not used" in line for line in report["unknown"])
    assert took_s < 30
    people = CliRunner().invoke(app, given)
    print(people.stdout)
    assert people.exit_code == 0
    assert "10.0.0.3:8000  BROKEN" in people.stdout


def test_an_empty_range_says_so_and_ends_with_1(programs: RealPrograms) -> None:
    prometheus = programs.prometheus({"global": {"scrape_interval": "15s"}})
    result = CliRunner().invoke(app, ["replay", "--prometheus", prometheus.url, "--start", "-1h", "--end", "now"])
    assert result.exit_code == 1
    assert "no series of an engine" in result.stderr
