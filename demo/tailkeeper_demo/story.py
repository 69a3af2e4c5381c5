"""``tailkeeper demo``: start everything, break something, watch Tailkeeper deal with it, and say how it went.

The story sees only what a user sees: the watchdog's HTTP interface and what the load's clients measured.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tailkeeper_demo.faults import FaultError, FaultKind, parse_kind
from tailkeeper_demo.load import SLO_WHOLE_S
from tailkeeper_demo.mix import Mix
from tailkeeper_demo.narrative import Event, Narrator, Seen, missed_since
from tailkeeper_demo.narrative_blind import BlindNarrator
from tailkeeper_demo.processes import ProcessEndedError, Processes
from tailkeeper_demo.screen import Screen
from tailkeeper_demo.stack import SLO_TTFT_S, Addresses, start

WARM_UP_S = 12.0
"""Enough for windows, baselines and a first minute's half of traffic."""
ONE_STORY_S = 75.0
SLOW_STORY_S = 170.0
"""Slowness beyond what load explains is proved block by block, ten seconds each: a longer story shows ``block_e`` find it."""
FLAP_STORY_S = 115.0
"""Four rounds of hanging and answering, and the long wait that the watchdog learns from them."""
STORY_S = {FaultKind.SLOW: SLOW_STORY_S, FaultKind.THROTTLE: SLOW_STORY_S, FaultKind.FLAP: FLAP_STORY_S}
"""By fault, where it is not ``ONE_STORY_S``."""
PAUSE_BETWEEN_S = 45.0
POLL_S = 0.25
SEED = 7


class DemoError(Exception):
    """The demo cannot run. ``code`` 2: wrong usage, 1: something failed."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to happen. ``duration_s`` None: story after story until Ctrl-C."""

    fault: FaultKind
    mix: Mix
    duration_s: float | None

    @property
    def fault_s(self) -> float:
        """How long the fault lasts: long enough to be felt, short enough that its end is seen."""
        if self.fault is FaultKind.RESTART:
            return 6.0
        usual_s = STORY_S.get(self.fault, ONE_STORY_S)
        whole = min(self.duration_s or usual_s, usual_s)
        if self.fault is FaultKind.FLAP:
            return max(12.0, 0.5 * whole)
        if whole >= SLOW_STORY_S:
            return 100.0
        return max(12.0, 0.3 * min(whole, ONE_STORY_S))


def run_demo(
    duration: float | None, fault: str, mix: str, port: int, *, color: bool, rules: Mapping[str, str] | None = None
) -> bool:
    """Run it; True when the fault was found, acted on, and the SLA came back, or for ``blind`` held. Raises DemoError."""
    try:
        kind = parse_kind(fault)
    except FaultError as error:
        raise DemoError(f"--fault: {error}", 2) from error
    if mix not in list(Mix):
        raise DemoError(f"--mix: {mix!r} is unknown; available: {', '.join(Mix)}", 2)
    if duration is None and not sys.stdout.isatty():
        duration = STORY_S.get(kind, ONE_STORY_S)
    # Told to end in whatever way, it takes its programs along; without this SIGTERM would leave them running.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="tailkeeper-demo-") as name:
        processes = Processes(Path(name))
        try:
            return _run(Plan(kind, Mix(mix), duration), processes, Path(name), port, color, rules or {})
        except ProcessEndedError as error:
            raise DemoError(str(error), 1) from error
        finally:
            processes.stop()


def _run(plan: Plan, processes: Processes, folder: Path, port: int, color: bool, rules: Mapping[str, str]) -> bool:
    with Screen(color) as screen:
        screen.say("starting a simulated fleet, a gateway, the exporter, the watchdog and load …")
        addresses = start(processes, folder, port, SEED, rules, plan.mix)
        for line in _where(addresses):
            screen.say(line)
        with httpx.Client(timeout=2.0, trust_env=False) as client:
            stage = Stage(plan, addresses, screen, folder, processes, client)
            try:
                stage.play()
            except KeyboardInterrupt:
                screen.say("ending …")
    stories = stage.stories
    for narrator in stories[-1:]:
        screen.box(*_ending(narrator, stage.last_load, addresses, plan.mix))
    return bool(stories) and all(n.ended_well for n in stories)


def _where(addresses: Addresses) -> list[str]:
    lines = [f"console     {addresses.console}", f"gateway     {addresses.gateway} ({addresses.gateway_kind})"]
    if addresses.prometheus:
        lines.append(f"prometheus  {addresses.prometheus}")
    if addresses.alertmanager:
        lines.append(f"alerts      {addresses.alertmanager}")
    if addresses.missing:
        lines.append(f"not on the PATH, so done without: {', '.join(addresses.missing)}")
    return lines


def _ending(n: Narrator, load: Mapping[str, Any], addresses: Addresses, mix: Mix) -> tuple[str, list[str], bool]:
    missed, judged = missed_since(load, n.injected_unix_s)
    whole = "" if mix is Mix.ONLINE else f", batches the whole answer within {SLO_WHOLE_S:.0f} s"
    lines = [
        *n.ending(),
        f"users: {missed} of {judged} requests since then had no first token within {SLO_TTFT_S} s{whole}",
        f"console {addresses.console} while the demo runs",
    ]
    return ("it ended well" if n.ended_well else "it did not end well"), lines, n.ended_well


class Stage:
    """Plays stories one after the other and remembers how each went."""

    def __init__(
        self,
        plan: Plan,
        addresses: Addresses,
        screen: Screen,
        folder: Path,
        processes: Processes,
        client: httpx.Client,
    ) -> None:
        self._plan, self._addresses, self._screen = plan, addresses, screen
        self._folder, self._processes, self._client = folder, processes, client
        self._started = time.monotonic()
        self.stories: list[Narrator] = []
        self.last_load: Mapping[str, Any] = {"buckets": []}

    def play(self) -> None:
        """Until the time is over, or Ctrl-C. With a duration there is one story."""
        next_fault_s: float | None = WARM_UP_S
        while self._plan.duration_s is None or self._at() < self._plan.duration_s:
            self._processes.check()
            if next_fault_s is not None and self._at() >= next_fault_s:
                self._inject()
                next_fault_s = None
            self._look()
            if self.stories and self.stories[-1].over and next_fault_s is None and self._plan.duration_s is None:
                next_fault_s = self._at() + PAUSE_BETWEEN_S
            time.sleep(POLL_S)

    def _at(self) -> float:
        return time.monotonic() - self._started

    def _inject(self) -> None:
        names = self._addresses.backends
        victim = names[(1 + len(self.stories)) % len(names)]
        fault, seconds = self._plan.fault, self._plan.fault_s
        body = {"engine": victim, "fault": fault.value, "duration_s": seconds}
        answer = self._client.post(f"{self._addresses.admin}/faults", json=body)
        if answer.status_code != 200:
            raise DemoError(f"the fault could not be injected: {answer.text}", 1)
        kind = {"haproxy": "HAProxy", "webhook": "webhook"}[self._addresses.gateway_kind]
        narrator = BlindNarrator if fault is FaultKind.BLIND else Narrator
        self.stories.append(narrator(victim, fault.value, kind, self._at(), time.time()))
        self._screen.tell(
            Event(self._at(), "fault", f"{fault.value} injected into {victim} for {seconds:.0f} s (unknown to the watchdog)")
        )

    def _look(self) -> None:
        seen = self._read()
        if seen is None:
            return
        self.last_load = seen.load
        if self.stories:
            for event in self.stories[-1].feed(seen):
                self._screen.tell(event)
        self._screen.update(seen.fleet, seen.load)

    def _read(self) -> Seen | None:
        """None while one of the parts does not answer: the next look will tell."""
        base = self._addresses.console
        try:
            fleet, findings, decisions = (
                self._client.get(f"{base}/api/v1/{path}").raise_for_status().json()
                for path in ("fleet", "findings?open=true", "decisions?limit=200")
            )
            load = json.loads((self._folder / "load.json").read_text())
        except (httpx.HTTPError, OSError, ValueError):
            return None
        return Seen(self._at(), time.time(), fleet, findings, decisions, load)
