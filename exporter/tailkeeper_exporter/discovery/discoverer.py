"""The loop of discovery: each source is listed anew at its interval, and what is there is published as one immutable tuple.

A task for each source, so that one that hangs delays no other; each listing has a deadline, and intervals are jittered so that
a fleet of exporters does not ask a server in step. Nothing is decided here: the registry says what is there, ``compose`` what
that is as a backend's settings. What cannot be composed is left out and said so, and costs the others nothing.

A change is one line in the log; a failure or a note is logged when it begins and when it changes, not at each listing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import structlog

from tailkeeper_exporter.discovery.base import MAX_TARGETS, DiscoveryError, Found, Lister, Listing
from tailkeeper_exporter.discovery.registry import Changes, Registry
from tailkeeper_exporter.settings import BackendSettings

DEADLINE_S = 10.0
"""For one listing. A list of ten thousand takes a second or two; the first one is waited for at start no longer than this."""
GRACE_S = 1.0
"""A lister keeps the deadline itself, and says what it was waiting for; one that does not is cut off this much later."""
JITTER = 0.1
CATCH_UP_S = 5.0
"""Until the next listing where the last one left changes for it."""
_SHOWN = 5
"""Names in one line of the log."""

B = TypeVar("B", bound=BackendSettings)


@dataclass(frozen=True, slots=True)
class Source:
    """One entry of ``discovery``. ``name`` is its key and kind, for messages; ``engine`` that of what has none of its own."""

    name: str
    lister: Lister
    interval_s: float = 30.0
    engine: str | None = None


async def ask(source: Source, deadline_s: float = DEADLINE_S) -> Listing | DiscoveryError:
    """One listing of one source. Never raises for what the other side does, and takes no longer than the deadline."""
    try:
        async with asyncio.timeout(deadline_s + GRACE_S):
            listing = await source.lister.list(deadline_s)
    except DiscoveryError as error:
        return error
    except TimeoutError:
        return DiscoveryError(f"no answer within {deadline_s:g} s")
    except Exception as error:
        # The boundary of one source: what nobody had foreseen costs its listing, and keeps what it had.
        return DiscoveryError(f"internal error: {type(error).__name__}: {error}")
    return listing if source.engine is None else _with_engine(listing, source.engine)


async def ask_all(sources: Iterable[Source], deadline_s: float = DEADLINE_S) -> dict[str, Listing | DiscoveryError]:
    """One listing of each source, all at once, by the source's name."""
    sources = tuple(sources)
    answers = await asyncio.gather(*(ask(source, deadline_s) for source in sources))
    return {source.name: answer for source, answer in zip(sources, answers, strict=True)}


def pause_s(interval_s: float, waiting: int) -> float:
    """Until the next listing, before jitter, where the last one left ``waiting`` changes."""
    return min(interval_s, CATCH_UP_S) if waiting else interval_s


def _with_engine(listing: Listing, engine: str) -> Listing:
    found = (f if f.key("engine") else replace(f, keys=tuple(sorted((*f.keys, ("engine", engine))))) for f in listing.found)
    return replace(listing, found=tuple(found))


class Discoverer(Generic[B]):
    """Runs the sources. ``backends`` is what is there now; ``changed`` waits for it to be something else."""

    def __init__(
        self,
        sources: tuple[Source, ...],
        configured: Iterable[BackendSettings],
        compose: Callable[[Found], B],
        log: Any = None,
        max_backends: int = MAX_TARGETS,
        uniform: Callable[[float, float], float] = random.uniform,
        keep: Callable[[B], bool] = lambda backend: True,
    ) -> None:
        """``compose`` makes a backend's settings, and raises ValueError with a sentence where they would not be valid.

        ``configured`` are the backends of the configuration, which win over found ones and count towards ``max_backends``.
        ``keep`` says which of the found ones are ours; the rest is ``elsewhere``.
        """
        self._sources = sources
        self._registry = Registry([s.name for s in sources], {b.name: b.url for b in configured}, max_backends)
        self._compose = compose
        self._log = structlog.get_logger("tailkeeper.discovery") if log is None else log
        self._uniform = uniform
        self._keep = keep
        self._composed: dict[Found, B | str] = {}
        self._said: dict[str, object] = {}
        self._unlisted = dict.fromkeys(source.name for source in sources)
        self._change = asyncio.Event()
        self.backends: tuple[B, ...] = ()
        """By name; replaced as a whole, never changed."""
        self.elsewhere: tuple[B, ...] = ()
        """Found, and somebody else's; likewise."""

    @property
    def unlisted(self) -> tuple[str, ...]:
        """Sources whose first listing has not ended. Each ends by its deadline, whatever comes of it."""
        return tuple(self._unlisted)

    async def run(self) -> None:
        """List for ever, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for source in self._sources:
                tasks.create_task(self._for_ever(source))

    async def changed(self, since: tuple[B, ...]) -> tuple[B, ...]:
        """``backends``, once it is another tuple than ``since``. Any number may wait."""
        while self.backends is since:
            await self._change.wait()
        return self.backends

    async def _for_ever(self, source: Source) -> None:
        while True:
            answer = await ask(source, min(DEADLINE_S, source.interval_s))
            try:
                waiting = self.take(source.name, answer)
            except Exception as error:
                # The boundary of one listing: a bug in one turn costs that turn, and what was known stays.
                waiting = 0
                self._log.exception("internal error", source=source.name, error=type(error).__name__)
            await asyncio.sleep(pause_s(source.interval_s, waiting) * self._uniform(1 - JITTER, 1 + JITTER))

    def take(self, source: str, answer: Listing | DiscoveryError) -> int:
        """Take one source's answer in and publish what follows from it; how many changes are left for the next listing."""
        changes = self._registry.take(source, answer)
        self._unlisted.pop(source, None)
        notes = answer.notes if isinstance(answer, Listing) else ()
        self._say(source, "discovery failed", str(answer) if isinstance(answer, DiscoveryError) else None)
        self._say(source, "discovery notes", (*notes, *changes.notes) or None)
        self._say("all", "found twice or too many", changes.left_out or None)
        if changes.any:
            self._publish()
            self._tell(source, changes)
        return changes.waiting

    def _publish(self) -> None:
        found = self._registry.current
        self._composed = {f: self._composed.get(f) or self._composition(f) for f in found}
        problems = {f.name: result for f, result in self._composed.items() if isinstance(result, str)}
        first = next(iter(problems.items()), None)
        self._say("all", "found backends left out", None if first is None else (len(problems), f"{first[0]}: {first[1]}"))
        composed = [result for result in self._composed.values() if not isinstance(result, str)]
        self.elsewhere = tuple(backend for backend in composed if not self._keep(backend))
        self.backends = tuple(backend for backend in composed if self._keep(backend))
        # Whoever waits wakes up and looks again; whoever comes later waits for the next event.
        self._change.set()
        self._change = asyncio.Event()

    def _composition(self, found: Found) -> B | str:
        try:
            return self._compose(found)
        except ValueError as error:
            return str(error) or "its settings are not valid"

    def _tell(self, source: str, changes: Changes) -> None:
        names = {"added": changes.added, "removed": changes.removed, "changed": changes.changed}
        shown = {key: [*some[:_SHOWN], *(["…"] if len(some) > _SHOWN else [])] for key, some in names.items() if some}
        counts = {f"{key}_count": len(some) for key, some in names.items() if len(some) > _SHOWN}
        self._log.info("backends found", source=source, now=len(self.backends), waiting=changes.waiting, **shown, **counts)

    def _say(self, source: str, event: str, what: object) -> None:
        """Log what is not as it should be when it is new, and once when it is over."""
        key = f"{source} {event}"
        if self._said.get(key) == what:
            return
        self._said[key] = what
        if what is None:
            self._log.info(f"{event}: over", source=source)
        else:
            self._log.warning(event, source=source, what=what)
