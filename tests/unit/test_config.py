"""The configuration: a wrong key ends with exit 2, its path, its value, and what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tailkeeper.cli import app
from tailkeeper.config import ConfigError, effective, load, parse
from tailkeeper_watchdog.gateways import RouterGateway, TapGateway
from tailkeeper_watchdog.model import Target
from tailkeeper_watchdog.settings import PoliciesSettings
from tailkeeper_watchdog.whole_fleet import backend_of

GOOD: dict[str, Any] = {
    "backends": [{"name": "a", "engine": "vllm", "url": "http://127.0.0.1:8000", "gateway": {"name": "edge", "server": "llm/a"}}],
    "gateways": [{"name": "edge", "kind": "haproxy", "socket": "/run/haproxy.sock"}],
}


def with_backend(**changes: Any) -> dict[str, Any]:
    return {**GOOD, "backends": [{**GOOD["backends"][0], **changes}]}


def tap_gateway(**changes: Any) -> dict[str, Any]:
    return {"gateways": [{"name": "t", "kind": "tap", **changes}]}


def with_tap(**changes: Any) -> dict[str, Any]:
    """A backend whose own tap is its gateway."""
    return {**with_backend(**{"tap": {"listen": "127.0.0.1:9500"}, "gateway": {"name": "t"}, **changes}), **tap_gateway()}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"bakends": []}, ["bakends: unknown key", "backends"]),
        (with_backend(engin="vllm"), ["backends.0.engin: unknown key", "engine"]),
        (with_backend(engine="vlm"), ["backends.0.engine", "'vlm'", "vllm"]),
        (with_backend(url="127.0.0.1:8000"), ["backends.0.url", "http://"]),
        (with_backend(url="http://127.0.0.1:99999"), ["backends.0.url", "http://", "99999"]),
        (with_backend(url="http://127.0.0.1:port"), ["backends.0.url", "http://", "port"]),
        (with_backend(url="http://[::1"), ["backends.0.url", "http://"]),
        (
            with_backend(url="http://127.0.0.1:8000/v1/"),
            ["backends.0.url", "without the path of its API: http://127.0.0.1:8000 "],
        ),
        (with_backend(name=123), ["backends.0.name", "quoted string"]),
        (with_backend(probe={"interval_s": -1}), ["backends.0.probe.interval_s", "greater than 0", "-1"]),
        (with_backend(probe={"interval": 1}), ["backends.0.probe.interval: unknown key", "interval_s"]),
        (with_backend(gateway={"name": "egde", "server": "llm/a"}), ["backends.0.gateway.name", "'egde'", "edge"]),
        (with_backend(gateway={"name": "edge", "server": "a"}), ["backends.0.gateway.server", "'a'", "llm/a"]),
        (with_backend(gateway={"name": "edge"}), ["backends.0.gateway.server", "must be there", "`pool`"]),
        (with_backend(gateway={"name": "edge", "server": ""}), ["backends.0.gateway.0.server", "at least 1 character"]),
        (with_tap(tap=None), ["backends.0.gateway.name: 't'", "'a' has none", "tap: {listen"]),
        (with_tap(gateway={"name": "t", "server": "llm/a"}), ["backends.0.gateway.server: 'llm/a'", "own name, 'a'"]),
        (with_tap(tap={"listen": "9500"}), ["backends.0.tap.listen", "HOST:PORT"]),
        (with_tap(tap={"listn": "x"}), ["backends.0.tap.listn: unknown key; allowed here: listen"]),
        (tap_gateway(url="http://127.0.0.1:1"), ["gateways.0.url: unknown key; allowed here: name, kind, urls, auth"]),
        (tap_gateway(urls=["127.0.0.1:9400"]), ["gateways.0.urls", "http://"]),
        ({**GOOD, "gateways": [{"name": "edge", "kind": "haproxi", "socket": "x"}]}, ["gateways.0", "haproxi", "haproxy"]),
        ({**GOOD, "backends": GOOD["backends"] * 2}, ["backends", "'a'", "more than once"]),
        ({"watchdog": {"stale_after_s": 0.2}}, ["watchdog.stale_after_s", "0.2", "at least 3"]),
        ({"watchdog": {"listen": "0.0.0.0:8088"}}, ["watchdog", "not loopback", "token_file"]),
        ({"watchdog": {"listen": "localhost.example.com:8088"}}, ["watchdog", "not loopback", "token_file"]),
        ({"watchdog": {"listen": "127.example.com:8088"}}, ["watchdog", "not loopback", "token_file"]),
        ({"hscore": {"weights": {"latency": 0.9}}}, ["hscore.weights", "sum to"]),
        ({"policies": {"gpu_health_gate": {"mode": "on"}}}, ["policies.gpu_health_gate.mode", "observe", "enforce", "'on'"]),
        ({"policies": {"gpu_health_gate": {"params": {"floor": 1}}}}, ["policies.gpu_health_gate.params.floor", "floor_weight"]),
        (
            {"policies": {"memory_breaker": {"params": {"levl1_ratio": 1}}}},
            ["policies.memory_breaker.params.levl1_ratio", "level1"],
        ),
        ({"policies": {"cache_offload": {"params": {"tiers": []}}}}, ["policies.cache_offload.params.tiers", "at least 1"]),
        ({"policies": {"shed_everything": {"mode": "enforce"}}}, ["policies.shed_everything", "slo_guardian"]),
        ({"guards": {"max_fraction": 3}}, ["guards.max_fraction", "3"]),
        ({"exporter": {"gpu": {"source": "file"}}}, ["exporter.gpu", "`file`"]),
        (
            {"slo": {"tiers": [{"name": "gold", "match": {"region": "eu"}, "p99_s": 0.3}]}},
            ["slo.tiers.0.match: unknown key 'region'; allowed here: tenant, operation, sensitivity"],
        ),
        ({"slo": {"tiers": [{"name": "gold", "match": {}, "p99_s": 0.3}]}}, ["slo.tiers.0.match", "at least 1"]),
        ({"slo": {"tiers": [{"name": "default-text", "match": {"tenant": "x"}, "p99_s": 1}]}}, ["slo.tiers.0.name", "built in"]),
        (
            {"slo": {"tiers": [{"name": "gold", "match": {"tenant": "x"}, "p99_s": 0.3}] * 2}},
            ["slo.tiers", "'gold'", "more than once"],
        ),
        ([1, 2], ["keys and values"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) and value and isinstance(value[0], str) else "",
)
def test_a_wrong_document_is_refused_with_its_path_and_what_is_allowed(document: Any, said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(document)
    for words in said:
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("document", "key"),
    [
        (
            {"gateways": [{"name": "w", "kind": "webhook", "url": "http://127.0.0.1:1", "replicas": ["http://127.0.0.1:2"]}]},
            "gateways.0.replicas",
        ),
    ],
)
def test_what_this_version_cannot_do_is_refused_and_not_ignored(tmp_path: Path, document: Any, key: str) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigError, match="not in this version") as caught:
        load(file)
    assert [problem.split(":")[0] for problem in caught.value.problems] == [key]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"watchdog": {"otlp": {"logs": True}}}, "`logs` needs `endpoint`"),
        ({"watchdog": {"otlp": {"endpoint": "http://localhost:8088"}}}, "is this watchdog itself"),
        ({"watchdog": {"otlp": {"endpoint": "http://127.0.0.1:9400", "logs": True}}}, "which takes no logs"),
        ({"watchdog": {"otlp": {"endpoint": "ftp://127.0.0.1"}}}, "watchdog.otlp.endpoint"),
    ],
)
def test_telemetry_that_could_reach_nobody_is_refused(document: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(document)


def test_the_watchdogs_traces_may_go_by_way_of_the_exporter() -> None:
    assert parse({"watchdog": {"otlp": {"endpoint": "http://127.0.0.1:9400"}}}).watchdog.otlp.endpoint == "http://127.0.0.1:9400"


def test_the_page_of_a_dcgm_exporter_is_a_gpu_source_and_needs_its_address(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("exporter: {gpu: {source: dcgm, url: 'http://127.0.0.1:9400/metrics'}}")
    assert load(file).exporter.gpu.url == "http://127.0.0.1:9400/metrics"
    file.write_text("exporter: {gpu: {source: dcgm}}")
    with pytest.raises(ConfigError, match="needs `url`"):
        load(file)


@pytest.mark.parametrize(
    ("listen", "endpoint", "refused"),
    [
        ("127.0.0.1:9400", "http://127.0.0.1:9400", True),
        ("127.0.0.1:9400", "http://localhost:9400/v1", True),
        ("0.0.0.0:9400", "http://127.0.0.1:9400", True),
        ("[::1]:9400", "http://[::1]:9400", True),
        ("10.0.0.1:80", "http://10.0.0.1", True),
        ("127.0.0.1:9400", "http://127.0.0.1:4318", False),
        ("127.0.0.1:9400", "http://collector:9400", False),
    ],
)
def test_spans_are_not_sent_to_the_exporter_itself(tmp_path: Path, listen: str, endpoint: str, refused: bool) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(yaml.safe_dump({"exporter": {"listen": listen, "otlp": {"endpoint": endpoint, "logs": True}}}))
    if refused:
        with pytest.raises(ConfigError, match="is this exporter itself") as caught:
            load(file)
        assert "otlp.endpoint" in str(caught.value)
    else:
        assert load(file).exporter.otlp.endpoint == endpoint


def test_nor_where_the_command_line_moves_the_exporter(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(yaml.safe_dump({"exporter": {"otlp": {"endpoint": "http://127.0.0.1:4318"}}}))
    result = CliRunner().invoke(app, ["exporter", "-c", str(file), "--listen", "127.0.0.1:4318"])
    assert result.exit_code == 2
    assert "--listen: 127.0.0.1:4318 is where exporter.otlp.endpoint leads" in result.output


def test_logs_without_a_collector_are_refused_because_they_would_go_nowhere() -> None:
    with pytest.raises(ConfigError, match="needs `endpoint`"):
        parse({"exporter": {"otlp": {"logs": True}}})


def test_a_backends_own_key_wins_over_the_defaults_and_nested_keys_are_merged() -> None:
    config = parse({**with_backend(probe={"interval_s": 3}), "defaults": {"model": "m", "probe": {"health_timeout_s": 1}}})
    backend = config.backends[0]
    assert (backend.model, backend.probe.interval_s, backend.probe.health_timeout_s) == ("m", 3, 1)


def test_an_empty_file_is_a_valid_configuration_with_every_default(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("")
    config = load(file)
    assert config.for_watchdog().stale_after_s == 3.0


@pytest.mark.parametrize(("interval", "stale"), [(1, 3.0), (5, 15.0)])
def test_evidence_is_stale_after_three_reads_of_the_exporter(interval: float, stale: float) -> None:
    assert parse({"exporter": {"scrape_interval_s": interval}}).for_watchdog().stale_after_s == stale


@pytest.mark.parametrize(
    "key",
    [
        "watchdog.token_file",
        "exporter.token_file",
        "exporter.gpu.file",
        "exporter.otlp.headers_file",
        "watchdog.otlp.headers_file",
        "watchdog.alertmanager.auth.bearer_file",
    ],
)
def test_a_missing_file_named_in_the_configuration_ends_with_exit_2(tmp_path: Path, key: str) -> None:
    document: Any = str(tmp_path / "nowhere")
    for part in reversed(key.split(".")):
        document = {part: document}
    file = tmp_path / "t.yaml"
    file.write_text(yaml.safe_dump(document))
    result = CliRunner().invoke(app, ["check-config", "-c", str(file)])
    assert result.exit_code == 2
    assert key in result.output
    assert "nowhere" in result.output


def test_a_key_that_is_there_twice_is_refused_and_the_place_is_told(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("guards: {max_fraction: 0.1}\nslo: {}\nguards: {min_healthy: 2}\n")
    with pytest.raises(ConfigError, match=r"'guards' is there twice(.|\n)*line 3"):
        load(file)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.9.9.9:1", "localhost:1", "[::1]:1"])
def test_a_loopback_address_needs_no_token(address: str) -> None:
    assert parse({"watchdog": {"listen": address}}).watchdog.listen == address


def test_check_config_prints_what_each_policy_can_do_where(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(yaml.safe_dump({**GOOD, "policies": {"gpu_health_gate": {"mode": "enforce"}}}))
    result = CliRunner().invoke(app, ["check-config", "-c", str(file)])
    assert result.exit_code == 0, result.output
    rows = {line.split()[0]: line for line in result.output.splitlines() if line}
    assert set(PoliciesSettings.model_fields) <= set(rows)
    assert "enforced" in rows["gpu_health_gate"]
    assert "observed" in rows["context_length_routing"]
    assert "not enforceable" in rows["slo_guardian"]
    assert "HAProxy" in rows["slo_guardian"]


PROMETHEUS = {"source": {"kind": "prometheus", "url": "http://127.0.0.1:9090"}}


@pytest.mark.parametrize(
    ("more", "urls"),
    [
        ({}, ("http://127.0.0.1:9400",)),
        ({"watchdog": {"source": {"kind": "exporter", "urls": ["http://10.0.0.1:9400", "http://10.0.0.2:9400"]}}},
         ("http://10.0.0.1:9400", "http://10.0.0.2:9400")),
        ({"watchdog": PROMETHEUS, "exporter": {"listen": "127.0.0.1:9555"}}, ("http://127.0.0.1:9555",)),
        ({"watchdog": PROMETHEUS, "exporter": {"listen": "0.0.0.0:9555"}}, ("http://127.0.0.1:9555",)),
        ({"watchdog": PROMETHEUS, "exporter": {"listen": "[::]:9555"}}, ("http://[::1]:9555",)),
        ({"watchdog": PROMETHEUS, **tap_gateway(urls=["http://10.0.0.3:9400/"])}, ("http://10.0.0.3:9400",)),
    ],
)  # fmt: skip
def test_a_tap_gateway_turns_taps_at_the_exporters_that_the_watchdog_reads(more: dict[str, Any], urls: tuple[str, ...]) -> None:
    (gateway,) = parse({**with_tap(), **more}).for_watchdog().gateways

    assert isinstance(gateway, TapGateway)
    assert gateway.urls == urls


@pytest.mark.parametrize(
    ("changes", "bearer"),
    [
        ({}, "exporter.token"),
        ({"auth": {"bearer_file": "other"}}, "other"),
        ({"auth": {"basic_file": "basic"}}, None),
        ({"urls": ["http://10.0.0.3:9400"]}, None),
    ],
)
def test_the_token_of_the_files_own_exporter_goes_to_no_address_that_is_named(changes: Any, bearer: str | None) -> None:
    document = {**with_tap(), **tap_gateway(**changes), "exporter": {"token_file": "exporter.token"}}

    (gateway,) = parse(document).for_watchdog().gateways

    assert isinstance(gateway, TapGateway)
    assert gateway.auth.bearer_file == (None if bearer is None else Path(bearer))


ROUTER = {"name": "edge/1", "kind": "sglang_router", "url": "http://127.0.0.1:30000"}


@pytest.mark.parametrize("key", ["state", "records"])
def test_a_folder_that_the_system_does_not_let_us_look_at_is_told_like_one_that_is_not_there(tmp_path: Path, key: str) -> None:
    file, nowhere = tmp_path / "t.yaml", str(tmp_path / ("x" * 300) / "t.db")  # no name can be that long
    good = {"state": str(tmp_path / "t.db")}
    file.write_text(yaml.safe_dump({"watchdog": {**good, **({key: nowhere} if key == "state" else {key: {"path": nowhere}})}}))
    with pytest.raises(ConfigError) as raised:
        load(file)
    (problem,) = raised.value.problems
    assert problem.startswith(f"watchdog.{key}")
    assert "cannot be looked at" in problem


@pytest.mark.parametrize("kind", ["sglang_router", "vllm_router"])
def test_a_router_notes_the_workers_that_are_taken_out_beside_the_state(kind: str) -> None:
    document = {"gateways": [{**ROUTER, "kind": kind}], "watchdog": {"state": "/var/lib/tk/fleet.db"}}
    (gateway,) = parse(document).for_watchdog().gateways
    assert isinstance(gateway, RouterGateway)
    assert gateway.removed_file == Path("/var/lib/tk/fleet.edge%2F1.removed.json")


def test_a_backend_is_a_routers_worker_under_its_own_url() -> None:
    document = {
        "gateways": [ROUTER],
        "backends": [{"name": "a", "engine": "sglang", "url": "http://10.0.0.1:8000", "gateway": {"name": "edge/1"}}],
    }
    assert parse(document).backends[0].gateway[0].server == "http://10.0.0.1:8000"


def test_a_place_where_removed_workers_cannot_be_noted_is_refused_at_the_start(tmp_path: Path) -> None:
    shared = str(tmp_path / "removed.json")
    others = [{**ROUTER, "name": name, "removed_file": shared} for name in ("b", "c")]
    lost = {**ROUTER, "name": "d", "removed_file": str(tmp_path / "no" / "removed.json")}
    file = tmp_path / "tailkeeper.yaml"
    file.write_text(yaml.safe_dump({"gateways": [ROUTER, *others, lost], "watchdog": {"state": str(tmp_path / "state.db")}}))
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "gateways.2.removed_file",
        "gateways.3.removed_file",
    ]


def test_a_tap_is_switched_under_the_backends_own_name_in_one_pool_of_all() -> None:
    config = parse(with_tap()).for_watchdog()

    assert backend_of(config.backends[0], {"t": "tap"}).targets == (Target("t", "a", "all"),)
    assert parse(with_tap(gateway={"name": "t", "server": "a", "pool": "p"})).backends[0].gateway[0].pool == "p"


def test_check_config_says_what_a_tap_can_do(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(yaml.safe_dump({**with_tap(), "policies": {"gpu_health_gate": {"mode": "enforce"}}}))

    result = CliRunner().invoke(app, ["check-config", "-c", str(file)])

    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith("gpu_health_gate")]
    assert "enforced" in lines[at]
    assert any("not enforceable" in line and "nobody to send its traffic to" in line for line in lines[at + 1 : at + 3])


SECRET_URL = "http://user:hunter2@127.0.0.1:1"


@pytest.mark.parametrize(
    "document",
    [
        with_backend(url=SECRET_URL),
        with_backend(metrics_url=SECRET_URL + "/metrics"),
        {"gateways": [{"name": "w", "kind": "webhook", "url": SECRET_URL}]},
        {"watchdog": {"source": {"kind": "exporter", "urls": [SECRET_URL]}}},
        {"watchdog": {"source": {"kind": "prometheus", "url": SECRET_URL}}},
        {"watchdog": {"alertmanager": {"url": SECRET_URL}}},
        {"exporter": {"otlp": {"endpoint": SECRET_URL}}},
    ],
)
def test_a_password_in_a_url_is_refused_without_repeating_it(document: Any) -> None:
    with pytest.raises(ConfigError, match="no user and password") as caught:
        parse(document)
    assert "hunter2" not in str(caught.value)


def test_the_effective_configuration_shows_no_secret() -> None:
    shown = effective(parse(with_backend(kv_service="redis://user:hunter2@127.0.0.1:6379")))
    assert "hunter2" not in shown
    assert "REDACTED@127.0.0.1" in shown


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("?token=hunter2", "?token=REDACTED"),
        ("?format=text&api_key=hunter2&x=1", "?format=text&api_key=REDACTED&x=1"),
        ("?Access-Token=hunter2", "?Access-Token=REDACTED"),
        ("?a=1", "?a=1"),
    ],
)
def test_the_effective_configuration_shows_no_secret_of_a_query(query: str, shown: str) -> None:
    in_force = effective(parse(with_backend(metrics_url=f"http://127.0.0.1:1/metrics{query}")))
    assert "hunter2" not in in_force
    assert f"/metrics{shown}" in in_force


@pytest.mark.parametrize(
    ("url", "listen", "refused"),
    [
        ("http://127.0.0.1:9500", "127.0.0.1:9500", True),
        ("http://localhost:9500/llm", "0.0.0.0:9500", True),
        ("http://127.0.0.1:8000", "127.0.0.1:9500", False),
        ("http://10.0.0.1:9500", "127.0.0.1:9500", False),
    ],
)
def test_a_tap_is_not_put_before_itself(url: str, listen: str, refused: bool) -> None:
    document = with_backend(url=url, tap={"listen": listen})
    if not refused:
        assert parse(document).backends[0].tap is not None
        return
    with pytest.raises(ConfigError, match=r"backends\.0: tap\.listen: .*own url"):
        parse(document)


def test_the_effective_configuration_shows_where_a_tap_is_turned() -> None:
    shown = effective(parse({**with_tap(), "exporter": {"token_file": "exporter.token"}}))

    (gateway,) = yaml.safe_load(shown)["gateways"]
    assert (gateway["urls"], gateway["auth"]["bearer_file"]) == (["http://127.0.0.1:9400"], "exporter.token")
    parse(yaml.safe_load(shown))


def test_the_effective_configuration_is_itself_a_valid_one() -> None:
    config = parse(GOOD)
    assert parse(yaml.safe_load(effective(config))).model_dump(exclude={"defaults"}) == config.model_dump(exclude={"defaults"})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
sections = st.sampled_from(["backends", "gateways", "exporter", "watchdog", "policies", "guards", "hscore", "slo", "defaults"])


@given(st.dictionaries(sections, json_values, max_size=3))
def test_no_document_does_anything_but_parse_or_explain_itself(document: dict[str, Any]) -> None:
    problems = []
    try:
        parse(document)
    except ConfigError as error:
        problems = error.problems
    assert all(problem.strip() for problem in problems)


@pytest.mark.parametrize("command", ["check-config", "watchdog", "up"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "b.json cannot be read: No such file"),
        ("{", "is not valid JSON"),
        ('{"version": 1, "models": {"m": [{"kind": "x"}]}}', "models.m[0].kind must be one of block_e, bucket_e"),
    ],
)
def test_a_wrong_file_of_baselines_ends_the_start_with_the_place_that_is_wrong(
    tmp_path: Path, command: str, content: str | None, said: str
) -> None:
    baselines = tmp_path / "b.json"
    if content is not None:
        baselines.write_text(content)
    file = tmp_path / "t.yaml"
    file.write_text(yaml.safe_dump({"watchdog": {"baselines": str(baselines), "state": str(tmp_path / "t.db")}}))
    result = CliRunner().invoke(app, [command, "-c", str(file)])
    assert result.exit_code == 2
    assert "watchdog.baselines: " in result.output
    assert said in result.output
