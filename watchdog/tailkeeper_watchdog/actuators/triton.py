"""Triton's dynamic batching: how long a model waits to fill a batch. One knob, `batch_window_s`; a server is a model's name.

Triton changes a configuration only by loading the model anew with all of it: a part of one answers 200 and leaves a model without
inputs, so the whole configuration is read, one number in it changed, and all of it sent back. Its requests wait meanwhile (1.6
to 2.3 s for a small model; none fails). So a model rests after each load, in proportion to how long it took, and one that loads
slowly is not steered at all. Only the value from before our first change is written back at any time.

What is remembered of a model is its load that is under way, how long the last one took, and that value; never what is in force.
Triton goes on loading when the client hangs up: while a load of ours is not over, its window is unknown.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators.calls import CallError, excerpt, turn
from tailkeeper_watchdog.actuators.contract import Actuator, ActuatorError, ErrorKind, ServerState, Support
from tailkeeper_watchdog.actuators.http_calls import CALLS_AT_ONCE, Answer, HttpCalls, segment
from tailkeeper_watchdog.actuators.replicas import replicated
from tailkeeper_watchdog.gateways import Gateway, TritonGateway
from tailkeeper_watchdog.model import EMPTY, Knob, KnobValue

KIND = "triton"
ANSWER_LIMIT_BYTES = 1024 * 1024
"""A configuration is some kilobytes; one with hundreds of inputs and warm-up samples stays below this."""
MICROSECONDS = 1e6
WINDOW_LIMIT_S = 3_600.0
"""No window is longer; beyond it a number is a mistake of units."""
LOAD_LIMIT_S = 600.0
"""When an answer to a load is given up."""
LOST_ANSWER_S = 60.0
"""How long a load is looked for when the connection broke before its answer, as one behind a load balancer may."""
LOST_ANSWER_EVERY_S = 0.5
WAITED_FOR_S = 4.0
"""A read waits for a load of ours this long after it began: the deadlines of a write and of its reading back together."""
READING_S = 0.3
"""Of a read's deadline, kept for reading after that wait."""
READY_EVERY_S = 0.05
MODE_HOLDS_S = 300.0
NOBODY = "tailkeeper-asks-whether-models-may-be-loaded"
"""A model that is in no repository: asked to load it, Triton says whether it would load any, and loads none."""
MAX_MODELS = 1_000
"""Models remembered; the one that has not been written for longest is forgotten first."""

WHY_NOT: Mapping[Knob, str] = {
    Knob.WEIGHT: "Triton answers whoever asks it and has nobody to send traffic to instead",
    Knob.ADMISSION: "Triton can only unload a model, and then requests fail: that is no drain",
    Knob.CONCURRENCY_LIMIT: "Triton has no limit that can be set while it runs",
    Knob.CACHE_MODE: "Triton's response cache is chosen when the server starts",
    Knob.DEGRADE_LEVEL: "Triton knows no kinds of work to shed",
    Knob.REPLICAS: "Triton does not start or stop servers",
    Knob.TAINT: "Triton knows nothing of cluster nodes",
    Knob.ANNOTATION: "Triton keeps no notes",
}
"""Every other knob can be turned."""
NO_BATCHING = "the model has no dynamic_batching in its configuration, so there is no window"
NOT_EXPLICIT = "Triton loads models by itself here: a window can only be set with --model-control-mode explicit"


def window_of(config: Mapping[str, Any]) -> float | None:
    """The window of a model's configuration in seconds; None where it batches nothing. Raises CallError(PROTOCOL)."""
    batching = config.get("dynamic_batching")
    if batching is None:
        return None
    delay = batching.get("max_queue_delay_microseconds", 0) if isinstance(batching, dict) else None
    if not isinstance(delay, int) or isinstance(delay, bool) or delay < 0:
        raise CallError(ErrorKind.PROTOCOL, f"dynamic_batching is {excerpt(repr(batching))}, without microseconds")
    return delay / MICROSECONDS


def _microseconds(window_s: float) -> int:
    """As Triton keeps it."""
    return round(window_s * MICROSECONDS)


def with_window(config: Mapping[str, Any], window_s: float) -> dict[str, Any]:
    """The whole configuration with another window, to the microsecond."""
    return {
        **config,
        "dynamic_batching": {**config["dynamic_batching"], "max_queue_delay_microseconds": _microseconds(window_s)},
    }


def wanted_window(values: Mapping[Knob, KnobValue]) -> float | None:
    """The window in ``values``, in seconds; None where there are none. Raises CallError(REFUSED)."""
    for knob in values:
        if knob in WHY_NOT:
            raise CallError(ErrorKind.REFUSED, WHY_NOT[knob])
    value = values.get(Knob.BATCH_WINDOW_S)
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= WINDOW_LIMIT_S:
        said = f"{excerpt(repr(value))} is refused; it must be seconds from 0 to {WINDOW_LIMIT_S:g}"
        raise CallError(ErrorKind.REFUSED, f"{Knob.BATCH_WINDOW_S.value}: {said}")
    return float(value)


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a model may be loaded. Seconds, but for ``rest_times``."""

    rest_s: float = 10.0
    rest_times: float = 30.0
    """After a load of 2 s a model rests for 60 s, so that its requests wait in loads for 3 % of the time at most."""
    slow_load_s: float = 5.0
    """Nobody's first token is worth a load longer than this: such a model is not steered again."""


@dataclass(slots=True)
class _Model:
    """What is remembered of one model. Loop times in seconds."""

    home: float | None = None
    """The window from before our first change; None while nothing of ours is there."""
    load: asyncio.Task[CallError | None] | None = None
    began_at: float = -math.inf
    ended_at: float = -math.inf
    took_s: float = 0.0
    """By the last load that worked."""

    @property
    def loading(self) -> bool:
        return self.load is not None and not self.load.done()

    def rests(self, pace: Pace, now: float) -> bool:
        return now < self.ended_at + max(pace.rest_s, pace.rest_times * self.took_s)

    def note(self, before: float, window: float) -> None:
        """A load has put ``window`` where ``before`` was. Seconds."""
        self.took_s = self.ended_at - self.began_at
        home = before if self.home is None else self.home
        self.home = None if window == home else home


PACE = Pace()


class TritonActuator:
    """One Triton server. Satisfies ``Actuator``."""

    kind = KIND

    def __init__(self, name: str, url: str, auth: Auth, pace: Pace = PACE, looks_only: bool = False) -> None:
        self.name = name
        self._url = url
        self._pace = pace
        self._http = HttpCalls(auth, ANSWER_LIMIT_BYTES)
        self._models: dict[str, _Model] = {}
        self._loads: tuple[bool, float] | None = (True, math.inf) if looks_only else None
        """Whether models can be loaded here, and when that was asked, which is a try; who only looks takes it for granted."""
        self._asking = asyncio.Lock()
        self._lock = asyncio.Lock()

    def supports(self, knob: Knob) -> Support:
        return Support(False, WHY_NOT[knob]) if knob in WHY_NOT else Support(True)

    async def read(self, servers: tuple[str, ...], deadline_s: float) -> Mapping[str, ServerState]:
        """A model that cannot be read, or is being loaded by us, is given with no values and the reason as its doubt."""
        async with turn(self._lock, self.name, "*", deadline_s) as ends_at:
            gate = asyncio.Semaphore(CALLS_AT_ONCE)
            found = await asyncio.gather(*(self._state(server, gate, ends_at) for server in servers))
        errors = [answer for answer in found if isinstance(answer, ActuatorError)]
        if errors and len(errors) == len(found):
            raise errors[0]
        states = [ServerState({}, doubt=str(answer)) if isinstance(answer, ActuatorError) else answer for answer in found]
        return {server: state for server, state in zip(servers, states, strict=True) if state is not None}

    async def _state(self, server: str, gate: asyncio.Semaphore, ends_at: float) -> ServerState | ActuatorError | None:
        """None for a model that is not there. One that fails does not spoil the others."""
        try:
            async with asyncio.timeout_at(ends_at), gate:
                model = self._models.get(server, _Model())
                if model.loading and not await self._loaded(model, ends_at - READING_S):
                    began_s = self._now() - model.began_at
                    return ServerState({}, doubt=f"a load of ours has begun {began_s:.0f} s ago and is not over")
                return await self._seen(server, model)
        except CallError as error:
            return None if error.kind is ErrorKind.NOT_FOUND else error.of(self.name, server)
        except TimeoutError:
            return ActuatorError(ErrorKind.TIMEOUT, self.name, server, "no answer before the deadline")

    async def _loaded(self, model: _Model, until: float) -> bool:
        wait_s = min(until, model.began_at + WAITED_FOR_S) - self._now()
        if wait_s > 0 and model.load is not None:
            await asyncio.wait((model.load,), timeout=wait_s)
        return not model.loading

    async def _seen(self, server: str, model: _Model) -> ServerState:
        window = window_of(await self._config(server))
        ready = await self._ready(server)
        if window is None:
            return ServerState({}, in_service=ready, cannot={Knob.BATCH_WINDOW_S: NO_BATCHING})
        why = await self._why_not_now(model)
        return ServerState({Knob.BATCH_WINDOW_S: window}, in_service=ready, cannot={Knob.BATCH_WINDOW_S: why} if why else EMPTY)

    async def _why_not_now(self, model: _Model) -> str:
        """Why the window should not be changed now; empty where it may be."""
        if not await self._may_load():
            return NOT_EXPLICIT
        if model.took_s > self._pace.slow_load_s:
            return (
                f"the model took {model.took_s:.0f} s to load, and its requests wait meanwhile: what takes longer than "
                f"{self._pace.slow_load_s:g} s is not done to steer it"
            )
        if model.rests(self._pace, self._now()):
            return f"its requests wait in a load, and the last one took {model.took_s:.1f} s: the model rests after it"
        return ""

    async def write(self, server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
        """Raises ActuatorError UNREACHABLE where the model must be left alone for now, TIMEOUT where a load is not over."""
        async with turn(self._lock, self.name, server, deadline_s) as ends_at, asyncio.timeout_at(ends_at):
            window = wanted_window(values)
            config = await self._config(server)
            before = window_of(config)
            if before is None:
                raise CallError(ErrorKind.REFUSED, NO_BATCHING)
            model = self._remembered(server)
            if model.loading:
                raise CallError(ErrorKind.UNREACHABLE, "a load of ours is not over, so nothing was sent")
            if window is None or _microseconds(window) == _microseconds(before):
                return  # a load for nothing would make requests wait for nothing
            await self._check_may_change(model, window)
            await self._change(server, model, config, window)

    async def _check_may_change(self, model: _Model, window: float) -> None:
        why = await self._why_not_now(model)
        if why == NOT_EXPLICIT:
            raise CallError(ErrorKind.REFUSED, why)
        if why and window != model.home:
            raise CallError(ErrorKind.UNREACHABLE, f"nothing was sent: {why}")

    async def _change(self, server: str, model: _Model, config: Mapping[str, Any], window: float) -> None:
        """Load it with the window, and look whether it is ready and otherwise as it was. Raises CallError."""
        model.load = asyncio.create_task(self._load(server, model, config, window))
        # Triton goes on when we hang up, so its answer is waited for beyond our deadline.
        failure = await asyncio.shield(model.load)
        if failure is not None:
            raise failure
        await self._until_ready(server)
        after = await self._config(server)
        differs = sorted(key for key in config if key != "dynamic_batching" and after.get(key) != config[key])
        if differs:
            raise CallError(ErrorKind.PROTOCOL, f"besides the window these are different now: {excerpt(', '.join(differs))}")

    async def _load(self, server: str, model: _Model, config: Mapping[str, Any], window: float) -> CallError | None:
        url, whole = f"{self._url}/v2/repository/models/{segment(server)}/load", json.dumps(with_window(config, window))
        model.began_at = self._now()
        try:
            async with asyncio.timeout(LOAD_LIMIT_S):
                answer = await self._http.call("POST", url, {"parameters": {"config": whole}})
        except TimeoutError:
            return CallError(ErrorKind.TIMEOUT, f"the load was not over after {LOAD_LIMIT_S:g} s")
        except CallError as error:
            if error.kind is ErrorKind.UNREACHABLE or not await self._comes_to(server, window):
                return error
            answer = Answer(200, b"")
        finally:
            model.ended_at = self._now()
        if answer.status == 500:
            return CallError(ErrorKind.REFUSED, f"Triton kept the old configuration: {answer.words()}")
        if not answer.ok:
            return answer.error()
        model.note(window_of(config) or 0.0, window)
        return None

    async def _comes_to(self, server: str, window: float) -> bool:
        """Whether a load whose answer was lost comes to its end all the same, as Triton's do: until then nothing is known."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOST_ANSWER_S):
                while True:
                    with suppress(CallError):
                        found = window_of(await self._config(server))
                        if found is not None and _microseconds(found) == _microseconds(window):
                            return True
                    await asyncio.sleep(LOST_ANSWER_EVERY_S)
        return False

    async def _config(self, server: str) -> dict[str, Any]:
        config = (await self._http.call("GET", f"{self._url}/v2/models/{segment(server)}/config")).document()
        if config.get("name") != server:
            raise CallError(ErrorKind.PROTOCOL, f"that is no configuration of {server}")
        return config

    async def _ready(self, server: str) -> bool:
        answer = await self._http.call("GET", f"{self._url}/v2/models/{segment(server)}/ready")
        if answer.ok or answer.status == 400:
            return answer.ok
        raise answer.error()

    async def _until_ready(self, server: str) -> None:
        while True:
            if await self._ready(server):
                return
            await asyncio.sleep(READY_EVERY_S)

    async def _may_load(self) -> bool:
        """Whether this server loads models when it is told to. What cannot be found out is tried."""
        async with self._asking:
            now = self._now()
            if self._loads is None or now - self._loads[1] >= MODE_HOLDS_S:
                answer = await self._http.call("POST", f"{self._url}/v2/repository/models/{NOBODY}/load")
                self._loads = (not (answer.status == 503 and b"not allowed" in answer.body), now)
            return self._loads[0]

    def _remembered(self, server: str) -> _Model:
        model = self._models[server] = self._models.pop(server, _Model())
        while len(self._models) > MAX_MODELS:
            del self._models[next(iter(self._models))]
        return model

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    async def close(self) -> None:
        """A load under way goes on at Triton; its answer is not waited for."""
        loads = [model.load for model in self._models.values() if model.load is not None]
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)
        await self._http.close()


def create(settings: Gateway, looks_only: bool = False) -> Actuator:
    """Raises TypeError for another gateway's settings."""
    if not isinstance(settings, TritonGateway):
        raise TypeError(f"triton cannot be made from {type(settings).__name__}")
    return replicated(
        settings.name, (settings.url, *settings.replicas), partial(TritonActuator, auth=settings.auth, looks_only=looks_only)
    )
