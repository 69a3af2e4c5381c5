"""The default configuration changes nothing at any gateway, byte for byte; and what an enforcing one changed is given back.

Real HAProxy and real taps. Between the watchdog and both lies a wire that keeps every byte; that it would have heard a write is
shown by the enforcing run.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailkeeper_demo import stack
from tailkeeper_demo.policy_modes import ENFORCED, Policies
from tailkeeper_demo.processes import Processes, free_port
from tests.e2e.real_programs import binary
from tests.e2e.recorder import Heard, recorder

pytestmark = pytest.mark.real

VICTIM = "sim-b"
HANG_S = 9.0


@dataclass
class Watched:
    """A running demo. ``edge`` and ``taps`` are what the watchdog said to HAProxy's socket and to the exporter."""

    addresses: stack.Addresses
    client: httpx.Client
    edge: Heard
    taps: Heard
    exporter: str
    truth: Callable[[], list[Any]]

    def api(self, path: str) -> Any:
        return self.client.get(f"{self.addresses.console}/api/v1/{path}").raise_for_status().json()

    def hang(self) -> None:
        body = {"engine": VICTIM, "fault": "hang", "duration_s": HANG_S}
        self.client.post(f"{self.addresses.admin}/faults", json=body).raise_for_status()

    def decisions(self, *verdicts: str) -> list[Any]:
        return [d for d in self.api("decisions?limit=1000") if d["verdict"] in verdicts]

    def leases(self) -> int:
        return sum(len(b["leases"]) for b in self.api("fleet")["backends"])

    def until(self, what: str, holds: Callable[[], bool], limit_s: float) -> None:
        ends_at = time.monotonic() + limit_s
        while not holds():
            assert time.monotonic() < ends_at, f"not within {limit_s:g} s: {what}; {self.api('decisions?limit=20')}"
            time.sleep(0.2)


@dataclass
class _Wires:
    """Put between while the demo's parts are started: the demo itself knows nothing of them."""

    wires: ExitStack
    heard: dict[str, Heard] = field(default_factory=dict)
    socket: Path | None = None
    exporter: str = ""

    def gateway(self, processes: Processes, folder: Path, engines: list[dict[str, Any]]) -> tuple[str, dict[str, Any], str]:
        url, gateway, prefix = _START_GATEWAY(processes, folder, engines)
        self.socket = Path(gateway["socket"])
        self.heard["edge"] = self.wires.enter_context(recorder(gateway["socket"], folder / "wire.sock"))
        return url, gateway | {"socket": self.heard["edge"].where}, prefix

    def configuration(self, *given: Any) -> dict[str, Any]:
        config = _CONFIGURATION(*given)
        self.exporter = config["exporter"]["listen"]
        host, _, port = self.exporter.partition(":")
        self.heard["taps"] = self.wires.enter_context(recorder((host, int(port))))
        url = f"http://{self.heard['taps'].where}"
        config["watchdog"]["source"]["urls"] = [url]
        config["gateways"][1]["urls"] = [url]
        return config


_START_GATEWAY, _CONFIGURATION = stack._start_gateway, stack._configuration


@contextmanager
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policies: Policies) -> Iterator[Watched]:
    haproxy = binary("haproxy")
    monkeypatch.setattr(stack, "_which", lambda name: haproxy if name == "haproxy" else None)
    processes = Processes(tmp_path)
    with ExitStack() as wires, httpx.Client(timeout=5.0, trust_env=False) as client:
        wires.callback(processes.stop)
        between = _Wires(wires)
        monkeypatch.setattr(stack, "_start_gateway", between.gateway)
        monkeypatch.setattr(stack, "_configuration", between.configuration)
        addresses = stack.start(processes, tmp_path, free_port(), 7, {}, policies=policies)

        def truth() -> list[Any]:
            """By a way of its own: HAProxy's own socket and the exporter's own address."""
            assert between.socket is not None
            with ExitStack() as opened:
                found = [_ask(opened, between.socket, f"get weight llm/{name}") for name in addresses.backends]
                found += _ask(opened, between.socket, "show servers state llm").splitlines()
            taps = [client.get(f"http://{between.exporter}/api/v1/taps/{name}").json() for name in addresses.backends]
            return [*map(_settled, found), *taps]

        yield Watched(addresses, client, between.heard["edge"], between.heard["taps"], between.exporter, truth)


def _ask(opened: ExitStack, path: Path, command: str) -> str:
    client = opened.enter_context(socket.socket(socket.AF_UNIX))
    client.connect(str(path))
    client.sendall(command.encode() + b"\n")
    return b"".join(iter(lambda: client.recv(65_536), b"")).decode().strip()


def _settled(row: str) -> str:
    """A row of ``show servers state`` by its name, administrative state and weights; the rest is times and health."""
    words = row.split()
    return row if len(words) < 10 else " ".join((words[3], words[6], words[7], words[8]))


def test_the_default_configuration_says_nothing_to_a_gateway_that_could_change_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched(tmp_path, monkeypatch, {}) as demo:
        demo.until("all serving", lambda: all(b["state"] == "serving" for b in demo.api("fleet")["backends"]), 20)
        before = demo.truth()
        demo.hang()
        demo.until("a drain that is only written down", lambda: "drain" in [d["to"] for d in demo.decisions("observed")], 25)
        time.sleep(3.0)
        assert demo.truth() == before
        assert demo.decisions("applied", "released", "expired", "failed", "contended") == []
        assert demo.leases() == 0
    assert {line.split()[0] for line in demo.edge.lines()} <= {"show", "get"}
    assert demo.edge.lines(), "HAProxy was asked"
    assert demo.taps.methods() == {"GET"}
    assert any("/api/v1/taps" in line for line in demo.taps.lines()), "the taps were asked"


def test_after_an_enforced_story_no_lease_is_left_and_the_gateways_are_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched(tmp_path, monkeypatch, ENFORCED) as demo:
        demo.until("all serving", lambda: all(b["state"] == "serving" for b in demo.api("fleet")["backends"]), 20)
        demo.until("nothing on lease yet", lambda: demo.leases() == 0, 20)
        before = demo.truth()
        demo.hang()
        demo.until("the drain", lambda: "drain" in [d["to"] for d in demo.decisions("applied")], 25)
        demo.until("all leases back", lambda: demo.leases() == 0 and not _hung(demo), 60)
        assert demo.truth() == before
    assert any(line.startswith("set server llm/sim-b state drain") for line in demo.edge.lines())
    assert "PUT" in demo.taps.methods()


def _hung(demo: Watched) -> bool:
    return any(b["state"] == "hung" for b in demo.api("fleet")["backends"])
