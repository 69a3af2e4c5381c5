"""The registry lists every actuator there is, and makes each from its own settings."""

from __future__ import annotations

import importlib
import pkgutil
import time
from pathlib import Path
from typing import get_args

import pytest

from tailkeeper_watchdog import actuators
from tailkeeper_watchdog.actuators import ACTUATORS, build_actuator
from tailkeeper_watchdog.actuators.replicas import ReplicatedActuator
from tailkeeper_watchdog.decision_log import DecisionLog
from tailkeeper_watchdog.gateways import (
    ConsulGateway,
    EngineGateway,
    EnvoyGateway,
    Gateway,
    HaproxyGateway,
    KubernetesGateway,
    LitellmGateway,
    RayServeGateway,
    SglangRouterGateway,
    TapGateway,
    TraefikGateway,
    TritonGateway,
    VllmRouterGateway,
    WebhookGateway,
)
from tailkeeper_watchdog.ledger import Ledger
from tailkeeper_watchdog.reconcile import Reconciler

REMOVED = Path("removed.json")
EXAMPLES: dict[str, Gateway] = {
    "haproxy": HaproxyGateway(name="edge", kind="haproxy", socket="/run/haproxy.sock"),
    "webhook": WebhookGateway(name="edge", kind="webhook", url="http://127.0.0.1:1"),
    "envoy": EnvoyGateway(
        name="edge", kind="envoy", eds_file=Path("/etc/envoy/eds/llm.json"), cluster="llm", admin_url="http://127.0.0.1:1"
    ),
    "traefik": TraefikGateway(
        name="edge", kind="traefik", file=Path("/etc/traefik/dynamic/llm.yml"), service="llm", api_url="http://127.0.0.1:1"
    ),
    "tap": TapGateway(name="edge", kind="tap", urls=("http://127.0.0.1:1",)),
    "sglang_router": SglangRouterGateway(name="edge", kind="sglang_router", url="http://127.0.0.1:1", removed_file=REMOVED),
    "vllm_router": VllmRouterGateway(name="edge", kind="vllm_router", url="http://127.0.0.1:1", removed_file=REMOVED),
    "consul": ConsulGateway(name="edge", kind="consul", url="http://127.0.0.1:1"),
    "triton": TritonGateway(name="edge", kind="triton", url="http://127.0.0.1:1"),
    "ray_serve": RayServeGateway(name="edge", kind="ray_serve", url="http://127.0.0.1:1"),
    "engine": EngineGateway(name="edge", kind="engine"),
    "kubernetes": KubernetesGateway(name="edge", kind="kubernetes", in_cluster=True),
    "litellm": LitellmGateway(name="edge", kind="litellm", url="http://127.0.0.1:1"),
}


def test_every_module_that_makes_an_actuator_is_listed_under_its_kind() -> None:
    names = [module.name for module in pkgutil.iter_modules(actuators.__path__)]
    modules = [importlib.import_module(f"{actuators.__name__}.{name}") for name in names]
    assert {module.KIND: module.create for module in modules if hasattr(module, "create")} == ACTUATORS


def test_every_kind_that_the_configuration_allows_has_an_actuator() -> None:
    union, _ = get_args(Gateway)
    assert {settings.model_fields["kind"].annotation.__args__[0] for settings in get_args(union)} == set(ACTUATORS)


@pytest.mark.parametrize("kind", EXAMPLES)
async def test_an_actuator_is_made_from_its_settings_and_opens_nothing(kind: str) -> None:
    actuator = build_actuator(EXAMPLES[kind])
    assert (actuator.name, actuator.kind) == ("edge", kind)
    await actuator.close()


async def test_gateways_that_can_take_no_traffic_away_have_no_doors(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    kinds = {kind: build_actuator(example) for kind, example in EXAMPLES.items()}
    reconciler = Reconciler(kinds, ledger, DecisionLog(ledger, time.time), 300, time.time)
    await reconciler.close()
    ledger.close()

    assert reconciler.without_doors >= {"triton", "ray_serve", "engine"}
    assert not reconciler.without_doors & {"haproxy", "webhook", "tap"}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_settings_of_another_kind_are_a_mistake_of_the_caller(kind: str) -> None:
    other = next(example for name, example in EXAMPLES.items() if name != kind)
    with pytest.raises(TypeError):
        ACTUATORS[kind](other)


async def test_replicas_in_the_settings_make_one_gateway_of_several_addresses() -> None:
    settings = WebhookGateway(name="edge", kind="webhook", url="http://127.0.0.1:1", replicas=("http://127.0.0.1:2",))
    actuator = build_actuator(settings)
    assert isinstance(actuator, ReplicatedActuator)
    assert (actuator.name, actuator.kind, len(actuator.replicas)) == ("edge", "webhook", 2)
    await actuator.close()
