"""From what discovery found and the defaults to a backend's settings: what wins, what follows from what, what is refused."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tailkeeper.cli import app
from tailkeeper.config import Config, ConfigError, effective, load, parse
from tailkeeper_exporter.discovery import Found
from tailkeeper_watchdog.settings import GatewayRef
from tests.e2e.real_programs import free_port

EDGE = {"name": "edge", "kind": "haproxy", "socket": "/run/haproxy.sock"}
HOOK = {"name": "hook", "kind": "webhook", "url": "http://127.0.0.1:9"}
DNS = {"kind": "dns", "name": "llm.internal", "port": 8000}


def config(**document: Any) -> Config:
    return parse(
        {
            "gateways": [EDGE, HOOK, {"name": "taps", "kind": "tap"}],
            "discovery": [DNS],
            "defaults": {"engine": "vllm"},
            **document,
        }
    )


def found(name: str = "n1", **keys: str) -> Found:
    return Found(name, "http://10.0.0.1:8000", tuple(sorted(keys.items())), (("az", "a1"),))


def test_a_found_backend_has_the_defaults_and_over_them_what_its_source_says() -> None:
    defaults = {"engine": "sglang", "model": "m", "probe": {"interval_s": 3}, "labels": {"az": "?", "team": "x"}}
    backend = config(defaults=defaults).compose(found(engine="vllm", quantization="fp8"))
    assert (backend.name, backend.url) == ("n1", "http://10.0.0.1:8000")
    assert (backend.engine, backend.model, backend.quantization, backend.probe.interval_s) == ("vllm", "m", "fp8", 3)
    assert backend.labels == {"az": "a1", "team": "x"}


@pytest.mark.parametrize(
    ("gateway", "keys", "placed"),
    [
        ({"name": "edge", "pool": "llm"}, {}, GatewayRef(name="edge", server="llm/n1", pool="llm")),
        ({"name": "hook"}, {}, GatewayRef(name="hook", server="n1")),
        ({"name": "hook", "pool": "p"}, {}, GatewayRef(name="hook", server="n1", pool="p")),
        ({"name": "edge"}, {"gateway_server": "llm/s7"}, GatewayRef(name="edge", server="llm/s7")),
        ({"name": "edge"}, {"gateway_pool": "big"}, GatewayRef(name="edge", server="big/n1", pool="big")),
    ],
    ids=[
        "haproxy by pool and name",
        "webhook by name",
        "webhook with a pool",
        "the server that is said",
        "the pool that is said",
    ],
)
def test_its_server_at_the_gateway_follows_from_its_name_or_is_said(
    gateway: dict[str, str], keys: dict[str, str], placed: GatewayRef
) -> None:
    assert config(defaults={"engine": "vllm", "gateway": gateway}).compose(found(**keys)).gateway == (placed,)


@pytest.mark.parametrize(
    ("defaults", "backend", "said"),
    [
        ({}, found(), "engine: field required"),
        ({"engine": "vllm"}, found(engine="vlm"), "unknown engine 'vlm'; allowed: vllm"),
        ({"engine": "vllm", "gateway": {"name": "edge"}}, found(), "gateway.server: must be there, or `pool`"),
        (
            {"engine": "vllm", "gateway": {"name": "edge", "pool": "llm"}},
            found("ns/pod"),
            "haproxy has no server called 'ns/pod'",
        ),
        ({"engine": "vllm", "gateway": {"name": "edge"}}, found(gateway_server="s7"), "'s7' must be backend/server of haproxy"),
        ({"engine": "vllm", "gateway": {"name": "taps"}}, found(), "'taps' turns the backend's own tap, and 'n1' has none"),
        ({"engine": "vllm", "gateway": {"name": "egde", "server": "x"}}, found(), "'egde' is no gateway of this file"),
        ({"engine": "vllm"}, found(gateway_server="s7"), "defaults.gateway does not name exactly one gateway"),
        ({"engine": "vllm", "tap": {"listen": "127.0.0.1:1"}}, found(), "tap: only a backend listed"),
        ({"engine": "vllm", "modle": "m"}, found(), "modle: unknown key; allowed here: name, engine, url"),
        ({"engine": "vllm", "labels": {"a": 1}}, found(), "labels.a"),
        ({"engine": "vllm"}, found(metrics_url="ftp://x"), "metrics_url: must be an http:// or https:// URL"),
    ],
)
def test_what_cannot_be_composed_is_refused_with_a_sentence(defaults: dict[str, Any], backend: Found, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        config(defaults=defaults).compose(backend)
    assert said in str(caught.value)


def test_a_listed_backend_gets_its_server_in_the_same_way() -> None:
    listed = [{"name": "a", "engine": "vllm", "url": "http://127.0.0.1:1"}]
    assert config(backends=listed, defaults={"gateway": {"name": "hook"}}).backends[0].gateway[0].server == "a"
    with pytest.raises(ConfigError, match=r"backends\.0\.gateway\.server: must be there, or `pool`"):
        config(backends=listed, defaults={"gateway": {"name": "edge"}})


@pytest.mark.parametrize(
    ("discovery", "said"),
    [
        ({"kind": "consul"}, ["discovery.0", "consul", "file_sd", "dns", "kubernetes", "prometheus"]),
        ({}, ["discovery.0.kind: field required"]),
        ({"kind": "dns", "name": "x"}, ["discovery.0.port: field required"]),
        ({**DNS, "prt": 1}, ["discovery.0.prt: unknown key", "port"]),
        ({**DNS, "port": 0}, ["discovery.0.port", "greater than or equal to 1"]),
        ({**DNS, "engine": "vlm"}, ["discovery.0.engine", "vllm"]),
        ({**DNS, "interval_s": 0}, ["discovery.0.interval_s"]),
        ({"kind": "file_sd", "files": []}, ["discovery.0.files"]),
        ({"kind": "file_sd", "files": ["/etc/sd/a.txt"]}, ["discovery.0.files", "must end in .json, .yml or .yaml"]),
        ({"kind": "file_sd", "files": ["/etc/*/a.json"]}, ["discovery.0.files", "only the last part"]),
        ({"kind": "prometheus", "url": "http://u:hunter2@x"}, ["discovery.0.url", "no user and password"]),
        (
            {"kind": "kubernetes", "namespace": "x", "selector": "a=b", "port": 1, "in_cluster": True, "kubeconfig": "/k"},
            ["discovery.0", "exclude each other"],
        ),
        ({"kind": "kubernetes", "namespace": "A b", "selector": "a=b", "port": 1}, ["discovery.0.namespace"]),
    ],
)
def test_a_wrong_discovery_is_refused_with_its_path(discovery: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        config(discovery=[discovery])
    assert all(words in str(caught.value) for words in said)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"defaults": {"modle": "m"}}, "defaults: modle"),
        ({"defaults": {"gateway": {"name": "nowhere"}}}, "defaults: gateway.name: 'nowhere'"),
        ({"defaults": {"api_key_file": "/nowhere/key"}}, "defaults.api_key_file: /nowhere/key cannot be read"),
        (
            {"discovery": [{"kind": "kubernetes", "namespace": "x", "selector": "a=b", "port": 1, "kubeconfig": "/nowhere/k"}]},
            "discovery.0.kubeconfig: /nowhere/k cannot be read",
        ),
    ],
)
def test_what_would_be_wrong_with_every_found_backend_is_said_at_load(tmp_path: Path, document: Any, said: str) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(yaml.safe_dump({"discovery": [DNS], **document}))
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert [problem[: len(said)] for problem in caught.value.problems] == [said]


POD = {"kind": "kubernetes", "namespace": "llm", "selector": "app=vllm", "port": 8000}


@pytest.mark.parametrize(("discovery", "accepted"), [(POD, True), (DNS, False)], ids=["pods", "addresses"])
def test_a_found_pod_has_its_place_at_a_gateway_of_kubernetes_and_a_found_address_has_none(
    tmp_path: Path, discovery: dict[str, Any], accepted: bool
) -> None:
    file = tmp_path / "t.yaml"
    gateways = [{"name": "cluster", "kind": "kubernetes"}]
    file.write_text(
        yaml.safe_dump({"discovery": [discovery], "gateways": gateways, "defaults": {"gateway": {"name": "cluster"}}})
    )
    if accepted:
        assert load(file).discovery
        return
    with pytest.raises(ConfigError, match=r"defaults: gateway\.server: must be there"):
        load(file)


def test_the_effective_configuration_keeps_the_defaults_that_found_backends_need() -> None:
    given = config(defaults={"engine": "vllm", "model": "m"})
    assert parse(yaml.safe_load(effective(given))).compose(found()).model == "m"


def test_check_config_says_what_each_discovery_finds_now_and_a_failing_one_is_no_fault_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: [(0, 0, 0, "", ("10.0.0.1", 8000))])
    targets = [{"targets": ["x:1", "y:1"], "labels": {"engine": "vllm"}}, {"targets": ["z:1"]}]
    (tmp_path / "t.yml").write_text(yaml.safe_dump(targets))
    discovery = [
        {"kind": "file_sd", "files": [str(tmp_path / "t.yml")]},
        {**DNS, "engine": "vllm"},
        {"kind": "prometheus", "url": f"http://127.0.0.1:{free_port()}"},
    ]
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump({"discovery": discovery}))
    result = CliRunner().invoke(app, ["check-config", "-c", str(file)])
    assert result.exit_code == 0, result.output
    assert "discovery.0 (file_sd): found 3 backends; 1 of them left out: z:1: engine: field required" in result.output
    assert "discovery.1 (dns): found 1 backend" in result.output
    assert "discovery.2 (prometheus): cannot be asked now: http://127.0.0.1" in result.output
