"""What `init` and `doctor` ask of a Prometheus-compatible server: queries, targets, rules, flags. Reads only.

Thanos, Mimir and VictoriaMetrics have the query and not all of the rest: what a server does not have is None, not a mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tailkeeper.asking import Asker, AskError, Trouble
from tailkeeper_exporter.clients import Clients
from tailkeeper_exporter.discovery.prometheus import FRESH
from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators.calls import excerpt

DEADLINE_S = 5.0
"""For one question; a loaded server answers these in milliseconds."""
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
Row = tuple[Mapping[str, str], float]
"""Labels and value."""


@dataclass(frozen=True, slots=True)
class Target:
    """One thing that the server scrapes. ``interval_s`` is None where it does not say."""

    instance: str
    job: str
    url: str
    well: bool
    error: str
    interval_s: float | None


@dataclass(frozen=True, slots=True)
class Rules:
    """The alerts that are loaded, and of the rules that fail the first error."""

    alerts: frozenset[str]
    error: str


class PrometheusApi:
    """Asks one server. Use it as a context manager."""

    def __init__(self, url: str, auth: Auth, clients: Clients | None = None) -> None:
        """Raises AskError where a file of ``auth`` cannot be used."""
        self.url = url
        self._asker = Asker(url, auth, clients or Clients())

    async def __aenter__(self) -> PrometheusApi:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._asker.__aexit__(*error)

    async def query(self, promql: str) -> list[Row]:
        """The rows of an instant query; a scalar is one row without labels. Raises AskError."""
        data = await self._data("/api/v1/query", query=promql, **FRESH)
        try:
            if data["resultType"] == "scalar":
                return [({}, float(data["result"][1]))]
            return [({str(k): str(v) for k, v in row["metric"].items()}, float(row["value"][1])) for row in data["result"]]
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            raise _not_prometheus() from None

    async def targets(self) -> list[Target] | None:
        """What it scrapes now. None where the server has no such list."""
        with suppress(AskError, KeyError, TypeError, AttributeError):
            data = await self._data("/api/v1/targets", state="active")
            return [_target(row) for row in data["activeTargets"]]
        return None

    async def rules(self) -> Rules | None:
        """The alerting rules that it has loaded. None where the server has no such list, or an empty one for form's sake:
        VictoriaMetrics has, because another program (vmalert) evaluates rules there."""
        with suppress(AskError, KeyError, TypeError, AttributeError):
            groups = (await self._data("/api/v1/rules"))["groups"]
            if not groups and "revision" not in await self._data("/api/v1/status/buildinfo"):
                return None
            rules = [rule for group in groups for rule in group["rules"]]
            errors = [f"{rule['name']}: {rule.get('lastError')}" for rule in rules if rule.get("health") == "err"]
            alerts = frozenset(str(rule["name"]) for rule in rules if rule.get("type") == "alerting")
            return Rules(alerts, excerpt(errors[0]) if errors else "")
        return None

    async def keeps_exemplars(self) -> bool | None:
        """Whether exemplar storage is on. None where the server does not tell its flags."""
        with suppress(AskError, KeyError, TypeError, AttributeError):
            return "exemplar-storage" in str((await self._data("/api/v1/status/flags"))["enable-feature"])
        return None

    async def alertmanagers(self) -> tuple[str, ...] | None:
        """The addresses of its Alertmanagers, without the path of their API. None where the server has no such list."""
        with suppress(AskError, KeyError, TypeError, AttributeError):
            rows = (await self._data("/api/v1/alertmanagers"))["activeAlertmanagers"]
            return tuple(str(row["url"]).partition("/api/")[0] for row in rows)
        return None

    async def _data(self, path: str, **query: str) -> Any:
        document = (await self._asker.get(path, DEADLINE_S, query=query)).json()
        if not isinstance(document, dict) or document.get("status") != "success":
            raise _not_prometheus()
        return document.get("data")


def _not_prometheus() -> AskError:
    return AskError(Trouble.OTHER, "does not answer as Prometheus' API does; is this its address?")


def _target(row: Any) -> Target:
    labels = row["labels"]
    seconds = seconds_of(str(row.get("scrapeInterval") or row.get("discoveredLabels", {}).get("__scrape_interval__") or ""))
    error = excerpt(str(row.get("lastError") or ""))
    well = row.get("health") != "down"
    return Target(str(labels.get("instance", "")), str(labels.get("job", "")), str(row["scrapeUrl"]), well, error, seconds)


def seconds_of(duration: str) -> float | None:
    """``1m30s`` as seconds; None for what is none."""
    total, rest = 0.0, duration.strip()
    while rest:
        digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
        rest = rest[len(digits) :]
        unit = "ms" if rest.startswith("ms") else rest[:1]
        if not digits or unit not in _UNITS_S:
            return None
        total, rest = total + int(digits) * _UNITS_S[unit], rest[len(unit) :]
    return total or None
