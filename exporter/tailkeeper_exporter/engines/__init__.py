"""The engines that the exporter knows. ``ENGINES`` is the only list; an engine is one file and one line here."""

from __future__ import annotations

from tailkeeper_exporter.engines.base import Engine, Given, ProbeRequest, Progress, Source
from tailkeeper_exporter.engines.generic import GENERIC
from tailkeeper_exporter.engines.llamacpp import LLAMACPP
from tailkeeper_exporter.engines.nim import NIM
from tailkeeper_exporter.engines.ray import RAY
from tailkeeper_exporter.engines.sglang import SGLANG
from tailkeeper_exporter.engines.tgi import TGI
from tailkeeper_exporter.engines.triton import TRITON
from tailkeeper_exporter.engines.trtllm import TRTLLM
from tailkeeper_exporter.engines.vllm import VLLM

ENGINES: tuple[Engine, ...] = (VLLM, SGLANG, TRTLLM, TGI, LLAMACPP, NIM, RAY, TRITON, GENERIC)

ENGINE_NAMES: tuple[str, ...] = tuple(engine.name for engine in ENGINES)


def engine_named(name: str) -> Engine:
    """The engine of that name. Raises KeyError: the settings have checked the name before."""
    for engine in ENGINES:
        if engine.name == name:
            return engine
    raise KeyError(name)


__all__ = ["ENGINES", "ENGINE_NAMES", "Engine", "Given", "ProbeRequest", "Progress", "Source", "engine_named"]
