"""GPUs: where samples come from (``base.GpuSource``), and the sampler that keeps the last of each device.

``open_source`` is the only place that knows which sources there are. It opens nothing: a source's first call does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tailkeeper_exporter.gpu.base import (
    FIELDS,
    THROTTLE_REASONS,
    DeviceId,
    GpuError,
    GpuReason,
    GpuSample,
    GpuSource,
    Matched,
    XidEvent,
    match_devices,
)
from tailkeeper_exporter.gpu.dcgm import DcgmSource
from tailkeeper_exporter.gpu.file import FileSource
from tailkeeper_exporter.gpu.nvml import NvmlSource
from tailkeeper_exporter.gpu.sampler import DeviceState, GpuSampler, GpuSnapshot
from tailkeeper_exporter.gpu.trouble import Trouble, trouble_of

if TYPE_CHECKING:
    from tailkeeper_exporter.settings import GpuSettings


def open_source(settings: GpuSettings, monotonic: Callable[[], float] = time.monotonic) -> GpuSource | None:
    """The source that the settings name; None for ``none``.

    ``auto`` is NVML where its library and a driver are there, and no devices where not; ``nvml`` makes their absence an
    error that shows in the snapshot. Raises ValueError for a source that lacks its file or URL.
    """
    if settings.source == "none":
        return None
    if settings.source == "file" and settings.file is not None:
        return FileSource(settings.file, monotonic)
    if settings.source in ("auto", "nvml"):
        return NvmlSource(optional=settings.source == "auto", monotonic=monotonic)
    if settings.source == "dcgm" and settings.url is not None:
        return DcgmSource(settings.url, settings.interval_s, monotonic)
    raise ValueError(f"exporter.gpu.source: {settings.source} needs its file or url")


__all__ = [
    "FIELDS",
    "THROTTLE_REASONS",
    "DcgmSource",
    "DeviceId",
    "DeviceState",
    "FileSource",
    "GpuError",
    "GpuReason",
    "GpuSample",
    "GpuSampler",
    "GpuSnapshot",
    "GpuSource",
    "Matched",
    "NvmlSource",
    "Trouble",
    "XidEvent",
    "match_devices",
    "open_source",
    "trouble_of",
]
