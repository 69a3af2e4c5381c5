"""Gateways that carry no traffic, when they are sick: the same bytes by hand as for the others, the same promises."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators import Actuator, engine, ray_serve, triton
from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind
from tailkeeper_watchdog.actuators.engine import EngineActuator
from tailkeeper_watchdog.actuators.ray_serve import RayServeActuator
from tailkeeper_watchdog.actuators.triton import TritonActuator
from tailkeeper_watchdog.model import Knob
from tests.contract.test_sick_gateways import (
    HTTP_OK,
    Behave,
    dripping,
    hanging_up,
    http,
    misbehaving,
    never_ending,
    saying,
    silent,
)
from tests.e2e.real_programs import free_port

DEADLINE_S = 0.3
SLACK_S = 0.5
PLENTY_S = 10.0

ACTUATORS: Mapping[str, tuple[str, Callable[[str], Actuator], int]] = {
    "triton": ("llm", lambda url: TritonActuator("edge", url, Auth()), triton.ANSWER_LIMIT_BYTES),
    "ray_serve": ("a/LLM", lambda url: RayServeActuator("edge", url, Auth()), ray_serve.ANSWER_LIMIT_BYTES),
    "engine": ("", lambda _: EngineActuator("edge", Auth()), engine.ANSWER_LIMIT_BYTES),
}
"""Server name (empty: the address itself), how it is made, and its longest answer."""
TURNING = ("triton", "ray_serve")
ENDLESS = {
    "silent": silent,
    "dripping its headers": dripping(b"HTTP/1.1 200 OK\r\nX: "),
    "dripping its body": dripping(HTTP_OK + b"Content-Length: 60000\r\n\r\n"),
}
UNREADABLE = {
    "hangs up": hanging_up,
    "never ends": never_ending,
    "is no HTTP server": saying(b"-ERR unknown command\r\n"),
    "cut short": saying(http(b'{"name": "llm"}', length=100)),
    "compressed": saying(http(gzip.compress(b" " * 1_000_000), extra=b"Content-Encoding: gzip\r\n")),
    "says HTML": saying(http(b"<html>502</html>")),
    "says nothing": saying(http(b"")),
    "says a list": saying(http(b"[]")),
    "nested without end": saying(http(b"[" * 60_000)),
    "says a key twice": saying(http(b'{"name": "llm", "name": "llm"}')),
    "speaks of something else": saying(http(b'{"name": "other", "status": "fine"}')),
}


@dataclass
class Sick:
    actuator: Actuator
    server: str

    async def read(self, deadline_s: float) -> None:
        await self.actuator.read((self.server,), deadline_s)

    async def write(self, deadline_s: float) -> None:
        await self.actuator.write(self.server, {Knob.BATCH_WINDOW_S: 0.05}, deadline_s)


def of(kind: str, port: int) -> Sick:
    name, make, _ = ACTUATORS[kind]
    url = f"http://127.0.0.1:{port}"
    return Sick(make(url), name or url)


@asynccontextmanager
async def sick(kind: str, behave: Behave) -> AsyncIterator[Sick]:
    """An actuator of ``kind`` before a server that treats every connection as ``behave`` does."""
    async with misbehaving(behave) as port:
        gateway = of(kind, port)
        try:
            yield gateway
        finally:
            await gateway.actuator.close()


CALLS = [(kind, Sick.read) for kind in ACTUATORS] + [(kind, Sick.write) for kind in TURNING]
CALL_NAMES = [f"{kind} {call.__name__}" for kind, call in CALLS]


@pytest.mark.parametrize("case", ENDLESS)
@pytest.mark.parametrize(("kind", "call"), CALLS, ids=CALL_NAMES)
async def test_a_gateway_that_never_ends_its_answer_costs_one_deadline(kind: str, call: Callable[..., object], case: str) -> None:
    clock = asyncio.get_running_loop().time
    async with sick(kind, ENDLESS[case]) as gateway:
        started = clock()
        with pytest.raises(ActuatorError) as caught:
            await call(gateway, DEADLINE_S)  # type: ignore[misc]
        took_s = clock() - started

    assert caught.value.kind is ErrorKind.TIMEOUT
    assert took_s < DEADLINE_S + SLACK_S


@pytest.mark.parametrize("case", UNREADABLE)
@pytest.mark.parametrize(("kind", "call"), CALLS, ids=CALL_NAMES)
async def test_an_answer_that_cannot_be_read_is_an_error_and_never_a_state(
    kind: str, call: Callable[..., object], case: str
) -> None:
    async with sick(kind, UNREADABLE[case]) as gateway:
        with pytest.raises(ActuatorError) as caught:
            await call(gateway, PLENTY_S)  # type: ignore[misc]

    assert caught.value.kind is ErrorKind.PROTOCOL
    assert caught.value.retryable
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("kind", ACTUATORS)
async def test_an_answer_longer_than_any_is_given_up(kind: str) -> None:
    async with sick(kind, saying(http(b" " * (ACTUATORS[kind][2] + 1)))) as gateway:
        with pytest.raises(ActuatorError, match="longer than"):
            await gateway.read(PLENTY_S)


@pytest.mark.parametrize(("kind", "call"), CALLS, ids=CALL_NAMES)
async def test_nobody_listening_is_unreachable(kind: str, call: Callable[..., object]) -> None:
    gateway = of(kind, free_port())
    with pytest.raises(ActuatorError) as caught:
        await call(gateway, PLENTY_S)  # type: ignore[misc]
    await gateway.actuator.close()

    assert caught.value.kind is ErrorKind.UNREACHABLE


@pytest.mark.parametrize("kind", ACTUATORS)
async def test_the_deadline_includes_the_wait_for_the_call_before(kind: str) -> None:
    clock = asyncio.get_running_loop().time
    async with sick(kind, silent) as gateway:
        started = clock()
        results = await asyncio.gather(*(gateway.read(DEADLINE_S) for _ in range(5)), return_exceptions=True)
        took_s = clock() - started

    assert [type(result) for result in results] == [ActuatorError] * 5
    assert took_s < DEADLINE_S + SLACK_S


@pytest.mark.parametrize("kind", ACTUATORS)
async def test_a_call_that_is_cancelled_leaves_the_gateway_free_for_the_next(kind: str) -> None:
    async with sick(kind, silent) as gateway:
        task = asyncio.create_task(gateway.read(PLENTY_S))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ActuatorError) as caught:
            await gateway.read(DEADLINE_S)

    assert caught.value.kind is ErrorKind.TIMEOUT


@pytest.mark.parametrize("kind", TURNING)
@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        (b"302 Found", ErrorKind.REFUSED),
        (b"401 Unauthorized", ErrorKind.UNAUTHORIZED),
        (b"403 Forbidden", ErrorKind.UNAUTHORIZED),
        (b"429 Too Many Requests", ErrorKind.UNREACHABLE),
        (b"503 Service Unavailable", ErrorKind.PROTOCOL),
    ],
)
async def test_statuses_are_sorted_by_what_may_be_done_next(kind: str, status: bytes, wanted: ErrorKind) -> None:
    reply = b"HTTP/1.1 " + status + b"\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 8\r\n\r\ns3cret!!"
    async with sick(kind, saying(reply)) as gateway:
        with pytest.raises(ActuatorError) as caught:
            await gateway.write(PLENTY_S)

    assert caught.value.kind is wanted
    assert ("s3cret" in str(caught.value)) == (wanted in (ErrorKind.UNREACHABLE, ErrorKind.PROTOCOL))
