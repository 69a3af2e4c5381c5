"""The history of backends in a Prometheus-compatible server, read as the pages that were scraped: never between them.

Asked are raw samples (a range selector in an instant query), not values at steps: a server fills steps for five minutes with
the last value, and a gap must stay a gap. Samples of one target with one time are one page. Asked in chunks of time, which
are halved where the server finds an answer too large. Bounds: 64 MiB an answer, ``MAX_AT_ONCE`` questions at once.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import httpx

from tailkeeper_exporter.catalog import Kind
from tailkeeper_exporter.discovery.prometheus import FRESH
from tailkeeper_exporter.fetch import FetchError, fetch
from tailkeeper_exporter.page import Reason
from tailkeeper_watchdog.collect.native_pages import Pages, points_of, without_ends
from tailkeeper_watchdog.collect.series import key_of, names_matching

MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_AT_ONCE = 4
DEADLINE_S = 60.0
CHUNK_S = 900.0
"""Of one backend at 15 s: 60 pages of some 300 series, about a megabyte."""
LEAST_CHUNK_S = 60.0
DEFAULT_INTERVAL_S = 15.0
"""Where the server does not tell how often it scrapes."""
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?")
_TOO_MUCH = frozenset({400, 413, 422, 503, 504})
"""Statuses by which servers say that a question is too large for them."""


class AskError(Exception):
    """The server gave no usable answer; the message says which server and why. ``too_large`` says that less may work."""

    def __init__(self, message: str, too_large: bool = False) -> None:
        super().__init__(message)
        self.too_large = too_large


@dataclass(slots=True)
class Read:
    """What one question gave: pages and whether each scrape reached its target."""

    pages: Pages = field(default_factory=dict)
    up: dict[float, float] = field(default_factory=dict)


class History:
    """Asks one server. ``headers`` carry its credentials."""

    def __init__(self, client: httpx.AsyncClient, url: str, headers: Mapping[str, str]) -> None:
        self._client, self._url, self._headers = client, url, headers
        self._gate = asyncio.Semaphore(MAX_AT_ONCE)

    async def rows(self, promql: str, at: float) -> list[dict[str, Any]]:
        """The rows of an instant query at epoch second ``at``. Raises AskError."""
        document = await self._get("/api/v1/query?" + urlencode({"query": promql, "time": f"{at:.3f}", **FRESH}))
        try:
            rows = document["data"]["result"]
            if document["status"] == "success" and all(isinstance(row.get("metric"), dict) for row in rows):
                return list(rows)
        except (KeyError, TypeError, AttributeError):
            pass
        raise AskError(f"{self._url}: the answer is not that of Prometheus's query API")

    async def rows_over(self, question: Callable[[float], str], end: float, seconds: float) -> list[dict[str, Any]]:
        """The rows of what is asked for the ``seconds`` before ``end``; in halves where the server finds it too large.

        Raises AskError.
        """
        try:
            return await self.rows(question(seconds), end)
        except AskError as error:
            if not error.too_large or seconds <= CHUNK_S:
                raise
        half_s = seconds / 2
        return [*await self.rows_over(question, end - half_s, half_s), *await self.rows_over(question, end, half_s)]

    async def interval_s(self, instances: frozenset[str]) -> float:
        """How often the server scrapes these targets: the longest of them, else its default, else ``DEFAULT_INTERVAL_S``."""
        try:
            targets = (await self._get("/api/v1/targets?state=active"))["data"]["activeTargets"]
            found = [_stated(t) for t in targets if t["labels"].get("instance") in instances]
            if known := [s for s in found if s]:
                return max(known)
            text = str((await self._get("/api/v1/status/config"))["data"]["yaml"])
            stated = re.search(r"^ +scrape_interval: (\S+)$", text, re.M)
            return (_seconds(stated[1]) if stated else None) or DEFAULT_INTERVAL_S
        except (AskError, KeyError, TypeError, AttributeError):
            return DEFAULT_INTERVAL_S

    async def read(self, selector: str, kinds: Mapping[str, Kind], start: float, end: float) -> Read:
        """Every sample of ``kinds``, and ``up``, that ``selector`` matches, after ``start`` up to ``end``. Raises AskError."""
        names = names_matching(kinds)
        found = Read()
        await self._read(f'{{__name__=~"{names}|up",{selector}}}', kinds, start, end, found)
        return found

    async def _read(self, matching: str, kinds: Mapping[str, Kind], start: float, end: float, found: Read) -> None:
        try:
            async with self._gate:
                rows = await self.rows(f"{matching}[{max(1, round(1_000 * (end - start)))}ms]", end)
        except AskError as error:
            if not error.too_large or end - start <= LEAST_CHUNK_S:
                raise
            middle = (start + end) / 2
            await self._read(matching, kinds, start, middle, found)
            await self._read(matching, kinds, middle, end, found)
            return
        for row in rows:
            _take(row, kinds, start, found)
        found.pages = without_ends(found.pages)

    async def _get(self, path: str) -> Any:
        try:
            fetched = await fetch(self._client, self._url + path, self._headers, DEADLINE_S, MAX_ANSWER_BYTES)
            return json.loads(fetched.body)
        except FetchError as error:
            large = error.reason in (Reason.TOO_LARGE, Reason.TIMEOUT) or error.status in _TOO_MUCH
            raise AskError(f"{self._url}: {_why(error)}", large) from error
        except (ValueError, RecursionError) as error:
            raise AskError(f"{self._url}: the answer is no JSON; is this the address of a Prometheus server?") from error


def _stated(target: Mapping[str, Any]) -> float | None:
    """How often a target is scraped: Prometheus says so, VictoriaMetrics has it among the labels of before relabelling."""
    return _seconds(target.get("scrapeInterval") or target.get("discoveredLabels", {}).get("__scrape_interval__"))


_SILENT = {
    Reason.REFUSED: "nothing listens there; is it the server's address, as reached from here?",
    Reason.CONNECTION: "it cannot be reached; is it the server's address, as reached from here?",
    Reason.TIMEOUT: f"no complete answer within {DEADLINE_S:g} s",
}
_DENIED = (
    "the credential is not accepted; check the file that --auth names, or name one: "
    "--auth bearer_file=FILE, basic_file=FILE or headers_file=FILE"
)


def _why(error: FetchError) -> str:
    if error.status in (401, 403):
        return f"HTTP {error.status}: {_DENIED}"
    if error.status is None and error.reason in _SILENT:
        return _SILENT[error.reason]
    return error.detail if error.is_ours else error.code + _said(error.body)


def _take(row: Mapping[str, Any], kinds: Mapping[str, Kind], start: float, found: Read) -> None:
    labels = {str(k): str(v) for k, v in row["metric"].items()}
    is_up = labels.get("__name__") == "up"
    key = None if is_up else key_of(labels, kinds)
    if key is None and not is_up:
        return
    for at, value in points_of(row):
        if at <= start:
            continue  # of the chunk before: whether the left end belongs to a range differs between versions
        if key is None:
            found.up[at] = value
        else:
            found.pages.setdefault(at, []).append((key, value))


def _seconds(text: object) -> float | None:
    """A duration as Prometheus writes it; None where it is none."""
    match = _DURATION.fullmatch(str(text))
    if match is None or not any(match.groups()):
        return None
    hours, minutes, seconds, thousandths = (float(part or 0) for part in match.groups())
    return 3_600 * hours + 60 * minutes + seconds + thousandths / 1_000 or None


def _said(body: bytes) -> str:
    """What an answer that is not 200 says, where it says it as Prometheus does."""
    try:
        return f": {str(json.loads(body)['error'])[:200]}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
