"""The contract on Envoys and Traefiks that are sick: silent, dripping, cut short, too long, lying. The file stays as it was."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators import Actuator, envoy, traefik
from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind
from tailkeeper_watchdog.actuators.envoy import EnvoyActuator
from tailkeeper_watchdog.actuators.traefik import TraefikActuator
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob
from tests.contract import test_sick_gateways as sickness
from tests.contract.envoy_world import assignment, endpoint
from tests.contract.test_sick_gateways import (
    DEADLINE_S,
    HTTP_OK,
    PLENTY_S,
    SLACK_S,
    Behave,
    Sick,
    dripping,
    hanging_up,
    http,
    never_ending,
    saying,
    sick,
    silent,
)
from tests.contract.traefik_world import WEIGHTED
from tests.e2e.real_programs import free_port

SERVER = "127.0.0.1:1001"
EDS = json.dumps(assignment([endpoint(1001), endpoint(1002)]))
DYNAMIC = WEIGHTED.format(weight=1, a=1001, b=1002)
MAKE: dict[str, Callable[[str, Path], Actuator]] = {
    "envoy": lambda url, folder: EnvoyActuator("edge", "llm", folder / "llm.json", url, Auth()),
    "traefik": lambda url, folder: TraefikActuator("edge", "llm", folder / "llm.yml", url, Auth()),
}


@pytest.fixture(params=list(MAKE))
def kind(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Makes the kind known to ``sick``, with files in this test's folder."""
    (tmp_path / "llm.json").write_text(EDS)
    (tmp_path / "llm.yml").write_text(DYNAMIC)
    made = (SERVER, lambda port: MAKE[request.param](f"http://127.0.0.1:{port}", tmp_path))
    monkeypatch.setitem(sickness.ACTUATORS, request.param, made)
    return str(request.param)


def untouched(folder: Path) -> bool:
    left = {path.name: path.read_text() for path in folder.iterdir()}
    return left == {"llm.json": EDS, "llm.yml": DYNAMIC}


ENDLESS: dict[str, Behave] = {
    "silent": silent,
    "dripping its headers": dripping(b"HTTP/1.1 200 OK\r\nX: "),
    "dripping its body": dripping(HTTP_OK + b"Content-Length: 60000\r\n\r\n"),
}
UNREADABLE: dict[str, Behave] = {
    "hangs up": hanging_up,
    "never ends": never_ending,
    "is no HTTP server": saying(b"-ERR unknown command\r\n"),
    "cut short": saying(http(b'{"cluster_statuses": []}', length=100)),
    "compressed": saying(http(gzip.compress(b" " * 1_000_000), extra=b"Content-Encoding: gzip\r\n")),
    "says HTML": saying(http(b"<html>502</html>")),
    "says nothing": saying(http(b"")),
    "says a number": saying(http(b"7")),
    "says null": saying(http(b"null")),
    "says deep nothing": saying(http(b"[" * 100_000)),
    "fails": saying(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"),
    "has hosts without an address": saying(http(b'{"cluster_statuses": [{"name": "llm", "host_statuses": [7]}]}')),
    "has a service without members": saying(http(b'[{"name": "llm@file", "weighted": {"services": 7}}]')),
}
CALLS = pytest.mark.parametrize("call", [Sick.read, Sick.write], ids=["read", "write"])
Call = Callable[[Sick, float], Awaitable[object]]


@pytest.mark.parametrize("case", ENDLESS)
@CALLS
async def test_an_answer_that_never_ends_costs_one_deadline(kind: str, case: str, call: Call, tmp_path: Path) -> None:
    clock = asyncio.get_running_loop().time
    async with sick(kind, ENDLESS[case]) as gateway:
        started = clock()
        with pytest.raises(ActuatorError) as caught:
            await call(gateway, DEADLINE_S)
        assert caught.value.kind is ErrorKind.TIMEOUT
        assert DEADLINE_S - 0.02 <= clock() - started < DEADLINE_S + SLACK_S
    assert untouched(tmp_path)


@pytest.mark.parametrize("case", UNREADABLE)
@CALLS
async def test_an_answer_that_cannot_be_read_is_an_error_and_never_a_state(
    kind: str, case: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (envoy, traefik):
        monkeypatch.setattr(module, "ANSWER_LIMIT_BYTES", 200_000)
    async with sick(kind, UNREADABLE[case]) as gateway:
        with pytest.raises(ActuatorError) as caught:
            await call(gateway, PLENTY_S)
    assert caught.value.kind is ErrorKind.PROTOCOL
    assert len(str(caught.value)) < 500
    assert untouched(tmp_path)


@pytest.mark.parametrize(
    ("status", "expected"),
    [(401, ErrorKind.UNAUTHORIZED), (403, ErrorKind.UNAUTHORIZED), (302, ErrorKind.REFUSED), (404, ErrorKind.REFUSED)],
)
@CALLS
async def test_a_refusal_is_sorted_and_its_words_are_not_repeated_where_they_may_hold_a_credential(
    kind: str, status: int, expected: ErrorKind, call: Call, tmp_path: Path
) -> None:
    answer = b"HTTP/1.1 %d No\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 6\r\n\r\nsecret" % status
    async with sick(kind, saying(answer)) as gateway:
        with pytest.raises(ActuatorError) as caught:
            await call(gateway, PLENTY_S)
    assert caught.value.kind is expected
    assert "secret" not in str(caught.value) or status == 404
    assert untouched(tmp_path)


async def test_nobody_listening_is_unreachable_and_nothing_is_written(kind: str, tmp_path: Path) -> None:
    actuator = MAKE[kind](f"http://127.0.0.1:{free_port()}", tmp_path)
    gateway = Sick(actuator, SERVER)
    for call in (gateway.read, gateway.write):
        with pytest.raises(ActuatorError) as caught:
            await call(PLENTY_S)
        assert caught.value.kind is ErrorKind.UNREACHABLE
    await actuator.close()
    assert untouched(tmp_path)


def lying(kind: str) -> Behave:
    """Always as it was at first, whatever is written."""
    hosts = [
        {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}, "weight": 100, "health_status": {}}
        for port in (1001, 1002)
    ]
    servers = {"a": "http://127.0.0.1:1001", "b": "http://127.0.0.1:1002"}
    members = [{"name": name, "weight": 1} for name in servers]
    answers = {
        "/clusters": {"cluster_statuses": [{"name": "llm", "host_statuses": hosts}]},
        "/stats": {"stats": [{"name": f"cluster.llm.update_{what}", "value": 0} for what in ("rejected", "failure")]},
        "/config_dump": {"configs": [{"endpoint_config": json.loads(EDS)["resources"][0]}]},
        "/api/http/services": [{"name": "llm@file", "weighted": {"services": members}}]
        + [{"name": f"{name}@file", "loadBalancer": {"servers": [{"url": url}]}} for name, url in servers.items()],
    }

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split(b" ")[1].decode().partition("?")[0]
        writer.write(http(json.dumps(answers[path]).encode(), extra=b"Connection: close\r\n"))
        await writer.drain()
        writer.write_eof()
        await reader.read(-1)

    return behave


async def test_a_gateway_that_does_not_take_what_is_written_is_found_out_and_the_file_is_put_back(
    kind: str, tmp_path: Path
) -> None:
    async with sick(kind, lying(kind)) as gateway:
        with pytest.raises(ActuatorError, match="put back as it was") as caught:
            await gateway.write(2.0)
        assert caught.value.kind is ErrorKind.TIMEOUT
        states = await gateway.actuator.read((SERVER,), PLENTY_S)
        assert states[SERVER].values == {Knob.ADMISSION: SERVE, Knob.WEIGHT: 1.0}
    assert untouched(tmp_path)


@pytest.mark.parametrize("what", ["missing", "huge"])
async def test_a_file_that_cannot_be_used_is_said_and_the_gateway_is_still_read(
    kind: str, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailkeeper_watchdog.actuators.config_file.FILE_LIMIT_BYTES", 10)
    if what == "missing":
        for name in ("llm.json", "llm.yml"):
            (tmp_path / name).unlink()
    async with sick(kind, lying(kind)) as gateway:
        with pytest.raises(ActuatorError, match="is missing" if what == "missing" else "larger than") as caught:
            await gateway.actuator.write(SERVER, {Knob.ADMISSION: DRAIN}, PLENTY_S)
        assert caught.value.kind is (ErrorKind.UNREACHABLE if what == "missing" else ErrorKind.PROTOCOL)
        assert set(await gateway.actuator.read((SERVER,), PLENTY_S)) == {SERVER}
