"""The file with all GPUs, put together from those of the single engines, and spoilt on demand."""

from __future__ import annotations

import contextlib
import json
import random
import threading
from enum import StrEnum
from pathlib import Path
from typing import Any

from tailkeeper_demo.gpu_file import gpu_uuid

PERIOD_S = 0.5
BLOCKED_S = 30.0


class GpuFault(StrEnum):
    """What happens to the file, or to one device in it."""

    MISSING = "missing"
    GARBLED = "garbled"
    """Bytes that are no JSON, a half document, or one of other types."""
    FULL = "full"
    """All of the device's memory is in use."""
    LOST = "lost"
    """The device is not listed any more."""
    HANG = "hang"
    """Asking the device blocks."""


WHOLE_FILE = frozenset({GpuFault.MISSING, GpuFault.GARBLED})


class Gpus:
    """Writes ``path`` twice a second. ``faults`` is set from outside: by engine, or by ``*`` for the file."""

    def __init__(self, folder: Path, names: tuple[str, ...], seed: int) -> None:
        self._folder, self._names = folder, names
        self._path = folder / "gpus.json"
        self._random = random.Random(seed)
        self._last: dict[str, dict[str, Any]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpus", daemon=True)
        self.faults: dict[str, GpuFault] = {}

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.write_once()
            self._stop.wait(PERIOD_S)

    def write_once(self) -> None:
        whole = self.faults.get("*")
        if whole is GpuFault.MISSING:
            self._path.unlink(missing_ok=True)
            return
        text = json.dumps({"driver": "550.54", "gpus": self._devices()})
        body = _garbled(text, self._random) if whole is GpuFault.GARBLED else text.encode()
        made = self._path.with_name("gpus.new")
        made.write_bytes(body)
        made.replace(self._path)

    def _devices(self) -> list[dict[str, Any]]:
        devices = []
        for index, name in enumerate(self._names):
            with contextlib.suppress(OSError, ValueError, LookupError):  # of an engine that is just started: as it was last
                self._last[name] = json.loads((self._folder / f"gpu-{name}.json").read_text())["gpus"][0]
            device = dict(self._last.get(name, {})) | {"index": index, "uuid": gpu_uuid(index)}
            fault = self.faults.get(name)
            if fault is GpuFault.LOST or len(device) == 2:
                continue
            if fault is GpuFault.FULL:
                device["memory_used_bytes"] = device["memory_total_bytes"]
            if fault is GpuFault.HANG:
                device["hang_s"] = BLOCKED_S
            devices.append(device)
        return devices


def _garbled(text: str, rng: random.Random) -> bytes:
    kinds = (
        lambda: rng.randbytes(500),
        lambda: text[: len(text) // 2].encode(),
        lambda: b"",
        lambda: b'{"driver": 3, "gpus": {"index": "x"}}',
        lambda: b'{"driver": "1", "gpus": [{"index": -1, "uuid": null, "memory_total_bytes": "much"}, 7, null]}',
    )
    return rng.choice(kinds)()
