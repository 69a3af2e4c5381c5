"""The token of changing calls, read from its file once; what the calls then need is in the tests of both servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailkeeper_exporter.change_rights import read_token, refused


def test_the_token_is_the_files_text_without_the_white_space_around_it(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("  correct-horse \n")

    assert read_token(file, "exporter.token_file") == "correct-horse"
    assert read_token(None, "exporter.token_file") is None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\xff\xfe\x00", "is not text"),
        (b"correct horse", "must hold the token alone, one word"),
        ("café".encode(), "must hold the token alone, one word"),
        (b"one\ntwo", "must hold one line"),
    ],
)
def test_a_file_without_a_token_is_refused_by_its_setting_and_its_path(tmp_path: Path, content: bytes, why: str) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)

    with pytest.raises(ValueError, match=rf"exporter\.token_file: .*token {why}"):
        read_token(file, "exporter.token_file")


@pytest.mark.parametrize("given", [b"", b"Bearer", b"Bearer \xc3", b"Bearer caf\xc3\xa9 ", b"bearer caf\xe9"])
def test_only_the_very_bytes_of_a_token_are_let_in(given: bytes) -> None:
    assert (refused({b"authorization": given}, "café".encode()) is None) == (given == b"Bearer caf\xc3\xa9 ")
