"""Discovery over real files and sockets: a Prometheus as it answers, files rewritten under us, and the exporter that follows."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tailkeeper.config import parse
from tailkeeper_exporter import found_collectors
from tailkeeper_exporter.app import Exporter, build
from tailkeeper_exporter.discovery import Discoverer, DiscoveryError, Found, Listing, Source, ask, sources_of
from tailkeeper_exporter.discovery.prometheus import TARGETS_QUERY, PrometheusLister
from tailkeeper_exporter.otlp.counts import Outcome as OtlpOutcome
from tailkeeper_exporter.requests_ring import RequestRecord
from tailkeeper_exporter.settings import BackendSettings, PrometheusDiscovery
from tests.loopback.test_collector import QUIET, backend, settings, until
from tests.loopback.test_exporter_server import listening, until_ready
from tests.unit.fake_engine import FakeEngine, engine
from tests.unit.loopback import Handler, Seen, reply, serving, silence
from tests.unit.otlp_messages import VLLM, a_post, a_span

# --- a Prometheus ---


def vector(*rows: dict[str, str]) -> dict[str, object]:
    return {"status": "success", "data": {"resultType": "vector", "result": [{"metric": row, "value": [0, "1"]} for row in rows]}}


def row(name: str, instance: str, **labels: str) -> dict[str, str]:
    return {"__name__": name, "instance": instance, "job": "llm", **labels}


class Answers:
    """Answers instant queries: engines, and the targets that there are."""

    def __init__(self, *engines: dict[str, str]) -> None:
        self.engines = engines
        self.targets: tuple[str, ...] = ()

    async def handle(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        asked = parse_qs(urlsplit(seen.path).query)["query"][0]
        rows = [{"instance": t, "job": "llm"} for t in self.targets] if asked == TARGETS_QUERY else list(self.engines)
        await reply(200, vector(*rows))(seen, writer)


def lister(url: str, **more: Any) -> PrometheusLister:
    return PrometheusLister(PrometheusDiscovery.model_validate({"kind": "prometheus", "url": url, **more}))


async def test_engines_are_found_by_their_metrics_with_their_model_and_their_page(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    answers = Answers(
        row("vllm:num_requests_running", "10.0.0.1:8000", model_name="m"),
        row("vllm:num_requests_running", "10.0.0.1:8000", model_name="m", job="other"),
        row("nv_inference_pending_request_count", "10.0.0.2:8002", model="llm"),
        row("sglang:num_running_reqs", "pod-7"),
        row("vllm:num_requests_running", "router:8000", server="http://10.0.0.1:8000"),
    )
    async with serving(answers.handle) as server:
        listing = await lister(server.url, auth={"bearer_file": str(tmp_path / "token")}).list(5)
        assert server.requests[0].headers["authorization"] == "Bearer s3cret"
    assert {found.name: (found.url, dict(found.keys)) for found in listing.found} == {
        "10.0.0.1:8000": ("http://10.0.0.1:8000", {"engine": "vllm", "model": "m"}),
        "10.0.0.2:8002": (
            "http://10.0.0.2:8000",
            {"engine": "triton", "model": "llm", "metrics_url": "http://10.0.0.2:8002/metrics"},
        ),
    }
    assert listing.notes == ("instance 'pod-7' of job 'llm' is no host:port, so its engine's address is unknown",)


async def test_an_engine_that_hangs_is_still_found_while_it_is_a_target_and_gone_when_it_is_none() -> None:
    answers = Answers(row("vllm:num_requests_running", "a:1", model_name="m"), row("vllm:num_requests_running", "b:1"))
    async with serving(answers.handle) as server:
        finding = lister(server.url)
        await finding.list(5)
        answers.engines = ()
        answers.targets = ("a:1", "node:9100")
        for _ in range(3):
            assert [(found.name, found.key("model")) for found in (await finding.list(5)).found] == [("a:1", "m")]
        answers.targets = ()
        assert (await finding.list(5)).found == ()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (reply(422, {"status": "error", "error": "query processing would load too many samples"}), "http_422: query processing"),
        (reply(401, "no"), "HTTP 401: the credential is not accepted"),
        (reply(200, "<html>"), "is not that of Prometheus's query API"),
        (reply(200, {"status": "success", "data": {"result": [1]}}), "is not that of Prometheus's query API"),
        (reply(200, "x" * (9 * 1024 * 1024)), "too_large"),
        (silence, r"no answer within 0\.5 s"),
    ],
    ids=["too costly", "denied", "a page", "another shape", "too large", "silence"],
)
async def test_a_prometheus_that_fails_says_nothing_about_any_backend(answer: Handler, said: str) -> None:
    async with serving(answer) as server:
        with pytest.raises(DiscoveryError, match=said):
            await lister(server.url).list(0.5 if answer is silence else 5)


# --- the exporter that follows ---


@asynccontextmanager
async def following(
    discoverer: Discoverer[Any], *configured: BackendSettings
) -> AsyncIterator[tuple[Exporter, httpx.AsyncClient]]:
    """An exporter with what is found beside what is configured."""
    exporter = build(configured, settings(), log=QUIET, discoverer=discoverer)
    finding = asyncio.create_task(discoverer.run())
    async with exporter.running(), listening(exporter) as client:
        yield exporter, client
    finding.cancel()
    await asyncio.gather(finding, return_exceptions=True)


def compose(found: Found) -> BackendSettings:
    return backend(found.url, name=found.name)


class Told:
    """A lister that says what a test put there; ``release`` holds its first answer back."""

    def __init__(self, *found: Found) -> None:
        self.found = found
        self.error: DiscoveryError | None = None
        self.release = asyncio.Event()
        self.release.set()

    async def list(self, deadline_s: float) -> Listing:
        await self.release.wait()
        if self.error is not None:
            raise self.error
        return Listing(self.found)


def telling(told: Told, *configured: BackendSettings) -> Discoverer[BackendSettings]:
    return Discoverer((Source("discovery.0 (told)", told, 0.05),), configured, compose, log=QUIET)


def at(name: str, fake: FakeEngine) -> Found:
    return Found(name, fake.url)


def series_of(page: str, name: str) -> int:
    return page.count(f'backend="{name}"')


async def test_a_vanished_backend_leaves_no_series_no_health_no_task_and_no_connection() -> None:
    async with engine(tokens_per_page=1) as one, engine(tokens_per_page=1) as two, engine() as listed:
        told = Told(at("one", one), at("two", two))
        async with following(telling(told), backend(listed.url, name="listed")) as (exporter, client):
            await until(lambda: {"one", "two"} <= set(exporter.views) and exporter.views["two"].state == "serving")
            exporter.ring.append(RequestRecord("two", trace_id="ab" * 16, e2e_s=1.0))
            assert series_of((await client.get("/metrics")).text, "two") > 20
            assert exporter._found is not None
            gone = exporter._found._watched["two"]
            told.found = (at("one", one),)
            await until(lambda: "two" not in exporter.views)
            page = (await client.get("/metrics")).text
            assert (series_of(page, "two"), series_of(page, "one") > 20, series_of(page, "listed") > 20) == (0, True, True)
            assert (await client.get("/healthz/two")).status_code == 404
            assert [b["backend"] for b in (await client.get("/healthz")).json()["backends"]] == ["listed", "one"]
            assert exporter.ring.exemplars("two") == {}
            assert await until(lambda: gone.task.done() and gone.client.is_closed) < 1.0
            asked = len(two.server.requests)
            await asyncio.sleep(0.3)
            assert len(two.server.requests) == asked


async def test_spans_of_a_found_backend_are_its_requests_as_long_as_it_is_there() -> None:
    async def post(client: httpx.AsyncClient) -> None:
        span = a_span({**VLLM, "tailkeeper.backend": "one"}, start=time.time())
        body = a_post(span).SerializeToString()
        answer = await client.post("/v1/traces", content=body, headers={"content-type": "application/x-protobuf"})
        assert answer.status_code == 200

    async with engine() as one:
        told = Told(at("one", one))
        async with following(telling(told)) as (exporter, client):
            await until(lambda: "one" in exporter.views)
            await post(client)
            assert [record.backend for record in exporter.ring.since(0, 10).records] == ["one"]
            told.found = ()
            await until(lambda: "one" not in exporter.views)
            await post(client)
            assert exporter.otlp.counts.spans[OtlpOutcome.UNMATCHED] == 1


async def test_a_backend_that_comes_back_starts_anew_and_a_moved_one_is_watched_at_its_new_place() -> None:
    async with engine() as one, engine() as other:
        told = Told(at("a", one))
        async with following(telling(told)) as (exporter, _):
            await until(lambda: "a" in exporter.views and exporter.views["a"].state == "serving")
            told.found = ()
            await until(lambda: "a" not in exporter.views)
            told.found = (at("a", other),)
            await until(lambda: "a" in exporter.views and exporter.views["a"].state == "serving")
            assert exporter.views["a"].settings.url == other.url
            told.found = (at("a", one),)
            await until(lambda: exporter.views["a"].settings.url == one.url and exporter.views["a"].state == "serving")


async def test_a_hung_vanished_backend_is_gone_at_once_and_holds_up_nothing() -> None:
    async with engine() as hung, engine() as well:
        told = Told(at("hung", hung), at("well", well))
        async with following(telling(told)) as (exporter, client):
            await until(lambda: exporter.views.keys() == {"hung", "well"})
            hung.silent()
            await asyncio.sleep(0.2)
            told.found = (at("well", well),)
            assert await until(lambda: "hung" not in exporter.views) < 1.0
            assert series_of((await client.get("/metrics")).text, "hung") == 0


async def test_a_failing_discovery_takes_nobody_away() -> None:
    async with engine() as one:
        told = Told(at("a", one))
        async with following(telling(told)) as (exporter, _):
            await until(lambda: "a" in exporter.views)
            told.error = DiscoveryError("refused")
            await asyncio.sleep(0.4)
            assert exporter.views["a"].state == "serving"


async def test_the_exporter_is_ready_once_the_first_listing_has_ended_and_stays_so_when_more_are_found() -> None:
    async with engine() as one, engine() as slow:
        slow.silent()
        told = Told(at("a", one))
        told.release.clear()
        async with following(telling(told)) as (exporter, client):
            answer = await client.get("/readyz")
            assert (answer.status_code, answer.json()["waiting_for"]) == (503, ["discovery.0 (told)"])
            told.release.set()
            await until_ready(client)
            assert (await client.get("/healthz/a")).status_code in (200, 503)  # its first page read has ended
            assert (await client.get("/healthz/a")).json()["state"] != "unknown"
            told.found = (at("a", one), at("slow", slow))
            while not (found := exporter.views.get("slow")) or not found.asked:
                assert (await client.get("/readyz")).status_code == 200
                await asyncio.sleep(0.01)


async def test_a_discovery_that_fails_at_start_does_not_keep_the_exporter_unready() -> None:
    told = Told()
    told.error = DiscoveryError("refused")
    async with following(telling(told)) as (_, client):
        await until_ready(client)


async def test_credentials_that_cannot_be_read_leave_one_backend_out_until_they_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(found_collectors, "RETRY_S", 0.05)
    key = tmp_path / "key"

    def with_key(found: Found) -> BackendSettings:
        return backend(found.url, name=found.name, **({"api_key_file": key} if found.name == "locked" else {}))

    async with engine() as one, engine() as two:
        told = Told(at("locked", one), at("open", two))
        discoverer: Discoverer[BackendSettings] = Discoverer((Source("s", told, 0.05),), (), with_key, log=QUIET)
        async with following(discoverer) as (exporter, _):
            await until(lambda: "open" in exporter.views)
            assert "locked" not in exporter.views
            key.write_text("k\n")
            await until(lambda: "locked" in exporter.views)


async def test_more_than_can_be_watched_are_left_out_and_nobody_is_put_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found_collectors, "MAX_FOUND", 2)
    async with engine() as one:
        told = Told(Found("m", one.url), Found("n", "http://127.0.0.1:9"))
        async with following(telling(told)) as (exporter, _):
            await until(lambda: set(exporter.views) == {"m", "n"})
            told.found = (*told.found, Found("a", "http://127.0.0.1:10"))
            await asyncio.sleep(0.2)
            assert set(exporter.views) == {"m", "n"}


# --- files, as people and programs write them ---


async def test_a_file_rewritten_in_any_way_never_makes_a_backend_flicker(tmp_path: Path) -> None:
    file = tmp_path / "targets.yml"
    lines = [f"- targets: ['10.0.0.{n}:8000']\n  labels: {{backend: {name}}}\n" for n, name in enumerate("ab")]
    whole = "".join(lines)
    config = parse({"discovery": [{"kind": "file_sd", "files": [str(file)], "engine": "vllm"}]})
    (source,) = sources_of(config.discovery)
    discoverer = Discoverer((source,), (), config.compose, log=QUIET)

    async def listed() -> list[str]:
        discoverer.take(source.name, await ask(source))
        return [found.name for found in discoverer.backends]

    def atomically(text: str) -> None:
        (tmp_path / "new").write_text(text)
        os.replace(tmp_path / "new", file)

    atomically(whole)
    assert await listed() == ["a", "b"]
    first = discoverer.backends
    # Each state of a file being written in place is seen by one listing; the one cut at a line's end is valid YAML.
    for half in ("", whole[:20], lines[0], "- targets: ["):
        file.write_text(half)
        await listed()
        atomically(whole)
        await listed()
        assert discoverer.backends is first
    atomically(lines[0])
    assert await listed() == ["a", "b"]
    assert await listed() == ["a"]
