"""What a rule, an alert and its promtool case are, before they become YAML. Frozen values; no I/O.

Every alert carries every label of the public contract, from its expression or fixed, and ``none`` where it cannot know it,
as the watchdog's own alerts do: Alertmanager takes a label that is missing on both sides for equal. Prometheus knows no
pools, so ``pool`` is always ``none`` here. ``signal`` and, where a store adds it, ``cluster`` come on top. A score, a cause
and an impact are annotations: as labels they would split one incident into many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import quote_plus

from tailkeeper_watchdog.alert_terms import NONE, RUNBOOK
from tailkeeper_watchdog.metrics import LOOSEST_OBJECTIVE, MEMORY_RISK_RATIO, MEMORY_STOP_RATIO

BACKEND_TEMPLATE = "{{ $labels.backend }}"
BACKEND_IN_URL_TEMPLATE = "{{ $labels.backend | urlquery }}"
CLUSTER_IN_URL_TEMPLATE = "{{ with $labels.cluster }}&var-cluster={{ . | urlquery }}{{ end }}"
FACTOR_TEMPLATE = "{{ $labels.dominant_factor }}"
SCORE_TEMPLATE = '{{ $value | printf "%.2f" }}'
VALUE_TEMPLATE = "{{ $value }}"
PERCENT_TEMPLATE = "{{ $value | humanizePercentage }}"
DURATION_TEMPLATE = "{{ $value | humanizeDuration }}"

NO_STRATEGY = NONE
FLEET_BOARD_UID = "tailkeeper-fleet"
BACKEND_BOARD_UID = "tailkeeper-backend"
WATCHDOG_BOARD_UID = "tailkeeper-watchdog"
SHORTEST_S, LONGEST_S = 0.001, 86_400.0
"""Between these every latency of an SLO lies: a millisecond and a day."""


class Severity(StrEnum):
    """The contract's severities: wake someone, handle by day, for information."""

    PAGE = "page"
    TICKET = "ticket"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """Thresholds and addresses of the generated rules; the defaults are those of the configuration file.

    ``objective`` is the share of good requests and the latencies are those of the SLO, in seconds. ``weights`` are the
    HScore's, ``stale_after_s`` says how old the watchdog's evidence may get, and the pressures are the two levels of the
    memory breaker (product description 4.2). Raises ValueError where a promise is none.
    """

    objective: float = 0.995
    ttft_p99_s: float = 1.2
    itl_p99_s: float = 0.2

    weights: Mapping[str, float] = field(
        default_factory=lambda: {"latency": 0.35, "error_rate": 0.40, "cpu_usage": 0.15, "uptime": 0.10}
    )
    stale_after_s: float = 60
    pressure_ticket: float = MEMORY_RISK_RATIO
    pressure_page: float = MEMORY_STOP_RATIO
    grafana_url: str = "http://127.0.0.1:3000"
    runbook_url: str = RUNBOOK

    def __post_init__(self) -> None:
        if not LOOSEST_OBJECTIVE < self.objective < 1:
            raise ValueError(
                f"slo.objective: {self.objective:g} leaves no share of requests that could be too many or too few to fail; "
                f"{LOOSEST_OBJECTIVE:g} to 1, exclusive"
            )
        for name, value in (("ttft_p99_s", self.ttft_p99_s), ("itl_p99_s", self.itl_p99_s)):
            if not SHORTEST_S <= value <= LONGEST_S:
                raise ValueError(f"slo.latency.{name}: {value:g} s; allowed are {SHORTEST_S:g} to {LONGEST_S:g} s")


@dataclass(frozen=True, slots=True)
class Recording:
    """One recording rule. ``labels`` are set on what it records; ``meaning`` is for the documentation."""

    record: str
    expr: str
    meaning: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Alert:
    """One alerting rule. Texts may use the templates of this module and nothing else of Prometheus' template language.

    ``when`` says the condition in words, for the documentation. ``per_backend`` and ``by_factor`` say which labels
    its expression gives. ``board`` is where its link leads, a board's uid.
    """

    name: str
    expr: str
    severity: Severity
    summary: str
    impact: str
    causes: str
    actions: str
    when: str
    for_s: int = 0
    keep_firing_for_s: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    strategy: str = NO_STRATEGY
    per_backend: bool = True
    by_factor: bool = False
    board: str = BACKEND_BOARD_UID
    score: str | None = None

    def all_labels(self) -> dict[str, str]:
        """The fixed ones. What the expression gives is not among them: Prometheus would take the fixed value instead."""
        given = {"backend": self.per_backend, "dominant_factor": self.by_factor}
        unknown = {name: NONE for name in ("backend", "pool", "dominant_factor", "score_band") if not given.get(name, False)}
        return {"severity": self.severity.value, **unknown, **self.labels, "self_heal_strategy": self.strategy}

    def annotations(self, settings: RuleSettings) -> dict[str, str]:
        """Every annotation as a template. The order is the one in which a tired reader needs them."""
        board = f"{settings.grafana_url}/d/{self.board}"
        this = f"{board}?var-backend={BACKEND_IN_URL_TEMPLATE}{CLUSTER_IN_URL_TEMPLATE}"
        texts = {"summary": self.summary, "impact": self.impact, "causes": self.causes, "actions": self.actions}
        if self.score is not None:
            texts["score"] = self.score
        texts["dashboard_url"] = this if self.per_backend else board
        texts["runbook_url"] = f"{settings.runbook_url}#{self.name.lower()}"
        return texts


@dataclass(frozen=True, slots=True)
class Input:
    """One input series of a promtool case: a selector with equality matchers, and promtool's value notation."""

    series: str
    values: str


@dataclass(frozen=True, slots=True)
class Expected:
    """An alert that a case expects, with the values that its templates will have been filled with."""

    alert: Alert
    value: str = "1"
    backend: str | None = None
    factor: str | None = None
    signal: str | None = None
    cluster: str | None = None

    def labels(self) -> dict[str, str]:
        own = {"backend": self.backend, "dominant_factor": self.factor, "signal": self.signal, "cluster": self.cluster}
        return {**self.alert.all_labels(), **{name: value for name, value in own.items() if value is not None}}

    def annotations(self, settings: RuleSettings) -> dict[str, str]:
        return {name: self._filled(text) for name, text in self.alert.annotations(settings).items()}

    def _filled(self, text: str) -> str:
        backend = self.backend or ""
        filled = text
        for template in (VALUE_TEMPLATE, SCORE_TEMPLATE, PERCENT_TEMPLATE, DURATION_TEMPLATE):
            filled = filled.replace(template, self.value)
        cluster = f"&var-cluster={quote_plus(self.cluster)}" if self.cluster else ""
        filled = filled.replace(FACTOR_TEMPLATE, self.factor or "").replace(CLUSTER_IN_URL_TEMPLATE, cluster)
        # The backend's name comes last: one that looks like a template must stay as it is.
        return filled.replace(BACKEND_IN_URL_TEMPLATE, quote_plus(backend)).replace(BACKEND_TEMPLATE, backend)


@dataclass(frozen=True, slots=True)
class Case:
    """One promtool case for one alert name. No ``expected`` means that it stays silent."""

    name: str
    alert: str
    inputs: tuple[Input, ...]
    at: str
    expected: tuple[Expected, ...] = ()


@dataclass(frozen=True, slots=True)
class QueryCase:
    """One promtool case for a recorded series: samples as promtool prints them, by their label text."""

    name: str
    expr: str
    inputs: tuple[Input, ...]
    at: str
    samples: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """A rule group with the cases that prove it. Rules of a group are evaluated in order.

    ``interval_s`` is how often it is evaluated, 0 for the server's own interval: long windows are dear and need not be quick.
    ``test_interval_s`` is how often its cases have samples and are evaluated.
    """

    name: str
    rules: tuple[Recording | Alert, ...]
    cases: tuple[Case, ...] = ()
    queries: tuple[QueryCase, ...] = ()
    interval_s: int = 0
    test_interval_s: int = 15
