"""Is what would be published what it should be? Builds, checks, installs and runs it, as a stranger would.

``python tools/release_check.py [--write]`` builds source archive and wheel twice (they must be the same bytes), checks their
metadata and contents, installs the wheel into empty environments outside the checkout, runs it there, and writes ``dist/`` with
the software bill of materials and the checksums. ``--write`` renews THIRD_PARTY.md. Standard library only; it publishes nothing.
"""

from __future__ import annotations

import argparse
import email
import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION = str(PROJECT["version"])
NAME = f"tailkeeper-{VERSION}"
CONSTRAINTS = ROOT / "constraints.txt"
STEP_LIMIT_S = 300
BUILD_TOOLS = ("build", "twine", "cyclonedx-bom")
EPOCH = "1577836800"
"""2020-01-01, as hatchling has it: the time of every file in the archives, so that two builds are the same bytes."""
RELATIVE_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)]*)\)")
DEMO_S = 30
"""The shortest story: a hang, found, drained, and traffic on its way back."""


class ReleaseError(Exception):
    """Something that must not be published. The message says what."""


def step(text: str, began: float = time.monotonic()) -> None:
    print(f"release-check [{time.monotonic() - began:4.0f} s] {text}", flush=True)


def run(command: Sequence[str | Path], where: Path, **environment: str) -> str:
    """Run to the end, and nothing of this checkout is found by way of the environment. Raises ReleaseError."""
    bare = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "TAILKEEPER", "VIRTUAL_ENV"))}
    done = subprocess.run(  # noqa: S603  our own commands
        [str(part) for part in command],
        cwd=where,
        env={**bare, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **environment},
        capture_output=True,
        text=True,
        timeout=STEP_LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        said = "\n".join([*done.stdout.splitlines()[-15:], *done.stderr.splitlines()[-15:]])
        raise ReleaseError(f"exit code {done.returncode} of: {' '.join(map(str, command))}\n{said}")
    return done.stdout


def environment(folder: Path, *packages: str, pip: Path | None = None) -> Path:
    """A new environment with these packages at the pinned versions; its bin folder. By another's ``pip`` it holds no more."""
    run([sys.executable, "-m", "venv", *([] if pip is None else ["--without-pip"]), folder], ROOT)
    python = folder / "bin" / "python"
    with_pip: list[str | Path] = [python, "-m", "pip"] if pip is None else [pip, "-m", "pip", "--python", python]
    run([*with_pip, "install", "--quiet", "--constraint", CONSTRAINTS, *packages], folder)
    return folder / "bin"


def built(python: Path, out: Path) -> list[Path]:
    """Source archive and, from that, the wheel."""
    run([python, "-m", "build", "--outdir", out, ROOT], ROOT, PIP_CONSTRAINT=str(CONSTRAINTS), SOURCE_DATE_EPOCH=EPOCH)
    return sorted(out.iterdir())


def sums(files: Sequence[Path]) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def check_source(archive: Path) -> None:
    """All that is committed, and nothing else: no secret, no leftover. Outside a checkout nobody can tell."""
    if not (ROOT / ".git").exists():
        return
    tracked = set(run(["git", "ls-files", "-z"], ROOT).split("\0")) - {""}
    with tarfile.open(archive) as opened:
        held = {name.removeprefix(f"{NAME}/") for name in opened.getnames()} - {"PKG-INFO"}
    missing, more = sorted(tracked - held), sorted(held - tracked)
    if missing or more:
        raise ReleaseError(f"{archive.name}: committed and not in it: {missing[:8]}; in it and not committed: {more[:8]}")


def check_metadata(wheel: Path) -> None:
    with ZipFile(wheel) as opened:
        raw = opened.read(f"{NAME}.dist-info/METADATA").decode()
        names = set(opened.namelist())
    metadata = email.message_from_string(raw)
    relative = RELATIVE_LINK.findall(str(metadata.get_payload()))
    if relative:
        raise ReleaseError(f"the README of {wheel.name} has links that an index cannot follow: {relative[:5]}")
    absent = [name for name in PROJECT["license-files"] if f"{NAME}.dist-info/licenses/{name}" not in names]
    if absent:
        raise ReleaseError(f"{wheel.name} lacks {absent}")


def check_base(folder: Path, tools: Path, wheel: Path) -> None:
    """The base install is what an exporter on a GPU node needs: it runs, and says what it lacks for more."""
    tailkeeper = environment(folder / "base", str(wheel), pip=tools / "python") / "tailkeeper"
    config = folder / "base.yaml"
    config.write_text('backends: [{name: a, engine: vllm, url: "http://127.0.0.1:9"}]\nexporter: {gpu: {source: none}}\n')
    port = free_port()
    process = subprocess.Popen(  # noqa: S603  our own command
        [tailkeeper, "exporter", "-c", config, "--listen", f"127.0.0.1:{port}"], cwd=folder, stderr=subprocess.DEVNULL
    )
    try:
        answer(f"http://127.0.0.1:{port}/readyz", process)
        page = answer(f"http://127.0.0.1:{port}/metrics", process)
    finally:
        process.terminate()
        process.wait(10)
    if 'llm_backend_state{backend="a"' not in page:
        raise ReleaseError("the exporter of the base install does not say on its page how its backend is")


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def answer(url: str, process: subprocess.Popen[bytes], limit_s: float = 20.0) -> str:
    """What the address answers, once it does. Raises ReleaseError."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2) as opened:  # noqa: S310  loopback, our own  # nosec B310
                return str(opened.read().decode())
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise ReleaseError(f"{url} did not answer")


def check_all(folder: Path, tools: Path, wheel: Path, *, write: bool) -> None:
    """With every extra: version, configuration, generated files, the demo; then what is installed, and its licences."""
    binaries = environment(folder / "all", f"{wheel}[all]", pip=tools / "python")
    tailkeeper, empty = binaries / "tailkeeper", folder / "empty"
    empty.mkdir()
    home = {"HOME": str(empty)}
    said = run([tailkeeper, "--version"], empty, **home).strip()
    if said != f"tailkeeper {VERSION}":
        raise ReleaseError(f"--version says {said!r}, the project says {VERSION}")
    config = empty / "tailkeeper.yaml"
    config.write_text('backends: [{name: a, engine: vllm, url: "http://127.0.0.1:8000"}]\n')
    run([tailkeeper, "check-config", "-c", config], empty, **home)
    run([tailkeeper, "generate", "--check", "--out", ROOT], empty, **home)
    step("the wheel runs its demo outside the checkout")
    run([tailkeeper, "demo", "--duration", str(DEMO_S), "--port", str(free_port())], empty, **home)
    step("bill of materials, licences")
    write_sbom(tools, binaries)
    (site,) = (folder / "all" / "lib").glob("python*/site-packages")
    run([sys.executable, ROOT / "tools/third_party.py", site, *(["--write"] if write else [])], empty)


def write_sbom(tools: Path, binaries: Path) -> None:
    """CycloneDX of what a full install holds; the same text for the same packages."""
    command: list[str | Path] = [
        tools / "cyclonedx-py",
        "environment",
        "--output-reproducible",
        "--output-format",
        "JSON",
        "--validate",
    ]
    command += ["--pyproject", ROOT / "pyproject.toml", "--mc-type", "application"]
    run([*command, "--output-file", DIST / f"{NAME}.cdx.json", binaries / "python"], ROOT)


def check(folder: Path, *, write: bool) -> None:
    step("tools")
    tools = environment(folder / "tools", *BUILD_TOOLS)
    step("build, twice")
    shutil.rmtree(DIST, ignore_errors=True)
    archives = built(tools / "python", DIST)
    if sums(archives) != sums(built(tools / "python", folder / "again")):
        raise ReleaseError("two builds of the same source are not the same bytes")
    source, wheel = archives[1], archives[0]
    check_source(source)
    check_metadata(wheel)
    run([tools / "twine", "check", "--strict", *archives], folder)
    step("base install")
    check_base(folder, tools, wheel)
    step("full install")
    check_all(folder, tools, wheel, write=write)
    lines = [f"{digest}  {name}\n" for name, digest in sums(sorted(DIST.iterdir())).items()]
    (DIST / "SHA256SUMS").write_text("".join(lines))
    step(f"good: {', '.join(line.split()[1] for line in lines)} and SHA256SUMS in dist/")


def main() -> int:
    parser = argparse.ArgumentParser(description="Build, check, install and run what would be published.")
    parser.add_argument("--write", action="store_true", help="renew THIRD_PARTY.md instead of comparing it")
    with tempfile.TemporaryDirectory(prefix="tailkeeper-release-") as folder:
        try:
            check(Path(folder), write=parser.parse_args().write)
        except ReleaseError as error:
            print(f"release-check: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
