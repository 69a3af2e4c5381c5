"""PromQL that more than one panel or board needs, with the boards' variables in it. Pure text.

The variables are ``$cluster``, ``$model`` and ``$backend``, each with several values and with ``.*`` for all, so that series
whose model nobody knows, and those of a server that serves one cluster alone, stay on the board.
"""

from __future__ import annotations

from tailkeeper_alerts import slo
from tailkeeper_alerts.promql import CLUSTER, Matcher, at_most, bucket, by, count, eq, not_regex, on, regex, series
from tailkeeper_dashboards.prometheus_own import RECORDED, firing
from tailkeeper_dashboards.style import STATES
from tailkeeper_exporter.catalog import (
    BACKEND,
    BACKEND_STATE,
    CANARY,
    MODEL,
    OUTCOME,
    QUANTILE_SATURATED,
    REQUESTS,
    SIGNAL,
    STATE,
    TTFT,
    Label,
    Metric,
)
from tailkeeper_watchdog.metrics import FINDINGS_OPEN, LEASES_IN_FORCE, SEVERITY

IN_CLUSTER = regex(CLUSTER, "$cluster")
IN_BACKENDS = regex(BACKEND, "$backend")
IN_MODELS = regex(MODEL, "$model")
OF_BACKEND = (IN_CLUSTER, IN_BACKENDS)
OF_MODEL = (*OF_BACKEND, IN_MODELS)
"""Matchers of everything that has these labels."""
BY_BACKEND = slo.PLACE
BY_MODEL = (CLUSTER, BACKEND, MODEL)
"""What a backend's series are grouped by: two clusters may each have a backend of one name."""
EACH_BACKEND = on(*BY_BACKEND)
"""How two of them are matched."""
FAILED = slo.FAILED
"""What went wrong on our side; a request that its client gave up is neither good nor bad."""


def of_backend(metric: Metric, operator: str = "max") -> str:
    """One value a backend of a metric without a model, for the chosen backends and models."""
    return of_group(metric, BY_BACKEND, operator)


def of_group(metric: Metric, labels: tuple[Label, ...], operator: str = "max") -> str:
    """The same by ``labels``, which have the backend among them: a value a GPU, or a source."""
    return serving_model(by(operator, labels, series(metric, *OF_BACKEND)))


def serving_model(expression: str) -> str:
    """``expression`` without the backends that are known to serve other models only.

    A backend whose models are not known stays: one that died before it could name a model must not leave the board.
    """
    others, chosen = series(REQUESTS, not_regex(MODEL, "$model")), series(REQUESTS, IN_MODELS)
    return f"({expression} unless {EACH_BACKEND} ({others} unless {EACH_BACKEND} {chosen}))"


def in_states(*names: str) -> str:
    """1 for each chosen backend in one of these states, 0 for the others."""
    return serving_model(by("max", BY_BACKEND, series(BACKEND_STATE, regex(STATE, "|".join(names)), *OF_BACKEND)))


def current_state() -> str:
    """One series a backend, with its state as a label."""
    return serving_model(by("max", (*BY_BACKEND, STATE), f"{series(BACKEND_STATE, *OF_BACKEND)} == 1"))


def state_rank() -> str:
    """The rank of each chosen backend's state; exactly one state is 1, so the sum is the rank of that one."""
    ranks = " or ".join(f"{series(BACKEND_STATE, eq(STATE, state.name), *OF_BACKEND)} * {state.rank}" for state in STATES)
    return serving_model(by("max", BY_BACKEND, ranks))


def within(slo_s: float, window: str, function: str) -> str:
    """Requests surely within ``slo_s`` to the first token: the largest bucket bound at or below it, per backend."""
    inside = f"{function}({bucket(TTFT, *OF_MODEL, at_most(slo_s))}[{window}])"
    return f"sum({by('max', BY_MODEL, inside)})"


def open_findings(severity: str) -> str:
    """How many findings of this severity are open about the chosen backends; 0, and not nothing, while a watchdog is seen."""
    about = series(FINDINGS_OPEN, *OF_BACKEND, eq(SEVERITY, severity))
    return f"sum({about}) or 0 * sum({series(FINDINGS_OPEN, IN_CLUSTER, eq(SEVERITY, severity))})"


def leases() -> str:
    """How many changes of ours are in force on the chosen backends; 0 while a watchdog is seen."""
    return f"sum({series(LEASES_IN_FORCE, *OF_BACKEND)}) or 0 * sum({series(LEASES_IN_FORCE, IN_CLUSTER)})"


def alerts_firing(*matchers: Matcher) -> str:
    """How many such alerts fire; 0, and not nothing, where our rules are evaluated."""
    return f"sum({firing(*matchers, IN_CLUSTER)}) or 0 * sum({RECORDED}{{{IN_CLUSTER.text}}})"


def saturated(signal: str) -> str:
    """Backends whose P99 lies above their last bucket, so that it can only be called 'at least'."""
    return f"{by('max', BY_BACKEND, series(QUANTILE_SATURATED, eq(SIGNAL, signal), *OF_BACKEND))} == 1"


def samples(metric: Metric, window: str, *labels: Label) -> str:
    """How many observations a histogram took in: the n that belongs beside its quantiles. Whole, as ``increase()`` is not."""
    return f"round({by('sum', labels, f'increase({count(metric, *OF_MODEL)}[{window}])')})"


def goodput_ratio(slo_s: float, window: str) -> str:
    """Share of requests that got their first token within ``slo_s``, of all answered, failed and rejected ones."""
    answered = f"sum({by('max', BY_MODEL, f'increase({count(TTFT, *OF_MODEL)}[{window}])')})"
    each = (*BY_MODEL, OUTCOME, CANARY)
    failed = f"sum({by('max', each, f'increase({series(REQUESTS, *OF_MODEL, FAILED)}[{window}])')})"
    return f"{within(slo_s, window, 'increase')} / ({answered} + {failed} > 0)"
