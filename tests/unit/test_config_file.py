"""The configuration file of a gateway on disk: nothing of others is lost, and nothing is left half-written."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tailkeeper_watchdog.actuators import config_file
from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.config_file import ConfigFile
from tailkeeper_watchdog.actuators.contract import ErrorKind

LATER = 60.0


def soon() -> float:
    return time.monotonic() + LATER


@pytest.fixture(params=[False, True], ids=["draft beside", "draft above"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> ConfigFile:
    (tmp_path / "folder").mkdir()
    path = tmp_path / "folder" / "llm.yml"
    path.write_text("old")
    return ConfigFile(path, aside=request.param)


def test_the_file_is_replaced_at_once_with_its_mode_kept_and_nothing_left_beside_it(file: ConfigFile) -> None:
    file.path.chmod(0o640)
    before = file.path.stat().st_ino

    written = file.change(lambda text: text + " and new", soon())

    assert (written.before, written.after) == (b"old", b"old and new")
    assert file.path.read_text() == "old and new"
    assert file.path.stat().st_mode & 0o7777 == 0o640
    assert file.path.stat().st_ino != before
    assert [p.name for p in file.path.parent.rglob("*")] == ["llm.yml"]
    assert not list(file.path.parent.parent.glob(".*"))


def test_a_text_that_stays_the_same_is_not_written_unless_it_must_be_seen_again(file: ConfigFile) -> None:
    before = file.path.stat().st_ino
    assert file.change(lambda text: text, soon()).after == b"old"
    assert file.path.stat().st_ino == before
    file.change(lambda text: text, soon(), republish=True)
    assert file.path.stat().st_ino != before


def test_an_edit_of_another_hand_between_read_and_rename_is_built_upon_and_not_lost(file: ConfigFile) -> None:
    edits = iter(["theirs", "theirs"])

    def make(text: str) -> str:
        if (theirs := next(edits, None)) is not None:
            file.path.write_text(theirs + text[-1])
        return text + " ours"

    file.change(make, soon())
    assert file.path.read_text() == "theirsd ours"


def test_a_file_that_never_stands_still_is_left_for_the_next_tick(file: ConfigFile) -> None:
    def make(text: str) -> str:
        file.path.write_text(text + "x")
        return "ours"

    with pytest.raises(CallError, match="all the time") as caught:
        file.change(make, soon())
    assert caught.value.kind is ErrorKind.UNREACHABLE
    assert file.path.read_text() == "oldxxx"


def test_a_change_is_put_back_only_while_it_is_still_what_stands_there(file: ConfigFile) -> None:
    written = file.change(lambda _: "ours", soon())
    assert file.put_back(written, soon())
    assert file.path.read_text() == "old"
    written = file.change(lambda _: "ours", soon())
    file.path.write_text("theirs")
    assert not file.put_back(written, soon())
    assert file.path.read_text() == "theirs"


def test_after_its_time_nothing_is_written(file: ConfigFile) -> None:
    with pytest.raises(CallError) as caught:
        file.change(lambda _: "ours", time.monotonic() - 1)
    assert caught.value.kind is ErrorKind.UNREACHABLE
    assert file.path.read_text() == "old"


def test_two_of_us_do_not_write_at_once_and_a_draft_of_a_killed_one_does_not_stand_in_the_way_for_ever(file: ConfigFile) -> None:
    folder = file.path.parent.parent if file.aside else file.path.parent
    draft = folder / ".llm.yml.tailkeeper"
    draft.write_text("half")
    with pytest.raises(CallError, match="another change is being written") as caught:
        file.change(lambda _: "ours", soon())
    assert caught.value.kind is ErrorKind.UNREACHABLE
    assert file.path.read_text() == "old"
    long_ago = time.time() - config_file.STALE_LOCK_S - 1
    os.utime(draft, (long_ago, long_ago))
    file.change(lambda _: "ours", soon())
    assert file.path.read_text() == "ours"


def test_the_draft_of_another_one_that_begins_right_after_the_rename_is_left(
    file: ConfigFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.replace

    def renamed(draft: Path, path: Path) -> None:
        rename(draft, path)
        draft.write_text("of another one")

    monkeypatch.setattr(os, "replace", renamed)
    file.change(lambda _: "ours", soon())
    folder = file.path.parent.parent if file.aside else file.path.parent
    assert (folder / ".llm.yml.tailkeeper").read_text() == "of another one"


def test_a_link_is_kept_and_the_file_that_it_leads_to_is_replaced(file: ConfigFile) -> None:
    link = file.path.with_name("link.yml")
    link.symlink_to(file.path)
    ConfigFile(link, file.aside).change(lambda _: "ours", soon())
    assert link.is_symlink()
    assert file.path.read_text() == "ours"


def test_what_cannot_be_read_or_written_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "llm.yml"
    path.write_bytes(b"\xff\xfe")
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(config_file, "FILE_LIMIT_BYTES", 10)
    (tmp_path / "huge.yml").write_text("x" * 11)
    cases = {
        "missing.yml": (ErrorKind.UNREACHABLE, "is missing"),
        "folder": (ErrorKind.NOT_FOUND, "is a folder"),
        "llm.yml": (ErrorKind.PROTOCOL, "not UTF-8"),
        "huge.yml": (ErrorKind.PROTOCOL, "larger than"),
        "llm.yml/below": (ErrorKind.REFUSED, "cannot be replaced"),
    }
    for name, (kind, words) in cases.items():
        with pytest.raises(CallError, match=words) as caught:
            ConfigFile(tmp_path / name).change(lambda _: "ours", soon())
        assert caught.value.kind is kind


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (PermissionError(13, "Permission denied"), ErrorKind.UNAUTHORIZED, "must be readable and writable"),
        (OSError(16, "Device or resource busy"), ErrorKind.REFUSED, "mount its folder"),
        (OSError(28, "No space left on device"), ErrorKind.REFUSED, "No space left"),
        (OSError(30, "Read-only file system"), ErrorKind.REFUSED, "Read-only"),
    ],
)
def test_a_file_that_cannot_be_replaced_stays_as_it_is(
    file: ConfigFile, monkeypatch: pytest.MonkeyPatch, error: OSError, kind: ErrorKind, words: str
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(CallError, match=words) as caught:
        file.change(lambda _: "ours", soon())
    assert caught.value.kind is kind
    assert file.path.read_text() == "old"
    assert not list(file.path.parent.parent.rglob(".*"))
