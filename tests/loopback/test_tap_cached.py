"""Answers from the tap's cache: for whom they are, and what they say of the backend."""

from __future__ import annotations

from tailkeeper_exporter.tap.knobs import Knobs
from tests.loopback.raw_engine import says, whole
from tests.loopback.tap_world import World, post, tapping

REPEATABLE = {"model": "m", "temperature": 0, "messages": []}
ANSWER = whole(b'{"choices": [{"finish_reason": "stop"}]}')


async def _twice(world: World, *headers: str) -> list[str | None]:
    return [(await world.say(post(REPEATABLE, *headers))).headers.get("x-tailkeeper-cache") for _ in range(2)]


async def test_an_answer_from_the_cache_is_no_sign_of_the_backends_life() -> None:
    async with tapping(says(ANSWER)) as world:
        world.tap.apply(Knobs(cache_mode="local"))
        await world.say(post(REPEATABLE))
        before = world.tap.status()
        assert (await world.say(post(REPEATABLE))).headers["x-tailkeeper-cache"] == "hit"
        after = world.tap.status()
    assert before.progress_s is not None
    assert (after.progress_s, after.answered_s) == (before.progress_s, before.answered_s)


CALLERS = (
    (),
    ("authorization: Bearer a",),
    ("authorization: Bearer b",),
    ("x-tenant: " + "t" * 200 + "1",),
    ("x-tenant: " + "t" * 200 + "2",),
    ("x-tenant: a", "x-tenant: b"),
    ("x-tenant: a", "x-tenant: c"),
    ("x-auth-request-user: a",),
    ("accept-language: fr",),
    ("content-type: application/json; charset=utf-8",),
)


async def test_no_two_who_ask_the_backend_differently_share_an_answer() -> None:
    async with tapping(says(ANSWER)) as world:
        world.tap.apply(Knobs(cache_mode="local"))
        for caller in CALLERS:
            assert await _twice(world, *caller) == [None, "hit"], caller
        ways = ("x-forwarded-for: 1.2.3.4", "user-agent: other", "x-request-id: mine")
        assert await _twice(world, *ways) == ["hit", "hit"]
        dropped = ("connection: content-type",)
        assert (await world.say(post(REPEATABLE, *dropped))).headers.get("x-tailkeeper-cache") is None
