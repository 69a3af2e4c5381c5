"""What `pip install tailkeeper` brings is enough for an exporter and for looking at a configuration: no NumPy, no web server.

`make release-check` installs it for real; here what an extra would bring is only made impossible to import.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
IMPORTED_AS = {"nvidia-ml-py": "pynvml", "scikit-learn": "sklearn"}
"""Where a package is not imported by its own name."""


def only_with_an_extra() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    def names(requirements: list[str]) -> set[str]:
        return {Requirement(one).name for one in requirements}

    base = names(project["dependencies"])
    extras = {name for extra, found in project["optional-dependencies"].items() if extra != "dev" for name in names(found)}
    return {IMPORTED_AS.get(name, name.replace("-", "_")) for name in extras - base - {"tailkeeper"}}


def test_without_any_extra_a_configuration_is_read(tmp_path: Path) -> None:
    file = tmp_path / "tailkeeper.yaml"
    file.write_text('backends: [{name: a, engine: vllm, url: "http://127.0.0.1:9"}]\nexporter: {gpu: {source: none}}\n')
    absent = only_with_an_extra()
    assert "numpy" in absent
    program = "import sys; sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(','))); from tailkeeper.cli import main; main()"
    argv = [sys.executable, "-c", program, ",".join(sorted(absent)), "config", "-c", str(file)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_without_any_extra_an_exporter_can_be_put_together() -> None:
    program = (
        "import sys; sys.modules.update(dict.fromkeys(sys.argv[1].split(',')));"
        "import tailkeeper.config, tailkeeper.together, tailkeeper_exporter.app"
    )
    argv = [sys.executable, "-c", program, ",".join(sorted(only_with_an_extra()))]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
