"""Direct mode: exporters that hang cost only their own backends, however many they are."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from tailkeeper_exporter import catalog
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.collect.exporter import MAX_CONCURRENT, ExporterSource

DEADLINE_S = 0.1


class Fleet:
    """A fake transport: exporters by host name, those in ``hung`` never answer."""

    def __init__(self, names: tuple[str, ...], hung: set[str]) -> None:
        self.hung = hung
        self.asked: set[str] = set()
        self.source = ExporterSource(tuple(f"http://{n}" for n in names), names, 60.0)
        self.source._client = httpx.AsyncClient(transport=httpx.MockTransport(self.answer))

    async def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.add(request.url.host)
        if request.url.host in self.hung:
            await asyncio.Event().wait()
        name = catalog.BACKEND_STATE.name
        state = f'# TYPE {name} gauge\n{name}{{backend="{request.url.host}",state="serving"}} 1\n'
        return httpx.Response(200, text=state if request.url.path == "/metrics" else "{}")

    async def states(self) -> dict[str, State]:
        self.asked.clear()
        collected = await self.source.collect(0.0, DEADLINE_S)
        return {n: o.state for n, o in collected.observations.items()}


async def test_many_hung_exporters_keep_neither_the_tick_nor_the_healthy_ones_waiting() -> None:
    hung = tuple(f"h{n:03}" for n in range(5 * MAX_CONCURRENT))
    fleet = Fleet((*hung, "a"), set(hung))
    for _ in range(6):
        states = await fleet.states()
        assert len(fleet.asked) <= MAX_CONCURRENT + 1, "nobody is asked after the deadline, which the hung ones use up"
    assert states["a"] is State.SERVING
    await fleet.states()
    assert "a" in fleet.asked, "who answered is asked at each round"
    fleet.hung.clear()
    for _ in range(20):
        states = await fleet.states()
    assert set(states.values()) == {State.SERVING}, "each that recovered is asked again"
    await fleet.source.close()


DEEP = "[" * 100_000
HUGE = 10**400
STALLED = {"backend": "bad", "reasons": ["no_progress"], "checks": {"progress": {"value": HUGE}}}
HEALTH = json.dumps({"backends": [STALLED]})
RECORDS = json.dumps({"next": 1, "requests": [{"backend": "bad", "outcome": "ok", "ttft_s": HUGE, "start": HUGE}]})


@pytest.mark.parametrize(
    ("path", "body"), [("/healthz", DEEP), ("/healthz", HEALTH), ("/api/v1/requests", DEEP), ("/api/v1/requests", RECORDS)]
)
async def test_what_one_exporter_says_never_costs_the_others_their_observations(path: str, body: str) -> None:
    fleet = Fleet(("good", "bad"), set())

    async def hostile(request: httpx.Request) -> httpx.Response:
        if request.url.host == "bad" and request.url.path == path:
            return httpx.Response(200, text=body)
        return await fleet.answer(request)

    fleet.source._client = httpx.AsyncClient(transport=httpx.MockTransport(hostile))
    assert await fleet.states() == {"good": State.SERVING, "bad": State.SERVING}
    await fleet.source.close()


def _told(request: httpx.Request) -> httpx.Response:
    rows = [
        {
            "backend": "a",
            "outcome": "ok",
            "start": 1.7e9,
            "ttft_s": 0.2,
            "prompt_tokens": 7,
            "backlog_tokens": 0,
            "running": 3,
            "waiting": 0,
        },
        {"backend": "a", "outcome": "ok", "start": -1, "ttft_s": "0.2", "prompt_tokens": 1.5, "running": True, "waiting": 10**30},
    ]
    return httpx.Response(200, json={"next": 2, "dropped": 0, "requests": rows})


async def test_a_request_comes_with_the_load_that_it_met_and_what_cannot_be_is_unknown() -> None:
    source = ExporterSource(("http://a",), ("a",), 60.0)
    source._client = httpx.AsyncClient(transport=httpx.MockTransport(_told))
    good, bad = (await source.collect(0.0, DEADLINE_S)).records
    assert (good.start_unix_s, good.ttft_s) == (1.7e9, 0.2)
    assert (good.prompt_tokens, good.backlog_tokens, good.running, good.waiting) == (7, 0, 3, 0)
    assert {bad.start_unix_s, bad.ttft_s, bad.prompt_tokens, bad.running, bad.waiting} == {None}
    await source.close()
