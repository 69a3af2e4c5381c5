"""Whatever targets, labels, models and sockets are called: the file that `init` writes is one that `check-config` takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper.config import Config, parse
from tailkeeper.init import check
from tailkeeper.init.found import Discovered, EngineHere, GatewayHere, GpusHere
from tailkeeper.init.through_prometheus import SIGNS, Sign, gateways_in
from tailkeeper.init.writing import MAX_LISTED, comment, quoted, usable, written
from tailkeeper_exporter.discovery.base import Found
from tailkeeper_exporter.discovery.prometheus import engines_in, listing_of
from tailkeeper_watchdog.model import Mode

NASTY = [
    "no",
    "0123",
    "1e3",
    "a: b",
    "# x",
    "{{ $labels.x }}",
    "'",
    '"',
    "\\",
    "\n- name: x",
    "\u2028",
    "\x85",
    "\ufeff",
    "~",
    "<<",
]
NASTY += [
    "%{",
    "&a",
    "*a",
    "!!python/object:x",
    "---",
    "...",
    "\x00",
    "\ud800",
    "🙂",
    "a" * 300,
    "-",
    "? a",
    "|",
    ">",
    "`",
    "@",
    "${X}",
]
texts = st.text(max_size=40) | st.sampled_from(NASTY)
labels = st.dictionaries(st.sampled_from(["instance", "job", "model_name", "server", "proxy", "worker"]), texts, max_size=6)
instances = st.from_regex(r"\A[a-z0-9.\[\]:-]{1,20}:[0-9]{1,6}\Z") | texts | st.sampled_from(["10.0.0.1:8000", "[::1]:8000"])


@given(texts)
def test_a_quoted_text_is_read_back_as_that_text_on_one_line(text: str) -> None:
    line = f"a: {{b: {quoted(text)}, c: [{quoted(text)}]}}  # {comment(text)}"
    assert len(line.splitlines()) == 1
    wanted = text.encode("utf-8", "replace").decode()
    assert yaml.safe_load(line) == {"a": {"b": wanted, "c": [wanted]}}


@given(st.lists(st.tuples(instances, labels), max_size=6), st.lists(labels, max_size=4), texts, texts)
def test_hostile_targets_make_a_configuration_in_observe_mode(
    targets: list[tuple[str, Mapping[str, str]]], servers: list[Mapping[str, str]], name: str, path: str
) -> None:
    rows = [{**more, "instance": at, "__name__": "vllm:num_requests_running"} for at, more in targets]
    engines = tuple(EngineHere(found, (path,), (name, path), name) for found in listing_of(engines_in(rows)).found)
    scraped = [g for sign in SIGNS for g in gateways_in(sign, [(row, 1.0) for row in servers])]
    entries: list[tuple[str, dict[str, Any]]] = [("haproxy", {"socket": path}), ("envoy", {"eds_file": path, "cluster": name})]
    here = [GatewayHere(kind, name, entry, (), {e.found.name: name for e in engines}, path) for kind, entry in entries]
    found = Discovered(
        engines,
        (*here, *scraped),
        GpusHere((name,)),
        (name, path),
        "http://10.0.0.1:9090",
        alertmanager_url=None,
        kubernetes_namespace="llm",
        exporters=(name,),
    )
    config = accepted(found, name)
    assert len(config.backends) == len(usable(found)[0])
    assert len({backend.name for backend in config.backends}) == len(config.backends)


def accepted(found: Discovered, header: str = "x") -> Config:
    text = written(found, header)
    check(text)
    config = parse(yaml.safe_load(text))
    modes = {getattr(config.policies, name).mode for name in type(config.policies).model_fields}
    assert modes == {Mode.OBSERVE}
    return config


def test_a_large_fleet_is_found_anew_through_its_prometheus_instead_of_listed() -> None:
    engines = tuple(
        EngineHere(Found(f"10.0.{i}.1:8000", f"http://10.0.{i}.1:8000", (("engine", "vllm"),))) for i in range(MAX_LISTED + 1)
    )
    config = accepted(Discovered(engines, prometheus_url="http://10.0.0.1:9090"))
    assert config.backends == ()
    assert [entry.kind for entry in config.discovery] == ["prometheus"]


@given(st.sampled_from(SIGNS), labels)
def test_what_prometheus_cannot_tell_of_a_gateway_is_a_comment_and_never_an_entry(sign: Sign, row: Mapping[str, str]) -> None:
    found = Discovered(gateways=tuple(gateways_in(sign, [(row, 1.0)])))
    assert accepted(found).gateways == ()
