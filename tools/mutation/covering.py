"""A pytest plugin: which fast test runs which line of the modules that are to be mutated, and what each test costs.

Of every process of pytest-xdist one file comes into the folder. A line that runs while a module is imported is nobody's; it is
noted under "". Off unless ``--covering-folder`` is given.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import coverage
import coverage.exceptions
import pytest

AT_IMPORT = ""
_SEEN = pytest.StashKey["_Seen"]()


@dataclass(slots=True)
class _Seen:
    coverage: coverage.Coverage
    cpu_s: dict[str, float] = field(default_factory=dict)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("covering")
    group.addoption("--covering-folder", default=None)
    group.addoption("--covering-file", action="append", default=[])


def pytest_configure(config: pytest.Config) -> None:
    is_foreman = bool(config.getoption("numprocesses", None)) and not hasattr(config, "workerinput")
    if config.getoption("--covering-folder") and not is_foreman:  # a foreman of pytest-xdist runs nothing itself
        watching = coverage.Coverage(
            data_file=None, config_file=False, include=config.getoption("--covering-file"), messages=False
        )
        watching.start()
        config.stash[_SEEN] = _Seen(watching)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    seen = item.config.stash.get(_SEEN, None)
    if seen is None:
        return (yield)
    seen.coverage.switch_context(item.nodeid)
    started = time.process_time()
    told = yield
    seen.cpu_s[item.nodeid] = time.process_time() - started
    return told


def pytest_unconfigure(config: pytest.Config) -> None:
    seen = config.stash.get(_SEEN, None)
    if seen is None:
        return
    seen.coverage.stop()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", coverage.exceptions.CoverageWarning)  # of tests that touch none of the modules
        data = seen.coverage.get_data()
    lines = {
        os.path.relpath(file): {str(line): sorted(contexts) for line, contexts in data.contexts_by_lineno(file).items()}
        for file in data.measured_files()
    }
    folder = Path(config.getoption("--covering-folder"))
    folder.mkdir(exist_ok=True)
    file = folder / f"{os.getpid()}.json"
    file.write_text(json.dumps({"cpu_s": seen.cpu_s, "lines": lines}), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Covering:
    """What was seen: per file and line the tests, and the seconds of CPU of each test."""

    cpu_s: Mapping[str, float]
    lines: Mapping[str, Mapping[int, frozenset[str]]]

    def of(self, file: str, first: int, last: int) -> frozenset[str]:
        """Tests that ran one of these lines, and ``AT_IMPORT`` where one ran then."""
        known = self.lines.get(file, {})
        return frozenset().union(*(known.get(line, frozenset()) for line in range(first, last + 1)))

    def of_all(self, file: str) -> frozenset[str]:
        return frozenset().union(*self.lines.get(file, {}).values()) - {AT_IMPORT}


def read(folder: Path) -> Covering:
    """All runs in a folder together: what a later one says of a file of tests is true instead of what an earlier one said."""
    cpu_s: dict[str, float] = {}
    lines: dict[str, dict[int, frozenset[str]]] = {}
    for run in sorted(folder.iterdir()):
        parts: list[dict[str, Any]] = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(run.glob("*.json"))]
        told_anew = {test.partition("::")[0] for part in parts for test in part["cpu_s"]}
        over = frozenset(test for test in cpu_s if test.partition("::")[0] in told_anew)
        for of_file in lines.values():
            of_file.update({line: tests - over for line, tests in of_file.items()} if over else {})
        for part in parts:
            cpu_s = {test: took for test, took in cpu_s.items() if test not in over} | part["cpu_s"]
            over = frozenset()
            for file, seen in part["lines"].items():
                of_file = lines.setdefault(file, {})
                for line, tests in seen.items():
                    of_file[int(line)] = of_file.get(int(line), frozenset()).union(tests)
    return Covering(cpu_s, lines)
