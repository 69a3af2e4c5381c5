"""Branch coverage of the pure core by the fast tests: what decides must have been seen to decide both ways.

    python -m tools.coverage_core [--missing]

Which modules the core has is stated once, in pyproject.toml: those that import-linter keeps from sockets, files and clocks. The
fast tests alone count, because they are what people run before they commit. Ends with 1 where the core or one of its packages is
under the limit, or a test fails. Writes docs/results/coverage.json; ``--missing`` also prints where nobody has been.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tools.results.envelope import write
from tools.sources import FAST, FOLDERS, ROOT, file_of

LIMIT_RATIO = 0.95
"""Of the branches, and of the lines: what is left are refusals of what cannot be, which no honest test can bring about."""
_COUNTS = ("num_statements", "covered_lines", "num_branches", "covered_branches")
_CONFIGURATION = """\
[run]
branch = true
parallel = true
patch = subprocess
data_file = {folder}/seen
source = {folders}

[report]
include = {files}
"""
"""``patch`` is how the workers of pytest-xdist, processes of their own, are measured too.

Folders and files, never ``source_pkgs``: to find a module coverage imports what it lies in, and forgets it again. From then on
there are two of much that was imported on the way, asyncio's exceptions among it, and what one raises the other does not catch.
"""


def core_modules(pyproject: Path = ROOT / "pyproject.toml") -> tuple[str, ...]:
    """Of the contracts that forbid clocks: only a pure module can do without."""
    contracts = tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    pure = [contract for contract in contracts if "time" in contract.get("forbidden_modules", ())]
    return tuple(sorted({module for contract in pure for module in contract["source_modules"]}))


def files_of(module: str) -> str:
    """Of a package all, as import-linter takes it."""
    file = file_of(module)
    return f"{file.parent}/*" if file.name == "__init__.py" else str(file)


def measure(modules: Iterable[str]) -> Mapping[str, Any]:
    """Coverage's own report over ``modules``. Raises subprocess.CalledProcessError where a test fails."""
    with tempfile.TemporaryDirectory() as folder:
        settings, report = Path(folder, "coverage.ini"), Path(folder, "report.json")
        folders = ",".join(str(ROOT / name) for name in FOLDERS)
        files = ",".join(files_of(module) for module in modules)
        settings.write_text(_CONFIGURATION.format(folder=folder, folders=folders, files=files), encoding="utf-8")
        for words in (
            ("run", "-m", "pytest", "-n", "auto", *FAST),
            ("combine", "--quiet"),
            ("json", "--quiet", "-o", str(report)),
        ):
            command = [sys.executable, "-m", "coverage", words[0], f"--rcfile={settings}", *words[1:]]
            subprocess.run(command, check=True, cwd=ROOT)  # noqa: S603  our own interpreter
        found: Mapping[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        return found


def package_of(file: str) -> str:
    """``watchdog/tailkeeper_watchdog/slo/bins.py`` is of ``tailkeeper_watchdog.slo``, what lies beside it of the whole."""
    return ".".join(Path(file).parent.parts[1:])


def by_package(files: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Sums of coverage's counts, and how many modules they are of."""
    packages: dict[str, dict[str, int]] = {}
    for file, found in sorted(files.items()):
        sums = packages.setdefault(package_of(file), {"modules": 0, **dict.fromkeys(_COUNTS, 0)})
        sums["modules"] += 1
        for name in _COUNTS:
            sums[name] += found["summary"][name]
    return packages


def total(packages: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    return {name: sum(of[name] for of in packages.values()) for name in ("modules", *_COUNTS)}


def too_little(sums: Mapping[str, int]) -> bool:
    """Whether lines or branches are under the limit. A package without a branch has none to miss."""
    lines = sums["covered_lines"] < LIMIT_RATIO * sums["num_statements"]
    return lines or sums["covered_branches"] < LIMIT_RATIO * sums["num_branches"]


def missing(files: Mapping[str, Any]) -> Iterable[str]:
    """Lines never run and branches never taken, worst file first."""
    for file, found in sorted(files.items(), key=lambda item: item[1]["summary"]["percent_covered"]):
        lines, branches = found["missing_lines"], found["missing_branches"]
        if lines or branches:
            told = ", ".join(f"{start}→{'end' if end < 0 else end}" for start, end in branches)
            yield f"{file}: lines {', '.join(map(str, lines)) or 'all seen'}; branches {told or 'all taken'}"


def main(arguments: list[str]) -> int:
    try:
        files = measure(core_modules())["files"]
    except subprocess.CalledProcessError as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    packages = by_package(files)
    whole = total(packages)
    write("coverage", "make coverage", {"limit_ratio": LIMIT_RATIO, "packages": packages, "total": whole})
    if "--missing" in arguments:
        print("\n".join(missing(files)))
    poor = [name for name, sums in (*packages.items(), ("the whole core", whole)) if too_little(sums)]
    if poor:
        print(f"under {LIMIT_RATIO:.0%} of lines or branches: {', '.join(poor)}", file=sys.stderr)
    else:
        print(f"{whole['covered_branches']} of {whole['num_branches']} branches of {whole['modules']} modules taken")
    return int(bool(poor))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
