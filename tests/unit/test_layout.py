"""The layout that people rely on to find things: asserted, so that it cannot rot."""

from __future__ import annotations

import pkgutil
from pathlib import Path

import pytest

import tailkeeper_alerts.groups
import tailkeeper_dashboards.boards
import tailkeeper_exporter.engines
import tailkeeper_watchdog.actuators
import tailkeeper_watchdog.detectors
import tailkeeper_watchdog.policies
from tailkeeper_alerts.groups import VLLM_ONLY
from tailkeeper_exporter.catalog import CATALOG, Kind, Metric, Unit
from tailkeeper_exporter.engines import ENGINES
from tailkeeper_watchdog.actuators import ACTUATORS
from tailkeeper_watchdog.detectors import DETECTORS
from tailkeeper_watchdog.metrics import WATCHDOG_CATALOG
from tailkeeper_watchdog.policies import POLICIES

ROOT = Path(__file__).parents[2]
SHARED_PARTS = {
    "base",
    "contract",
    "calls",
    "http_auth",
    "http_calls",
    "replicas",
    "membership",
    "ray_document",
    "removed_workers",
    "consul_keys",
    "kube_events",
    "config_file",
    "document_text",
    "envoy_admin",
    "envoy_endpoints",
    "file_weights",
    "traefik_services",
    "kube_api",
    "kube_objects",
    "kube_steps",
    "kube_taints",
}


@pytest.mark.parametrize("folder", ["exporter", "watchdog", "dashboards", "alerts", "demo"])
def test_the_given_folders_hold_prefixed_packages_and_are_none_themselves(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()
    assert (ROOT / folder / f"tailkeeper_{folder}" / "__init__.py").exists()


@pytest.mark.parametrize(
    ("package", "listed"),
    [
        (tailkeeper_exporter.engines, {e.name for e in ENGINES}),
        (tailkeeper_watchdog.policies, {p.name for p in POLICIES}),
        (tailkeeper_watchdog.detectors, {d.name for d in DETECTORS}),
        (tailkeeper_watchdog.actuators, set(ACTUATORS)),
        (tailkeeper_dashboards.boards, {b.__module__.rpartition(".")[2] for b in tailkeeper_dashboards.boards.BOARDS}),
        (tailkeeper_alerts.groups, {g.__module__.rpartition(".")[2] for g in (*tailkeeper_alerts.groups.GROUPS, *VLLM_ONLY)}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_module_of_a_kind_is_in_its_registry(package: object, listed: set[str]) -> None:
    modules = {m.name for m in pkgutil.iter_modules(package.__path__)} - SHARED_PARTS  # type: ignore[attr-defined]
    assert modules == listed


def test_metric_names_are_unique_over_both_catalogues() -> None:
    names = [m.name for m in (*CATALOG, *WATCHDOG_CATALOG)]
    assert len(names) == len(set(names))


def metric(name: str, kind: Kind, buckets: tuple[float, ...] = ()) -> Metric:
    return Metric(name, kind, Unit.SECONDS, "Help.", (), buckets=buckets)


@pytest.mark.parametrize(
    ("name", "kind", "buckets", "says"),
    [
        ("a:b", Kind.GAUGE, (), "no ':' in exported names"),
        ("a", Kind.COUNTER, (), "a counter's name ends in _total"),
        ("a", Kind.HISTOGRAM, (1.0, 1.0), "buckets must rise"),
    ],
)
def test_a_metric_that_nobody_could_query_is_refused_where_it_is_written(
    name: str, kind: Kind, buckets: tuple[float, ...], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        metric(name, kind, buckets)
    assert metric("a_total", Kind.COUNTER, (1.0, 2.0)).name == "a_total"
