"""The contract on gateways that are sick: silent, dripping, cut short, too long, lying. Bytes are given by hand here."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators import Actuator, haproxy, webhook
from tailkeeper_watchdog.actuators.consul import ConsulActuator
from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind
from tailkeeper_watchdog.actuators.haproxy import HaproxyActuator
from tailkeeper_watchdog.actuators.webhook import WebhookActuator
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob
from tests.contract.router_worlds import router_actuator
from tests.contract.webhook_gateway import NORMAL, webhook_gateway
from tests.e2e.real_programs import free_port

Behave = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
DEADLINE_S = 0.3
SLACK_S = 0.5
"""How late a call may end on a machine that has other things to do. A second deadline on top would be seen."""
PLENTY_S = 10.0
"""For behaviours that end by themselves: far from ever being the reason why a call ends."""

NOWHERE = Path("/nowhere/removed.json")
"""Nothing is removed here, so nothing is noted."""
ACTUATORS: dict[str, tuple[str, Callable[[int], Actuator]]] = {
    "haproxy": ("llm/a", lambda port: HaproxyActuator("edge", f"127.0.0.1:{port}")),
    "webhook": ("a", lambda port: WebhookActuator("edge", f"http://127.0.0.1:{port}", Auth())),
    "consul": ("a", lambda port: ConsulActuator("edge", f"http://127.0.0.1:{port}", Auth(), 300.0)),
    "sglang_router": ("http://a", lambda port: router_actuator("sglang_router", f"http://127.0.0.1:{port}", NOWHERE)),
    "vllm_router": ("http://a", lambda port: router_actuator("vllm_router", f"http://127.0.0.1:{port}", NOWHERE)),
}
STATE = (
    "1\n# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight\n"
    "3 llm 1 a 127.0.0.1 2 0 100 100\n\n"
)
STAT = "# pxname,svname,scur\nllm,a,0\n\n"
HTTP_OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@dataclass
class Sick:
    actuator: Actuator
    server: str

    async def read(self, deadline_s: float) -> object:
        return await self.actuator.read((self.server,), deadline_s)

    async def write(self, deadline_s: float) -> object:
        await self.actuator.write(self.server, {Knob.ADMISSION: DRAIN}, deadline_s)
        return None


@asynccontextmanager
async def misbehaving(behave: Behave) -> AsyncIterator[int]:
    """The port of a server that treats every connection as ``behave`` does."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await behave(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass  # The client hung up, or the test is over: both end this connection.
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def sick(kind: str, behave: Behave) -> AsyncIterator[Sick]:
    """An actuator of ``kind`` before a server that treats every connection as ``behave`` does."""
    async with misbehaving(behave) as port:
        name, make = ACTUATORS[kind]
        actuator = make(port)
        try:
            yield Sick(actuator, name)
        finally:
            await actuator.close()


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(-1)


def dripping(start: bytes) -> Behave:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4_096)
        writer.write(start)
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.01)

    return behave


def saying(answer: bytes) -> Behave:
    """Answers once and hangs up."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4_096)
        writer.write(answer)
        await writer.drain()
        writer.write_eof()
        await reader.read(-1)

    return behave


async def hanging_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(4_096)


async def never_ending(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(4_096)
    writer.write(HTTP_OK + b"\r\n")
    while True:
        writer.write(b"x" * 65_536)
        await writer.drain()


def http(body: bytes, length: int | None = None, extra: bytes = b"") -> bytes:
    return HTTP_OK + extra + b"Content-Length: %d\r\n\r\n" % (len(body) if length is None else length) + body


ENDLESS = {
    "silent haproxy": ("haproxy", silent),
    "dripping haproxy": ("haproxy", dripping(b"1\n# be_id be_name")),
    "silent webhook": ("webhook", silent),
    "webhook dripping its headers": ("webhook", dripping(b"HTTP/1.1 200 OK\r\nX: ")),
    "webhook dripping its body": ("webhook", dripping(HTTP_OK + b"Content-Length: 60000\r\n\r\n")),
    "silent consul": ("consul", silent),
    "consul dripping its body": ("consul", dripping(HTTP_OK + b"Content-Length: 60000\r\n\r\n")),
    "silent sglang-router": ("sglang_router", silent),
    "sglang-router dripping its body": ("sglang_router", dripping(HTTP_OK + b"Content-Length: 60000\r\n\r\n")),
    "silent vllm-router": ("vllm_router", silent),
}
UNREADABLE = {
    "haproxy hangs up": ("haproxy", hanging_up),
    "haproxy never ends": ("haproxy", never_ending),
    "haproxy is an HTTP server": ("haproxy", saying(b"HTTP/1.1 400 Bad request\r\n\r\n")),
    "haproxy is binary": ("haproxy", saying(bytes(range(256)))),
    "haproxy answers nothing but a blank line": ("haproxy", saying(b"\n")),
    "haproxy cut in the header": ("haproxy", saying(STATE[:40].encode())),
    "haproxy cut in a row": ("haproxy", saying(STATE[:-9].encode())),
    "haproxy cut before the blank line": ("haproxy", saying(STATE[:-1].encode())),
    "haproxy with a weight that is no number": ("haproxy", saying(STATE.replace("100 100", "x 100").encode())),
    "haproxy with a negative weight": ("haproxy", saying(STATE.replace("100 100", "-1 100").encode())),
    "haproxy without the column": ("haproxy", saying(STATE.replace("srv_uweight", "srv_other").encode())),
    "webhook hangs up": ("webhook", hanging_up),
    "webhook never ends": ("webhook", never_ending),
    "webhook is no HTTP server": ("webhook", saying(b"-ERR unknown command\r\n")),
    "webhook cut short": ("webhook", saying(http(b'{"weight": 1, "admission": "serve"}', length=100))),
    "webhook too long": ("webhook", saying(http(b" " * (webhook.ANSWER_LIMIT_BYTES + 1)))),
    "webhook compressed": ("webhook", saying(http(gzip.compress(b" " * 1_000_000), extra=b"Content-Encoding: gzip\r\n"))),
    "webhook says HTML": ("webhook", saying(http(b"<html>502</html>"))),
    "webhook says nothing": ("webhook", saying(http(b""))),
    "consul hangs up": ("consul", hanging_up),
    "consul never ends": ("consul", never_ending),
    "consul is no HTTP server": ("consul", saying(b"-ERR unknown command\r\n")),
    "consul cut short": ("consul", saying(http(b"[", length=100))),
    "consul compressed": ("consul", saying(http(gzip.compress(b" " * 1_000_000), extra=b"Content-Encoding: gzip\r\n"))),
    "consul says HTML": ("consul", saying(http(b"<html>502</html>"))),
    "consul says an object": ("consul", saying(http(b"{}"))),
    "consul with a row without a key": ("consul", saying(http(b'[{"Value": null}]'))),
    "consul with a value that is no base64": (
        "consul",
        saying(http(b'[{"Key":"service/a/weight","Value":"?","ModifyIndex":1}]')),
    ),
    "sglang-router hangs up": ("sglang_router", hanging_up),
    "sglang-router never ends": ("sglang_router", never_ending),
    "sglang-router says HTML": ("sglang_router", saying(http(b"<html>502</html>"))),
    "sglang-router without a list": ("sglang_router", saying(http(b"{}"))),
    "vllm-router hangs up": ("vllm_router", hanging_up),
    "vllm-router says nothing": ("vllm_router", saying(http(b""))),
    "vllm-router with a row without a URL": ("vllm_router", saying(http(b'{"workers": [{"is_healthy": true}]}'))),
}


@pytest.mark.parametrize("case", ENDLESS)
@pytest.mark.parametrize("call", [Sick.read, Sick.write], ids=["read", "write"])
async def test_a_gateway_that_never_ends_its_answer_costs_one_deadline(
    case: str, call: Callable[[Sick, float], Awaitable[object]]
) -> None:
    clock = asyncio.get_running_loop().time
    async with sick(*ENDLESS[case]) as gateway:
        started = clock()
        with pytest.raises(ActuatorError) as caught:
            await call(gateway, DEADLINE_S)

        assert caught.value.kind is ErrorKind.TIMEOUT
        assert DEADLINE_S - 0.02 <= clock() - started < DEADLINE_S + SLACK_S


@pytest.mark.parametrize("case", UNREADABLE)
@pytest.mark.parametrize("call", [Sick.read, Sick.write], ids=["read", "write"])
async def test_an_answer_that_cannot_be_read_is_an_error_and_never_a_state(
    case: str, call: Callable[[Sick, float], Awaitable[object]]
) -> None:
    async with sick(*UNREADABLE[case]) as gateway:
        with pytest.raises(ActuatorError) as caught:
            await call(gateway, PLENTY_S)

    assert caught.value.kind is ErrorKind.PROTOCOL
    assert caught.value.retryable
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("kind", ACTUATORS)
async def test_nobody_listening_is_unreachable(kind: str) -> None:
    name, make = ACTUATORS[kind]
    actuator = make(free_port())
    gateway = Sick(actuator, name)
    for call in (gateway.read, gateway.write):
        with pytest.raises(ActuatorError) as caught:
            await call(PLENTY_S)
        assert caught.value.kind is ErrorKind.UNREACHABLE
    await actuator.close()


@pytest.mark.parametrize("address", ["/nowhere/haproxy.sock", "", "a\x00b", "/" + "x" * 200, "127.0.0.1:99999", "..:1"])
async def test_an_address_that_cannot_be_connected_to_is_unreachable(address: str) -> None:
    with pytest.raises(ActuatorError) as caught:
        await HaproxyActuator("edge", address).read(("llm/a",), PLENTY_S)
    assert caught.value.kind is ErrorKind.UNREACHABLE


@pytest.mark.parametrize("kind", ACTUATORS)
async def test_the_deadline_includes_the_wait_for_the_call_before(kind: str) -> None:
    clock = asyncio.get_running_loop().time
    async with sick(kind, silent) as gateway:
        started = clock()
        results = await asyncio.gather(*(gateway.read(DEADLINE_S) for _ in range(5)), return_exceptions=True)

        assert [type(result) for result in results] == [ActuatorError] * 5
        assert clock() - started < DEADLINE_S + SLACK_S


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


async def haproxy_by_script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer_to_set: bytes) -> None:
    command = (await reader.readline()).decode()
    whole = STATE + STAT if "show stat" in command else STATE
    writer.write(answer_to_set if command.startswith("set ") else whole.encode())
    await writer.drain()


async def test_a_haproxy_that_says_yes_and_does_nothing_is_found_out_by_reading() -> None:
    async with sick("haproxy", lambda r, w: haproxy_by_script(r, w, b"\n")) as gateway:
        await gateway.write(PLENTY_S)
        states = await gateway.actuator.read(("llm/a",), PLENTY_S)
    assert states["llm/a"].values[Knob.ADMISSION] == SERVE


async def test_a_webhook_that_says_yes_and_does_nothing_is_found_out_by_reading() -> None:
    with webhook_gateway({"a": dict(NORMAL)}) as gateway:
        gateway.lying = True
        actuator = WebhookActuator("edge", gateway.url, Auth())
        await actuator.write("a", {Knob.ADMISSION: DRAIN}, PLENTY_S)
        states = await actuator.read(("a",), PLENTY_S)
        await actuator.close()
    assert states["a"].values[Knob.ADMISSION] == SERVE


ANSWERS_TO_SET = [
    (b"No such server.\n\n", ErrorKind.NOT_FOUND),
    (b"No such backend.\n\n", ErrorKind.NOT_FOUND),
    (b"Permission denied\n\n", ErrorKind.UNAUTHORIZED),
    (b"Trailing garbage in weight string\n", ErrorKind.REFUSED),
    (b"Unknown command, but maybe one of the following ones is a better match:\n  help\n\n", ErrorKind.REFUSED),
    (b"", ErrorKind.PROTOCOL),
    (b"Permission den", ErrorKind.PROTOCOL),
]


@pytest.mark.parametrize(("answer", "kind"), ANSWERS_TO_SET)
async def test_haproxys_answers_to_a_change_are_sorted(answer: bytes, kind: ErrorKind) -> None:
    async with sick("haproxy", lambda r, w: haproxy_by_script(r, w, answer)) as gateway:
        with pytest.raises(ActuatorError) as caught:
            await gateway.write(PLENTY_S)
    assert caught.value.kind is kind


async def test_an_answer_at_the_limit_is_still_read(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = (STATE + STAT).encode()
    for limit, fits in ((len(whole), True), (len(whole) - 1, False)):
        monkeypatch.setattr(haproxy, "ANSWER_LIMIT_BYTES", limit)
        async with sick("haproxy", saying(whole)) as gateway:
            if fits:
                assert await gateway.read(PLENTY_S)
            else:
                with pytest.raises(ActuatorError, match="longer than"):
                    await gateway.read(PLENTY_S)
