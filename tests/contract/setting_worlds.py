"""What the contract suite needs of gateways that carry no traffic and turn one setting of what runs there: `batch_window_s`.

As in ``worlds.py`` the truth is asked by a way of its own. Both are fakes here; ``test_triton_real.py`` has the real Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators import Actuator
from tailkeeper_watchdog.actuators.ray_serve import RayServeActuator
from tailkeeper_watchdog.actuators.triton import Pace, TritonActuator
from tests.contract.fake_ray_serve import FakeRayServe, application, fake_ray_serve
from tests.contract.fake_triton import ADMIN, FakeTriton, fake_triton, model

NORMAL_S = 0.2
NO_REST = Pace(rest_s=0, rest_times=0)


class SettingWorld(Protocol):
    """A working gateway with the servers ``a`` and ``b``, each with a window of ``NORMAL_S``."""

    actuator: Actuator
    a: str
    b: str
    unknown: str

    def truth(self, server: str) -> float:
        """The window in force, in seconds, as the gateway itself has it."""
        ...

    def set_by_hand(self, server: str, window_s: float) -> None:
        """Somebody else changes it."""
        ...

    def writes(self) -> int:
        """How many changes the gateway was told."""
        ...

    def lie(self) -> None:
        """From now on the gateway says yes and does nothing."""
        ...

    def most_at_once(self) -> int: ...

    def without_rights(self) -> Actuator: ...


@dataclass
class TritonWorld:
    triton: FakeTriton
    actuator: Actuator
    a: str = "a"
    b: str = "b"
    unknown: str = "nobody"

    def truth(self, server: str) -> float:
        return self.triton.window(server)

    def set_by_hand(self, server: str, window_s: float) -> None:
        self.triton.models[server]["dynamic_batching"]["max_queue_delay_microseconds"] = round(window_s * 1e6)

    def writes(self) -> int:
        return self.triton.loads()

    def lie(self) -> None:
        self.triton.lying = True

    def most_at_once(self) -> int:
        return self.triton.most_at_once

    def without_rights(self) -> Actuator:
        return TritonActuator("edge", self.triton.url, Auth(), NO_REST)


@contextmanager
def triton_world(folder: Path) -> Iterator[SettingWorld]:
    (folder / "headers").write_text(f"{ADMIN}: s3cret\n")
    with fake_triton(model("a"), model("b")) as triton:
        triton.secret = "s3cret"
        auth = Auth(headers_file=folder / "headers")
        yield TritonWorld(triton, TritonActuator("edge", triton.url, auth, NO_REST))


@dataclass
class RayServeWorld:
    ray: FakeRayServe
    actuator: Actuator
    a: str = "a/LLM"
    b: str = "b/LLM"
    unknown: str = "a/Nobody"

    def truth(self, server: str) -> float:
        app = server.partition("/")[0]
        window = float(self.ray.declared(app)["user_config"]["batch_wait_timeout_s"])
        assert self.ray.details(app)["deployment_config"]["user_config"]["batch_wait_timeout_s"] == window
        return window

    def set_by_hand(self, server: str, window_s: float) -> None:
        self.ray.change(server.partition("/")[0], batch_wait_timeout_s=window_s)

    def writes(self) -> int:
        return len(self.ray.puts)

    def lie(self) -> None:
        self.ray.lying = True

    def most_at_once(self) -> int:
        return self.ray.most_at_once

    def without_rights(self) -> Actuator:
        self.ray.token = "of somebody else"
        return RayServeActuator("edge", self.ray.url, Auth())


@contextmanager
def ray_serve_world(_: Path) -> Iterator[SettingWorld]:
    with fake_ray_serve(*(application(name, batch_wait_timeout_s=NORMAL_S) for name in ("a", "b"))) as ray:
        yield RayServeWorld(ray, RayServeActuator("edge", ray.url, Auth()))


SETTING_WORLDS: dict[str, Callable[[Path], AbstractContextManager[SettingWorld]]] = {
    "triton": triton_world,
    "ray_serve": ray_serve_world,
}
NOTHING_TO_TURN = frozenset({"engine"})
"""Gateways that only look: ``test_engine_gateway.py`` has all there is to promise."""
