"""The gateway's servers and its admin API: the webhook contract, word for word.

`GET /{server}` → `{"weight": 0..1, "admission": "serve|drain"}`; `PUT /{server}` takes the same document. An unknown server is
404, a document that is wrong 400 with the reason, a knob of the contract this gateway does not have 422. Besides, `GET /`
lists all servers with what they have in flight. No proxying here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

from tailkeeper_demo.http1 import Request
from tailkeeper_demo.http_server import Handler, Reply
from tailkeeper_demo.wrr import WeightedRoundRobin

NOT_ENFORCEABLE = frozenset({"concurrency_limit", "batch_window_s", "cache_mode", "degrade_level"})
"""Knobs the contract allows a gateway to have, and this one has not."""

Admission = Literal["serve", "drain"]


class DocumentError(ValueError):
    """A document that cannot be applied; `status` is 400 (wrong) or 422 (not enforceable here)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True, eq=False)
class Server:
    """One server behind the gateway. The admin API writes weight and admission, the proxy its counters."""

    name: str
    host: str
    port: int
    weight: float = 1.0
    admission: Admission = "serve"
    in_flight: int = 0
    requests: int = 0
    connect_failures: int = 0

    def document(self) -> dict[str, object]:
        """What `GET /{server}` says."""
        return {"weight": self.weight, "admission": self.admission}


def parse_document(body: bytes) -> tuple[float, Admission]:
    """Weight and admission out of a PUT body. Raises `DocumentError`."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise DocumentError(400, f"the body is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise DocumentError(400, 'the body must be {"weight": 0..1, "admission": "serve|drain"}')
    for key in sorted(set(document) - {"weight", "admission"}):
        known = key in NOT_ENFORCEABLE
        raise DocumentError(422 if known else 400, f"{key}: {'this gateway has no such knob' if known else 'unknown key'}")
    return _weight(document.get("weight")), _admission(document.get("admission"))


def _weight(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not 0 <= value <= 1:
        raise DocumentError(400, f"weight: {value!r} is not a number between 0 and 1")
    return float(value)


def _admission(value: object) -> Admission:
    if value == "serve":
        return "serve"
    if value == "drain":
        return "drain"
    raise DocumentError(400, f'admission: {value!r} is neither "serve" nor "drain"')


class Servers:
    """All servers, and whose turn it is."""

    def __init__(self, servers: Iterable[Server]) -> None:
        self._by_name = {server.name: server for server in servers}
        self._turns = WeightedRoundRobin()
        for server in self._by_name.values():
            self._turns.set(server.name, server.weight)

    def get(self, name: str) -> Server | None:
        return self._by_name.get(name)

    def apply(self, server: Server, weight: float, admission: Admission) -> None:
        """Set both knobs of one server; takes effect with the next request."""
        server.weight, server.admission = weight, admission
        self._turns.set(server.name, weight if admission == "serve" else 0.0)

    def pick(self, excluded: frozenset[str]) -> Server | None:
        """The server of the next request; None when nobody admits any."""
        name = self._turns.pick(excluded)
        return None if name is None else self._by_name[name]

    def overview(self) -> dict[str, object]:
        """All servers with their counters."""
        return {"servers": {name: _row(server) for name, server in self._by_name.items()}}


def _row(server: Server) -> dict[str, object]:
    counters = {"in_flight": server.in_flight, "requests": server.requests, "connect_failures": server.connect_failures}
    return server.document() | {"url": f"http://{server.host}:{server.port}"} | counters


def handler(servers: Servers) -> Handler:
    """The admin API over these servers."""

    def answer(request: Request, reply: Reply) -> None:
        name = unquote(request.path.lstrip("/"))
        if not name and request.method == "GET":
            reply.send_json(200, servers.overview())
            return
        server = servers.get(name)
        if server is None:
            reply.send_json(404, {"error": f"server {name!r} is unknown"})
        elif request.method == "GET":
            reply.send_json(200, server.document())
        elif request.method == "PUT":
            _put(servers, server, request.body, reply)
        else:
            reply.send_json(405, {"error": "use GET or PUT"})

    return answer


def _put(servers: Servers, server: Server, body: bytes, reply: Reply) -> None:
    try:
        weight, admission = parse_document(body)
    except DocumentError as error:
        reply.send_json(error.status, {"error": str(error)})
        return
    servers.apply(server, weight, admission)
    reply.send_json(200, server.document())
