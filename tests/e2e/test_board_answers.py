"""What the boards' longer queries answer, worked out by Prometheus itself from series that are written down here (promtool)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tailkeeper_dashboards import agreement, backend_story, canary_queries, gpu_tables, queries
from tailkeeper_dashboards.boards import capacity
from tailkeeper_dashboards.prometheus_own import RECORDED
from tailkeeper_exporter.catalog import GPU_TEMPERATURE
from tests.e2e.real_programs import binary

pytestmark = pytest.mark.real

GATE = "gpu_health_gate"
WATCHED = {"tailkeeper_paused": "0x20"}
FOUND = 'tailkeeper_findings_open{backend="b",kind="hung",severity="page"}'
FIRING = f'ALERTS{{alertname="BackendHung",alertstate="firing",backend="b",severity="page",self_heal_strategy="{GATE}"}}'
APPLIED = f'tailkeeper_decisions_total{{policy="{GATE}",knob="admission",verdict="applied"}}'
Sample = tuple[str, float]


def _answers(folder: Path, expr: str, series: dict[str, str], expected: list[Sample]) -> None:
    """Fails unless ``expr`` gives ``expected`` after ten minutes of ``series``, in promtool's notation at one value a minute."""
    filled = expr.replace("$__rate_interval", "5m").replace("$price", "2")
    for name in ("cluster", "backend", "model", "canary"):
        filled = filled.replace(f"${name}", ".*")
    samples = [{"labels": labels, "value": value} for labels, value in expected]
    document = {
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [{"expr": filled, "eval_time": "10m", "exp_samples": samples}],
            }
        ],
    }
    file = folder / "board.yml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    ran = subprocess.run(
        [binary("promtool"), "test", "rules", file.name], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("says", "series", "word"),
    [
        ("quiet", {}, "0"),
        ("found, told and acted", {FOUND: "1x20", FIRING: "1x20", APPLIED: "0+1x20"}, "7"),
        ("a drain that is kept", {FOUND: "1x20", FIRING: "1x20", APPLIED.replace("applied", "already"): "0+1x20"}, "7"),
        ("refused", {FOUND: "1x20", FIRING: "1x20", APPLIED.replace("applied", "refused"): "0+1x20"}, "6"),
        ("nobody told", {FOUND: "1x20", APPLIED: "0+1x20"}, "5"),
        ("an alert about nothing", {FOUND: "0x20", FIRING: "1x20"}, "2"),
        ("an alert that is only pending", {FIRING.replace("firing", "pending"): "1x20"}, "0"),
        ("another strategy's alert", {FIRING.replace(GATE, "memory_breaker"): "1x20"}, "0"),
        ("just over, the alert ends", {FOUND: "1x7 0x20", FIRING: "1x20"}, "10"),
        ("just over", {FOUND: "1x7 0x20", APPLIED: "0+1x20"}, "9"),
        ("acted ten minutes ago", {APPLIED: "0 1x20"}, "0"),
    ],
)
def test_whether_they_agree(tmp_path: Path, says: str, series: dict[str, str], word: str) -> None:
    _answers(tmp_path, agreement.code(GATE), {**WATCHED, **series}, [("{}", float(word))])
    differs = float(agreement.WORDS[word][0].startswith("no"))
    _answers(tmp_path, agreement.differs(GATE), {**WATCHED, **series}, [("{}", differs)])


def test_every_strategy_that_differs_is_counted(tmp_path: Path) -> None:
    series = {**WATCHED, FOUND: "1x20", FIRING.replace(GATE, "memory_breaker"): "1x20"}
    _answers(tmp_path, agreement.differing(), series, [("{}", 2.0)])


def test_each_cluster_agrees_with_itself(tmp_path: Path) -> None:
    series = {f'{name}{{cluster="{c}"}}': "0x20" for name in WATCHED for c in "xy"}
    series |= {FOUND.replace("{", '{cluster="x",'): "1x20", FIRING.replace("{", '{cluster="y",'): "1x20"}
    _answers(tmp_path, agreement.code(GATE), series, [('{cluster="x"}', 4.0), ('{cluster="y"}', 2.0)])


def test_without_a_watchdog_nobody_is_said_to_agree(tmp_path: Path) -> None:
    _answers(tmp_path, agreement.code(GATE), {FIRING: "1x20"}, [])


@pytest.mark.parametrize(
    ("series", "code", "word"),
    [
        ({}, 0, "fine"),
        ({FOUND: "1x20"}, 1, "found"),
        ({FOUND.replace("page", "info"): "1x20"}, 0, "fine"),
        ({FOUND: "1x20", 'tailkeeper_leases_in_force{backend="b",knob="weight"}': "1x20"}, 5, "coming back"),
        ({'tailkeeper_desired_weight{backend="b"}': "0.5x20"}, 2, "wanted, not done"),
        (
            {
                FOUND: "1x20",
                'tailkeeper_desired_weight{backend="b"}': "0x20",
                'tailkeeper_leases_in_force{backend="b",knob="admission"}': "1x20",
            },
            7,
            "found, held back",
        ),
        ({'tailkeeper_leases_in_force{backend="b",knob="concurrency_limit"}': "1x20"}, 8, "limit changed"),
    ],
)
def test_how_far_a_backends_matter_has_come(tmp_path: Path, series: dict[str, str], code: int, word: str) -> None:
    known = {'tailkeeper_desired_weight{backend="b"}': "1x20"}
    _answers(tmp_path, backend_story.code(), {**known, **series}, [('{backend="b"}', float(code))])
    assert backend_story.styled(code)[0] == word


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        ({}, []),
        ({f'{RECORDED}{{backend="b"}}': "0x20"}, [("{}", 0.0)]),
        ({f'{RECORDED}{{backend="b"}}': "0x20", FIRING: "1x20"}, [("{}", 1.0)]),
        ({FIRING: "1x20"}, [("{}", 1.0)]),
    ],
)
def test_no_alert_is_0_only_where_our_rules_are_evaluated(tmp_path: Path, series: dict[str, str], expected: list[Sample]) -> None:
    _answers(tmp_path, queries.alerts_firing(), series, expected)


def _requests(backend: str, revision: str, ok: int, errors: int) -> dict[str, str]:
    def labels(outcome: str) -> str:
        return f'{{backend="{backend}",model="m",outcome="{outcome}",canary_revision="{revision}"}}'

    return {f"llm_requests_total{labels('ok')}": f"0+{ok}x20", f"llm_requests_total{labels('error')}": f"0+{errors}x20"}


def _buckets(backend: str, quick: int, slow: int) -> dict[str, str]:
    own = f'backend="{backend}",model="m"'
    bounds = {"0.5": quick, "1.0": quick + slow, "+Inf": quick + slow}
    found = {f'llm_time_to_first_token_seconds_bucket{{{own},le="{le}"}}': f"0+{n}x20" for le, n in bounds.items()}
    return {**found, f"llm_time_to_first_token_seconds_count{{{own}}}": f"0+{quick + slow}x20"}


TWO_REVISIONS = {
    **_requests("a", "v1", 90, 10),
    **_requests("b", "v2", 20, 20),
    **_buckets("a", 100, 0),
    **_buckets("b", 20, 20),
}
V1, V2 = '{model="m",canary_revision="v1"}', '{model="m",canary_revision="v2"}'


def test_a_revision_has_the_latency_of_its_backends(tmp_path: Path) -> None:
    _answers(tmp_path, canary_queries.p99("10m"), TWO_REVISIONS, [(V1, 0.495), (V2, 0.99)])


def test_a_canary_is_compared_with_the_revision_of_most_requests(tmp_path: Path) -> None:
    slower = canary_queries.canaries(canary_queries.slower_than_stable("10m"), "10m")
    _answers(tmp_path, slower, TWO_REVISIONS, [(V2, 0.495)])
    _answers(tmp_path, canary_queries.errors_more_than_stable("10m"), TWO_REVISIONS, [(V1, 0.0), (V2, 0.4)])


def test_a_canary_of_few_requests_is_not_called_slower(tmp_path: Path) -> None:
    few = {**TWO_REVISIONS, **_requests("b", "v2", 5, 0)}
    few = {
        name: values
        for name, values in few.items()
        if not (name.startswith("llm_requests") and 'outcome="error"' in name and "v2" in name)
    }
    _answers(tmp_path, canary_queries.canaries(canary_queries.slower_than_stable("10m"), "10m"), few, [])


def test_requests_without_a_revision_have_a_word_for_it(tmp_path: Path) -> None:
    plain = {name.replace(',canary_revision="v1"', ""): values for name, values in _requests("a", "v1", 60, 0).items()}
    _answers(tmp_path, canary_queries.called(canary_queries.rate()), plain, [('{model="m",canary_revision="no revision"}', 1.0)])


def test_a_backends_only_gpu_is_called_like_the_backend_and_each_of_two_by_itself(tmp_path: Path) -> None:
    uuid = "GPU-51a00000-0000-0000-0000-00000000000"
    gpus = [("a", f"{uuid}1"), ("b", f"{uuid}2"), ("b", f"{uuid}3"), ("c", "short")]
    series = {f'llm_gpu_sample_age_seconds{{backend="{b}",gpu="{g}"}}': "1x20" for b, g in gpus}
    series |= {f'llm_gpu_temperature_celsius{{backend="{b}",gpu="{g}"}}': "50x20" for b, g in gpus}
    named = gpu_tables.named(gpu_tables.of_gpu(GPU_TEMPERATURE))
    expected = ['{backend="a"}', '{backend="b",gpu=" GPU-51a0…0002"}', '{backend="b",gpu=" GPU-51a0…0003"}', '{backend="c"}']
    _answers(tmp_path, named, series, [(labels, 50.0) for labels in expected])


def test_the_cost_of_a_request_is_that_of_its_gpu_hours(tmp_path: Path) -> None:
    # 7.2 GPU seconds a request are two GPU hours for a thousand, at a price of 2.
    series = {'tailkeeper_capacity_gpu_seconds_per_request{backend="a"}': "7.2x20"}
    _answers(tmp_path, capacity.COST, series, [('{backend="a"}', 4.0)])
