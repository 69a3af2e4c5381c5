"""A change that the gateway did not take, in a file that another hand has changed since: ours alone is taken out of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators import envoy, traefik
from tailkeeper_watchdog.actuators.config_file import ConfigFile
from tailkeeper_watchdog.actuators.envoy_admin import Host
from tailkeeper_watchdog.actuators.envoy_admin import Seen as EnvoySeen
from tailkeeper_watchdog.actuators.traefik import Seen as TraefikSeen
from tailkeeper_watchdog.actuators.traefik_services import weights_of
from tailkeeper_watchdog.model import DRAIN, Knob
from tests.unit.test_envoy_endpoints import text_of

A, B = "10.0.0.0:80", "10.0.0.1:80"
SERVICES = """\
http:
  services:
    llm: {loadBalancer: {servers: [{url: "http://10.0.0.0:80"}, {url: "http://10.0.0.1:80"}]}}
"""


def of_envoy(path: Path) -> tuple[envoy.EnvoyActuator, envoy._Making, str]:
    hosts = {server: Host(1, "HEALTHY", True, 0) for server in (A, B)}
    making = envoy._Making(EnvoySeen("llm", "llm", hosts), A, {Knob.ADMISSION: DRAIN}, is_json=False)
    return envoy.EnvoyActuator("edge", "llm", path, "http://127.0.0.1:1", Auth()), making, text_of({}, {})


def of_traefik(path: Path) -> tuple[traefik.TraefikActuator, traefik._Making, str]:
    servers = {"http://10.0.0.0:80": A, "http://10.0.0.1:80": B}
    rows = [{"url": url} for url in servers]
    seen = TraefikSeen(weights_of({"http": {"services": {"llm": {"loadBalancer": {"servers": rows}}}}}, "llm"), servers)
    making = traefik._Making(seen, A, {Knob.ADMISSION: DRAIN})
    return traefik.TraefikActuator("edge", "llm", path, "http://127.0.0.1:1", Auth()), making, SERVICES


@pytest.mark.parametrize("of", [of_envoy, of_traefik])
async def test_ours_is_taken_out_and_the_others_stays(tmp_path: Path, of: object) -> None:
    path = tmp_path / "llm.yml"
    actuator, making, before = of_envoy(path) if of is of_envoy else of_traefik(path)
    path.write_text(before)
    written = ConfigFile(path).change(making.text, float("inf"))
    assert path.read_text() != before
    path.write_text(path.read_text() + "# of another hand\n")

    words = await actuator._file.taken_back(making, written)
    await actuator.close()
    assert "ours alone" in words
    assert path.read_text() == before + "# of another hand\n"
