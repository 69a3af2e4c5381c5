"""The documentation as values: pages, their fenced blocks, links, headings; for the tests that hold it true.

A block says by its language how it is checked, and by a file name after it what it is: ```` ```yaml envoy.yaml ````. Without a
name YAML is a configuration of Tailkeeper. A block that nothing can check carries the reason on the line before it:
``<!-- not tested: REASON -->``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+)(?P<info>[^\n`]*)\n(?P<body>.*?)^ *(?P=ticks) *$", re.M | re.S)
_MARK = re.compile(r"<!-- not tested: (?P<reason>[^>]{10,}) -->\n *$")
_HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.M)
_LINK = re.compile(r"\]\((?!https?:|mailto:)(?P<to>[^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. ``named`` is what stands after its language; ``untested`` the reason why nothing checks it."""

    page: str
    line: int
    language: str
    named: str
    body: str
    untested: str | None

    @property
    def file(self) -> str:
        """The file that it is, or is a part of; empty where it names none."""
        return self.named.partition(",")[0].strip()

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class Page:
    path: Path
    text: str

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def prose(self) -> str:
        """Without its blocks."""
        return _FENCE.sub("", self.text)

    def blocks(self) -> Iterator[Block]:
        for found in _FENCE.finditer(self.text):
            mark = _MARK.search(self.text[: found.start()])
            language, _, named = found["info"].strip().partition(" ")
            body = re.sub(rf"^{found['indent']}", "", found["body"], flags=re.M)
            line = self.text.count("\n", 0, found.start()) + 1
            yield Block(self.name, line, language, named.strip(), body, mark and mark["reason"])

    def links(self) -> list[str]:
        """Where its links lead, other than to the web."""
        return [found["to"] for found in _LINK.finditer(self.prose)]

    def anchors(self) -> set[str]:
        """What a link may name after `#`, by GitHub's rule."""
        seen: dict[str, int] = {}
        found = set()
        for heading in _HEADING.findall(self.prose):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            count = seen.get(slug, 0)
            seen[slug] = count + 1
            found.add(f"{slug}-{count}" if count else slug)
        return found


def page(path: str) -> Page:
    file = ROOT / path
    return Page(file, file.read_text(encoding="utf-8"))


def pages() -> list[Page]:
    """Every Markdown page of the project, those of tools and folders included."""
    folders = ("docs", "demo", "deploy", "tools", "alerts", "dashboards")
    found = [*ROOT.glob("*.md"), *(file for folder in folders for file in (ROOT / folder).rglob("*.md"))]
    return [page(str(file.relative_to(ROOT))) for file in sorted(found) if "node_modules" not in file.parts]


def blocks(*languages: str) -> list[Block]:
    """All blocks in these languages that are to be checked."""
    return [b for p in pages() for b in p.blocks() if b.language in languages and b.untested is None]
