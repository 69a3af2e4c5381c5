"""What each way of finding backends makes of what it is told: files, names, series. Nothing here leaves the process."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from tailkeeper_exporter.discovery import DiscoveryError, Found, Listing, Source, ask
from tailkeeper_exporter.discovery.base import MAX_LABELS, MAX_NAME_CHARS, bounded_labels, fitted
from tailkeeper_exporter.discovery.dns import DnsLister, Resolve
from tailkeeper_exporter.discovery.file_sd import FileLister
from tailkeeper_exporter.discovery.prometheus import engines_by_name, engines_in, query, telling_names
from tailkeeper_exporter.engines import ENGINES
from tailkeeper_exporter.settings import DnsDiscovery, FileDiscovery

TWO = [{"targets": ["10.0.0.1:8000", "10.0.0.2:8000"], "labels": {"engine": "vllm", "az": "a1"}}]


def files(*paths: object) -> FileLister:
    return FileLister(FileDiscovery.model_validate({"kind": "file_sd", "files": [str(path) for path in paths]}))


async def listed(lister: FileLister) -> Listing:
    return await lister.list(5)


def names(listing: Listing) -> list[str]:
    return [found.name for found in listing.found]


# --- files ---


@pytest.mark.parametrize("name", ["a.json", "a.yml", "a.yaml"])
async def test_a_file_as_prometheus_reads_it_gives_a_backend_for_each_target(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(json.dumps(TWO))  # JSON is YAML as well
    listing = await listed(files(tmp_path / name))
    assert listing == Listing(
        tuple(Found(f"10.0.0.{n}:8000", f"http://10.0.0.{n}:8000", (("engine", "vllm"),), (("az", "a1"),)) for n in (1, 2))
    )


async def test_yaml_scalars_stay_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("- {targets: ['x:1'], labels: {az: 01, on: no, backend: 0123}}")
    (found,) = (await listed(files(tmp_path / "a.yml"))).found
    assert (found.name, found.labels) == ("0123", (("az", "01"), ("on", "no")))


async def test_labels_with_a_meaning_are_heeded_and_other_hidden_ones_dropped(tmp_path: Path) -> None:
    labels = {
        "__scheme__": "https",
        "__metrics_path__": "/prometheus/metrics",
        "__param_x": "1",
        "__meta_rack": "r1",
        "backend": "gold-1",
        "model": "m",
        "quantization": "fp8",
        "gateway_server": "llm/g1",
        "team": "search",
    }
    (tmp_path / "a.json").write_text(json.dumps([{"targets": ["h:1"], "labels": labels}]))
    (found,) = (await listed(files(tmp_path / "a.json"))).found
    keys = {"model": "m", "quantization": "fp8", "gateway_server": "llm/g1", "metrics_url": "https://h:1/prometheus/metrics"}
    assert found == Found("gold-1", "https://h:1", tuple(sorted(keys.items())), (("team", "search"),))


async def test_a_pattern_in_the_last_part_names_many_files_and_a_name_without_a_file_is_said(tmp_path: Path) -> None:
    for n in (2, 1):
        (tmp_path / f"n{n}.json").write_text(json.dumps([{"targets": [f"h{n}:1"]}]))
    listing = await listed(files(tmp_path / "n*.json", tmp_path / "n1.json", tmp_path / "gone.yml"))
    assert names(listing) == ["h1:1", "h2:1"]
    assert listing.notes == (f"{tmp_path / 'gone.yml'}: no such file",)


BROKEN: dict[str, str] = {
    "half-written": '[{"targets": ["10.0.0.1:80',
    "emptied before it is written": "",
    "not a list": '{"targets": []}',
    "another key": '[{"target": ["x:1"]}]',
    "targets that are no list": '[{"targets": "x:1"}]',
    "a target that is no string": '[{"targets": [1]}]',
    "labels that are no strings": '[{"targets": ["x:1"], "labels": {"a": 1}}]',
    "nested without end": "[" * 100_000,
    "no text at all": "\udcff",
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
async def test_a_broken_file_keeps_its_last_good_list_and_is_said_and_the_others_go_on(tmp_path: Path, broken: str) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(json.dumps(TWO))
    b.write_text('[{"targets": ["b1:1"]}]')
    lister = files(tmp_path / "*.json")
    assert len((await listed(lister)).found) == 3
    a.write_bytes(broken.encode("utf-8", "surrogateescape"))
    b.write_text('[{"targets": ["b2:1"]}]')
    listing = await listed(lister)
    assert names(listing) == ["10.0.0.1:8000", "10.0.0.2:8000", "b2:1"]
    assert len(listing.notes) == 1
    assert str(a) in listing.notes[0]
    assert "last good list is kept" in listing.notes[0]
    a.write_text("[]")
    assert names(await listed(lister)) == ["b2:1"]


async def test_where_no_file_was_ever_good_nothing_is_known(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("- targets: [x:1")
    with pytest.raises(DiscoveryError, match=r"a\.yml: is not valid YAML"):
        await listed(files(tmp_path / "a.yml"))


async def test_a_file_that_is_gone_is_a_list_of_nothing(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(TWO))
    lister = files(file)
    await listed(lister)
    file.unlink()
    assert (await listed(lister)).found == ()


@pytest.mark.parametrize("target", ["", "http://x:1", "x:1/path", "x:99999", "user:secret@x:1", "x y:1"])
async def test_a_target_that_is_no_address_is_left_out_and_the_others_are_not(tmp_path: Path, target: str) -> None:
    (tmp_path / "a.json").write_text(json.dumps([{"targets": [target, "good:1"]}]))
    listing = await listed(files(tmp_path / "a.json"))
    assert names(listing) == ["good:1"]
    assert "target" in listing.notes[0]


async def test_one_name_for_a_group_of_many_is_no_name(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([{"targets": ["x:1", "y:1"], "labels": {"backend": "a"}}]))
    listing = await listed(files(tmp_path / "a.json"))
    assert names(listing) == ["x:1", "y:1"]
    assert "'a' names one backend" in listing.notes[0]


async def test_too_many_targets_and_too_large_a_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailkeeper_exporter.discovery.file_sd.MAX_TARGETS", 3)
    monkeypatch.setattr("tailkeeper_exporter.discovery.file_sd.MAX_FILE_BYTES", 200)
    file = tmp_path / "a.json"
    for content, said in ((json.dumps(TWO * 2), "more than 3 targets"), ("[" + " " * 300 + "]", "larger than 200 bytes")):
        file.write_text(content)
        with pytest.raises(DiscoveryError, match=said):
            await listed(files(file))


async def test_a_pipe_that_nobody_writes_costs_its_listing_and_no_second_thread(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    lister = files(tmp_path / "a.json")
    with pytest.raises(DiscoveryError, match=r"no answer within 0\.05 s"):
        await lister.list(0.05)
    before = threading.active_count()
    with pytest.raises(DiscoveryError, match="still hangs"):
        await lister.list(0.05)
    assert threading.active_count() == before
    with (tmp_path / "a.json").open("w") as pipe:  # let the thread end
        pipe.write("[]")


# --- DNS ---


def dns(resolve: Resolve) -> DnsLister:
    return DnsLister(DnsDiscovery(kind="dns", name="llm.internal", port=8000), resolve)


async def test_each_address_of_a_name_is_a_backend_in_an_order_that_is_the_same_each_time() -> None:
    listing = await dns(lambda name, port: ["10.0.0.2", "fd00::1", "10.0.0.1", "10.0.0.2", "fe80::1%eth0"]).list(1)
    assert [(f.name, f.url) for f in listing.found] == [
        ("10.0.0.1:8000", "http://10.0.0.1:8000"),
        ("10.0.0.2:8000", "http://10.0.0.2:8000"),
        ("[fd00::1]:8000", "http://[fd00::1]:8000"),
    ]


def failing(code: int) -> Resolve:
    def resolve(name: str, port: int) -> list[str]:
        raise socket.gaierror(code, "as the resolver says")

    return resolve


@pytest.mark.parametrize("code", [socket.EAI_NONAME, socket.EAI_NODATA])
async def test_no_such_name_is_a_list_of_nothing_because_the_resolver_says_so(code: int) -> None:
    assert await dns(failing(code)).list(1) == Listing((), ("llm.internal: as the resolver says",))


@pytest.mark.parametrize("code", [socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_SYSTEM])
async def test_a_name_server_that_fails_says_nothing_about_any_backend(code: int) -> None:
    with pytest.raises(DiscoveryError, match=r"llm\.internal: as the resolver says"):
        await dns(failing(code)).list(1)


async def test_a_resolver_that_hangs_ends_at_the_deadline() -> None:
    release = threading.Event()

    def hang(name: str, port: int) -> list[str]:
        release.wait(10)
        return []

    with pytest.raises(DiscoveryError, match="no answer within"):
        await dns(hang).list(0.05)
    release.set()


# --- Prometheus ---


def test_every_engine_with_metrics_is_told_by_names_of_its_own_table() -> None:
    table = engines_by_name()
    assert set(table.values()) == {engine.name for engine in ENGINES if engine.sources}
    for engine in ENGINES:
        offered = {name for source in engine.sources for name in (*source.names, *(f"{n}_count" for n in source.names))}
        assert set(telling_names(engine)) <= offered
    assert table["vllm_num_requests_running"] == "vllm"
    assert table["nv_inference_pending_request_count"] == "triton"


def test_the_query_finds_both_spellings_and_what_hangs() -> None:
    assert "vllm[:_]num_requests_running" in query()
    assert "[1h]) and on (instance, job) up" in query()


def row(name: str, instance: str = "h:8000", **labels: str) -> dict[str, str]:
    return {"__name__": name, "instance": instance, "job": "llm", **labels}


def test_engine_and_model_are_told_by_the_series() -> None:
    found = engines_in(
        [
            row("vllm:num_requests_running", model_name="m"),
            row("sglang_num_running_reqs", "s:1", model_name="x"),
            row("sglang_num_running_reqs", "s:1", model_name="y"),
            row("nv_inference_pending_request_count", "t:8002", model="llm"),
            row("node_load1", "n:9100"),
        ]
    )
    assert {target[0]: (engine.engine, engine.models) for target, engine in found.items()} == {
        "h:8000": ("vllm", ("m",)),
        "s:1": ("sglang", ("x", "y")),
        "t:8002": ("triton", ("llm",)),
    }


def test_a_router_that_passes_its_workers_series_on_is_no_engine() -> None:
    assert (
        engines_in([row("vllm:num_requests_running", server="http://w1"), row("vllm_num_requests_running", worker_addr="w")])
        == {}
    )


# --- what all have in common ---


def test_labels_are_bounded_and_those_that_mean_something_are_kept_first() -> None:
    many = {f"l{n:02}": "v" for n in range(40)} | {"az": "z", "canary_revision": "v2", "app.kubernetes.io/name": "x" * 500}
    kept, cut = bounded_labels(many)
    assert len(kept) == MAX_LABELS
    assert {"az", "canary_revision", "app_kubernetes_io_name"} <= {name for name, _ in kept}
    assert all(len(value) <= 128 for _, value in kept)
    assert len(cut) == len(many) - MAX_LABELS


def test_a_long_name_is_cut_in_a_way_that_tells_it_from_others() -> None:
    a, b = fitted("n" * 200 + "a"), fitted("n" * 200 + "b")
    assert len(a) == len(b) == MAX_NAME_CHARS
    assert a != b
    assert fitted("short") == "short"


class Lists:
    """A lister that does as a test says."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def list(self, deadline_s: float) -> Listing:
        if isinstance(self.answer, Exception):
            raise self.answer
        assert isinstance(self.answer, Listing)
        return self.answer


async def test_a_bug_in_a_lister_is_a_failed_listing() -> None:
    answer = await ask(Source("s", Lists(KeyError("surprise"))))
    assert isinstance(answer, DiscoveryError)
    assert "internal error: KeyError" in str(answer)


async def test_the_engine_of_an_entry_is_for_those_that_have_none_of_their_own() -> None:
    listing = Listing((Found("a", "http://a"), Found("b", "http://b", (("engine", "sglang"), ("model", "m")))))
    answer = await ask(Source("s", Lists(listing), engine="vllm"))
    assert isinstance(answer, Listing)
    assert [found.key("engine") for found in answer.found] == ["vllm", "sglang"]
    assert answer.found[1].key("model") == "m"
