"""vLLM's router (`vllm-router`): admission by membership of its list of workers.

Seen on vllm-router 0.1.17 and relied on here:

* A removal is done when it is answered, and answered 200 also for a URL that was never there: the list is read first.
* An addition is done when it is answered. One of a worker that does not answer takes up to the router's
  `--worker-startup-timeout-secs`; our deadline ends the call before, and the router then gives it up.
* It keeps nothing of a worker but its URL: priority, cost, labels and the model of an addition are ignored. The key with which
  it calls workers is its own (`--api-key`), and is used for a worker that was added back as well.
* It cannot add a prefill or decode worker, so such a worker is not removed.
* `--api-key` does not guard its list of workers: anybody who reaches it can remove one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.contract import Actuator, ErrorKind
from tailkeeper_watchdog.actuators.http_calls import JsonHttp
from tailkeeper_watchdog.actuators.membership import LIST_LIMIT_BYTES, MembershipActuator, Worker, rows_of, text_of
from tailkeeper_watchdog.actuators.removed_workers import RemovedWorkers
from tailkeeper_watchdog.actuators.replicas import replicated
from tailkeeper_watchdog.gateways import Gateway, VllmRouterGateway
from tailkeeper_watchdog.model import Knob

KIND = "vllm_router"
WHY_NOT = {
    Knob.WEIGHT: "vllm-router has no weights: it ignores priority and cost, so a worker is in its list or it is not",
}
_REGULAR = "regular"
_NO_WAY_BACK = "vllm-router cannot add back a worker of type {}, so it is never removed"


class VllmRouter:
    """Satisfies ``Router``."""

    def __init__(self, url: str, auth: Auth) -> None:
        self._http = JsonHttp(url, auth, LIST_LIMIT_BYTES)

    async def workers(self) -> Mapping[str, Worker]:
        return await (await self._http.call("GET", "/workers")).checked().parsed(parse_workers)

    async def remove(self, worker: Worker) -> None:
        (await self._http.call("DELETE", f"/workers/{quote(worker.url, safe='')}")).checked()

    async def add(self, document: Mapping[str, Any]) -> str:
        answer = await self._http.call("POST", "/workers", document)
        # 400 is both what a worker that is there already and one that does not answer get; the list, not the words, says which.
        if answer.status == 400 and document["url"] not in await self.workers():
            raise CallError(ErrorKind.UNREACHABLE, f"the router cannot reach the worker, so it stays out: {answer.words()}")
        if answer.status != 400:
            answer.checked()
        return ""

    async def adding(self, job: str) -> bool:
        return False

    async def close(self) -> None:
        await self._http.close()


def parse_workers(answer: object) -> Mapping[str, Worker]:
    """By URL. Raises CallError(PROTOCOL)."""
    return {row["url"]: _worker(row) for row in rows_of(answer)}


def _worker(row: Mapping[str, Any]) -> Worker:
    kind = text_of(row, "worker_type")
    cannot = "" if kind == _REGULAR else _NO_WAY_BACK.format(kind or "unknown")
    return Worker(row["url"], row["url"], kind, text_of(row, "model_id"), row["is_healthy"], {"url": row["url"]}, cannot)


def _one(name: str, url: str, auth: Auth, removed: RemovedWorkers) -> Actuator:
    return MembershipActuator(name, KIND, url, VllmRouter(url, auth), removed, WHY_NOT)


def create(settings: Gateway, looks_only: bool = False) -> Actuator:
    """Raises TypeError for another gateway's settings, ValueError where nobody says where removed workers are noted."""
    if not isinstance(settings, VllmRouterGateway):
        raise TypeError(f"{KIND} cannot be made from {type(settings).__name__}")
    if settings.removed_file is None:
        raise ValueError(f"gateway {settings.name}: needs removed_file, where the workers that are taken out are noted")
    one = partial(_one, auth=settings.auth, removed=RemovedWorkers(settings.removed_file, looks_only))
    return replicated(settings.name, (settings.url, *settings.replicas), one)
