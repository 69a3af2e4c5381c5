"""Which faults there are, and how each begins and ends. Chosen by a seeded random generator and written down with their times."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from tools.chaos.gpus import WHOLE_FILE, GpuFault, Gpus
from tools.chaos.middle import Spoil
from tools.chaos.town import Town, write

ENGINE_FAULTS = ("hang", "slow", "errors", "oom", "restart", "throttle", "flap")
PAUSE_S = (1.0, 15.0)
OUR_DEATHS = frozenset({"watchdog: killed", "exporter: killed"})
FULL_MARGIN_BYTES = 4096
MAX_CLOCK_STEP_S = 3_600


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault as it was chosen. ``kind`` is a row of the report; times are seconds since the run began."""

    kind: str
    target: str
    detail: str
    at_s: float
    until_s: float

    def line(self) -> str:
        """For the log of the run."""
        return f"{self.at_s:.1f} to {self.until_s:.1f} s: {self.kind}, {self.target}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Kind:
    """How often it comes beside the others, whom it can meet, how long it lasts; ``begin`` gives its words and its end."""

    name: str
    often: float
    targets: tuple[str, ...]
    lasts_s: tuple[float, float]
    begin: Callable[[str, float], tuple[str, Callable[[], None]]]


@dataclass
class Faults:
    """Begins and ends them; ``log`` has all of them, ``now`` those that go on. Not from several threads at once."""

    town: Town
    gpus: Gpus
    rng: random.Random
    began: float
    spared_after_s: float = float("inf")
    """From then on nobody of ours is killed any more, so that lives are long enough to see whether they grow."""
    scale: float = 1.0
    """Of how long faults last."""
    log: list[Fault] = field(default_factory=list)
    _going_on: list[tuple[Fault, Callable[[], None]]] = field(default_factory=list)
    _spoils: dict[str, str] = field(default_factory=dict)
    _gate: bool = True
    _waits: int = 0

    def __post_init__(self) -> None:
        self.kinds = [kind for kind in self._all() if kind.name not in self.town.left_out]

    @property
    def now_s(self) -> float:
        return time.monotonic() - self.began

    @property
    def now(self) -> tuple[Fault, ...]:
        return tuple(fault for fault, _ in self._going_on)

    def begin_one(self) -> Fault | None:
        """Choose one whose target is under no fault of the same family, and begin it."""
        busy = {_family(fault.kind, fault.target) for fault in self.now}
        kinds = [kind for kind in self.kinds if self.now_s < self.spared_after_s or kind.name not in OUR_DEATHS]
        for _ in range(20):
            kind = self.rng.choices(kinds, [k.often for k in kinds])[0]
            target = self.rng.choice(kind.targets)
            if _family(kind.name, target) not in busy:
                return self.begin(kind, target)
        return None

    def begin(self, kind: Kind, target: str, lasts_s: float | None = None) -> Fault:
        lasts_s = self.scale * self.rng.uniform(*kind.lasts_s) if lasts_s is None else lasts_s
        at_s = self.now_s
        detail, end = kind.begin(target, lasts_s)
        fault = Fault(kind.name, target, detail, at_s, at_s + lasts_s)
        self.log.append(fault)
        self._going_on.append((fault, end))
        return fault

    def end_due(self, everything: bool = False) -> tuple[Fault, ...]:
        """End those whose time has come; the log gets the times at which they really ended."""
        due = [pair for pair in self._going_on if everything or pair[0].until_s <= self.now_s]
        for pair in due:
            fault, end = pair
            end()
            self._going_on.remove(pair)
            self.log[self.log.index(fault)] = Fault(fault.kind, fault.target, fault.detail, fault.at_s, self.now_s)
        return tuple(fault for fault, _ in due)

    def _all(self) -> Iterable[Kind]:
        names, engines = self.town.names, tuple(self.town.names)
        yield Kind("engine: simulated fault", 24, names, (6.0, 45.0), self._engine)
        yield Kind("engine: killed", 5, engines, (1.0, 20.0), self._killed)
        yield Kind("engine: stopped", 5, engines, (3.0, 20.0), self._stopped)
        yield Kind("engine: metrics page", 14, names, (5.0, 40.0), self._page)
        yield Kind("GPU file", 12, ("*", *names), (5.0, 40.0), self._gpu)
        yield Kind("Prometheus: stopped", 3, ("prometheus",), PAUSE_S, self._stopped)
        yield Kind("Prometheus: killed", 3, ("prometheus",), (0.5, 20.0), self._killed)
        yield Kind("Alertmanager: stopped", 3, ("alertmanager",), PAUSE_S, self._stopped)
        yield Kind("Alertmanager: killed", 3, ("alertmanager",), (0.5, 20.0), self._killed)
        yield Kind("HAProxy: stopped", 5, ("haproxy",), PAUSE_S, self._stopped)
        yield Kind("HAProxy: killed", 4, ("haproxy",), (0.2, 10.0), self._haproxy_killed)
        yield Kind("disk full", 6, ("state",), (3.0, 40.0), self._disk_full)
        yield Kind("clock step", 8, ("watchdog", "exporter"), (5.0, 60.0), self._clock)
        yield Kind("exporter: stopped", 5, ("exporter-1", "exporter-2"), PAUSE_S, self._stopped)
        yield Kind("exporter: killed", 3, ("exporter-1",), (0.2, 10.0), self._killed)
        yield Kind("watchdog: stopped", 6, ("watchdog", "shadow"), PAUSE_S, self._stopped)
        yield Kind("watchdog: killed", 5, ("watchdog",), (0.2, 10.0), self._killed)

    def _engine(self, target: str, lasts_s: float) -> tuple[str, Callable[[], None]]:
        fault = self.rng.choice(ENGINE_FAULTS)
        body: dict[str, Any] = {"engine": "sim-a", "fault": fault, "duration_s": max(0.5, lasts_s)}
        if fault in ("slow", "throttle"):
            body["factor"] = round(self.rng.uniform(3.0, 12.0), 1)
        if fault == "errors":
            body["ratio"] = round(self.rng.uniform(0.2, 1.0), 2)
        url = f"{self.town.at.admins[target]}/faults"

        def end() -> None:
            with contextlib.suppress(httpx.HTTPError):  # of one that is stopped or killed meanwhile: it ends by itself
                self.town.client.delete(f"{url}/sim-a")

        with contextlib.suppress(httpx.HTTPError):
            self.town.client.post(url, json=body)
        return fault, end

    def _killed(self, target: str, lasts_s: float) -> tuple[str, Callable[[], None]]:
        self.town.programs[target].kill()
        return "SIGKILL", self.town.programs[target].start

    def _stopped(self, target: str, lasts_s: float) -> tuple[str, Callable[[], None]]:
        self.town.programs[target].pause()
        return "SIGSTOP", self.town.programs[target].go_on

    def _haproxy_killed(self, target: str, lasts_s: float) -> tuple[str, Callable[[], None]]:
        self.town.programs[target].kill()
        self._gate = False
        self._tell()

        def end() -> None:
            self.town.programs[target].start()
            self._gate = True
            self._tell()

        return "SIGKILL, its socket gone", end

    def _page(self, target: str, lasts_s: float) -> tuple[str, Callable[[], None]]:
        self._spoils[target] = self.rng.choice(list(Spoil)).value
        self._tell()

        def end() -> None:
            self._spoils.pop(target, None)
            self._tell()

        return self._spoils[target], end

    def _tell(self) -> None:
        self.town.control(self._spoils, self._gate)

    def _gpu(self, target: str, lasts_s: float) -> tuple[str, Callable[[], None]]:
        kinds = [fault for fault in GpuFault if (fault in WHOLE_FILE) == (target == "*")]
        fault = self.rng.choice(kinds)
        self.gpus.faults[target] = fault

        def end() -> None:
            self.gpus.faults.pop(target, None)

        return fault.value, end

    def _disk_full(self, target: str, lasts_s: float) -> tuple[str, Callable[[], None]]:
        filler = self.town.state / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                left = os.statvfs(self.town.state)
                file.write(bytes(max(left.f_bavail * left.f_frsize, FULL_MARGIN_BYTES)))
        return "ENOSPC", lambda: filler.unlink(missing_ok=True)

    def _clock(self, target: str, lasts_s: float) -> tuple[str, Callable[[], None]]:
        step = self.rng.choice((-1, 1)) * int(self.rng.triangular(2, MAX_CLOCK_STEP_S, 60))
        write(self.town.clock(target), f"{step:+d}")
        return f"{step:+d} s and back", lambda: write(self.town.clock(target), "+0")


def _family(kind: str, target: str) -> tuple[str, str]:
    """Two of one family at one target would end each other: stopped and killed, or two spoilt pages."""
    return ("process" if kind.endswith((": stopped", ": killed")) else kind, target)


def counts(log: Iterable[Fault]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for fault in log:
        found[fault.kind] = found.get(fault.kind, 0) + 1
    return found
