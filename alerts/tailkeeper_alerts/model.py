"""What a rule, an alert and its promtool case are, before they become YAML. Frozen values; no I/O.

Every alert carries the labels of the public contract that it can know: ``severity``, ``self_heal_strategy`` (the policy
that acts on it, or ``none``) and, from its expression, ``backend``, ``dominant_factor`` or ``score_band``. A score, a
cause and an impact are annotations: as labels they would split one incident into many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import quote_plus

from tailkeeper_watchdog.metrics import MEMORY_RISK_RATIO, MEMORY_STOP_RATIO

BACKEND_TEMPLATE = "{{ $labels.backend }}"
BACKEND_IN_URL_TEMPLATE = "{{ $labels.backend | urlquery }}"
FACTOR_TEMPLATE = "{{ $labels.dominant_factor }}"
SCORE_TEMPLATE = '{{ $value | printf "%.2f" }}'
PERCENT_TEMPLATE = "{{ $value | humanizePercentage }}"

NO_STRATEGY = "none"
FLEET_BOARD_UID = "tailkeeper-fleet"


class Severity(StrEnum):
    """The contract's severities: wake someone, handle by day, for information."""

    PAGE = "page"
    TICKET = "ticket"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """Thresholds and addresses of the generated rules; the defaults are those of the configuration file.

    ``weights`` are the HScore's, ``stale_after_s`` says how old the watchdog's evidence may get, and the pressures are
    the two levels of the memory breaker (product description 4.2).
    """

    weights: Mapping[str, float] = field(
        default_factory=lambda: {"latency": 0.35, "error_rate": 0.40, "cpu_usage": 0.15, "uptime": 0.10}
    )
    stale_after_s: float = 60
    pressure_ticket: float = MEMORY_RISK_RATIO
    pressure_page: float = MEMORY_STOP_RATIO
    grafana_url: str = "http://127.0.0.1:3000"
    runbook_url: str = "docs/runbook.md"


@dataclass(frozen=True, slots=True)
class Recording:
    """One recording rule."""

    record: str
    expr: str


@dataclass(frozen=True, slots=True)
class Alert:
    """One alerting rule. Texts may use the templates of this module and nothing else of Prometheus' template language."""

    name: str
    expr: str
    severity: Severity
    summary: str
    impact: str
    causes: str
    actions: str
    for_s: int = 0
    keep_firing_for_s: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    strategy: str = NO_STRATEGY
    per_backend: bool = True
    score: str | None = None

    def all_labels(self) -> dict[str, str]:
        return {"severity": self.severity.value, **self.labels, "self_heal_strategy": self.strategy}

    def annotations(self, settings: RuleSettings) -> dict[str, str]:
        """Every annotation as a template. The order is the one in which a tired reader needs them."""
        board = f"{settings.grafana_url}/d/{FLEET_BOARD_UID}"
        texts = {"summary": self.summary, "impact": self.impact, "causes": self.causes, "actions": self.actions}
        if self.score is not None:
            texts["score"] = self.score
        texts["dashboard_url"] = f"{board}?var-backend={BACKEND_IN_URL_TEMPLATE}" if self.per_backend else board
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

    def labels(self) -> dict[str, str]:
        own = {"backend": self.backend, "dominant_factor": self.factor}
        return {**self.alert.all_labels(), **{name: value for name, value in own.items() if value is not None}}

    def annotations(self, settings: RuleSettings) -> dict[str, str]:
        return {name: self._filled(text) for name, text in self.alert.annotations(settings).items()}

    def _filled(self, text: str) -> str:
        backend = self.backend or ""
        filled = text.replace(SCORE_TEMPLATE, self.value).replace(PERCENT_TEMPLATE, self.value)
        filled = filled.replace(FACTOR_TEMPLATE, self.factor or "")
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
    """A rule group with the cases that prove it. Rules of a group are evaluated in order."""

    name: str
    rules: tuple[Recording | Alert, ...]
    cases: tuple[Case, ...] = ()
    queries: tuple[QueryCase, ...] = ()
