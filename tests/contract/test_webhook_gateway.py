"""What only the webhook can show, over real HTTP: credentials, redirects, TLS, one bad document among good ones."""

from __future__ import annotations

import asyncio
import logging
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind
from tailkeeper_watchdog.actuators.http_calls import CALLS_AT_ONCE
from tailkeeper_watchdog.actuators.webhook import WebhookActuator
from tailkeeper_watchdog.model import DRAIN, Knob
from tests.contract.webhook_gateway import BASE, NORMAL, WebhookGateway, webhook_gateway
from tests.e2e.tiny_servers import answer, serving

DEADLINE_S = 5.0
TOKEN = "t0ken-of-the-gate"


@pytest.fixture
def gateway() -> Iterator[WebhookGateway]:
    with webhook_gateway({"a": NORMAL | {"owner": {"team": "x"}, "note": None}, "team/b é?#": dict(NORMAL)}) as gateway:
        yield gateway


async def failing(actuator: WebhookActuator, server: str = "a") -> ActuatorError:
    with pytest.raises(ActuatorError) as caught:
        await actuator.write(server, {Knob.ADMISSION: DRAIN}, DEADLINE_S)
    await actuator.close()
    return caught.value


async def test_the_whole_document_is_put_back_with_the_fields_that_we_do_not_know(gateway: WebhookGateway) -> None:
    actuator = WebhookActuator("edge", gateway.url, Auth())
    await actuator.write("a", {Knob.WEIGHT: 0.5, Knob.CONCURRENCY_LIMIT: 8.0, Knob.CACHE_MODE: "offload"}, DEADLINE_S)
    await actuator.close()

    document = NORMAL | {"owner": {"team": "x"}, "note": None, "weight": 0.5, "concurrency_limit": 8, "cache_mode": "offload"}
    assert gateway.documents["a"] == document
    assert isinstance(gateway.documents["a"]["concurrency_limit"], int)


async def test_a_name_of_any_characters_is_one_segment_of_the_path(gateway: WebhookGateway) -> None:
    actuator = WebhookActuator("edge", gateway.url, Auth())
    assert set(await actuator.read(("team/b é?#",), DEADLINE_S)) == {"team/b é?#"}
    await actuator.close()

    assert gateway.paths == [f"{BASE}/team%2Fb%20%C3%A9%3F%23"]


async def test_a_token_is_read_at_each_call_and_stands_in_no_message_and_no_log(
    gateway: WebhookGateway, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    gateway.token = TOKEN
    file = tmp_path / "token"
    file.write_text("not-" + TOKEN)
    actuator = WebhookActuator("edge", gateway.url, Auth(bearer_file=file))
    with pytest.raises(ActuatorError) as caught:
        await actuator.read(("a",), DEADLINE_S)
    assert caught.value.kind is ErrorKind.UNAUTHORIZED

    file.write_text(TOKEN)
    assert set(await actuator.read(("a",), DEADLINE_S)) == {"a"}
    await actuator.close()
    assert TOKEN not in caplog.text + str(caught.value) + repr(actuator)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(422, ErrorKind.REFUSED), (409, ErrorKind.REFUSED), (500, ErrorKind.PROTOCOL), (504, ErrorKind.TIMEOUT)],
)
async def test_a_refusal_gives_the_gateways_words(gateway: WebhookGateway, status: int, kind: ErrorKind) -> None:
    gateway.status = status
    error = await failing(WebhookActuator("edge", gateway.url, Auth()))
    assert error.kind is kind
    assert str(error).startswith(f"edge/a: {status}: ")
    assert "as told" in str(error)


async def test_a_redirect_is_not_followed_and_carries_our_token_nowhere(gateway: WebhookGateway, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)

    def redirect(handler: BaseHTTPRequestHandler) -> None:
        answer(handler, 307, b"", Location=f"{gateway.url}/a")

    with serving(redirect) as port:
        actuator = WebhookActuator("edge", f"http://127.0.0.1:{port}", Auth(bearer_file=tmp_path / "token"))
        error = await failing(actuator)
    assert error.kind is ErrorKind.REFUSED
    assert "redirects are not followed" in str(error)
    assert gateway.paths == []


async def test_a_proxy_of_the_environment_is_not_used(gateway: WebhookGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    actuator = WebhookActuator("edge", gateway.url, Auth())
    assert set(await actuator.read(("a",), DEADLINE_S)) == {"a"}
    await actuator.close()


async def test_one_bad_document_is_in_doubt_and_does_not_spoil_the_good_one(gateway: WebhookGateway) -> None:
    gateway.documents["bad"] = NORMAL | {"weight": "heavy"}
    actuator = WebhookActuator("edge", gateway.url, Auth())
    states = await actuator.read(("a", "bad", "nobody"), DEADLINE_S)
    await actuator.close()

    assert set(states) == {"a", "bad"}
    assert states["a"].values[Knob.WEIGHT] == 1.0
    assert states["bad"].values == {}
    assert states["bad"].doubt.startswith("edge/bad: weight: 'heavy'")


async def test_one_hung_document_is_in_doubt_at_the_deadline_and_the_others_are_read() -> None:
    release = threading.Event()

    def handle(handler: BaseHTTPRequestHandler) -> None:
        if handler.path.endswith("/hung"):
            release.wait(DEADLINE_S)
        answer(handler, 200, b'{"weight": 1, "admission": "serve"}')

    with serving(handle) as port:
        actuator = WebhookActuator("edge", f"http://127.0.0.1:{port}", Auth())
        states = await actuator.read(("a", "hung", "b"), 0.4)
        await actuator.close()
        release.set()
    assert {server: state.doubt for server, state in states.items() if state.values} == {"a": "", "b": ""}
    assert "deadline" in states["hung"].doubt


async def test_many_servers_are_read_side_by_side_within_the_stated_bound() -> None:
    names = tuple(f"s{n}" for n in range(40))
    with webhook_gateway({name: dict(NORMAL) for name in names}) as gateway:
        gateway.delay_s = 0.02
        actuator = WebhookActuator("edge", gateway.url, Auth())
        states = await actuator.read(names, DEADLINE_S)
        await actuator.close()
    assert set(states) == set(names)
    assert 1 < gateway.most_at_once <= CALLS_AT_ONCE


async def test_of_more_servers_than_there_is_time_for_each_has_its_turn() -> None:
    """Eight at once and 0.1 s each: the deadline has room for 64 of them, and they are always asked for in the same order."""
    names = tuple(f"s{n:03}" for n in range(100))
    with webhook_gateway({name: dict(NORMAL) for name in names}) as gateway:
        gateway.delay_s = 0.1
        actuator = WebhookActuator("edge", gateway.url, Auth())
        seen: set[str] = set()
        for _ in range(12):
            states = await actuator.read(names, 0.8)
            read = {name for name, state in states.items() if state.values}
            assert len(read) < len(names)
            seen |= read
            await actuator.read(("s000",), DEADLINE_S)  # as after a write: it is nobody's turn
            if len(seen) == len(names):
                break
        await actuator.close()
    assert seen == set(names)


async def test_documents_that_hang_keep_the_others_from_being_read_once_and_not_for_ever() -> None:
    release = threading.Event()

    def handle(handler: BaseHTTPRequestHandler) -> None:
        if "hung" in handler.path:
            release.wait(DEADLINE_S)
        answer(handler, 200, b'{"weight": 1, "admission": "serve"}')

    names = (*(f"hung{n}" for n in range(CALLS_AT_ONCE)), "a", "b")
    with serving(handle) as port:
        actuator = WebhookActuator("edge", f"http://127.0.0.1:{port}", Auth())
        for readable in (set(), {"a", "b"}, {"a", "b"}):
            try:
                states = await actuator.read(names, 0.4)
            except ActuatorError:
                states = {}
            assert {name for name, state in states.items() if state.values} == readable
        await actuator.close()
        release.set()


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is missing; apt-get install -y openssl")
    key, file = folder / f"{name}.key", folder / f"{name}.pem"
    argv = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    argv += ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(file)]
    subprocess.run(argv, check=True, capture_output=True)
    return file, key


async def test_tls_trusts_the_named_authority_only_and_shows_our_certificate(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "gate")
    client_cert, client_key = certificate(tmp_path, "watchdog")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    context.load_verify_locations(client_cert)
    context.verify_mode = ssl.CERT_REQUIRED

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = b'{"weight": 1, "admission": "serve"}'
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ours = {"cert_file": client_cert, "key_file": client_key}
        trusting = WebhookActuator("edge", url, Auth(ca_file=cert, **ours))
        assert set(await trusting.read(("a",), DEADLINE_S)) == {"a"}
        await trusting.close()
        wary = await failing(WebhookActuator("edge", url, Auth(**ours)))
        assert wary.kind is ErrorKind.UNREACHABLE
        assert "of no authority that is trusted here; put that authority into auth.ca_file" in str(wary)
        unknown = await failing(WebhookActuator("edge", url, Auth(ca_file=cert)))
        assert unknown.retryable
        broken = await failing(WebhookActuator("edge", url, Auth(ca_file=client_key)))
        assert broken.kind is ErrorKind.UNAUTHORIZED
