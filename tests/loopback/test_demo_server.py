"""A simulated engine over real loopback sockets: answers, streams, hang-ups, and the faults of the program itself."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tailkeeper_demo.engine_server import EngineServer, LifeCycle, Phase
from tailkeeper_demo.engine_types import EngineParams
from tailkeeper_demo.faults import Fault, FaultError, FaultKind

FAST = replace(EngineParams(), step_base_s=0.002, noise_sigma=0.0, prefill_token_s=1e-7)
SLOW_ENOUGH_TO_CATCH = replace(FAST, step_base_s=0.01)
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def engine_with(params: EngineParams = FAST) -> EngineServer:
    walls = itertools.count(1_700_000_000, 10)
    life = LifeCycle(down_s=0.1, loading_s=0.3)
    return EngineServer(name="sim-t", model="tiny", params=params, seed=1, wall=lambda: float(next(walls)), life=life)


@pytest.fixture
async def engine() -> AsyncIterator[EngineServer]:
    server = engine_with()
    await server.start("127.0.0.1", 0)
    yield server
    await server.stop()


@pytest.fixture
async def client(engine: EngineServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=engine.url, timeout=5) as c:
        yield c


async def until(condition: Callable[[], bool], deadline_s: float = 5.0) -> None:
    """Let the loop turn until `condition` holds."""
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110  the condition is a remote program's, there is no event to wait for
            await asyncio.sleep(0.002)


async def metric(client: httpx.AsyncClient, name: str, **labels: str) -> float:
    page = (await client.get("/metrics")).text
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    raise AssertionError(f"{name} {labels} is not on the page")


def engine_lines(page: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith("vllm:")]


def events(body: str) -> list[str]:
    return [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]


async def test_a_completion_is_streamed_token_by_token_and_ends_with_done(client: httpx.AsyncClient) -> None:
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 7, "ignore_eos": True, "stream": True}
    answer = await client.post(COMPLETIONS, json=body, headers={"x-request-id": "abc-1"})
    *chunks, done = events(answer.text)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-request-id"] == "abc-1"
    assert done == "[DONE]"
    choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
    assert len(choices) == 7
    assert all(choice["text"] for choice in choices)
    assert [choice["finish_reason"] for choice in choices] == [None] * 6 + ["length"]
    assert {json.loads(chunk)["id"] for chunk in chunks} == {"cmpl-abc-1"}


async def test_a_chat_stream_opens_with_an_empty_role_event_that_is_no_token(client: httpx.AsyncClient) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "ignore_eos": True, "stream": True}
    answer = await client.post(CHAT, json=body | {"stream_options": {"include_usage": True}})
    first, *chunks, used, done = events(answer.text)
    assert json.loads(first)["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [bool(json.loads(chunk)["choices"][0]["delta"]["content"]) for chunk in chunks] == [True] * 3
    assert json.loads(used)["usage"]["completion_tokens"] == 3
    assert json.loads(used)["choices"] == []
    assert done == "[DONE]"


@pytest.mark.parametrize(
    ("extra", "reason", "tokens"),
    [({"x_output_tokens": 5, "max_tokens": 50}, "stop", 5), ({"x_output_tokens": 50, "max_tokens": 5}, "length", 5)],
)
async def test_a_whole_answer_has_text_usage_and_reason(
    client: httpx.AsyncClient, extra: dict[str, int], reason: str, tokens: int
) -> None:
    answer = (await client.post(COMPLETIONS, json={"prompt": "x", "x_prompt_tokens": 300} | extra)).json()
    assert answer["choices"][0]["finish_reason"] == reason
    assert answer["usage"] == {"prompt_tokens": 300, "total_tokens": 300 + tokens, "completion_tokens": tokens}
    assert answer["object"] == "text_completion"
    assert await metric(client, "vllm:request_success_total", finished_reason=reason) == 1
    assert await metric(client, "vllm:prompt_tokens_total") == 300
    assert await metric(client, "vllm:generation_tokens_total") == tokens


async def test_a_one_token_probe_is_answered_with_a_real_word(client: httpx.AsyncClient) -> None:
    answer = (await client.post(CHAT, json={"messages": [{"role": "user", "content": "ok?"}], "max_tokens": 1})).json()
    assert answer["choices"][0]["message"]["content"].strip()
    assert answer["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize(
    ("path", "content", "status", "kind"),
    [
        (COMPLETIONS, b"{not json", 400, "BadRequestError"),
        (COMPLETIONS, b"[]", 400, "BadRequestError"),
        (COMPLETIONS, b"{}", 400, "BadRequestError"),
        (COMPLETIONS, b'{"model": "nope", "prompt": "x"}', 404, "NotFoundError"),
        (COMPLETIONS, b'{"prompt": "x", "max_tokens": -1}', 400, "BadRequestError"),
        (COMPLETIONS, b'{"prompt": "x", "max_tokens": true}', 400, "BadRequestError"),
        (COMPLETIONS, b'{"prompt": "x", "max_tokens": 99999}', 400, "BadRequestError"),
        (COMPLETIONS, b'{"prompt": "x", "x_prompt_tokens": 99999}', 400, "BadRequestError"),
        (COMPLETIONS, b'{"prompt": "x", "n": 2}', 400, "BadRequestError"),
        (CHAT, b'{"messages": "hi"}', 400, "BadRequestError"),
    ],
)
async def test_a_wrong_request_gets_vllms_error_shape(
    client: httpx.AsyncClient, path: str, content: bytes, status: int, kind: str
) -> None:
    answer = await client.post(path, content=content)
    assert answer.status_code == status
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert (answer.json()["error"]["type"], answer.json()["error"]["code"]) == (kind, status)
    assert await metric(client, "http_requests_total", handler=path, status="4xx") == 1


async def test_the_small_endpoints_answer_as_vllms(client: httpx.AsyncClient) -> None:
    health = await client.get("/health")
    assert (health.status_code, health.content) == (200, b"")
    assert (await client.get("/version")).json() == {"version": "0.32.0"}
    (model,) = (await client.get("/v1/models")).json()["data"]
    assert (model["id"], model["owned_by"], model["max_model_len"]) == ("tiny", "vllm", FAST.max_model_len)
    assert (await client.get("/nowhere")).json() == {"detail": "Not Found"}
    assert (await client.get(COMPLETIONS)).status_code == 405


async def test_an_ordinary_request_id_is_kept_and_a_hostile_one_replaced(client: httpx.AsyncClient) -> None:
    for given, kept in (("req:1.a_b-c", True), ("x" * 300, False), ("a b", False), ("<script>", False)):
        answer = await client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 1}, headers={"x-request-id": given})
        assert (answer.headers["x-request-id"] == given) is kept
        assert answer.json()["id"] == f"cmpl-{answer.headers['x-request-id']}"


async def test_a_client_that_hangs_up_is_aborted_in_the_engine_and_counted_as_no_outcome(
    engine: EngineServer, client: httpx.AsyncClient
) -> None:
    body = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    async with client.stream("POST", COMPLETIONS, json=body) as answer:
        async for line in answer.aiter_lines():
            if line:
                break
        assert engine.in_flight == 1
    await until(lambda: engine.in_flight == 0)
    produced = await metric(client, "vllm:generation_tokens_total")
    assert produced < 4000
    for reason in ("stop", "length", "abort"):
        assert await metric(client, "vllm:request_success_total", finished_reason=reason) == 0
    assert await metric(client, "vllm:kv_cache_usage_perc") == 0
    assert await metric(client, "http_requests_total", handler=COMPLETIONS, status="2xx") == 1


async def test_a_hung_engine_says_healthy_answers_metrics_and_gives_nothing(
    engine: EngineServer, client: httpx.AsyncClient
) -> None:
    running = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 2000, "ignore_eos": True}))
    await until(lambda: engine.generated_tokens > 3)
    engine.inject(Fault(FaultKind.HANG, 30))
    await until(lambda: engine.fault is not None)
    async with client.stream("POST", COMPLETIONS, json={"prompt": "x", "stream": True}) as accepted:
        assert accepted.status_code == 200
        before = engine_lines((await client.get("/metrics")).text)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await anext(accepted.aiter_bytes())
        after = engine_lines((await client.get("/metrics")).text)
    assert (await client.get("/health")).status_code == 200
    assert before == after
    assert await metric(client, "vllm:num_requests_running") == 1
    engine.clear()
    await until(lambda: engine.generated_tokens > 20)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_errors_answer_a_share_of_completions_with_500_that_only_http_counts_show(
    engine: EngineServer, client: httpx.AsyncClient
) -> None:
    engine.inject(Fault(FaultKind.ERRORS, 30, ratio=0.6))
    answers = [await client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 1}) for _ in range(150)]
    failed = [answer for answer in answers if answer.status_code == 500]
    assert 70 <= len(failed) <= 110
    assert failed[0].json()["error"]["code"] == 500
    assert await metric(client, "http_requests_total", handler=COMPLETIONS, status="5xx") == len(failed)
    succeeded = sum([await metric(client, "vllm:request_success_total", finished_reason=r) for r in ("stop", "length")])
    assert succeeded == 150 - len(failed)
    assert await metric(client, "vllm:request_success_total", finished_reason="error") == 0
    engine.clear()
    assert (await client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 1})).status_code == 200


async def test_a_restart_cuts_streams_refuses_connections_loads_and_counts_from_zero(
    engine: EngineServer, client: httpx.AsyncClient
) -> None:
    await client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 3})
    started = await metric(client, "process_start_time_seconds")
    async with client.stream("POST", COMPLETIONS, json={"prompt": "x", "max_tokens": 4000, "stream": True}) as answer:
        engine.inject(Fault(FaultKind.RESTART, 0.1))
        with pytest.raises(httpx.HTTPError):
            await answer.aread()
    assert engine.phase is Phase.DOWN
    with pytest.raises(httpx.ConnectError):
        await client.get("/health")
    await until(lambda: engine.phase is Phase.LOADING)
    loading = await client.get("/health")
    assert (loading.status_code, loading.json()) == (503, {"status": "loading"})
    assert (await client.post(COMPLETIONS, json={"prompt": "x"})).status_code == 503
    await until(lambda: engine.phase is Phase.SERVING)
    assert (await client.get("/health")).status_code == 200
    assert await metric(client, "vllm:generation_tokens_total") == 0
    assert await metric(client, "process_start_time_seconds") > started
    assert 'status="2xx"' not in (await client.get("/metrics")).text, "what the old process answered is forgotten"
    assert engine.fault is None


async def test_no_fault_can_be_injected_into_an_engine_that_is_down(engine: EngineServer) -> None:
    engine.inject(Fault(FaultKind.RESTART, 5.0))
    await until(lambda: engine.phase is Phase.DOWN)
    with pytest.raises(FaultError, match="sim-t is down"):
        engine.inject(Fault(FaultKind.SLOW, 5.0))


async def test_clearing_a_restart_brings_the_engine_back_early(engine: EngineServer) -> None:
    engine.inject(Fault(FaultKind.RESTART, 600.0))
    await until(lambda: engine.phase is Phase.DOWN)
    engine.clear()
    await until(lambda: engine.phase is Phase.SERVING)


async def test_a_fault_ends_by_itself(engine: EngineServer) -> None:
    engine.inject(Fault(FaultKind.SLOW, 0.1))
    assert engine.fault is not None
    await until(lambda: engine.fault is None)


async def test_a_full_queue_answers_503_as_vllm_does() -> None:
    server = engine_with(replace(SLOW_ENOUGH_TO_CATCH, max_running=1, max_queued=2))
    await server.start("127.0.0.1", 0)
    try:
        async with httpx.AsyncClient(base_url=server.url, timeout=5) as client:
            body = {"prompt": "x", "max_tokens": 20, "ignore_eos": True}
            answers = await asyncio.gather(*(client.post(COMPLETIONS, json=body) for _ in range(12)))
            refused = [answer for answer in answers if answer.status_code == 503]
            assert refused
            assert "currently busy" in refused[0].json()["error"]["message"]
            assert await metric(client, "vllm:admission_rejections_total", reason="max_num_queued_reqs") == len(refused)
    finally:
        await server.stop()
