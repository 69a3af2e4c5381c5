"""Backends from files in Prometheus's file_sd format: JSON or YAML lists of ``{targets: [host:port], labels: {…}}``.

Every listing reads every file anew; what has not changed by a byte is not parsed again. A file that cannot be read or parsed
keeps its own last good list and is said so, because a writer may be in the middle of it; so does an empty one. A YAML file cut
at a line's end is valid and shorter: against that the registry asks for a second list before it lets a backend go.

Bounds: ``MAX_FILES`` files of ``MAX_FILE_BYTES``, ``MAX_TARGETS`` targets in all, and a deadline for the whole listing.
"""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tailkeeper_exporter.discovery.base import (
    MAX_TARGETS,
    DiscoveryError,
    Found,
    Listing,
    SingleFlight,
    cut_note,
    few,
    found,
)
from tailkeeper_exporter.settings import FileDiscovery, check_url

MAX_FILES = 256
MAX_FILE_BYTES = 4 * 1024 * 1024
"""Ten thousand targets with a few labels each take about 2 MB."""
NAME_LABEL = "backend"
_SCHEME, _METRICS_PATH = "__scheme__", "__metrics_path__"
_PLAIN: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
"""The loader that leaves every scalar a string, as Prometheus does: ``az: 1`` and ``no`` are label values."""
Notes = list[str]
"""What has to be said of a listing, as it comes up."""
_TARGET = re.compile(r"[^\s/@?#]+")


def _from_yaml(content: bytes) -> Any:
    return yaml.load(content, _PLAIN)  # noqa: S506  strings only  # nosec B506


@dataclass(frozen=True, slots=True)
class Group:
    """One group of a file: targets and the labels they share."""

    targets: tuple[str, ...]
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Good:
    """What a file held when it was last good, and its bytes then."""

    content: bytes
    groups: tuple[Group, ...]


class FileLister:
    """A ``Lister`` over files. Remembers the last good content of each."""

    def __init__(self, settings: FileDiscovery) -> None:
        self._patterns = settings.files
        self._good: dict[Path, _Good] = {}
        self._flight: SingleFlight[Listing] = SingleFlight("file_sd")

    async def list(self, deadline_s: float) -> Listing:
        return await self._flight.call(self._read, deadline_s)

    def _read(self) -> Listing:
        notes: Notes = []
        paths = self._paths(notes)
        good = {path: read for path in paths if (read := self._file(path, notes)) is not None}
        if paths and not good:
            raise DiscoveryError("; ".join(few(notes)))
        self._good = good
        return _listing([group for read in good.values() for group in read.groups], notes)

    def _paths(self, notes: Notes) -> Sequence[Path]:
        paths: dict[Path, None] = {}
        for pattern in self._patterns:
            matching = sorted(glob.glob(pattern))
            if not matching:
                notes.append(f"{pattern}: no such file")
            paths.update(dict.fromkeys(Path(match) for match in matching))
        if len(paths) > MAX_FILES:
            raise DiscoveryError(f"{len(paths)} files match, and at most {MAX_FILES} are read; name fewer")
        return list(paths)

    def _file(self, path: Path, notes: Notes) -> _Good | None:
        last = self._good.get(path)
        try:
            content = _content(path)
            return last if last is not None and content == last.content else _Good(content, parse_groups(path.name, content))
        except DiscoveryError as error:
            notes.append(f"{path}: {error}" + ("" if last is None else "; its last good list is kept"))
            return last


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise DiscoveryError(f"cannot be read: {error.strerror}") from error
    if len(content) > MAX_FILE_BYTES:
        raise DiscoveryError(f"larger than {MAX_FILE_BYTES} bytes")
    return content


def parse_groups(file_name: str, content: bytes) -> tuple[Group, ...]:
    """The groups of one file. Raises ``DiscoveryError`` where any part of it is not as it should be."""
    if not content.strip():
        raise DiscoveryError("is empty; a list of nothing is written []")
    try:
        document = json.loads(content) if file_name.endswith(".json") else _from_yaml(content)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise DiscoveryError(f"is not valid {'JSON' if file_name.endswith('.json') else 'YAML'}: {_first_line(error)}") from error
    if not isinstance(document, list):
        raise DiscoveryError("must hold a list of {targets, labels}")
    groups: list[Group] = []
    room = MAX_TARGETS
    for index, item in enumerate(document):
        groups.append(_group(index, item))
        room -= len(groups[-1].targets) or 1
        if room < 0:
            raise DiscoveryError(f"holds more than {MAX_TARGETS} targets")
    return tuple(groups)


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


def _group(index: int, item: object) -> Group:
    if not isinstance(item, dict) or not set(item) <= {"targets", "labels"}:
        raise DiscoveryError(f"entry {index}: must be {{targets, labels}} and nothing else")
    targets, labels = item.get("targets", []), item.get("labels") or {}
    if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
        raise DiscoveryError(f'entry {index}: targets must be a list of strings, for example ["10.0.0.1:8000"]')
    if not isinstance(labels, dict) or not all(isinstance(text, str) for pair in labels.items() for text in pair):
        raise DiscoveryError(f"entry {index}: labels must be names and strings")
    return Group(tuple(targets), labels)


def _listing(groups: list[Group], notes: Notes) -> Listing:
    backends: list[Found] = []
    cuts: list[tuple[str, tuple[str, ...]]] = []
    for backend, cut in _backends(groups, notes):
        if len(backends) == MAX_TARGETS:
            raise DiscoveryError(f"the files together hold more than {MAX_TARGETS} targets")
        backends.append(backend)
        cuts.append((backend.name, cut))
    return Listing(tuple(backends), (*few(notes), *cut_note(cuts)))


def _backends(groups: list[Group], notes: Notes) -> Iterator[tuple[Found, tuple[str, ...]]]:
    for group in groups:
        said = {name: value for name, value in group.labels.items() if not name.startswith("__") and name != NAME_LABEL}
        name = group.labels.get(NAME_LABEL)
        if name and len(group.targets) > 1:
            notes.append(f"the label {NAME_LABEL} {name!r} names one backend, and its group has {len(group.targets)} targets: "
                         "their addresses are their names")  # fmt: skip
            name = None
        for target in group.targets:
            try:
                url, metrics = _urls(target, group.labels)
            except ValueError as error:
                notes.append(f"target {target[:128]!r}: {error}")
                continue
            yield found(name or target, url, {**metrics, **said})


def _urls(target: str, labels: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The engine's URL, and its page's where the labels name one. Raises ValueError."""
    scheme, path = labels.get(_SCHEME, "http"), labels.get(_METRICS_PATH)
    if scheme not in ("http", "https"):
        raise ValueError(f"{_SCHEME} must be http or https, not {scheme[:32]!r}")
    if not _TARGET.fullmatch(target):
        raise ValueError("must be host:port")
    url = str(check_url(f"{scheme}://{target}"))
    if path is None:
        return url, {}
    if not path.startswith("/"):
        raise ValueError(f"{_METRICS_PATH} must begin with a slash, not {path[:32]!r}")
    return url, {"metrics_url": f"{url}{path}"}
