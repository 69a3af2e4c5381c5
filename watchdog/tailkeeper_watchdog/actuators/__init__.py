"""The gateways that can be switched. ``ACTUATORS`` is the only list; an actuator is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from tailkeeper_watchdog.actuators import (
    consul,
    engine,
    envoy,
    haproxy,
    kubernetes,
    litellm,
    ray_serve,
    sglang_router,
    tap,
    traefik,
    triton,
    vllm_router,
    webhook,
)
from tailkeeper_watchdog.actuators.contract import Actuator
from tailkeeper_watchdog.gateways import Gateway

ACTUATORS: Mapping[str, Callable[[Gateway], Actuator]] = {
    haproxy.KIND: haproxy.create,
    webhook.KIND: webhook.create,
    tap.KIND: tap.create,
    sglang_router.KIND: sglang_router.create,
    vllm_router.KIND: vllm_router.create,
    consul.KIND: consul.create,
    envoy.KIND: envoy.create,
    traefik.KIND: traefik.create,
    triton.KIND: triton.create,
    ray_serve.KIND: ray_serve.create,
    engine.KIND: engine.create,
    kubernetes.KIND: kubernetes.create,
    litellm.KIND: litellm.create,
}


LOOKERS: Mapping[str, Callable[[Gateway], Actuator]] = {
    kind.KIND: partial(kind.create, looks_only=True) for kind in (consul, triton, sglang_router, vllm_router)
}
"""The kinds of which a ``read`` does more than to look: renews a session, tries whether a load is allowed, forgets a note."""


def build_looker(settings: Gateway) -> Actuator:
    """As ``build_actuator``, for somebody who only looks beside a watchdog: its ``read`` leaves everything as it is."""
    return {**ACTUATORS, **LOOKERS}[settings.kind](settings)


def build_actuator(settings: Gateway) -> Actuator:
    """The actuator for one entry of `gateways`. Opens nothing; raises KeyError for a kind without an actuator."""
    return ACTUATORS[settings.kind](settings)


__all__ = ["ACTUATORS", "Actuator", "build_actuator", "build_looker"]
