"""Gateways that are switched by a file, as people configure them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailkeeper.config import ConfigError, load, parse
from tailkeeper_watchdog.gateways import TraefikGateway

ENVOY = {"name": "edge", "kind": "envoy", "eds_file": "llm.json", "cluster": "llm", "admin_url": "http://127.0.0.1:9901"}
TRAEFIK = {"name": "edge", "kind": "traefik", "file": "llm.yml", "service": "llm", "api_url": "http://127.0.0.1:8080"}


@pytest.mark.parametrize(
    ("gateway", "url", "server"),
    [
        (ENVOY, "http://10.0.1.1:8000", "10.0.1.1:8000"),
        (ENVOY, "http://10.0.1.1", "10.0.1.1:80"),
        (ENVOY, "https://[fd00::1]", "[fd00::1]:443"),
        (TRAEFIK, "http://10.0.1.1:8000", "http://10.0.1.1:8000"),
    ],
)
def test_the_server_follows_from_the_address_of_the_backend(gateway: dict[str, Any], url: str, server: str) -> None:
    backend = {"name": "a", "engine": "vllm", "url": url, "gateway": {"name": "edge"}}
    (found,) = parse({"backends": [backend], "gateways": [gateway]}).backends
    assert [ref.server for ref in found.gateway] == [server]


@pytest.mark.parametrize(
    ("gateway", "said"),
    [
        ({**ENVOY, "eds_file": "llm.pb"}, "gateways.0.eds_file: must end in .json or .yaml or .yml"),
        ({**ENVOY, "cluster": ""}, "gateways.0.cluster"),
        ({**ENVOY, "admin_url": "127.0.0.1:9901"}, "gateways.0.admin_url: must be an http"),
        ({**ENVOY, "replicas": [{"admin_url": "http://127.0.0.1:1", "eds_file": "x.pb"}]}, "must end in .json"),
        ({**TRAEFIK, "file": "llm.toml"}, "gateways.0.file: must end in .yaml or .yml"),
        ({**TRAEFIK, "api_url": "http://me:secret@127.0.0.1"}, "must carry no user and password"),
        ({**TRAEFIK, "folder": "x"}, "gateways.0.folder: unknown key"),
    ],
)
def test_what_is_wrong_is_said_with_its_key(gateway: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({"gateways": [gateway]})
    assert said in "\n".join(caught.value.problems)


def test_a_service_may_be_named_with_its_provider() -> None:
    assert TraefikGateway.model_validate({**TRAEFIK, "service": "llm@file"}).service == "llm"


@pytest.mark.parametrize(("key", "gateway"), [("eds_file", ENVOY), ("file", TRAEFIK)], ids=["envoy", "traefik"])
def test_a_file_that_is_not_there_is_said_at_the_start(tmp_path: Path, key: str, gateway: dict[str, Any]) -> None:
    missing = tmp_path / f"missing{Path(gateway[key]).suffix}"
    config = tmp_path / "tailkeeper.yaml"
    lines = ", ".join(f"{name}: '{missing if name == key else value}'" for name, value in gateway.items())
    config.write_text(f"gateways: [{{{lines}}}]\nwatchdog: {{state: {tmp_path}/x.db}}\n")
    with pytest.raises(ConfigError, match=f"gateways.0.{key}"):
        load(config)
    missing.write_text("{}")
    assert load(config).gateways[0].name == "edge"


@pytest.mark.parametrize(
    ("key", "document"),
    [
        ("gateways.0.kubeconfig", {"gateways": [{"name": "k", "kind": "kubernetes", "kubeconfig": "NOWHERE"}]}),
        (
            "gateways.0.replicas.1.eds_file",
            {
                "gateways": [
                    {
                        **ENVOY,
                        "replicas": [
                            {"admin_url": f"http://{h}:1"} | f for h, f in (("b", {}), ("c", {"eds_file": "NOWHERE.json"}))
                        ],
                    }
                ]
            },
        ),
        (
            "gateways.0.replicas.0.file",
            {"gateways": [{**TRAEFIK, "replicas": [{"api_url": "http://b:1", "file": "NOWHERE.yml"}]}]},
        ),
        ("watchdog.leader.kubeconfig", {"watchdog": {"leader": {"namespace": "llm", "kubeconfig": "NOWHERE"}}}),
    ],
)
def test_any_other_file_that_is_named_and_not_there_is_said_too(tmp_path: Path, key: str, document: dict[str, Any]) -> None:
    config = tmp_path / "tailkeeper.yaml"
    config.write_text(json.dumps(document).replace("NOWHERE", f"{tmp_path}/nowhere"))
    with pytest.raises(ConfigError) as caught:
        load(config)
    (said,) = [problem for problem in caught.value.problems if problem.startswith(f"{key}: ")]
    assert "nowhere" in said


ADDRESSES: dict[str, tuple[str, Callable[[str], dict[str, Any]]]] = {
    "consul": ("gateways.0.url", lambda url: {"url": url}),
    "ray_serve": ("gateways.0.url", lambda url: {"url": url}),
    "triton": ("gateways.0.replicas", lambda url: {"url": "http://127.0.0.1:1", "replicas": [url]}),
    "webhook": ("gateways.0.replicas", lambda url: {"url": "http://127.0.0.1:1", "replicas": [url]}),
}


@pytest.mark.parametrize("kind", ADDRESSES)
@pytest.mark.parametrize(
    ("url", "said"), [("localhost:8500", "must be an http"), ("http://me:hush@127.0.0.1:1", "must carry no user and password")]
)
def test_an_address_that_is_none_or_holds_a_password_is_refused_at_every_gateway(kind: str, url: str, said: str) -> None:
    key, settings = ADDRESSES[kind]
    with pytest.raises(ConfigError) as caught:
        parse({"gateways": [{"name": "g", "kind": kind, **settings(url)}]})
    (problem,) = caught.value.problems
    assert problem.startswith(f"{key}: ")
    assert said in problem
    assert "hush" not in problem


def test_a_deployment_of_ray_is_named_with_its_application() -> None:
    backend = {"name": "r", "engine": "ray", "url": "http://127.0.0.1:1", "gateway": {"name": "ray", "server": "LLM"}}
    with pytest.raises(ConfigError, match=r"backends\.0\.gateway\.server: 'LLM' must be APPLICATION/DEPLOYMENT"):
        parse({"backends": [backend], "gateways": [{"name": "ray", "kind": "ray_serve", "url": "http://127.0.0.1:2"}]})
