"""One leads: the lock beside the ledger, who holds it, and when it is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tailkeeper_watchdog.leadership import AllOf, FileLock, ShardsLock

NOW = 1_700_000_000.0


def lock(folder: Path, listen: str = "127.0.0.1:8088") -> FileLock:
    return FileLock(folder / "t.db", listen, lambda: NOW)


async def test_the_first_leads_and_the_second_is_told_who(tmp_path: Path) -> None:
    first, second = lock(tmp_path), lock(tmp_path, "127.0.0.1:9999")
    assert await first.try_lead() is None
    said = await second.try_lead()

    assert said is not None
    assert f"another watchdog leads: process {os.getpid()} on " in said
    assert "at 127.0.0.1:8088, since 2023-11-14T22:13:20+00:00" in said
    assert await first.try_lead() is None, "asking again is no loss"


async def test_who_steps_down_is_followed_at_the_next_try(tmp_path: Path) -> None:
    first, second = lock(tmp_path), lock(tmp_path)
    await first.try_lead()
    await first.step_down()
    await second.step_down()  # without effect: it does not lead

    assert await second.try_lead() is None
    assert await first.try_lead() is not None


@pytest.mark.parametrize("words", [b"", b"{", b"[]", b"\xff\xfe", b'{"pid": {"a": 1}}', b"[" * 5_000])
async def test_whatever_stands_in_the_file_the_lock_alone_decides(tmp_path: Path, words: bytes) -> None:
    first, second = lock(tmp_path), lock(tmp_path)
    await first.try_lead()
    (tmp_path / "t.db.lock").write_bytes(words)

    assert "another watchdog leads" in (await second.try_lead() or "")
    await first.step_down()
    assert await second.try_lead() is None


async def test_a_lock_file_that_was_taken_away_is_no_lock_any_more(tmp_path: Path) -> None:
    first, second = lock(tmp_path), lock(tmp_path)
    await first.try_lead()
    (tmp_path / "t.db.lock").unlink()

    assert await second.try_lead() is None
    assert "another watchdog leads" in (await first.try_lead() or ""), "there are never two"


async def test_a_folder_that_is_not_there_lets_nobody_lead_and_says_so(tmp_path: Path) -> None:
    nowhere = FileLock(tmp_path / "none" / "t.db", "127.0.0.1:8088", lambda: NOW)

    assert "cannot be used, so nobody can say who leads: No such file or directory" in (await nowhere.try_lead() or "")
    with pytest.raises(FileNotFoundError):
        nowhere.check()


async def test_a_lock_and_a_lease_lead_together_or_not_at_all(tmp_path: Path) -> None:
    here, elsewhere = lock(tmp_path), FileLock(tmp_path / "lease", "elsewhere", lambda: NOW)
    both = AllOf(lock(tmp_path), FileLock(tmp_path / "lease", "here", lambda: NOW))
    await elsewhere.try_lead()
    assert "at elsewhere" in (await both.try_lead() or "")
    await elsewhere.step_down()
    assert await both.try_lead() is None
    assert await here.try_lead() is not None
    await both.step_down()
    assert await here.try_lead() is None


async def test_a_lock_file_that_cannot_be_looked_at_for_a_moment_is_had_at_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, stat = lock(tmp_path), os.stat

    def refused(path: object) -> os.stat_result:
        monkeypatch.setattr(os, "stat", stat)
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "stat", refused)
    assert "nobody can say who leads: Permission denied" in (await one.try_lead() or "")
    assert await one.try_lead() is None


def shards(folder: Path, of: int) -> ShardsLock:
    return ShardsLock(folder / "t.db", "127.0.0.1:8088", lambda: NOW, of)


async def test_shards_of_one_number_lead_together_and_those_of_another_wait_for_the_last_of_them(tmp_path: Path) -> None:
    two, new = [shards(tmp_path, 2) for _ in range(2)], [shards(tmp_path, 3) for _ in range(3)]
    assert [await one.try_lead() for one in two] == [None, None]
    for left in (2, 1):
        said = await new[0].try_lead()
        assert said is not None
        assert said.startswith("this fleet is watched by 2 shards, and a fleet has one number of them at a time: process ")
        assert [await one.try_lead() for one in two[:left]] == [None] * left
        await two[left - 1].step_down()

    assert [await one.try_lead() for one in new] == [None] * 3
    assert "watched by 3 shards" in (await two[0].try_lead() or "")


async def test_a_watchdog_for_all_and_shards_exclude_each_other(tmp_path: Path) -> None:
    whole, shard = lock(tmp_path), shards(tmp_path, 2)
    await shard.try_lead()
    assert "watched by 2 shards" in (await whole.try_lead() or "")
    await shard.step_down()
    assert await whole.try_lead() is None
    assert "another watchdog leads: process" in (await shard.try_lead() or "")
    await whole.step_down()
    assert await shard.try_lead() is None


@pytest.mark.parametrize("words", [b"", b"{", b'{"shards": "2"}', b'{"shards": [2]}', b'{"shards": 3}'])
async def test_whatever_stands_in_the_file_a_shard_that_is_alone_makes_it_its_own(tmp_path: Path, words: bytes) -> None:
    (tmp_path / "t.db.lock").write_bytes(words)
    first, second, other = shards(tmp_path, 2), shards(tmp_path, 2), shards(tmp_path, 4)
    assert await first.try_lead() is None
    assert await second.try_lead() is None
    assert await other.try_lead() is not None


async def test_a_shard_whose_lock_file_was_taken_away_leads_no_more_beside_another_number(tmp_path: Path) -> None:
    first, other = shards(tmp_path, 2), shards(tmp_path, 3)
    await first.try_lead()
    (tmp_path / "t.db.lock").unlink()
    assert await other.try_lead() is None
    assert "watched by 3 shards" in (await first.try_lead() or "")
