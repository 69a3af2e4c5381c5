"""All that is generated and committed, in one mapping: boards, rules, Alertmanager, collector, Kubernetes, documentation."""

from __future__ import annotations

from tailkeeper import collector_config, kubernetes_files, metric_docs, policy_docs
from tailkeeper.config import Config
from tailkeeper_alerts.model import RuleSettings
from tailkeeper_alerts.notifications.receivers import Receivers
from tailkeeper_alerts.render import render as render_alerts
from tailkeeper_dashboards.render import render as render_dashboards
from tailkeeper_dashboards.settings import BoardSettings


def documents(receivers: Receivers | None = None, config: Config | None = None) -> dict[str, str]:
    """Path below the repository → content. The same bytes on each run.

    ``config`` gives the SLO, the score's weights and the addresses; without it they are the defaults, as committed.
    """
    rules = None if config is None else rule_settings(config)
    boards = render_dashboards(None if config is None else board_settings(config))
    alerts = render_alerts(rules, receivers)
    collector = collector_config.render(None if config is None else config.slo)
    kubernetes = kubernetes_files.render(boards, alerts)
    return {**boards, **alerts, **collector, **kubernetes, **metric_docs.render(), **policy_docs.render()}


def rule_settings(config: Config) -> RuleSettings:
    """What the rules take from the configuration. Evidence is not called old sooner than by default: Prometheus looks less often
    than the watchdog does."""
    latency, manager, defaults = config.slo.latency, config.watchdog.alertmanager, RuleSettings()
    return RuleSettings(
        objective=config.slo.objective,
        ttft_p99_s=latency.ttft_p99_s,
        itl_p99_s=latency.itl_p99_s,
        weights=config.hscore.weights.model_dump(),
        stale_after_s=max(defaults.stale_after_s, config.watchdog.stale_limit_s(config.exporter.scrape_interval_s)),
        grafana_url=(manager.grafana_url or defaults.grafana_url).rstrip("/"),
        runbook_url=manager.runbook_url,
    )


def board_settings(config: Config) -> BoardSettings:
    """What the boards take from the configuration."""
    latency, defaults = config.slo.latency, BoardSettings()
    return BoardSettings(
        slo_ttft_s=latency.ttft_p99_s,
        objective=config.slo.objective,
        slo_itl_s=latency.itl_p99_s,
        slo_e2e_s=latency.e2e_p99_s,
        console_url=config.watchdog.alertmanager.console_url or defaults.console_url,
    )
