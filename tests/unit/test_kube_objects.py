"""Names of servers in a cluster, and where the configuration takes them from. Pure."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from tailkeeper.backends import server_of
from tailkeeper_watchdog.actuators.kube_api import DEPLOYMENTS, LEASES, NODES, PODS, Ask, refusal
from tailkeeper_watchdog.actuators.kube_objects import Place, place_of
from tailkeeper_watchdog.gateways import KubernetesGateway


def test_the_base_install_needs_no_kubernetes_client() -> None:
    code = "import sys, tailkeeper_watchdog.actuators; "
    code += "assert not {'kubernetes_asyncio', 'aiohttp'} & set(sys.modules), 'imported too early'"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=30)


PLACES = [
    ("llm/a", Place("llm", "", "a")),
    ("llm/vllm-0.example", Place("llm", "", "vllm-0.example")),
    ("llm/pod/a", Place("llm", "pod", "a")),
    ("llm/deployment/web", Place("llm", "deployment", "web")),
    ("llm/statefulset/db", Place("llm", "statefulset", "db")),
    ("llm/daemonset/x", None),
    ("llm", None),
    ("/a", None),
    ("llm/", None),
    ("llm/A", None),
    ("llm/..", None),
    ("llm/pod/a/b", None),
    ("LLM/a", None),
    ("l" * 64 + "/a", None),
    ("llm/" + "a" * 254, None),
]


@pytest.mark.parametrize(("server", "place"), PLACES)
def test_a_servers_name_is_taken_apart_or_is_none(server: str, place: Place | None) -> None:
    assert place_of(server) == place


def test_a_found_pod_is_the_server_of_its_own_name() -> None:
    assert server_of("kubernetes", None, "llm/vllm-0", "http://10.0.0.1:8000", "m") == "llm/vllm-0"
    with pytest.raises(ValueError, match="must be there"):
        server_of("kubernetes", None, "a", "http://10.0.0.1:8000", "m")


PATHS = [
    (PODS.path("llm", "a", "eviction"), "/api/v1/namespaces/llm/pods/a/eviction"),
    (NODES.path("", "", ""), "/api/v1/nodes"),
    (DEPLOYMENTS.path("llm", "web", "scale"), "/apis/apps/v1/namespaces/llm/deployments/web/scale"),
    (LEASES.path("llm", "", ""), "/apis/coordination.k8s.io/v1/namespaces/llm/leases"),
]


@pytest.mark.parametrize(("path", "documented"), PATHS)
def test_paths_are_the_documented_ones(path: str, documented: str) -> None:
    assert path == documented


@pytest.mark.parametrize("body", [b"", b"[]", b"3", b'{"details": 3}', b'{"details": {"causes": [3]}}', b"\xff", b"[" * 10_000])
def test_a_refusal_whose_words_cannot_be_read_is_a_refusal_all_the_same(body: bytes) -> None:
    assert "may not patch nodes" in refusal(Ask("patch", NODES), 403, body).message


def test_there_is_one_way_in_and_a_grace_only_for_evictions() -> None:
    named = {"name": "k", "kind": "kubernetes"}
    assert KubernetesGateway.model_validate({**named, "kubeconfig": "/k"}).evict is False
    for more in ({"kubeconfig": "/k", "in_cluster": True}, {"evict_grace_s": 5}):
        with pytest.raises(ValidationError):
            KubernetesGateway.model_validate({**named, **more})
