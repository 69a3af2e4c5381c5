"""The real Triton: what the fake was made after, once more against the program itself.

It is in no package list here, for it is 371 MB: `python3.11 -m venv DIR && DIR/bin/pip install nvidia-pytriton`, and then
TAILKEEPER_TRITON=DIR. Without that these tests are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind
from tailkeeper_watchdog.actuators.triton import NO_BATCHING, NOT_EXPLICIT, Pace, TritonActuator
from tailkeeper_watchdog.model import Knob
from tests.contract.fake_triton import ADMIN
from tests.e2e.real_programs import answers_200, free_port, open_url, running

pytestmark = pytest.mark.real
DEADLINE_S = 20.0
"""A load takes 2 s, and far longer where others use the machine."""
UNHURRIED = Pace(rest_s=0, rest_times=0, slow_load_s=60)
WINDOW = Knob.BATCH_WINDOW_S
SECRET = "s3cret"
CONFIG = """
name: "{name}"
backend: "python"
max_batch_size: 8
input [{{name: "x" data_type: TYPE_FP32 dims: [1]}}]
output [{{name: "y" data_type: TYPE_FP32 dims: [1]}}]
instance_group [{{kind: KIND_CPU count: 1}}]
{batching}
"""
BATCHING = "dynamic_batching { max_queue_delay_microseconds: 200000 preferred_batch_size: [8] }"
MODEL = """
import time
import triton_python_backend_utils as pb
class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.01)
        inputs = [pb.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb.InferenceResponse(output_tensors=[pb.Tensor("y", x)]) for x in inputs]
"""


@dataclass
class Installed:
    """Where the wheel has put the program."""

    site: Path
    version: str

    @property
    def server(self) -> Path:
        return self.site / "pytriton" / "tritonserver"

    def environment(self) -> dict[str, str]:
        libraries = (self.server / "external_libs", self.site / "nvidia_pytriton.libs", Path("/usr/lib"))
        path = f"{self.site.parents[2] / 'bin'}:{os.environ['PATH']}"
        return {"LD_LIBRARY_PATH": ":".join(map(str, libraries)), "PYTHONPATH": str(self.site), "PATH": path}


@pytest.fixture(scope="module")
def installed() -> Installed:
    place = os.environ.get("TAILKEEPER_TRITON")
    if not place:
        pytest.skip("Triton is missing; python3.11 -m venv DIR && DIR/bin/pip install nvidia-pytriton, TAILKEEPER_TRITON=DIR")
    (site,) = Path(place).glob("lib/python3*/site-packages")
    return Installed(site, site.parent.name.removeprefix("python"))


@pytest.fixture(scope="module")
def folder(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a model that batches and one that does not, and the backend that runs them."""
    folder = tmp_path_factory.mktemp("triton")
    for name, batching in (("llm", BATCHING), ("plain", "")):
        (folder / "models" / name / "1").mkdir(parents=True)
        (folder / "models" / name / "config.pbtxt").write_text(CONFIG.format(name=name, batching=batching))
        (folder / "models" / name / "1" / "model.py").write_text(MODEL)
    backend = folder / "backends" / "python"
    shutil.copytree(installed.server / "backends" / "python", backend)
    shutil.copy(installed.server / "python_backend_stubs" / installed.version / "triton_python_backend_stub", backend)
    (folder / "headers").write_text(f"{ADMIN}: {SECRET}\n")
    return folder


@contextmanager
def tritonserver(installed: Installed, folder: Path, *arguments: str) -> Iterator[str]:
    ports = [str(free_port()) for _ in range(3)]
    listen = [
        word
        for kind, port in zip(("http", "grpc", "metrics"), ports, strict=True)
        for word in (f"--{kind}-address", "127.0.0.1", f"--{kind}-port", port)
    ]
    paths = ("--model-repository", str(folder / "models"), "--backend-directory", str(folder / "backends"))
    url = f"http://127.0.0.1:{ports[0]}"
    argv = [str(installed.server / "bin" / "tritonserver"), *listen, *paths, *arguments]
    with (
        patch.dict(os.environ, installed.environment()),
        running(argv, folder / f"{ports[0]}.log", lambda: answers_200(f"{url}/v2/health/ready")),
    ):
        yield url


@pytest.fixture(scope="module")
def explicit(installed: Installed, folder: Path) -> Iterator[str]:
    """Loads models when told, by whom has the secret."""
    loads = ("--model-control-mode", "explicit", "--load-model", "llm", "--load-model", "plain")
    with tritonserver(installed, folder, *loads, f"--http-restricted-api=model-repository:{ADMIN}={SECRET}") as url:
        yield url


def mean_s(url: str, requests: int = 5) -> float:
    """Of requests one after the other, each a batch of its own. Every one must be answered."""
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]}).encode()
    took = []
    for _ in range(requests):
        started = time.monotonic()
        with open_url(urllib.request.Request(f"{url}/v2/models/llm/infer", data=body), timeout=10) as response:
            assert json.load(response)["outputs"][0]["data"] == [1.0]
        took.append(time.monotonic() - started)
    return statistics.mean(took)


async def test_a_shorter_window_is_had_by_requests_and_given_back_and_nothing_else_changes(explicit: str, folder: Path) -> None:
    actuator = TritonActuator("edge", explicit, Auth(headers_file=folder / "headers"), UNHURRIED)
    before = (await actuator.read(("llm",), DEADLINE_S))["llm"]
    config, long_s = await actuator._config("llm"), mean_s(explicit)
    await actuator.write("llm", {WINDOW: 0.001}, DEADLINE_S)
    during, short_s = (await actuator.read(("llm",), DEADLINE_S))["llm"], mean_s(explicit)
    await actuator.write("llm", {WINDOW: 0.2}, DEADLINE_S)
    after, again_s = (await actuator.read(("llm",), DEADLINE_S))["llm"], mean_s(explicit)
    same = await actuator._config("llm")
    await actuator.close()

    assert [seen.values[WINDOW] for seen in (before, during, after)] == [0.2, 0.001, 0.2]
    assert all(seen.in_service and not seen.doubt and not seen.cannot for seen in (before, during, after))
    assert short_s < 0.2 <= min(long_s, again_s)
    assert same == config


async def test_a_load_without_the_secret_changes_nothing_and_says_so(explicit: str) -> None:
    actuator = TritonActuator("edge", explicit, Auth(), UNHURRIED)
    seen = (await actuator.read(("llm",), DEADLINE_S))["llm"]
    with pytest.raises(ActuatorError) as caught:
        await actuator.write("llm", {WINDOW: 0.001}, DEADLINE_S)
    after = (await actuator.read(("llm",), DEADLINE_S))["llm"]
    await actuator.close()

    assert caught.value.kind is ErrorKind.UNAUTHORIZED
    assert seen.values == after.values == {WINDOW: 0.2}


async def test_an_unknown_model_is_left_out_and_one_without_batching_says_so(explicit: str) -> None:
    actuator = TritonActuator("edge", explicit, Auth(), UNHURRIED)
    seen = await actuator.read(("plain", "nobody"), DEADLINE_S)
    await actuator.close()

    assert set(seen) == {"plain"}
    assert seen["plain"].cannot == {WINDOW: NO_BATCHING}


async def test_a_server_that_loads_models_by_itself_says_so_and_is_not_tried(installed: Installed, folder: Path) -> None:
    with tritonserver(installed, folder, "--model-control-mode", "none") as url:
        actuator = TritonActuator("edge", url, Auth(), UNHURRIED)
        seen = (await actuator.read(("llm",), DEADLINE_S))["llm"]
        with pytest.raises(ActuatorError) as caught:
            await actuator.write("llm", {WINDOW: 0.001}, DEADLINE_S)
        await actuator.close()

    assert (seen.values, seen.cannot) == ({WINDOW: 0.2}, {WINDOW: NOT_EXPLICIT})
    assert caught.value.kind is ErrorKind.REFUSED
