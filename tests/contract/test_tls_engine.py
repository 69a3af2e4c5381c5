"""A whole exporter, its tap and `notify-test` before the real TLS door: what a wrong certificate does to a backend's state.

A certificate that runs out must not take a fleet for dead: the backend is misconfigured, which nobody is drained for. And an
engine that is dead or frozen behind TLS is found as it is without.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from structlog.testing import capture_logs
from typer.testing import CliRunner

from tailkeeper.cli import app
from tailkeeper_exporter import collector
from tailkeeper_exporter.app import Exporter
from tailkeeper_exporter.clients import Clients
from tailkeeper_exporter.fetch import FetchError, fetch
from tailkeeper_exporter.health import backend_health
from tailkeeper_exporter.settings import Auth, BackendSettings
from tailkeeper_exporter.state import State
from tailkeeper_exporter.tap.exchange import Exchange
from tailkeeper_exporter.tap.host import TapHost
from tailkeeper_exporter.tls import TlsCode
from tests.contract.tls_world import BEARER, TENANT, Certificates, Keys, TlsWorld
from tests.loopback.raw_engine import Told, read_answer, until
from tests.loopback.tap_world import CHAT, post
from tests.loopback.test_collector import QUIET, backend, view, watching
from tests.loopback.test_collector import until as until_holds
from tests.unit.fake_engine import engine

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]
PROBE = {"interval_s": 0.5, "first_token_timeout_s": 2, "health_timeout_s": 2}
SLOW = {"scrape_timeout_s": 2}
SHORT = {"interval_s": 0.5, "first_token_timeout_s": 0.5, "health_timeout_s": 0.5}


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """httpcore leaves the socket of a handshake that is cancelled, as at the end of an exporter, to Python's collector."""
    yield
    gc.collect()


@pytest.fixture
def keys(tmp_path: Path, tls_world: TlsWorld) -> Keys:
    return Keys(tmp_path / "keys", tls_world.certificates)


def behind(door: str, auth: Auth, **more: Any) -> BackendSettings:
    return backend(door, auth=auth.model_dump(), model="llama-3-8b", probe=PROBE, **more)


async def settled(exporter: Exporter, wanted: State) -> None:
    await until_holds(lambda: view(exporter).state is wanted, 15.0)


def health(exporter: Exporter) -> dict[str, Any]:
    return backend_health(view(exporter), exporter.now())


async def test_an_engine_behind_the_door_is_serving_and_probed(tls_world: TlsWorld, keys: Keys) -> None:
    async with watching(behind(tls_world.doors["engine"].url, keys.auth()), **SLOW) as exporter:
        await settled(exporter, State.SERVING)
        await until_holds(lambda: view(exporter).probe is not None, 5.0)
        assert health(exporter)["status"] == "pass"


@pytest.mark.parametrize(
    ("door", "wrong", "reasons"),
    [
        ("expired", {}, {"tls_expired"}),
        ("misnamed", {}, {"tls_wrong_name"}),
        ("url", {"ca_file": None}, {"tls_untrusted"}),
        ("url", {"cert_file": None, "key_file": None}, {"tls_certificate_wanted", "tls_broken"}),
        ("url", {"bearer_file": None}, {"http_401"}),
    ],
)
async def test_a_wrong_certificate_is_misconfigured_and_never_down(
    door: str, wrong: dict[str, Any], reasons: set[str], tls_world: TlsWorld, keys: Keys
) -> None:
    url = getattr(tls_world.doors["engine"], door)
    with capture_logs() as logs:
        async with watching(behind(url, keys.auth(**wrong)), log=None, **SLOW) as exporter:
            await settled(exporter, State.MISCONFIGURED)
            await until_holds(lambda: view(exporter).probe is not None, 5.0)
            await asyncio.sleep(1.5)  # more rounds of page, health and probe: the state stays
            document = health(exporter)
            assert document["state"] == "misconfigured"
            assert document["status"] == "unknown"
            checks = document["checks"]
            assert {checks["engine"]["reason"], checks["semantic_probe"]["reason"]} <= reasons
    said = [line for line in logs if line["event"] == "source failed"]
    assert {line["source"] for line in said} == {"engine", "health", "probe"}
    assert all(line["detail"] for line in said)
    assert BEARER not in str(logs)
    assert {line.get("state") for line in logs} <= {None, "misconfigured"}


async def test_a_client_certificate_that_is_renewed_brings_the_backend_back(
    tls_world: TlsWorld, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "RELOAD_S", 0.1)
    keys.show(keys.made.expired_client)
    keys.bearer.write_text("of-yesterday")
    async with watching(behind(tls_world.doors["engine"].url, keys.auth()), **SLOW) as exporter:
        await settled(exporter, State.MISCONFIGURED)
        keys.show(keys.made.client)
        await until_holds(lambda: health(exporter)["checks"]["engine"].get("reason") == "http_401", 10.0)
        keys.bearer.write_text(BEARER)
        await settled(exporter, State.SERVING)


@dataclass
class Proxy:
    """Passes on to an engine, or hangs up: at once, or at the first word. With a ``context`` it speaks TLS itself, and hangs up
    once that is agreed; without one what it hangs up on has not come to TLS."""

    engine: str
    context: ssl.SSLContext | None = None
    url: str = ""
    hangs_up: str = ""
    open: set[asyncio.Task[None]] = field(default_factory=set)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self.open.add(task)
        task.add_done_callback(self.open.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.hangs_up == "later":
            await reader.read(1)
        if self.hangs_up:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection("127.0.0.1", urlsplit(self.engine).port)
        try:
            await asyncio.gather(_pass(reader, back), _pass(there, writer))
        finally:
            for end in (writer, back):
                end.transport.abort()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Proxy]:
        server = await asyncio.start_server(self.accept, "127.0.0.1", 0, ssl=self.context)
        self.url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in self.open:
                task.cancel()
            await asyncio.gather(*self.open, return_exceptions=True)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
    writer.close()


def proxy(made: Certificates, engine: str, wants_certificate: bool = False) -> AbstractAsyncContextManager[Proxy]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server.cert, made.server.key)
    if wants_certificate:
        context.load_verify_locations(made.ours.file)
        context.verify_mode = ssl.CERT_REQUIRED
    return Proxy(engine, context).listening()


WITHOUT: dict[str, Any] = {"cert_file": None, "key_file": None}


def uncertified(url: str, keys: Keys) -> BackendSettings:
    return backend(url, auth=keys.auth(**WITHOUT).model_dump(), probe=SHORT)


@pytest.mark.parametrize("hangs_up", ["at once", "later"])
async def test_an_engine_with_tls_of_its_own_that_is_gone_behind_a_plain_proxy_is_down(hangs_up: str, keys: Keys) -> None:
    async with (
        engine() as fake,
        proxy(keys.made, fake.url) as own,
        Proxy(own.url).listening() as door,
        watching(uncertified(door.url, keys), **SLOW) as exporter,
    ):
        await settled(exporter, State.SERVING)
        door.hangs_up = hangs_up
        await settled(exporter, State.DOWN)


@pytest.mark.parametrize("hangs_up", ["at once", "later"])
async def test_a_proxy_with_tls_that_has_nobody_behind_it_any_more_is_down_and_comes_back(hangs_up: str, keys: Keys) -> None:
    async with (
        engine() as fake,
        proxy(keys.made, fake.url) as door,
        watching(uncertified(door.url, keys), **SLOW) as exporter,
    ):
        await settled(exporter, State.SERVING)
        door.hangs_up = hangs_up
        await settled(exporter, State.DOWN)
        await asyncio.sleep(1.5)  # more rounds of page, health and probe: the state stays
        assert view(exporter).state is State.DOWN
        door.hangs_up = ""
        await settled(exporter, State.SERVING)


@pytest.mark.parametrize(
    ("wants_certificate", "wrong"),
    [
        (True, WITHOUT),  # asyncio, so uvicorn too, ends a handshake without a word of why
        (False, WITHOUT),  # nobody has been seen behind it yet
        (False, {}),
    ],
)
async def test_where_it_may_be_our_certificate_nobody_is_called_down(
    wants_certificate: bool, wrong: dict[str, Any], keys: Keys
) -> None:
    with capture_logs() as logs:
        async with engine() as fake, proxy(keys.made, fake.url, wants_certificate) as door:
            door.hangs_up = "later"
            async with watching(behind(door.url, keys.auth(**wrong)), log=None, **SLOW) as exporter:
                await settled(exporter, State.MISCONFIGURED)
                await asyncio.sleep(1.5)
    assert {line.get("state") for line in logs} <= {None, "misconfigured"}


async def test_what_the_door_says_of_our_certificate_is_listened_to(tls_world: TlsWorld, keys: Keys) -> None:
    """Sent at once, a request would mostly cost us the alert; so a door that is new to us is never taken for a dead one."""
    url = tls_world.doors["engine"].url
    async with Clients().client_for((url,), keys.auth(**WITHOUT), url) as client:
        for _ in range(5):
            with pytest.raises(FetchError) as caught:
                await fetch(client, url, {}, 4.0)
            assert caught.value.tls is TlsCode.CERTIFICATE_WANTED


async def test_a_stopped_engine_with_tls_of_its_own_is_hung(keys: Keys) -> None:
    """Its kernel accepts connections, and nobody answers, not even of TLS."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as stopped:
        url = f"https://localhost:{stopped.getsockname()[1]}"
        async with watching(backend(url, auth=keys.auth().model_dump(), probe=SHORT), scrape_timeout_s=0.5) as exporter:
            await settled(exporter, State.HUNG)


async def through_tap(port: int, *headers: str) -> Told:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    try:
        writer.write(post({**CHAT, "model": "llama-3-8b", "max_tokens": 3}, *headers))
        async with asyncio.timeout(10):
            return await read_answer(reader, "POST")
    finally:
        writer.close()


async def test_the_tap_shows_our_certificate_and_the_clients_own_credential(tls_world: TlsWorld, keys: Keys) -> None:
    """The certificate is of the connection, which the tap makes; a token is of the request, which the client makes."""
    seen: list[Exchange] = []
    keys.show(keys.made.expired_client)
    engine = behind(tls_world.doors["engine"].url, keys.auth(), tap={"listen": "127.0.0.1:0"})
    host = TapHost((engine,), seen.append, QUIET, stop_s=0.5)
    right = (f"authorization: Bearer {BEARER}", f"x-scope-orgid: {TENANT}")
    async with asyncio.timeout(30), host.running():
        await host.ready()
        port = int(host.addresses["a"].rpartition(":")[2])
        assert (await through_tap(port, *right)).status == 502
        keys.show(keys.made.client)
        told = await through_tap(port, *right)
        assert told.status == 200
        assert (await through_tap(port)).status == 401, "the exporter's own token opens nothing for a client without one"
        await until(lambda: len(seen) == 3)
        assert [exchange.outcome for exchange in seen][:2] == ["error", "ok"]


def notify_test(tmp_path: Path, url: str, auth: Auth) -> Any:
    file = tmp_path / "t.yaml"
    file.write_text(yaml.safe_dump({"watchdog": {"alertmanager": {"url": url, "auth": auth.model_dump(mode="json")}}}))
    return CliRunner().invoke(app, ["notify-test", "-c", str(file), "--wait", "0", "--severity", "info"])


def test_notify_test_goes_through_the_door_and_says_what_is_wrong_there(tls_world: TlsWorld, keys: Keys, tmp_path: Path) -> None:
    door = tls_world.doors["alertmanager"]
    done = notify_test(tmp_path, door.url, keys.auth())
    assert (done.exit_code, "Alertmanager has it" in done.output) == (0, True), done.output

    for url, auth, words in (
        (door.expired, keys.auth(), "its certificate has expired; renew it there"),
        (door.url, keys.auth(ca_file=None), "put that authority into watchdog.alertmanager.auth.ca_file"),
        (door.url, keys.auth(bearer_file=None), "refused the credentials (401); see watchdog.alertmanager.auth"),
    ):
        done = notify_test(tmp_path, url, auth)
        assert done.exit_code == 1
        assert words in done.output
        assert BEARER not in done.output
