"""A simulated fleet in one process: N engines on N ports, one file for their GPUs, and an admin port for faults.

    python -m tailkeeper_demo.fleet --engines 4 --gpu-file gpus.json --ready-file ready.json

Admin, JSON over HTTP: `GET /faults`, `POST /faults {"engine", "fault", "duration_s"}`, `DELETE /faults/{engine}`.
It listens on loopback unless another address is asked for; it has no authentication, being a toy to break.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import string
import sys
import time
from pathlib import Path

from tailkeeper_demo import gpu_file
from tailkeeper_demo.engine_server import EngineServer
from tailkeeper_demo.engine_types import EngineParams
from tailkeeper_demo.faults import FaultError, parse_fault
from tailkeeper_demo.http1 import Request
from tailkeeper_demo.http_server import HttpServer, Reply
from tailkeeper_demo.json_file import write_json
from tailkeeper_demo.lifetime import until_told

MAX_ENGINES = 26
"""One letter each."""
_GPU_PERIOD_S = 0.5


class Fleet:
    """The engines, their GPUs and the admin surface."""

    def __init__(self, *, engines: int, model: str, seed: int, gpu_path: Path | None) -> None:
        names = [f"sim-{letter}" for letter in string.ascii_lowercase[:engines]]
        self.engines = {
            name: EngineServer(name=name, model=model, params=EngineParams(), seed=seed * 1000 + index, wall=time.time)
            for index, name in enumerate(names)
        }
        self.admin_url = ""
        self._gpus = [gpu_file.GpuState(index, gpu_file.gpu_uuid(index)) for index in range(engines)]
        self._gpu_path = gpu_path
        self._admin = HttpServer(self._handle)
        self._writer: asyncio.Task[None] | None = None

    async def start(self, *, host: str, base_port: int, admin_port: int) -> None:
        """Listen everywhere and write the GPU file once. Raises `OSError`."""
        for index, engine in enumerate(self.engines.values()):
            await engine.start(host, base_port + index if base_port else 0)
        port = await self._admin.listen(host, admin_port)
        self.admin_url = f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"
        if self._gpu_path is not None:
            self._sample_gpus(self._gpu_path, _GPU_PERIOD_S)
            self._writer = asyncio.get_running_loop().create_task(self._keep_writing(self._gpu_path))

    async def stop(self) -> None:
        """Close every port."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
        for engine in self.engines.values():
            await engine.stop()
        self._admin.stop_listening()
        self._admin.cut_connections()

    def ready(self) -> dict[str, object]:
        """What the ready file says."""
        engines = [
            {"name": name, "url": engine.url, "gpu_uuid": gpu.uuid}
            for (name, engine), gpu in zip(self.engines.items(), self._gpus, strict=True)
        ]
        return {"engines": engines, "admin_url": self.admin_url, "gpu_file": str(self._gpu_path) if self._gpu_path else None}

    async def _keep_writing(self, path: Path) -> None:
        loop = asyncio.get_running_loop()
        last_s = loop.time()
        while True:
            await asyncio.sleep(_GPU_PERIOD_S)
            now_s = loop.time()
            try:
                self._sample_gpus(path, now_s - last_s)
            except OSError as error:
                # A full disk must not end the fleet; the exporter sees the file grow old.
                print(f"cannot write the GPU file {path}: {error}", file=sys.stderr)
            last_s = now_s

    def _sample_gpus(self, path: Path, elapsed_s: float) -> None:
        readings = [engine.reading() for engine in self.engines.values()]
        self._gpus = [gpu_file.advance(gpu, reading, elapsed_s) for gpu, reading in zip(self._gpus, readings, strict=True)]
        write_json(path, gpu_file.document(self._gpus))

    # -- admin --------------------------------------------------------------------------------------------------------

    def _handle(self, request: Request, reply: Reply) -> None:
        try:
            if (request.method, request.path) == ("POST", "/faults"):
                self._inject(request.body, reply)
            elif (request.method, request.path) == ("GET", "/faults"):
                reply.send_json(200, self._faults())
            elif request.method == "DELETE" and request.path.startswith("/faults/"):
                self._engine(request.path.removeprefix("/faults/")).clear()
                reply.send_json(200, self._faults())
            else:
                reply.send_json(404, {"error": "use GET /faults, POST /faults or DELETE /faults/{engine}"})
        except FaultError as error:
            reply.send_json(400, {"error": str(error)})

    def _inject(self, body: bytes, reply: Reply) -> None:
        try:
            document = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise FaultError(f"the body is not JSON: {error}") from error
        name, fault = parse_fault(document)
        self._engine(name).inject(fault)
        reply.send_json(200, self._faults())

    def _engine(self, name: str) -> EngineServer:
        engine = self.engines.get(name)
        if engine is None:
            raise FaultError(f"engine {name!r} is unknown; there are: {', '.join(self.engines)}")
        return engine

    def _faults(self) -> dict[str, object]:
        return {"engines": [_state(engine) for engine in self.engines.values()]}


def _state(engine: EngineServer) -> dict[str, object]:
    fault = engine.fault
    kind = None if fault is None else str(fault.kind)
    return {"engine": engine.name, "phase": str(engine.phase), "fault": kind, "duration_s": fault.duration_s if fault else None}


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tailkeeper_demo.fleet", description="A simulated LLM fleet.")
    parser.add_argument("--engines", type=int, default=4, help=f"1 to {MAX_ENGINES}")
    parser.add_argument("--host", default="127.0.0.1", help="listen address; there is no authentication")
    parser.add_argument("--base-port", type=int, default=0, help="port of the first engine, the others follow; 0: any free ports")
    parser.add_argument("--admin-port", type=int, default=0)
    parser.add_argument("--gpu-file", type=Path, default=None)
    parser.add_argument("--ready-file", type=Path, default=None, help="written when everything listens")
    parser.add_argument("--model", default="llama-3-8b")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parent-pid", type=int, default=None, help="end when this process is gone")
    arguments = parser.parse_args(argv)
    if not 1 <= arguments.engines <= MAX_ENGINES:
        parser.error(f"--engines {arguments.engines} is not between 1 and {MAX_ENGINES}")
    return arguments


async def _run(arguments: argparse.Namespace) -> int:
    fleet = Fleet(engines=arguments.engines, model=arguments.model, seed=arguments.seed, gpu_path=arguments.gpu_file)
    try:
        await fleet.start(host=arguments.host, base_port=arguments.base_port, admin_port=arguments.admin_port)
        if arguments.ready_file is not None:
            write_json(arguments.ready_file, fleet.ready())
        await until_told(arguments.parent_pid)
    except OSError as error:
        print(f"the simulated fleet cannot start: {error}", file=sys.stderr)
        return 1
    finally:
        await fleet.stop()
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run until told to stop. Returns the exit code: 0, 1 when an address or a file cannot be had, 2 on wrong usage."""
    return asyncio.run(_run(_arguments(argv)))


if __name__ == "__main__":
    sys.exit(main())
