"""One simulated engine as a program on a port: vLLM's HTTP surface, its life cycle, and its faults.

It answers completions (streamed or whole), `/v1/models`, `/health`, `/version` and `/metrics` as vLLM 0.32.0 does, and goes
through serving → down → loading → serving when it restarts, counters and start time new. It decides nothing about
scheduling (that is `engine`) and renders nothing itself (`openai_api`, `engine_page`).
Data flows HTTP request → `EngineDriver` → tokens → HTTP reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from tailkeeper_demo import engine_page, openai_api
from tailkeeper_demo.engine import Engine
from tailkeeper_demo.engine_driver import EngineDriver
from tailkeeper_demo.engine_stats import FinishReason
from tailkeeper_demo.engine_types import Arrival, EngineParams, QueueFullError, Token, UnservableError
from tailkeeper_demo.faults import Fault, FaultError, FaultKind
from tailkeeper_demo.http1 import Request
from tailkeeper_demo.http_server import HttpServer, Reply

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_UNCOUNTED = frozenset({"/health", "/metrics", "/version"})
"""Handlers vLLM leaves out of `http_requests_total`."""
_ANSWER_MU, _ANSWER_SIGMA = 4.5, 0.8
"""Lognormal length of an answer nobody gave a length for: median 90 tokens, 95 % below 340."""
_REBIND_PAUSE_S = 0.25

_BUSY = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
_BROKEN = "EngineCore encountered an issue. See stack trace (above) for the root cause."


def _prompt_key(request: Request) -> str | None:
    """`x-simulated-prompt`: a load driver need not send a prompt's text, only which prompts are the same."""
    key = request.headers.get("x-simulated-prompt", "")
    return key if _REQUEST_ID.fullmatch(key) else None


class Phase(StrEnum):
    """Where in its life an engine process is."""

    SERVING = "serving"
    LOADING = "loading"
    """Listens, answers 503 on /health; its weights are on their way to the GPU."""
    DOWN = "down"
    """Nobody listens."""


@dataclass(frozen=True, slots=True)
class LifeCycle:
    """How long a killed engine stays away, when nothing else is asked for, and how long it loads."""

    down_s: float = 3.0
    loading_s: float = 3.0


@dataclass(frozen=True, slots=True)
class EngineReading:
    """What the GPU under an engine feels of it."""

    phase: Phase
    gpu_active_s: float
    """Integral of utilisation since the process started; falls back to 0 on a restart."""
    leaked_ratio: float
    """Share of the KV pool's size that something else holds (the `oom` fault)."""
    clock_ratio: float = 1.0
    """Share of its clock that the GPU has left (the `throttle` fault)."""
    overheats: bool = False
    """Its cooling fails (the `throttle` fault)."""
    unreadable: bool = False
    """Nobody gets an answer about it (the `blind` fault)."""


@dataclass(slots=True, eq=False)
class _Live:
    """A completion in progress."""

    call: openai_api.Call
    reply: Reply
    events: openai_api.Events
    public_id: str
    created_unix_s: int


class EngineServer:
    """A simulated engine. All methods belong to the event loop's thread."""

    def __init__(
        self, *, name: str, model: str, params: EngineParams, seed: int, wall: Callable[[], float], life: LifeCycle | None = None
    ) -> None:
        self.name = name
        self.model = model
        self.phase = Phase.DOWN
        self.fault: Fault | None = None
        self._params = params
        self._rng = random.Random(seed)
        self._wall = wall
        self._life = life or LifeCycle()
        self._http = HttpServer(self._handle)
        self._http_counts: Counter[tuple[str, str, str]] = Counter()
        self._live: dict[str, _Live] = {}
        self._sequence = 0
        self._fault_end: asyncio.TimerHandle | None = None
        self._revive = asyncio.Event()
        self._cycle: asyncio.Task[None] | None = None
        self._host, self._port = "", 0
        self._identity = engine_page.PageIdentity(model, params, wall())
        self._driver: EngineDriver | None = None
        self._routes: dict[tuple[str, str], Callable[[Request, Reply], None]] = {
            ("GET", "/health"): self._health,
            ("GET", "/version"): lambda _, reply: reply.send_json(200, openai_api.VERSION),
            ("GET", "/metrics"): self._metrics,
            ("GET", "/v1/models"): self._models,
            ("POST", "/v1/completions"): lambda request, reply: self._completion(request, reply, chat=False),
            ("POST", "/v1/chat/completions"): lambda request, reply: self._completion(request, reply, chat=True),
        }

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self, host: str, port: int) -> None:
        """Start a warm engine on `host:port` (0: any free port). Raises `OSError` when the address cannot be had."""
        self._new_process()
        self._host, self._port = host, await self._http.listen(host, port)
        self.phase = Phase.SERVING

    @property
    def url(self) -> str:
        """Base URL. An engine that listens on all addresses is named by its loopback one."""
        return f"http://{'127.0.0.1' if self._host == '0.0.0.0' else self._host}:{self._port}"

    async def stop(self) -> None:
        """End for good."""
        self.clear()
        if self._cycle is not None:
            self._cycle.cancel()
            await asyncio.gather(self._cycle, return_exceptions=True)
        self._die()

    def reading(self) -> EngineReading:
        """What the GPU file is made of."""
        if self._driver is None:
            return EngineReading(self.phase, 0.0, 0.0)
        engine = self._driver.engine
        leaked = engine.reserved_blocks / self._params.kv_blocks
        return EngineReading(
            self.phase,
            self._driver.gpu_active_s(),
            leaked,
            self._driver.clock_ratio(),
            overheats=self._has(FaultKind.THROTTLE),
            unreadable=self._has(FaultKind.BLIND),
        )

    def _has(self, kind: FaultKind) -> bool:
        return self.fault is not None and self.fault.kind is kind

    @property
    def in_flight(self) -> int:
        """Requests inside the engine; 0 while it is down."""
        return 0 if self._driver is None else self._driver.engine.in_flight

    @property
    def generated_tokens(self) -> int:
        """Tokens since the process started."""
        return 0 if self._driver is None else self._driver.engine.stats.generation_tokens

    def _new_process(self) -> None:
        loop = asyncio.get_running_loop()
        engine = Engine(self._params, random.Random(self._rng.random()))
        self._driver = EngineDriver(engine, loop, self._deliver, self._out_of_memory)
        self._identity = engine_page.PageIdentity(self.model, self._params, self._wall())
        self._http_counts.clear()

    def _die(self) -> None:
        self.phase = Phase.DOWN
        self._http.stop_listening()
        if self._driver is not None:
            self._driver.stop()
            self._driver = None
        self._live.clear()
        self._http.cut_connections()

    async def _restart(self, down_s: float) -> None:
        """Die at once, listen again after `down_s` (or when the fault is cleared), serve after loading."""
        self._die()
        self._revive.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._revive.wait(), down_s)
        self._new_process()
        await self._listen_again()
        self.phase = Phase.LOADING
        await asyncio.sleep(self._life.loading_s)
        self.phase = Phase.SERVING

    async def _listen_again(self) -> None:
        """Take the old port again. Someone else may hold it for a moment; the engine has no other address to go to."""
        while True:
            try:
                await self._http.listen(self._host, self._port)
                return
            except OSError:
                await asyncio.sleep(_REBIND_PAUSE_S)

    # -- faults -------------------------------------------------------------------------------------------------------

    def inject(self, fault: Fault) -> None:
        """Replace the active fault by this one. Raises `FaultError` while the engine is down or loading."""
        if self.phase is not Phase.SERVING:
            raise FaultError(f"{self.name} is {self.phase}: a fault can be injected only into an engine that serves")
        self.clear()
        self.fault = fault
        self._fault_end = asyncio.get_running_loop().call_later(fault.duration_s, self.clear)
        if fault.kind is FaultKind.RESTART:
            self._begin_restart(fault.duration_s)
        elif self._driver is not None:
            self._driver.set_fault(fault)

    def clear(self) -> None:
        """End the active fault, if any. An engine that is down comes back at once, through loading."""
        self.fault = None
        self._revive.set()
        if self._fault_end is not None:
            self._fault_end.cancel()
            self._fault_end = None
        if self._driver is not None:
            self._driver.set_fault(None)

    def _begin_restart(self, down_s: float) -> None:
        self._cycle = asyncio.get_running_loop().create_task(self._restart(down_s))

    def _out_of_memory(self) -> None:
        """The operating system killed the process; the memory that leaked is free again."""
        self.clear()
        self._begin_restart(self._life.down_s)

    # -- HTTP -----------------------------------------------------------------------------------------------------------

    def _handle(self, request: Request, reply: Reply) -> None:
        route = self._routes.get((request.method, request.path))
        if route is None:
            known = any(path == request.path for _, path in self._routes)
            reply.send_json(405 if known else 404, {"detail": "Method Not Allowed" if known else "Not Found"})
            return
        if request.path not in _UNCOUNTED:
            reply.on_close = lambda: self._count(request, reply)
        if self.phase is Phase.LOADING and request.path.startswith("/v1/"):
            reply.send_json(503, openai_api.ApiError(503, "Service Unavailable", "Loading model").document)
            return
        route(request, reply)

    def _count(self, request: Request, reply: Reply) -> None:
        if reply.status == 0:
            return  # The client left before anything was answered.
        self._http_counts[request.path, request.method, f"{reply.status // 100}xx"] += 1

    def _health(self, _: Request, reply: Reply) -> None:
        if self.phase is Phase.SERVING:
            reply.send(200)
        else:
            reply.send_json(503, {"status": "loading"})

    def _metrics(self, _: Request, reply: Reply) -> None:
        if self._driver is None:
            reply.send(503)
            return
        if self._has(FaultKind.BLIND):
            return  # Never answered; the reader's own patience ends it.
        engine = self._driver.engine
        page = engine_page.render(engine.stats, engine.gauges, self._identity, self._http_counts)
        reply.send(200, page, engine_page.CONTENT_TYPE)

    def _models(self, _: Request, reply: Reply) -> None:
        started = int(self._identity.started_unix_s)
        reply.send_json(200, openai_api.models(self.model, self._params.max_model_len, started))

    def _completion(self, request: Request, reply: Reply, *, chat: bool) -> None:
        try:
            self._accept(request, reply, chat=chat)
        except openai_api.ApiError as error:
            reply.send_json(error.status, error.document)

    def _accept(self, request: Request, reply: Reply, *, chat: bool) -> None:
        fault = self.fault
        if self._driver is None or (fault and fault.kind is FaultKind.ERRORS and self._rng.random() < fault.ratio):
            raise openai_api.ApiError(500, "Internal Server Error", _BROKEN)
        call = openai_api.parse_call(request.body, chat=chat, model=self.model, max_model_len=self._params.max_model_len)
        self._sequence += 1
        key = str(self._sequence)
        self._submit(key, call, _prompt_key(request))
        public_id, echoed = self._public_id(request, chat=chat)
        created = int(self._wall())
        events = openai_api.Events(call, public_id, self.model, created)
        self._live[key] = _Live(call, reply, events, public_id, created)
        reply.on_close = lambda: self._closed(key, request, reply)
        if call.stream:
            reply.start(200, "text/event-stream; charset=utf-8", {"x-request-id": echoed})

    def _public_id(self, request: Request, *, chat: bool) -> tuple[str, str]:
        """Answer id and request id: the client's own where it is ordinary, else a new one."""
        given = request.headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else f"{self._rng.getrandbits(64):016x}"
        return f"{'chatcmpl' if chat else 'cmpl'}-{request_id}", request_id

    def _submit(self, key: str, call: openai_api.Call, prompt_key: str | None) -> None:
        assert self._driver is not None
        length, finish = self._answer_length(call)
        arrived_s = asyncio.get_running_loop().time()
        try:
            self._driver.submit(Arrival(key, call.prompt_tokens, length, finish, arrived_s, prompt_key))
        except QueueFullError as error:
            raise openai_api.ApiError(503, "Service Unavailable", _BUSY) from error
        except UnservableError as error:
            raise openai_api.ApiError(400, "BadRequestError", str(error)) from error

    def _answer_length(self, call: openai_api.Call) -> tuple[int, FinishReason]:
        if call.ignore_eos:
            return call.max_tokens, FinishReason.LENGTH
        natural = call.output_tokens or max(1, round(self._rng.lognormvariate(_ANSWER_MU, _ANSWER_SIGMA)))
        if natural > call.max_tokens:
            return call.max_tokens, FinishReason.LENGTH
        return natural, FinishReason.STOP

    def _closed(self, key: str, request: Request, reply: Reply) -> None:
        self._live.pop(key, None)
        self._count(request, reply)
        if reply.lost and self._driver is not None:
            self._driver.abort(key)

    def _deliver(self, tokens: list[Token]) -> None:
        for token in tokens:
            live = self._live.get(token.request_id)
            if live is not None:
                self._send(live, token)

    def _send(self, live: _Live, token: Token) -> None:
        if not live.call.stream:
            if token.finish is not None:
                done = openai_api.Answer(live.public_id, self.model, live.created_unix_s, token.index + 1, token.finish)
                request_id = live.public_id.partition("-")[2]
                live.reply.send_json(200, openai_api.whole(live.call, done), {"x-request-id": request_id})
            return
        event = live.events.token(token.index, token.finish)
        if token.index == 0:
            event = live.events.opening() + event
        if token.finish is None:
            live.reply.write(event)
        else:
            live.reply.write(event + live.events.closing(token.index + 1))
            live.reply.end()
