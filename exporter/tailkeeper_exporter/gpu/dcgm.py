"""GPUs from the page of a dcgm-exporter that runs already. Blocking calls behind ``GpuSource``; no driver, no library.

One fetch serves all devices of one sampling round, failed or not: whoever comes first reads, the others take what it got.
Bounds: ``DEADLINE_S`` for the whole exchange, 8 MiB, redirects on the same host only (``fetch``), ``PAGE_SHARE`` of one CPU,
and ``MAX_XID_EVENTS`` XID events for each of ``MAX_DEVICES`` devices. A page that cannot be had costs the devices their age.

What a page cannot tell: how old its values are (dcgm-exporter collects every 30 s unless told otherwise), and two equal XIDs
in a row. ``DCGM_FI_DEV_XID_ERRORS`` holds the last XID until dcgm-exporter restarts (its issues 500 and 190), so an event is
counted when the value changes to another one that is not 0; what it is when a device is first seen happened before.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

import httpx

from tailkeeper_exporter.exposition import PageParser
from tailkeeper_exporter.fetch import Fetched, FetchError, fetch
from tailkeeper_exporter.gpu.base import MAX_DEVICES, DeviceId, GpuError, GpuReason, GpuSample, XidEvent
from tailkeeper_exporter.gpu.dcgm_page import WANTED, XID, Entity, entities_of, sample_from
from tailkeeper_exporter.page import PageError, Reason
from tailkeeper_exporter.readings import Reading, Status

DEADLINE_S = 2.0
"""For the whole exchange, as for an engine's page. Resolving a name that hangs is the system's to end."""
PAGE_SHARE = 0.1
"""Of one CPU that the page may take. A usual page takes a few milliseconds; a hostile one of 8 MiB is read rarely."""
MAX_XID_EVENTS = 256
MAX_XID = 9_999
_LIST = ""
_TRANSPORT = frozenset({Reason.REFUSED, Reason.CONNECTION, Reason.HTTP_STATUS, Reason.REDIRECT_LOOP})


class PageGetter:
    """Gets the page in an event loop of its own, because only there a deadline holds for the whole exchange."""

    def __init__(self, deadline_s: float = DEADLINE_S) -> None:
        self._deadline_s = deadline_s
        self._tls: ssl.SSLContext | None = None

    def __call__(self, url: str) -> Fetched:
        """The body. Raises FetchError for everything else."""
        return asyncio.run(self._get(url))

    async def _get(self, url: str) -> Fetched:
        if self._tls is None:
            plain = urlsplit(url).scheme == "http"
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else ssl.create_default_context()
        # The deadline is fetch's, for the whole exchange; one per operation would let a dripping server go on for ever.
        none = httpx.Timeout(None)
        async with httpx.AsyncClient(trust_env=False, verify=self._tls, timeout=none, follow_redirects=False) as client:
            return await fetch(client, url, {}, self._deadline_s)


class XidWatch:
    """The XID events of one device, from a gauge that holds the last one."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._events: deque[XidEvent] = deque(maxlen=MAX_XID_EVENTS)

    def take(self, raw: Reading[float], at_unix_s: float) -> Reading[tuple[XidEvent, ...]]:
        """The events so far, with the one that ``raw`` tells of, if any. What is no XID changes nothing."""
        if raw.value is None:
            return Reading(raw.status, None, raw.taken_s, raw.reason)
        if not 0 <= raw.value <= MAX_XID or raw.value % 1:
            return Reading(Status.INVALID, None, raw.taken_s, f"XID is {raw.value:g}")
        xid = int(raw.value)
        if xid and self._last is not None and xid != self._last:
            self._events.append(XidEvent(xid, at_unix_s))
        self._last = xid
        return Reading(Status.PRESENT, tuple(self._events), raw.taken_s)


@dataclass(slots=True)
class _Round:
    """One fetch: what came of it, and who has had it already."""

    ended_s: float
    entities: Mapping[str, Entity] = field(default_factory=dict)
    xids: Mapping[str, Reading[tuple[XidEvent, ...]]] = field(default_factory=dict)
    error: tuple[GpuReason, str] | None = None
    served: set[str] = field(default_factory=set)


class DcgmSource:
    """A ``GpuSource`` over one dcgm-exporter's page."""

    name = "dcgm"

    def __init__(
        self,
        url: str,
        interval_s: float = 1.0,
        monotonic: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        cpu_clock: Callable[[], float] = time.thread_time,
        get: Callable[[str], Fetched] | None = None,
    ) -> None:
        parts = urlsplit(url)
        self._url = urlunsplit(parts._replace(path="/metrics")) if parts.path in ("", "/") else url
        # A URL may hold a password; what is logged does not.
        self._where = f"{parts.netloc.rpartition('@')[2]}{urlsplit(self._url).path}"
        self._interval_s = interval_s
        self._monotonic = monotonic
        self._wall_clock = wall_clock
        self._cpu_clock = cpu_clock
        self._get = get or PageGetter()
        self._lock = threading.Lock()
        self._parser = PageParser(WANTED)
        self._round: _Round | None = None
        self._not_before_s = 0.0
        self._watches: dict[str, XidWatch] = {}

    def devices(self) -> tuple[DeviceId, ...]:
        """The GPUs and MIG instances on the page. Raises GpuError where there is no page, or none with a GPU on it."""
        current = self._current(_LIST)
        if not current.entities:
            raise GpuError(GpuReason.PAGE_INVALID, f"{self._where}: no DCGM_FI series with a UUID; is it dcgm-exporter's page?")
        return tuple(entity.device for entity in current.entities.values())

    def sample(self, device: DeviceId) -> GpuSample:
        """The device's sample. Raises GpuError where there is no page; a device that is not on it is lost."""
        current = self._current(device.uuid)
        entity = current.entities.get(device.uuid)
        if entity is None:
            raise GpuError(GpuReason.LOST, f"{self._where} has no GPU {device.uuid}")
        return sample_from(entity, current.xids[device.uuid], current.ended_s)

    def _current(self, who: str) -> _Round:
        """This round's fetch: the last one where ``who`` has not had it and it is of this round, else a new one."""
        with self._lock:
            now = self._monotonic()
            current = self._round
            if current is None or who in current.served or now - current.ended_s > self._interval_s / 2:
                if now < self._not_before_s:
                    left_s = self._not_before_s - now
                    raise GpuError(GpuReason.PAGE_INVALID, f"{self._where} is too costly to read; again in {left_s:.1f} s")
                current = self._round = self._read()
            current.served.add(who)
        if current.error is not None:
            raise GpuError(*current.error)
        return current

    def _read(self) -> _Round:
        started = self._cpu_clock()
        try:
            fetched = self._get(self._url)
            page = self._parser.parse(fetched.body, fetched.is_open_metrics)
            ended_s = self._monotonic()
            entities = entities_of(page, ended_s)
            return _Round(ended_s, entities, self._xids(entities))
        except PageError as error:
            return _Round(self._monotonic(), error=(_reason(error), f"{self._where}: {error}"))
        except Exception as error:
            # The boundary of one page: what nobody had foreseen must not make each device fetch it again.
            return _Round(self._monotonic(), error=(GpuReason.FAILED, f"{self._where}: {type(error).__name__}: {error}"))
        finally:
            self._not_before_s = self._monotonic() + (self._cpu_clock() - started) / PAGE_SHARE

    def _xids(self, entities: Mapping[str, Entity]) -> dict[str, Reading[tuple[XidEvent, ...]]]:
        at_unix_s = self._wall_clock()
        return {uuid: self._xids_of(entity, at_unix_s) for uuid, entity in entities.items()}

    def _xids_of(self, entity: Entity, at_unix_s: float) -> Reading[tuple[XidEvent, ...]]:
        if entity.is_instance:
            return Reading(Status.ABSENT, reason="told of the whole GPU")
        watch = self._watches.pop(entity.device.uuid, None) or XidWatch()
        # Put back at the end, so that the one to be forgotten is the one not seen for longest.
        self._watches[entity.device.uuid] = watch
        if len(self._watches) > MAX_DEVICES:
            del self._watches[next(iter(self._watches))]
        return watch.take(entity.get(XID), at_unix_s)


def _reason(error: PageError) -> GpuReason:
    if error.reason is Reason.TIMEOUT:
        return GpuReason.TIMEOUT
    return GpuReason.UNREACHABLE if isinstance(error, FetchError) and error.reason in _TRANSPORT else GpuReason.PAGE_INVALID
