"""`tailkeeper init` as a person runs it: what it says, what it writes, and what it leaves alone."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tailkeeper.cli import app
from tailkeeper.config import load
from tailkeeper.init import on_machine
from tests.e2e.exporter_process import engine_process
from tests.e2e.real_programs import free_port
from tests.e2e.tiny_servers import answer, serving
from tests.unit.fake_engine import FakeEngine
from tests.unit.loopback import Handler, reply, routes, silence
from tests.unit.loopback import serving as serving_raw


@pytest.fixture(autouse=True)
def nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this machine only what a test names: others run their programs here, too."""
    only(monkeypatch)


def only(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    monkeypatch.setattr(on_machine, "listening_ports", lambda: tuple(("127.0.0.1", port) for port in ports))
    monkeypatch.setattr(on_machine, "haproxy_sockets", lambda: ())
    monkeypatch.setattr(on_machine, "passing_on", frozenset)


def init(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["init", *arguments])


def checked(file: Path) -> Result:
    return CliRunner().invoke(app, ["check-config", "-c", str(file)])


def test_with_nothing_found_it_writes_an_example_that_is_valid_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = init()
    assert done.exit_code == 0, done.output
    assert "no engine was found, so it holds an example to fill in" in done.output
    assert "tailkeeper doctor -c tailkeeper.yaml" in done.output
    assert checked(Path("tailkeeper.yaml")).exit_code == 0
    example = "\n".join(line[2:] for line in Path("tailkeeper.yaml").read_text().splitlines() if line.startswith("#   "))
    assert "url: http://127.0.0.1:8000" in example


def test_a_file_that_is_there_is_never_touched_and_nobody_is_asked(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("mine")
    done = init("--prometheus", f"http://127.0.0.1:{free_port()}", "--out", str(file))
    assert done.exit_code == 2
    assert "mine.yaml exists" in " ".join(done.output.split())
    assert "asking" not in done.output
    assert file.read_text() == "mine"


def test_a_link_that_leads_nowhere_counts_as_there(tmp_path: Path) -> None:
    (tmp_path / "link.yaml").symlink_to(tmp_path / "nowhere.yaml")
    assert init("--out", str(tmp_path / "link.yaml")).exit_code == 2
    assert not (tmp_path / "nowhere.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--prometheus", "prometheus:9090"], 2, "--prometheus: must be an http:// or https:// URL"),
        (["--prometheus", "http://me:secret@p:9090"], 2, "must carry no user and password"),
        (["--auth", "bearer_file=t"], 2, "--auth belongs to --prometheus URL"),
        (
            ["--prometheus", "http://p:9090", "--auth", "bearer_file=/nowhere/t"],
            2,
            "--auth bearer_file: /nowhere/t cannot be read",
        ),
        (["--out", "/nowhere/at/all.yaml"], 2, "the folder /nowhere/at does not exist"),
        (["--out", f"/{'x' * 300}/all.yaml"], 2, "does not exist or may not be entered"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = init(*arguments)
    assert (done.exit_code, said in " ".join(done.output.split())) == (code, True), done.output
    assert list(tmp_path.iterdir()) == []


def test_a_prometheus_that_cannot_be_asked_ends_it_with_nothing_written(tmp_path: Path, denying: str) -> None:
    out = tmp_path / "t.yaml"
    refused = init("--prometheus", f"http://127.0.0.1:{free_port()}", "--out", str(out))
    denied = init("--prometheus", denying, "--out", str(out))
    assert (refused.exit_code, denied.exit_code) == (1, 1)
    assert "nothing listens there" in " ".join(refused.output.split())
    assert "--auth bearer_file=FILE, basic_file=FILE" in " ".join(denied.output.split())
    assert not out.exists()


@contextmanager
def prometheus_for(authorization: str) -> Iterator[str]:
    """The address of one that knows one engine, and tells whoever sends that header."""
    row = {"metric": {"instance": "10.0.0.9:8000", "job": "vllm", "__name__": "vllm:num_requests_running"}, "value": [0, "1"]}

    def tell(handler: BaseHTTPRequestHandler) -> None:
        if handler.headers.get("authorization") != authorization:
            return answer(handler, 401, b"no")
        rows = [row] if "vllm" in handler.path else []
        data: dict[str, Any] = {"resultType": "vector", "result": rows}
        if "time%28%29" in handler.path:
            data = {"resultType": "scalar", "result": [0, str(time.time())]}
        return answer(handler, 200, json.dumps({"status": "success", "data": data}).encode())

    with serving(tell) as port:
        yield f"http://127.0.0.1:{port}"


def test_a_prometheus_that_wants_a_token_is_asked_with_it_and_the_file_names_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("token").write_text("s3cret\n")
    with prometheus_for("Bearer s3cret") as url:
        done = init("--prometheus", url, "--auth", "bearer_file=token")
    assert done.exit_code == 0, done.output
    written = Path("tailkeeper.yaml").read_text()
    assert "http://10.0.0.9:8000" in written
    assert f"auth: {{bearer_file: {tmp_path / 'token'}}}" in written
    assert "s3cret" not in written + done.output


def test_an_engine_on_a_local_port_is_found_with_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_process() as engine:
        port = int(engine.url.rpartition(":")[2])
        only(monkeypatch, port, free_port())
        done = init("--out", str(tmp_path / "t.yaml"))
    assert done.exit_code == 0, done.output
    assert f"{engine.url}, serving tiny" in done.output
    (backend,) = load(tmp_path / "t.yaml").backends
    assert (backend.engine, backend.url, backend.model) == ("vllm", engine.url, "tiny")
    assert checked(tmp_path / "t.yaml").exit_code == 0


def test_ports_that_are_taken_are_not_written_as_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, 9400, 8088)
    assert init("--out", str(tmp_path / "t.yaml")).exit_code == 0
    config = load(tmp_path / "t.yaml")
    assert (config.exporter.listen, config.watchdog.listen) == ("127.0.0.1:9401", "127.0.0.1:8089")


async def found_at(handler: Handler) -> on_machine.PortHere:
    async with serving_raw(handler) as server:
        port = int(server.url.rpartition(":")[2])
        ports, late = await on_machine.ask_ports((("127.0.0.1", port),))
        assert late == ()
        assert all(seen.method == "GET" for seen in server.requests)
        return ports[0]


MODELS = reply(200, {"data": [{"id": "llama", "owned_by": "sglang"}]})


async def test_an_engine_without_a_metrics_page_is_found_by_its_models_and_that_is_remarked() -> None:
    here = await found_at(routes({"/v1/models": MODELS}))
    assert here.engine is not None
    assert (here.engine.found.key("engine"), here.engine.models) == ("sglang", ("llama",))
    assert "turn metrics on" in here.engine.remark


async def test_a_balancer_over_several_engines_is_no_engine() -> None:
    engines = [FakeEngine(started=started) for started in (1.0, 2.0)]
    turns = iter(range(100))

    async def balance(seen: object, writer: asyncio.StreamWriter) -> None:
        await engines[next(turns) % 2].handle(seen, writer)  # type: ignore[arg-type]

    here = await found_at(balance)
    assert here.passes_on
    assert on_machine.each_once([here]) == ()


@pytest.mark.parametrize(
    "handler", [routes({}), silence, reply(200, b"\x00\xff" * 1000), reply(500), reply(302, b"", "location: http://10.0.0.1/")]
)
async def test_whatever_else_answers_is_nothing_and_costs_no_more_than_its_time(
    handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_machine, "ASK_S", 0.1)
    here = await found_at(handler)
    assert (here.engine, here.gateways, here.kind) == (None, (), "")


async def test_what_is_not_asked_in_time_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_machine, "ALL_S", 0.05)
    async with serving_raw(silence) as server:
        port = int(server.url.rpartition(":")[2])
        ports, late = await on_machine.ask_ports((("127.0.0.1", port),))
    assert ports == []
    assert "1 local ports were not asked" in late[0]


async def test_routers_and_traefik_are_known_by_their_own_answers() -> None:
    router = await found_at(
        routes({"/workers": reply(200, {"workers": [{"url": "http://10.0.0.1:8000"}]}), "/v1/models": MODELS})
    )
    assert [gateway.kind for gateway in router.gateways] == ["sglang_router"]
    assert router.engine is None
