"""A whole exporter, its tap and `notify-test` before the real TLS door: what a wrong certificate does to a backend's state.

A certificate that runs out must not take a fleet for dead: the backend is misconfigured, which nobody is drained for.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from structlog.testing import capture_logs
from typer.testing import CliRunner

from tailkeeper.cli import app
from tailkeeper_exporter import collector
from tailkeeper_exporter.app import Exporter
from tailkeeper_exporter.health import backend_health
from tailkeeper_exporter.settings import Auth, BackendSettings
from tailkeeper_exporter.state import State
from tailkeeper_exporter.tap.exchange import Exchange
from tailkeeper_exporter.tap.host import TapHost
from tests.contract.tls_world import BEARER, TENANT, Keys, TlsWorld
from tests.loopback.raw_engine import Told, read_answer, until
from tests.loopback.tap_world import CHAT, post
from tests.loopback.test_collector import QUIET, backend, view, watching
from tests.loopback.test_collector import until as until_holds

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]
PROBE = {"interval_s": 0.5, "first_token_timeout_s": 2, "health_timeout_s": 2}
SLOW = {"scrape_timeout_s": 2}


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
