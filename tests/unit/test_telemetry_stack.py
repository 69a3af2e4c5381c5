"""Collector, Tempo, Loki, Grafana and Prometheus as text: that they fit each other, the SLO and what we send. Runs nothing.

No collector, Tempo or Loki is to be had for the tests: what is checked here is structure, names, ports and times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper import collector_config
from tailkeeper.config import parse
from tailkeeper_dashboards.settings import ROOT_CAUSE_UID
from tailkeeper_exporter.catalog import BY_NAME, OUTCOMES
from tailkeeper_exporter.otlp import attributes
from tailkeeper_exporter.otlp.spans import REQUEST_SPAN, STAGES
from tailkeeper_exporter.otlp.spans import SERVICE_NAME as TAP
from tailkeeper_watchdog.happenings import names
from tailkeeper_watchdog.kube_announcer import announcement_of
from tailkeeper_watchdog.settings import LatencySlo, SloSettings, Tier
from tests.e2e import compose_boards, compose_telemetry
from tests.unit.a_change import a_change

ROOT = Path(__file__).parents[2]


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


COLLECTOR, KUBERNETES = read(collector_config.PATH), read(collector_config.KUBERNETES_PATH)
TEMPO, LOKI, PROMETHEUS = read("deploy/tempo/tempo.yaml"), read("deploy/loki/loki.yaml"), read("deploy/prometheus/prometheus.yml")
SOURCES = {source["uid"]: source for source in read("deploy/grafana/provisioning/datasources/tailkeeper.yml")["datasources"]}
KINDS = ("receivers", "processors", "exporters", "extensions")


def seconds(duration: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(ms|s|m|h)", duration).groups()  # type: ignore[union-attr]
    return int(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit]


def together(*documents: Any) -> Any:
    """As a collector merges its files: mappings by key, everything else replaced by the later one."""
    merged: dict[str, Any] = {}
    for document in documents:
        for key, value in document.items():
            both = isinstance(value, dict) and isinstance(merged.get(key), dict)
            merged[key] = together(merged[key], value) if both else value
    return merged


def problems(document: Any) -> Iterator[str]:
    """What a collector would refuse at its start, or run without anybody noticing."""
    pipelines = document["service"]["pipelines"]
    used: dict[str, set[str]] = {"extensions": set(document["service"].get("extensions", []))}
    for kind in KINDS[:3]:
        used[kind] = set(chain.from_iterable(pipeline.get(kind, []) for pipeline in pipelines.values()))
    for kind in KINDS:
        defined = set(document.get(kind, {}))
        yield from (f"{kind}: {name} is not defined" for name in sorted(used[kind] - defined))
        yield from (f"{kind}: {name} is used nowhere" for name in sorted(defined - used[kind]))
    for name, pipeline in pipelines.items():
        if name.partition("/")[0] not in ("traces", "logs", "metrics"):
            yield f"pipelines: {name} is no signal"
        if not pipeline.get("receivers") or not pipeline.get("exporters"):
            yield f"pipelines: {name} leads from nowhere or to nowhere"
        if pipeline["processors"][0] != "memory_limiter" or pipeline["processors"][-1] != "batch":
            yield f"pipelines: {name} must begin with memory_limiter and end with batch"


def sampling(document: Any = COLLECTOR) -> Any:
    return document["processors"]["tail_sampling"]


def of(slo: SloSettings) -> Any:
    return yaml.safe_load(collector_config.render(slo)[collector_config.PATH])


def test_every_component_of_the_collector_is_defined_and_used_with_and_without_a_cluster() -> None:
    assert list(problems(COLLECTOR)) == []
    assert list(problems(together(COLLECTOR, KUBERNETES))) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"exporters": {"debug": {}}}, "exporters: debug is used nowhere"),
        ({"service": {"pipelines": {"traces": {"receivers": ["otlp/2"]}}}}, "receivers: otlp/2 is not defined"),
        ({"service": {"pipelines": {"traces": {"processors": ["batch"]}}}}, "processors: tail_sampling is used nowhere"),
        ({"service": {"extensions": []}}, "extensions: health_check is used nowhere"),
    ],
)
def test_what_would_be_wrong_with_a_collector_is_found(change: Any, said: str) -> None:
    assert said in list(problems(together(COLLECTOR, change)))


# --- what sampling keeps ---------------------------------------------------------------------------------------------


def kept(span: dict[str, Any], document: Any = COLLECTOR) -> set[str]:
    """The policies that keep a trace of one span, by the documented meaning of each; the share by chance aside."""
    found = set()
    for policy in sampling(document)["policies"]:
        name, kind = policy["name"], policy["type"]
        if _keeps(kind, policy[kind], span):
            found.add(name)
    return found


def _keeps(kind: str, told: Any, span: dict[str, Any]) -> bool:
    if kind == "status_code":
        return span.get("status") in told["status_codes"]
    if kind == "string_attribute":
        return span.get(told["key"]) in told["values"]
    if kind == "latency":
        return bool(span["duration_s"] * 1_000 > told["threshold_ms"])
    if kind == "probabilistic":
        return False
    assert kind == "ottl_condition", kind
    (condition,) = told["span"]
    match = re.fullmatch(r'attributes\["([^"]+)"\] != nil and attributes\["\1"\] > (\d+\.\d+)', condition)
    assert match is not None, condition
    return span.get(match[1]) is not None and span[match[1]] > float(match[2])


@pytest.mark.parametrize(
    ("span", "by"),
    [
        ({"duration_s": 51.0}, {"slow"}),
        ({"duration_s": 240.0}, {"slow"}),
        ({"duration_s": 2.0, attributes.TTFT: 1.3}, {"slow-first-token"}),
        ({"duration_s": 2.0, attributes.ITL: 0.21}, {"slow-tokens"}),
        ({"duration_s": 0.1, "status": "ERROR", attributes.OUTCOME: "error"}, {"failed", "not-ok"}),
        ({"duration_s": 0.1, attributes.OUTCOME: "aborted"}, {"not-ok"}),
        ({"duration_s": 0.1, attributes.OUTCOME: "rejected"}, {"not-ok"}),
        ({"duration_s": 0.1, "service.name": names.SERVICE_NAME}, {"our-own"}),
        ({"duration_s": 2.0, attributes.TTFT: 0.4, attributes.ITL: 0.02, attributes.OUTCOME: "ok"}, set()),
        ({"duration_s": 2.0, "service.name": TAP}, set()),
    ],
)
def test_the_slow_and_the_failed_request_is_never_left_to_chance(span: dict[str, Any], by: set[str]) -> None:
    assert kept(span) == by


def test_every_outcome_but_ok_is_kept() -> None:
    values = next(p for p in sampling()["policies"] if p["name"] == "not-ok")["string_attribute"]["values"]
    assert {*values, "ok"} == set(OUTCOMES)


def test_a_strict_tier_is_slow_sooner() -> None:
    gold = Tier(name="gold", match={"tenant": "premium"}, p99_s=0.3)
    assert "slow-first-token" in kept({"duration_s": 1.0, attributes.TTFT: 0.35}, of(SloSettings(tiers=(gold,))))


slos = st.builds(
    SloSettings,
    latency=st.builds(
        LatencySlo, ttft_p99_s=st.floats(0.01, 3_600), itl_p99_s=st.floats(0.001, 60), e2e_p99_s=st.floats(0.1, 3_600)
    ),
)


@given(slos)
def test_a_decision_waits_for_longer_than_any_request_that_is_tolerated(slo: SloSettings) -> None:
    document = of(slo)
    wait_s = seconds(sampling(document)["decision_wait"])
    assert wait_s > collector_config.longest_request_s(slo) >= slo.latency.e2e_p99_s
    assert seconds(sampling(document)["decision_wait_after_root_received"]) < wait_s
    assert sampling(document)["num_traces"] >= wait_s * sampling(document)["expected_new_traces_per_sec"]
    assert sampling(document)["decision_cache"]["sampled_cache_size"] >= 10 * sampling(document)["num_traces"]
    assert "non_sampled_cache_size" not in sampling(document)["decision_cache"]
    assert list(problems(document)) == []
    assert "slow" in kept({"duration_s": 1.01 * slo.latency.e2e_p99_s + 0.001}, document)
    assert "slow-first-token" in kept({"duration_s": 0.0, attributes.TTFT: 1.01 * slo.latency.ttft_p99_s}, document)


def test_the_committed_file_is_of_the_stacks_own_slo() -> None:
    slo = load_stack().slo
    assert of(slo) == COLLECTOR


def load_stack() -> Any:
    return parse(read("deploy/config/tailkeeper.yaml"))


# --- who reaches whom ------------------------------------------------------------------------------------------------


def port(url: str) -> tuple[str, int | None]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port


def test_the_collectors_exporters_end_where_tempo_and_loki_listen_for_otlp() -> None:
    exporters = COLLECTOR["exporters"]
    tempo = TEMPO["distributor"]["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    assert port(exporters["otlp_http/tempo"]["endpoint"]) == ("tempo", int(tempo.rpartition(":")[2]))
    assert port(exporters["otlp_http/loki"]["endpoint"]) == ("loki", LOKI["server"]["http_listen_port"])
    assert urlsplit(exporters["otlp_http/loki"]["endpoint"]).path == "/otlp"
    for exporter in exporters.values():
        assert seconds(exporter["retry_on_failure"]["max_elapsed_time"]) <= 300
        assert exporter["sending_queue"]["queue_size"] <= 10_000


def test_grafana_reads_where_tempo_and_loki_answer() -> None:
    assert port(SOURCES["tempo"]["url"]) == ("tempo", TEMPO["server"]["http_listen_port"])
    assert port(SOURCES["loki"]["url"]) == ("loki", LOKI["server"]["http_listen_port"])


def test_prometheus_scrapes_the_parts_where_they_show_their_own_metrics() -> None:
    found = {c["names"][0]: c["port"] for job in PROMETHEUS["scrape_configs"] for c in job.get("dns_sd_configs", [])}
    (reader,) = COLLECTOR["service"]["telemetry"]["metrics"]["readers"]
    assert found == {
        "otel-collector": reader["pull"]["exporter"]["prometheus"]["port"],
        "tempo": TEMPO["server"]["http_listen_port"],
        "loki": LOKI["server"]["http_listen_port"],
    }
    assert PROMETHEUS["storage"]["exemplars"]["max_exemplars"] >= 100_000


def test_what_is_stored_stays_as_long_as_prometheus_keeps_its_series() -> None:
    (flag,) = [word for word in read("docker-compose.yml")["services"]["prometheus"]["command"] if "retention.time" in word]
    days = int(re.fullmatch(r".*=(\d+)d", flag)[1])  # type: ignore[index]
    assert seconds(TEMPO["compactor"]["compaction"]["block_retention"]) == days * 86_400
    assert seconds(LOKI["limits_config"]["retention_period"]) == days * 86_400
    assert LOKI["compactor"]["retention_enabled"] is True


def test_stores_write_below_one_folder_each_and_phone_nobody() -> None:
    text = {"/var/tempo": json.dumps(TEMPO), "/loki": json.dumps(LOKI)}
    for folder, written in text.items():
        paths = re.findall(r'"(/[^"]*)"', written)
        assert paths
        assert all(path == folder or path.startswith(f"{folder}/") for path in paths)
    assert TEMPO["usage_report"]["reporting_enabled"] is LOKI["analytics"]["reporting_enabled"] is False


def test_loki_keeps_our_attributes_beside_the_line_and_makes_one_stream_of_a_service() -> None:
    limits = LOKI["limits_config"]
    assert limits["allow_structured_metadata"] is True
    resource = limits["otlp_config"]["resource_attributes"]
    assert resource == {"ignore_defaults": True, "attributes_config": [{"action": "index_label", "attributes": ["service.name"]}]}
    (schema,) = LOKI["schema_config"]["configs"]
    assert (schema["store"], schema["schema"]) == ("tsdb", "v13")


def test_what_boards_search_traces_by_has_a_column_of_its_own() -> None:
    columns = {(c["scope"], c["name"]) for c in TEMPO["storage"]["trace"]["block"]["parquet_dedicated_columns"]}
    wanted = (attributes.REQUEST_ID, attributes.REQUEST_MODEL, attributes.BACKEND, attributes.OUTCOME, attributes.GPU)
    assert columns == {("span", name) for name in wanted}


# --- Grafana's links -------------------------------------------------------------------------------------------------


def test_an_exemplar_leads_to_its_trace_and_to_the_board_of_its_request() -> None:
    trace, request = SOURCES["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert (trace["name"], trace["datasourceUid"]) == ("trace_id", "tempo")
    assert request["name"] == "request_id"
    assert urlsplit(request["url"].replace("$$", "$")).path == f"/d/{ROOT_CAUSE_UID}"
    assert parse_qs(urlsplit(request["url"].replace("$$", "$")).query) == {"var-request_id": ["${__value.raw}"]}
    assert SOURCES["prometheus"]["jsonData"]["httpMethod"] == "POST"


def test_a_span_leads_to_the_gpu_that_served_it() -> None:
    link = SOURCES["tempo"]["jsonData"]["tracesToMetrics"]
    ((key, label),) = [(tag["key"], tag["value"]) for tag in link["tags"]]
    assert (key, label, link["datasourceUid"]) == (attributes.GPU, "gpu", "prometheus")
    assert link["spanStartTimeShift"] == "-2m"
    asked = [re.fullmatch(r"max by \(backend, gpu\) \((\w+)\{\$\$__tags\}\)", query["query"]) for query in link["queries"]]
    metrics = [BY_NAME[match[1]] for match in asked if match is not None]
    assert len(metrics) == len(link["queries"])
    assert metrics[0].name == "llm_gpu_utilization_ratio"
    assert all(label in metric.label_names for metric in metrics)


def test_a_log_leads_to_its_trace_whether_it_came_by_otlp_or_is_a_line_of_json() -> None:
    fields = SOURCES["loki"]["jsonData"]["derivedFields"]
    by_label = {f["matcherRegex"]: f for f in fields if f["matcherType"] == "label"}
    assert by_label["trace_id"]["datasourceUid"] == "tempo"
    assert f"/d/{ROOT_CAUSE_UID}?" in by_label[attributes.REQUEST_ID.replace(".", "_")]["url"]
    (line,) = [f for f in fields if f["matcherType"] == "regex"]
    trace = "0af7651916cd43dd8448eb211c80319c"
    for text in (json.dumps({"a": 1, "trace_id": trace}), json.dumps({"trace_id": trace}, separators=(",", ":"))):
        assert re.search(line["matcherRegex"], text)[1] == trace  # type: ignore[index]


def test_boards_name_no_data_source_that_is_not_provisioned() -> None:
    named = set()
    for board in (ROOT / "dashboards/generated").glob("*.json"):
        named |= set(re.findall(r'"datasource": \{[^}]*"uid": "([^"]+)"', board.read_text(encoding="utf-8")))
    assert named
    assert {uid for uid in named if not uid.startswith("$") and uid not in ("-- Grafana --", "-- Mixed --")} <= set(SOURCES)


# --- Kubernetes events -----------------------------------------------------------------------------------------------


def test_an_event_reaches_loki_under_the_attributes_of_the_decision_log() -> None:
    (group,) = KUBERNETES["processors"]["transform/kubernetes_events"]["log_statements"]
    told = dict(
        re.findall(r'set\(attributes\["(\w+)"\], body\["object"\]\["metadata"\]\["annotations"\]\["([^"]+)"\]\)', str(group))
    )
    assert set(told) == set(names.ANNOTATED)
    annotated = set(announcement_of(a_change(), "run").annotations)
    assert set(told.values()) == annotated
    assert {names.STRATEGY, names.TRIGGER, names.PHASE} <= set(told)
    assert f'set(resource.attributes["service.name"], "{names.KUBERNETES_SERVICE_NAME}")' in group["statements"]
    assert group["statements"][-1] == 'set(body, body["object"]["message"])'


def test_the_stack_sends_spans_and_logs_to_where_its_collector_listens() -> None:
    config = load_stack()
    receiver = COLLECTOR["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    for otlp in (config.exporter.otlp, config.watchdog.otlp):
        assert otlp.logs is True
        assert port(otlp.endpoint) == ("otel-collector", int(receiver.rpartition(":")[2]))


def test_the_documentation_switches_on_what_the_stack_does() -> None:
    """Its example is the stack's configuration, and with that of people's own it loads."""
    (example,) = re.findall(
        r"^## What to switch on\n\n```yaml\n(.+?)```", (ROOT / "docs/tracing.md").read_text("utf-8"), flags=re.M | re.S
    )
    told, config = parse(yaml.safe_load(example)), load_stack()
    assert (told.exporter.otlp, told.watchdog.otlp) == (config.exporter.otlp, config.watchdog.otlp)


# --- what the check of the running stack looks for ---------------------------------------------------------------------


def test_the_check_looks_for_the_names_that_are_sent() -> None:
    assert compose_telemetry.SPANS[TAP] == {REQUEST_SPAN, *STAGES}
    assert compose_telemetry.SPANS[names.SERVICE_NAME] == {names.TICK, names.Step.DECIDE, names.Step.ACT}
    assert compose_telemetry.LOGS[TAP] == {attributes.REQUEST_ID, attributes.BACKEND, attributes.OUTCOME}
    assert compose_telemetry.LOGS[names.SERVICE_NAME] == {names.STRATEGY, names.TRIGGER, names.PHASE}
    assert {job["job_name"] for job in PROMETHEUS["scrape_configs"]} >= compose_telemetry.STORES


def test_the_check_asks_for_every_query_of_every_board_but_those_with_a_reason() -> None:
    boards = [json.loads(path.read_text(encoding="utf-8")) for path in compose_boards.BOARDS.glob("*.json")]
    asked = compose_boards.board_queries()
    assert {uid for uid, _ in asked} == {board["uid"] for board in boards}
    assert [expr for expr in asked.values() if re.search(r"\$[a-zA-Z_{]", expr)] == []
    here = {
        (board["uid"], f"{panel['title']} {t['refId']}")
        for board in boards
        for panel in board["panels"]
        for t in panel.get("targets", [])
    }
    assert compose_boards.EMPTY_HERE.keys() <= here - asked.keys()


def test_the_check_knows_every_group_of_the_rule_files() -> None:
    documents = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in compose_boards.RULES.glob("*.rules.yml")]
    assert compose_boards.group_names() == {group["name"] for document in documents for group in document["groups"]}
