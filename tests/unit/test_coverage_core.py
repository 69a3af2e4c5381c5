"""What coverage of the core is measured of: the modules that pyproject.toml keeps pure, by their files and never by import."""

from __future__ import annotations

import pytest

from tools.coverage_core import LIMIT_RATIO, by_package, core_modules, files_of, too_little
from tools.sources import ROOT, file_of


def test_every_pure_module_has_a_file_that_is_looked_at() -> None:
    modules = core_modules()
    assert {"tailkeeper_watchdog.guards", "tailkeeper_watchdog.scoring", "tailkeeper_exporter.liveness"} <= set(modules)
    assert all(file_of(module).is_file() for module in modules)


def test_of_a_package_all_of_it_and_of_a_module_its_file() -> None:
    watchdog = ROOT / "watchdog/tailkeeper_watchdog"
    assert files_of("tailkeeper_watchdog.guards") == str(watchdog / "guards.py")
    assert files_of("tailkeeper_watchdog.scoring") == f"{watchdog / 'scoring'}/*"
    with pytest.raises(FileNotFoundError, match=r"tailkeeper_watchdog\.no_such"):
        files_of("tailkeeper_watchdog.no_such")


@pytest.mark.parametrize(("lines", "branches", "poor"), [(95, 19, False), (94, 20, True), (100, 18, True)])
def test_a_package_is_judged_by_the_sums_of_its_files(lines: int, branches: int, poor: bool) -> None:
    """Of 100 lines and 20 branches in two files."""
    halves = [
        {"num_statements": 50, "covered_lines": seen, "num_branches": 10, "covered_branches": taken}
        for seen, taken in ((lines // 2, branches // 2), (lines - lines // 2, branches - branches // 2))
    ]
    files = {f"watchdog/tailkeeper_watchdog/slo/{n}.py": {"summary": half} for n, half in enumerate(halves)}
    ((name, sums),) = by_package(files).items()
    assert (name, sums["modules"], LIMIT_RATIO) == ("tailkeeper_watchdog.slo", 2, 0.95)
    assert too_little(sums) == poor
