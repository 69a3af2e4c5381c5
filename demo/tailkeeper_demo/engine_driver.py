"""Runs one simulated engine in real time on the event loop, and bends its time for the faults hang, flap, slow, throttle and oom.

An iteration is a timer: `begin` when the last one ended, `complete` when its duration is over. Under `hang` the timer fires and
nothing is completed, so every gauge and counter stays what it was; `flap` is a hang that a timer switches on and
off. No sockets here.
Data flows server → `submit` → engine → `deliver` → server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tailkeeper_demo.engine import Engine
from tailkeeper_demo.engine_types import Arrival, Token
from tailkeeper_demo.faults import OOM_KILL_AFTER_S, Fault, FaultKind, flap_phase, oom_reserved_ratio, throttled_clock_ratio

_STARVED_RETRY_S = 0.05
"""Pause before scheduling again when requests wait and none fits: the pool is held by the `oom` fault."""
_OOM_TICK_S = 0.25


class Cancellable(Protocol):
    """A timer that can be taken back."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """What is used of an event loop; tests run hours of it in no time."""

    def time(self) -> float: ...

    def call_soon(self, callback: Callable[[], None], /) -> Cancellable: ...

    def call_at(self, when: float, callback: Callable[[], None], /) -> Cancellable: ...

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Cancellable: ...


class EngineDriver:
    """The one caller of an `Engine`."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        deliver: Callable[[list[Token]], None],
        killed: Callable[[], None],
    ) -> None:
        self.engine = engine
        self._clock = clock
        self._deliver = deliver
        self._killed = killed
        self._iteration: Cancellable | None = None
        self._wake: Cancellable | None = None
        self._oom: Cancellable | None = None
        self._flap: Cancellable | None = None
        self._hung = False
        self._iterating = False
        self._begun_s = 0.0
        self._fault: Fault | None = None
        self._fault_since_s = 0.0
        self._pressed_s = 0.0

    def submit(self, arrival: Arrival) -> None:
        """Hand a request to the engine. Raises what `Engine.submit` raises."""
        self.engine.submit(arrival)
        self._wake_up()

    def abort(self, request_id: str) -> None:
        """The request's client is gone."""
        self.engine.abort(request_id)
        self._wake_up()

    def set_fault(self, fault: Fault | None) -> None:
        """Make `fault` the only one, or none; what the last one held is given back first."""
        self._end_fault()
        self._fault, self._fault_since_s, self._pressed_s = fault, self._clock.time(), 0.0
        self._hung = self._has(FaultKind.HANG)
        if self._has(FaultKind.OOM):
            self._oom_tick()
        elif self._has(FaultKind.FLAP):
            self._flap_turn()

    def clock_ratio(self) -> float:
        """Share of its clock that the GPU has now: 1, or less under `throttle`."""
        if self._fault is None or not self._has(FaultKind.THROTTLE):
            return 1.0
        return throttled_clock_ratio(self._clock.time() - self._fault_since_s, self._fault.factor)

    def gpu_active_s(self) -> float:
        """Integral of GPU utilisation since the engine started, up to now."""
        return self.engine.gpu_active_s(self._clock.time() - self._begun_s)

    def stop(self) -> None:
        """Forget all timers; the engine does nothing more."""
        for handle in (self._iteration, self._wake, self._oom, self._flap):
            if handle is not None:
                handle.cancel()
        self._iteration = self._wake = self._oom = self._flap = None
        self._iterating = True  # Nobody wakes a stopped driver.

    def _has(self, kind: FaultKind) -> bool:
        return self._fault is not None and self._fault.kind is kind

    def _end_fault(self) -> None:
        self._fault = None
        if self._flap is not None:
            self._flap.cancel()
            self._flap = None
        if self._oom is not None:
            self._oom.cancel()
            self._oom = None
            self.engine.reserve(0)
        self._set_hung(False)

    def _set_hung(self, hung: bool) -> None:
        """Hang, or answer again: the iteration that stood still ends now."""
        was_hung, self._hung = self._hung, hung
        if was_hung and not hung and self._iterating and self._iteration is None:
            self._complete()

    def _flap_turn(self) -> None:
        hung, left_s = flap_phase(self._clock.time() - self._fault_since_s)
        # A timer may fire a hair early, before the phase it was set for; the few milliseconds put it safely behind.
        self._flap = self._clock.call_later(left_s + 0.005, self._flap_turn)
        self._set_hung(hung)

    def _wake_up(self) -> None:
        if not self._iterating and self._wake is None:
            if self._iteration is not None:
                self._iteration.cancel()
                self._iteration = None
            self._wake = self._clock.call_soon(self._begin)

    def _begin(self) -> None:
        self._iteration = self._wake = None
        now_s = self._clock.time()
        slow = self._fault.factor if self._fault is not None and self._has(FaultKind.SLOW) else 1.0
        duration_s = self.engine.begin(now_s, slow / self.clock_ratio())
        if duration_s is not None:
            self._iterating, self._begun_s = True, now_s
            self._iteration = self._clock.call_at(now_s + duration_s, self._complete)
        elif self.engine.in_flight:
            self._iteration = self._clock.call_later(_STARVED_RETRY_S, self._begin)

    def _complete(self) -> None:
        self._iteration = None
        if self._hung:
            return  # The iteration stays unfinished until the hang ends.
        self._iterating = False
        tokens = self.engine.complete(self._clock.time())
        self._begin()
        if tokens:
            self._deliver(tokens)

    def _oom_tick(self) -> None:
        elapsed_s = self._clock.time() - self._fault_since_s
        self.engine.reserve(round(oom_reserved_ratio(elapsed_s) * self.engine.params.kv_blocks))
        self._pressed_s += _OOM_TICK_S if self.engine.in_flight else 0.0
        if self._pressed_s >= OOM_KILL_AFTER_S:
            self._oom = None
            self._killed()
            return
        self._oom = self._clock.call_later(_OOM_TICK_S, self._oom_tick)
