"""This machine: the state and the disk below it, the kill switch, the watchdog's own port, GPUs. Looks, and writes nothing.

Whether a folder can be written is asked of the system (`access`), not tried: a trial would leave a trace. What never answers
(a network file system that is gone) costs a thread and ``DISK_S`` seconds.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from tailkeeper.asking import Asker, AskError, Trouble
from tailkeeper.config import Config, own_url
from tailkeeper.doctor.findings import Finding, Findings, Mistake, Severity
from tailkeeper.doctor.rights import may
from tailkeeper_exporter.clients import Clients
from tailkeeper_exporter.discovery.base import DiscoveryError, SingleFlight
from tailkeeper_exporter.gpu import DeviceId, GpuError, GpuReason, match_devices, open_source
from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators.calls import excerpt

ASK_S = 3.0
GPU_S = 8.0
DISK_S = 5.0
LEDGER_BYTES = 64 * 1024 * 1024
"""What the state may grow to with the decisions of a large fleet; below that much free space a night is not safe."""
SQLITE = b"SQLite format 3\x00"


async def check_state(config: Config) -> Findings:
    return await _looked(lambda: of_state(config), "watchdog.state", f"the disk below {config.watchdog.state}")


async def _looked(look: Callable[[], Findings], key: str, what: str) -> Findings:
    try:
        return await SingleFlight[Findings](what).call(look, DISK_S)
    except DiscoveryError as error:
        do = "is a network file system gone? `ls` there would hang as well"
        return [Finding(Mistake.STATE_NOT_WRITABLE, key, str(error), do)]


def of_state(config: Config) -> Findings:
    """What is the matter with the state's file, the folder around it and the space below."""
    file = config.watchdog.state.resolve()
    found = [*_writable(file, "watchdog.state"), *_is_ledger(file)]
    records = config.watchdog.records_path
    if records is not None:
        found += [f for f in _writable(records.resolve(), "watchdog.records.path") if records.resolve().parent != file.parent]
    wanted = LEDGER_BYTES + (config.watchdog.records.max_bytes if records is not None else 0)
    return found + _space(file.parent, wanted)


def _writable(file: Path, key: str) -> Findings:
    # Path.exists would raise where the folder may not be entered, which is what is to be told here.
    blocked = file if may(file, os.F_OK) and not may(file, os.R_OK | os.W_OK) else None
    if blocked is None and not may(file.parent, os.W_OK | os.X_OK):
        blocked = file.parent  # SQLite puts its journal beside the file
    if blocked is None:
        return []
    what = f"{blocked} may not be written by the user who runs this (uid {os.geteuid()}): without it nothing is ever changed"
    do = (
        f"give the user of the watchdog the folder {file.parent}, or name another file in {key}; a container needs a volume there"
    )
    return [Finding(Mistake.STATE_NOT_WRITABLE, key, what, do)]


def _is_ledger(file: Path) -> Findings:
    try:
        with file.open("rb") as opened:
            start = opened.read(len(SQLITE))
    except OSError:
        return []
    if not start or start == SQLITE:
        return []
    what = f"{file} is there and is no ledger (it is no SQLite file)"
    return [
        Finding(
            Mistake.STATE_NOT_OURS,
            "watchdog.state",
            what,
            "name another file; the watchdog writes over nothing that is not its own",
        )
    ]


def _space(folder: Path, wanted_bytes: int) -> Findings:
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return []
    if free >= wanted_bytes:
        return []
    severity = Severity.WRONG if free < LEDGER_BYTES else Severity.WARNING
    what = f"{free / 2**20:.0f} MiB are free below {folder}, and state and records may take {wanted_bytes / 2**20:.0f} MiB"
    do = "free some space, or lower watchdog.records.max_bytes; a change that cannot be written down is not made"
    return [Finding(Mistake.DISK_FULL, "watchdog.state", what, do, severity)]


async def check_pause_file(file: Path) -> Findings:
    return await _looked(lambda: of_pause_file(file), "guards.pause_file", f"the folder of {file}")


def of_pause_file(file: Path) -> Findings:
    try:
        there = file.exists()
    except OSError as error:
        what = f"{file} cannot be looked at ({error.strerror}), which counts as there: nothing is changed"
        return [Finding(Mistake.PAUSE_FILE, "guards.pause_file", what, "let the watchdog's user look into that folder")]
    if not there:
        return []
    what = f"the kill switch {file} is there: nothing is changed while it is"
    return [
        Finding(Mistake.PAUSE_FILE, "guards.pause_file", what, "remove it when whoever put it there agrees", Severity.WARNING)
    ]


async def check_watchdog(config: Config, clients: Clients) -> Findings:
    """A watchdog that runs already may be paused; somebody else may have its port."""
    url = own_url(config.watchdog.listen)
    try:
        async with Asker(url, Auth(), clients) as asker:
            document = (await asker.get("/api/v1/fleet", ASK_S)).json()
    except AskError as error:
        if error.trouble is Trouble.REFUSED or error.status in (401, 403, 503):
            return []  # it does not run yet, its first tick has not ended, or a proxy guards it
        if error.trouble is Trouble.SILENT:
            return [_silent(url, str(error))]
        return [_port_taken(url, str(error))]
    if not isinstance(document, dict) or "backends" not in document:
        return [_port_taken(url, "its answer is no fleet document")]
    if not document.get("paused"):
        return []
    what = f"the running watchdog is paused: {excerpt(str(document.get('paused_because') or 'by API or signal'))}"
    return [
        Finding(
            Mistake.PAUSED, "watchdog.listen", what, f"POST {url}/api/v1/resume, when whoever paused it agrees", Severity.WARNING
        )
    ]


def _silent(url: str, why: str) -> Finding:
    """Perhaps our own that hangs, perhaps a firewall: whose port it is cannot be told."""
    do = "is a watchdog stuck there? Its log tells; or correct watchdog.listen, if that address is not this machine's"
    return Finding(Mistake.NOT_CHECKED, "watchdog.listen", f"{url} {why}", do, Severity.WARNING)


def _port_taken(url: str, why: str) -> Finding:
    what = f"something answers at {url}, and it is no watchdog of ours ({why})"
    return Finding(Mistake.PORT_TAKEN, "watchdog.listen", what, "give watchdog.listen another port, or end the other program")


async def check_gpus(config: Config) -> Findings:
    """The GPUs as the exporter of this file would see them. A driver that hangs costs ``GPU_S`` seconds and a thread."""
    settings = config.exporter.gpu
    named = any(backend.gpus for backend in config.backends)
    # `auto` finds nothing where nothing is, and that is no mistake unless somebody names a GPU.
    source = open_source(settings.model_copy(update={"source": "nvml"}) if settings.source == "auto" and named else settings)
    if source is None:
        return [] if not named else [_no_gpus("the backends name GPUs, and exporter.gpu.source is none", "set it to auto")]
    try:
        devices: tuple[DeviceId, ...] = await SingleFlight[tuple[DeviceId, ...]]("the GPU driver").call(source.devices, GPU_S)
    except GpuError as error:
        return [_gpu_error(error, settings.source)]
    except DiscoveryError as error:
        do = "is the driver stuck? `nvidia-smi` would hang as well; dmesg has the reason"
        return [Finding(Mistake.GPU_UNREADABLE, "exporter.gpu", str(error), do)]
    return _unmatched(config, devices)


def _gpu_error(error: GpuError, source: str) -> Finding:
    said = excerpt(str(error))
    if error.reason is GpuReason.LIBRARY_MISSING:
        do = (
            "pip install 'tailkeeper[gpu]', and a driver: `nvidia-smi` must work for the same user; a container needs the NVIDIA "
            "runtime (`--gpus all`). On a machine without a GPU take `gpus` out, and set exporter.gpu.source: none"
        )
        return _no_gpus(f"NVML, the driver's library, is not there: {said}", do)
    do = "correct exporter.gpu: is the page, or the file, there and readable?"
    return Finding(Mistake.GPU_UNREADABLE, "exporter.gpu", f"{source} cannot be read: {said}", do)


def _no_gpus(what: str, do: str) -> Finding:
    return Finding(Mistake.GPU_NOT_FOUND, "exporter.gpu.source", what, do)


def _unmatched(config: Config, devices: tuple[DeviceId, ...]) -> Findings:
    there = ", ".join(f"{d.index} ({d.uuid})" for d in devices[:8]) or "none"
    return [
        Finding(
            Mistake.GPU_NOT_FOUND,
            f"backends.{index}.gpus",
            f"{text!r} is {'several GPUs' if reason is GpuReason.AMBIGUOUS else 'no GPU'} here",
            f"write an index, a UUID, or a unique beginning of one of: {there}",
            backend=backend.name,
        )
        for index, backend in enumerate(config.backends)
        for text, reason in match_devices(devices, backend.gpus).problems
    ]
