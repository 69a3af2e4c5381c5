"""A door as operators build it: HAProxy that speaks TLS and wants a client certificate, a credential and a tenant.

Authorities and certificates are made by openssl for the session, good ones and those that are wrong in one way each. The
accepted credentials are a list that can be exchanged while HAProxy runs. What is refused is answered with the credential in
it, as hostile proxies do.
"""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tailkeeper_exporter.settings import Auth
from tests.contract.webhook_gateway import webhook_gateway
from tests.e2e.real_programs import alertmanager, binary, free_port, prometheus, running

TENANT = "team-a"
BEARER = "s3cret.bearer-of-ours"
BASIC = "keeper:s3cret pass-wörd"
GOOD = ("20200101000000Z", "20991231000000Z")
OVER = ("20200101000000Z", "20200102000000Z")

_CA_CONFIG = """
[ca]
default_ca = here
[here]
dir = {folder}
database = {folder}/index
serial = {folder}/serial
new_certs_dir = {folder}
default_md = sha256
policy = any
copy_extensions = copy
unique_subject = no
[any]
commonName = supplied
[req]
distinguished_name = name
[name]
"""


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, in files."""

    cert: Path
    key: Path


class Authority:
    """One authority, in a folder of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        (folder / "index").touch()
        (folder / "serial").write_text("01\n")
        (folder / "ca.cnf").write_text(_CA_CONFIG.format(folder=folder))
        self.file = folder / "ca.pem"
        usage = ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign"]
        self._openssl("req", "-x509", *_key(folder / "ca.key"), "-out", self.file, "-subj", f"/CN={name}", "-days", "30", *usage)

    def issue(self, name: str, alternative: str, use: str, validity: tuple[str, str] = GOOD) -> Pair:
        """A certificate for ``use``, serverAuth or clientAuth."""
        request, pair = self.folder / f"{name}.csr", Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        more = ["-addext", f"subjectAltName={alternative}", "-addext", f"extendedKeyUsage={use}"]
        self._openssl("req", *_key(pair.key), "-out", request, "-subj", f"/CN={name}", *more)
        dates = ["-startdate", validity[0], "-enddate", validity[1]]
        mine = ["-cert", str(self.file), "-keyfile", str(self.folder / "ca.key")]
        self._openssl("ca", "-batch", "-notext", *mine, *dates, "-in", request, "-out", pair.cert)
        return pair

    def _openssl(self, command: str, *arguments: str | Path) -> None:
        argv = [binary("openssl"), command, *map(str, arguments), "-config", str(self.folder / "ca.cnf")]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, f"{argv}: {done.stderr[-1000:]}"


def _key(file: Path) -> list[str]:
    return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(file)]


@dataclass(frozen=True)
class Certificates:
    """All of one session."""

    ours: Authority
    foreign: Authority
    server: Pair
    expired_server: Pair
    misnamed_server: Pair
    client: Pair
    expired_client: Pair
    foreign_client: Pair


def certificates(folder: Path) -> Certificates:
    """Made anew; about half a second."""
    ours, foreign = Authority(folder / "ours", "Authority of ours"), Authority(folder / "foreign", "Authority of others")
    here = "DNS:localhost,IP:127.0.0.1"
    return Certificates(
        ours=ours,
        foreign=foreign,
        server=ours.issue("server", here, "serverAuth"),
        expired_server=ours.issue("expired-server", here, "serverAuth", OVER),
        misnamed_server=ours.issue("misnamed-server", "DNS:other.example", "serverAuth"),
        client=ours.issue("client", "DNS:keeper", "clientAuth"),
        expired_client=ours.issue("expired-client", "DNS:keeper", "clientAuth", OVER),
        foreign_client=foreign.issue("foreign-client", "DNS:keeper", "clientAuth"),
    )


@dataclass(frozen=True)
class Door:
    """The ways to one server behind HAProxy, each an https URL, and a plain one."""

    url: str
    tls12: str
    """The same without TLS 1.3, in which a missing client certificate is found out during the handshake."""
    expired: str
    misnamed: str
    plain: str
    """The server itself, without HAProxy."""


@dataclass(frozen=True)
class Doorkeeper:
    """The running HAProxy."""

    doors: tuple[Door, ...]
    certificates: Certificates
    folder: Path

    def accept(self, *authorizations: str) -> None:
        """From now on these values of Authorization open every door, and no others."""
        self._ask(f"clear acl {self.folder}/accepted")
        for value in authorizations:
            self._ask(f"add acl {self.folder}/accepted {value.replace(' ', chr(92) + ' ')}")

    def _ask(self, command: str) -> None:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self.folder / "s"))
            client.sendall(command.encode() + b"\n")
            said = b"".join(iter(lambda: client.recv(65_536), b"")).strip()
        assert not said, said


def basic(pair: str = BASIC) -> str:
    """The value of Authorization that a pair of user and password makes (RFC 7617, in UTF-8)."""
    return "Basic " + base64.b64encode(pair.encode()).decode()


_HEAD = """
global
  stats socket {folder}/s mode 600 level admin
  ssl-default-bind-options ssl-min-ver TLSv1.2
defaults
  mode http
  timeout connect 2s
  timeout client 60s
  timeout server 60s
"""
_FRONT = """
frontend f{port}
  bind 127.0.0.1:{port} ssl crt {crt} ca-file {ca} verify required {more}
  acl accepted req.hdr(authorization) -m str -f {folder}/accepted
  acl tenant req.hdr(x-scope-orgid) -m str {tenant}
  http-request return status 401 content-type text/plain lf-string "not %[req.hdr(authorization)]" unless accepted
  http-request return status 403 content-type text/plain string "no tenant" unless tenant
  use_backend b{upstream}
"""
_BACK = """
backend b{upstream}
  server s 127.0.0.1:{upstream}
"""


@contextmanager
def doorkeeper(made: Certificates, upstreams: Sequence[int], folder: Path) -> Iterator[Doorkeeper]:
    """HAProxy before servers on these ports; every door takes ``BEARER`` and ``BASIC``."""
    here = Path(tempfile.mkdtemp(prefix="d", dir=folder))
    (here / "accepted").write_text(f"Bearer {BEARER}\n{basic()}\n")
    text, doors = _HEAD.format(folder=here), []
    for upstream in upstreams:
        kinds = (("", made.server), ("ssl-max-ver TLSv1.2", made.server), ("", made.expired_server), ("", made.misnamed_server))
        ports = [free_port() for _ in kinds]
        for (more, pair), port in zip(kinds, ports, strict=True):
            crt = _together(pair, here / f"{port}.pem")
            text += _FRONT.format(port=port, crt=crt, ca=made.ours.file, more=more, folder=here, tenant=TENANT, upstream=upstream)
        text += _BACK.format(upstream=upstream)
        url, tls12, expired, misnamed = (f"https://localhost:{port}" for port in ports)
        doors.append(Door(url, tls12, expired, misnamed, f"http://127.0.0.1:{upstream}"))
    (here / "haproxy.cfg").write_text(text)
    argv = [binary("haproxy"), "-db", "-f", str(here / "haproxy.cfg")]
    with running(argv, here / "log", ready=(here / "s").exists):
        yield Doorkeeper(tuple(doors), made, here)


def _together(pair: Pair, file: Path) -> Path:
    """HAProxy reads certificate and key from one file."""
    file.write_text(pair.cert.read_text() + pair.key.read_text())
    return file


class Keys:
    """The files that one client of ours holds, in a folder of its own; right ones until they are changed."""

    def __init__(self, folder: Path, made: Certificates) -> None:
        self.made, self._folder = made, folder
        folder.mkdir()
        self.bearer, self.basic, self.headers = folder / "bearer", folder / "basic", folder / "headers"
        self.ca, self.cert, self.key = folder / "ca.pem", folder / "cert.pem", folder / "key.pem"
        self.bearer.write_text(f"{BEARER}\n")
        self.basic.write_text(f"{BASIC}\r\n")
        self.headers.write_text(f"# our tenant\nX-Scope-OrgID: {TENANT}\n")
        self.trust(made.ours)
        self.show(made.client)

    def trust(self, authority: Authority) -> None:
        _replace(self.ca, authority.file)

    def show(self, pair: Pair) -> None:
        """As cert-manager and the like do it: new files in the place of the old."""
        _replace(self.key, pair.key)
        _replace(self.cert, pair.cert)

    def spoil(self, file: str, content: str) -> Path:
        """Other content in one of the files: bearer, headers, ca, cert or key."""
        path: Path = getattr(self, file)
        path.write_text(content)
        return path

    def away(self, file: str) -> Path:
        """Take one of the files away; its path."""
        path: Path = getattr(self, file)
        path.rename(path.with_suffix(".away"))
        return path

    def back(self, file: str) -> None:
        path: Path = getattr(self, file)
        path.with_suffix(".away").rename(path)

    def together(self) -> Path:
        """Certificate and key in one file."""
        return _together(Pair(self.cert, self.key), self._folder / "both.pem")

    def auth(self, *, basic: bool = False, **other: Path | None) -> Auth:
        """Everything right, with ``other`` files, or None for none."""
        files = {"basic_file": self.basic} if basic else {"bearer_file": self.bearer}
        files |= {"headers_file": self.headers, "ca_file": self.ca, "cert_file": self.cert, "key_file": self.key}
        return Auth.model_validate({**files, **other})


def _replace(file: Path, by: Path) -> None:
    draft = file.with_suffix(".new")
    draft.write_bytes(by.read_bytes())
    draft.replace(file)


@dataclass(frozen=True)
class TlsWorld:
    """Prometheus, Alertmanager, a simulated engine and a webhook gateway, each behind doors of one HAProxy."""

    keeper: Doorkeeper
    doors: dict[str, Door]

    @property
    def certificates(self) -> Certificates:
        return self.keeper.certificates


NO_ONE = {"route": {"receiver": "none"}, "receivers": [{"name": "none"}]}


@contextmanager
def tls_world(folder: Path) -> Iterator[TlsWorld]:
    """All of them, real but for the gateway, which is anybody's; ended with the block."""
    with ExitStack() as stack:
        servers = {
            "prometheus": stack.enter_context(prometheus({}, {}, folder)).url,
            "alertmanager": stack.enter_context(alertmanager(NO_ONE, folder)).url,
            "engine": stack.enter_context(_engine(folder)),
            "gateway": stack.enter_context(webhook_gateway({"a": {"weight": 1.0, "admission": "serve"}})).url,
        }
        ports = [urlsplit(url).port or 0 for url in servers.values()]
        keeper = stack.enter_context(doorkeeper(certificates(folder / "pki"), ports, folder))
        yield TlsWorld(keeper, dict(zip(servers, keeper.doors, strict=True)))


@contextmanager
def _engine(folder: Path) -> Iterator[str]:
    ready = folder / "engine.json"
    argv = [sys.executable, "-m", "tailkeeper_demo.fleet", "--engines", "1", "--ready-file", str(ready)]
    with running(argv, folder / "engine.log", ready.exists):
        yield str(json.loads(ready.read_text())["engines"][0]["url"])
