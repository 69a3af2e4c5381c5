"""Endpoints in a ClusterLoadAssignment of Envoy, as it stands in an EDS file and in Envoy's own dump. Pure.

What an endpoint was before us stands in its own metadata (`filter_metadata.tailkeeper`), which no filter of Envoy reads: it
goes wherever the endpoint goes, survives whoever loads and dumps the file, and is gone with our change where somebody
renders the file anew. Field names are protobuf's, in either of the spellings that Envoy takes (`lb_endpoints`, `lbEndpoints`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.contract import ErrorKind
from tailkeeper_watchdog.actuators.document_text import GONE, Edits, Path
from tailkeeper_watchdog.actuators.file_weights import Entry, Pool, scale_of, share_of

DRAINING = "DRAINING"
"""Not UNHEALTHY: that counts towards Envoy's panic, in which it gives traffic to everybody."""
MARK = "tailkeeper"


@dataclass(frozen=True, slots=True)
class Mark:
    """What an endpoint was before us, None where the field was left out, and what we made of it."""

    weight: int | None
    health: str | None
    scale: int
    drain: bool
    zero: bool

    @property
    def document(self) -> dict[str, Any]:
        return {"weight": self.weight, "health": self.health, "scale": self.scale, "drain": self.drain, "zero": self.zero}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint; ``path`` leads to it in its document. ``units`` and ``health`` are None where left out."""

    server: str
    path: Path
    units: int | None
    health: str | None
    mark: Mark | None
    camel: bool

    @property
    def entry(self) -> Entry:
        """Its share of its normal weight. What a foreign hand made healthy again is not out any more."""
        configured = (self.mark.weight if self.mark else self.units) or 1
        out = self.health == DRAINING
        if self.mark is None:
            return Entry(configured, drained=out)
        share = 0.0 if self.mark.zero and out else share_of(self.units or 1, configured, self.mark.scale)
        return Entry(configured, share, self.mark.drain and out)


def endpoints_of_file(document: Any, service: str) -> tuple[Endpoint, ...]:
    """Those of one cluster in an EDS file. Raises CallError(PROTOCOL, NOT_FOUND)."""
    for path, resource in _resources(document):
        if _get(resource, "cluster_name") == service:
            return endpoints_of(resource, path)
    raise CallError(ErrorKind.NOT_FOUND, f"the file has no ClusterLoadAssignment of {service!r} under `resources`")


def _resources(document: Any) -> Iterator[tuple[Path, Any]]:
    for n, resource in enumerate(_list(_get(document, "resources"), "resources")):
        wrapped = _get(resource, "resource")
        yield (("resources", n), resource) if wrapped is None else (("resources", n, "resource"), wrapped)


def endpoints_of(assignment: Any, path: Path = ()) -> tuple[Endpoint, ...]:
    """Raises CallError(PROTOCOL) that says which one cannot be read."""
    found = []
    for n, locality in enumerate(_list(_get(assignment, "endpoints"), "endpoints")):
        key = _key(locality, "lb_endpoints")
        for m, endpoint in enumerate(_list(_get(locality, "lb_endpoints"), key)):
            at: Path = (*path, _key(assignment, "endpoints"), n, key, m)
            try:
                found.append(_endpoint(endpoint, at, camel=key != "lb_endpoints"))
            except (TypeError, ValueError, OverflowError, KeyError, AttributeError):
                where = ".".join(str(step) for step in at)
                raise CallError(ErrorKind.PROTOCOL, f"{where} is not an endpoint that can be read") from None
    return tuple(found)


def _endpoint(value: Any, path: Path, camel: bool) -> Endpoint:
    address = _get(_get(value, "endpoint") or {}, "address") or {}
    socket = _get(address, "socket_address")
    host = str(socket["address"]) if socket else str(_get(_get(address, "pipe") or {}, "path"))
    port = f":{int(_get(socket, 'port_value'))}" if socket else ""
    units, health = _get(value, "load_balancing_weight"), _get(value, "health_status")
    if not isinstance(health, str | None):
        raise TypeError("a number of protobuf's enumeration, which could not be given back as it stands")
    filters = _get(_get(value, "metadata") or {}, "filter_metadata") or {}
    return Endpoint(
        f"[{host}]{port}" if ":" in host and socket else host + port,
        path,
        None if units is None else int(units),
        health,
        _mark(filters.get(MARK)),
        camel,
    )


def _mark(value: Any) -> Mark | None:
    """None also for what we did not write; numbers come back from Envoy as floats."""
    if not isinstance(value, dict) or not isinstance(value.get("scale"), (int, float)) or value["scale"] < 1:
        return None
    weight, health = value.get("weight"), value.get("health")
    return Mark(
        int(weight) if isinstance(weight, (int, float)) and weight >= 1 else None,
        health if isinstance(health, str) else None,
        int(value["scale"]),
        value.get("drain") is True,
        value.get("zero") is True,
    )


def _get(value: Any, name: str) -> Any:
    if not isinstance(value, dict):
        raise CallError(ErrorKind.PROTOCOL, f"where {name!r} must be there is {type(value).__name__} and no mapping")
    return value.get(_key(value, name))


def _key(value: Any, name: str) -> str:
    """The spelling of a field in this mapping; protobuf's own where it is not there."""
    camel = _camel(name)
    return camel if isinstance(value, dict) and name not in value and camel in value else name


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _list(value: Any, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise CallError(ErrorKind.PROTOCOL, f"`{where}` must be a list of mappings")
    return value


def pool_of(endpoints: tuple[Endpoint, ...]) -> Pool:
    """By server; of one that is listed several times the first counts."""
    return {endpoint.server: endpoint.entry for endpoint in reversed(endpoints)}


def wanted(endpoints: tuple[Endpoint, ...], pool: Pool) -> tuple[Endpoint, ...]:
    """The endpoints as they must stand in the file for ``pool`` to be in force."""
    scale = scale_of(pool)
    return tuple(
        _wanted(e, replace(e.entry, share=pool[e.server].share, drained=pool[e.server].drained), scale) for e in endpoints
    )


def _wanted(found: Endpoint, entry: Entry, scale: int) -> Endpoint:
    ours = found.mark is not None and (found.mark.drain or found.mark.zero) and found.health == DRAINING
    weight = found.mark.weight if found.mark else found.units
    health = found.mark.health if ours and found.mark else found.health
    if health == DRAINING and not entry.out:
        health = None  # a foreign drain that we were asked to end
    plain = scale == 1 and entry.share in (0.0, 1.0)
    units = weight if plain else entry.units(scale) or entry.configured * scale
    made = DRAINING if entry.out else health
    mark = Mark(weight, health, scale, entry.drained, entry.share == 0)
    bare = replace(found, units=units, health=made, mark=None)
    # The same words can mean another thing: 1 % of a weight, in hundredths, is the number that stood there before.
    return bare if (units, made) == (weight, health) and bare.entry == entry else replace(bare, mark=mark)


def edits(found: tuple[Endpoint, ...], made: tuple[Endpoint, ...]) -> Edits:
    """What must be changed in the document to get from one to the other."""
    changes: dict[Path, Any] = {}
    for old, new in zip(found, made, strict=True):

        def key(name: str, camel: bool = old.camel) -> str:
            return _camel(name) if camel else name

        if new.units != old.units:
            changes[*old.path, key("load_balancing_weight")] = GONE if new.units is None else new.units
        if new.health != old.health:
            changes[*old.path, key("health_status")] = GONE if new.health is None else new.health
        if new.mark != old.mark:
            document = GONE if new.mark is None else new.mark.document
            changes[*old.path, "metadata", key("filter_metadata"), MARK] = document
    return changes
