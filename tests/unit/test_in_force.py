"""Series of open findings, their causes, and our changes: counted from the start, bounded, and never a repeated label set."""

from __future__ import annotations

from collections.abc import Mapping
from math import fsum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_watchdog import metrics
from tailkeeper_watchdog.api.in_force import MAX_SHARES, MAX_VALUE_CHARS, finding_series, lease_series
from tailkeeper_watchdog.ledger import LedgerError
from tailkeeper_watchdog.model import Finding, FindingKind, Knob, Lease, Severity, Share, Target
from tests.scenario.world import World
from tests.unit.watchdog_http import client_of, gated, world_at

Values = Mapping[str, Mapping[tuple[str, ...], Any]]


def _finding(*shares: Share, backend: str = "a", kind: FindingKind = FindingKind.GROWTH, signal: str = "ttft") -> Finding:
    return Finding("f", kind, backend, Severity.PAGE, 0.0, "it is slow", shares=shares, signal=signal)


def _lease(backend: str, knob: Knob, server: str = "s") -> Lease:
    return Lease(1, backend, Target("edge", server, "llm"), knob, "p", 1.0, 0.5, "why", 0.0, 300.0)


def _of(*findings: Finding) -> Values:
    rows = {declared.name: list(rows) for declared, rows in finding_series(findings)}
    assert all(len(dict(found)) == len(found) for found in rows.values()), "a label set twice"
    return {name: dict(found) for name, found in rows.items()}


def test_without_findings_every_kind_and_severity_stands_at_zero() -> None:
    values = _of()
    assert len(values[metrics.FINDINGS_OPEN.name]) == len(FindingKind) * len(Severity)
    assert set(values[metrics.FINDINGS_OPEN.name].values()) == {0.0}
    assert values[metrics.FINDING_SHARE.name] == {}


def test_two_findings_of_one_kind_are_counted_together_and_a_pools_by_its_name() -> None:
    pool = _finding(backend="edge:llm", kind=FindingKind.COMMON_CAUSE, signal="")
    values = _of(_finding(), _finding(signal="itl"), pool)[metrics.FINDINGS_OPEN.name]
    assert values["a", "growth", "page"] == 2.0
    assert values["edge:llm", "common_cause", "page"] == 1.0
    assert fsum(value or 0.0 for value in values.values()) == 3.0


def test_shares_are_the_five_largest_and_the_rest_in_one() -> None:
    shares = tuple(Share("tenant", f"t{i}", part, 0.9) for i, part in enumerate((0.4, 0.2, 0.1, 0.1, 0.1, 0.06, 0.04)))
    values = _of(_finding(*reversed(shares)))
    found = {labels[3:]: value for labels, value in values[metrics.FINDING_SHARE.name].items()}
    assert len(found) == MAX_SHARES + 1
    assert found["other", "other"] == pytest.approx(0.1)
    assert found["tenant", "t0"] == 0.4
    assert ("other", "other") not in {labels[3:] for labels in values[metrics.FINDING_CONFIDENCE.name]}


@given(st.lists(st.tuples(st.sampled_from(("stage", "change", "unknown")), st.text(max_size=80), st.floats(0, 1)), max_size=12))
def test_whatever_the_causes_are_their_sum_stays_and_no_value_is_long(given_shares: list[tuple[str, str, float]]) -> None:
    values = _of(_finding(*(Share(d, v, share, 1.0) for d, v, share in given_shares)))[metrics.FINDING_SHARE.name]
    assert len(values) <= MAX_SHARES + 1
    assert all(len(labels[4]) <= MAX_VALUE_CHARS for labels in values)
    assert fsum(v or 0.0 for v in values.values()) == pytest.approx(fsum(share for _, _, share in given_shares))


def test_changes_are_counted_by_backend_and_knob() -> None:
    leases = [_lease("a", Knob.WEIGHT, "1"), _lease("a", Knob.WEIGHT, "2"), _lease("b", Knob.ADMISSION)]
    ((declared, rows),) = lease_series(leases)
    values = dict(rows)
    assert declared is metrics.LEASES_IN_FORCE
    assert {labels: value for labels, value in values.items() if value} == {("a", "weight"): 2.0, ("b", "admission"): 1.0}
    assert {labels[1] for labels in values if labels[0] == ""} == {knob.value for knob in Knob}


async def _text(world: World) -> str:
    async with client_of(gated(world)) as client:
        return (await client.get("/metrics")).text


async def test_changes_in_force_are_unknown_and_not_none_while_the_ledger_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_at(tmp_path)
    await world.run(2)
    assert metrics.LEASES_IN_FORCE.name in await _text(world)

    def unreadable() -> tuple[Lease, ...]:
        raise LedgerError("ledger.db: disk I/O error")

    monkeypatch.setattr(world.ledger, "leases", unreadable)
    text = await _text(world)
    assert f"{metrics.LEASES_IN_FORCE.name}{{" not in text
    assert metrics.FINDINGS_OPEN.name in text
