"""Every kind of secret is planted, servers that repeat what they are shown are asked, our own code is made to fail, and all that
any command or page says and every file that is left is searched for each secret: plain, percent-encoded and in base64.
"""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import yaml

from tests.contract.mirror import MODES, STATUSES, Mirror, canary, mirror
from tests.e2e.real_programs import answers_200, free_port, wait_until

pytestmark = pytest.mark.real
RUNNER = [sys.executable, "-m", "tests.contract.forced_errors"]
ROOT = Path(__file__).parents[2]
CONFIGURATIONS = ("t.yaml", "elsewhere.yaml", "wrong.yaml")
RUN_S = 4.0
PROVIDER = "sk-provider-6hG/tell+nobody=="
SLACK, SMTP, IN_URL = "T0/B0/slack-7mQ-tell-nobody", "smtp-2wE/tell+nobody=", "userinfo-4kL-tell-nobody"
KV = "redis-8jU-tell-nobody"
"""The one password that a configuration may hold."""
TOLD = f"{PROVIDER} https://hooks.slack.com/services/{SLACK} smtp_auth_password: {SMTP}"
"""What servers tell of others' secrets, in their configurations."""
KINDS = ("webhook", "litellm", "consul", "sglang_router", "vllm_router", "triton", "ray_serve")
CLIENT = {"authorization": "Bearer client-token-3kT/of+user=", "x-api-key": "client-key-8sP/of+user="}
PROMPT, QUERY = "a prompt that nobody may read", "client-query-5vR"


@dataclass
class Vault:
    """The secrets, by the name of their file."""

    folder: Path
    secrets: dict[str, str] = field(default_factory=dict)

    def file(self, name: str, text: str = "") -> str:
        """The path of a file with a secret of this name; ``text`` holds it at ``{}``."""
        secret = self.secrets.setdefault(name, f"{name}-9Zq/of+{len(self.secrets)}=")
        path = self.folder / name
        path.write_text((text or "{}").format(secret))
        path.chmod(0o600)
        return str(path)

    def auth(self, name: str) -> dict[str, str]:
        """Credentials of one of the three ways, taken in turn."""
        ways = {"bearer_file": "{}", "basic_file": "tailkeeper:{}", "headers_file": "X-Consul-Token: {}"}
        way, text = list(ways.items())[len(self.secrets) % 3]
        return {way: self.file(name, text)}


def _document(vault: Vault, url: str, ports: list[int]) -> dict[str, Any]:
    exporter, watchdog, tap = (f"127.0.0.1:{port}" for port in ports)
    modes = dict.fromkeys(KINDS, ("s500", "text")) | {"webhook": (*STATUSES, "json", "text", "moved")}
    gateways = [
        {"name": f"{kind}-{mode}", "kind": kind, "url": f"{url}/{mode}/{kind}", "auth": vault.auth(f"{kind}-{mode}")}
        for kind in KINDS
        for mode in modes[kind]
    ]
    backends: list[dict[str, Any]] = [
        {"name": f"e-{mode}", "engine": "vllm", "url": f"{url}/{mode}/engine", "api_key_file": vault.file(f"key-{mode}")}
        for mode in MODES
    ]
    backends += [
        {"name": f"a-{mode}", "engine": "sglang", "url": f"{url}/{mode}/engine", "auth": vault.auth(f"engine-{mode}")}
        for mode in MODES
    ]
    for number, gateway in enumerate(gateways):
        backends[number % len(backends)].setdefault("gateway", []).append(
            {"name": gateway["name"], "server": "a" if gateway["kind"] == "consul" else "a/b"}
        )
    backends[1]["kv_service"] = f"redis://:{KV}@127.0.0.1:1/0"
    backends[0]["tap"] = {"listen": tap}
    probe = {"interval_s": 0.5, "first_token_timeout_s": 1, "health_timeout_s": 0.5}
    return {
        "backends": [{**backend, "probe": probe} for backend in backends],
        "discovery": [
            {"kind": "prometheus", "url": f"{url}/{mode}", "auth": vault.auth(f"discovery-{mode}"), "interval_s": 1}
            for mode in ("s400", "s500", "json", "text", "moved")
        ],
        "gateways": gateways,
        "policies": {"gpu_health_gate": {"mode": "enforce"}},
        "exporter": {
            "listen": exporter,
            "scrape_interval_s": 0.5,
            "gpu": {"source": "none"},
            "token_file": vault.file("exporter-token"),
            "otlp": {
                "endpoint": f"{url}/s400",
                "headers_file": vault.file("otlp-exporter", "Authorization: Bearer {}"),
                "logs": True,
            },
        },
        "watchdog": {
            "listen": watchdog,
            "tick_s": 0.5,
            "state": str(vault.folder.parent / "state" / "t.db"),
            "token_file": vault.file("watchdog-token"),
            "source": {"kind": "exporter", "urls": [f"http://{exporter}"], "auth": vault.auth("source")},
            "alertmanager": {"url": f"{url}/s400/alertmanager", "auth": vault.auth("alertmanager")},
            "otlp": {"endpoint": f"{url}/ok", "headers_file": vault.file("otlp-watchdog", "X-Api-Key: {}"), "logs": True},
        },
    }


@dataclass
class Heard:
    """All that was said, by who said it."""

    said: dict[str, str] = field(default_factory=dict)
    elsewhere: str = ""
    callers: list[str] = field(default_factory=list)

    def run(self, *commands: Sequence[str]) -> None:
        """In one process, because starting one costs more than what it does."""
        name = f"{', '.join(dict.fromkeys(command[0] for command in commands))} ({len(self.said)})"
        argv = [*RUNNER, json.dumps(commands)]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
        self.said[name] = done.stdout + done.stderr
        assert done.returncode == 0, self.said[name][-2_000:]


def _forms(secret: str) -> Iterator[bytes]:
    """What a secret may look like. Of its base64, whatever stands before it, only the middle is sure."""
    yield secret.encode()
    yield quote(secret, safe="").encode()
    yield quote(secret, safe="").lower().encode()
    yield json.dumps(secret)[1:-1].replace("/", "\\/").encode()
    for before in range(3):
        coded = base64.b64encode(b" " * before + secret.encode())[4 if before else 0 : -4]
        yield coded
        yield coded.replace(b"+", b"-").replace(b"/", b"_")


def _leaks(secrets: Mapping[str, str], places: Mapping[str, bytes]) -> list[str]:
    found = []
    for name, secret in secrets.items():
        forms = sorted(set(_forms(secret)))
        for place, content in places.items():
            for form in forms:
                at = content.find(form)
                if at >= 0:
                    found.append(f"{name} in {place}: …{content[max(at - 150, 0) : at + 60]!r}…")
                    break
    return found


def test_the_search_finds_a_secret_in_each_of_its_forms() -> None:
    secret = "ab/c+d=efghi"
    told = [
        secret, quote(secret, safe=""), quote(secret, safe="").lower(), json.dumps(secret).replace("/", "\\/"),
        *(base64.b64encode(f"{before}{secret} and more".encode()).decode() for before in ("", "x", "xy", "user:", "Bearer ")),
        base64.urlsafe_b64encode(f"u:{secret}".encode()).decode(),
    ]  # fmt: skip
    assert [len(_leaks({"s": secret}, {"p": text.encode()})) for text in told] == [1] * len(told)
    assert _leaks({"s": secret}, {"p": b"ab/c and efghi"}) == []


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Vault, Mirror, Heard, Path]]:
    """Everything has run once."""
    folder = tmp_path_factory.mktemp("secrets")
    for name in ("vault", "state", "out"):
        (folder / name).mkdir()
    vault, heard = Vault(folder / "vault"), Heard()
    with canary() as (elsewhere, callers), mirror(TOLD, elsewhere) as told:
        ports = [free_port() for _ in range(3)]
        document = _document(vault, told.url, ports)
        config = folder / "t.yaml"
        config.write_text(yaml.safe_dump(document))
        heard.elsewhere, heard.callers = elsewhere, callers
        _serve(folder, config, ports, vault, heard)
        _commands(folder, config, told.url, vault, heard)
        yield vault, told, heard, folder


def _serve(folder: Path, config: Path, ports: list[int], vault: Vault, heard: Heard) -> None:
    log = folder / "up.log"
    with (
        log.open("wb") as out,
        subprocess.Popen([*RUNNER, json.dumps([["up", "-c", str(config)]])], cwd=ROOT, stdout=out, stderr=out) as up,
    ):
        try:
            wait_until(lambda: up.poll() is not None or answers_200(f"http://127.0.0.1:{ports[1]}/livez"), "it serves", 40)
            assert up.poll() is None, log.read_text()[-3_000:]
            began = time.monotonic()
            while time.monotonic() - began < RUN_S:
                _pages(ports, vault, heard)
                time.sleep(0.5)
            status = ["status", "--url", f"http://127.0.0.1:{ports[1]}"]
            heard.run(status, [*status, "--json"], ["doctor", "-c", str(config)])
        finally:
            up.terminate()
            up.wait(20)
    heard.said["log of up"] = log.read_text()


def _pages(ports: list[int], vault: Vault, heard: Heard) -> None:
    """Ask both servers for everything, change something, and send a user's request through the tap."""
    exporter, watchdog, tap = (f"http://127.0.0.1:{port}" for port in ports)
    right = {"authorization": f"Bearer {vault.secrets['watchdog-token']}"}
    own = ("/metrics", "/healthz", "/api/v1/requests", "/api/v1/taps", "/readyz", "/openapi.json")
    reads: dict[str, tuple[str, ...]] = {exporter: own}
    names = ("fleet", "findings", "decisions", "policies", "baselines", "slo", "capacity", "forecast", "alerts", "hscorer/config")
    reads[watchdog] = ("/metrics", "/", "/readyz", "/openapi.json", *(f"/api/v1/{name}" for name in names))
    # A server ends the connection on which it failed.
    with httpx.Client(trust_env=False, timeout=10, limits=httpx.Limits(max_keepalive_connections=0)) as client:

        def ask(method: str, url: str, **more: Any) -> None:
            answer = client.request(method, url, **more)
            where = f"{method} {url.partition('?')[0].removeprefix('http://')}"
            heard.said[where] = heard.said.get(where, "") + f"{answer.headers}\n{answer.text}\n"

        for base, paths in reads.items():
            for path in paths:
                ask("GET", f"{base}{path}?token={QUERY}" if path == "/" else f"{base}{path}", headers=CLIENT)
        for path in ("pause", "resume", "release", "backends/e-ok/hold"):
            body = {"json": {"reason": "r", "for_s": 1}} if path.endswith("hold") else {}
            ask("POST", f"{watchdog}/api/v1/{path}", headers=right, **body)
            ask("POST", f"{watchdog}/api/v1/{path}", headers=CLIENT)
        ask("PUT", f"{exporter}/api/v1/taps/e-ok", headers=CLIENT, json={"admission": "serve"})
        alert = {"status": "firing", "fingerprint": "f", "labels": {"instance": heard.elsewhere}, "generatorURL": heard.elsewhere}
        alerts = {"externalURL": heard.elsewhere, "alerts": [alert]}
        ask("POST", f"{watchdog}/api/v1/alerts", headers=right, json=alerts)
        ask("POST", f"{exporter}/v1/traces", json=_spans(heard.elsewhere))
        asked = {"model": "tiny", "prompt": PROMPT, "max_tokens": 1, "stream": True}
        ask("POST", f"{tap}/v1/completions?key={QUERY}", headers={**CLIENT, "host": heard.elsewhere[7:]}, json=asked)
    with socket.create_connection(("127.0.0.1", ports[2]), 10) as client_of_a_proxy:
        client_of_a_proxy.sendall(f"GET {heard.elsewhere}/v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        heard.said["the tap as a proxy"] = client_of_a_proxy.recv(65_536).decode()


def _spans(url: str) -> dict[str, Any]:
    """A span that looks like a request to a server elsewhere."""
    told = {"server.address": url[7:], "url.full": url, "peer.service": url, "tailkeeper.backend": url, "http.url": url}
    attributes = [{"key": key, "value": {"stringValue": value}} for key, value in told.items()]
    span = {"traceId": "ab" * 16, "spanId": "cd" * 8, "name": "llm_request", "kind": 3, "attributes": attributes}
    resource = {"attributes": [*attributes, {"key": "service.name", "value": {"stringValue": "vllm"}}]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span]}]}]}


def _commands(folder: Path, config: Path, url: str, vault: Vault, heard: Heard) -> None:
    """Every command that reads credentials or repeats what a server says. The watchdog's are run without it, too."""
    file = ["-c", str(config)]
    commands = [
        ["check-config", *file, "--all"],
        ["config", *file],
        ["doctor", *file, "--json", "--prometheus", f"{url}/json", "--auth", _option(vault, "doctor")],
        ["notify-test", *file],
        ["release-all", *file],
        ["replay", *file, "--records", str(folder / "state" / "t.records"), "--json"],
    ]
    for mode in ("json", "text", "s400", "moved"):
        asked = ["--prometheus", f"{url}/{mode}", "--auth", _option(vault, f"cli-{mode}")]
        commands.append(["init", *asked, "--out", str(folder / "out" / f"{mode}.yaml")])
        commands.append(["replay", *asked, "--start", "-1h", "--end", "now"])
    heard.run(*commands, *_of_other_files(folder, config, url, vault))


def _of_other_files(folder: Path, config: Path, url: str, vault: Vault) -> list[list[str]]:
    """A ledger on a server that is not there, secrets in URLs, and secrets where the name of a file should be."""
    document = yaml.safe_load(config.read_text())
    watchdog = document["watchdog"]
    ledger = {"url": "postgresql://tailkeeper@127.0.0.1:1/t", "password_file": vault.file("postgres")}
    elsewhere = {**document, "watchdog": {**watchdog, "ledger": ledger, "alertmanager": {"url": f"{url}/json"}}}
    inside = url.replace("//", f"//user:{IN_URL}@")
    wrong = {
        "backends": [{"name": "a", "engine": "vllm", "url": inside, "metrics_url": inside}],
        "gateways": [{"name": "g", "kind": "webhook", "url": inside, "replicas": [inside]}],
        "discovery": [{"kind": "prometheus", "url": inside}],
        "exporter": {"otlp": {"endpoint": inside}},
        "watchdog": {
            "source": {"kind": "prometheus", "url": inside},
            "alertmanager": {"url": inside, "console_url": inside},
            "ledger": {"url": f"postgresql://tailkeeper:{IN_URL}@127.0.0.1/t"},
        },
    }
    for name, content in (("elsewhere", elsewhere), ("wrong", wrong)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    receivers = folder / "vault" / "deploy" / "alertmanager" / "receivers.yaml"
    receivers.parent.mkdir(parents=True)
    receivers.write_text(
        f"receivers:\n- {{kind: slack, channel: '#a', api_url: 'https://hooks.slack.com/services/{SLACK}'}}\n"
        f"- {{kind: email, to: a@b, sender: a@b, smarthost: 'b:25', password: '{SMTP}'}}\n"
    )
    there, url_of = ["-c", str(folder / "elsewhere.yaml")], ["-c", str(folder / "wrong.yaml")]
    return [
        ["check-config", *there], ["doctor", *there], ["notify-test", *there],
        ["check-config", *url_of], ["config", *url_of], ["up", *url_of], ["doctor", *url_of],
        ["init", "--prometheus", inside, "--out", str(folder / "out" / "x.yaml")],
        ["replay", "--prometheus", inside, "--start", "-1h", "--end", "now"],
        ["status", "--url", inside],
        ["generate", "--alertmanager", "--out", str(folder / "vault")],
    ]  # fmt: skip


def _option(vault: Vault, name: str) -> str:
    return next(f"{way}={file}" for way, file in vault.auth(name).items())


def _places(heard: Heard, told: Mirror, folder: Path) -> dict[str, bytes]:
    """All outputs, all files but those of the secrets, and what was told to Alertmanager, collectors and gateways."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    ours = ("vault", *CONFIGURATIONS)
    left = {name: content for name, content in files.items() if not name.startswith(ours)}
    bodies = {
        f"a body that was posted ({number})": body for number, body in enumerate(told.bodies) if PROMPT.encode() not in body
    }
    return {**{name: text.encode() for name, text in heard.said.items()}, **left, **bodies}


def test_every_secret_was_shown_to_its_server_and_our_code_failed_beside_it(heard: Any) -> None:
    vault, told, said, _ = heard
    ours = {"exporter-token", "watchdog-token", "source", "postgres"}  # shown to servers of ours, or to none that is there
    shown = " ".join([*told.shown, *(base64.b64decode(v[6:]).decode() for v in told.shown if v.startswith("Basic "))])
    assert {name for name, secret in vault.secrets.items() if secret not in shown} <= ours
    for place in ("http_calls", "documents", "server", "loop", "fetch"):
        assert f"forced in {place}" in " ".join(said.said.values()), place


def test_no_output_page_or_file_holds_a_secret_in_any_form(heard: Any) -> None:
    vault, told, said, folder = heard
    clients = {
        "client's token": CLIENT["authorization"][7:],
        "client's key": CLIENT["x-api-key"],
        "query": QUERY,
        "prompt": PROMPT,
    }
    others = {"a provider's": PROVIDER, "Slack's": SLACK, "a mail server's": SMTP, "in a URL": IN_URL, "Redis's": KV}
    secrets = {**vault.secrets, **{f"{name} of a client": secret for name, secret in clients.items()}, **others}
    leaks = _leaks(secrets, _places(said, told, folder))
    assert leaks == [], "\n".join(leaks[:40]) + f"\n{len(leaks)} in all"


def test_nothing_that_anybody_said_led_us_to_another_address(heard: Any) -> None:
    """Redirects, addresses in answers, alerts, spans, and what a client asks of the tap (SSRF)."""
    _, told, said, _ = heard
    assert any("/moved/" in path for path in told.paths)
    assert said.said["the tap as a proxy"].startswith("HTTP/1.1 200"), "of the tap's own backend"
    assert said.callers == []
    with socket.create_connection(("127.0.0.2", int(said.elsewhere.rpartition(":")[2])), 5) as one:
        one.sendall(b"here")
    wait_until(lambda: said.callers == ["here"], "whoever calls there is noticed", 5)
