"""What is ours in pods and workloads, and the patches that change it and nothing else. Pure; documents come as parsed JSON.

* Notes: annotations ``tailkeeper.io/KEY`` of a pod or a workload.
* Gate: the condition ``tailkeeper.io/serve`` of a pod that declares it as a readiness gate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tailkeeper_watchdog.actuators.calls import CallError, excerpt
from tailkeeper_watchdog.actuators.contract import ErrorKind
from tailkeeper_watchdog.model import KnobValue

PREFIX = "tailkeeper.io/"
GATE = PREFIX + "serve"
KINDS = ("pod", "deployment", "statefulset")
NOTE_LIMIT_CHARS = 1_024
_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")
_KEY = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
Patch = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """A server's name taken apart. ``kind`` is empty where the API must be asked what it is."""

    namespace: str
    kind: str
    name: str

    @property
    def pod(self) -> str:
        """As a holder of taints it is written like this."""
        return f"{self.namespace}/{self.name}"


def place_of(server: str) -> Place | None:
    """None for what cannot be the name of anything there."""
    parts = server.split("/") if len(server) <= 400 else []
    if len(parts) == 2:
        parts.insert(1, "")
    if len(parts) != 3 or parts[1] not in ("", *KINDS):
        return None
    if not _LABEL.fullmatch(parts[0]) or not _NAME.fullmatch(parts[2]):
        return None
    return Place(*parts)


def part(document: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """A mapping inside a document; empty where it is left out. Raises CallError(PROTOCOL)."""
    found: Any = document
    for key in keys:
        found = found.get(key)
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise CallError(ErrorKind.PROTOCOL, f"{'.'.join(keys)} of an object is no mapping: {excerpt(repr(found)[:200])}")
    return dict(found)


def rows(document: Mapping[str, Any], *keys: str) -> list[Mapping[str, Any]]:
    """A list of mappings inside a document; empty where it is left out. Raises CallError(PROTOCOL)."""
    found = part(document, *keys[:-1]).get(keys[-1]) or []
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise CallError(ErrorKind.PROTOCOL, f"{'.'.join(keys)} of an object is no list of mappings")
    return found


# Notes.


def notes_of(thing: Mapping[str, Any]) -> Mapping[str, str]:
    """Our annotations by key. One that a note cannot express (a comma in its text) is somebody else's and left out."""
    found = part(thing, "metadata", "annotations")
    ours = {key.removeprefix(PREFIX): text for key, text in found.items() if key.startswith(PREFIX)}
    return {key: text for key, text in sorted(ours.items()) if isinstance(text, str) and _is_note(key, text)}


def notes_text(notes: Mapping[str, str]) -> str:
    return ",".join(f"{key}={text}" for key, text in sorted(notes.items()))


def notes_from(value: KnobValue) -> Mapping[str, str]:
    """Of ``KEY=VALUE[,KEY=VALUE]``, or "" for none. Raises CallError(REFUSED)."""
    notes: dict[str, str] = {}
    for piece in str(value).split(",") if value != "" else []:
        key, equals, text = piece.partition("=")
        if not equals or not _is_note(key, text):
            raise CallError(ErrorKind.REFUSED, f"annotation {excerpt(repr(value))} is refused; it must be KEY=VALUE[,KEY=VALUE]")
        notes[key] = text
    return notes


def _is_note(key: str, text: str) -> bool:
    return bool(_KEY.fullmatch(key)) and len(text) <= NOTE_LIMIT_CHARS and "," not in text and (text.isprintable() or not text)


def notes_patch(thing: Mapping[str, Any], wanted: Mapping[str, str]) -> Patch | None:
    """A merge patch, or None where nothing is to do. Only keys of ours are in it, so it needs no version.

    Raises CallError(REFUSED) for a key whose text is somebody else's: it could not be given back.
    """
    there = notes_of(thing)
    if theirs := sorted(key for key in wanted.keys() - there.keys() if PREFIX + key in part(thing, "metadata", "annotations")):
        raise CallError(ErrorKind.REFUSED, f"annotation: {PREFIX}{theirs[0]} is somebody else's and stays")
    changes: dict[str, str | None] = dict.fromkeys(there.keys() - wanted.keys())
    changes |= {key: text for key, text in wanted.items() if there.get(key) != text}
    return {"metadata": {"annotations": {PREFIX + key: text for key, text in sorted(changes.items())}}} if changes else None


# The gate of a pod.


def declares_gate(pod: Mapping[str, Any]) -> bool:
    return any(gate.get("conditionType") == GATE for gate in rows(pod, "spec", "readinessGates"))


def condition(pod: Mapping[str, Any], kind: str) -> str | None:
    """``"True"``, ``"False"`` or ``"Unknown"``; None where the pod has no such condition."""
    return next((str(c.get("status")) for c in rows(pod, "status", "conditions") if c.get("type") == kind), None)


def serves_but_for_gate(pod: Mapping[str, Any]) -> bool:
    """Whether a Service would send it traffic, our own gate aside: it is not ending, its containers and other gates are ready."""
    others = [str(gate.get("conditionType")) for gate in rows(pod, "spec", "readinessGates")]
    needed = ["ContainersReady", *(other for other in others if other != GATE)]
    return not is_ending(pod) and all(condition(pod, kind) == "True" for kind in needed)


def is_ending(pod: Mapping[str, Any]) -> bool:
    return bool(part(pod, "metadata").get("deletionTimestamp"))


def gate_patch(opened: bool, now: str) -> Patch:
    """A strategic merge patch of a pod's status. ``now`` in RFC 3339."""
    why = ("Serving", "Let in again by Tailkeeper.") if opened else ("Drained", "Kept from new work by Tailkeeper.")
    row = {"type": GATE, "status": str(opened), "reason": why[0], "message": why[1], "lastTransitionTime": now}
    return {"status": {"conditions": [row]}}
