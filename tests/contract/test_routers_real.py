"""What only routers can show, on the real ones of SGLang and vLLM: who is taken out comes back as it was."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators import Actuator
from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob
from tests.contract.router_worlds import (
    ContractPrograms,
    FakeEngine,
    HttpRecorder,
    RouterProgram,
    fake_engine,
    router,
    router_actuator,
)
from tests.e2e.real_programs import free_port, wait_until
from tests.e2e.tiny_servers import serving

pytestmark = pytest.mark.real
DEADLINE_S = 5.0
BOTH = ("sglang_router", "vllm_router")
TAKE_OUT = {Knob.ADMISSION: DRAIN}
ADD_BACK = {Knob.ADMISSION: SERVE}


@dataclass
class Small:
    """A router with the engines a and b. ``actuator()`` is that of a watchdog that has just been started."""

    router: RouterProgram
    recorder: HttpRecorder
    url: str
    a: FakeEngine
    b: FakeEngine
    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "removed.json"

    def actuator(self) -> Actuator:
        (self.folder / "token").write_text(self.router.token or "none")
        return router_actuator(self.router.kind, self.url, self.file, Auth(bearer_file=self.folder / "token"))


@pytest.fixture(params=BOTH)
def small(request: pytest.FixtureRequest, programs: ContractPrograms, tmp_path: Path) -> Iterator[Small]:
    program = programs.routers.emptied(request.param)
    with ExitStack() as stack:
        a, b = (stack.enter_context(fake_engine(name)) for name in ("a", "b"))
        recorder = HttpRecorder(program.url)
        port = stack.enter_context(serving(recorder.handle))
        for engine in (a, b):
            program.add(engine.url)
        recorder.asked.clear()
        yield Small(program, recorder, f"http://127.0.0.1:{port}", a, b, tmp_path)
        program.clear()


async def admission(actuator: Actuator, server: str) -> object:
    state = (await actuator.read((server,), DEADLINE_S)).get(server)
    return None if state is None else state.values.get(Knob.ADMISSION)


async def refused(
    actuator: Actuator, server: str, values: Mapping[Knob, float | str], deadline_s: float = DEADLINE_S
) -> ActuatorError:
    with pytest.raises(ActuatorError) as caught:
        await actuator.write(server, values, deadline_s)
    return caught.value


async def test_a_stream_in_flight_ends_in_full_after_a_drain_and_new_requests_go_elsewhere(small: Small) -> None:
    actuator, streamed = small.actuator(), {}

    def stream() -> None:
        body = {"model": "tiny", "prompt": "x", "stream": True}
        streamed["text"] = small.router.client.post("/v1/completions", json=body, timeout=20).text

    task = asyncio.create_task(asyncio.to_thread(stream))
    await asyncio.to_thread(wait_until, lambda: small.a.streaming.is_set() or small.b.streaming.is_set(), "the stream")
    engine, other = (small.a, small.b) if small.a.streaming.is_set() else (small.b, small.a)
    await actuator.write(engine.url, TAKE_OUT, DEADLINE_S)
    before = engine.requests, other.requests
    await asyncio.to_thread(small.router.send, 8)
    await actuator.close()

    assert (engine.requests, other.requests) == (before[0], before[1] + 8)
    assert not task.done()
    engine.release.set()
    await task
    assert streamed["text"] == f"data: {engine.name} first\n\ndata: {engine.name} last\n\ndata: [DONE]\n\n"


async def test_a_worker_of_a_crashed_watchdog_is_added_back_by_the_next_and_takes_its_share_again(small: Small) -> None:
    before = dict(small.router.workers()[small.a.url])
    first = small.actuator()
    await first.write(small.a.url, TAKE_OUT, DEADLINE_S)
    await first.close()

    actuator = small.actuator()
    assert await admission(actuator, small.a.url) == DRAIN
    await actuator.write(small.a.url, ADD_BACK, DEADLINE_S)
    assert await admission(actuator, small.a.url) == SERVE
    await actuator.close()

    assert as_told(small.router.workers()[small.a.url]) == as_told(before)
    assert small.file.read_text().count(small.a.url) == 0, "the note is gone once the worker was seen"
    await asyncio.to_thread(small.router.send, 8)
    assert small.a.requests == small.b.requests == 4


def as_told(row: dict[str, object]) -> dict[str, object]:
    """A row without what is new with every addition."""
    return {key: value for key, value in row.items() if key != "id"}


RICH: dict[str, Any] = {
    "set by hand": {
        "model_id": "mine", "priority": 7, "cost": 2.5, "labels": {"zone": "a", "team": "x"}, "tokenizer_path": "/t",
        "reasoning_parser": "r1", "tool_parser": "qwen", "chat_template": "c",
    },
    "the defaults, said": {"priority": 50, "cost": 1.0},
    "nothing but a label": {"labels": {"zone": "a"}},
    "nothing": {},
}  # fmt: skip


@pytest.mark.parametrize("case", RICH)
async def test_a_worker_of_sglang_comes_back_with_all_that_was_set_for_it(
    case: str, programs: ContractPrograms, tmp_path: Path
) -> None:
    program = programs.routers.emptied("sglang_router")
    (tmp_path / "token").write_text(program.token)
    with fake_engine("a") as a, fake_engine("b") as b:
        for engine in (a, b):
            program.add(engine.url, **RICH[case])
        before = program.workers()[a.url]
        actuator = router_actuator("sglang_router", program.url, tmp_path / "removed", Auth(bearer_file=tmp_path / "token"))
        await actuator.write(a.url, TAKE_OUT, DEADLINE_S)
        await actuator.write(a.url, ADD_BACK, DEADLINE_S)
        await actuator.close()
        assert as_told(program.workers()[a.url]) == as_told(before)
        program.clear()


async def test_a_router_that_begins_anew_with_its_start_list_has_the_worker_again_and_it_can_be_drained_again(
    tmp_path: Path,
) -> None:
    for kind in BOTH:
        port, file = free_port(), tmp_path / f"{kind}.json"
        with fake_engine("a") as a, fake_engine("b") as b:
            with router(kind, tmp_path, a.url, b.url, port=port) as program:
                actuator = router_actuator(kind, program.url, file)
                await actuator.write(a.url, TAKE_OUT, DEADLINE_S)
            with router(kind, tmp_path, a.url, b.url, port=port) as program:
                assert await admission(actuator, a.url) == SERVE
                assert a.url not in file.read_text(), "nobody else's removal may be taken for ours later"
                await actuator.write(a.url, TAKE_OUT, DEADLINE_S)
                assert await admission(actuator, a.url) == DRAIN
                assert set(program.workers()) == {b.url}
                await actuator.close()


async def test_a_router_that_begins_anew_with_an_empty_list_gets_back_only_whom_we_took(small: Small) -> None:
    actuator = small.actuator()
    await actuator.write(small.a.url, TAKE_OUT, DEADLINE_S)
    small.router.clear()

    assert await admission(actuator, small.a.url) == DRAIN
    assert await admission(actuator, small.b.url) is None
    await actuator.write(small.a.url, ADD_BACK, DEADLINE_S)
    await actuator.close()

    assert set(small.router.workers()) == {small.a.url}


async def test_a_worker_that_somebody_else_removed_is_unknown_and_is_never_added(small: Small) -> None:
    actuator = small.actuator()
    small.router.remove(small.a.url)
    small.recorder.asked.clear()

    assert await admission(actuator, small.a.url) is None
    for values in (ADD_BACK, TAKE_OUT):
        assert (await refused(actuator, small.a.url, values)).kind is ErrorKind.NOT_FOUND
    await actuator.close()

    assert set(small.recorder.asked) == {"GET /workers"}, "a removal of an unknown worker would be answered 200"


async def test_the_last_worker_is_never_removed(small: Small) -> None:
    actuator = small.actuator()
    await actuator.write(small.a.url, TAKE_OUT, DEADLINE_S)
    error = await refused(actuator, small.b.url, TAKE_OUT)
    await actuator.close()

    assert error.kind is ErrorKind.REFUSED
    assert "no other healthy regular worker" in str(error)
    assert set(small.router.workers()) == {small.b.url}
    assert small.b.url not in small.file.read_text()


async def test_the_last_healthy_worker_is_never_removed(small: Small) -> None:
    small.b.well = False
    await asyncio.to_thread(wait_until, lambda: not small.router.workers()[small.b.url]["is_healthy"], "b unhealthy")
    actuator = small.actuator()

    assert not (await actuator.read((small.b.url,), DEADLINE_S))[small.b.url].in_service
    assert (await refused(actuator, small.a.url, TAKE_OUT)).kind is ErrorKind.REFUSED
    await actuator.close()
    assert small.a.url in small.router.workers()


async def test_a_dead_worker_costs_no_more_than_the_deadline_stays_out_and_is_added_when_it_is_well(small: Small) -> None:
    actuator = small.actuator()
    await actuator.write(small.a.url, TAKE_OUT, DEADLINE_S)
    small.a.well = False
    for _ in range(2):
        started = time.monotonic()
        error = await refused(actuator, small.a.url, ADD_BACK, 0.5)
        assert time.monotonic() - started < 1.0
        assert error.kind is ErrorKind.TIMEOUT
        assert await admission(actuator, small.a.url) == DRAIN
    if small.router.kind == "sglang_router":
        assert small.recorder.asked.count("POST /workers") == 1, "a second job would wait beside the first"

    small.a.well = True
    await actuator.write(small.a.url, ADD_BACK, 10.0)
    assert await admission(actuator, small.a.url) == SERVE
    await actuator.close()


async def test_an_addition_that_the_router_gave_up_says_why_and_is_begun_again(small: Small) -> None:
    actuator = small.actuator()
    await actuator.write(small.a.url, TAKE_OUT, DEADLINE_S)
    small.a.well = False
    error = await refused(actuator, small.a.url, ADD_BACK, 20.0)
    assert error.kind is ErrorKind.UNREACHABLE
    assert "cannot reach the worker, so it stays out: " in str(error)

    small.a.well = True
    await actuator.write(small.a.url, ADD_BACK, DEADLINE_S)
    await actuator.close()
    assert small.a.url in small.router.workers()


async def test_who_cannot_be_noted_is_not_removed(small: Small) -> None:
    small.file.mkdir()
    actuator = small.actuator()
    error = await refused(actuator, small.a.url, TAKE_OUT)
    states = await actuator.read((small.a.url, "http://127.0.0.1:9"), DEADLINE_S)
    await actuator.close()

    assert error.kind is ErrorKind.REFUSED
    assert str(small.file) in str(error)
    assert states[small.a.url].values == {Knob.ADMISSION: SERVE}
    assert states["http://127.0.0.1:9"].values == {}, "whether it is ours cannot be said"
    assert str(small.file) in states["http://127.0.0.1:9"].doubt
    assert small.a.url in small.router.workers()


async def test_replicas_are_drained_and_given_back_each_with_its_own_worker_as_it_was(tmp_path: Path) -> None:
    with ExitStack() as stack:
        a, b = (stack.enter_context(fake_engine(name)) for name in ("a", "b"))
        routers = [stack.enter_context(router("sglang_router", tmp_path)) for _ in range(2)]
        for cost, program in enumerate(routers, start=2):
            program.add(a.url, cost=float(cost))
            program.add(b.url)
        before = [as_told(program.workers()[a.url]) for program in routers]
        actuator = router_actuator("sglang_router", routers[0].url, tmp_path / "removed", None, routers[1].url)
        await actuator.write(a.url, TAKE_OUT, DEADLINE_S)
        assert all(a.url not in program.workers() for program in routers)
        assert await admission(actuator, a.url) == DRAIN
        await actuator.write(a.url, ADD_BACK, DEADLINE_S)
        assert await admission(actuator, a.url) == SERVE
        await actuator.close()
        assert [as_told(program.workers()[a.url]) for program in routers] == before
        assert before[0] != before[1]


async def test_the_key_of_vllms_router_does_not_guard_its_list_of_workers(tmp_path: Path) -> None:
    """A weakness that docs/gateways.md states; should it be mended, the words must go."""
    with fake_engine("a") as a, fake_engine("b") as b, router("vllm_router", tmp_path, a.url, b.url, token="k") as program:
        actuator = router_actuator("vllm_router", program.url, tmp_path / "removed")
        await actuator.write(a.url, TAKE_OUT, DEADLINE_S)
        await actuator.close()
        assert set(program.workers()) == {b.url}
