"""What is published says whose it is: licences, attributions, versions, and a README that reads well without the repository."""

from __future__ import annotations

import re
import tomllib
from email.message import Message
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import pytest
import yaml

from tailkeeper import __version__
from tools.release_check import RELATIVE_LINK
from tools.third_party import TAIL, home_of, licence_of, problems_in, render

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PAGE = (ROOT / "THIRD_PARTY.md").read_text(encoding="utf-8")


class Package(Distribution):
    """A package with this metadata."""

    def __init__(self, *fields: tuple[str, str]) -> None:
        self._message = Message()
        for key, value in (("Name", "some"), ("Version", "1.0"), *fields):
            self._message[key] = value

    @property
    def metadata(self) -> Any:
        return self._message

    def read_text(self, filename: str) -> str | None:
        raise AssertionError(filename)

    def locate_file(self, path: Any) -> Any:
        raise AssertionError(path)


@pytest.mark.parametrize(
    ("fields", "licence"),
    [
        ([("License-Expression", "MIT"), ("License", "see file")], "MIT"),
        ([("License", "BSD-3-Clause")], "BSD-3-Clause"),
        (
            [("License", "Copyright (c) 2001\nRedistribution and use"), ("Classifier", "License :: OSI Approved :: BSD License")],
            "BSD License",
        ),
        ([("License", "UNKNOWN"), ("Classifier", "Topic :: Printing")], None),
        (
            [("Classifier", "License :: OSI Approved :: MIT License"), ("Classifier", "License :: OSI Approved :: ISC")],
            "MIT License; ISC",
        ),
    ],
)
def test_a_licence_is_what_the_package_itself_names(fields: list[tuple[str, str]], licence: str | None) -> None:
    assert licence_of(Package(*fields)) == licence


@pytest.mark.parametrize(
    ("licence", "refused"),
    [
        ("GPL-3.0-or-later", True),
        ("AGPL-3.0-only", True),
        ("GNU General Public License v3 (GPLv3)", True),
        ("SSPL-1.0", True),
        ("LGPL-2.1-only", False),
        ("GNU Lesser General Public License v3 or later (LGPLv3+)", False),
        ("GNU Affero General Public License v3", True),
        ("MPL-2.0", False),
        ("Apache-2.0 AND MIT", False),
    ],
)
def test_a_licence_that_would_bind_the_whole_is_refused(licence: str, refused: bool) -> None:
    assert bool(problems_in([Package(("License-Expression", licence))])) is refused


def test_a_package_without_a_licence_is_a_problem_and_not_a_free_one() -> None:
    (problem,) = problems_in([Package()])
    assert "names no licence" in problem


def test_the_source_of_a_package_is_preferred_to_its_other_links() -> None:
    package = Package(("Project-URL", "Chat, https://chat.example"), ("Project-URL", "Source, https://code.example"))
    assert home_of(package) == "https://code.example"
    assert "| some | 1.0 | unknown | https://code.example |" in render([package])


def test_every_package_that_we_ask_for_is_on_the_page_at_its_pinned_version() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    wanted = [
        *PYPROJECT["project"]["dependencies"],
        *(line for name in ("gpu", "watchdog", "dashboards", "kubernetes") for line in extras[name]),
    ]
    names = {re.split(r"[><=!;\[ ]", line)[0].lower().replace("_", "-") for line in wanted}
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    versions = {name.lower().replace("_", "-"): version for name, version in pinned.items()}
    listed = {n.lower().replace("_", "-"): v for n, v in re.findall(r"^\| (\S+) \| (\S+) \| .* \|$", PAGE, re.M)}
    assert {name: listed.get(name) for name in names} == {name: versions[name] for name in names}


def test_every_image_of_the_compose_file_is_on_the_page() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    images = {service["image"].rpartition(":")[0] for service in services.values()} - {
        "tailkeeper/watchdog",
        "tailkeeper/exporter",
    }
    assert all(f"`{image}`" in PAGE for image in images)
    assert PAGE.endswith(TAIL)


def test_every_file_of_data_in_the_packages_is_attributed() -> None:
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    packages = [ROOT / folder for folder in PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
    data = [file for package in packages for ending in ("csv", "prom", "jsonl", "gz") for file in package.rglob(f"*.{ending}")]
    assert data
    assert all(file.name in notice for file in data)


def test_no_link_of_the_readme_is_relative_once_it_is_on_an_index() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for rule in PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    assert RELATIVE_LINK.findall(text) == []
    assert "docs/gateways.md" in text, "the path itself stays readable"


def test_the_version_is_the_same_everywhere() -> None:
    assert PYPROJECT["project"]["version"] == __version__
    deployed = [ROOT / "docker-compose.yml", ROOT / "docs/kubernetes.md", *(ROOT / "deploy").rglob("*.yaml")]
    images = {found for file in deployed for found in re.findall(r"tailkeeper/(?:watchdog|exporter):([\w.-]+)", file.read_text())}
    chart = yaml.safe_load((ROOT / "deploy/helm/tailkeeper/Chart.yaml").read_text())
    assert images | {chart["version"], chart["appVersion"]} == {__version__}
