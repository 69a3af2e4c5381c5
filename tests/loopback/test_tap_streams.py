"""Streams through the tap: what is recorded of them, who is told when one side ends, and that no two of them ever mix."""

from __future__ import annotations

import asyncio
import json
import random

import httpx
import pytest

from tailkeeper_exporter.tap.knobs import Degrade, Knobs
from tests.loopback.raw_engine import (
    DONE,
    ROLE,
    STOP,
    STREAM,
    Answer,
    Asked,
    raw_engine,
    read_answer,
    says,
    token,
    until,
    usage,
    whole,
)
from tests.loopback.tap_world import CHAT, World, post, tapping, tapping_at


async def test_the_first_token_is_the_first_content_and_a_broken_stream_is_aborted() -> None:
    """Headers, a comment, a role; content late; then the client goes: in a tenth of the time that users see."""

    async def answer(asked: Asked) -> None:
        await asyncio.sleep(0.02)
        asked.send(STREAM)
        await asyncio.sleep(0.02)
        asked.chunk(b": ping\n\n")
        await asyncio.sleep(0.02)
        asked.chunk(ROLE)
        await asyncio.sleep(0.34)
        asked.chunk(token("a"))
        await asyncio.sleep(0.1)
        asked.chunk(token("b"))
        await asked.gone.wait()

    async with tapping(answer) as world:
        reader, writer = await world.connect()
        writer.write(post(CHAT))
        await reader.readuntil(b'"b"')
        await asyncio.sleep(0.1)
        writer.close()
        seen = await world.exchange()
    assert (seen.outcome, seen.error, seen.status) == ("aborted", "client_gone", 200)
    assert seen.first_token_s == pytest.approx(0.4, abs=0.06)
    assert seen.end_s == pytest.approx(0.6, abs=0.08)
    assert seen.itl_s == pytest.approx(0.1, abs=0.05)
    assert seen.content_events == 2
    assert seen.generated_tokens == 2


async def test_a_whole_stream_is_recorded_with_its_tokens_and_its_sampling_parameters() -> None:
    pieces = (ROLE, token("a"), token("b"), STOP, usage(120, 2, 64), DONE)
    async with tapping(says(STREAM, *_chunks(*pieces), b"0\r\n\r\n")) as world:
        body = {**CHAT, "temperature": 0.3, "top_p": 0.9, "max_tokens": 64}
        told = await world.say(post(body, "x-tenant: gold", "x-operation: pay", "x-sensitivity: 4", "x-canary-revision: v2"))
        seen = await world.exchange()
        assert world.tap.book.tokens_per_byte == pytest.approx(120 / seen.request_bytes)
    assert told.whole
    assert told.body == b"".join(pieces)
    assert (seen.outcome, seen.error, seen.model, seen.streaming) == ("ok", "", "m", True)
    assert (seen.prompt_tokens, seen.generated_tokens, seen.cached_tokens) == (120, 2, 64)
    assert (seen.temperature, seen.top_p, seen.max_tokens) == (0.3, 0.9, 64)
    assert (seen.tenant, seen.operation, seen.sensitivity, seen.canary_revision) == ("gold", "pay", 4, "v2")
    assert seen.response_bytes == len(told.body)


@pytest.mark.parametrize(
    ("pieces", "outcome", "error"),
    [
        ((ROLE, token("a"), STOP), "ok", ""),
        ((ROLE, token("a")), "error", "cut_short"),
        ((b'data: {"error":{"message":"out of memory"}}\n\n', DONE), "error", "in_answer"),
        ((token("a"), b'data: {"choices":[{"delta":{},"finish_reason":"abort"}]}\n\n', DONE), "aborted", "by_backend"),
        ((b"data: tick\n\n", b"data: tock\n\n"), "ok", ""),
    ],
    ids=["stop without done", "no end", "error", "abort", "unknown stream"],
)
async def test_how_a_stream_ended_is_what_it_said(pieces: tuple[bytes, ...], outcome: str, error: str) -> None:
    async with tapping(says(STREAM, *_chunks(*pieces), b"0\r\n\r\n")) as world:
        assert (await world.say(post(CHAT))).whole
        seen = await world.exchange()
    assert (seen.outcome, seen.error) == (outcome, error)


async def test_an_answer_that_is_not_streamed_has_usage_and_no_first_token() -> None:
    body = b'{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":4}}'
    async with tapping(says(whole(body))) as world:
        told = await world.say(post({"model": "m"}))
        seen = await world.exchange()
    assert told.body == body
    assert (seen.outcome, seen.streaming, seen.first_token_s) == ("ok", False, None)
    assert (seen.prompt_tokens, seen.generated_tokens) == (9, 4)


@pytest.mark.parametrize(("status", "outcome"), [(400, "rejected"), (429, "rejected"), (500, "error"), (503, "error")])
async def test_a_refusal_of_the_backend_passes_unchanged(status: int, outcome: str) -> None:
    async with tapping(says(whole(b'{"error":{"message":"no"}}', status, "retry-after: 3"))) as world:
        told = await world.say(post(CHAT))
        seen = await world.exchange()
    assert (told.status, told.headers["retry-after"], told.body) == (status, "3", b'{"error":{"message":"no"}}')
    assert (seen.outcome, seen.status) == (outcome, status)


async def test_a_client_that_leaves_ends_the_backend_s_work_at_once() -> None:
    """Whether the answer has begun or not."""

    async def answer(asked: Asked) -> None:
        if asked.target == "/begun":
            asked.send(STREAM)
            asked.chunk(token("a"))
        await asked.gone.wait()

    async with tapping(answer) as world:
        for number, path in enumerate(("/begun", "/silent")):
            _, writer = await world.connect()
            writer.write(post(CHAT, path=path))
            await until(lambda: len(world.engine.asked) == number + 1)  # noqa: B023  awaited before the next turn of the loop
            await asyncio.sleep(0.05)
            writer.close()
            assert await until(world.engine.asked[number].gone.is_set) < 1.0
        assert [seen.outcome for seen in world.seen] == ["aborted", "aborted"]


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_a_backend_that_dies_never_looks_like_the_end_of_an_answer(version: str) -> None:
    async def answer(asked: Asked) -> None:
        asked.send(STREAM)
        asked.chunk(token("a"))
        await asyncio.sleep(0.05)
        asked.reset()

    async with tapping(answer) as world:
        reader, writer = await world.connect()
        writer.write(f"GET / HTTP/{version}\r\nhost: x\r\n\r\n".encode())
        told = await read_answer(reader)
        writer.close()
        seen = await world.exchange()
    assert not told.whole
    assert (seen.outcome, seen.error) == ("error", "backend_closed")


async def test_two_hundred_marked_streams_over_two_backends_never_cross() -> None:
    """Kept connections, early leavers in between, and every byte belongs to the one who asked."""

    def engine_of(mark: str) -> Answer:
        async def answer(asked: Asked) -> None:
            own = json.loads(asked.body)["own"]
            asked.send(STREAM)
            for number in range(12):
                asked.chunk(token(f"{mark}-{own}-{number}"))
                await asyncio.sleep(random.random() * 0.01)
            asked.chunk(DONE)
            asked.end()

        return answer

    async with (
        raw_engine(engine_of("one")) as one,
        raw_engine(engine_of("two")) as two,
        tapping_at(one, one.port) as first,
        tapping_at(two, two.port) as second,
    ):

        async def client(world: World, mark: str, number: int) -> None:
            reader, writer = await world.connect()
            for turn in range(3):
                own = f"{number}-{turn}"
                writer.write(post({**CHAT, "own": own}))
                if (number + turn) % 7 == 0:
                    await reader.readuntil(f"{mark}-{own}-1".encode())
                    writer.close()
                    reader, writer = await world.connect()
                    continue
                told = await read_answer(reader)
                assert told.body == b"".join(token(f"{mark}-{own}-{n}") for n in range(12)) + DONE
            writer.close()

        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            for number in range(100):
                tasks.create_task(client(first, "one", number))
                tasks.create_task(client(second, "two", number))
        assert one.connections < len(one.asked)
        await until(lambda: len(first.seen) == 300 and len(second.seen) == 300)
        assert {seen.outcome for seen in first.seen + second.seen} == {"ok", "aborted"}


async def test_the_tap_refuses_and_queues_as_its_knobs_say() -> None:
    started, go = asyncio.Event(), asyncio.Event()

    async def answer(asked: Asked) -> None:
        started.set()
        await go.wait()
        asked.send(whole(b"{}"))

    async with tapping(answer) as world:
        world.tap.apply(Knobs(degrade_level=Degrade.LOW))
        low = await world.say(post(CHAT, "x-priority: low"))
        world.tap.apply(Knobs(concurrency_limit=1))
        waiting = [asyncio.create_task(world.say(post({"n": number}))) for number in range(2)]
        await started.wait()
        await until(lambda: world.tap.status().queued == 1)
        assert len(world.engine.asked) == 1
        go.set()
        assert [told.status for told in await asyncio.gather(*waiting)] == [200, 200]
        world.tap.apply(Knobs(admission="drain"))
        drained = await world.say(post(CHAT))
        refused = [seen for seen in world.seen if seen.outcome == "rejected"]
    assert (low.status, low.headers["x-tailkeeper-reason"], drained.status) == (503, "shed", 503)
    assert int(drained.headers["retry-after"]) > 0
    assert "shed" in low.error["message"]
    assert [seen.error for seen in refused] == ["shed", "drained"]


async def test_one_who_leaves_the_queue_makes_room_and_is_never_sent() -> None:
    go = asyncio.Event()

    async def answer(asked: Asked) -> None:
        await go.wait()
        asked.send(whole(asked.body))

    async with tapping(answer) as world:
        world.tap.apply(Knobs(concurrency_limit=1))
        first = asyncio.create_task(world.say(post({"n": 1})))
        await until(lambda: world.engine.asked)
        _, leaver = await world.connect()
        leaver.write(post({"n": 2}))
        await until(lambda: world.tap.status().queued == 1)
        last = asyncio.create_task(world.say(post({"n": 3})))
        await until(lambda: world.tap.status().queued == 2)
        leaver.close()
        await until(lambda: world.tap.status().queued == 1)
        go.set()
        assert [told.body for told in await asyncio.gather(first, last)] == [b'{"n": 1}', b'{"n": 3}']
        assert len(world.engine.asked) == 2


async def test_the_cache_answers_the_same_question_once() -> None:
    async with tapping(says(whole(b'{"choices":[]}'))) as world:
        world.tap.apply(Knobs(cache_mode="local"))
        question = {"model": "m", "temperature": 0, "messages": []}
        answers = [await world.say(post(question, "x-tenant: a")) for _ in range(2)]
        other = await world.say(post(question, "x-tenant: b"))
        hits = [seen.cache_hit for seen in world.seen]
    assert {told.body for told in [*answers, other]} == {b'{"choices":[]}'}
    assert len({told.headers["x-request-id"] for told in answers}) == 2
    assert answers[1].headers["x-tailkeeper-cache"] == "hit"
    assert hits == [False, True, False]


async def test_an_ordinary_client_library_streams_through_the_tap() -> None:
    async def answer(asked: Asked) -> None:
        asked.send(STREAM)
        for number in range(5):
            asked.chunk(token(str(number)))
            await asyncio.sleep(0.01)
        asked.chunk(DONE)
        asked.end()

    async with tapping(answer) as world, httpx.AsyncClient(trust_env=False) as client:
        for _ in range(3):
            async with client.stream("POST", f"http://127.0.0.1:{world.port}/v1/chat/completions", json=CHAT) as told:
                lines = [line async for line in told.aiter_lines() if line]
            assert len(lines) == 6
        assert world.engine.connections == 1


def _chunks(*pieces: bytes) -> list[bytes]:
    return [b"%x\r\n%b\r\n" % (len(data), data) for data in pieces]
