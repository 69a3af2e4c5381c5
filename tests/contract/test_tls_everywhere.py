"""Every client of ours before a real HAProxy that speaks TLS and wants a certificate, a credential and a tenant.

What is right passes; what is wrong in one way is said with what is wrong and what to do, and never with a secret; what was
rotated is taken up by the client that is there.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog

from tailkeeper_exporter.credentials import CredentialError
from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators import build_actuator
from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.contract import ActuatorError
from tests.contract.tls_callers import CALLERS, Caller
from tests.contract.tls_world import BASIC, BEARER, Keys, TlsWorld, basic
from tests.unit.test_actuator_registry import EXAMPLES

pytestmark = pytest.mark.real
PATHS = {"gateway": "/gate/v1"}
OTHER_TOKEN = "an0ther-s3cret"
Auths = Callable[[Keys], Auth]


@pytest.fixture
def keys(tmp_path: Path, tls_world: TlsWorld) -> Keys:
    return Keys(tmp_path / "keys", tls_world.certificates)


@asynccontextmanager
async def caller(who: str, world: TlsWorld, auth: Auth, door: str = "url") -> AsyncIterator[Caller]:
    server, make = CALLERS[who]
    made = make(getattr(world.doors[server], door) + PATHS.get(server, ""), auth)
    try:
        yield made
    finally:
        await made.close()


def has_no_secret(said: str) -> bool:
    return not any(secret in said for secret in (BEARER, BASIC, basic(), OTHER_TOKEN, BASIC.partition(":")[2]))


RIGHT: dict[str, tuple[str, Auths]] = {
    "a token": ("url", lambda keys: keys.auth()),
    "user and password": ("url", lambda keys: keys.auth(basic=True)),
    "certificate and key in one file": ("url", lambda keys: keys.auth(cert_file=keys.together(), key_file=None)),
    "TLS 1.2": ("tls12", lambda keys: keys.auth()),
}


@pytest.mark.parametrize("right", RIGHT)
@pytest.mark.parametrize("who", CALLERS)
async def test_the_right_credentials_open_the_door(who: str, right: str, tls_world: TlsWorld, keys: Keys) -> None:
    door, auth = RIGHT[right]
    async with caller(who, tls_world, auth(keys), door) as client:
        assert await client.ask() is None
        assert await client.ask() is None


def _foreign_ca(keys: Keys) -> Auth:
    keys.trust(keys.made.foreign)
    return keys.auth()


def _foreign_client(keys: Keys) -> Auth:
    keys.show(keys.made.foreign_client)
    return keys.auth()


def _expired_client(keys: Keys) -> Auth:
    keys.show(keys.made.expired_client)
    return keys.auth()


def _wrong_token(keys: Keys) -> Auth:
    keys.bearer.write_text(OTHER_TOKEN)
    return keys.auth()


UNTRUSTED = "its certificate is of no authority that is trusted here; put that authority into "
WANTED = "it wants a client certificate; name one in "
CUT = "it breaks the connection once TLS is agreed, as where a client certificate is wanted or not taken; see "
"""What a client sees that sends its request before the server's word on its certificate comes, in TLS 1.3."""
WRONG: dict[str, tuple[str, Auths, str]] = {
    "an authority of others": ("url", _foreign_ca, UNTRUSTED),
    "the system's authorities": ("url", lambda keys: keys.auth(ca_file=None), UNTRUSTED),
    "an expired server": ("expired", lambda keys: keys.auth(), "its certificate has expired; renew it there"),
    "another host's certificate": (
        "misnamed",
        lambda keys: keys.auth(),
        "its certificate is for another name; write a name that",
    ),
    "no client certificate": ("url", lambda keys: keys.auth(cert_file=None, key_file=None), WANTED),
    "none in TLS 1.2": ("tls12", lambda keys: keys.auth(cert_file=None, key_file=None), WANTED),
    "a client of others": ("url", _foreign_client, "it does not take the client certificate of "),
    "an expired client": ("url", _expired_client, "(it has expired; renew it)"),
    "a wrong token": ("url", _wrong_token, "401: the credential is not accepted; check "),
    "no token": ("url", lambda keys: keys.auth(bearer_file=None), "401: the credential is not accepted; check "),
    "no tenant": ("url", lambda keys: keys.auth(headers_file=None), "403: the credential "),
}


MAY_BE_CUT = ("no client certificate", "a client of others", "an expired client")


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("who", CALLERS)
async def test_what_is_wrong_is_said_with_what_to_do_and_without_a_secret(
    who: str, wrong: str, tls_world: TlsWorld, keys: Keys
) -> None:
    door, auth, words = WRONG[wrong]
    async with caller(who, tls_world, auth(keys), door) as client:
        said = await client.ask()
    assert said is not None
    assert words in said or (wrong in MAY_BE_CUT and CUT in said)
    assert has_no_secret(said)


@pytest.mark.parametrize("who", CALLERS)
async def test_https_to_a_server_without_tls_is_said(who: str, tls_world: TlsWorld, keys: Keys) -> None:
    client = CALLERS[who][1](tls_world.doors["prometheus"].plain.replace("http:", "https:"), keys.auth())
    said = await client.ask()
    await client.close()
    assert "it does not speak TLS there; is it http://, or another port?" in (said or "")


@pytest.mark.parametrize("who", CALLERS)
async def test_a_rotated_token_certificate_and_authority_are_taken_up_by_the_client_that_is_there(
    who: str, tls_world: TlsWorld, keys: Keys
) -> None:
    keys.bearer.write_text("of-yesterday")
    keys.show(keys.made.expired_client)
    keys.trust(keys.made.foreign)
    async with caller(who, tls_world, keys.auth()) as client:
        assert UNTRUSTED in (await client.ask() or "")
        keys.trust(keys.made.ours)
        assert re.search(r"\(it has expired; renew it\)|breaks the connection once TLS", await client.ask() or "")
        keys.show(keys.made.client)
        assert "the credential is not accepted" in (await client.ask() or "")
        keys.bearer.write_text(BEARER)
        assert await client.ask() is None


@pytest.mark.parametrize("who", sorted(set(CALLERS) - {"discovery", "a replay"}))  # they make a client each time
async def test_a_half_written_certificate_is_told_and_the_old_one_goes_on(who: str, tls_world: TlsWorld, keys: Keys) -> None:
    with structlog.testing.capture_logs() as logs:
        async with caller(who, tls_world, keys.auth()) as client:
            assert await client.ask() is None
            keys.cert.write_text(keys.cert.read_text()[:100])
            for _ in range(3):  # one of them on a new connection, where a client keeps the old one for a while
                assert await client.ask() is None
    for line in logs:
        assert line["event"] != "certificates" or "going on with what was read before" in line["error"]


@pytest.mark.parametrize("file", ["bearer", "headers"])
@pytest.mark.parametrize("who", CALLERS)
async def test_a_credential_file_that_goes_missing_is_named_and_comes_back(
    who: str, file: str, tls_world: TlsWorld, keys: Keys
) -> None:
    async with caller(who, tls_world, keys.auth()) as client:
        path = keys.away(file)
        said = await client.ask()
        assert f"{file}_file: {path} cannot be read: No such file or directory" in (said or "")
        keys.back(file)
        assert await client.ask() is None


UNUSABLE = {
    "bearer": ["", "two\nlines", "Bearer s3cret.bearer-of-ours", "\x00"],
    "headers": ["no colon", "Host: elsewhere"],
    "ca": ["", "not a certificate"],
    "cert": ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"],
    "key": ["", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"],
}


@pytest.mark.parametrize(("file", "content"), [(file, content) for file, contents in UNUSABLE.items() for content in contents])
@pytest.mark.parametrize("who", CALLERS)
async def test_a_file_that_cannot_be_used_is_named_from_the_start(
    who: str, file: str, content: str, tls_world: TlsWorld, keys: Keys
) -> None:
    path = keys.spoil(file, content)
    try:
        async with caller(who, tls_world, keys.auth()) as client:
            said = await client.ask() or ""
    except (CredentialError, CallError) as error:
        said = str(error)
    assert f"{file}_file" in said
    assert str(path) in said
    assert has_no_secret(said)


HTTP_KINDS = sorted(kind for kind, example in EXAMPLES.items() if hasattr(example, "auth") and kind != "engine")


@pytest.mark.parametrize("kind", HTTP_KINDS)
async def test_every_gateway_over_http_shows_its_credentials_and_says_what_was_refused(
    kind: str, tls_world: TlsWorld, keys: Keys, tmp_path: Path
) -> None:
    async def said(auth: Auth) -> str:
        url = tls_world.doors["gateway"].url
        addresses = {"url": url, "urls": (url,), "admin_url": url, "api_url": url}
        wanted = {name: address for name, address in addresses.items() if hasattr(EXAMPLES[kind], name)}
        files = {name: tmp_path / "llm.yml" for name in ("eds_file", "file") if hasattr(EXAMPLES[kind], name)}
        files |= {"removed_file": tmp_path / "removed"} if hasattr(EXAMPLES[kind], "removed_file") else {}
        (tmp_path / "llm.yml").write_text(FILES.get(kind, ""))
        actuator = build_actuator(EXAMPLES[kind].model_copy(update={**wanted, **files, "auth": auth}))
        try:
            states = await actuator.read(("app/a" if kind == "ray_serve" else "a",), 5.0)
        except ActuatorError as error:
            return str(error)
        finally:
            await actuator.close()
        return "; ".join(state.doubt for state in states.values())

    right = await said(keys.auth())
    assert "TLS" not in right
    assert "credential" not in right
    assert "the credential is not accepted" in await said(_wrong_token(keys))
    assert re.search(
        "wants a client certificate|breaks the connection once TLS", await said(keys.auth(cert_file=None, key_file=None))
    )
    assert UNTRUSTED in await said(keys.auth(ca_file=None))


FILES = {"traefik": "http: {services: {llm: {loadBalancer: {servers: [{url: 'http://127.0.0.1:1', weight: 1}]}}}}\n"}
