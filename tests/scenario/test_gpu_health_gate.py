"""The first policy end to end over a fake gateway: ticks in, what stands at the gateway out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailkeeper_exporter import catalog
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import ErrorKind
from tailkeeper_watchdog.model import DRAIN, SERVE, FindingKind, Knob, KnobValue, Mode
from tailkeeper_watchdog.policy_params import GpuHealthGateParams
from tailkeeper_watchdog.settings import GuardsSettings
from tests.scenario.world import World


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def kinds(world: World, backend: str) -> set[FindingKind]:
    return {f.kind for f in world.loop.findings() if f.backend == backend}


@pytest.mark.parametrize(("state", "kind"), [(State.HUNG, FindingKind.HUNG), (State.DOWN, FindingKind.DOWN)])
async def test_a_dead_backend_is_drained_at_the_next_tick_and_found(db: Path, state: State, kind: FindingKind) -> None:
    world = World(db)
    await world.run(5)
    world.sick["b"].state = state
    await world.run(0.5)
    assert world.admission("b") == DRAIN
    assert kind in kinds(world, "b")
    assert world.verdicts("b") == ["applied"]
    lease = world.ledger.leases()[0]
    assert (lease.prior, lease.written, lease.confirmed) == (SERVE, DRAIN, True)


async def test_a_recovered_backend_comes_back_step_by_step_and_the_lease_ends(db: Path) -> None:
    world = World(db)
    await world.run(5)
    world.sick["b"].state = State.HUNG
    await world.run(3)
    world.sick["b"].state = State.SERVING
    seen: list[tuple[KnobValue, KnobValue]] = []
    for _ in range(60):
        await world.run(0.5)
        seen.append((world.weight("b"), world.admission("b")))
    weights_in = [float(w) for w, admission in seen if admission == SERVE]
    assert sorted(set(weights_in)) == [0.25, 0.5, 1.0], "a return is a ramp and never a jump"
    assert weights_in == sorted(weights_in)
    assert world.ledger.leases() == ()
    assert world.weight("b") == 1.0
    assert FindingKind.HUNG not in kinds(world, "b")


async def test_the_return_waits_for_the_cooldown_and_starts_again_after_a_relapse(db: Path) -> None:
    world = World(db)
    world.sick["b"].state = State.HUNG
    await world.run(2)
    world.sick["b"].state = State.SERVING
    await world.run(4.5)
    assert world.admission("b") == DRAIN, "five seconds of good evidence are not over"
    world.sick["b"].state = State.HUNG
    await world.run(1)
    world.sick["b"].state = State.SERVING
    await world.run(4.5)
    assert world.admission("b") == DRAIN


async def test_each_repeat_doubles_the_wait_before_the_return(db: Path) -> None:
    world = World(db)

    async def seconds_out() -> float:
        world.sick["b"].state = State.HUNG
        await world.run(1)
        world.sick["b"].state = State.SERVING
        for waited in range(200):
            if world.admission("b") == SERVE:
                await world.run(20)
                return waited * 0.5
            await world.run(0.5)
        raise AssertionError("it never came back")

    first, second = await seconds_out(), await seconds_out()
    assert first < second
    assert second >= 10


async def test_in_observe_mode_nothing_is_ever_written_to_the_gateway(db: Path) -> None:
    world = World(db, mode=Mode.OBSERVE)
    world.sick["b"].state = State.HUNG
    await world.run(10)
    assert world.gateway.writes == []
    assert world.verdicts("b") == ["observed"], "said once, not at each tick"


@pytest.mark.parametrize("state", [State.BUSY, State.STARTING, State.UNKNOWN, State.MISCONFIGURED])
async def test_what_is_not_dead_is_never_drained(db: Path, state: State) -> None:
    world = World(db)
    world.sick["b"].state = state
    await world.run(20)
    assert world.gateway.writes == []


async def test_a_blind_exporter_costs_nobody_their_traffic(db: Path) -> None:
    world = World(db)
    await world.run(3)
    for sick in world.sick.values():
        sick.silent = True
    await world.run(20)
    assert world.gateway.writes == []
    assert kinds(world, "a") == {FindingKind.TELEMETRY_LOST}


async def test_the_only_backend_of_a_pool_is_never_taken_out(db: Path) -> None:
    world = World(db, ("a",))
    world.sick["a"].state = State.HUNG
    await world.run(5)
    assert world.gateway.writes == []
    assert world.verdicts("a") == ["refused"]


async def test_the_cap_holds_after_the_action_when_two_of_ten_are_enough(db: Path) -> None:
    names = tuple("abcdefghij")
    world = World(db, names, guards=GuardsSettings(max_fraction=0.25, cooldown_s=5, return_ramp_s=6, lease_s=60))
    for name in "abcd":
        world.sick[name].state = State.HUNG
    await world.run(5)
    assert len(world.out()) == 2


async def test_what_others_took_out_counts_against_the_cap(db: Path) -> None:
    world = World(db)
    world.gateway.in_service["a"] = False
    world.sick["b"].state = State.HUNG
    await world.run(5)
    assert world.gateway.writes == []


async def test_what_a_foreign_hand_let_back_in_is_taken_out_again_only_within_the_cap(db: Path) -> None:
    world = World(db, tuple("abcdefg"))
    world.sick["c"].state = State.DOWN
    await world.run(0.5)
    assert world.admission("c") == DRAIN
    world.gateway.values["c"][Knob.ADMISSION] = SERVE
    world.gateway.values["f"][Knob.ADMISSION] = DRAIN
    world.gateway.values["g"][Knob.WEIGHT] = 0.2
    await world.run(0.5)
    assert world.admission("c") == SERVE, "two of seven are out already, by other hands"
    assert "refused" in world.verdicts("c")
    world.gateway.values["f"][Knob.ADMISSION] = SERVE
    await world.run(0.5)
    assert world.admission("c") == DRAIN


async def test_more_than_half_bad_stops_every_harmful_act_and_pages_a_common_cause(db: Path) -> None:
    world = World(db)
    for name in "abc":
        world.sick[name].state = State.DOWN
    await world.run(5)
    assert world.gateway.writes == []
    assert any(f.kind is FindingKind.COMMON_CAUSE for f in world.loop.findings())


async def test_the_last_backend_of_a_zone_stays(db: Path) -> None:
    world = World(db, zones={"a": "az1", "b": "az2", "c": "az2", "d": "az2"})
    world.sick["a"].state = State.HUNG
    await world.run(5)
    assert world.gateway.writes == []


async def test_a_pause_stops_new_harm_and_lets_what_is_in_force_come_back(db: Path) -> None:
    world = World(db)
    world.sick["b"].state = State.HUNG
    await world.run(1)
    world.switches.pause("test")
    world.sick["c"].state = State.HUNG
    world.sick["b"].state = State.SERVING
    await world.run(40)
    assert world.out() == set()


async def test_a_hold_keeps_one_backend_untouched(db: Path) -> None:
    world = World(db)
    world.switches.hold("b", "being debugged", 3_600)
    world.sick["b"].state = State.HUNG
    await world.run(5)
    assert world.gateway.writes == []


async def test_a_slow_backend_gets_half_its_traffic_and_all_of_it_back(db: Path) -> None:
    world = World(db)
    await world.run(70)
    world.sick["b"].itl_s = 0.2
    await world.run(20)
    assert world.weight("b") == 0.5
    assert world.admission("b") == SERVE
    world.sick["b"].itl_s = 0.02
    await world.run(60)
    assert world.weight("b") == 1.0
    assert world.ledger.leases() == ()


async def test_a_backend_that_fails_alone_is_drained_by_the_breaker_and_tried_again(db: Path) -> None:
    world = World(db)
    await world.run(30)
    world.sick["b"].ok_per_tick, world.sick["b"].errors_per_tick = 1.0, 2.0
    await world.run(10)
    assert world.admission("b") == DRAIN
    world.sick["b"].ok_per_tick, world.sick["b"].errors_per_tick = 2.0, 0.0
    await world.run(120)
    assert (world.admission("b"), world.weight("b")) == (SERVE, 1.0)


async def test_everyone_failing_together_trips_no_breaker(db: Path) -> None:
    world = World(db)
    await world.run(30)
    for sick in world.sick.values():
        sick.errors_per_tick = 2.0
    await world.run(20)
    assert world.gateway.writes == []


async def test_memory_pressure_alone_halves_the_weight_and_a_second_signal_drains(db: Path) -> None:
    world = World(db)
    await world.run(10)
    world.sick["b"].extra = {catalog.VRAM_PRESSURE.name: 0.97}
    await world.run(5)
    assert (world.weight("b"), world.admission("b")) == (0.5, SERVE)
    world.sick["b"].ttft_s = 5.0
    await world.run(70)
    assert world.admission("b") == DRAIN


async def test_a_foreign_hand_that_reverts_twice_gets_its_way_and_it_is_said(db: Path) -> None:
    world = World(db)
    world.sick["b"].state = State.HUNG
    await world.run(1)
    world.gateway.values["b"][Knob.ADMISSION] = SERVE
    await world.run(0.5)
    assert world.admission("b") == DRAIN, "once may be a reload"
    world.gateway.values["b"][Knob.ADMISSION] = SERVE
    await world.run(10)
    assert world.admission("b") == SERVE
    assert FindingKind.CONTENDED in kinds(world, "b")
    assert world.ledger.leases() == ()


async def test_a_weight_that_someone_else_chose_is_theirs_at_once(db: Path) -> None:
    world = World(db)
    await world.run(70)
    world.sick["b"].itl_s = 0.2
    await world.run(20)
    world.gateway.values["b"][Knob.WEIGHT] = 0.8
    await world.run(10)
    assert world.weight("b") == 0.8


async def test_a_lying_gateway_is_not_believed_and_not_hammered(db: Path) -> None:
    world = World(db)
    world.gateway.lies = True
    world.sick["b"].state = State.HUNG
    await world.run(60)
    assert "applied" not in world.verdicts("b")
    assert "failed" in world.verdicts("b")
    assert len(world.gateway.writes) < 10


async def test_a_gateway_that_is_down_is_used_when_it_is_back(db: Path) -> None:
    world = World(db)
    await world.run(2)
    world.gateway.fails = ErrorKind.UNREACHABLE
    world.sick["b"].state = State.HUNG
    await world.run(5)
    assert FindingKind.HUNG in kinds(world, "b"), "found all the same"
    world.gateway.fails = None
    await world.run(1)
    assert world.admission("b") == DRAIN


async def test_a_gateway_without_partial_weights_gets_the_backend_back_all_the_same(db: Path) -> None:
    world = World(db)
    world.gateway.partial_weights = False
    world.sick["b"].state = State.HUNG
    await world.run(1)
    world.sick["b"].state = State.SERVING
    await world.run(30)
    assert (world.admission("b"), world.weight("b")) == (SERVE, 1.0)
    assert world.ledger.leases() == ()


async def test_a_restarted_watchdog_keeps_its_lease_and_gives_it_back(db: Path) -> None:
    world = World(db)
    world.sick["b"].state = State.HUNG
    await world.run(1)
    world.start()
    await world.run(1)
    assert [lease.backend for lease in world.ledger.leases()] == ["b"]
    world.sick["b"].state = State.SERVING
    await world.run(40)
    assert world.admission("b") == SERVE
    assert world.ledger.leases() == ()


async def test_an_expired_lease_is_restored_when_nothing_is_known_any_more(db: Path) -> None:
    world = World(db)
    world.sick["b"].state = State.HUNG
    await world.run(1)
    for sick in world.sick.values():
        sick.silent = True
    await world.run(50)
    assert world.admission("b") == DRAIN, "within its lease the last word holds"
    await world.run(20)
    assert world.admission("b") == SERVE
    assert world.verdicts("b")[-1] == "expired"


async def test_a_lease_is_renewed_as_long_as_its_reason_lasts(db: Path) -> None:
    world = World(db)
    world.sick["b"].state = State.HUNG
    await world.run(200)
    assert world.admission("b") == DRAIN
    assert world.verdicts("b") == ["applied"]


async def test_release_gives_everything_back_and_does_not_act_again_at_once(db: Path) -> None:
    world = World(db)
    world.sick["b"].state = State.HUNG
    await world.run(1)
    done = await world.loop.release("by hand")
    assert [d.verdict.value for d in done.decisions] == ["released"]
    assert world.admission("b") == SERVE
    await world.run(4)
    assert world.admission("b") == SERVE
    await world.run(3)
    assert world.admission("b") == DRAIN


async def test_release_leaves_alone_what_someone_else_set_since(db: Path) -> None:
    world = World(db)
    await world.run(70)
    world.sick["b"].itl_s = 0.2
    await world.run(20)
    world.gateway.values["b"][Knob.WEIGHT] = 0.9
    await world.loop.release("by hand")
    assert world.weight("b") == 0.9


async def test_a_weight_lowered_by_a_foreign_hand_counts_against_the_cap(db: Path) -> None:
    world = World(db)
    world.gateway.values["a"][Knob.WEIGHT] = 0.2
    world.sick["b"].state = State.HUNG
    await world.run(5)
    assert world.admission("b") == SERVE
    assert world.verdicts("b") == ["refused"]


async def test_a_miss_rate_that_is_always_high_is_no_derating_and_one_that_rises_is(db: Path) -> None:
    world = World(db)
    for second in range(700):
        for name, sick in world.sick.items():
            share = 0.05 if name == "b" and second > 640 else 0.4 + 0.05 * ((second // 30) % 3)
            queries = sick.extra.get(catalog.KV_QUERIES.name, 0.0) + 100
            hits = sick.extra.get(catalog.KV_HITS.name, 0.0) + 100 * share
            sick.extra = {catalog.KV_QUERIES.name: queries, catalog.KV_HITS.name: hits}
        await world.run(1)
        if second == 639:
            assert world.gateway.writes == [], "half of the tokens missing is this traffic's normal"
    assert world.weight("b") == pytest.approx(0.73)
    assert {world.weight(n) for n in "acd"} == {1.0}


async def test_what_cannot_be_written_down_is_not_done_and_is_found_all_the_same(db: Path) -> None:
    world = World(db)
    await world.run(5)
    world.ledger._db.execute("PRAGMA query_only=ON")  # what a full or read-only disk does to every write
    world.sick["b"].state = State.HUNG
    world.clock.now += 0.5
    record = await world.loop.tick()
    assert record.error is not None
    assert "readonly" in record.error
    assert world.gateway.writes == []
    assert FindingKind.HUNG in kinds(world, "b")
    world.ledger._db.execute("PRAGMA query_only=OFF")
    await world.run(0.5)
    assert world.admission("b") == DRAIN


async def test_who_refuses_requests_is_not_ill(tmp_path: Path) -> None:
    """Its tap sheds for us, or its queue is full: the breaker is for requests that were taken in and failed."""
    world = World(tmp_path / "ledger.db")
    rejected = f"{catalog.REQUESTS.name}{{rejected}}"
    for step in range(40):
        world.sick["b"].extra[rejected] = 5.0 * step
        await world.run(0.5)

    assert world.admission("b") == SERVE


async def test_two_wishes_for_one_weight_that_are_only_observed_are_no_flood(db: Path) -> None:
    params = GpuHealthGateParams(breaker_open_s=2, breaker_trial_requests=1_000)
    world = World(db, mode=Mode.OBSERVE, params=params)
    await world.run(5)
    world.sick["b"].errors_per_tick, world.sick["b"].itl_s = 3.0, 0.5  # on trial and slow
    await world.run(40)
    assert 3 <= len(world.verdicts("b")) < 10
