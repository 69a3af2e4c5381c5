"""The console's files: all that is there is served, nothing else is, and nothing in them asks for anything outside."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from tailkeeper_watchdog.api.console import FILES, MODULES

FOLDER = resources.files("tailkeeper_watchdog") / "console"
TEXTS = {name: (FOLDER / name).read_text() for name, _ in FILES.values()}


def test_every_file_of_the_folder_is_served_and_no_other() -> None:
    assert {entry.name for entry in FOLDER.iterdir()} == set(TEXTS)


@pytest.mark.parametrize("name", MODULES)
def test_what_a_module_imports_is_served_and_has_what_is_asked_of_it(name: str) -> None:
    for names, other in re.findall(r'^import \{([^}]*)\} from "\./([a-z_]+\.js)";$', TEXTS[f"{name}.js"], re.M):
        exported = set(re.findall(r"^export (?:async )?(?:function|const) ([\w$]+)", TEXTS[other], re.M))
        assert {word.strip() for word in names.split(",")} <= exported, other


def test_no_module_lies_there_for_nothing() -> None:
    imported = {m for text in TEXTS.values() for m in re.findall(r'from "\./([a-z_]+)\.js"', text)}
    assert imported == set(MODULES) - {"console"}


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_nothing_comes_from_outside_and_nothing_is_set_as_markup(name: str) -> None:
    text = TEXTS[name].replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|//[a-z]+\.[a-z]+/|@import|url\(", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|localStorage", text)


def test_the_page_holds_no_script_and_no_style_of_its_own() -> None:
    """The content security policy would refuse them, silently for whoever reads."""
    page = TEXTS["index.html"]
    assert re.findall(r"<script[^>]*>([^<]*)", page) == [""]
    assert "<style" not in page
    assert not re.search(r"\s(on[a-z]+|style)=", page)


def test_every_id_that_a_module_asks_for_is_on_the_page() -> None:
    ids = re.findall(r'\sid="([^"]+)"', TEXTS["index.html"])
    assert len(ids) == len(set(ids))
    asked = {one for name in MODULES for one in re.findall(r'\$\("([^"]+)"\)', TEXTS[f"{name}.js"])}
    assert asked <= set(ids)
