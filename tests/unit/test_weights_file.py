"""The watched file: new weights are seen once it stands still, and nothing that is half, wrong or gone changes any."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import structlog.testing

from tailkeeper.config import load, weights_in
from tailkeeper_watchdog.weights_file import WeightsFile

A = {"latency": 0.35, "error_rate": 0.40, "cpu_usage": 0.15, "uptime": 0.10}
B = {"latency": 0.25, "error_rate": 0.25, "cpu_usage": 0.25, "uptime": 0.25}
BACKENDS = "backends:\n  - {name: a, engine: vllm, url: 'http://127.0.0.1:8000'}\n"


def text(weights: Mapping[str, object]) -> str:
    return f"{BACKENDS}hscore:\n  weights: {{{', '.join(f'{k}: {v}' for k, v in weights.items())}}}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "tailkeeper.yaml"
    file.write_text(text(A).ljust(len(text(B)), "\n"))
    return file


@pytest.fixture
def file(path: Path) -> WeightsFile:
    watched = WeightsFile(path, weights_in)
    assert polled(watched, 2) is None
    return watched


def polled(file: WeightsFile, times: int = 3) -> Mapping[str, float] | None:
    """The last weights that so many looks gave."""
    found = [weights for _ in range(times) if (weights := file.poll()) is not None]
    return found[-1] if found else None


def renamed_into_place(path: Path) -> None:
    new = path.with_suffix(".new")
    new.write_text(text(B))
    os.replace(new, path)


def same_size_and_time(path: Path) -> None:
    """Only the inode tells: a tool that keeps times, and weights of as many characters."""
    before = path.stat()
    renamed_into_place(path)
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def behind_a_link(path: Path) -> None:
    """As Kubernetes swaps a mounted configuration."""
    real = path.with_suffix(".v2")
    real.write_text(text(B))
    path.unlink()
    path.symlink_to(real)


@pytest.mark.parametrize("write", [lambda path: path.write_text(text(B)), renamed_into_place, same_size_and_time, behind_a_link])
def test_new_weights_are_seen_however_they_come(file: WeightsFile, path: Path, write: Callable[[Path], None]) -> None:
    write(path)
    assert polled(file) == B
    assert polled(file) is None, "once"


def test_a_file_is_read_when_it_has_stood_still_for_one_look(file: WeightsFile, path: Path) -> None:
    whole = text(B)
    for end in range(len(whole) - 6, len(whole)):
        path.write_text(whole[:end])
        assert file.poll() is None, "it has just changed"
    path.write_text(whole)
    assert [file.poll(), file.poll()] == [None, B]


def test_what_is_written_between_the_start_and_the_first_look_is_seen(path: Path) -> None:
    file = WeightsFile(path, weights_in)
    path.write_text(text(B))
    assert polled(file) == B


def test_a_touched_file_is_not_read_again(path: Path) -> None:
    read: list[Path] = []
    file = WeightsFile(path, lambda given: read.append(given))
    os.utime(path, ns=(1, 1))
    assert polled(file) is None
    assert read == []


BAD = {
    "half a file": BACKENDS + "hscore:\n  weights: {latency: 0.3",
    "empty weights value": BACKENDS + "hscore:\n  weights:\n",
    "a sum that is not 1": text({**B, "latency": 0.26}),
    "a sum that is nearly 1": text({**B, "latency": 0.2500011}),
    "three of four": text({"latency": 0.5, "error_rate": 0.25, "cpu_usage": 0.25}),
    "less than nothing": text({**B, "latency": -0.25, "uptime": 0.75}),
    "no number": text({**B, "latency": ".nan"}),
    "a word": text({**B, "latency": "much"}),
    "an unknown key": text({**B, "speed": 0}),
    "wrong elsewhere": text(B) + "nonsense: 1\n",
    "the key twice": text(B) + "hscore: {}\n",
    "not a mapping": "- 1\n",
    "not text": "\x00\x01",
    "too deep": "a: " + "[" * 1_000,
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD.keys())
def test_a_file_that_is_not_right_changes_nothing_and_is_said_once(file: WeightsFile, path: Path, content: str) -> None:
    path.write_text(content)
    with structlog.testing.capture_logs() as logs:
        assert polled(file, 5) is None
        path.write_text(content)
        assert polled(file, 5) is None
    assert len(logs) == 1
    assert logs[0]["log_level"] == "warning"
    assert logs[0]["why"]
    path.write_text(text(B))
    assert polled(file) == B, "and it is taken when it is right again"


def test_a_complaint_names_the_key_the_value_and_what_is_allowed(file: WeightsFile, path: Path) -> None:
    path.write_text(text({**B, "latency": 2}))
    with structlog.testing.capture_logs() as logs:
        polled(file)
    assert logs[0]["why"] == "hscore.weights.latency: input should be less than or equal to 1 (given: 2)"


def test_a_file_that_is_gone_is_said_and_changes_nothing(file: WeightsFile, path: Path) -> None:
    path.unlink()
    with structlog.testing.capture_logs() as logs:
        assert polled(file, 5) is None
    assert ["cannot be read" in entry["why"] for entry in logs] == [True]
    path.write_text(text(B))
    assert polled(file) == B


def test_a_file_without_weights_names_none(path: Path) -> None:
    path.write_text(BACKENDS)
    assert weights_in(path) is None
    assert load(path).hscore.weights.model_dump() == A


def test_a_file_that_no_longer_names_weights_changes_nothing_and_says_how_to_go_back(file: WeightsFile, path: Path) -> None:
    path.write_text(text(B))
    assert polled(file) == B
    path.write_text(BACKENDS)
    with structlog.testing.capture_logs() as logs:
        assert polled(file, 5) is None
    assert ["write them" in entry["why"] for entry in logs] == [True]
