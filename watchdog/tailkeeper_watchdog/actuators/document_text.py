"""Small changes in the text of a YAML or JSON document that leave everything else as it stands: comments, order, quotes.

Pure. A change is a path and its new value (``GONE`` takes the key away). The text that comes out is parsed again and must
be exactly the document that was wanted; where the form of the document does not allow that (the place is shared by an
alias, say) the change is refused and not guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

from tailkeeper_watchdog.actuators.calls import CallError, excerpt
from tailkeeper_watchdog.actuators.contract import ErrorKind

Path = tuple[str | int, ...]
Edits = Mapping[Path, Any]
GONE = object()
MAX_NODES = 1_000_000
"""A file of 10,000 servers has some 200,000; what is larger is made of aliases of aliases, to be expanded without end."""
YAML_LIMIT_CHARS = 400_000
"""3,000 endpoints: 0.8 s for a change, which parses the text three times. 10,000 in JSON take as long, so that has no limit."""
_BARE = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The parser in C takes 0.5 s for a megabyte, the one in Python 10 s."""


def _from_yaml(text: str) -> Any:
    return yaml.load(text, _Loader)  # noqa: S506  a safe loader  # nosec B506


def parsed(text: str, is_json: bool) -> Any:
    """The document, with nothing shared inside. Raises CallError(PROTOCOL) that says where it is wrong."""
    if not is_json and len(text) > YAML_LIMIT_CHARS:
        raise CallError(
            ErrorKind.REFUSED, f"YAML of more than {YAML_LIMIT_CHARS} characters takes too long to parse; split it, or use JSON"
        )
    try:
        document = json.loads(text) if is_json else _from_yaml(text)
        return _unshared(document, [MAX_NODES])
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise CallError(ErrorKind.PROTOCOL, f"cannot be parsed: {excerpt(str(error))}") from None


def _unshared(value: Any, left: list[int]) -> Any:
    left[0] -= 1
    if left[0] < 0:
        raise ValueError(f"it has more than {MAX_NODES} values")
    if isinstance(value, dict):
        return {key: _unshared(item, left) for key, item in value.items()}
    return [_unshared(item, left) for item in value] if isinstance(value, list) else value


def edited(text: str, edits: Edits, is_json: bool, document: Any = None) -> str:
    """The text with the edits in it. Raises CallError (PROTOCOL: not parseable, REFUSED: not in this form of text).

    ``document`` is what ``parsed`` made of the text, where the caller has it; the edits are made there too.
    """
    if not edits:
        return text
    wanted = parsed(text, is_json) if document is None else document
    edits = {_pruned(wanted, path) if value is GONE else path: value for path, value in edits.items()}
    for path, value in edits.items():
        _apply(wanted, path, value)
    new = _dumped_like(text, wanted) if is_json else _spliced(text, edits)
    if not _is(new, wanted, is_json):
        words = "the file's form does not allow the change in place; write aliases and merges out in full"
        raise CallError(ErrorKind.REFUSED, words)
    return new


def _is(text: str, wanted: Any, is_json: bool) -> bool:
    try:
        return bool(parsed(text, is_json) == wanted)
    except CallError:
        return False


def _pruned(document: Any, path: Path) -> Path:
    """The mapping above goes too where it holds nothing else: it came with us."""
    while len(path) > 1 and isinstance(parent := _at(document, path[:-1]), dict) and len(parent) == 1:
        path = path[:-1]
    return path


def _at(document: Any, path: Path) -> Any:
    for step in path:
        document = document[step]
    return document


def _apply(document: Any, path: Path, value: Any) -> None:
    for step in path[:-1]:
        if isinstance(document, dict) and document.get(step) is None:  # a key without a value is as one that is not there
            document[step] = {}
        document = document[step]
    if value is GONE:
        document.pop(path[-1], None)
    else:
        document[path[-1]] = value


def _dumped_like(text: str, document: Any) -> str:
    """JSON in the layout of ``text``: one line or indented, with its spaces and its last newline."""
    second = text.lstrip()[1:].split("\n", 2)
    margin = second[1][: len(second[1]) - len(second[1].lstrip())] if len(second) > 1 and not second[0].strip() else ""
    tight = '": ' not in text[:1_000]
    separators = ("," if tight or margin else ", ", ":" if tight else ": ")
    dumped = json.dumps(document, indent=margin or None, separators=separators, ensure_ascii=text.isascii())
    return dumped + text[len(text.rstrip()) :]


def _spliced(text: str, edits: Edits) -> str:
    try:
        root = yaml.compose(text, _Loader)
        cuts = [_cut(text, root, path, value) for path, value in edits.items()]
    except (yaml.YAMLError, LookupError, AttributeError, TypeError):
        raise CallError(ErrorKind.REFUSED, "the place to change is not where it can be written in this file") from None
    for start, end, words in sorted(cuts, reverse=True):
        text = text[:start] + words + text[end:]
    return text


def _cut(text: str, node: Any, path: Path, value: Any) -> tuple[int, int, str]:
    """What to put where in the text, for one edit."""
    while len(path) > 1 and isinstance(below := _child(node, path[0]), yaml.CollectionNode):
        node, path = below, path[1:]
    if isinstance(node, yaml.SequenceNode):
        below = node.value[int(path[0])]
        return below.start_mark.index, _end(below), json.dumps(value)
    at = next((n for n, (key, _) in enumerate(node.value) if key.value == path[0]), None)
    if value is GONE:
        return (node.start_mark.index, node.start_mark.index, "") if at is None else _without(text, node, at)
    for step in reversed(path[1:]):
        value = {step: value}
    if at is not None:
        below = node.value[at][1]
        space = "" if below.start_mark.index < below.end_mark.index else " "  # no value at all stands right at the colon
        return below.start_mark.index, _end(below), space + _words(value, below)
    return _inserted(node, str(path[0]), value)


def _words(value: Any, instead_of: Any) -> str:
    """A bare word where one stood; all else as JSON, which YAML contains."""
    plain = isinstance(value, str) and _BARE.fullmatch(value) and not getattr(instead_of, "style", True)
    return str(value) if plain else json.dumps(value)


def _child(node: Any, step: str | int) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return node.value[int(step)]
    return next((value for key, value in node.value if key.value == step), None)


def _inserted(node: Any, key: str, value: Any) -> tuple[int, int, str]:
    """Before the first key, where the indentation is known."""
    words = f"{key if _BARE.fullmatch(key) else json.dumps(key)}: {json.dumps(value)}"
    if not node.value:
        return node.start_mark.index, node.end_mark.index, "{" + words + "}"
    first = node.value[0][0].start_mark
    return first.index, first.index, words + (", " if node.flow_style else "\n" + " " * first.column)


def _without(text: str, node: Any, at: int) -> tuple[int, int, str]:
    key, value = node.value[at]
    if at + 1 < len(node.value):
        return key.start_mark.index, node.value[at + 1][0].start_mark.index, ""
    start = len(text[: key.start_mark.index].rstrip().removesuffix(","))
    return start, max(start, len(text[: _end(value)].rstrip())), ""


def _end(node: Any) -> int:
    """Where the last word of a value ends. A block goes on to the next key by itself, over the comments of others before it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)
