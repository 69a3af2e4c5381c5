"""Mutation testing: is a small mistake in what decides noticed by the fast tests?

    python -m tools.mutation [--part NAME …] [--jobs 2] [--own-only] [--list]

First one run of the fast tests under coverage says which test runs which line; then each mutant of each module of `modules` is
tried against the tests that run its line, the part's own tests first, then the quickest, up to ``CPU_S`` of them. What survived
stands in docs/results/mutation.json; ``equivalent.toml`` says of which survivors nobody could notice anything, and why. What was
found out is kept in .mutation/, so that a run that was stopped goes on where it was: who was killed stays so while the module is
as it was, who survived is tried again once a test has changed. ``--list`` only shows who survived so far.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tools.mutation import covering
from tools.mutation.covering import AT_IMPORT, Covering
from tools.mutation.modules import PARTS
from tools.mutation.mutants import Mutant, mutants, mutated
from tools.mutation.report import report
from tools.mutation.trying import BROKEN, OPTIONS, SURVIVED, Anew, InPlace, Order, Trial, try_all
from tools.sources import FAST, FOLDERS, ROOT, file_of

KEPT = ROOT / ".mutation"
CPU_S = 6.0
"""Of tests for one mutant, at most: whoever is not noticed in that time counts as a survivor."""
UNCOVERED = "not covered"


@dataclass(frozen=True, slots=True)
class Work:
    """A mutant, where it is from, and its name: the same as long as its module is."""

    name: str
    part: str
    module: str
    mutant: Mutant


def all_work(parts: Iterable[str]) -> list[Work]:
    found = []
    for part in parts:
        for module in PARTS[part].modules:
            source = file_of(module).read_text(encoding="utf-8")
            digest = hashlib.sha256(source.encode()).hexdigest()[:12]
            found += [
                Work(f"{module}:{digest}:{mutant.place}.{mutant.variant}", part, module, mutant) for mutant in mutants(source)
            ]
    return found


def tests_digest() -> str:
    """Of all tests and all sources: who survived does so with these."""
    return _digest(file for folder in (*FAST, *FOLDERS) for file in sorted((ROOT / folder).rglob("*.py")))


def look_who_covers(own_only: bool) -> Covering:
    """Who runs which line: kept as long as the modules are as they were, and asked anew only of files of tests that changed.

    Raises subprocess.CalledProcessError where a test fails.
    """
    sources = sorted({file_of(module) for part in PARTS.values() for module in part.modules})
    folder = KEPT / f"covering-{_digest(sources)}"
    folder.mkdir(exist_ok=True)
    seen_file = folder.with_suffix(".json")
    seen: dict[str, str] = json.loads(seen_file.read_text(encoding="utf-8")) if seen_file.is_file() else {}
    fast = sorted(str(file.relative_to(ROOT)) for part in FAST for file in (ROOT / part).glob("test_*.py"))
    own = {test for part in PARTS.values() for test in part.own_tests}
    wanted = [file for file in fast if file in own] if own_only else fast
    there = {file: _digest([ROOT / file]) for file in wanted}
    changed = [file for file, digest in there.items() if seen.get(file) != digest]
    if changed:
        run = folder / "being-made"
        shutil.rmtree(run, ignore_errors=True)
        watched = [f"--covering-file={source}" for source in sources]
        plugin = ["-p", "tools.mutation.covering", f"--covering-folder={run}", *watched]
        command = [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", *plugin, *changed]
        subprocess.run(command, check=True, cwd=ROOT)  # noqa: S603  our own interpreter
        run.rename(folder / f"{len(list(folder.iterdir())):04}")
        seen_file.write_text(json.dumps(seen | there), encoding="utf-8")
    return covering.read(folder)


def _digest(files: Iterable[Path]) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def order_of(work: Work, covers: Covering, own: Sequence[str]) -> tuple[Order, bool] | None:
    """How it is tried, and whether by importing its module anew; None where no test runs it."""
    mutant, file = work.mutant, str(file_of(work.module).relative_to(ROOT))
    runs_it = covers.of(file, mutant.first_line, mutant.last_line)
    anew = not mutant.function or AT_IMPORT in runs_it
    ranks = {name: place for place, name in enumerate(own)}
    if anew:  # also by a test that runs nothing of it and only looks at what it made
        runs_it = covers.of_all(file) | {test for test in covers.cpu_s if test.partition("::")[0] in ranks}
    known = sorted(
        (runs_it - {AT_IMPORT}) & covers.cpu_s.keys(),
        key=lambda test: (ranks.get(test.partition("::")[0], len(own)), covers.cpu_s[test], test),
    )
    chosen: list[str] = []
    cpu_s = 0.0
    for test in known:
        if not chosen or cpu_s + covers.cpu_s[test] <= CPU_S:
            chosen.append(test)
            cpu_s += covers.cpu_s[test]
    if not chosen:
        return None
    source = file_of(work.module).read_text(encoding="utf-8")
    tree = functools.partial(mutated, source, mutant.place, mutant.variant)
    return Order(work.name, work.module, str(ROOT / file), tree, tuple(chosen), cpu_s), anew


class Kept:
    """Outcomes by name of the mutant, one line each in a file that only grows."""

    def __init__(self, file: Path, digest: str) -> None:
        self._file, self._digest = file, digest
        self.found: dict[str, dict[str, Any]] = {}
        self.read()

    def read(self) -> None:
        """Also what other processes have written."""
        if self._file.is_file():
            for line in self._file.read_text(encoding="utf-8").splitlines():
                told = json.loads(line)
                self.found[told["name"]] = told

    def is_settled(self, name: str) -> bool:
        told = self.found.get(name)
        return told is not None and (told["outcome"] not in (SURVIVED, UNCOVERED) or told["with"] == self._digest)

    def note(self, name: str, outcome: str, by: str = "") -> None:
        told = {"name": name, "outcome": outcome, "by": by, "with": self._digest}
        self.found[name] = told
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(told) + "\n")


class Progress:
    """Says every few seconds how far it is."""

    def __init__(self, kept: Kept, of: int) -> None:
        self._kept, self._of, self._done, self._survived, self._told = kept, of, 0, 0, time.monotonic()

    def __call__(self, trial: Trial) -> None:
        if trial.outcome == BROKEN:
            print(f"broken: {trial.order.name}: {trial.by}", file=sys.stderr, flush=True)
            return
        self._kept.note(trial.order.name, trial.outcome, trial.by)
        self._done += 1
        self._survived += trial.outcome == SURVIVED
        if time.monotonic() - self._told > 5 or self._done == self._of:
            self._told = time.monotonic()
            print(f"{self._done} of {self._of} tried, {self._survived} survived", flush=True)


def apart(task: Callable[[], None]) -> None:
    """In a process of its own: what it imports and leaves behind is gone with it. Raises RuntimeError where it failed."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            task()
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        finally:
            sys.stdout.flush()
            os._exit(code)
    ended = False
    try:
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        if not ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
    if not ended:
        raise RuntimeError("mutants could not be tried")


def _files(orders: Iterable[Order]) -> list[str]:
    return sorted({test.partition("::")[0] for order in orders for test in order.tests})


def try_in_place(orders: Sequence[Order], kept: Kept, jobs: int) -> None:
    plugin = InPlace(orders, jobs, Progress(kept, len(orders)))
    said = pytest.main([*OPTIONS, *_files(orders)], plugins=[plugin])
    if said not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError(f"pytest ended with {said!r}")


def try_anew(orders: Sequence[Order], kept: Kept, jobs: int) -> None:
    tell = Progress(kept, len(orders))
    for trial in try_all(orders, Anew(_files(orders)), jobs):
        tell(trial)


def try_those(work: Sequence[Work], kept: Kept, jobs: int, own_only: bool) -> None:
    """All that are not settled yet."""
    left = [one for one in work if not kept.is_settled(one.name)]
    if not left:
        return
    covers = look_who_covers(own_only)
    in_place: list[Order] = []
    anew: list[Order] = []
    for one in left:
        made = order_of(one, covers, PARTS[one.part].own_tests)
        if made is None:
            kept.note(one.name, UNCOVERED)
        else:
            (anew if made[1] else in_place).append(made[0])
    print(f"{len(left)} mutants to try: {len(in_place)} in place, {len(anew)} by importing their module anew", flush=True)
    for orders, how in ((in_place, try_in_place), (anew, try_anew)):
        if orders:
            apart(functools.partial(how, orders, kept, jobs))
    kept.read()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutation")
    parser.add_argument("--part", action="append", choices=list(PARTS), default=None)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--own-only", action="store_true", help="ask only the tests that modules.py calls the parts' own")
    parser.add_argument("--list", action="store_true", help="only show who survived so far")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended; what was found out is kept"))
    os.environ.update(CI="1", OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    KEPT.mkdir(exist_ok=True)
    work = all_work(given.part or PARTS)
    kept = Kept(KEPT / "outcomes.jsonl", f"{tests_digest()}{' own' if given.own_only else ''}")
    if not given.list:
        try_those(work, kept, given.jobs, given.own_only)
    outcomes: Mapping[str, str] = {one.name: kept.found[one.name]["outcome"] for one in work if one.name in kept.found}
    return report(
        [(one.part, one.module, one.mutant, outcomes.get(one.name)) for one in work],
        write_it=not (given.list or given.part or given.own_only),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
