"""The model's dataclasses as plain JSON values, and back by their annotations. Pure.

Tolerant of time: a field that this version does not know is passed over, and one that is missing takes its default, so that
records outlive added fields. Not tolerant of nonsense: a value that cannot be of its field's type raises ``ValueError``.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from tailkeeper_exporter.readings import Reading, Status


def to_plain(value: Any) -> Any:
    """``value`` as JSON can hold it: fields at their default left out, sets as sorted lists, other keys than texts as pairs."""
    kind: type = type(value)
    return value if kind in _ATOMS else _writer(kind)(value)


_ATOMS = frozenset({str, float, int, bool, type(None)})
_NO_DEFAULT = object()


@cache
def _writer(kind: type) -> Callable[[Any], Any]:
    """How values of a type are written. Asked of each type once: tens of values of a handful of types are written a backend."""
    if issubclass(kind, Reading):
        return _of_reading
    if is_dataclass(kind):
        return _of_dataclass(kind)
    if issubclass(kind, Enum):
        return lambda value: value.value
    if issubclass(kind, Mapping):
        return _of_mapping
    if issubclass(kind, (set, frozenset)):
        return lambda value: sorted((to_plain(inner) for inner in value), key=repr)
    if issubclass(kind, (list, tuple)):
        return lambda value: [to_plain(inner) for inner in value]
    return lambda value: value


def _of_dataclass(kind: type) -> Callable[[Any], Any]:
    defaults = [(field.name, _default(field)) for field in fields(kind)]

    def write(value: Any) -> dict[str, Any]:
        line = {}
        for name, default in defaults:
            inner = getattr(value, name)
            if type(inner) is not type(default) or not bool(inner == default):
                line[name] = to_plain(inner)
        return line

    return write


def _default(field: Field[Any]) -> Any:
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    return _NO_DEFAULT if default is MISSING else default


def _of_mapping(value: Mapping[Any, Any]) -> Any:
    if all(isinstance(key, str) for key in value):
        return {str(key): to_plain(inner) for key, inner in value.items()}
    return [[to_plain(key), to_plain(inner)] for key, inner in value.items()]


def _of_reading(reading: Reading[Any]) -> list[Any]:
    return [reading.status.value, reading.value, reading.taken_s, reading.reason] if reading.reason else _short(reading)


def _short(reading: Reading[Any]) -> list[Any]:
    """A reading without its reason, which a present one has none of; there are nine of them for each GPU."""
    return [reading.value, reading.taken_s] if reading.is_present else [reading.status.value, None, reading.taken_s, None]


def _reading(value: Any) -> Reading[Any]:
    if len(value) == 2:
        return Reading(Status.PRESENT, *value)
    status, inner, taken_s, reason = value
    return Reading(Status(status), inner, taken_s, reason)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def from_plain(kind: Any, value: Any) -> Any:
    """The value of type ``kind`` that was written as ``value``. Raises ValueError."""
    try:
        return _build(kind, value)
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise ValueError(f"{value!r:.80} is no {kind}") from error


def _build(kind: Any, value: Any) -> Any:
    if kind is Any:
        return value
    origin = get_origin(kind)
    if origin is Reading:
        return _reading(value)
    if origin in (Union, types.UnionType):
        return _one_of(get_args(kind), value)
    if origin in (tuple, frozenset):
        return _sequence(origin, get_args(kind), value)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(get_args(kind), value)
    if is_dataclass(kind) and isinstance(kind, type):
        return _dataclass(kind, value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and not isinstance(value, kind):
        raise ValueError(f"{value!r:.80} is no {kind.__name__}")
    return value


def _one_of(options: tuple[Any, ...], value: Any) -> Any:
    if value is None and type(None) in options:
        return None
    for option in (option for option in options if option is not type(None)):
        try:
            return _build(option, value)
        except (ValueError, TypeError):
            continue
    raise ValueError(f"{value!r:.80} is none of {options}")


def _sequence(origin: Any, arguments: tuple[Any, ...], value: Any) -> Any:
    if not isinstance(value, list):
        raise ValueError(f"{value!r:.80} is no list")
    if origin is tuple and (len(arguments) != 2 or arguments[1] is not Ellipsis):
        return tuple(_build(kind, inner) for kind, inner in zip(arguments, value, strict=True))
    return origin(_build(arguments[0], inner) for inner in value)


def _mapping(arguments: tuple[Any, ...], value: Any) -> dict[Any, Any]:
    pairs = value.items() if isinstance(value, dict) else [(key, inner) for key, inner in value]
    return {_build(arguments[0], key): _build(arguments[1], inner) for key, inner in pairs}


def _dataclass(kind: type, value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.80} is no {kind.__name__}")
    hints = _hints(kind)
    known = {f.name for f in fields(kind) if f.init}
    return kind(**{name: _build(hints[name], inner) for name, inner in value.items() if name in known})
