"""The small world with all seven policies enforced at a gateway that has every knob: faults in, and what to ask of it after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailkeeper_exporter import catalog
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.collect.base import Collected
from tailkeeper_watchdog.core import PolicySetting
from tailkeeper_watchdog.guards import cap_of
from tailkeeper_watchdog.model import BackendObservation, Finding, FindingKind, Knob, KnobValue, Mode, Severity
from tailkeeper_watchdog.settings import GuardsSettings, PoliciesSettings
from tests.scenario.world import World

TICK_S = 2.0
"""Longer than in the small world: an incident with all of its policies lasts minutes."""
NAMES = ("a", "b", "c", "d", "e", "f")
KNOBS: dict[Knob, KnobValue] = {
    Knob.CONCURRENCY_LIMIT: 64.0,
    Knob.CACHE_MODE: "off",
    Knob.DEGRADE_LEVEL: 0.0,
    Knob.REPLICAS: 1.0,
    Knob.TAINT: "",
    Knob.ANNOTATION: "",
}
"""Beside weight and admission. No batch window: where there is one, the limit is not turned."""
USAGE = "kv_usage_ratio=0.02"
"""What ``context_length_routing`` publishes of a backend that is well: no action, but a lease like any other."""
WELL = {catalog.VRAM_PRESSURE.name: 0.3, catalog.KV_USAGE.name: 0.02, catalog.CPU_USAGE.name: 0.2}
REQUESTS_PER_TICK = 20.0
TOKENS_A_REQUEST = 100.0
GUARDS = GuardsSettings(cooldown_s=4, return_ramp_s=6, lease_s=60, quarantine_after=3)


def everything() -> dict[str, PolicySetting]:
    return {name: PolicySetting(Mode.ENFORCE, setting.params) for name, setting in PoliciesSettings()}


class FullWorld(World):
    """Ten requests a second at each backend, of which there are six. ``source_down``: the metrics store does not answer."""

    def __init__(self, path: Path, names: tuple[str, ...] = NAMES) -> None:
        self.source_down = False
        self.worst_out = 0
        self.pages: set[str] = set()
        self.found: set[tuple[FindingKind, str]] = set()
        super().__init__(path, names, guards=GUARDS, stale_after_s=3 * TICK_S, policies=everything(), knobs=KNOBS)
        for sick in self.sick.values():
            sick.ok_per_tick, sick.extra = REQUESTS_PER_TICK, dict(WELL)

    async def run(self, seconds: float) -> None:
        """Notes what was found and how many were out at the worst, after every tick."""
        for _ in range(round(seconds / TICK_S)):
            self.clock.now += TICK_S
            record = await self.loop.tick()
            assert record.error is None, record.error
            self.found |= {(f.kind, f.backend) for f in record.findings}
            self.pages |= {f.summary for f in record.findings if f.severity is Severity.PAGE}
            self.worst_out = max(self.worst_out, len(self.out()))

    async def collect(self, now: float, deadline_s: float) -> Collected:
        if not self.source_down:
            return await super().collect(now, deadline_s)
        words = "the metrics store does not answer"
        return Collected(self._last.tell(self.clock.now, {}, words), (), words)

    def _observe(self, name: str, sick: Any) -> BackendObservation:
        sick.extra[catalog.GENERATED_TOKENS.name] = TOKENS_A_REQUEST * sick.ok
        return super()._observe(name, sick)

    def restart(self, name: str) -> None:
        """A new engine process: it starts, and its counters are at zero."""
        sick = self.sick[name]
        sick.state, sick.ok, sick.errors, sick.preemptions = State.STARTING, 0.0, 0.0, 0.0
        sick.itl_count, sick.itl_sum, sick.ttft_sum = 0.0, 0.0, 0.0
        sick.ttft_counts = dict.fromkeys(sick.ttft_counts, 0.0)

    def findings(self, kind: FindingKind) -> list[Finding]:
        return [f for f in self.loop.findings() if f.kind is kind]

    def touched(self) -> set[tuple[str, Knob]]:
        """Every knob that was ever written, but for what is only published."""
        return {(server, knob) for server, knob, value in self.gateway.writes if value != USAGE}

    def differs(self) -> dict[tuple[str, Knob], KnobValue]:
        """What is not as it would be without us, but for what is only published."""
        return {
            (server, knob): value
            for server, values in self.gateway.values.items()
            for knob, value in values.items()
            if value not in (self.gateway.normal[knob], USAGE)
        }

    def assert_as_before(self) -> None:
        """The promise is back: everything given back, no lease but those of what is published, never more out than the cap."""
        assert self.differs() == {}
        assert [lease for lease in self.ledger.leases() if lease.written != USAGE] == []
        assert self.worst_out <= cap_of(len(self.backends), GUARDS)
