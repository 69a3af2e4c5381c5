"""Direct mode: read the exporters themselves, all at once, one deadline. An exporter that fails costs only its own.

From an exporter it relies on ``/metrics``, ``/healthz`` and ``/api/v1/requests``; each may be missing or failing, and
then what it would have said is unknown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import httpx

from tailkeeper_exporter import long_json, strict_json
from tailkeeper_exporter.credentials import CredentialError, auth_headers
from tailkeeper_exporter.exposition import PageError, PageParser
from tailkeeper_exporter.fetch import EXCHANGE_ERRORS
from tailkeeper_exporter.settings import Auth
from tailkeeper_exporter.tls import tls_context, tls_trouble
from tailkeeper_watchdog.collect.base import Collected, LastWord
from tailkeeper_watchdog.collect.observe import WANTED, observe
from tailkeeper_watchdog.collect.words import reasons_of
from tailkeeper_watchdog.model import BackendObservation, RequestRecord

MAX_PAGE_BYTES = 8 * 1024 * 1024
MAX_CONCURRENT = 64
MAX_RECORDS = 5_000
"""Request records taken from one exporter in one round; the rest comes with the next."""
MAX_NUMBER = 1e300
KEY = "watchdog.source.auth"
NO_AUTH = Auth()
MAX_COUNT = 10**9
"""More tokens or requests than this at one backend is no count but a mistake."""


class ExporterSource:
    """Reads a fixed list of exporters. ``close`` it at the end.

    Raises CredentialError where a file of ``auth`` cannot be used; those of headers are read again in each round.
    """

    def __init__(self, urls: tuple[str, ...], backends: tuple[str, ...], stale_after_s: float, auth: Auth = NO_AUTH) -> None:
        auth_headers(auth, KEY)  # a file that cannot be used ends the start, not the first round
        self._auth = auth
        self._exporters = [_Exporter(url) for url in urls]
        self._last = LastWord(backends, stale_after_s)
        limits = httpx.Limits(max_connections=2 * MAX_CONCURRENT, max_keepalive_connections=2 * MAX_CONCURRENT)
        # Where nothing is encrypted there is nothing to verify, and building a context costs 20 ms.
        tls = tls_context(auth, KEY) if any(url.startswith("https:") for url in urls) else False
        self._client = httpx.AsyncClient(limits=limits, trust_env=False, follow_redirects=False, verify=tls)
        self._gate = asyncio.Semaphore(MAX_CONCURRENT)

    def follow(self, backends: tuple[str, ...], new: frozenset[str], now: float) -> None:
        self._last.follow(backends, new, now)

    async def collect(self, now: float, deadline_s: float) -> Collected:
        ends_at = asyncio.get_running_loop().time() + deadline_s
        await self._read_all(ends_at)
        return self._told()

    async def _read_all(self, ends_at: float) -> None:
        try:
            headers = {} if self._auth == NO_AUTH else await asyncio.to_thread(auth_headers, self._auth, KEY)
        except CredentialError as error:
            for exporter in self._exporters:
                exporter.skip(str(error))
            return
        async with asyncio.TaskGroup() as group:
            # Those that answer are asked first, then whoever has waited longest: hung ones must not take every place.
            for exporter in sorted(self._exporters, key=lambda e: (e.error is not None, e.asked_at)):
                group.create_task(self._one(exporter, headers, ends_at))

    def _told(self) -> Collected:
        errors: dict[str, str] = {}
        records: list[RequestRecord] = []
        for exporter in self._exporters:
            self._last.hear(exporter.observations, dict.fromkeys(exporter.observations, exporter.taken_at))
            records.extend(exporter.records)
            if exporter.error is not None:
                errors.update(dict.fromkeys(exporter.observations, exporter.error))
        failed = [e.error for e in self._exporters if e.error is not None]
        all_failed = failed[0] if len(failed) == len(self._exporters) else None
        default = failed[0] if failed else "no exporter reports this backend"
        return Collected(self._last.tell(time.monotonic(), errors, default), tuple(records), all_failed)

    async def _one(self, exporter: _Exporter, headers: Mapping[str, str], ends_at: float) -> None:
        """Within the deadline of the round, the wait for a place included."""
        try:
            async with asyncio.timeout_at(ends_at):
                await self._gate.acquire()
        except TimeoutError:
            exporter.skip(f"not asked: {MAX_CONCURRENT} others had not answered by the deadline")
            return
        try:
            await exporter.read(self._client, headers, max(0.0, ends_at - asyncio.get_running_loop().time()))
        finally:
            self._gate.release()

    async def close(self) -> None:
        await self._client.aclose()


class _Exporter:
    """One exporter: its parser, its cursor, and what it last said."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._parser = PageParser(WANTED)
        self._cursor = 0
        self.observations: Mapping[str, BackendObservation] = {}
        self.records: tuple[RequestRecord, ...] = ()
        self.taken_at = float("-inf")
        self.error: str | None = None
        self.asked_at = float("-inf")

    def skip(self, why: str) -> None:
        self.records = ()
        self.error = f"{self._url}: {why}"

    async def read(self, client: httpx.AsyncClient, headers: Mapping[str, str], deadline_s: float) -> None:
        self.records = ()
        taken_at = self.asked_at = time.monotonic()
        page, health, requests = await asyncio.gather(
            self._get(client, "/metrics", headers, deadline_s),
            self._get(client, "/healthz", headers, deadline_s),
            self._get(client, f"/api/v1/requests?since={self._cursor}&limit={MAX_RECORDS}", headers, deadline_s),
        )
        self.records = await self._records(requests)
        if isinstance(page, str):
            self.error = f"{self._url}: {page}"
            return
        try:
            samples = self._parser.parse(page).samples
        except PageError as error:
            self.error = f"{self._url}/metrics: {error}"
            return
        self.observations = observe(samples, taken_at, await _reasons(health))
        self.taken_at = taken_at
        self.error = None

    async def _get(self, client: httpx.AsyncClient, path: str, headers: Mapping[str, str], deadline_s: float) -> bytes | str:
        """The body, or in words why there is none. 503 is what ``/healthz`` says of a failing backend: a body too."""
        try:
            asking = client.stream("GET", self._url + path, headers=dict(headers), timeout=deadline_s)
            async with asyncio.timeout(deadline_s), asking as response:
                if response.status_code in (401, 403):
                    return f"{path} answered {response.status_code}: the credential is not accepted; check {KEY}"
                if response.status_code not in (200, 503):
                    return f"{path} answered {response.status_code}"
                body = bytearray()
                async for part in response.aiter_bytes():
                    body += part
                    if len(body) > MAX_PAGE_BYTES:
                        return f"{path} is larger than {MAX_PAGE_BYTES} bytes"
                return bytes(body)
        except TimeoutError:
            return f"{path} did not answer within {deadline_s:g} s"
        except EXCHANGE_ERRORS as error:
            trouble = tls_trouble(error)
            return f"{path}: {type(error).__name__}: {error}" if trouble is None else f"{path}: TLS: {trouble.at(KEY)}"

    async def _records(self, body: bytes | str) -> tuple[RequestRecord, ...]:
        document = await _json(body)
        if not isinstance(document, dict) or not isinstance(document.get("next"), int):
            return ()
        # A cursor that went back is a restarted exporter: begin again where it begins.
        self._cursor = document["next"]
        rows = document.get("requests")
        return tuple(r for row in rows[:MAX_RECORDS] if (r := _record(row)) is not None) if isinstance(rows, list) else ()


async def _json(body: bytes | str) -> Any:
    if isinstance(body, str):
        return None
    try:
        return await long_json.parsed(body, strict_json.loads_any)
    except (ValueError, RecursionError):  # lists in lists in lists are no mistake of the others
        return None


async def _reasons(body: bytes | str) -> dict[str, tuple[str, ...]]:
    """Reasons by backend from a ``/healthz`` document; whatever is not of its shape is left out."""
    document = await _json(body)
    rows = document.get("backends") if isinstance(document, dict) else None
    found: dict[str, tuple[str, ...]] = {}
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and isinstance(row.get("backend"), str):
            found[row["backend"]] = reasons_of(row)
    return found


def _record(row: Any) -> RequestRecord | None:
    if not isinstance(row, dict) or not isinstance(row.get("backend"), str):
        return None
    return RequestRecord(
        backend=row["backend"],
        outcome=_word(row.get("outcome")),
        ttft_s=_number(row.get("ttft_s")),
        itl_s=_number(row.get("itl_s")),
        e2e_s=_number(row.get("e2e_s")),
        start_unix_s=_number(row.get("start")),
        queue_s=_number(row.get("queue_s")),
        prefill_s=_number(row.get("prefill_s")),
        prompt_tokens=_whole(row.get("prompt_tokens")),
        cached_tokens=_whole(row.get("cached_tokens")),
        generated_tokens=_whole(row.get("generated_tokens")),
        running=_whole(row.get("running")),
        waiting=_whole(row.get("waiting")),
        backlog_tokens=_whole(row.get("backlog_tokens")),
        model=_word(row.get("model")),
        tenant=_word(row.get("tenant")),
        modality=_word(row.get("modality")),
        canary_revision=_word(row.get("canary_revision")),
        operation=_word(row.get("operation")),
        sensitivity=_whole(row.get("sensitivity")),
    )


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    """A measurement: none of these is ever negative."""
    # A whole number of 400 digits is JSON as well, and no float.
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MAX_NUMBER
    return float(value) if good else None


def _whole(value: Any) -> int | None:
    good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT
    return value if good else None
