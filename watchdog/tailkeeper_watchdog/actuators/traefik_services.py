"""A service of Traefik with weights, as it stands in a file of the file provider and in the API's answer. Pure.

Traefik refuses fields that it does not know, so what was there before us stands beside the service as services that no
router uses: `NAME-tailkeeper-xSCALE` has the configured weights, `NAME-tailkeeper-drained` what drained servers return to.
Traefik shows both in its API, whoever loads and dumps the file keeps them, and they are gone with our change where somebody
renders the file anew. Keys are compared as Traefik does: without regard to case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.contract import ErrorKind
from tailkeeper_watchdog.actuators.document_text import GONE, Edits, Path
from tailkeeper_watchdog.actuators.file_weights import Entry, Pool, scale_of, share_of

_FORMS = {"weighted": ("services", "name"), "loadBalancer": ("servers", "url")}
"""Where the weights are, and what names their members."""
_MARK = "-tailkeeper-"


@dataclass(frozen=True, slots=True)
class Member:
    """One member; ``units`` and ``configured`` are None where the weight is left out, which is 1."""

    id: str
    path: Path
    units: int | None
    configured: int | None
    returns_to: int | None = None
    """Units that it will have again, where it is drained by us."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The members of one service. ``found`` are our own services beside it, by name."""

    service: str
    path: Path
    form: str
    members: tuple[Member, ...]
    scale: int
    found: Mapping[str, Any] = field(default_factory=dict)

    def entry(self, member: Member) -> Entry:
        configured = 1 if member.configured is None else member.configured
        units = 1 if member.units is None else member.units
        drained = member.returns_to is not None and units == 0
        share = share_of(member.returns_to if drained and member.returns_to is not None else units, configured, self.scale)
        if configured > 0 and not self._is_known(member):
            share = 1.0
        return Entry(configured, share, drained)

    def _is_known(self, member: Member) -> bool:
        """Whether its configured weight was written down by us; if not, it is the one that it has."""
        return bool(self.found) and member.id in {str(_get(row, _FORMS[self.form][1])) for row in self._rows()}

    def _rows(self) -> list[Any]:
        return next((_rows(self.found[name], self.form) for name in self.found if not name.endswith("drained")), [])


def weights_of(document: Any, service: str) -> Weights:
    """Of a file, or of the API's services put under `http.services`. Raises CallError(PROTOCOL, NOT_FOUND)."""
    try:
        http = _key(document, "http")
        services = _key(document[http], "services")
        table: Mapping[str, Any] = document[http][services]
        if service not in table:
            raise CallError(ErrorKind.NOT_FOUND, f"there is no service {service!r} under `http.services`")
        form = next((form for form in _FORMS if _get(table[service], form) is not None), None)
        if form is None:
            raise CallError(
                ErrorKind.NOT_FOUND, f"{service!r} must be `weighted` or `loadBalancer`; other services have no weights"
            )
        return _weights(table, service, form, (http, services))
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, IndexError):
        raise CallError(ErrorKind.PROTOCOL, f"the service {service!r} has a form that cannot be read") from None


def _weights(table: Mapping[str, Any], service: str, form: str, root: Path) -> Weights:
    ours = {name: table[name] for name in table if str(name).startswith(service + _MARK)}
    copy = next((name for name in ours if not name.endswith("drained")), None)
    scale = 1 if copy is None else max(1, int(copy.rpartition("-x")[2]))
    normal = {} if copy is None else _by_id(ours[copy], form)
    drained = _by_id(ours[service + _MARK + "drained"], form) if service + _MARK + "drained" in ours else {}
    list_key, _ = _FORMS[form]
    form_key = _key(table[service], form)
    path: Path = (*root, service, form_key, _key(table[service][form_key], list_key))
    members = []
    for n, (name, units) in enumerate(_pairs(table[service], form)):
        configured = normal.get(name, units)
        members.append(Member(name, (*path, n), units, configured, drained.get(name)))
    return Weights(service, root, form, tuple(members), scale, ours)


def _by_id(service: Any, form: str) -> dict[str, int | None]:
    return dict(_pairs(service, form))


def _pairs(service: Any, form: str) -> list[tuple[str, int | None]]:
    name = _FORMS[form][1]
    return [(str(_get(row, name)), _whole(_get(row, "weight"))) for row in _rows(service, form)]


def _rows(service: Any, form: str) -> list[Any]:
    return _get(_get(service, form), _FORMS[form][0]) or []


def _whole(value: Any) -> int | None:
    """Traefik takes a negative weight in silence, and gives it no traffic."""
    return None if value is None else max(0, int(value))


def _get(value: Any, name: str) -> Any:
    return value.get(_key(value, name))


def _key(value: Any, name: str) -> str:
    return next((key for key in value if str(key).lower() == name.lower()), name)


def pool_of(weights: Weights, servers: Mapping[str, str]) -> Pool:
    """By server; ``servers`` has the server of each member whose only one is known. The first of several counts."""
    return {servers[m.id]: weights.entry(m) for m in reversed(weights.members) if m.id in servers}


def edits(weights: Weights, servers: Mapping[str, str], pool: Pool) -> Edits:
    """What must be changed in the file for ``pool`` to be in force; nothing where it is."""
    entries = {m.id: _overlaid(weights.entry(m), pool.get(servers.get(m.id, ""))) for m in weights.members}
    scale = scale_of(entries)
    normal = all(entry.is_normal for entry in entries.values())
    changes: dict[Path, Any] = {}
    for member in weights.members:
        units = member.configured if normal else _units(member, entries[member.id], scale)
        if units != member.units:
            changes[*member.path, "weight"] = GONE if units is None else units
    ours = {} if normal else _ours(weights, entries, scale)
    for name in weights.found.keys() - ours.keys():
        changes[*weights.path, name] = GONE
    changes.update({(*weights.path, name): made for name, made in ours.items() if weights.found.get(name) != made})
    return changes


def _overlaid(entry: Entry, wanted: Entry | None) -> Entry:
    return entry if wanted is None else replace(entry, share=wanted.share, drained=wanted.drained)


def _units(member: Member, entry: Entry, scale: int) -> int | None:
    if entry.out:
        return 0
    return member.configured if scale == 1 and entry.share == 1.0 else entry.units(scale)


def _ours(weights: Weights, entries: Mapping[str, Entry], scale: int) -> dict[str, Any]:
    rows = [_row(weights.form, m.id, m.configured) for m in weights.members]
    made = {f"{weights.service}{_MARK}x{scale}": rows}
    if drained := [_row(weights.form, name, entry.units(scale)) for name, entry in entries.items() if entry.drained]:
        made[f"{weights.service}{_MARK}drained"] = drained
    return {name: {weights.form: {_FORMS[weights.form][0]: rows}} for name, rows in made.items()}


def _row(form: str, name: str, weight: int | None) -> dict[str, Any]:
    return {_FORMS[form][1]: name} | ({} if weight is None else {"weight": weight})
