"""Rules: generated, explained, proved by promtool, safe for hostile names. Alertmanager's files: test_alertmanager_files."""

from __future__ import annotations

import pkgutil
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_alerts import groups
from tailkeeper_alerts.document import to_yaml
from tailkeeper_alerts.groups.liveness import HOSTILE_NAMES, WATCHDOG_JOB
from tailkeeper_alerts.model import Alert, Group, Recording, RuleSettings, Severity
from tailkeeper_alerts.promql import at_least, at_most, bucket, count, eq, quantile, quoted, regex, series
from tailkeeper_alerts.render import RULES_PATH, TESTS_FOLDER, VLLM_ONLY_PATH, render
from tailkeeper_exporter.catalog import BACKEND, GPU, MODEL, RUNNING, TTFT
from tailkeeper_exporter.engines.vllm import VLLM
from tailkeeper_watchdog.alerting import ALERT_NAMES, BURN_ALERTS, DEFAULT_ALERT, DEGRADED_ALERT
from tailkeeper_watchdog.detectors import DETECTORS
from tailkeeper_watchdog.metrics import DRIFT_DETECTOR
from tests.e2e.real_programs import binary
from tools.board_lint import metric_of
from tools.promql_walk import read

ROOT = Path(__file__).parents[2]
SETTINGS = RuleSettings()
OUR_GROUPS = tuple(build(SETTINGS) for build in groups.GROUPS)
VLLM_GROUPS = tuple(build(SETTINGS) for build in groups.VLLM_ONLY)
ALL_GROUPS = OUR_GROUPS + VLLM_GROUPS
ALERTS = tuple(rule for group in ALL_GROUPS for rule in group.rules if isinstance(rule, Alert))
RECORDINGS = tuple(rule for group in ALL_GROUPS for rule in group.rules if isinstance(rule, Recording))
RECORDED = {rule.record for group in ALL_GROUPS for rule in group.rules if isinstance(rule, Recording)}
CONTRACT_LABELS = {"severity", "backend", "pool", "dominant_factor", "score_band", "self_heal_strategy"}
CONTRACT_BOARDS = ("fleet", "root-cause", "backend", "gpu", "canary", "healing", "capacity", "watchdog")
CONTRACT_ALERTS = {
    "HealthDegraded",
    "LatencyDrift",
    "BackendHung",
    "MemoryPressure",
    "TelemetryLost",
    "SLOBurnFast",
    "SLOBurnSlow",
    "SLOTrickle",
    "WatchdogDown",
}


@pytest.fixture
def rendered(tmp_path: Path) -> Path:
    """Everything that render() gives, below a folder of its own."""
    for path, text in render().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    return tmp_path


def _run(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in argv], capture_output=True, text=True, timeout=300, check=False)


def test_rendering_twice_gives_the_same_bytes() -> None:
    assert render() == render()


@pytest.mark.parametrize("path", sorted(render()))
def test_the_committed_file_is_what_is_generated(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == render()[path]


def test_every_module_of_the_groups_folder_is_listed() -> None:
    folder = {module.name for module in pkgutil.iter_modules(groups.__path__)}
    assert folder == {build.__module__.rpartition(".")[2] for build in (*groups.GROUPS, *groups.VLLM_ONLY)}


# --- what every alert must say ---------------------------------------------------------------------------------------


def test_the_alerts_are_the_contracts() -> None:
    assert {alert.name for alert in ALERTS} == CONTRACT_ALERTS


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: f"{alert.name}-{alert.severity}")
def test_an_alert_carries_every_label_of_the_contract_and_names_users_and_links(alert: Alert) -> None:
    labels, texts = alert.all_labels(), alert.annotations(SETTINGS)
    given = {"backend": alert.per_backend, "dominant_factor": alert.by_factor}
    from_expression = {name for name, is_given in given.items() if is_given}
    assert set(labels) - {"signal"} | from_expression == CONTRACT_LABELS
    assert not set(labels) & from_expression, "a fixed label would overwrite what the expression gives"
    assert re.search(r"\bUsers\b", texts["impact"])
    assert texts["impact"].endswith(".")
    assert texts["runbook_url"] == f"docs/runbook.md#{alert.name.lower()}"
    board, _, variables = texts["dashboard_url"].partition("?")
    assert board in {f"http://127.0.0.1:3000/d/tailkeeper-{name}" for name in CONTRACT_BOARDS}
    assert ("var-backend" in variables) == alert.per_backend


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: f"{alert.name}-{alert.severity}")
def test_an_alert_has_a_case_that_fires_and_one_that_is_silent(alert: Alert) -> None:
    cases = [case for group in ALL_GROUPS for case in group.cases if case.alert == alert.name]
    assert any(alert in [expected.alert for expected in case.expected] for case in cases)
    assert any(not case.expected for case in cases)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: f"{alert.name}-{alert.severity}")
def test_an_alert_has_a_runbook_heading(alert: Alert) -> None:
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs/runbook.md").read_text(encoding="utf-8"), flags=re.M)
    assert alert.name in headings


def test_the_runbook_has_no_heading_without_an_alert() -> None:
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs/runbook.md").read_text(encoding="utf-8"), flags=re.M)
    told_by_the_watchdog = {*ALERT_NAMES.values(), *BURN_ALERTS.values(), DEFAULT_ALERT, DEGRADED_ALERT}
    assert set(headings) == {alert.name for alert in ALERTS} | told_by_the_watchdog


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: f"{alert.name}-{alert.severity}")
def test_what_an_alert_says_is_for_people_and_not_in_the_trades_own_words(alert: Alert) -> None:
    said = " ".join((alert.summary, alert.impact, alert.causes, alert.actions, alert.when))
    assert not re.search(r"burn rate|[0-9]x\b|error ratio", said)


@pytest.mark.parametrize("rule", [rule for group in OUR_GROUPS for rule in group.rules], ids=lambda rule: rule.expr[:60])
def test_a_rule_reads_only_catalogued_and_recorded_series(rule: Alert | Recording) -> None:
    unknown = [name for name in read(rule.expr).metrics if metric_of(name) is None and name not in {*RECORDED, "up"}]
    assert unknown == []


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: f"{alert.name}-{alert.severity}")
def test_no_alert_turns_nan_into_a_fact(alert: Alert) -> None:
    # An idle quantile is NaN; `!=` and `bool` would make a firing sample of it (field report D1).
    expression = read(alert.expr)
    assert "!=" not in re.sub(r"\{[^}]*\}", "", alert.expr)
    assert "histogram_quantile" not in expression.functions


def test_alerts_of_one_name_differ_in_a_label() -> None:
    identities = [(alert.name, tuple(sorted(alert.all_labels().items()))) for alert in ALERTS]
    assert len(set(identities)) == len(identities)


def test_thresholds_weights_and_addresses_are_the_callers() -> None:
    more = {"stale_after_s": 7, "pressure_page": 0.93, "grafana_url": "https://g.example", "weights": {"latency": 0.77}}
    text = render(RuleSettings(0.99, 2.0, 0.05, **more))[RULES_PATH]  # type: ignore[arg-type]
    for part in (
        "> 7)",
        ">= 0.93",
        "https://g.example/d/",
        "* 0.77",
        ">= 0.144",
        "round(25920 / ",
        "longer than 2 s for",
        "than 0.05 s",
    ):
        assert part in text
    late = f"min without (le) ({bucket(TTFT, at_least(2.0))})"
    assert any(late in rule["expr"] for group in yaml.safe_load(text)["groups"] for rule in group["rules"])


def test_cases_are_written_for_the_numbers_that_they_are_about() -> None:
    assert not any(path.startswith(TESTS_FOLDER) for path in render(RuleSettings(objective=0.9)))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"objective": 1.0}, "slo.objective: 1"),
        ({"objective": 0.0}, "slo.objective: 0"),
        ({"objective": 0.1}, "slo.objective: 0.1"),
        ({"ttft_p99_s": 0.0}, "slo.latency.ttft_p99_s: 0 s"),
        ({"itl_p99_s": float("nan")}, "slo.latency.itl_p99_s: nan s"),
    ],
)
def test_a_promise_that_is_none_is_refused_by_its_name(settings: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=re.escape(named)):
        RuleSettings(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("objective", [0.11, 0.3, 0.5, 0.9, 0.995])
def test_no_rule_tells_of_a_share_that_the_slo_allows(objective: float) -> None:
    of_file = yaml.safe_load(render(RuleSettings(objective=objective))[RULES_PATH])["groups"]
    rules = {rule["record"]: rule["expr"] for group in of_file for rule in group["rules"] if ":burn_" in rule.get("record", "")}
    budget = 1 - objective
    for name, expr in rules.items():
        limits = [float(limit) for limit in re.findall(r"_ratio_\w+ >= ([0-9.e-]+)", expr)]
        # What burns for three days may burn at just over the budget: that is what it is there to tell.
        assert all(limit > budget or (name.endswith("slow") and limit == pytest.approx(budget)) for limit in limits), name


@pytest.mark.parametrize("objective", [0.5, 0.9, 0.93, 0.995, 0.9999])
def test_no_rule_sleeps_through_nine_failures_of_ten_and_one_that_would_says_why(objective: float) -> None:
    # Ten per cent of errors allowed, times 14.4, is more than there are (field report D5).
    of_file = yaml.safe_load(render(RuleSettings(objective=objective))[RULES_PATH])["groups"]
    rules = [rule for group in of_file for rule in group["rules"]]
    limits = [float(limit) for rule in rules for limit in re.findall(r"_ratio_\w+ >= ([0-9.e-]+)", rule["expr"])]
    assert limits
    assert all(0 < limit <= 0.9 for limit in limits)
    fast = [rule for rule in rules if rule.get("alert") == "SLOBurnFast"]
    is_loose = 14.4 * (1 - objective) > 0.9
    assert all(("leaves no share that is 14.4 times too much" in rule["annotations"]["impact"]) == is_loose for rule in fast)


@pytest.mark.parametrize("rule", [rule for group in OUR_GROUPS for rule in group.rules], ids=lambda rule: rule.expr[:60])
def test_whatever_is_joined_or_summed_up_keeps_its_cluster(rule: Alert | Recording) -> None:
    outside_strings = re.sub(r'"(?:[^"\\]|\\.)*"', '""', rule.expr)
    labels = re.findall(r"\b(?:by|on) \(([^)]*)\)", outside_strings)
    assert all("cluster" in of.split(", ") for of in labels)
    assert not re.search(r"\b(?:sum|max|min|count|topk) ?\((?!\w*_over)", outside_strings.replace("min without", ""))


def test_the_watchdogs_job_is_the_one_that_the_stack_scrapes() -> None:
    scraped = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    assert WATCHDOG_JOB in {job["job_name"] for job in scraped}


def test_the_detector_of_drift_is_one_that_the_watchdog_has() -> None:
    assert DRIFT_DETECTOR in {detector.name for detector in DETECTORS}


def test_the_names_of_a_plain_vllm_are_those_of_the_exporters_table() -> None:
    known = {name.removeprefix("vllm_") for source in VLLM.sources for name in source.names}
    for rule in (rule for group in VLLM_GROUPS for rule in group.rules):
        promql_parser.parse(rule.expr)
        names = {re.sub("_(bucket|count|sum)$", "", name) for name in re.findall(r'"vllm\[:_\](\w+)"', rule.expr)}
        assert names <= known
    told = {rule.record for rule in RECORDINGS if rule.record.startswith("llm_")}
    assert {metric_of(name) for name in told} >= {source.metric for source in VLLM.sources}


def test_every_recorded_series_has_its_line_in_the_documentation() -> None:
    text = (ROOT / "docs/alerts.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in RECORDED)
    assert all(rule.meaning or rule.record.endswith("_3d") for rule in RECORDINGS)


# --- the real judges -------------------------------------------------------------------------------------------------


@pytest.mark.real
@pytest.mark.parametrize(("path", "of_file"), [(RULES_PATH, OUR_GROUPS), (VLLM_ONLY_PATH, VLLM_GROUPS)])
@pytest.mark.parametrize("objective", [0.5, 0.9, 0.995, 0.9999])
def test_promtool_accepts_the_rules(tmp_path: Path, path: str, of_file: tuple[Group, ...], objective: float) -> None:
    (tmp_path / "rules.yml").write_text(render(RuleSettings(objective=objective))[path], encoding="utf-8")
    done = _run(binary("promtool"), "check", "rules", tmp_path / "rules.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{sum(len(group.rules) for group in of_file)} rules found" in done.stdout + done.stderr


@pytest.mark.real
@pytest.mark.parametrize("group", ALL_GROUPS, ids=lambda group: group.name)
def test_promtool_sees_every_case_fire_or_stay_silent(rendered: Path, group: Group) -> None:
    done = _run(binary("promtool"), "test", "rules", rendered / TESTS_FOLDER / f"{group.name}.yml")
    assert done.returncode == 0, done.stdout + done.stderr


MUTATIONS = [
    ('state=\\"hung\\"}) == 1', 'state=\\"busy\\"}) == 1', "tailkeeper-liveness"),
    ('state=\\"down\\"}) == 1', 'state=\\"down\\"}) >= 0', "tailkeeper-liveness"),
    ("and on (cluster, job, instance) up == 0", "and on (cluster, job, instance) up >= 0", "tailkeeper-liveness"),
    ("[2m])) == 0", "[2m])) < 0", "tailkeeper-liveness"),
    ("present_over_time(tailkeeper_tick_duration_seconds_count[7d])", "vector(1)", "tailkeeper-liveness"),
    ("llm_vram_pressure_ratio) >= 0.8", "llm_vram_pressure_ratio) >= 0.7", "tailkeeper-health"),
    ("* 0.35", "* 0.45", "tailkeeper-health"),
    ("(tailkeeper_hscore) < 0.6 unless", "(tailkeeper_hscore) <= 0.6 unless", "tailkeeper-health"),
    ('detector=\\"block_e\\"', 'detector=~\\".*\\"', "tailkeeper-health"),
    ("[5m])) > 0", "[5m])) >= 0", "tailkeeper-latency"),
    ("max by (cluster, backend, model) (rate(llm_gen", "sum by (cluster, backend, model) (rate(llm_gen", "tailkeeper-latency"),
    ("max by (cluster, backend, model, outcome", "sum by (cluster, backend, model, outcome", "tailkeeper-slo"),
    ("_5m > 0)", "_5m >= 0)", "tailkeeper-slo"),
    ("error|rejected", "error|aborted", "tailkeeper-slo"),
    ("min without (le)", "max without (le)", "tailkeeper-slo"),
    ("offset 1d >= 0", "offset 1m >= 0", "tailkeeper-slo-hours"),
    ("[3d:1h]", "[1h:1h]", "tailkeeper-slo-hours"),
    ("_ratio_1h >= 0.072", "_ratio_1h >= 0.6", "tailkeeper-slo-burn"),
    ("failed_2m >= 0.072 * llm:requests:counted_2m", "failed_2m >= 0 * llm:requests:counted_2m", "tailkeeper-slo-burn"),
    ("failed_6h >= 5", "failed_6h >= 1", "tailkeeper-slo-burn"),
    ("failed_1h - llm:requests:failed_2m >= 2", "failed_1h - llm:requests:failed_2m >= -9999", "tailkeeper-slo-burn"),
    ("time_to_first_token_seconds:counted_1h) >= 10", "time_to_first_token_seconds:counted_1h) >= 0", "tailkeeper-slo-burn"),
    ("unless on (cluster, backend) llm:requests:burn_fast", "", "tailkeeper-slo-burn"),
    ("_ratio_6h >= 0.03)", "_ratio_6h >= 0.3)", "tailkeeper-slo-burn"),
    ("unless on (cluster, model) tailkeeper:exported_models:present", "", "tailkeeper-vllm-only"),
    ("vllm[:_]", "vllm[:]", "tailkeeper-vllm-only"),
    ("gpu_cache_usage_perc", "gpu_cache_usage", "tailkeeper-vllm-only"),
    ("offset 2m) > 0", "offset 2m) > 99", "tailkeeper-vllm-only"),
    ('";(.+)")', '"(.+);.*")', "tailkeeper-vllm-only"),
]
"""What is written in a rule, what it is changed to, and whose cases must notice."""


@pytest.mark.real
@pytest.mark.parametrize(("original", "changed", "group"), MUTATIONS)
def test_promtool_notices_a_changed_rule(rendered: Path, original: str, changed: str, group: str) -> None:
    rules = rendered / (VLLM_ONLY_PATH if group == "tailkeeper-vllm-only" else RULES_PATH)
    text = rules.read_text(encoding="utf-8")
    assert original in text
    rules.write_text(text.replace(original, changed), encoding="utf-8")
    assert _run(binary("promtool"), "check", "rules", rules).returncode == 0, "a rule that cannot be read proves nothing"
    assert _run(binary("promtool"), "test", "rules", rendered / TESTS_FOLDER / f"{group}.yml").returncode != 0


# --- text that comes from outside ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_hostile_backend_name_is_one_label_value_for_the_promql_parser(name: str) -> None:
    selector = read(series(RUNNING, eq(BACKEND, name))).selectors[0]
    assert (selector.name, selector.labels) == (RUNNING.name, ("backend",))


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.text() | st.integers() | st.booleans(), max_size=4))
def test_whatever_a_text_is_yaml_gives_it_back_as_a_text(values: dict[str, str | int | bool]) -> None:
    printable = {key: value for key, value in values.items() if not isinstance(value, str) or value.isprintable()}
    assert yaml.safe_load(to_yaml(printable)) == printable


@pytest.mark.parametrize("text", ["no", "1e3", "0123", "a: b", "{{ $labels.x }}", "", "~", "2026-11-29", '"', "\\"])
def test_a_text_that_looks_like_something_else_is_quoted(text: str) -> None:
    line = to_yaml({"value": text}).splitlines()[-1]
    assert line.startswith('value: "')
    assert yaml.safe_load(line) == {"value": text}


@given(st.text(st.characters(blacklist_categories=["Cs", "Cc"])))
def test_a_quoted_value_never_ends_early(value: str) -> None:
    inside = quoted(value)[1:-1]
    assert re.fullmatch(r'(?:[^"\\\n]|\\.)*', inside)


# --- bucket bounds ---------------------------------------------------------------------------------------------------

_BOUNDS = st.floats(0.0001, 9_999, allow_nan=False).map(lambda value: float(f"{value:.6g}"))


def _spellings(bound: float) -> set[str]:
    """How Prometheus 2 and 3 write a bucket bound."""
    text = repr(float(bound))
    return {text, text.removesuffix(".0")}


@given(st.one_of(st.just(1.2), st.just(30.0), _BOUNDS), st.one_of(_BOUNDS, st.floats(1e-9, 1e4)))
def test_a_bound_is_matched_exactly_when_it_is_at_most_the_slo(slo_s: float, bound: float) -> None:
    pattern, below = re.compile(at_most(slo_s).value), re.compile(at_least(slo_s).value)
    for text in _spellings(bound):
        assert bool(pattern.fullmatch(text)) == (float(text) <= slo_s)
        assert bool(below.fullmatch(text)) == (float(text) < slo_s)


@given(_BOUNDS)
def test_the_slo_itself_is_within_the_slo(slo_s: float) -> None:
    assert all(re.fullmatch(at_most(slo_s).value, text) for text in _spellings(slo_s))


@pytest.mark.parametrize("bound", [0, -1, 0.00001, float("inf"), float("nan")])
def test_a_bound_that_is_no_latency_is_refused(bound: float) -> None:
    with pytest.raises(ValueError, match="bound"):
        at_most(bound)


def test_infinity_is_never_within_the_slo() -> None:
    assert not re.fullmatch(at_most(9_999).value, "+Inf")
    assert not re.fullmatch(at_least(9_999).value, "+Inf"), "the matcher is negative: what is not in it is at least that"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: series(RUNNING, eq(GPU, "x")), "no label 'gpu'"),
        (lambda: series(TTFT), "read by bucket"),
        (lambda: bucket(RUNNING), "not a histogram"),
        (lambda: count(RUNNING), "not a histogram"),
        (lambda: quantile(0.99, TTFT, (MODEL,), "5m", regex(GPU, ".*")), "no label 'gpu'"),
    ],
)
def test_a_query_that_could_find_nothing_is_refused_when_it_is_written(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_severities_are_the_contracts() -> None:
    assert {severity.value for severity in Severity} == {"page", "ticket", "info"}


def test_this_machine_has_promtool_where_ci_says_so() -> None:
    # A skipped proof must not look like a passed one: with TAILKEEPER_REAL=1 this fails instead of skipping.
    assert shutil.which(binary("promtool"))
