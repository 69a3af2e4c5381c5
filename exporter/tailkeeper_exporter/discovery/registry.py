"""What all listings together say is there: merged, guarded against lists that lie, and bounded. Pure: no I/O and no clock.

Each rule is there because a list can be wrong in its own way:

* A listing that failed says nothing: what its source had stays. Stale is not gone.
* A backend goes only after it is missing on ``MISSES`` good lists of its source in a row. One list may be caught in the middle
  of a roll-out or of a file being written, and letting go closes what was open about a backend and gives its weight back: a
  step that must not be taken on what the next list takes back (events that overtake each other).
* A source that loses more than half at once needs ``MISSES_OF_MANY``: a truncated file, or a resolver that answers a part, is
  likelier than half a fleet ending in one interval, and waiting costs a few backends that read as down.
* At most ``max_changes`` backends come, and as many go or change, at one listing; the rest follow at the next.

One name is one backend and one URL is one backend. Configured ones win over found ones; of two found ones the one of the earlier
discovery, then the earlier on its list. The other is left out and said so: a name made up to tell them apart would belong to
another engine as soon as one of the two is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tailkeeper_exporter.discovery.base import MAX_TARGETS, DiscoveryError, Found, Listing, few

MISSES = 2
MISSES_OF_MANY = 4
MAX_CHANGES = 500
"""A new backend costs a validation, about 0.15 ms: this many at once hold the event loop for less than a tenth of a second."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What one listing changed, as names. ``waiting`` counts changes left for the next listing.

    ``notes`` must be said of this listing, ``left_out`` of all sources together, whichever of them was listed.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    waiting: int = 0
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def any(self) -> bool:
        return bool(self.added or self.removed or self.changed)


@dataclass(frozen=True, slots=True)
class _Entry:
    found: Found
    missed: int = 0


class Registry:
    """The backends found so far. ``current`` is what to watch; ``take`` is the only way it changes."""

    def __init__(
        self,
        sources: Iterable[str],
        configured: Mapping[str, str],
        max_backends: int = MAX_TARGETS,
        max_changes: int = MAX_CHANGES,
    ) -> None:
        """``sources`` in order of precedence; ``configured`` maps names of configured backends to their URLs."""
        self._kept: dict[str, dict[str, _Entry]] = {source: {} for source in sources}
        self._names = frozenset(configured)
        self._urls = frozenset(configured.values())
        self._room = max(0, max_backends - len(configured))
        self._max_changes = max_changes
        self._current: dict[str, Found] = {}

    @property
    def current(self) -> tuple[Found, ...]:
        """By name."""
        return tuple(self._current[name] for name in sorted(self._current))

    def take(self, source: str, listing: Listing | DiscoveryError) -> Changes:
        """Take one source's listing in. Raises KeyError for a source that is not one of ours."""
        notes: list[str] = []
        before = self._kept[source]
        if isinstance(listing, Listing):
            self._kept[source] = _kept(before, listing.found, notes)
        left_out: list[str] = []
        wanted = self._wanted(left_out)
        return self._towards(wanted, few(notes), few(left_out))

    def _wanted(self, left_out: list[str]) -> dict[str, Found]:
        names, urls = dict.fromkeys(self._names, "the configuration"), dict.fromkeys(self._urls, "the configuration")
        wanted: dict[str, Found] = {}
        for source, entries in self._kept.items():
            for entry in entries.values():
                found = entry.found
                if found.url in urls:
                    # The same engine, known twice over: nothing is lost, and files and Prometheus will often agree.
                    continue
                if found.name in names:
                    left_out.append(f"{found.name!r} at {found.url} is left out: {names[found.name]} has another of that name")
                    continue
                if len(wanted) == self._room:
                    left_out.append(f"only {self._room} found backends can be watched here; the rest are left out")
                    return wanted
                names[found.name], urls[found.url] = source, source
                wanted[found.name] = found
        return wanted

    def _towards(self, wanted: Mapping[str, Found], notes: tuple[str, ...], left_out: tuple[str, ...]) -> Changes:
        """Change ``current`` as far as one listing may."""
        gone = [name for name in self._current if name not in wanted]
        other = [name for name, found in wanted.items() if name in self._current and self._current[name] != found]
        new = [name for name in wanted if name not in self._current]
        # Who goes makes room first, so that the bound on backends holds at each step.
        removed = gone[: self._max_changes]
        changed = other[: self._max_changes - len(removed)]
        for name in removed:
            del self._current[name]
        added = new[: min(self._max_changes, max(0, self._room - len(self._current)))]
        self._current.update({name: wanted[name] for name in (*changed, *added)})
        waiting = len(gone) + len(other) + len(new) - len(removed) - len(changed) - len(added)
        return Changes(tuple(added), tuple(removed), tuple(changed), waiting, notes, left_out)


def _kept(before: Mapping[str, _Entry], listed: tuple[Found, ...], notes: list[str]) -> dict[str, _Entry]:
    """What a source has after a good list: all that is on it, and what is missing but not yet gone."""
    kept: dict[str, _Entry] = {}
    for found in listed[:MAX_TARGETS]:
        if found.name not in kept:
            kept[found.name] = _Entry(found)
        elif kept[found.name].found.url != found.url:
            notes.append(
                f"{found.name!r} at {found.url} is left out: {kept[found.name].found.url} on the same list has that name"
            )
    missing = {name: _Entry(entry.found, entry.missed + 1) for name, entry in before.items() if name not in kept}
    limit = MISSES_OF_MANY if len(missing) > max(1, len(before) / 2) else MISSES
    if limit > MISSES and any(entry.missed < limit for entry in missing.values()):
        notes.append(f"{len(missing)} of {len(before)} backends are gone from the list at once: waiting for {limit} such lists")
    # A list that is another one each time must not grow for ever.
    kept.update(_first(((n, e) for n, e in missing.items() if e.missed < limit), MAX_TARGETS))
    return kept


def _first(entries: Iterable[tuple[str, _Entry]], most: int) -> Iterator[tuple[str, _Entry]]:
    for number, entry in enumerate(entries):
        if number == most:
            return
        yield entry
