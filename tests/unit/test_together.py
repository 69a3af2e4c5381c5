"""Exporter and watchdog in one process: what can be told before either starts is told then."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from tailkeeper.config import Config, parse
from tailkeeper.together import run_together
from tailkeeper_exporter.change_rights import read_token


def never(config: Config, discoverer: object) -> Any:
    raise AssertionError("the watchdog was built although an address is taken")


@pytest.mark.parametrize("part", ["exporter", "watchdog"])
async def test_an_address_that_is_taken_is_named_before_anything_is_started(part: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as other:
        listen = {part: f"127.0.0.1:{taken.getsockname()[1]}"}
        free = other.getsockname()[1]
        other.close()
        for name in {"exporter", "watchdog"} - {part}:
            listen[name] = f"127.0.0.1:{free}"
        with pytest.raises(OSError, match=rf"{part}\.listen: {listen[part]}: Address already in use"):
            await run_together(parse({name: {"listen": address} for name, address in listen.items()}), never)


async def test_a_taps_address_that_is_taken_is_named_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        backend = {"name": "a", "engine": "generic", "url": "http://127.0.0.1:1", "tap": {"listen": address}}
        document = {"backends": [backend], "exporter": {"listen": "127.0.0.1:0"}, "watchdog": {"listen": "127.0.0.1:0"}}
        with pytest.raises(OSError, match=rf"backends\.a\.tap\.listen: {address}: Address already in use"):
            await run_together(parse(document), never)


@pytest.mark.parametrize(("content", "why"), [(b"", "is empty"), (b" \n", "is empty"), (b"\xff\xfe\x00", "is not text")])
def test_a_token_file_without_a_token_is_refused_by_its_setting_and_its_path(tmp_path: Path, content: bytes, why: str) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=rf"watchdog\.token_file: .*token {why}"):
        read_token(file, "watchdog.token_file")
