"""Everything that is generated and committed, in one mapping: dashboards, rules, Alertmanager, collector, documentation."""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path

from tailkeeper import collector_config, metric_docs, policy_docs
from tailkeeper_alerts.render import render as render_alerts
from tailkeeper_dashboards.render import render as render_dashboards

MAX_DIFF_LINES = 12


def documents() -> dict[str, str]:
    """Path below the repository → content. The same bytes on each run."""
    configurations = {**render_alerts(), **collector_config.render()}
    return {**render_dashboards(), **configurations, **metric_docs.render(), **policy_docs.render()}


def write(rendered: dict[str, str], base: Path) -> None:
    for path, text in rendered.items():
        file = base / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def differences(rendered: dict[str, str], base: Path) -> list[str]:
    """One entry for each file that is missing or differs, with the beginning of the difference."""
    wrong = []
    for path, text in rendered.items():
        file = base / path
        if not file.is_file():
            wrong.append(f"{path}: missing")
            continue
        found = file.read_text(encoding="utf-8")
        if found != text:
            lines = list(unified_diff(found.splitlines(), text.splitlines(), "committed", "generated", lineterm="", n=1))
            wrong.append("\n".join([f"{path}: differs", *lines[:MAX_DIFF_LINES]]))
    return wrong
