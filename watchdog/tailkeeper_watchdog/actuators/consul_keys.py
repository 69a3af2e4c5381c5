"""What stands at Consul below `service/SERVER/`, read and changed. Pure: knows keys and values, and no HTTP.

A key that is not there is the normal value. Ours are known by their flags.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tailkeeper_watchdog.actuators.calls import CallError, excerpt
from tailkeeper_watchdog.actuators.contract import ErrorKind, ServerState
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, KnobValue

PREFIX = "service"
OURS = 0x7461696C
"""Flags of a key that we made; Consul keeps them and makes nothing of them."""
FEATURES = (Knob.WEIGHT, Knob.ADMISSION, Knob.ANNOTATION)
WHY_NOT = "Consul is used for weight, admission and annotations only"
MAX_WEIGHT = 1e9
MAX_NOTES = 16
_NOTE = re.compile(r"([A-Za-z0-9_-]{1,64})=([\x21-\x2b\x2d-\x7e]{1,256})")
"""KEY=VALUE, printable and without a comma."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One key below a server, as Consul has it. ``session`` holds it; empty where none does."""

    text: str
    index: int
    flags: int
    session: str

    @property
    def ours(self) -> bool:
        return self.flags == OURS


Entries = Mapping[str, Entry]
"""By the part of the key after the server."""


def parse_entries(rows: object, server: str) -> Entries:
    """The answer to a recursive read. Keys further down are left out: they are not ours to know. Raises CallError(PROTOCOL)."""
    if not isinstance(rows, list):
        raise CallError(ErrorKind.PROTOCOL, "the answer is no list of keys")
    below = f"{PREFIX}/{server}/"
    try:
        named = {row["Key"].removeprefix(below): row for row in rows if row["Key"].startswith(below)}
        return {key: _entry(row) for key, row in named.items() if key and "/" not in key}
    except (KeyError, TypeError, AttributeError, ValueError, binascii.Error) as error:
        raise CallError(ErrorKind.PROTOCOL, f"a key cannot be read ({type(error).__name__}: {excerpt(str(error))})") from None


def _entry(row: Mapping[str, Any]) -> Entry:
    text = base64.b64decode(row["Value"] or "", validate=True).decode("utf-8", errors="replace")
    index, flags, session = row["ModifyIndex"], row.get("Flags", 0), row.get("Session") or ""
    if not isinstance(index, int) or not isinstance(flags, int) or not isinstance(session, str):
        raise TypeError("an index, flags or session of the wrong type")
    return Entry(text, index, flags, session)


def state_of(entries: Entries) -> ServerState:
    """What the keys say. What cannot be understood is left out, with the reason as doubt; ours without a session is doubtful."""
    doubts = []
    values: dict[Knob, KnobValue] = {Knob.ANNOTATION: ",".join(f"{key}={entry.text}" for key, entry in _notes(entries))}
    weight, admission = entries.get(Knob.WEIGHT), entries.get(Knob.ADMISSION)
    if (share := 1.0 if weight is None else _number(weight.text)) is None:
        doubts.append(f"weight: {excerpt(weight.text if weight else '')!r} is not a number from 0 up")
    else:
        values[Knob.WEIGHT] = share
    if (word := SERVE if admission is None else admission.text.strip()) not in (SERVE, DRAIN):
        doubts.append(f"admission: {excerpt(word)!r} is neither {SERVE} nor {DRAIN}")
    else:
        values[Knob.ADMISSION] = word
    doubts += [f"{key}: no session holds it, so it would outlive us" for key, e in entries.items() if e.ours and not e.session]
    return ServerState(values, in_service=share != 0.0, doubt="; ".join(doubts))


def _notes(entries: Entries) -> list[tuple[str, Entry]]:
    return sorted((key, e) for key, e in entries.items() if e.ours and key not in (Knob.WEIGHT, Knob.ADMISSION))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= MAX_WEIGHT else None


@dataclass(frozen=True, slots=True)
class Edit:
    """One key to be made so; ``text`` None is the normal value, which a key of ours is taken away for."""

    key: str
    text: str | None
    normal: str = ""


def edits(values: Mapping[Knob, KnobValue], entries: Entries) -> Iterable[Edit]:
    """In an order that never lets traffic in before its weight is set: a drain first, serving last.

    Lazy on purpose: a weight that must be refused does not keep a drain from happening. Raises CallError(REFUSED).
    """
    for knob in values:
        if knob not in FEATURES:
            raise CallError(ErrorKind.REFUSED, WHY_NOT)
    admission = values.get(Knob.ADMISSION)
    if admission not in (SERVE, DRAIN, None):
        raise CallError(ErrorKind.REFUSED, f"admission {admission!r} is not known; allowed: {SERVE}, {DRAIN}")
    if admission == DRAIN:
        yield Edit(Knob.ADMISSION, DRAIN)
    if Knob.WEIGHT in values:
        share = _share(values[Knob.WEIGHT])
        yield Edit(Knob.WEIGHT, None if share == 1.0 else _text(share), "1")
    if Knob.ANNOTATION in values:
        yield from _note_edits(values[Knob.ANNOTATION], entries)
    if admission == SERVE:
        yield Edit(Knob.ADMISSION, None, SERVE)


def _share(value: KnobValue) -> float:
    if isinstance(value, (str, bool)) or not math.isfinite(value) or not 0 <= value <= MAX_WEIGHT:
        raise CallError(ErrorKind.REFUSED, f"weight {value!r} is not a share; it must be a number from 0 up")
    return float(value)


def _text(share: float) -> str:
    """Short, and the very number: a value from before us must come back as it was."""
    short = f"{share:.12g}"
    return short if float(short) == share else repr(share)


def _note_edits(value: KnobValue, entries: Entries) -> Iterable[Edit]:
    notes = parse_notes(value)
    for key in notes:
        if key in entries and not entries[key].ours:
            raise CallError(ErrorKind.REFUSED, f"annotation: {key} was there before us, so it is somebody else's and stays")
    yield from (Edit(key, None) for key, _ in _notes(entries) if key not in notes)
    yield from (Edit(key, text) for key, text in notes.items())


def parse_notes(value: KnobValue) -> dict[str, str]:
    """`KEY=VALUE[,KEY=VALUE]`, sorted by key, or nothing. Raises CallError(REFUSED)."""
    pairs = str(value).split(",") if value != "" else []
    matches = [_NOTE.fullmatch(pair) for pair in pairs]
    notes = {m[1]: m[2] for m in matches if m is not None}
    if len(notes) < len(pairs) or len(pairs) > MAX_NOTES or list(notes) != sorted(notes) or notes.keys() & set(FEATURES):
        message = (
            f"annotation {excerpt(str(value))!r}: must be up to {MAX_NOTES} KEY=VALUE, sorted by key, and not weight or admission"
        )
        raise CallError(ErrorKind.REFUSED, message)
    return notes
