"""Promtool's cases for ``groups/vllm_only.py``: pages of old and new releases, both spellings, and an exporter beside them.

All engines stand side by side in one set of samples and are called by what is special about them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tailkeeper_alerts.groups import health, liveness, slo_burn
from tailkeeper_alerts.groups.latency import quantile_record
from tailkeeper_alerts.model import Alert, Case, Expected, Input, QueryCase, RuleSettings
from tailkeeper_alerts.promql import quoted
from tailkeeper_exporter import catalog

LASTS = 24
P99 = quantile_record(catalog.TTFT, 0.99)
QUIET = f'{catalog.RUNNING.name}{{backend="quiet:8000"}}'
ASKED_AT = "5m"
MODEL = "Qwen/Qwen2.5-7B"
COLON, UNDERSCORE = "vllm:", "vllm_"


def _engine(
    name: str, spelt: str = COLON, model: str = MODEL, up: str = f"1x{LASTS}", place: str = "", **page: str
) -> list[Input]:
    """One target and its page: values by the name without its prefix. ``place`` are further labels of the target."""
    target = f'job="vllm",instance={quoted(name)}{place}'
    labels = f'{target},model_name={quoted(model)},engine="0"'
    return [
        Input(f"up{{{target}}}", up),
        *(
            Input(f"{spelt}{of.replace('{', '{' + labels + ',') if '{' in of else of + '{' + labels + '}'}", v)
            for of, v in page.items()
        ),
    ]


def _rising(step: int) -> str:
    return f"0+{step}x{LASTS}"


def _constant(value: float) -> str:
    return f"{value:g}x{LASTS}"


WORKS = {"num_requests_running": _constant(1), "num_requests_waiting": _constant(0), "generation_tokens_total": _rising(150)}
WORKS |= {"prompt_tokens_total": _rising(15)}
LATE = {
    'time_to_first_token_seconds_bucket{le="1.0"}': _rising(1),
    'time_to_first_token_seconds_bucket{le="2.5"}': _rising(1),
    'time_to_first_token_seconds_bucket{le="5"}': _rising(2),
    'time_to_first_token_seconds_bucket{le="+Inf"}': _rising(2),
    "time_to_first_token_seconds_count": _rising(2),
}
FINISHED = {
    f'request_success_total{{finished_reason="{why}"}}': _rising(step) for why, step in (("stop", 3), ("length", 1), ("abort", 7))
}
REFUSING = FINISHED | {
    'request_success_total{finished_reason="error"}': _rising(1),
    'admission_rejections_total{reason="max_num_queued_reqs"}': _rising(2),
    'admission_rejections_total{reason="max_num_queued_tokens"}': _rising(1),
}


def _http(name: str) -> Input:
    where = 'handler="/v1/completions",method="POST",status="5xx"'
    return Input(f'http_requests_total{{job="vllm",instance={quoted(name)},{where}}}', f"_x3 {_rising(3)}")


def _inputs() -> tuple[Input, ...]:
    ours = 'job="tailkeeper-exporter",instance="node-1:9400",backend="e",model="exported"'
    engines = (
        _engine("old:8000", **WORKS, gpu_cache_usage_perc=_constant(0.4)),
        _engine("new:8000", UNDERSCORE, **WORKS, kv_cache_usage_perc=_constant(0.4)),
        _engine("both:8000", **WORKS, gpu_cache_usage_perc=_constant(0.4), kv_cache_usage_perc=_constant(0.4)),
        _engine("twice:8000", COLON, **WORKS) + _engine("twice:8000", UNDERSCORE, **WORKS)[1:],
        _engine("10.0.0.9:8000", place=',backend="named"', **WORKS),
        _engine("late:8000", **WORKS, **LATE),
        [*_engine("refusing:8000", **WORKS, **REFUSING), _http("refusing:8000")],
        _engine("quiet:8000", num_requests_running=_constant(0), num_requests_waiting=_constant(0)),
        _engine("full:8000", **{**WORKS, "num_requests_waiting": _constant(3)}, kv_cache_usage_perc=_constant(0.95)),
        _engine("frozen:8000", **{**WORKS, "generation_tokens_total": _constant(9), "prompt_tokens_total": _constant(9)}),
        _engine("gone:8000", up="1x4 0x20", num_requests_running="1x4 stale", num_requests_waiting="0x4 stale"),
        _engine("seen:8000", model="exported", **WORKS),
        [Input(f"{catalog.RUNNING.name}{{{ours}}}", _constant(1))],
        [Input('up{job="node",instance="node-1:9100"}', _constant(0))],
    )
    return tuple(item for engine in engines for item in engine)


def _alert(rules: tuple[object, ...], name: str, **labels: str) -> Alert:
    found = (rule for rule in rules if isinstance(rule, Alert) and rule.name == name)
    return next(rule for rule in found if labels.items() <= rule.all_labels().items())


def cases(settings: RuleSettings) -> tuple[Case, ...]:
    """The alerts of the first file, fired by engines that nobody but Prometheus looks at."""
    lost = _alert(liveness.group(settings).rules, "TelemetryLost", severity="ticket")
    pressure = [_alert(health.group(settings).rules, "MemoryPressure", severity=level) for level in ("ticket", "page")]
    burning = slo_burn.group(settings).rules
    failed = next(r for r in burning if isinstance(r, Alert) and r.name == "SLOBurnFast" and "signal" not in r.all_labels())
    late = _alert(burning, "SLOBurnFast", signal="ttft")
    expected = {
        "TelemetryLost": tuple(Expected(lost, backend=name) for name in ("frozen:8000", "gone:8000")),
        "MemoryPressure": tuple(Expected(alert, "95%", "full:8000") for alert in pressure),
        "SLOBurnFast": (Expected(failed, "7h 12m 0s", "refusing:8000"), Expected(late, "7h 12m 0s", "late:8000")),
        "BackendHung": (),
        "WatchdogDown": (),
    }
    inputs = _inputs()
    return tuple(Case("a fleet of plain engines", name, inputs, ASKED_AT, alerts) for name, alerts in expected.items())


def queries() -> tuple[QueryCase, ...]:
    inputs = _inputs()

    def case(name: str, expr: str, *samples: tuple[str, float]) -> QueryCase:
        return QueryCase(name, expr, inputs, ASKED_AT, samples)

    def of(backends: Iterable[str], value: float, *, model: bool = False, state: str = "") -> Iterator[tuple[str, float]]:
        more = f', model="{MODEL}"' * model + f', state="{state}"' * bool(state)
        return ((f'{{backend="{name}"{more}}}', value) for name in backends)

    serving = ("old:8000", "new:8000", "both:8000", "twice:8000", "late:8000", "refusing:8000", "quiet:8000", "named")
    running, usage = catalog.RUNNING.name, f"max by (backend, model) ({catalog.KV_USAGE.name})"
    errors = f'{catalog.REQUESTS.name}{{outcome="error"}}'
    refused = f'sum by (outcome) (increase({catalog.REQUESTS.name}{{backend="refusing:8000"}}[1m]))'
    return (
        case("old and new names are one value", f"{usage} < 0.9", *of(("old:8000", "new:8000", "both:8000"), 0.4, model=True)),
        case(
            "one series a backend, and none that an exporter tells",
            f'count by (backend) ({running}{{job=""}})',
            *of((*serving, "full:8000", "frozen:8000"), 1.0),
        ),
        case("both spellings at once are one engine", f'max by (backend) ({running}{{job=""}}) > 1'),
        case(
            "what was refused is not counted a second time",
            f"round({refused})",
            ('{outcome="ok"}', 16.0),
            ('{outcome="aborted"}', 28.0),
            ('{outcome="error"}', 16.0),
        ),
        case(
            "an error that is the first is a rise from 0",
            f"sum by (backend) ({errors}) and on (backend) {QUIET}",
            *of(("quiet:8000",), 0.0),
        ),
        case("a quantile by our name", f"round({P99}, 0.01)", *of(("late:8000",), 4.95, model=True)),
        case(
            "exactly one state, and never one that nobody asked for",
            f"max by (backend, state) ({catalog.BACKEND_STATE.name}) == 1",
            *of(serving, 1.0, state="serving"),
            *of(("full:8000",), 1.0, state="busy"),
            *of(("frozen:8000", "gone:8000"), 1.0, state="unknown"),
        ),
        case(
            "up is Prometheus' own, of engines only",
            f"max by (backend) ({catalog.BACKEND_UP.name}) == 0",
            *of(("gone:8000",), 0.0),
        ),
    )
