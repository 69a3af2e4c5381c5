"""Pods as backends, against a fake API that is built from the documented shapes (``fake_kubernetes``)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tailkeeper_exporter.discovery import DiscoveryError, Listing
from tailkeeper_exporter.discovery.kubernetes import KubernetesLister
from tailkeeper_exporter.settings import KubernetesDiscovery
from tests.loopback.fake_kubernetes import FakeKubernetes, fake_kubernetes, pod, status
from tests.unit.loopback import Handler, reply, silence

pytest.importorskip("kubernetes_asyncio")


async def pods_of(fake: FakeKubernetes, folder: Path, deadline_s: float = 5, **more: Any) -> Listing:
    document = {"kind": "kubernetes", "namespace": "llm", "selector": "app=vllm", "port": 8000}
    settings = KubernetesDiscovery.model_validate({"kubeconfig": fake.kubeconfig(folder), **document, **more})
    return await KubernetesLister(settings).list(deadline_s)


async def test_running_pods_are_backends_ready_or_not_and_all_pages_are_read(tmp_path: Path) -> None:
    pods = [
        *(pod(f"vllm-{n}", f"10.1.0.{n}") for n in range(5)),
        pod("pulling", phase="Pending"),
        pod("no-address", None),
        pod("ended", phase="Succeeded"),
        pod("leaving", deletionTimestamp="2026-01-01T00:00:00Z"),
        pod("six", "fd00::6"),
    ]
    async with fake_kubernetes(*pods) as fake:
        listing = await pods_of(fake, tmp_path)
        assert len(fake.server.requests) == 5
    assert [found.name for found in listing.found] == [*(f"llm/vllm-{n}" for n in range(5)), "llm/six"]
    assert listing.found[0].url == "http://10.1.0.0:8000"
    assert listing.found[-1].url == "http://[fd00::6]:8000"
    assert listing.found[0].labels == (("app", "vllm"), ("namespace", "llm"), ("node", "node-1"))
    assert listing.notes == ()


async def test_keys_come_from_our_own_prefix_and_a_pods_own_words_are_labels_or_nothing(tmp_path: Path) -> None:
    labels = {"app.kubernetes.io/name": "vllm", "model": "theirs", "engine": "v8", "tailkeeper/engine": "vllm"}
    annotated = pod("a", labels=labels, annotations={"tailkeeper/model": "meta-llama/Llama-3.1-8B", "other": "x"})
    async with fake_kubernetes(annotated) as fake:
        (found,) = (await pods_of(fake, tmp_path)).found
    assert found.keys == (("engine", "vllm"), ("model", "meta-llama/Llama-3.1-8B"))
    assert found.labels == (("app_kubernetes_io_name", "vllm"), ("namespace", "llm"), ("node", "node-1"))


async def test_a_list_that_expires_while_it_is_read_is_begun_anew_once(tmp_path: Path) -> None:
    pods = [pod(f"vllm-{n}") for n in range(5)]
    async with fake_kubernetes(*pods, expires=1) as fake:
        assert len((await pods_of(fake, tmp_path)).found) == 5
    async with fake_kubernetes(*pods, expires=9) as fake:
        with pytest.raises(DiscoveryError, match="expired twice"):
            await pods_of(fake, tmp_path)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            status(403, "Forbidden", "pods is forbidden"),
            r"403: may not list pods.*namespace llm.*resources: \[pods\], verbs: \[list\]",
        ),
        (status(401, "Unauthorized"), "401: the credentials are not accepted"),
        (status(500, "InternalError", "etcdserver: request timed out"), "HTTP 500: etcdserver: request timed out"),
        (status(410, "Expired", "too old resource version"), "HTTP 410: too old"),
        (reply(200, "<html>login</html>"), "is not a list of pods"),
        (reply(200, '{"metadata": {}, "items": [{}]}'), "is not a list of pods"),
        (reply(200, "[" * 100_000), "is not a list of pods"),
        (silence, r"no answer within 0\.5 s"),
    ],
    ids=["403", "401", "500", "410 at once", "a login page", "no pods", "nested", "silence"],
)
async def test_a_refusal_says_what_is_needed_and_nothing_about_backends(tmp_path: Path, answer: Handler, said: str) -> None:
    async with fake_kubernetes(answer=answer) as fake:
        started = time.monotonic()
        with pytest.raises(DiscoveryError, match=said) as caught:
            await pods_of(fake, tmp_path, 0.5 if answer is silence else 5)
        assert time.monotonic() - started < 3
    assert "fake-token" not in str(caught.value)


async def test_a_server_that_is_not_there_and_a_list_without_end_are_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fake_kubernetes(*(pod(f"p{n}") for n in range(9))) as fake:
        monkeypatch.setattr("tailkeeper_exporter.discovery.kubernetes.MAX_PAGES", 3)
        with pytest.raises(DiscoveryError, match="selects more than"):
            await pods_of(fake, tmp_path)
        monkeypatch.setattr("tailkeeper_exporter.discovery.kubernetes.MAX_PAGE_BYTES", 100)
        with pytest.raises(DiscoveryError, match="larger than 100 bytes"):
            await pods_of(fake, tmp_path)
    with pytest.raises(DiscoveryError, match="kubernetes namespace llm"):
        await pods_of(fake, tmp_path)


async def test_a_kubeconfig_that_is_none_and_a_cluster_that_is_none_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    document = {"kind": "kubernetes", "namespace": "llm", "selector": "a=b", "port": 1}
    (tmp_path / "k").write_text("nonsense: [")
    for more in ({"kubeconfig": tmp_path / "k"}, {"in_cluster": True}):
        with pytest.raises(DiscoveryError, match="kubernetes namespace llm: no usable credentials"):
            await KubernetesLister(KubernetesDiscovery.model_validate(document | more)).list(5)
    monkeypatch.setattr("kubernetes_asyncio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    with pytest.raises(DiscoveryError, match=r"in no cluster, and there is no .*none; set kubeconfig or in_cluster"):
        await KubernetesLister(KubernetesDiscovery.model_validate(document)).list(5)
