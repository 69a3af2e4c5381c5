"""The sidecar overlay's two configurations, run by our own commands: engine, exporter, two watchdogs and one Lease.

The Kubernetes API is FAKE (``fake_kube_api``); all else is real. Only addresses, paths and the way into the API are replaced.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.fake_kube_api import FakeKubeApi, fake_kube_api, pod
from tests.contract.manifests import ROOT, configurations, our_containers, overlay, overlay_with
from tests.e2e.exporter_process import Running, answers, engine_process, get
from tests.e2e.real_programs import free_port

pytestmark = pytest.mark.real
NAME = "llm/vllm-0"

pytest.importorskip("kubernetes_asyncio")


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


@contextmanager
def command(folder: Path, document: Any, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """One of our commands over ``document``; ended in order where the test has not done it."""
    folder.mkdir()
    (folder / "file.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    argv = [sys.executable, "-m", "tailkeeper.cli", *words, "-c", str(folder / "file.yaml")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, stderr=log, stdout=log, cwd=ROOT)
    try:
        yield process
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(15) == 0, (folder / "log").read_text()
    finally:
        process.kill()
        process.wait()


def sidecar(folder: Path, engine: Running) -> Any:
    """The exporter's configuration, after what runs before it in the pod."""
    (init,) = [c for _, _, c in our_containers(overlay("exporter-sidecar")) if c["name"] == "tailkeeper-target"]
    script = init["args"][0].replace("/run/target", str(folder)).replace("127.0.0.1:8000", engine.url.removeprefix("http://"))
    subprocess.run([sys.executable, "-c", script], env={"NAMESPACE": "llm", "POD": "vllm-0"}, check=True, timeout=30)
    document = dict(configurations(overlay("exporter-sidecar")))["exporter.yaml"]
    document["discovery"][0]["files"] = [str(folder / "engine.json")]
    document["exporter"]["listen"] = f"127.0.0.1:{free_port()}"
    return document


def watching(folder: Path, fake: FakeKubeApi, engine: Running, exporter: str) -> Any:
    """A watchdog's configuration; the second one has a ledger of its own here, so that the Lease alone decides."""
    document = dict(configurations(overlay("exporter-sidecar")))["tailkeeper.yaml"]
    access = {"in_cluster": False, "kubeconfig": str(fake.kubeconfig(folder))}
    document["discovery"][0] |= {**access, "port": port_of(engine.url)}
    document["gateways"][0] |= access
    (folder / "token").write_text("of-this-test\n", encoding="utf-8")
    document["watchdog"] |= {
        "listen": f"127.0.0.1:{free_port()}",
        "source": {"kind": "exporter", "urls": [f"http://{exporter}"]},
        "state": str(folder / f"{free_port()}.db"),
        "token_file": str(folder / "token"),
        "leader": {**document["watchdog"]["leader"], **access},
    }
    return document


def engine_with_sidecar(folder: Path, fake: FakeKubeApi, stack: ExitStack) -> tuple[Running, str]:
    """An engine whose pod the API knows, and the address of the exporter beside it."""
    engine = stack.enter_context(engine_process(tokens_per_page=5))
    thing = pod("vllm-0")
    thing["status"]["podIP"] = "127.0.0.1"
    fake.put("pods", thing)
    exporting = sidecar(folder, engine)
    stack.enter_context(command(folder / "exporter", exporting, "exporter"))
    return engine, exporting["exporter"]["listen"]


def states(url: str) -> dict[str, str]:
    return {row["backend"]: row["state"] for row in json.loads(get(url + "/api/v1/fleet")[2])["backends"]}


async def reached(holds: Any, limit_s: float = 20.0) -> None:
    """Beside the fake API, which runs in this loop."""
    async with asyncio.timeout(limit_s):
        while not await asyncio.to_thread(holds):  # noqa: ASYNC110 - another process is looked at
            await asyncio.sleep(0.1)


async def test_what_is_deployed_finds_its_engine_sees_it_die_and_hands_over(tmp_path: Path) -> None:
    async with fake_kube_api() as fake:
        with ExitStack() as stack:
            engine, exporter = engine_with_sidecar(tmp_path, fake, stack)

            first, second = (watching(tmp_path, fake, engine, exporter) for _ in range(2))
            one, two = (f"http://{document['watchdog']['listen']}" for document in (first, second))
            leader = stack.enter_context(command(tmp_path / "first", first, "watchdog"))
            await reached(lambda: answers(one + "/readyz") == 200)
            await reached(lambda: states(one) == {NAME: "serving"})
            stack.enter_context(command(tmp_path / "second", second, "watchdog"))
            await reached(lambda: answers(two + "/livez") == 200)
            await reached(lambda: "leads" in get(two + "/readyz")[2])
            assert (await asyncio.to_thread(get, two + "/readyz"))[0] == 503

            engine.process.kill()
            await reached(lambda: states(one) == {NAME: "down"})
            assert fake.in_endpoints("vllm-0"), "it only observes"

            leader.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(leader.wait, 15) == 0
            await reached(lambda: answers(two + "/readyz") == 200, 10)
            await reached(lambda: states(two) == {NAME: "down"})


async def test_shards_run_as_their_pods_run_them_lead_side_by_side_and_share_the_engines_out(tmp_path: Path) -> None:
    """One engine in no pool: exactly one shard watches it, and all three lead, each by a Lease of its own."""
    shards = overlay_with("exporter-sidecar", "watchdog-shards")["StatefulSet", "tailkeeper", "tailkeeper-watchdog"]["spec"]
    (container,) = shards["template"]["spec"]["containers"]
    async with fake_kube_api() as fake:
        with ExitStack() as stack:
            engine, exporter = engine_with_sidecar(tmp_path, fake, stack)
            urls = []
            for index in range(shards["replicas"]):
                document = watching(tmp_path, fake, engine, exporter)
                words = [word.replace("$(SHARD)", str(index)) for word in container["args"][3:]]
                stack.enter_context(command(tmp_path / f"shard-{index}", document, "watchdog", *words))
                urls.append(f"http://{document['watchdog']['listen']}")
            for url in urls:
                await reached(lambda url=url: answers(url + "/readyz") == 200, 30)
            await reached(lambda: sorted(len(states(url)) for url in urls) == [0, 0, 1])
            held = [
                fake.thing("leases", f"tailkeeper-{index}", "tailkeeper")["spec"]["holderIdentity"] for index in range(len(urls))
            ]
            assert len(set(held)) == len(urls)
            assert fake.thing("leases", "tailkeeper", "tailkeeper")["spec"]["holderIdentity"]
