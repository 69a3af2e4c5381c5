"""What `tailkeeper init` makes of what it is told: the kernel's tables, engines' pages, gateways' answers."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tailkeeper.init import pages
from tailkeeper.init.found import Discovered, EngineHere, GatewayHere, GpusHere, joined
from tailkeeper.init.listening import NOT_HTTP, haproxy_sockets, listening_ports, ports_in
from tailkeeper.init.on_machine import PortHere, each_once, gpus_here, kubernetes_namespace
from tailkeeper.init.through_prometheus import SIGNS, Sign, gateways_in
from tailkeeper.prometheus_api import seconds_of
from tailkeeper_exporter.discovery.base import Found
from tailkeeper_exporter.gpu import DeviceId, GpuError, GpuReason

SCRAPES = Path(__file__).parents[1] / "fixtures" / "scrapes"
GATEWAYS = Path(__file__).parents[1] / "fixtures" / "gateways"
HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def row(address: str, state: str = "0A", inode: int = 7) -> str:
    return (
        f"   0: {address} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000     0        0 {inode} 1 0 100 0 0 10 0\n"
    )


@pytest.mark.parametrize(
    ("address", "state", "found"),
    [
        ("0100007F:1F40", "0A", (("127.0.0.1", 8000),)),
        ("0200007F:1F40", "0A", (("127.0.0.2", 8000),)),
        ("00000000:1F40", "0A", (("127.0.0.1", 8000),)),
        ("00000000000000000000000000000000:1F40", "0A", (("127.0.0.1", 8000),)),
        ("00000000000000000000000001000000:1F40", "0A", (("[::1]", 8000),)),
        ("0500A8C0:1F40", "0A", ()),  # another address of this machine: not loopback, so not asked
        ("0100007F:1F40", "01", ()),  # a connection, nobody listens
        ("0100007F:0016", "0A", ()),  # SSH
        ("0100007F:18EB", "0A", ()),  # Redis takes an HTTP request for an attack
        ("nonsense", "0A", ()),
        ("0100007F:XXXX", "0A", ()),
    ],
)
def test_only_what_listens_on_loopback_and_may_speak_http_is_asked(address: str, state: str, found: object) -> None:
    assert ports_in([HEADER + row(address, state)]) == found


def test_a_port_of_both_families_is_asked_once() -> None:
    tables = [HEADER + row("00000000:1F40"), HEADER + row("00000000000000000000000001000000:1F40")]
    assert ports_in(tables) == (("127.0.0.1", 8000),)


def test_without_the_kernels_tables_the_usual_ports_are_asked(tmp_path: Path) -> None:
    assert ("127.0.0.1", 8000) in listening_ports(tmp_path)
    assert not {port for _, port in listening_ports(tmp_path)} & set(NOT_HTTP)


def test_a_haproxy_socket_is_found_in_its_usual_place_and_by_the_name_it_was_bound_under(tmp_path: Path) -> None:
    usual, other = tmp_path / "admin.sock", tmp_path / "haproxy-edge.sock"
    with socket.socket(socket.AF_UNIX) as a, socket.socket(socket.AF_UNIX) as b:
        a.bind(str(usual))
        b.bind(str(other))
        line = f"0000: 00000002 00000000 00010000 0001 01 42 {other}.9343.tmp\n"
        (tmp_path / "unix").write_text("Num RefCount Protocol Flags Type St Inode Path\n" + line)
        found = haproxy_sockets(tmp_path, [str(usual), str(tmp_path / "nowhere.sock")])
    assert set(found) == {str(usual), str(other)}


def test_two_names_of_one_socket_are_one(tmp_path: Path) -> None:
    os.symlink(tmp_path, tmp_path / "var")
    with socket.socket(socket.AF_UNIX) as a:
        a.bind(str(tmp_path / "admin.sock"))
        found = haproxy_sockets(tmp_path, [str(tmp_path / "admin.sock"), str(tmp_path / "var" / "admin.sock")])
    assert found == (str(tmp_path / "admin.sock"),)


@pytest.mark.parametrize(
    ("file", "engine"),
    [
        ("vllm-0.32.0.prom", "vllm"),
        ("sglang-0.5-from-docs.prom", "sglang"),
        ("tgi-3-from-docs.prom", "tgi"),
        ("llamacpp-b11669.prom", "llamacpp"),
        ("triton-2.51.0.prom", "triton"),
        ("ray-2.60.0-serve.prom", "ray"),
        ("trtllm-1.3-from-docs.prom", "trtllm"),
    ],
)
def test_an_engine_is_known_by_its_page(file: str, engine: str) -> None:
    here = pages.metrics_of((SCRAPES / file).read_bytes())
    assert here is not None
    assert here.engine is not None
    assert here.engine.engine == engine


@pytest.mark.parametrize(
    ("page", "kind"),
    [
        ("tailkeeper_exporter_scrape_success 1\n", "exporter"),
        ("prometheus_build_info 1\n", "prometheus"),
        ("alertmanager_build_info 1\n", "alertmanager"),
        ('DCGM_FI_DEV_GPU_UTIL{gpu="0"} 12\n', "dcgm"),
        ("node_load1 1\n", ""),
    ],
)
def test_other_pages_are_told_apart(page: str, kind: str) -> None:
    here = pages.metrics_of(page.encode())
    assert here is not None
    assert here.kind == kind


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b"\xff\xfe"])
def test_what_is_no_metrics_page_is_none(body: bytes) -> None:
    assert pages.metrics_of(body) is None


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ({"data": [{"id": "llama", "owned_by": "vllm"}]}, (("llama",), "vllm")),
        ({"data": [{"id": "a", "owned_by": "me"}, {"id": "b"}]}, (("a", "b"), None)),
        ({"data": []}, ((), None)),
        ({"data": "x"}, None),
        ({"data": [{"id": 3}]}, ((), None)),
        ([1], None),
    ],
)
def test_models_are_read_of_an_openai_list_and_of_nothing_else(document: object, found: object) -> None:
    assert pages.models_in(json.dumps(document).encode()) == found


def test_haproxys_servers_are_known_by_their_addresses() -> None:
    text = (GATEWAYS / "haproxy-2.6.12-servers-state-and-stat.txt").read_text().partition("\n# pxname")[0] + "\n"
    servers = pages.haproxy_servers(text)
    assert servers
    assert all(name.count("/") == 1 for name in servers.values())
    assert all(address.rpartition(":")[2].isdigit() for address in servers)


def test_envoys_clusters_with_endpoints_from_a_file_are_gateways_and_others_are_not() -> None:
    source = {"eds_config": {"path_config_source": {"path": "/etc/envoy/llm.json"}}}
    dump = {
        "configs": [
            {"static_clusters": [{"cluster": {"name": "llm", "eds_cluster_config": source}}, {"cluster": {"name": "other"}}, 3]}
        ]
    }
    address = {"socket_address": {"address": "10.0.0.1", "port_value": 8000}}
    clusters = {"cluster_statuses": [{"name": "llm", "host_statuses": [{"address": address}]}]}
    (found,) = pages.envoy_gateways("http://127.0.0.1:9901", dump, clusters)
    assert found.entry == {"eds_file": "/etc/envoy/llm.json", "cluster": "llm", "admin_url": "http://127.0.0.1:9901"}
    assert found.servers == {"10.0.0.1:8000": "10.0.0.1:8000"}


@pytest.mark.parametrize("wrong", [None, [], {}, {"configs": 3}, {"configs": [{"static_clusters": [{"cluster": {"name": 3}}]}]}])
def test_an_answer_that_is_not_envoys_gives_no_gateway(wrong: Any) -> None:
    assert pages.envoy_gateways("http://x", wrong, wrong) == []
    assert pages.traefik_gateways("http://x", wrong) == []
    assert pages.router_gateway("vllm_router", "http://x", wrong) is None


def test_routers_tell_their_workers() -> None:
    sglang = pages.router_gateway("sglang_router", "http://r", {"workers": [{"url": "http://10.0.0.1:8000"}]})
    vllm = pages.router_gateway("vllm_router", "http://r", {"urls": ["http://10.0.0.2:8000"]})
    assert sglang is not None
    assert vllm is not None
    assert dict(sglang.servers) == {"10.0.0.1:8000": "http://10.0.0.1:8000"}
    assert dict(vllm.servers) == {"10.0.0.2:8000": "http://10.0.0.2:8000"}


def engine(port: int, model: str = "m") -> EngineHere:
    return EngineHere(Found(f"127.0.0.1:{port}", f"http://127.0.0.1:{port}", (("engine", "vllm"),)), models=(model,))


def port(number: int, started: float | None, created: float | None = None, passes_on: bool = False) -> PortHere:
    return PortHere(f"127.0.0.1:{number}", engine(number), started, created, passes_on=passes_on)


@pytest.mark.parametrize(
    ("ports", "engines"),
    [
        ([port(7000, 1.5, passes_on=True), port(8000, 1.5), port(8001, 2.5)], {8000: (7000,), 8001: ()}),
        ([port(7000, 1.5, 9.25), port(8000, 1.5, 9.25)], {7000: (8000,)}),  # the same to a millionth of a second
        ([port(7000, 1.5), port(8000, 1.5)], {7000: (), 8000: ()}),  # two that started together
        ([port(7000, None), port(8000, None)], {7000: (), 8000: ()}),
        ([port(7000, 1.5, passes_on=True)], {}),  # before engines on other machines
    ],
)
def test_an_engine_is_found_once_with_the_proxies_before_it(ports: list[PortHere], engines: dict[int, tuple[int, ...]]) -> None:
    wanted = {f"http://127.0.0.1:{at}": tuple(f"127.0.0.1:{n}" for n in also) for at, also in engines.items()}
    assert {found.found.url: found.also for found in each_once(ports)} == wanted


class Nvml:
    name = "nvml"

    def __init__(self, found: tuple[DeviceId, ...] | GpuError) -> None:
        self._found = found

    def devices(self) -> tuple[DeviceId, ...]:
        if isinstance(self._found, GpuError):
            raise self._found
        return self._found


async def test_gpus_are_named_by_index_and_uuid_and_their_absence_is_told() -> None:
    gpus, missing = await gpus_here(Nvml((DeviceId(0, "GPU-1", "H200"),)))  # type: ignore[arg-type]
    assert (gpus, missing) == (GpusHere(("0: H200 (GPU-1)",)), ())
    none, why = await gpus_here(Nvml(GpuError(GpuReason.LIBRARY_MISSING, "no driver")))  # type: ignore[arg-type]
    assert none is None
    assert "no driver" in why[0]


def test_a_pods_namespace_is_read_only_inside_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    (tmp_path / "namespace").write_text("llm\n")
    assert kubernetes_namespace({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path) == "llm"
    assert kubernetes_namespace({}, tmp_path) is None
    assert kubernetes_namespace({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path / "nowhere") is None


@pytest.mark.parametrize("sign", SIGNS, ids=lambda sign: sign.kind)
def test_a_gateway_that_prometheus_scrapes_is_told_with_what_must_be_filled_in(sign: Sign) -> None:
    labels = {"instance": "10.0.0.9:8404", sign.server_label: "a", sign.group_label: "llm"}
    (gateway,) = gateways_in(sign, [(labels, 1.0), ({**labels, sign.server_label: "b"}, 1.0)])
    assert gateway.missing
    assert "10.0.0.9:8404" in gateway.where
    assert "a" in gateway.remark
    assert "b" in gateway.remark


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15s", 15.0), ("1m30s", 90.0), ("500ms", 0.5), ("1h", 3600.0), ("", None), ("15", None), ("s", None), ("1x", None)],
)
def test_prometheus_durations_are_read(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


def test_what_both_ways_of_looking_find_is_there_once() -> None:
    told = Discovered(engines=(engine(8000),), prometheus_url="http://p")
    here = Discovered(
        engines=(engine(8000), engine(8001)), prometheus_url="http://q", gateways=(GatewayHere("haproxy", "x", {}),)
    )
    both = joined(told, here)
    assert [e.found.url for e in both.engines] == ["http://127.0.0.1:8000", "http://127.0.0.1:8001"]
    assert both.prometheus_url == "http://p"
    assert len(both.gateways) == 1
