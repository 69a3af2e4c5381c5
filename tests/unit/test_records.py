"""Records on disk: torn, full, slow, rotated; what can be read is read, and the loop never waits."""

from __future__ import annotations

import json
import stat
import threading
import zlib
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from tailkeeper_exporter.readings import absent, present
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.collect.base import Collected
from tailkeeper_watchdog.model import (
    Backend,
    BackendObservation,
    FleetSnapshot,
    Knob,
    Pending,
    RequestRecord,
    Situation,
    Slo,
    Target,
    TickRecord,
)
from tailkeeper_watchdog.reconcile import Executed, GatewayReport
from tailkeeper_watchdog.records import batch, file
from tailkeeper_watchdog.records.file import Recorder, previous, read
from tailkeeper_watchdog.records.lines import FORMAT, Decoder, RecordedTick, RunStart
from tailkeeper_watchdog.records.observations import difference, patched
from tailkeeper_watchdog.records.plain import from_plain, to_plain
from tailkeeper_watchdog.tick import TickInputs

FLEET = (Backend("a", "m", (Target("edge", "a", "llm"),)),)
NOTHING = Executed((), frozenset(), frozenset(), frozenset(), frozenset())


def tick(number: int, note: str = "") -> tuple[TickRecord, TickInputs]:
    """One tick of a fleet of one; ``note`` makes it as large as wanted."""
    seen = BackendObservation("a", State.SERVING, 0.1, None, {"x": present(float(number), 1.0)}, {}, (), (note,))
    collected = Collected({"a": seen}, (RequestRecord("a", "ok", 0.1, None, 2.0),))
    snapshot = FleetSnapshot(number, float(number), 1e9 + number, FLEET, collected.observations)
    record = TickRecord(number, 1e9 + number, 0.01, Situation(snapshot, {}, {}, {}, Slo(), 3.0), (), (), (), ())
    pending: Pending = {("edge", "a", Knob.WEIGHT): {0.5: 1e9 + number}} if number % 3 else {}
    report = GatewayReport({}, {})
    inputs = TickInputs(number, 0.0, float(number), 1e9 + number, FLEET, collected, report, pending=pending, executed=NOTHING)
    return record, inputs


def recorder(path: Path, max_bytes: int = 1_000_000, **options: Any) -> Recorder:
    return Recorder(path, max_bytes, {}, "run", **options)


def write(path: Path, numbers: range, max_bytes: int = 1_000_000, note: str = "") -> None:
    """Each tick a batch of its own."""
    clock = iter(range(0, 10**9, 20))
    writing = recorder(path, max_bytes, clock=lambda: float(next(clock)), waiting=10_000)
    for number in numbers:
        writing.offer(*tick(number, note and f"{note}{number * 7919 % 1000}"))
    writing.close()


def ticks(path: Path) -> list[int]:
    return [step.tick for step in read(path) if isinstance(step, RecordedTick)]


def test_what_was_written_is_read_back_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "r"
    write(path, range(5))
    steps = list(read(path))
    assert isinstance(steps[0], RunStart)
    assert [(s.tick, s.inputs) for s in steps if isinstance(s, RecordedTick)] == [(n, tick(n)[1]) for n in range(5)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("cut", [1, 7, 40, 60])
def test_a_torn_end_costs_itself_alone_and_what_follows_is_read(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "r"
    write(path, range(4))
    path.write_bytes(path.read_bytes()[:-cut])
    assert ticks(path)[:3] == [0, 1, 2]
    write(path, range(10, 12))
    assert ticks(path)[-2:] == [10, 11]
    (after,) = [s for s in read(path) if isinstance(s, RecordedTick) and s.tick == 10]
    assert after.lost > 0


def test_a_hole_is_told_and_nothing_is_computed_across_it(tmp_path: Path) -> None:
    path = tmp_path / "r"
    write(path, range(3))
    whole = path.read_bytes()
    second = whole.index(b"\x1f\x8b\x08", 3)
    path.write_bytes(whole[: second + 12] + b"\x00" * 8 + whole[second + 20 :])
    assert ticks(path) == [0], "the third is the difference to a second that is not known"


@pytest.mark.parametrize("body", [b"", b"nonsense", b"\x1f\x8b\x08", zlib.compress(b"[]"), b"\x00" * 1_000])
def test_what_is_no_record_gives_nothing(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "r"
    path.write_bytes(body)
    assert list(read(path)) == []


@pytest.mark.parametrize(
    "line",
    [
        None, 3, [], {}, {"run": 1}, {"run": "r", "format": 0, "configuration": {}, "continued": False}, {"i": 0},
        {"i": 0, "m": 1},
        {"i": 0, "t": "x", "u": 1}, {"i": 0, "t": 1, "u": 1, "m": [0, 0, 0, 0], "s": {"a": {}}},
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_is_passed_over_and_counted(line: Any) -> None:
    decoder = Decoder()
    decoder.take({"run": "r", "format": FORMAT, "configuration": {}, "continued": False})
    assert decoder.take(line) is None
    assert decoder.unreadable == 1


def test_the_files_stay_within_their_bound_and_the_newest_ticks_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "r"
    write(path, range(3_000), 60_000, "x" * 50)
    assert path.stat().st_size + previous(path).stat().st_size <= 62_000
    kept = ticks(path)
    assert kept == list(range(kept[0], 3_000))
    first = next(iter(read(path)))
    assert isinstance(first, RunStart)
    assert first.continued


@pytest.mark.parametrize("path", ["/nowhere/at/all/r", "/dev/full"])
def test_a_disk_that_cannot_be_written_costs_ticks_and_raises_nothing(path: str) -> None:
    writing = recorder(Path(path), waiting=100, clock=iter(float(n) for n in range(0, 10**6, 20)).__next__)
    for number in range(5):
        writing.offer(*tick(number))
    writing.close()
    assert writing.lost == 5


def test_what_is_left_at_the_end_and_cannot_be_written_is_lost_too() -> None:
    writing = recorder(Path("/dev/full"))
    for number in range(3):
        writing.offer(*tick(number))
    writing.close()
    assert writing.lost == 3


def test_a_disk_that_does_not_keep_up_never_delays_the_loop(tmp_path: Path) -> None:
    path = tmp_path / "r"
    writing = recorder(path, waiting=2)
    disk = threading.Event()
    writing._take = lambda *_: disk.wait(5)  # type: ignore[method-assign,assignment]
    for number in range(20):
        writing.offer(*tick(number))
    assert writing.lost >= 17
    disk.set()
    writing.close()


@pytest.mark.parametrize(("backends", "waiting"), [(1, 8), (file.QUEUE_BACKENDS // 2, 2), (file.QUEUE_BACKENDS * 3, 1)])
def test_of_large_fleets_fewer_ticks_wait_for_the_disk(tmp_path: Path, backends: int, waiting: int) -> None:
    writing, taken, disk = recorder(tmp_path / "r"), threading.Event(), threading.Event()

    def slowly(*_: object) -> None:
        taken.set()
        disk.wait(5)

    writing._take = slowly  # type: ignore[method-assign,assignment]
    record, inputs = tick(0)
    snapshot = replace(record.situation.snapshot, backends=FLEET * backends)
    record = replace(record, situation=replace(record.situation, snapshot=snapshot))
    writing.offer(record, inputs)
    assert taken.wait(5)
    for _ in range(10):
        writing.offer(record, inputs)
    assert writing.lost == 10 - waiting
    disk.set()
    writing.close()


LINE = {"s": {"a": {"v": [1.5, inf]}, "b": {}}, "l": [{"id": 1}, {"id": 2}], "e": None, "g": [], "m": {}, "t": 7, "ö": "ü\n"}


@pytest.mark.parametrize("line", [{}, LINE, {"s": {str(n): {"v": n} for n in range(20_000)}}])
def test_a_line_is_written_backend_by_backend_and_is_json(line: dict[str, Any]) -> None:
    written = list(batch.pieces(line))
    assert json.loads("".join(written)) == line
    assert max(map(len, written)) < 100
    one, whole = batch.Batch(), batch.Batch()
    one.add(line)
    for _ in range(2):
        whole.add(line)
    assert [json.loads(text) for text in zlib.decompress(whole.body(), 31).splitlines()] == [line, line]
    assert whole.chars == 2 * one.chars


def test_a_field_that_was_added_later_is_passed_over_and_one_that_is_missing_takes_its_default() -> None:
    document = to_plain(FLEET[0]) | {"added_later": [1, 2]}
    assert from_plain(Backend, json.loads(json.dumps(document))) == FLEET[0]
    assert from_plain(Backend, {"name": "b"}) == Backend("b")


@dataclass(frozen=True)
class _Pair:
    pair: tuple[int, str]
    either: float | str | None = None


@pytest.mark.parametrize("wrong", [3, {"pair": 1}, {"pair": [1]}, {"pair": [1, 2]}, {"pair": [1, "x"], "either": []}, {}])
def test_a_value_that_is_not_of_its_type_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="is no"):
        from_plain(_Pair, wrong)


def test_a_reading_that_is_absent_stays_absent() -> None:
    observation = BackendObservation("a", State.BUSY, None, "why", {"x": absent(), "y": present(0.0, 3.0)})
    assert patched("a", json.loads(json.dumps(difference(observation, None))), None) == observation
