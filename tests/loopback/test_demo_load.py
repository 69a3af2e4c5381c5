"""The load generator against real loopback servers: what it measures, what it counts, what it refuses to send."""

from __future__ import annotations

import asyncio
import io
import json
import random
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from tailkeeper_demo.engine_server import EngineServer
from tailkeeper_demo.engine_types import EngineParams
from tailkeeper_demo.faults import Fault, FaultKind
from tailkeeper_demo.http1 import Request
from tailkeeper_demo.http_server import Handler, HttpServer, Reply
from tailkeeper_demo.load import LoadGenerator, LoadSettings, main
from tailkeeper_demo.load_stats import LoadStats
from tailkeeper_demo.trace import Caps, Source, TraceRow

EVENT = 'data: {"choices":[{"index":0,"text":"%s"}]}\n\n'
ROLE = 'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
DONE = "data: [DONE]\n\n"


def settings_for(port: int, **changes: float) -> LoadSettings:
    base = LoadSettings("127.0.0.1", port, 100, None, 1, 0.25, 0.6, 400, "tiny", Caps())
    return replace(base, **changes)  # type: ignore[arg-type]


def rows(count: int, gap_s: float = 0.01) -> Iterator[TraceRow]:
    return (TraceRow(number * gap_s, 100, 5) for number in range(count))


async def drive(settings: LoadSettings, count: int, source: Source = Source.ONLINE) -> Mapping[str, object]:
    stats = LoadStats(rate_per_s=100, slo_ttft_s=settings.slo_ttft_s, started_unix_s=1000.0)
    generator = LoadGenerator(settings, (replace(row, source=source) for row in rows(count)), stats)
    await asyncio.wait_for(generator.run(), 10)
    totals = stats.document(generator.run_s(), done=True)["totals"]
    assert isinstance(totals, dict)
    return totals


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[int]:
    server = HttpServer(handler)
    yield await server.listen("127.0.0.1", 0)
    server.stop_listening()
    server.cut_connections()


def later(seconds: float, action: Handler) -> Handler:
    def answer(request: Request, reply: Reply) -> None:
        asyncio.get_running_loop().call_later(seconds, action, request, reply)

    return answer


def stream(*parts: str, end: bool = True) -> Handler:
    def answer(_: Request, reply: Reply) -> None:
        reply.start(200, "text/event-stream")
        for part in parts:
            reply.write(part.encode())
        if end:
            reply.end()

    return answer


async def test_a_complete_stream_is_ok_and_within_the_service_level() -> None:
    async with serving(stream(EVENT % "a", EVENT % "b", DONE)) as port:
        totals = await drive(settings_for(port), 20)
    assert (totals["sent"], totals["ok"], totals["within_slo"], totals["missed_slo"]) == (20, 20, 20, 0)
    assert totals["errors"] == totals["timeouts"] == totals["in_flight"] == 0


async def test_headers_and_role_events_are_no_first_token() -> None:
    """TTFT runs to the first event with content: here 0.1 s after headers, role and an empty text."""

    def answer(_: Request, reply: Reply) -> None:
        reply.start(200, "text/event-stream")
        reply.write((ROLE + EVENT % "" + ": ping\n\n").encode())
        asyncio.get_running_loop().call_later(0.1, finish, reply)

    def finish(reply: Reply) -> None:
        reply.write((EVENT % "a" + DONE).encode())
        reply.end()

    async with serving(answer) as port:
        totals = await drive(settings_for(port), 5)
    assert totals["ok"] == 5
    p50 = totals["ttft_p50"]
    assert isinstance(p50, float)
    assert 0.1 <= p50 < 0.2


async def test_content_cut_in_the_middle_of_a_packet_is_still_found() -> None:
    whole = EVENT % "abc" + DONE
    async with serving(stream(*(whole[i : i + 3] for i in range(0, len(whole), 3)))) as port:
        totals = await drive(settings_for(port), 5)
    assert totals["ok"] == 5


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (lambda _, reply: reply.send(500, b"{}"), "http_500"),
        (stream(EVENT % "a"), "truncated"),
        (stream(DONE), "truncated"),
        (lambda _, reply: reply.send(200, b"not a stream", "text/plain"), "truncated"),
    ],
)
async def test_an_answer_that_is_no_whole_stream_is_an_error_with_its_kind(answer: Handler, kind: str) -> None:
    async with serving(answer) as port:
        totals = await drive(settings_for(port), 5)
    assert (totals["ok"], totals["errors"], totals["errors_by_kind"]) == (0, 5, {kind: 5})


async def test_a_refused_connection_is_an_error_and_missed_the_service_level() -> None:
    async with serving(stream(DONE)) as port:
        pass
    totals = await drive(settings_for(port), 5)
    assert (totals["errors"], totals["errors_by_kind"], totals["missed_slo"]) == (5, {"connect": 5}, 5)


async def test_silence_misses_the_service_level_when_the_limit_passes_and_times_out_later() -> None:
    stats = LoadStats(rate_per_s=100, slo_ttft_s=0.1, started_unix_s=1000.0)
    async with serving(stream(end=False)) as port:
        generator = LoadGenerator(settings_for(port, slo_ttft_s=0.1, timeout_s=0.5), rows(4, 0.0), stats)
        running = asyncio.create_task(generator.run())
        await asyncio.sleep(0.25)
        early = stats.document(generator.run_s(), done=False)["totals"]
        await asyncio.wait_for(running, 5)
    late = stats.document(generator.run_s(), done=True)["totals"]
    assert isinstance(early, dict)
    assert isinstance(late, dict)
    assert (early["missed_slo"], early["timeouts"], early["in_flight"]) == (4, 0, 4)
    assert (late["missed_slo"], late["timeouts"], late["in_flight"]) == (4, 4, 0)


async def test_a_late_answer_is_ok_but_missed() -> None:
    async with serving(later(0.3, stream(EVENT % "a", DONE))) as port:
        totals = await drive(settings_for(port), 3)
    assert (totals["ok"], totals["within_slo"], totals["missed_slo"]) == (3, 0, 3)


@pytest.mark.parametrize(("slo_s", "within"), [(5.0, 3), (0.1, 0)])
async def test_a_whole_answer_is_judged_at_its_end_and_has_no_first_token(slo_s: float, within: int) -> None:
    seen: list[tuple[object, str | None]] = []

    def answer(request: Request, reply: Reply) -> None:
        seen.append((json.loads(request.body)["stream"], request.headers.get("x-priority")))
        reply.send_json(200, {"choices": [{"text": "an answer"}]})

    async with serving(later(0.2, answer)) as port:
        totals = await drive(settings_for(port, slo_ttft_s=0.05, slo_whole_s=slo_s), 3, Source.ROLLOUT)
    assert (totals["ok"], totals["within_slo"], totals["missed_slo"], totals["ttft_samples"]) == (3, within, 3 - within, 0)
    assert totals["by_source"] == {"rollout": {"within_slo": within, "missed_slo": 3 - within}}
    assert seen == [(False, "low")] * 3


async def test_a_whole_answer_without_text_is_an_error() -> None:
    async with serving(lambda _, reply: reply.send_json(200, {"choices": []})) as port:
        totals = await drive(settings_for(port), 3, Source.EVALUATION)
    assert (totals["ok"], totals["errors"], totals["missed_slo"]) == (0, 3, 3)


async def test_sends_beyond_the_bound_are_refused_and_counted() -> None:
    async with serving(stream(end=False)) as port:
        totals = await drive(settings_for(port, max_in_flight=3), 10)
    assert (totals["sent"], totals["refused"], totals["timeouts"]) == (3, 7, 3)


async def test_what_is_in_flight_when_the_run_stops_is_aborted_and_judged_by_nobody() -> None:
    stats = LoadStats(rate_per_s=100, slo_ttft_s=5, started_unix_s=1000.0)
    async with serving(stream(end=False)) as port:
        generator = LoadGenerator(settings_for(port, slo_ttft_s=5, timeout_s=5), rows(4, 0.0), stats)
        running = asyncio.create_task(generator.run())
        await asyncio.sleep(0.1)
        generator.stop()
        await asyncio.wait_for(running, 5)
    totals = stats.document(generator.run_s(), done=True)["totals"]
    assert isinstance(totals, dict)
    assert (totals["aborted"], totals["in_flight"], totals["missed_slo"], totals["errors"]) == (4, 0, 0, 0)


async def test_engine_and_load_agree_on_every_request() -> None:
    params = replace(EngineParams(), step_base_s=0.002, noise_sigma=0.0)
    engine = EngineServer(name="sim-a", model="tiny", params=params, seed=random.Random(1).getrandbits(16), wall=lambda: 1.7e9)
    await engine.start("127.0.0.1", 0)
    engine.inject(Fault(FaultKind.ERRORS, 60, ratio=0.3))
    totals = await drive(settings_for(int(engine.url.rsplit(":", 1)[1])), 60)
    generated = engine.generated_tokens
    await engine.stop()
    assert totals["sent"] == 60
    assert totals["errors_by_kind"] == {"http_500": totals["errors"]}
    assert isinstance(totals["ok"], int)
    assert totals["ok"] < 60
    assert generated == 5 * totals["ok"]


@pytest.mark.parametrize(
    "arguments",
    [["--target", "ftp://x"], ["--target", "http://x:1", "--rate", "0"], ["--target", "http://x:1", "--max-in-flight", "0"], []],
)
def test_wrong_usage_ends_with_exit_code_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


async def test_every_request_leaves_a_line_of_what_its_user_saw() -> None:
    def answer(_: Request, reply: Reply) -> None:
        reply.start(200, "text/event-stream")
        reply.write((EVENT % "x" + DONE).encode())
        reply.end()

    record = io.StringIO()
    async with serving(answer) as port:
        settings = settings_for(port)
        stats = LoadStats(rate_per_s=100, slo_ttft_s=settings.slo_ttft_s, started_unix_s=1000.0)
        await asyncio.wait_for(LoadGenerator(settings, rows(3), stats, record).run(), 10)
    seen = [json.loads(line) for line in record.getvalue().splitlines()]
    assert [line["outcome"] for line in seen] == ["ok"] * 3
    for line in seen:
        assert 1000.0 <= line["start_s"] <= line["judged_s"] <= line["end_s"] < 1010.0
        assert line["within"] is True
        assert line["ttft_s"] == pytest.approx(line["judged_s"] - line["start_s"], abs=0.05)
