"""Units of PromQL expressions, as physics has them: the lint's claim of what a panel must be shown in."""

from __future__ import annotations

import pytest

from tailkeeper_dashboards.style import unit_of
from tailkeeper_exporter.catalog import ITL, KV_USAGE, REQUESTS
from tailkeeper_watchdog.metrics import CAPACITY_GPU_SECONDS, HSCORE, TICK_DURATION
from tools.board_lint import BY_NAME
from tools.promql_units import grafana_unit
from tools.promql_walk import read

SPENT, TOKENS = f"rate({ITL.name}_sum[5m])", f"rate({ITL.name}_count[5m])"
FINISHED = f"increase({REQUESTS.name}[1h])"


@pytest.mark.parametrize(
    ("expr", "unit"),
    [
        (f"sum({SPENT}) / (sum({TOKENS}) > 0)", "s"),
        (f"1 / (max(rate({TICK_DURATION.name}_count[5m])) > 0)", "s"),
        (f"max(rate({TICK_DURATION.name}_sum[5m]))", "percentunit"),
        (f"1000 * {CAPACITY_GPU_SECONDS.name}", "s"),
        (f"sum({CAPACITY_GPU_SECONDS.name} * {FINISHED}) / sum({FINISHED})", "s"),
        (f"{CAPACITY_GPU_SECONDS.name} * 1000 / 3600 * $price", "none"),
        (f"({FINISHED} - {FINISHED}) / {FINISHED}", "percentunit"),
        (f"log10(sum(rate({REQUESTS.name}[5m])) + 1)", "short"),
        ("4 * (tailkeeper_findings_open > bool 0) + 2 * (ALERTS > bool 0)", "short"),
        (f"max_over_time({KV_USAGE.name}[5m])", "percentunit"),
        (f"{KV_USAGE.name} + on (backend) group_right () 0 * llm_gpu_sample_age_seconds", "percentunit"),
        (f"{KV_USAGE.name} or llm_gpu_sample_age_seconds * NaN", "percentunit"),
        ("count(up == 1) / count(up)", "percentunit"),
        ("rate(tailkeeper_exporter_probes_total[5m])", "ops"),
        (f"min({HSCORE.name})", "none"),
        ("vector(3)", None),
    ],
)
def test_the_unit_is_what_the_dimensions_say(expr: str, unit: str | None) -> None:
    assert grafana_unit(expr, BY_NAME) == unit


@pytest.mark.parametrize(
    "expr",
    [
        f"100 * {KV_USAGE.name}",
        f"{KV_USAGE.name} * 100",
        f"100 * sum({FINISHED}) / sum({FINISHED})",
        f"{ITL.name}_sum / llm_gpu_power_watts",
        "rate(llm_gpu_temperature_celsius[5m])",
    ],
)
def test_what_has_no_unit_fits_no_panel(expr: str) -> None:
    assert grafana_unit(expr, BY_NAME) not in {None, "none", *(unit_of(metric) for metric in BY_NAME.values())}


def test_a_price_is_the_only_variable_that_may_be_a_number() -> None:
    with pytest.raises(ValueError, match=r"\S"):
        read(f"{KV_USAGE.name} * $prices")
