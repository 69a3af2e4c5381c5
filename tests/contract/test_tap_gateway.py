"""What only the taps can show: several exporters, backends that move between them, and a whole lease from drain to return."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tailkeeper_exporter.settings import Auth
from tailkeeper_exporter.state import State
from tailkeeper_exporter.tap.admission import DRAINED
from tailkeeper_exporter.tap.knobs import CACHE_LOCAL, Degrade, Knobs
from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind
from tailkeeper_watchdog.actuators.tap import EACH_ASKED, PATH, TapActuator, rows_of
from tailkeeper_watchdog.decision_log import DecisionLog
from tailkeeper_watchdog.ledger import Ledger
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, KnobValue, Outcome, Target
from tailkeeper_watchdog.plan import Change, ChangeKind
from tailkeeper_watchdog.reconcile import Reconciler
from tests.e2e.real_programs import free_port
from tests.e2e.tiny_servers import answer, serving
from tests.scenario.world import World
from tests.taps_in_memory import Counting, TapsInMemory, exporter_with

DEADLINE_S = 5.0


class Exporters:
    """Exporters with their taps, by their numbers, and one actuator over all of them."""

    def __init__(self, taps: list[TapsInMemory], urls: list[str], seen: list[Counting], more: tuple[str, ...] = ()) -> None:
        self.taps, self.urls, self.seen = taps, urls, seen
        self.actuator = TapActuator("t", (*urls, *more), Auth())

    async def admissions(self, *backends: str, deadline_s: float = DEADLINE_S) -> dict[str, KnobValue | str]:
        """What is read of each: its admission, or the doubt."""
        states = await self.actuator.read(backends, deadline_s)
        return {name: state.values.get(Knob.ADMISSION, state.doubt) for name, state in states.items()}

    def asked_for_lists(self) -> int:
        return sum(path == f"GET {PATH}" for seen in self.seen for path in seen.paths)


@asynccontextmanager
async def exporters(*backends: tuple[str, ...], more: tuple[str, ...] = ()) -> AsyncIterator[Exporters]:
    async with AsyncExitStack() as stack:
        taps = [TapsInMemory(*names) for names in backends]
        running = [await stack.enter_async_context(exporter_with(each)) for each in taps]
        found = Exporters(taps, [url for url, _ in running], [seen for _, seen in running], more)
        yield found
        await found.actuator.close()


async def test_each_tap_is_turned_at_the_exporter_that_runs_it_and_found_only_once() -> None:
    async with exporters(("a", "b"), ("c",), ()) as all_of_them:
        for _ in range(3):
            assert await all_of_them.admissions("a", "b", "c") == dict.fromkeys("abc", SERVE)
        await all_of_them.actuator.write("c", {Knob.ADMISSION: DRAIN}, DEADLINE_S)

        assert await all_of_them.admissions("a", "b", "c") == {"a": SERVE, "b": SERVE, "c": DRAIN}
        assert all_of_them.taps[1].ask("c") == DRAINED
        assert all_of_them.asked_for_lists() == 3


async def test_the_only_exporter_is_not_searched() -> None:
    async with exporters(("a", "b")) as only:
        assert await only.admissions("a", "b", "nobody") == {"a": SERVE, "b": SERVE}
        with pytest.raises(ActuatorError) as caught:
            await only.actuator.write("nobody", {Knob.ADMISSION: DRAIN}, DEADLINE_S)

        assert caught.value.kind is ErrorKind.NOT_FOUND
        assert only.asked_for_lists() == 0


@pytest.mark.parametrize("first", ["read", "write"])
async def test_a_backend_that_moved_to_another_exporter_is_found_again_within_the_same_call(first: str) -> None:
    async with exporters(("a",), ("b",)) as both:
        await both.admissions("a", "b")
        moved = both.taps[0]
        both.taps[1].doors["a"], both.taps[1].knobs["a"] = moved.doors.pop("a"), moved.knobs.pop("a")
        if first == "write":
            await both.actuator.write("a", {Knob.ADMISSION: DRAIN}, DEADLINE_S)
        else:
            assert await both.admissions("a", "b") == {"a": SERVE, "b": SERVE}

        assert both.taps[1].knobs["a"].admission == (DRAIN if first == "write" else SERVE)
        assert both.asked_for_lists() == 4


async def test_a_backend_that_has_no_tap_anywhere_is_left_out_and_a_write_says_so() -> None:
    async with exporters(("a",), ("b",)) as both:
        assert await both.admissions("a", "x") == {"a": SERVE}
        with pytest.raises(ActuatorError, match="no exporter has a tap for it") as caught:
            await both.actuator.write("x", {Knob.ADMISSION: DRAIN}, DEADLINE_S)

        assert caught.value.kind is ErrorKind.NOT_FOUND


async def test_where_an_exporter_does_not_answer_its_backends_are_in_doubt_and_the_others_are_not() -> None:
    gone = f"http://127.0.0.1:{free_port()}"
    async with exporters(("a",), more=(gone,)) as one_of_two:
        said = await one_of_two.admissions("a", "b")
        with pytest.raises(ActuatorError) as caught:
            await one_of_two.actuator.write("b", {Knob.ADMISSION: DRAIN}, DEADLINE_S)

        assert said["a"] == SERVE
        assert "did not say" in str(said["b"])
        assert gone in str(said["b"])
        assert caught.value.kind is ErrorKind.UNREACHABLE


async def test_an_exporter_that_hangs_leaves_time_to_turn_the_taps_of_the_others() -> None:
    hanging = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await hanging.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, exporters(("a",), more=(url,)) as one_of_two:
        started = time.monotonic()
        said = await one_of_two.admissions("a", "b", deadline_s=1.0)
        took_s = time.monotonic() - started
        await one_of_two.actuator.write("a", {Knob.ADMISSION: DRAIN}, 1.0)
        hanging.set()

        assert said["a"] == SERVE
        assert "in time" in str(said["b"])
        assert took_s < 1.0
        assert one_of_two.taps[0].knobs["a"].admission == DRAIN


async def test_where_nobody_answers_the_read_fails_and_the_write_too() -> None:
    actuator = TapActuator("t", tuple(f"http://127.0.0.1:{free_port()}" for _ in range(2)), Auth())
    with pytest.raises(ActuatorError) as of_read:
        await actuator.read(("a", "b"), DEADLINE_S)
    with pytest.raises(ActuatorError) as of_write:
        await actuator.write("a", {Knob.ADMISSION: DRAIN}, DEADLINE_S)
    await actuator.close()

    assert of_read.value.kind is of_write.value.kind is ErrorKind.UNREACHABLE


async def test_two_taps_of_one_backend_are_not_guessed_between() -> None:
    async with exporters(("a", "b"), ("a",)) as both:
        said = await both.admissions("a", "b")
        with pytest.raises(ActuatorError) as caught:
            await both.actuator.write("a", {Knob.ADMISSION: DRAIN}, DEADLINE_S)

        assert said["b"] == SERVE
        assert "several exporters" in str(said["a"])
        assert caught.value.kind is ErrorKind.REFUSED
        assert both.taps[0].history == both.taps[1].history == []


@pytest.mark.parametrize(
    "body", [b"", b"{", b"7", b"null", b"[1]", b"[{}]", b'{"error": "no"}', b"[[]]", b"[" * 100_000, b"\xff" * 10]
)
async def test_what_is_no_list_of_taps_is_an_answer_that_cannot_be_read(body: bytes) -> None:
    def handle(handler: BaseHTTPRequestHandler) -> None:
        answer(handler, 200, body)

    with serving(handle) as port:
        async with exporters(("a",), more=(f"http://127.0.0.1:{port}",)) as one_of_two:
            said = await one_of_two.admissions("a", "b")

    assert said["a"] == SERVE
    assert "no list of taps" in str(said["b"])


def test_a_name_that_is_no_text_is_nobodys() -> None:
    assert set(rows_of(b'[{"backend": "a"}, {"backend": 7}, {"backend": null}]')) == {"a"}


async def test_a_thousand_taps_of_an_exporter_are_read_in_one_call() -> None:
    names = tuple(f"b{number}" for number in range(1_000))
    async with exporters(names) as only:
        assert await only.admissions(*names, "nobody") == dict.fromkeys(names, SERVE)
        await only.actuator.write("b7", {Knob.ADMISSION: DRAIN}, DEADLINE_S)
        assert await only.admissions(*names) == {**dict.fromkeys(names, SERVE), "b7": DRAIN}
        assert only.asked_for_lists() == 2
        assert len(only.seen[0].paths) == 4, "two lists, and the two calls of the write"

        only.taps[0].silent_s = 60.0
        with pytest.raises(ActuatorError, match="not reported for"):
            await only.admissions(*names)


@pytest.mark.parametrize(("age", "said"), [("NaN", " for nan s,"), ("null", ", as far"), ('"1"', ", as far"), ("9", " for 9 s,")])
async def test_a_tap_whose_last_report_is_not_known_to_be_young_is_not_known(age: str, said: str) -> None:
    names = tuple(f"b{number}" for number in range(EACH_ASKED + 1))
    rows = ",".join(f'{{"backend": "{name}", "age_s": {age}, "document": {{"admission": "serve"}}}}' for name in names)

    def handle(handler: BaseHTTPRequestHandler) -> None:
        answer(handler, 200, f"[{rows}]".encode())

    with serving(handle) as port:
        actuator = TapActuator("t", (f"http://127.0.0.1:{port}",), Auth())
        with pytest.raises(ActuatorError, match=f"the tap has not reported{said}"):
            await actuator.read(names, DEADLINE_S)
        await actuator.close()


@pytest.mark.parametrize("many", [1, EACH_ASKED, EACH_ASKED + 1])
async def test_a_list_tells_the_same_as_each_tap_does(many: int) -> None:
    names = tuple(f"b{number}" for number in range(many))
    async with exporters(names, ()) as two:
        await two.actuator.write("b0", {Knob.CONCURRENCY_LIMIT: 8.0, Knob.CACHE_MODE: CACHE_LOCAL}, DEADLINE_S)
        state = (await two.actuator.read(names, DEADLINE_S))["b0"]
        expected = {
            Knob.ADMISSION: SERVE, Knob.CONCURRENCY_LIMIT: 8.0, Knob.CACHE_MODE: CACHE_LOCAL, Knob.DEGRADE_LEVEL: 0.0,
        }  # fmt: skip
        assert (dict(state.values), state.in_service, state.doubt) == (expected, True, "")


async def test_a_thousand_taps_of_an_exporter_that_hangs_cost_one_deadline() -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    actuator = TapActuator("t", (f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}",), Auth())
    async with server:
        with pytest.raises(ActuatorError) as caught:
            await actuator.read(tuple(f"b{number}" for number in range(1_000)), 0.3)
        await actuator.close()
    assert caught.value.kind is ErrorKind.TIMEOUT


async def test_the_taps_own_refusal_and_silence_are_told_with_their_words() -> None:
    async with exporters(("a",)) as only:
        with pytest.raises(ActuatorError, match="cache_mode") as caught:
            await only.actuator.write("a", {Knob.CACHE_MODE: "redis"}, DEADLINE_S)
        only.taps[0].fails = TimeoutError()
        with pytest.raises(ActuatorError, match="did not confirm") as unconfirmed:
            await only.actuator.write("a", {Knob.ADMISSION: DRAIN}, DEADLINE_S)
        only.taps[0].silent_s = 60.0
        with pytest.raises(ActuatorError, match="not reported for") as silent:
            await only.admissions("a")

        assert caught.value.kind is ErrorKind.REFUSED
        assert unconfirmed.value.retryable
        assert silent.value.retryable


async def test_one_knob_is_turned_and_the_others_stay() -> None:
    async with exporters(("a",)) as only:
        await only.actuator.write("a", {Knob.CONCURRENCY_LIMIT: 8.0, Knob.CACHE_MODE: CACHE_LOCAL}, DEADLINE_S)
        await only.actuator.write("a", {Knob.DEGRADE_LEVEL: 2.0}, DEADLINE_S)

        assert only.taps[0].knobs["a"] == Knobs(SERVE, 8, CACHE_LOCAL, Degrade.NORMAL)


def test_an_actuator_without_exporters_is_a_mistake_of_the_configuration() -> None:
    with pytest.raises(ValueError, match="needs urls"):
        TapActuator("t", (), Auth())


async def test_a_limit_is_lent_from_none_and_given_back_to_none(tmp_path: Path) -> None:
    """0 is no limit, and as a prior value it must come back as that."""
    async with exporters(("a",)) as only:
        ledger = Ledger(tmp_path / "ledger.db")
        reconciler = Reconciler({"t": only.actuator}, ledger, DecisionLog(ledger, time.time), 300, time.time)
        target = Target("t", "a", "all")
        change = Change(ChangeKind.APPLY, "a", target, Knob.CONCURRENCY_LIMIT, 4.0, 0.0, "breaker", "busy")
        applied = await reconciler.execute((change,), 1, DEADLINE_S)
        (lease,) = ledger.leases()
        limited = only.taps[0].knobs["a"].concurrency_limit
        released = await reconciler.release((lease,), 2, "not needed", DEADLINE_S)
        left = ledger.leases()
        ledger.close()

        assert [d.verdict for d in (*applied.decisions, *released.decisions)] == [Outcome.APPLIED, Outcome.RELEASED]
        assert (lease.prior, lease.written, lease.confirmed, limited) == (0.0, 4.0, True, 4)
        assert only.taps[0].knobs["a"].concurrency_limit is None
        assert left == ()


class TapsOfTheWorld(TapActuator):
    """The gateway of the scenarios' world, made of real taps: it asks their admissions to decide who gets traffic."""

    taps: TapsInMemory

    @property
    def values(self) -> Mapping[str, Mapping[Knob, KnobValue]]:
        return {name: {Knob.ADMISSION: knobs.admission} for name, knobs in self.taps.knobs.items()}


async def test_a_hung_backend_is_drained_at_its_tap_and_serves_again_when_it_is_well(tmp_path: Path) -> None:
    """The whole watchdog: found, guarded, leased, written, read back, returned; and no weight is tried on the way."""
    names = ("a", "b", "c", "d")
    taps = TapsInMemory(*names)
    async with exporter_with(taps) as (url, _):
        world = World(tmp_path / "ledger.db", names)
        world.ledger.close()
        gateway = TapsOfTheWorld("edge", (url,), Auth())
        gateway.taps = taps
        world.gateway = gateway  # type: ignore[assignment]
        world.actuators = {"edge": gateway}
        world.start()
        await world.run(2)
        world.sick["a"].state = State.HUNG
        await world.run(1)
        (lease,) = world.ledger.leases()
        while_hung = {name: taps.ask(name) for name in names}
        world.sick["a"].state = State.SERVING
        await world.run(12)
        decisions = world.ledger.decisions()
        leases = world.ledger.leases()
        world.ledger.close()
        await gateway.close()

    assert (lease.knob, lease.prior, lease.written, lease.confirmed) == (Knob.ADMISSION, SERVE, DRAIN, True)
    assert while_hung == {"a": DRAINED, "b": True, "c": True, "d": True}
    assert [(d.knob, d.verdict) for d in reversed(decisions)] == [
        (Knob.ADMISSION, Outcome.APPLIED),
        (Knob.ADMISSION, Outcome.RELEASED),
    ]
    assert leases == ()
    assert taps.ask("a") is True
