"""``release-all`` as a person runs it: a watchdog that answers, one that gives back later, and a ledger that is none."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tailkeeper import release
from tailkeeper.cli import app
from tailkeeper.config import Config, parse
from tailkeeper.release import Pause, released
from tailkeeper_watchdog.giving_back import MAY_STILL_COME
from tailkeeper_watchdog.pending import MAY_COME_S
from tests.e2e.real_programs import free_port
from tests.unit.loopback import Handler, Seen, head, reply, routes, serving, silence

LEASE = {"backend": "a", "knob": "weight", "gateway": "edge", "server": "llm/a", "why": MAY_STILL_COME}
MADE = {"backend": "a", "knob": "weight", "to": 1.0, "verdict": "released"}
EARLY = {**MADE, "reason": f"released by API; prior value read back, and {MAY_STILL_COME}"}
LATE = {**MADE, "reason": "released by API; prior value read back"}


def config(tmp_path: Path, listen: str, **more: Any) -> Config:
    return parse({"watchdog": {"listen": listen, "state": str(tmp_path / "t.db"), **more}})


def in_turn(*answers: dict[str, Any] | Handler) -> Handler:
    """One answer after the other, the last one for ever."""
    left = list(answers)

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        now = left.pop(0) if len(left) > 1 else left[0]
        await (reply(200, now) if isinstance(now, dict) else now)(seen, writer)

    return handle


async def asked(tmp_path: Path, answer: Handler, pause: Handler | None = None) -> tuple[list[str], int, list[str], float]:
    """What is said at the end, how much is left, what is said meanwhile, and how long was waited."""
    heard: list[str] = []
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    paths = {"/api/v1/pause": pause or reply(200, {"paused": True}), "/api/v1/release": answer}
    async with serving(routes(paths)) as server:
        lines, left = await released(config(tmp_path, server.url.removeprefix("http://")), Pause(heard.append, sleep))
    return lines, left, heard, sum(slept)


async def test_a_watchdog_that_waits_for_a_write_from_before_is_asked_again_when_nothing_can_come(tmp_path: Path) -> None:
    first = {"decisions": [EARLY], "kept": [LEASE], "failed": 1}
    lines, left, heard, waited_s = await asked(tmp_path, in_turn(first, {"decisions": [LATE], "kept": [], "failed": 0}))
    assert (left, waited_s) == (0, MAY_COME_S)
    assert heard[0].endswith("may still be done; waiting for that, 10 s at most")
    assert lines[-1].startswith("1 change given back; the watchdog at http://127.0.0.1:")
    assert not any("kept" in line for line in lines)


async def test_what_is_kept_for_another_reason_is_told_at_once(tmp_path: Path) -> None:
    kept = {**LEASE, "why": "edge: no answer"}
    lines, left, heard, waited_s = await asked(tmp_path, in_turn({"decisions": [], "kept": [kept], "failed": 1}))
    assert (left, heard, waited_s) == (1, [], 0)
    assert "a: weight of edge/llm/a kept: edge: no answer" in lines


async def broken(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.write(head(200, length=500))
    writer.close()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            reply(503, {"detail": "the ledger cannot be used: full"}),
            "is paused, and gave nothing back: the ledger cannot be used",
        ),
        (broken, "is paused, and did not say what it gave back (RemoteProtocolError: see with `tailkeeper status`"),
        (reply(200, "<p>Log in</p>"), "is paused, and did not say what it gave back (JSONDecodeError"),
        (reply(200, {"decisions": []}), "is paused, and did not say what it gave back (KeyError"),
    ],
)
async def test_a_watchdog_that_was_paused_and_says_nothing_useful_is_not_taken_for_none(
    tmp_path: Path, answer: Handler, said: str
) -> None:
    lines, left, _, _ = await asked(tmp_path, answer)
    assert (left, said in lines[0]) == (1, True), lines


async def test_a_release_that_takes_the_watchdog_long_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "DEADLINE_S", 0.1)

    async def slow(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.3)
        await reply(200, {"decisions": [LATE], "kept": [], "failed": 0})(seen, writer)

    lines, left, _, _ = await asked(tmp_path, slow)
    assert (left, lines[-1].startswith("1 change given back")) == (0, True), lines


async def test_one_that_refuses_is_told_in_its_own_words(tmp_path: Path) -> None:
    lines, left, _, _ = await asked(tmp_path, silence, reply(401, {"detail": "send Authorization: Bearer TOKEN"}))
    assert left == 1
    assert lines[0].endswith("refused: 401 send Authorization: Bearer TOKEN")


@pytest.mark.parametrize(("content", "code"), [(None, 0), ("no database at all", 1)])
def test_a_ledger_that_is_none_is_told_and_no_traceback(tmp_path: Path, content: str | None, code: int) -> None:
    file, state = tmp_path / "t.yaml", tmp_path / "t.db"
    file.write_text(yaml.safe_dump({"watchdog": {"listen": f"127.0.0.1:{free_port()}", "state": str(state)}}))
    if content is not None:
        state.write_text(content)
    done = CliRunner().invoke(app, ["release-all", "-c", str(file)])
    assert done.exit_code == code, done.output
    assert json.dumps(done.output).count("the ledger cannot be used: ") == code
