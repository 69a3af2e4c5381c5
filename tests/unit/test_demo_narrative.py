"""What the demo tells: found, acted, back; out again; and an engine nobody may touch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tailkeeper_demo.narrative import MOST_RELAPSES, Event, Narrator, Seen
from tailkeeper_demo.narrative_blind import BlindNarrator

START = 1_000.0


@dataclass
class Demo:
    """The documents as they stand; ``look`` gives them to the narrator ``at_s`` seconds after the fault."""

    narrator: Narrator
    decisions: list[dict[str, Any]] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)
    missed: dict[int, int] = field(default_factory=dict)
    state: str = "serving"
    wanted: str = "serve"
    leases: int = 0
    other: dict[str, Any] = field(default_factory=lambda: {"admission": "serve", "weight": 1.0})
    """What the gateway tells of the backend beside it."""
    told: list[Event] = field(default_factory=list)

    def decide(
        self,
        at_s: float,
        to: object,
        verdict: str = "applied",
        policy: str = "gpu_health_gate",
        *,
        knob: str = "admission",
        reason: str = "hung; read back",
        before: object = None,
    ) -> None:
        self.decisions.insert(0, {
            "id": len(self.decisions) + 1, "backend": "sim-b", "time": START + at_s, "from": before, "to": to,
            "verdict": verdict, "policy": policy, "knob": knob, "reason": reason, "lease_expires": START + at_s + 60,
        })  # fmt: skip

    def find(self, kind: str, at_s: float) -> None:
        self.findings = [{"backend": "sim-b", "kind": kind, "since": START + at_s, "summary": f"sim-b: {kind}"}]

    def look(self, at_s: float) -> list[str]:
        buckets = [
            {"t": START + t, "within_slo": 10, "missed_slo": self.missed.get(t, 0), "ttft_p99": 0.3} for t in range(int(at_s) + 1)
        ]
        leases: list[dict[str, Any]] = [{}] * self.leases
        backend = {
            "backend": "sim-b", "state": self.state, "desired": {"admission": self.wanted, "weight": 1.0}, "leases": leases
        }  # fmt: skip
        fleet = {"backends": [backend, {**backend, "backend": "sim-a", "actual": self.other, "leases": []}]}
        seen = Seen(at_s, START + at_s, fleet, [*self.findings], [*self.decisions], {"buckets": buckets})
        events = self.narrator.feed(seen)
        self.told.extend(events)
        return [event.word for event in events]


def demo(fault: str = "hang") -> Demo:
    kind = BlindNarrator if fault == "blind" else Narrator
    return Demo(kind("sim-b", fault, "HAProxy", 0.0, START))


def drained(d: Demo, at_s: float) -> list[str]:
    d.find("hung", at_s)
    d.state, d.wanted, d.leases = "hung", "drain", 1
    d.decide(at_s, "drain")
    return d.look(at_s)


def healed(d: Demo, at_s: float) -> None:
    d.state, d.wanted, d.findings = "serving", "serve", []
    d.decide(at_s, 0.25, policy="return")


def test_a_fault_is_found_acted_on_and_over_once_the_gateway_has_its_weights_back() -> None:
    d = demo()
    assert drained(d, 5) == ["found", "acted"]
    assert d.look(8) == []
    assert d.look(12) == ["users"]
    assert d.narrator.ended_well
    assert not d.narrator.over
    healed(d, 20)
    assert d.look(20) == ["return", "recovered"]
    d.leases = 0
    d.decide(30, 1.0, "released", "return")
    assert d.look(30) == ["released"]
    assert d.narrator.over


def test_a_relapse_takes_back_that_it_had_ended_well_until_users_have_the_sla_again() -> None:
    d = demo("flap")
    drained(d, 5)
    d.look(12)
    healed(d, 20)
    d.look(20)
    d.missed = dict.fromkeys(range(22, 27), 3)
    assert drained(d, 26) == ["acted"]
    assert (d.narrator.relapses, d.narrator.ended_well) == (1, False)
    assert "users" in d.look(33)
    assert d.narrator.ended_well
    assert "and once more" in d.narrator.ending()[0]


def test_a_watchdog_that_lets_a_flapping_backend_in_again_and_again_did_not_end_well() -> None:
    d = demo("flap")
    for turn in range(MOST_RELAPSES + 2):
        drained(d, 20 * turn + 5)
        d.look(20 * turn + 12)
        if turn <= MOST_RELAPSES:
            assert d.narrator.ended_well, turn
            healed(d, 20 * turn + 15)
            d.look(20 * turn + 15)
    assert not d.narrator.ended_well


def test_a_drain_repeated_without_a_return_in_between_is_no_relapse() -> None:
    d = demo()
    drained(d, 5)
    drained(d, 6)
    assert d.narrator.relapses == 0


def test_a_blind_engine_that_is_found_left_alone_and_seen_again_ended_well() -> None:
    d = demo("blind")
    d.find("telemetry_lost", 4)
    assert d.look(4) == ["found"]
    d.decide(5, "drain", "refused")
    assert d.look(5) == ["refused"], "told, and no action"
    assert not d.narrator.ended_well
    d.findings = []
    assert d.look(30) == ["recovered", "users"]
    assert d.narrator.ended_well
    assert d.narrator.over
    assert "left alone" in d.narrator.ending()[0]


def test_any_action_on_a_blind_engine_is_a_failure() -> None:
    for to in ("drain", 0.5):
        d = demo("blind")
        d.find("telemetry_lost", 4)
        d.decide(5, to)
        assert "acted" in d.look(5)
        d.findings = []
        d.look(30)
        assert not d.narrator.ended_well
        assert "wrongly" in d.narrator.ending()[0]


def test_a_blind_engine_nobody_tells_of_or_whose_users_suffer_did_not_end_well() -> None:
    silent = demo("blind")
    silent.find("hung", 4)
    silent.look(4)
    silent.findings = []
    silent.look(30)
    assert silent.narrator.found_at_s is None
    assert not silent.narrator.ended_well
    hurt = demo("blind")
    hurt.find("telemetry_lost", 4)
    hurt.look(4)
    hurt.findings, hurt.missed = [], {6: 9}
    hurt.look(30)
    assert not hurt.narrator.ended_well


def test_what_is_done_at_edge_and_tap_is_one_act_and_what_the_taps_do_beside_it_has_words_of_its_own() -> None:
    d = demo("oom")
    d.state, d.wanted, d.leases = "busy", "drain", 4
    d.decide(4, "drain")
    d.decide(4, "drain")
    d.decide(4, 8.0, policy="adaptive_batch_window", knob="concurrency_limit")
    d.decide(4, "local", policy="cache_offload", knob="cache_mode")
    d.decide(4, 1.0, policy="slo_guardian", knob="degrade_level")
    d.decide(4, "oom-risk=level1", "refused", "memory_breaker", knob="annotation", reason="not enforceable: no gateway")
    d.decide(4, 0.3, "refused", "token_rate_weighting", knob="weight", reason="cooldown: changed a moment ago")
    assert d.look(4) == ["found", "acted", "limited", "cached", "noted", "shed"]
    assert d.look(5) == [], "each is told once"
    d.decide(6, 12.0, policy="adaptive_batch_window", knob="concurrency_limit", before=8.0)
    d.decide(6, 0.0, "released", "slo_guardian", knob="degrade_level")
    assert d.look(6) == ["restored"], "a limit that is let out is no news"
    assert "also answered from a cache, limited, shed" in d.narrator.ending()


@pytest.mark.parametrize(
    ("other", "out"),
    [
        ({"admission": "serve", "weight": 1.0}, 1),
        ({"admission": "serve", "weight": 0.4}, 2),
        ({"admission": "drain", "weight": None}, 2),
        ({"admission": "serve", "weight": None}, 1),
        ({"admission": None, "weight": None}, 1),
    ],
)
def test_a_backend_of_which_the_gateway_tells_no_weight_is_not_told_to_be_out(other: dict[str, Any], out: int) -> None:
    d = demo()
    d.other = other
    drained(d, 5)
    assert f"{out} of 2 out" in d.told[-1].text


def test_the_tap_that_follows_the_edge_a_look_later_is_no_second_act() -> None:
    d = demo()
    assert drained(d, 5) == ["found", "acted"]
    d.decide(5.2, "drain")
    assert d.look(5.5) == []
    d.decide(20, "serve", "released")
    d.look(20)
    d.decide(25, "drain")
    assert "acted" in d.look(25)


def test_shedding_in_a_pool_is_no_action_on_a_blind_engine() -> None:
    d = demo("blind")
    d.find("telemetry_lost", 4)
    d.decide(5, 1.0, policy="slo_guardian", knob="degrade_level")
    d.look(5)
    d.findings = []
    d.look(30)
    assert d.narrator.ended_well


def test_a_weight_that_comes_back_under_its_own_policy_is_a_return() -> None:
    d = demo("slow")
    d.decide(5, 0.2, policy="token_rate_weighting", knob="weight", before=1.0)
    assert d.look(5) == ["found", "acted"]
    d.decide(20, 0.25, policy="token_rate_weighting", knob="weight", before=0.2, reason="returning at 25%; read back")
    d.decide(21, 0.4, policy="token_rate_weighting", knob="weight", before=0.25)
    assert "return" in d.look(21)
    assert d.narrator.relapses == 0
