"""Tries mutants, each in a process of its own forked from one in which everything is imported and collected: a few
milliseconds and the tests.

A mutant inside a function is put into that function's code in place, so that whoever holds the function has it. One of what runs
at import needs its module anew: there the process has only foreign packages, and imports the project with the mutant in it.
A mutant that takes many times the CPU of its tests counts as killed: a loop without an end is noticed by anybody.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib.util
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

KILLED, SURVIVED, TIMED_OUT, BROKEN = "killed", "survived", "timed out", "broken"
OURS = ("tailkeeper", "tests", "conftest")
CPU_FACTOR, CPU_SPARE_S = 4.0, 5.0
WALL_FACTOR = 15
"""Of the CPU limit: who waits for ever burns nothing. Wide, because the machine may be busy."""
MEMORY_BYTES = 6 * 1024**3
OPTIONS = ("-p", "no:cacheprovider", "-p", "no:xdist", "--capture=sys", "-W", "ignore::pytest.PytestWarning")
_DONE, _FAILED, _ERROR = 0, 1, 3


@dataclass(frozen=True, slots=True)
class Order:
    """One mutant to be tried: ``tree()`` makes it, ``tests`` are run in this order until one fails."""

    name: str
    module: str
    file: str
    tree: Callable[[], ast.Module]
    tests: tuple[str, ...]
    cpu_s: float
    """What these tests take together."""


@dataclass(frozen=True, slots=True)
class Trial:
    order: Order
    outcome: str
    by: str
    """The test that noticed it."""


@dataclass(slots=True)
class _Running:
    order: Order
    folder: Path
    reads: int
    until: float


class NoticedError(Exception):
    """A test failed; no other need be asked."""


def try_all(orders: Sequence[Order], run: Callable[[Order, int], None], jobs: int) -> Iterator[Trial]:
    """Each order in a forked process that calls ``run(order, pipe)`` and ends with its outcome; as they come."""
    gc.freeze()
    waiting, running = list(reversed(orders)), dict[int, _Running]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                order = waiting.pop()
                pid, started = _start(order, run)
                running[pid] = started
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid in running:
                yield _ended(running.pop(pid), status)
                continue
            _kill(late for late, of in running.items() if time.monotonic() > of.until)
            time.sleep(0.002)
    finally:
        _kill(running)


def _kill(groups: Iterable[int]) -> None:
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def _start(order: Order, run: Callable[[Order, int], None]) -> tuple[int, _Running]:
    folder = Path(tempfile.mkdtemp(prefix="mutant-"))
    reads, writes = os.pipe()
    limit = CPU_FACTOR * order.cpu_s + CPU_SPARE_S
    pid = os.fork()
    if pid == 0:
        _in_child(order, run, folder, writes, limit)
    os.close(writes)
    return pid, _Running(order, folder, reads, time.monotonic() + limit * WALL_FACTOR)


def _in_child(order: Order, run: Callable[[Order, int], None], folder: Path, writes: int, limit_s: float) -> None:
    """Never returns."""
    code = _ERROR
    try:
        os.setpgid(0, 0)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)
        used = time.process_time()
        resource.setrlimit(resource.RLIMIT_CPU, (int(used + limit_s) + 1, int(used + limit_s) + 2))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        run(order, writes)
        code = _DONE
    except NoticedError:
        code = _FAILED
    except BaseException as error:
        os.write(writes, repr(error).encode()[:2000])
    finally:
        os._exit(code)


def _ended(of: _Running, status: int) -> Trial:
    said = os.read(of.reads, 4096).decode(errors="replace")
    os.close(of.reads)
    shutil.rmtree(of.folder, ignore_errors=True)
    if os.WIFSIGNALED(status):
        return Trial(of.order, TIMED_OUT, "")
    return Trial(of.order, {_DONE: SURVIVED, _FAILED: KILLED}.get(os.WEXITSTATUS(status), BROKEN), said)


def _quick_examples() -> None:
    """The same examples each time, and none made smaller: that a test fails is enough."""
    settings.register_profile("mutation", settings.get_profile("ci"), phases=(Phase.explicit, Phase.generate))
    settings.load_profile("mutation")


# Inside of functions


@dataclass
class InPlace:
    """A pytest plugin that tries mutants instead of running the tests that were collected."""

    orders: Sequence[Order]
    jobs: int
    tell: Callable[[Trial], None]
    _items: Mapping[str, pytest.Item] = field(default_factory=dict)
    _pipe: int = -1

    def pytest_sessionstart(self) -> None:
        _quick_examples()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = {item.nodeid: item for item in session.items}
        for trial in try_all(self.orders, self._run, self.jobs):
            self.tell(trial)
        return True

    def _run(self, order: Order, pipe: int) -> None:
        put_in_place(sys.modules[order.module], order.tree(), order.file)
        self._pipe = pipe
        items = [self._items[name] for name in order.tests]
        for item, after in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self._pipe >= 0:
            os.write(self._pipe, report.nodeid.encode())
            os._exit(_FAILED)


def put_in_place(module: types.ModuleType, tree: ast.Module, file: str) -> None:
    """Give each function of ``module`` that differs its code of ``tree``. Raises LookupError where none differs."""
    changed = False
    for name, code in functions(compiled(tree, file)):
        live = _live(module, name)
        if live is not None and live.__code__ != code:
            live.__code__ = code
            changed = True
    if not changed:
        raise LookupError("no function is changed by it")


def compiled(tree: ast.Module, file: str) -> types.CodeType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a comparison by `is` with a number is a mistake, and here it is meant
        return compile(tree, file, "exec", dont_inherit=True)


def functions(code: types.CodeType) -> Iterator[tuple[str, types.CodeType]]:
    """Functions and methods of a module's code by qualified name; what is within one belongs to it."""
    for inner in code.co_consts:
        if not isinstance(inner, types.CodeType):
            continue
        if "__qualname__" in inner.co_names and not inner.co_flags & 0x2:  # the body of a class
            yield from functions(inner)
        elif not inner.co_name.startswith("<"):
            yield inner.co_qualname, inner


def _live(module: types.ModuleType, name: str) -> types.FunctionType | None:
    found: Any = module
    for part in name.split("."):
        found = vars(found).get(part)
        found = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
        if found is None:
            return None
    while hasattr(found, "__wrapped__"):
        found = found.__wrapped__
    return found if isinstance(found, types.FunctionType) else None


# What runs at import


class Anew:
    """Imports the project with the mutant in it, in a process that has all foreign packages and nothing of ours."""

    def __init__(self, paths: Sequence[str]) -> None:
        """``paths`` are of tests, from which is seen which packages are needed."""
        _quick_examples()
        said = pytest.main([*OPTIONS, "--collect-only", "-q", *paths])
        if said != pytest.ExitCode.OK:
            raise RuntimeError(f"the tests are not collected: {said!r}")
        for name in [name for name in sys.modules if name.partition(".")[0].startswith(OURS)]:
            del sys.modules[name]

    def __call__(self, order: Order, pipe: int) -> None:
        sys.meta_path.insert(0, _Finder(order))
        chosen = _Chosen(order.tests, pipe)
        files = list(dict.fromkeys(test.partition("::")[0] for test in order.tests))
        said = pytest.main([*OPTIONS, "-x", *files], plugins=[chosen])
        if said != pytest.ExitCode.OK:
            raise NoticedError


@dataclass
class _Chosen:
    """A pytest plugin: these tests in this order."""

    tests: Sequence[str]
    pipe: int

    def pytest_sessionstart(self) -> None:
        _quick_examples()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        known = {item.nodeid: item for item in items}
        items[:] = [known[name] for name in self.tests if name in known]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os.write(self.pipe, report.nodeid.encode())
            os._exit(_FAILED)


class _Loader(SourceFileLoader):
    def __init__(self, order: Order) -> None:
        super().__init__(order.module, order.file)
        self._order = order

    def get_code(self, fullname: str) -> types.CodeType:
        return compiled(self._order.tree(), self._order.file)


class _Finder:
    def __init__(self, order: Order) -> None:
        self._order = order

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != self._order.module:
            return None
        return importlib.util.spec_from_file_location(name, self._order.file, loader=_Loader(self._order))
