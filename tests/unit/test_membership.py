"""Draining by membership, with a router in memory: a crash at any step loses no worker, and nobody else's is touched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind
from tailkeeper_watchdog.actuators.membership import SETTLED_S, MembershipActuator, Worker
from tailkeeper_watchdog.actuators.removed_workers import Removed, RemovedWorkers
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob

A, B = "http://a", "http://b"
DEADLINE_S = 2.0


class Killed(BaseException):
    """The process is gone: nothing after this line happens."""


def worker(url: str, healthy: bool = True, kind: str = "regular", model: str = "m") -> Worker:
    return Worker(url, "id of " + url, kind, model, healthy, {"url": url, "cost": 2.5})


@dataclass
class MemoryRouter:
    """Satisfies ``Router``. Dies before or after its ``dies_at``-th call."""

    there: dict[str, Worker] = field(default_factory=lambda: {A: worker(A), B: worker(B)})
    added: list[Mapping[str, Any]] = field(default_factory=list)
    dies_at: int = -1
    dies_after: bool = False
    slow: bool = False
    """A removal is accepted, and done when a test does it."""
    fails: ErrorKind | None = None
    """What a removal ends with."""
    jobs: dict[str, str] = field(default_factory=dict)
    calls: int = 0

    def _step(self, after: bool) -> None:
        if after == self.dies_after and self.calls == self.dies_at:
            raise Killed
        self.calls += after

    async def workers(self) -> Mapping[str, Worker]:
        self._step(False)
        found = dict(self.there)
        self._step(True)
        return found

    async def remove(self, worker: Worker) -> None:
        self._step(False)
        if self.fails is not None:
            raise CallError(self.fails, "told to fail")
        if not self.slow:
            del self.there[worker.url]
        self._step(True)

    async def add(self, document: Mapping[str, Any]) -> str:
        self._step(False)
        self.added.append(document)
        if "job" not in self.jobs:
            self.there[document["url"]] = worker(document["url"])
        self._step(True)
        return "job"

    async def adding(self, job: str) -> bool:
        if self.jobs.get(job) == "failed":
            raise CallError(ErrorKind.UNREACHABLE, "it is dead")
        return self.jobs.get(job) == "running"

    async def close(self) -> None:
        pass


@dataclass
class Scene:
    folder: Path
    router: MemoryRouter = field(default_factory=MemoryRouter)
    now: float = 1_000.0

    def actuator(self) -> MembershipActuator:
        """That of a process that has just begun."""
        removed = RemovedWorkers(self.folder / "removed.json")
        return MembershipActuator("edge", "some_router", "http://router", self.router, removed, {}, lambda: self.now)

    async def admission(self) -> object:
        state = (await self.actuator().read((A,), DEADLINE_S)).get(A)
        return None if state is None else state.values.get(Knob.ADMISSION)

    async def write(self, value: str) -> None:
        await self.actuator().write(A, {Knob.ADMISSION: value}, DEADLINE_S)

    def notes(self) -> dict[str, Removed]:
        return RemovedWorkers(self.folder / "removed.json").of("http://router")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.mark.parametrize("value", [DRAIN, SERVE])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(4))
async def test_a_crash_at_any_step_loses_no_worker(scene: Scene, value: str, after: bool, step: int) -> None:
    if value == SERVE:
        await scene.write(DRAIN)
    scene.router.calls, scene.router.dies_at, scene.router.dies_after = 0, step, after
    try:
        await scene.write(value)
    except Killed:
        assert step < 4
    scene.router.dies_at = -1
    scene.now += SETTLED_S + 1

    known = await scene.admission()
    assert known == (SERVE if A in scene.router.there else DRAIN), "it is known whether it is out, and that it was us"
    await scene.write(SERVE)
    assert await scene.admission() == SERVE
    assert A in scene.router.there
    assert scene.notes() == {}
    assert all(document == worker(A).document for document in scene.router.added)


async def test_a_crash_before_the_note_is_written_removes_nobody(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(RemovedWorkers, "note", killed)
    with pytest.raises(Killed):
        await scene.write(DRAIN)
    assert A in scene.router.there


async def test_a_removal_that_is_still_to_come_is_in_doubt_and_is_ours_when_it_comes(scene: Scene) -> None:
    scene.router.slow = True
    with pytest.raises(ActuatorError) as caught:
        await scene.actuator().write(A, {Knob.ADMISSION: DRAIN}, 0.15)
    assert caught.value.kind is ErrorKind.TIMEOUT

    state = (await scene.actuator().read((A,), DEADLINE_S))[A]
    assert state.values == {Knob.ADMISSION: SERVE}
    assert "may still come" in state.doubt
    del scene.router.there[A]
    assert await scene.admission() == DRAIN


@pytest.mark.parametrize("kind", ErrorKind)
async def test_a_removal_that_was_never_begun_leaves_no_note_and_one_that_may_have_does(scene: Scene, kind: ErrorKind) -> None:
    scene.router.fails = kind
    with pytest.raises(ActuatorError):
        await scene.write(DRAIN)
    assert (A in scene.notes()) == (kind in (ErrorKind.TIMEOUT, ErrorKind.PROTOCOL))


async def test_a_removal_that_may_come_stays_noted_although_the_next_one_is_refused(scene: Scene) -> None:
    for kind in (ErrorKind.TIMEOUT, ErrorKind.REFUSED):
        scene.router.fails = kind
        with pytest.raises(ActuatorError):
            await scene.write(DRAIN)
    del scene.router.there[A]
    assert await scene.admission() == DRAIN


@pytest.mark.parametrize("later_s", [SETTLED_S, -3_600.0])
async def test_a_removal_that_never_came_is_forgotten_so_that_nobody_elses_is_taken_for_ours(
    scene: Scene, later_s: float
) -> None:
    scene.router.slow = True
    with pytest.raises(ActuatorError):
        await scene.actuator().write(A, {Knob.ADMISSION: DRAIN}, 0.15)
    scene.now += later_s

    assert await scene.admission() == SERVE
    del scene.router.there[A]
    assert await scene.admission() is None


async def test_a_worker_that_is_back_by_another_hand_is_left_as_that_hand_made_it(scene: Scene) -> None:
    await scene.write(DRAIN)
    scene.router.there[A] = theirs = Worker(A, "new", "regular", "other", True, {"url": A, "cost": 9.0})
    await scene.write(SERVE)

    assert scene.router.there[A] is theirs
    assert scene.router.added == []
    assert await scene.admission() == SERVE
    assert scene.notes() == {}


async def test_an_addition_under_way_is_waited_for_and_not_repeated(scene: Scene) -> None:
    await scene.write(DRAIN)
    scene.router.jobs["job"] = "running"
    for _ in range(3):
        with pytest.raises(ActuatorError) as caught:
            await scene.actuator().write(A, {Knob.ADMISSION: SERVE}, 0.15)
        assert caught.value.kind is ErrorKind.TIMEOUT
        assert await scene.admission() == DRAIN
    assert len(scene.router.added) == 1

    scene.router.jobs["job"] = "failed"
    with pytest.raises(ActuatorError) as caught:
        await scene.write(SERVE)
    assert caught.value.kind is ErrorKind.UNREACHABLE
    del scene.router.jobs["job"]
    await scene.write(SERVE)
    assert await scene.admission() == SERVE


OTHERS = {
    "nobody": {},
    "one that is not healthy": {B: worker(B, healthy=False)},
    "one of another type": {B: worker(B, kind="prefill")},
    "one of another model": {B: worker(B, model="other")},
}


@pytest.mark.parametrize("case", OTHERS)
async def test_a_worker_whose_place_nobody_can_take_is_not_removed(scene: Scene, case: str) -> None:
    scene.router.there = {A: worker(A), **OTHERS[case]}
    with pytest.raises(ActuatorError) as caught:
        await scene.write(DRAIN)
    assert caught.value.kind is ErrorKind.REFUSED
    assert A in scene.router.there
    assert scene.notes() == {}


async def test_a_worker_that_could_not_be_added_back_is_never_removed_and_says_so(scene: Scene) -> None:
    scene.router.there[A] = Worker(A, "", "prefill", "m", True, {}, "no way back")
    state = (await scene.actuator().read((A,), DEADLINE_S))[A]
    assert state.values == {}
    assert state.cannot == {Knob.ADMISSION: "no way back"}
    with pytest.raises(ActuatorError, match="no way back"):
        await scene.write(DRAIN)


GARBAGE = [
    b"", b"{", b"[]", b"null", b'{"version": 2, "removed": {}}', b'{"version": 1}', b'{"version": 1, "removed": {"r": []}}',
    b'{"version": 1, "removed": {"r": {"http://a": {}}}}', b"[" * 100_000, b"\xff",
    b'{"version": 1, "removed": {"r": {"http://a": {"document": {"url": "http://b"}, "at_unix_s": 1, "gone": true, "job": ""}}}}',
]  # fmt: skip


@pytest.mark.parametrize("content", GARBAGE)
async def test_a_file_that_cannot_be_understood_is_said_and_never_overwritten(scene: Scene, content: bytes) -> None:
    file = scene.folder / "removed.json"
    file.write_bytes(content)
    del scene.router.there[A]
    state = (await scene.actuator().read((A, B), DEADLINE_S))[A]
    assert state.values == {}
    assert str(file) in state.doubt
    for url in (A, B):
        with pytest.raises(ActuatorError) as caught:
            await scene.actuator().write(url, {Knob.ADMISSION: DRAIN}, DEADLINE_S)
        assert caught.value.kind is ErrorKind.REFUSED
    assert file.read_bytes() == content
    assert B in scene.router.there


async def test_a_worker_that_the_file_has_no_room_for_is_not_removed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailkeeper_watchdog.actuators.removed_workers.FILE_LIMIT_BYTES", 50)
    with pytest.raises(ActuatorError, match="longer than 50 bytes"):
        await scene.write(DRAIN)
    assert A in scene.router.there
