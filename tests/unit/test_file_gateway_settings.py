"""Gateways that are switched by a file, as people configure them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailkeeper.config import ConfigError, load, parse
from tailkeeper_watchdog.gateways import TraefikGateway

ENVOY = {"name": "edge", "kind": "envoy", "eds_file": "llm.json", "cluster": "llm", "admin_url": "http://127.0.0.1:9901"}
TRAEFIK = {"name": "edge", "kind": "traefik", "file": "llm.yml", "service": "llm", "api_url": "http://127.0.0.1:8080"}


@pytest.mark.parametrize(
    ("gateway", "server"), [(ENVOY, "10.0.1.1:8000"), (TRAEFIK, "http://10.0.1.1:8000")], ids=["envoy", "traefik"]
)
def test_the_server_follows_from_the_address_of_the_backend(gateway: dict[str, Any], server: str) -> None:
    backend = {"name": "a", "engine": "vllm", "url": "http://10.0.1.1:8000", "gateway": {"name": "edge"}}
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
