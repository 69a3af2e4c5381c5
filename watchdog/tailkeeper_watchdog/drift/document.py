"""Reading a saved baseline that may be old, damaged or hostile: one check for each shape, one error for all. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SHOWN = 60
MOST_TEXT = 500


class Fields:
    """The fields of one JSON object; ``path`` says where in the document it is."""

    def __init__(self, document: Any, path: str) -> None:
        if not isinstance(document, Mapping):
            raise ValueError(f"{path} must be an object, not {repr(document)[:_SHOWN]}")
        self._document, self._path = document, path

    def error(self, name: str, wanted: str) -> ValueError:
        if name not in self._document:
            return ValueError(f"{self._path}.{name} is missing; it must be {wanted}")
        return ValueError(f"{self._path}.{name} must be {wanted}, not {repr(self._document[name])[:_SHOWN]}")

    def is_null(self, name: str) -> bool:
        return name in self._document and self._document[name] is None

    def equals(self, name: str, wanted: str | float) -> None:
        value = self._document.get(name)
        if isinstance(value, bool) or value != wanted:
            raise self.error(name, repr(wanted))

    def text(self, name: str) -> str:
        value = self._document.get(name)
        if not isinstance(value, str) or len(value) > MOST_TEXT:
            raise self.error(name, f"text of at most {MOST_TEXT} characters")
        return value

    def number(self, name: str, low: float, high: float) -> float:
        value = _number(self._document.get(name), low, high)
        if value is None:
            raise self.error(name, f"a number from {low:g} to {high:g}")
        return value

    def optional_number(self, name: str, low: float, high: float) -> float | None:
        return None if self.is_null(name) else self.number(name, low, high)

    def inner(self, name: str) -> Fields:
        if not isinstance(self._document.get(name), Mapping):
            raise self.error(name, "an object")
        return Fields(self._document[name], f"{self._path}.{name}")

    def numbers(self, name: str, count: int, low: float, high: float, *, ascending: bool = False) -> tuple[float, ...]:
        return self.any_numbers(name, count, count, low, high, ascending=ascending)

    def any_numbers(
        self, name: str, least: int, most: int, low: float, high: float, *, ascending: bool = False
    ) -> tuple[float, ...]:
        """From ``least`` to ``most`` numbers in ``low`` to ``high``."""
        if name not in self._document:
            raise self.error(name, "a list of numbers")
        return number_list(self._document[name], f"{self._path}.{name}", least, most, low, high, ascending=ascending)

    def number_lists(
        self, name: str, count: int, least: int, most: int, low: float, high: float, *, ascending: bool = False
    ) -> tuple[tuple[float, ...], ...]:
        """``count`` lists of one length."""
        value = self._document.get(name)
        if not isinstance(value, list) or len(value) != count:
            raise self.error(name, f"a list of {count} lists")
        path = f"{self._path}.{name}"
        lists = tuple(number_list(v, f"{path}[{i}]", least, most, low, high, ascending=ascending) for i, v in enumerate(value))
        if len({len(one) for one in lists}) != 1:
            raise ValueError(f"{path} must be lists of one length")
        return lists


def number_list(
    value: Any, path: str, least: int, most: int, low: float, high: float, *, ascending: bool = False
) -> tuple[float, ...]:
    """``value`` as numbers. Raises ValueError with the path and the index that is wrong."""
    if not isinstance(value, list) or not least <= len(value) <= most:
        length = f"{least}" if least == most else f"{least} to {most}"
        raise ValueError(f"{path} must be a list of {length} numbers")
    numbers: list[float] = []
    for index, item in enumerate(value):
        number = _number(item, low, high)
        if number is None:
            raise ValueError(f"{path}[{index}] must be a number from {low:g} to {high:g}, not {repr(item)[:_SHOWN]}")
        if ascending and numbers and number < numbers[-1]:
            raise ValueError(f"{path}[{index}] must not be below the one before it")
        numbers.append(number)
    return tuple(numbers)


def _number(value: Any, low: float, high: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # NaN is in no range, and an integer too large for a float is compared before it is converted.
    return float(value) if low <= value <= high else None
