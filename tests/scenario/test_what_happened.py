"""What a tick is said to have done: one matter keeps its words from the finding to the change and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.happenings import names
from tailkeeper_watchdog.happenings.names import Phase, Step, Trigger
from tailkeeper_watchdog.happenings.teller import MAX_DECISIONS, MAX_FINDINGS, MAX_REMEMBERED, Happening, Teller
from tailkeeper_watchdog.model import DRAIN, Decision, Finding, FindingKind, Knob, Mode, Outcome, Severity, TickRecord
from tailkeeper_watchdog.settings import GuardsSettings
from tests.scenario.world import TICK_S, World

GATE = "gpu_health_gate"


class Story:
    """A world and everything that its watchdog is said to have done."""

    def __init__(self, world: World) -> None:
        self.world, self.teller = world, Teller()
        world.told = self.teller.hear
        self.told: list[Happening] = []
        self.records: list[TickRecord] = []

    async def run(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.world.clock.now += TICK_S
            record = await self.world.loop.tick()
            assert record.error is None, record.error
            self.records.append(record)
            self.told += self.teller.tell(record, self.world.loop.memory.book.closed)

    def matters(self, backend: str = "b") -> list[tuple[str, str, str, str]]:
        """Phase, trigger, strategy, and verdict or kind, in their order."""
        return [
            (t.phase, t.trigger, t.strategy, str(t.values.get(names.VERDICT) or t.values[names.KIND]))
            for t in self.told
            if t.backend == backend
        ]


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(World(tmp_path / "ledger.db"))


async def hang_and_recover(story: Story) -> None:
    await story.run(3)
    story.world.sick["b"].state = State.HUNG
    await story.run(4)
    story.world.sick["b"].state = State.SERVING
    await story.run(40)


async def test_a_hang_is_triggered_applied_and_resolved_under_one_strategy_and_one_reason(story: Story) -> None:
    await hang_and_recover(story)
    matters = story.matters()
    assert matters[0] == (Phase.TRIGGERED, Trigger.HUNG, GATE, "hung")
    assert matters[1] == (Phase.APPLIED, Trigger.HUNG, GATE, "applied")
    assert (Phase.RESOLVED, Trigger.HUNG, GATE, "released") in matters
    assert any(phase == Phase.RESOLVED and kind == "hung" for phase, _, _, kind in matters)
    after = matters.index((Phase.RESOLVED, Trigger.HUNG, GATE, "released"))
    assert {phase for phase, *_ in matters[after:]} == {Phase.RESOLVED}


async def test_every_step_of_the_way_back_belongs_to_the_end_of_the_matter(story: Story) -> None:
    await hang_and_recover(story)
    back = [t for t in story.told if t.strategy == "return"]
    assert len(back) >= 2
    assert {(t.phase, t.trigger) for t in back} == {(Phase.RESOLVED, Trigger.RECOVERED)}


async def test_a_change_says_what_it_was_where_until_when_and_which_finding_it_answers(story: Story) -> None:
    await hang_and_recover(story)
    applied = next(t for t in story.told if t.phase is Phase.APPLIED)
    finding = next(t for t in story.told if t.values.get(names.KIND) == "hung")
    assert (applied.gateway, applied.server, applied.step, applied.in_tick) == ("edge", "b", Step.ACT, True)
    assert applied.values[names.KNOB] == "admission"
    assert (applied.values[names.FROM], applied.values[names.TO]) == ("serve", DRAIN)
    assert applied.values[names.FINDING_ID] == finding.values[names.FINDING_ID]
    expires = applied.values[names.LEASE_EXPIRES]
    assert isinstance(expires, float)
    assert expires == pytest.approx(applied.at_unix_s + 60)
    assert applied.sentence.startswith("b: gpu_health_gate applied admission serve → drain: hung")


async def test_a_quiet_fleet_has_nothing_to_tell(story: Story) -> None:
    await story.run(20)
    assert story.told == []


@pytest.mark.parametrize(("mode", "verdict"), [(Mode.OBSERVE, "observed"), (Mode.ADVISE, "advised")])
async def test_what_is_only_said_stays_triggered_and_is_no_strategy_of_an_alert(tmp_path: Path, mode: Mode, verdict: str) -> None:
    story = Story(World(tmp_path / "l.db", mode=mode))
    await hang_and_recover(story)
    assert (Phase.TRIGGERED, Trigger.HUNG, GATE, verdict) in story.matters()
    assert (Phase.TRIGGERED, Trigger.HUNG, names.NO_STRATEGY, "hung") in story.matters()
    assert all(t.step is Step.DECIDE for t in story.told if t.values.get(names.VERDICT) == verdict)
    assert not any(phase == Phase.APPLIED for phase, *_ in story.matters())


async def test_a_refusal_names_the_guard_that_said_no(tmp_path: Path) -> None:
    story = Story(World(tmp_path / "l.db", ("a", "b"), guards=GuardsSettings(min_healthy=2)))
    await story.run(3)
    story.world.sick["b"].state = State.HUNG
    await story.run(2)
    refused = next(t for t in story.told if t.values.get(names.VERDICT) == "refused")
    assert refused.values[names.REFUSAL] in ("min_healthy", "panic")
    assert (refused.phase, refused.trigger, refused.step, refused.severity) == (
        Phase.TRIGGERED, Trigger.HUNG, Step.GUARD, Severity.TICKET,
    )  # fmt: skip


async def test_what_a_person_gives_back_between_two_ticks_is_told_and_is_of_no_tick(story: Story) -> None:
    await story.run(3)
    story.world.sick["b"].state = State.HUNG
    await story.run(2)
    await story.world.loop.release("released by API", "b")
    story.world.sick["b"].state = State.SERVING
    await story.run(TICK_S)
    released = next(t for t in story.told if t.values.get(names.VERDICT) == "released")
    assert (released.phase, released.trigger, released.in_tick) == (Phase.RESOLVED, Trigger.HUNG, False)


async def test_after_a_restart_a_change_from_before_has_the_reason_of_its_policy(story: Story) -> None:
    await story.run(3)
    story.world.sick["b"].state = State.HUNG
    await story.run(2)
    story.world.start()
    story.teller, story.told = Teller(), []
    story.world.told = story.teller.hear
    story.world.sick["b"].state = State.SERVING
    await story.run(20)
    released = next(t for t in story.told if t.values.get(names.VERDICT) == "released" and t.strategy == GATE)
    assert (released.phase, released.trigger) == (Phase.RESOLVED, Trigger.ERRORS)


async def test_a_flood_is_told_up_to_its_bound_and_the_rest_is_counted(story: Story) -> None:
    await story.run(1)
    record = story.records[-1]
    found = [Finding(f"f{n}", FindingKind.HUNG, f"b{n}", Severity.PAGE, 0.0, "hung") for n in range(MAX_FINDINGS + 7)]
    for number in range(MAX_DECISIONS + 5):
        story.teller.hear(Decision(number, 0.0, record.tick, GATE, "a", Knob.WEIGHT, 1.0, 0.5, Outcome.REFUSED, "no"), "", "")
    with_many = TickRecord(record.tick, 0.0, 0.0, record.situation, tuple(found), (), (), ())
    told = story.teller.tell(with_many, ())
    assert (len(told), story.teller.missed) == (MAX_FINDINGS + MAX_DECISIONS, 12)
    none_left = TickRecord(record.tick, 0.0, 0.0, record.situation, (), (), (), ())
    assert len(story.teller.tell(none_left, ())) == MAX_FINDINGS
    assert story.teller.missed == 19
    assert story.teller.tell(none_left, ()) == ()


async def test_what_set_off_a_change_is_remembered_of_so_many_and_the_oldest_forgotten(story: Story) -> None:
    for number in range(MAX_REMEMBERED + 3):
        story.teller._remember((f"b{number}", Knob.WEIGHT), Trigger.SLOW)
    assert len(story.teller._in_force) == MAX_REMEMBERED
    assert ("b2", Knob.WEIGHT) not in story.teller._in_force
    assert ("b3", Knob.WEIGHT) in story.teller._in_force
