"""What people switch through the API, and how what cannot be done is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import ErrorKind
from tailkeeper_watchdog.settings import GuardsSettings
from tailkeeper_watchdog.switches import MAX_HOLD_S
from tests.unit.watchdog_http import (
    DECISION,
    asked,
    by_name,
    has_shape,
    sick_fleet,
    world_at,
)

# What people switch


async def test_pause_and_resume_say_what_is_so_now(tmp_path: Path) -> None:
    async with asked(world_at(tmp_path)) as ask:
        assert await ask.send("POST", "/api/v1/pause") == {"paused": True, "paused_because": "paused by API"}
        assert (await ask.get("/api/v1/fleet"))["paused"] is True
        assert await ask.send("POST", "/api/v1/resume") == {"paused": False, "paused_because": None}
        assert (await ask.get("/api/v1/fleet"))["paused"] is False


async def test_resume_does_not_hide_a_pause_file(tmp_path: Path) -> None:
    file = tmp_path / "pause"
    file.touch()
    async with asked(world_at(tmp_path, guards=GuardsSettings(pause_file=file))) as ask:
        answer = await ask.send("POST", "/api/v1/resume")
    assert answer == {"paused": True, "paused_because": f"the pause file {file} is there"}


async def test_release_gives_back_one_backend_or_everything(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    await sick_fleet(world)
    async with asked(world, ticks_s=0) as ask:
        one = await ask.send("POST", "/api/v1/release", {"backend": "b"})
        assert (world.weight("b"), world.admission("a")) == (1.0, "drain")
        rest = await ask.send("POST", "/api/v1/release")
    for document, backend in ((one, "b"), (rest, "a")):
        assert document["failed"] == 0
        assert {(d["backend"], d["verdict"]) for d in document["decisions"]} == {(backend, "released")}
        for row in document["decisions"]:
            has_shape(row, DECISION)
    assert world.admission("a") == "serve"


@pytest.mark.parametrize("lies", [True, False])
async def test_release_counts_what_it_could_not_give_back(tmp_path: Path, lies: bool) -> None:
    world = world_at(tmp_path)
    await sick_fleet(world)
    world.gateway.lies, world.gateway.fails = lies, None if lies else ErrorKind.UNREACHABLE
    async with asked(world, ticks_s=0) as ask:
        document = await ask.send("POST", "/api/v1/release")
    assert document["failed"] == 2
    assert world.admission("a") == "drain"


async def test_a_hold_keeps_every_policy_off_until_it_ends(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    async with asked(world) as ask:
        held = await ask.send("POST", "/api/v1/backends/a/hold", {"reason": "disk swap", "for_s": 60})
        assert held == {"backend": "a", "reason": "disk swap", "until": world.clock.wall() + 60}
        world.sick["a"].state = State.HUNG
        await world.run(2)
        row = by_name(await ask.get("/api/v1/fleet"))["a"]
        assert row["hold"] == {"reason": "disk swap", "until": held["until"]}
        assert row["actual"]["admission"] == "serve"
        assert "disk swap" in row["why"]
        assert await ask.send("DELETE", "/api/v1/backends/a/hold") == {"backend": "a", "held": False}
        await world.run(1)
        assert by_name(await ask.get("/api/v1/fleet"))["a"]["actual"]["admission"] == "drain"
        gone = await ask.send("DELETE", "/api/v1/backends/a/hold", status=404)
    assert gone["detail"] == "there is no hold on 'a'"


@pytest.mark.parametrize(("first_s", "second_s", "in_force"), [(600, 60, 0), (60, 600, 1), (60, 60, 1)])
async def test_of_two_holds_the_longer_one_wins(tmp_path: Path, first_s: int, second_s: int, in_force: int) -> None:
    world = world_at(tmp_path)
    async with asked(world, ticks_s=0) as ask:
        first = await ask.send("POST", "/api/v1/backends/a/hold", {"reason": "the first", "for_s": first_s})
        world.clock.now += 1
        second = await ask.send("POST", "/api/v1/backends/a/hold", {"reason": "the second", "for_s": second_s})
    if in_force == 0:
        assert second == first
    else:
        assert second == {"backend": "a", "reason": "the second", "until": world.clock.wall() + second_s}
    assert world.switches.holds()["a"].until_unix_s == second["until"]


async def test_a_backend_with_a_slash_in_its_name_can_be_held(tmp_path: Path) -> None:
    world = world_at(tmp_path, "ns/pod", "b", "c")
    async with asked(world) as ask:
        for path in ("ns/pod", "ns%2Fpod"):
            held = await ask.send("POST", f"/api/v1/backends/{path}/hold", {"reason": "r", "for_s": 9})
            assert held["backend"] == "ns/pod"
        await ask.send("DELETE", "/api/v1/backends/ns%2Fpod/hold")


# Refusals


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/api/v1/decisions?limit=0", "greater than or equal to 1"),
        ("/api/v1/decisions?limit=1001", "less than or equal to 1000"),
        ("/api/v1/decisions?limit=ten", "valid integer"),
        ("/api/v1/decisions?since=nan", "finite number"),
        ("/api/v1/decisions?since=inf", "finite number"),
        ("/api/v1/decisions?since=yesterday", "valid number"),
        ("/api/v1/decisions?since=", "valid number"),
        ("/api/v1/decisions?backend=", "at least 1 character"),
        ("/api/v1/decisions?limt=5", "unknown: limt; allowed: backend, limit, since"),
        ("/api/v1/findings?open=maybe", "must be true or false"),
        ("/api/v1/findings?opn=true", "unknown: opn; allowed: open"),
    ],
)
async def test_a_bad_query_is_refused_and_told_what_is_allowed(tmp_path: Path, path: str, says: str) -> None:
    async with asked(world_at(tmp_path)) as ask:
        document = await ask.get(path, 422)
    assert says in document["detail"][0]["msg"]
    assert document["detail"][0]["loc"][0] == "query"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "Field required"),
        (b"{", "JSON decode error"),
        (b"[]", "valid dictionary"),
        (b'{"reason": "r"}', "Field required"),
        (b'{"reason": "", "for_s": 5}', "at least 1 character"),
        (b'{"reason": "%s", "for_s": 5}' % (b"x" * 301), "at most 300 characters"),
        (b'{"reason": "r", "for_s": 0}', "greater than 0"),
        (b'{"reason": "r", "for_s": -1}', "greater than 0"),
        (b'{"reason": "r", "for_s": %d}' % (MAX_HOLD_S + 1), "less than or equal to 604800"),
        (b'{"reason": "r", "for_s": NaN}', "finite number"),
        (b'{"reason": "r", "for_s": Infinity}', "finite number"),
        (b'{"reason": "r", "for_s": "soon"}', "valid number"),
        (b'{"reason": "r", "for_s": 5, "forr": 1}', "unknown: forr; allowed: for_s, reason"),
    ],
)
async def test_a_bad_hold_is_refused_and_told_what_is_allowed(tmp_path: Path, body: bytes, says: str) -> None:
    world = world_at(tmp_path)
    async with asked(world) as ask:
        headers = {"content-type": "application/json"}
        document = await ask.send("POST", "/api/v1/backends/a/hold", status=422, content=body, headers=headers)
    assert says in document["detail"][0]["msg"]
    assert world.switches.holds() == {}


@pytest.mark.parametrize("body", [b'"\xff"', b"[" * 100_000, b'{"backend": ' + b"1" * 5_000 + b"}"])
async def test_a_body_that_is_hardly_json_is_refused_and_costs_nothing_else(tmp_path: Path, body: bytes) -> None:
    async with asked(world_at(tmp_path)) as ask:
        headers = {"content-type": "application/json"}
        for path in ("/api/v1/release", "/api/v1/alerts", "/api/v1/backends/a/hold"):
            answer = await ask.client.post(path, content=body, headers=headers)
            assert answer.status_code in (400, 422), answer.text
        assert await ask.get("/livez") == {"status": "pass"}


@pytest.mark.parametrize("body", [{}, {"alerts": None}, {"alerts": {}}])
async def test_a_document_that_is_no_webhook_is_refused_and_told_what_is_one(tmp_path: Path, body: object) -> None:
    async with asked(world_at(tmp_path)) as ask:
        document = await ask.send("POST", "/api/v1/alerts", body, 422)
    assert document["detail"][0]["loc"] == ["body", "alerts"]
    assert "fingerprint" in document["detail"][0]["msg"]


UNKNOWN_BACKEND: list[tuple[str, str, object]] = [
    ("GET", "/api/v1/decisions?backend=nosuch", None),
    ("POST", "/api/v1/release", {"backend": "nosuch"}),
    ("POST", "/api/v1/backends/nosuch/hold", {"reason": "r", "for_s": 5}),
    ("DELETE", "/api/v1/backends/nosuch/hold", None),
]


@pytest.mark.parametrize(("method", "path", "body"), UNKNOWN_BACKEND)
async def test_an_unknown_backend_is_404_with_the_names_there_are(tmp_path: Path, method: str, path: str, body: object) -> None:
    async with asked(world_at(tmp_path)) as ask:
        document = await ask.send(method, path, body, 404)
    assert document["detail"] == "no backend 'nosuch'; known: a, b, c, d"


async def test_in_a_large_fleet_only_the_nearest_names_are_told(tmp_path: Path) -> None:
    async with asked(world_at(tmp_path, *(f"vllm-{i:03}" for i in range(300)))) as ask:
        near = await ask.get("/api/v1/decisions?backend=vlm-07", 404)
        far = await ask.get("/api/v1/decisions?backend=zzz", 404)
    assert "vllm-07" in near["detail"]
    assert len(near["detail"]) < 200
    assert far["detail"] == "no backend 'zzz'; nearest: none is near; 300 are configured, see /api/v1/fleet"
