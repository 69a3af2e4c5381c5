"""SGLang's router (`sglang-router`): admission by membership of its list of workers.

Seen on sglang-router 0.3.2 and relied on here:

* Removals and additions are accepted with 202 and done later (20 ms and 140 ms). A worker is not in the list until its addition
  is done; before, and after it has failed, only `GET /workers/ID` tells of it, in `job_status`.
* The router tries an addition of a dead worker until its `--worker-startup-timeout-secs` is over, which is half an hour unless it
  is set, and a second addition of the same URL begins a second job beside it. So our last job is noted, and waited for.
* IDs are new with each addition; a worker is known by its URL, to the letter.
* `metadata` in the list is labels and what the engine told of itself in one. A label beats the engine, so what the engine tells
  is not sent back: it would stay although the engine changed.
* Under `round_robin` priority and cost do not change the split, so there are no weights. `load` stays 0 while a stream runs.
* Health thresholds and keys given with an addition are in no answer: a worker that was added with any gets the router's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators.calls import CallError, excerpt
from tailkeeper_watchdog.actuators.contract import Actuator, ErrorKind
from tailkeeper_watchdog.actuators.http_calls import JsonHttp
from tailkeeper_watchdog.actuators.membership import LIST_LIMIT_BYTES, MembershipActuator, Worker, rows_of, text_of
from tailkeeper_watchdog.actuators.removed_workers import RemovedWorkers
from tailkeeper_watchdog.actuators.replicas import replicated
from tailkeeper_watchdog.gateways import Gateway, SglangRouterGateway
from tailkeeper_watchdog.model import Knob

KIND = "sglang_router"
WHY_NOT = {
    Knob.WEIGHT: "sglang-router has no weights: priority and cost do not change how it splits traffic, so a worker is in or out",
}
KEPT = (
    "worker_type", "bootstrap_port", "tokenizer_path", "reasoning_parser", "tool_parser", "chat_template", "disable_health_check",
)  # fmt: skip
"""Fields that the list and an addition call by the same name."""
OWN_WORDS = frozenset(
    {
        "model_path", "served_model_name", "tp_size", "dp_size", "version", "load_balance_method", "disaggregation_mode",
        "max_total_tokens", "max_prefill_tokens", "max_running_requests", "max_num_reqs", "model_type", "architectures",
        "is_generation", "is_embedding", "weight_version",
    }
)  # fmt: skip
"""Keys of ``metadata`` that an engine tells of itself."""
NUMBERS: Mapping[str, float] = {"priority": 50, "cost": 1.0}
"""What an addition may set, with the router's default; it is in ``metadata`` too where somebody has set it."""
UNKNOWN_MODEL = "unknown"
_RANK = re.compile(r"@\d+$")
_NO_WAY_BACK = "it is one rank of a data-parallel worker (URL@RANK), which cannot be added back alone, so it is never removed"


class SglangRouter:
    """Satisfies ``Router``."""

    def __init__(self, url: str, auth: Auth) -> None:
        self._http = JsonHttp(url, auth, LIST_LIMIT_BYTES)

    async def workers(self) -> Mapping[str, Worker]:
        return await (await self._http.call("GET", "/workers")).checked().parsed(parse_workers)

    async def remove(self, worker: Worker) -> None:
        answer = await self._http.call("DELETE", f"/workers/{quote(worker.id, safe='')}")
        if answer.status != 404:  # 404: it is gone already, which is all that was wanted
            answer.checked()

    async def add(self, document: Mapping[str, Any]) -> str:
        answer = (await self._http.call("POST", "/workers", document)).checked().json()
        job = answer.get("worker_id") if isinstance(answer, dict) else None
        if not isinstance(job, str) or not job:
            raise CallError(ErrorKind.PROTOCOL, "an addition was accepted without a worker_id, so it cannot be followed")
        return job

    async def adding(self, job: str) -> bool:
        answer = await self._http.call("GET", f"/workers/{quote(job, safe='')}")
        if answer.status == 404:
            return False
        document = answer.checked().json()
        status = document.get("job_status") if isinstance(document, dict) else None
        if not isinstance(status, dict):
            return False
        if status.get("status") == "failed":
            words = excerpt(str(status.get("message")))
            raise CallError(ErrorKind.UNREACHABLE, f"the router cannot reach the worker, so it stays out: {words}")
        return True

    async def close(self) -> None:
        await self._http.close()


def parse_workers(answer: object) -> Mapping[str, Worker]:
    """By URL. Raises CallError(PROTOCOL)."""
    return {row["url"]: _worker(row) for row in rows_of(answer)}


def _worker(row: Mapping[str, Any]) -> Worker:
    worker_id = text_of(row, "id")
    if not worker_id:
        raise CallError(ErrorKind.PROTOCOL, "the list of workers has a row without `id`")
    cannot = _NO_WAY_BACK if _RANK.search(row["url"]) else ""
    kind, model = text_of(row, "worker_type"), text_of(row, "model_id")
    return Worker(row["url"], worker_id, kind, model, row["is_healthy"], document_of(row), cannot)


def document_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """What adds the worker of a row back as it is. Pure. Raises CallError(PROTOCOL)."""
    metadata = row.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise CallError(ErrorKind.PROTOCOL, "the list of workers has metadata that is no object")
    document: dict[str, Any] = {"url": row["url"], **{key: row[key] for key in KEPT if row.get(key) is not None}}
    if row.get("runtime_type") is not None:
        document["runtime"] = row["runtime_type"]  # the one field that the list calls otherwise
    for key, default in NUMBERS.items():
        if key in metadata or row.get(key, default) != default:
            document[key] = row.get(key, default)
    if labels := {key: value for key, value in metadata.items() if key not in OWN_WORDS and key not in NUMBERS}:
        document["labels"] = labels
    told = (UNKNOWN_MODEL, "", metadata.get("served_model_name"), metadata.get("model_path"))
    if (model := text_of(row, "model_id")) not in told:
        document["model_id"] = model  # somebody has set it; what the engine calls its model it will say again
    return document


def _one(name: str, url: str, auth: Auth, removed: RemovedWorkers) -> Actuator:
    return MembershipActuator(name, KIND, url, SglangRouter(url, auth), removed, WHY_NOT)


def create(settings: Gateway, looks_only: bool = False) -> Actuator:
    """Raises TypeError for another gateway's settings, ValueError where nobody says where removed workers are noted."""
    if not isinstance(settings, SglangRouterGateway):
        raise TypeError(f"{KIND} cannot be made from {type(settings).__name__}")
    if settings.removed_file is None:
        raise ValueError(f"gateway {settings.name}: needs removed_file, where the workers that are taken out are noted")
    one = partial(_one, auth=settings.auth, removed=RemovedWorkers(settings.removed_file, looks_only))
    return replicated(settings.name, (settings.url, *settings.replicas), one)
