"""What only Triton can show: whole configurations, loads that make requests wait and outlast a deadline, modes, readiness."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators import build_actuator
from tailkeeper_watchdog.actuators import triton as module
from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind, ServerState
from tailkeeper_watchdog.actuators.triton import NO_BATCHING, NOBODY, NOT_EXPLICIT, Pace, TritonActuator, window_of
from tailkeeper_watchdog.decision_log import DecisionLog
from tailkeeper_watchdog.gateways import TritonGateway
from tailkeeper_watchdog.ledger import Ledger
from tailkeeper_watchdog.model import Knob, Outcome, Target
from tailkeeper_watchdog.plan import Change, ChangeKind
from tailkeeper_watchdog.reconcile import Reconciler
from tests.contract.fake_triton import CONFIG, FakeTriton, fake_triton, model
from tests.contract.setting_worlds import NO_REST, NORMAL_S

DEADLINE_S = 5.0
WINDOW = Knob.BATCH_WINDOW_S


@pytest.fixture
def triton() -> Iterator[FakeTriton]:
    plain = model("plain")
    del plain["dynamic_batching"]
    with fake_triton(model("llm"), plain) as triton:
        yield triton


def actuator_of(triton: FakeTriton, pace: Pace = NO_REST) -> TritonActuator:
    return TritonActuator("edge", triton.url, Auth(), pace)


async def state(actuator: TritonActuator, server: str = "llm", deadline_s: float = DEADLINE_S) -> ServerState:
    return (await actuator.read((server,), deadline_s))[server]


async def failing(
    actuator: TritonActuator, window_s: float, server: str = "llm", deadline_s: float = DEADLINE_S
) -> ActuatorError:
    with pytest.raises(ActuatorError) as caught:
        await actuator.write(server, {WINDOW: window_s}, deadline_s)
    return caught.value


async def test_the_whole_configuration_is_loaded_with_one_number_changed(triton: FakeTriton) -> None:
    actuator = actuator_of(triton)
    await actuator.write("llm", {WINDOW: 0.001}, DEADLINE_S)
    await actuator.close()

    batching = {**CONFIG["dynamic_batching"], "max_queue_delay_microseconds": 1_000}
    assert triton.models["llm"] == {**CONFIG, "dynamic_batching": batching}


async def test_a_model_that_batches_nothing_has_no_window_and_says_so(triton: FakeTriton) -> None:
    actuator = actuator_of(triton)
    seen = await state(actuator, "plain")
    error = await failing(actuator, 0.05, "plain")
    await actuator.close()

    assert (seen.values, seen.cannot) == ({}, {WINDOW: NO_BATCHING})
    assert error.kind is ErrorKind.REFUSED
    assert triton.loads() == 0


async def test_a_server_that_loads_models_by_itself_is_found_out_before_anything_is_tried(triton: FakeTriton) -> None:
    triton.explicit = False
    actuator = actuator_of(triton)
    for _ in range(3):
        seen = await state(actuator)
    error = await failing(actuator, 0.05)
    await actuator.close()

    assert (seen.values, seen.cannot) == ({WINDOW: NORMAL_S}, {WINDOW: NOT_EXPLICIT})
    assert error.kind is ErrorKind.REFUSED
    assert [path for path in triton.paths if path.endswith("/load")] == [f"/v2/repository/models/{NOBODY}/load"]


async def test_a_model_that_is_not_ready_is_out_of_service(triton: FakeTriton) -> None:
    triton.broken = frozenset({"llm"})
    actuator = actuator_of(triton)
    seen = await actuator.read(("llm", "plain"), DEADLINE_S)
    await actuator.close()

    assert not seen["llm"].in_service
    assert seen["plain"].in_service


async def test_an_invalid_configuration_is_refused_and_the_old_one_stays(triton: FakeTriton) -> None:
    triton.refusing = True
    actuator = actuator_of(triton)
    error = await failing(actuator, 0.05)
    seen = await state(actuator)
    await actuator.close()

    assert error.kind is ErrorKind.REFUSED
    assert "kept the old configuration" in str(error)
    assert seen.values == {WINDOW: NORMAL_S}


async def test_a_load_after_which_the_model_is_not_ready_is_no_success(triton: FakeTriton) -> None:
    actuator = actuator_of(triton)
    await state(actuator)
    triton.broken = frozenset({"llm"})
    error = await failing(actuator, 0.05, deadline_s=0.3)
    seen = await state(actuator)
    await actuator.close()

    assert error.kind is ErrorKind.TIMEOUT
    assert (seen.values, seen.in_service) == ({WINDOW: 0.05}, False)


async def test_a_load_that_changed_more_than_the_window_is_no_success(triton: FakeTriton) -> None:
    triton.spoils = "max_batch_size"
    actuator = actuator_of(triton)
    error = await failing(actuator, 0.05)
    await actuator.close()

    assert error.kind is ErrorKind.PROTOCOL
    assert "max_batch_size" in str(error)


async def test_while_a_load_outlasts_its_deadline_the_window_is_unknown_and_nothing_more_is_sent(triton: FakeTriton) -> None:
    triton.load_s = 0.8
    actuator = actuator_of(triton)
    await state(actuator)
    first = await failing(actuator, 0.05, deadline_s=0.2)
    seen = await state(actuator, deadline_s=0.35)
    second = await failing(actuator, 0.01)
    after = await state(actuator)  # waits for the load, as the reading back after a write does
    await actuator.close()

    assert first.kind is ErrorKind.TIMEOUT
    assert seen.values == {}
    assert "not over" in seen.doubt
    assert second.kind is ErrorKind.UNREACHABLE
    assert after.values == {WINDOW: 0.05}
    assert triton.loads() == 1


@pytest.mark.parametrize(("window_s", "kept_s"), [(0.05, 0.05), (0.0015625, 0.001562)])
async def test_a_load_whose_answer_was_lost_is_waited_for_until_it_is_seen(
    triton: FakeTriton, window_s: float, kept_s: float
) -> None:
    triton.hangs_up, triton.load_s = True, 0.6
    actuator = actuator_of(triton)
    await state(actuator)
    await actuator.write("llm", {WINDOW: window_s}, DEADLINE_S)
    seen = await state(actuator)
    await actuator.close()

    assert seen.values == {WINDOW: kept_s}


async def test_a_load_that_was_lost_for_good_is_an_error(triton: FakeTriton, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOST_ANSWER_S", 0.2)
    triton.hangs_up = triton.lying = True
    actuator = actuator_of(triton)
    error = await failing(actuator, 0.05)
    seen = await state(actuator)
    await actuator.close()

    assert error.kind is ErrorKind.PROTOCOL
    assert seen.values == {WINDOW: NORMAL_S}


async def test_a_model_rests_after_a_load_and_may_be_given_back_all_the_same(triton: FakeTriton) -> None:
    actuator = actuator_of(triton, Pace())
    await actuator.write("llm", {WINDOW: 0.1}, DEADLINE_S)
    seen = await state(actuator)
    error = await failing(actuator, 0.05)
    await actuator.write("llm", {WINDOW: 0.1}, DEADLINE_S)
    await actuator.write("llm", {WINDOW: NORMAL_S}, DEADLINE_S)
    again = await failing(actuator, 0.05)
    await actuator.close()

    assert seen.values == {WINDOW: 0.1}
    assert "rests" in seen.cannot[WINDOW]
    assert error.kind is again.kind is ErrorKind.UNREACHABLE
    assert [window for _, window in triton.history] == [0.1, NORMAL_S]


async def test_a_model_that_is_slow_to_load_is_not_steered_again_but_is_given_back(triton: FakeTriton) -> None:
    triton.load_s = 0.1
    actuator = actuator_of(triton, Pace(rest_s=0, rest_times=0, slow_load_s=0.05))
    await actuator.write("llm", {WINDOW: 0.1}, DEADLINE_S)
    seen = await state(actuator)
    error = await failing(actuator, 0.05)
    await actuator.write("llm", {WINDOW: NORMAL_S}, DEADLINE_S)
    await actuator.close()

    assert "to load" in seen.cannot[WINDOW]
    assert error.kind is ErrorKind.UNREACHABLE
    assert triton.window("llm") == NORMAL_S


@pytest.mark.parametrize("batching", [7, [], {"max_queue_delay_microseconds": "soon"}, {"max_queue_delay_microseconds": -1}])
async def test_a_configuration_that_cannot_be_read_is_a_doubt_and_does_not_spoil_the_others(
    triton: FakeTriton, batching: object
) -> None:
    triton.models["llm"]["dynamic_batching"] = batching
    actuator = actuator_of(triton)
    seen = await actuator.read(("llm", "plain"), DEADLINE_S)
    error = await failing(actuator, 0.05)
    await actuator.close()

    assert seen["llm"].values == {}
    assert "dynamic_batching" in seen["llm"].doubt
    assert seen["plain"].doubt == ""
    assert error.kind is ErrorKind.PROTOCOL


def test_a_window_that_is_not_told_is_none_and_one_left_out_is_zero() -> None:
    assert window_of({"name": "llm"}) is None
    assert window_of({"dynamic_batching": {}}) == 0.0


async def test_what_one_of_several_servers_cannot_do_is_told_of_all_of_them(triton: FakeTriton) -> None:
    with fake_triton(model("llm")) as other:
        other.explicit = False
        both = build_actuator(TritonGateway(name="edge", kind="triton", url=triton.url, replicas=(other.url,)))
        seen = (await both.read(("llm",), DEADLINE_S))["llm"]
        await both.close()

    assert NOT_EXPLICIT in seen.cannot[WINDOW]
    assert other.url.removeprefix("http://") in seen.cannot[WINDOW]


async def lent(triton: FakeTriton, ledger: Ledger, deadline_s: float) -> tuple[TritonActuator, Reconciler, Outcome]:
    """A lease from 200 ms to 50 ms, and what became of it."""
    actuator = actuator_of(triton)
    reconciler = Reconciler({"edge": actuator}, ledger, DecisionLog(ledger, time.time), 300, time.time)
    change = Change(ChangeKind.APPLY, "a", Target("edge", "llm", "all"), WINDOW, 0.05, NORMAL_S, "window", "late")
    await state(actuator)
    executed = await reconciler.execute((change,), 1, deadline_s)
    return actuator, reconciler, executed.decisions[0].verdict


async def test_a_load_longer_than_the_deadline_of_a_write_is_confirmed_by_reading_back(
    triton: FakeTriton, tmp_path: Path
) -> None:
    triton.load_s = 0.7
    ledger = Ledger(tmp_path / "ledger.db")
    actuator, reconciler, verdict = await lent(triton, ledger, 0.6)
    (lease,) = ledger.leases()
    triton.load_s = 0.0
    released = await reconciler.release((lease,), 2, "not needed", DEADLINE_S)
    left = ledger.leases()
    await actuator.close()
    ledger.close()

    assert verdict is Outcome.APPLIED
    assert (lease.prior, lease.written, lease.confirmed) == (NORMAL_S, 0.05, True)
    assert [decision.verdict for decision in released.decisions] == [Outcome.RELEASED]
    assert triton.window("llm") == NORMAL_S
    (noted,) = left
    assert (noted.written, noted.confirmed) == (0.05, False), "the load that nobody answered may still be done"
    assert noted.expires_unix_s <= time.time(), "and is given back at once then"


async def test_a_load_longer_than_all_deadlines_stays_a_lease_until_it_can_be_read(triton: FakeTriton, tmp_path: Path) -> None:
    """The old window is still told while Triton loads the new one: taken for the truth, our change would be nobody's."""
    triton.load_s = 1.2
    ledger = Ledger(tmp_path / "ledger.db")
    actuator, _, verdict = await lent(triton, ledger, 0.4)
    (lease,) = ledger.leases()
    await asyncio.sleep(0.6)
    seen = await state(actuator)
    await actuator.close()
    ledger.close()

    assert verdict is Outcome.FAILED
    assert (lease.written, lease.confirmed) == (0.05, False)
    assert seen.values == {WINDOW: 0.05}
