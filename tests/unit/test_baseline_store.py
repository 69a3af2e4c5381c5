"""Saved baselines: the file of the configuration, and the database beside the state file."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from tailkeeper_watchdog import baseline_store
from tailkeeper_watchdog.api import documents
from tailkeeper_watchdog.baseline_set import BaselineSet, Form, parse
from tailkeeper_watchdog.baseline_store import BaselineFileError, BaselineStore, Keeper, read_file
from tests.unit.baselines_at_hand import bucket_baseline_of, rows_baseline

ROWS, BUCKETS = rows_baseline(), bucket_baseline_of()
WHOLE = BaselineSet({("a", Form.ROWS): ROWS, ("a", Form.BUCKETS): BUCKETS}, {("m", Form.ROWS): ROWS})
DAY_S = 86_400.0


def test_a_document_comes_back_as_it_was_whatever_else_is_in_it() -> None:
    document = documents.baselines(BaselineSet(WHOLE.backends), BaselineSet({}, WHOLE.models), {"b": "waits"})
    assert document["gathering"] == {"b": {"why": "waits"}}
    assert parse(json.loads(json.dumps(document))) == WHOLE


def test_a_backends_own_baseline_comes_before_its_models() -> None:
    mine = rows_baseline(blocks=100)
    found = BaselineSet({("a", Form.ROWS): mine}, {("m", Form.ROWS): ROWS})
    assert found.of("a", {"m"}, Form.ROWS) is mine
    assert found.of("b", {"x", "m"}, Form.ROWS) is ROWS
    assert found.of("b", {"x"}, Form.ROWS) is None
    assert found.of("a", {"m"}, Form.BUCKETS) is None


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "must be an object"),
        ({}, "version must be 1"),
        ({"version": 2}, "version must be 1, not '2'"),
        ({"version": 1, "backends": []}, "backends must be an object"),
        ({"version": 1, "backends": {"a": {}}}, "backends.a must be a list of one or two"),
        ({"version": 1, "models": {"m": [{"kind": "cusum"}]}}, "models.m[0].kind must be one of block_e, bucket_e"),
        ({"version": 1, "models": {"m": [None]}}, "models.m[0].kind must be one of"),
        ({"version": 1, "models": {"m": [{**ROWS.document(), "anchors": [1]}]}}, "models.m[0]: baseline.anchors"),
        ({"version": 1, "models": {"m": [ROWS.document(), ROWS.document()]}}, "models.m[1] is a second baseline"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place_that_is_wrong(tmp_path: Path, document: Any, said: str) -> None:
    file = tmp_path / "baselines.json"
    file.write_text(json.dumps(document))
    with pytest.raises(BaselineFileError) as caught:
        read_file(file)
    assert str(caught.value).startswith(f"watchdog.baselines: {file}: ")
    assert said in str(caught.value)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_no_json_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "baselines.json"
    file.write_bytes(content)
    with pytest.raises(BaselineFileError, match="is not valid JSON"):
        read_file(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BaselineFileError, match="cannot be read: No such file"):
        read_file(tmp_path / "none.json")


def test_what_was_saved_is_there_after_a_restart_and_a_month_later_no_more(tmp_path: Path) -> None:
    store = BaselineStore.beside(tmp_path / "state.db")
    assert store.load(0.0) == BaselineSet()
    assert store.save(WHOLE.backends, frozenset(), 0.0)
    assert BaselineStore.beside(tmp_path / "state.db").load(DAY_S) == BaselineSet(WHOLE.backends)
    assert store.save({}, frozenset({("a", Form.ROWS)}), DAY_S)
    assert set(store.load(DAY_S).backends) == {("a", Form.BUCKETS)}
    assert store.load(32 * DAY_S) == BaselineSet()


def test_a_row_that_is_damaged_costs_only_itself(tmp_path: Path) -> None:
    store = BaselineStore(tmp_path / "b")
    store.save(WHOLE.backends, frozenset(), 0.0)
    with contextlib.closing(store._open()) as database, database:
        database.execute("UPDATE baselines SET document = '{\"kind\": \"block_e\"}' WHERE form = 'block_e'")
    assert set(store.load(0.0).backends) == {("a", Form.BUCKETS)}


def test_a_damaged_database_is_set_aside_and_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "b"
    path.write_bytes(b"this is no database, but long enough to look like one" * 100)
    store = BaselineStore(path)
    assert store.load(0.0) == BaselineSet()
    assert (tmp_path / "b.unreadable").exists()
    assert store.save(WHOLE.backends, frozenset(), 0.0)
    assert store.load(0.0) == BaselineSet(WHOLE.backends)


def test_a_disk_that_cannot_be_written_raises_nothing(tmp_path: Path) -> None:
    assert BaselineStore(tmp_path / "no folder" / "b").save(WHOLE.backends, frozenset(), 0.0) is False


def test_a_baseline_beyond_its_bound_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline_store, "MAX_DOCUMENT_BYTES", 100)
    store = BaselineStore(tmp_path / "b")
    assert store.save(WHOLE.backends, frozenset(), 0.0)
    assert store.load(0.0) == BaselineSet()


async def test_the_keeper_writes_what_has_changed_and_takes_away_what_has_ended(tmp_path: Path) -> None:
    store, used = BaselineStore(tmp_path / "b"), [BaselineSet(WHOLE.backends)]
    saved: list[tuple[int, int]] = []

    class Spied(BaselineStore):
        def save(self, changed: Any, ended: Any, wall: float) -> bool:
            saved.append((len(changed), len(ended)))
            return super().save(changed, ended, wall)

    keeper = Keeper(Spied(tmp_path / "b"), lambda: used[-1], lambda: 0.0)
    await keeper.keep()
    await keeper.keep()
    used.append(BaselineSet({("a", Form.ROWS): ROWS}))
    await keeper.keep()
    assert saved == [(2, 0), (0, 1)]
    assert set(store.load(0.0).backends) == {("a", Form.ROWS)}
