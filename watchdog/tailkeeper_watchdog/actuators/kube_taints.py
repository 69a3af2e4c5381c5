"""A taint on a node, counted: several backends may run on one node. Pure; documents come as parsed JSON.

The node itself says who holds which taint, in the annotation ``tailkeeper.io/taints``, changed in one patch with the taint; the
label ``tailkeeper.io/tainted`` finds such nodes again when their pods are gone. The last holder takes the taint away, unless it
was there before us.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tailkeeper_watchdog.actuators.calls import CallError, excerpt
from tailkeeper_watchdog.actuators.contract import ErrorKind
from tailkeeper_watchdog.actuators.kube_objects import PREFIX, Patch, part, rows
from tailkeeper_watchdog.model import KnobValue

HOLDINGS = PREFIX + "taints"
TAINTED = PREFIX + "tainted"
EFFECTS = ("NoSchedule", "PreferNoSchedule")
"""NoExecute would evict what runs on the node, which nobody can take back."""
_DOMAIN = r"(?:[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/)?"
_WORD = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_TAINT = re.compile(rf"({_DOMAIN}{_WORD})(?:=({_WORD})?)?:({'|'.join(EFFECTS)})")


class UnknownHoldersError(CallError):
    """It cannot be told who holds which taint, so nothing is changed."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorKind.REFUSED, message)


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str
    effect: str

    @property
    def text(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"

    def is_at(self, row: Mapping[str, Any]) -> bool:
        return (row.get("key"), row.get("value") or "", row.get("effect")) == (self.key, self.value, self.effect)

    def collides_with(self, row: Mapping[str, Any]) -> bool:
        """A node has one taint for a key and an effect."""
        return (row.get("key"), row.get("effect")) == (self.key, self.effect)

    @property
    def row(self) -> Mapping[str, str]:
        return {"key": self.key, "effect": self.effect, **({"value": self.value} if self.value else {})}


def taint_from(text: KnobValue) -> Taint:
    """Of ``KEY[=VALUE]:EFFECT``. Raises CallError(REFUSED)."""
    match = _TAINT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        allowed = " or ".join(EFFECTS)
        message = f"taint {excerpt(repr(text))} is refused; it must be KEY=VALUE:EFFECT, where EFFECT is {allowed}"
        raise CallError(ErrorKind.REFUSED, message)
    return Taint(match[1], match[2] or "", match[3])


@dataclass(frozen=True, slots=True)
class Held:
    """Who holds one taint of a node. ``theirs``: it was there before us, so it stays when the last holder goes."""

    holders: tuple[str, ...]
    theirs: bool


@dataclass(frozen=True, slots=True)
class NodeTaints:
    rows: tuple[Mapping[str, Any], ...]
    held: Mapping[str, Held]

    def of(self, holder: str) -> str:
        """What ``holder`` holds and what is there, or ""."""
        texts = (text for text, held in self.held.items() if holder in held.holders)
        return next((text for text in texts if any(taint_from(text).is_at(row) for row in self.rows)), "")

    def let_go(self, holder: str) -> NodeTaints:
        """Without everything that ``holder`` holds."""
        after = self
        for text in [text for text, held in self.held.items() if holder in held.holders]:
            after = after._less(text, holder)
        return after

    def _less(self, text: str, holder: str) -> NodeTaints:
        held, taint = self.held[text], taint_from(text)
        rest = tuple(other for other in held.holders if other != holder)
        if rest:
            return replace(self, held={**self.held, text: replace(held, holders=rest)})
        stays = self.rows if held.theirs else tuple(row for row in self.rows if not taint.is_at(row))
        return NodeTaints(stays, {other: kept for other, kept in self.held.items() if other != text})

    def only(self, holder: str, taint: Taint) -> NodeTaints:
        """With ``taint`` and no other held by ``holder``. Raises CallError(REFUSED)."""
        return self if self.of(holder) == taint.text else self.let_go(holder).take(holder, taint)

    def take(self, holder: str, taint: Taint) -> NodeTaints:
        """With ``taint`` held by ``holder``. Raises CallError(REFUSED) where somebody's taint is in its place."""
        there = any(taint.is_at(row) for row in self.rows)
        if not there and (other := next((row for row in self.rows if taint.collides_with(row)), None)):
            message = f"the node has {other.get('key')}={other.get('value')}:{other.get('effect')}, which is not ours to replace"
            raise CallError(ErrorKind.REFUSED, message)
        held = self.held.get(taint.text, Held((), theirs=there))
        holders = tuple(sorted({*held.holders, holder}))
        after = self.rows if there else (*self.rows, taint.row)
        return NodeTaints(after, {**self.held, taint.text: Held(holders, held.theirs and there)})


def node_taints(node: Mapping[str, Any]) -> NodeTaints:
    """Raises UnknownHoldersError where our annotation was garbled; CallError(PROTOCOL) for what is no node."""
    name, text = part(node, "metadata").get("name"), part(node, "metadata", "annotations").get(HOLDINGS)
    try:
        held = dict(_holdings(json.loads(text) if text else {}))
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError, CallError):
        message = f"the annotation {HOLDINGS} of node {excerpt(str(name))} cannot be read; remove it, and our taint with it"
        raise UnknownHoldersError(message) from None
    return NodeTaints(tuple(rows(node, "spec", "taints")), held)


def _holdings(document: Any) -> Iterator[tuple[str, Held]]:
    for text, entry in document.items():
        holders = tuple(str(holder) for holder in entry["holders"])
        yield taint_from(text).text, Held(holders, entry["theirs"] is True)


def node_patch(node: Mapping[str, Any], before: NodeTaints, after: NodeTaints) -> Patch | None:
    """A merge patch with the node's version, for it holds the whole list of taints; None where nothing is to do."""
    if before == after:
        return None
    held = {text: {"holders": list(held.holders), "theirs": held.theirs} for text, held in sorted(after.held.items())}
    return {
        "metadata": {
            "resourceVersion": part(node, "metadata").get("resourceVersion"),
            "annotations": {HOLDINGS: json.dumps(held) if held else None},
            "labels": {TAINTED: "true" if held else None},
        },
        "spec": {"taints": [dict(row) for row in after.rows]},
    }
