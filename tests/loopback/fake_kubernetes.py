"""A FAKE Kubernetes API: the LIST of pods, built from the documented shapes, not a real server. Paging, refusals, expiry.

Documented: ``GET /api/v1/namespaces/{namespace}/pods?labelSelector=&limit=&continue=`` answers a PodList whose
``metadata.continue`` is the token of the next page; a token that is too old is 410 with reason ``Expired``; errors are Status
objects; a pod that is being deleted has ``metadata.deletionTimestamp``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.unit.loopback import Handler, Seen, Server, reply, serving

TOKEN = "fake-token"


def pod(name: str, ip: str | None = "10.1.0.1", phase: str = "Running", **about: Any) -> dict[str, Any]:
    """A pod as the API writes it, as far as it matters here. ``about`` goes into its metadata."""
    return {
        "metadata": {"name": name, "namespace": "llm", "labels": {"app": "vllm"}, **about},
        "spec": {"nodeName": "node-1"},
        # Containers are not ready on purpose: that must not matter.
        "status": {"phase": phase, "conditions": [{"type": "Ready", "status": "False"}], **({"podIP": ip} if ip else {})},
    }


def status(code: int, reason: str, message: str = "") -> Handler:
    """A Status object."""
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message}
    return reply(code, body, "content-type: application/json")


@dataclass
class FakeKubernetes:
    """The knobs. ``page_size`` is the server's own limit; ``expires`` counts continue tokens that will be refused."""

    pods: list[dict[str, Any]] = field(default_factory=list)
    page_size: int = 2
    expires: int = 0
    answer: Handler | None = None
    server: Server = field(default_factory=lambda: Server(""))

    async def handle(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        await (self.answer or self._list(seen))(seen, writer)

    def _list(self, seen: Seen) -> Handler:
        parts = urlsplit(seen.path)
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if seen.headers.get("authorization") != f"Bearer {TOKEN}":
            return status(401, "Unauthorized")
        if parts.path != "/api/v1/namespaces/llm/pods" or asked.get("labelSelector") != "app=vllm":
            return status(404, "NotFound", f"unexpected {seen.path}")
        start = int(asked.get("continue", "0"))
        if start and self.expires:
            self.expires -= 1
            return status(410, "Expired", "The provided continue parameter is too old")
        end = start + min(self.page_size, int(asked["limit"]))
        more = {"continue": str(end), "remainingItemCount": len(self.pods) - end} if end < len(self.pods) else {}
        page = {
            "kind": "PodList",
            "apiVersion": "v1",
            "metadata": {"resourceVersion": "7", **more},
            "items": self.pods[start:end],
        }
        return reply(200, page, "content-type: application/json")

    def kubeconfig(self, folder: Path) -> Path:
        """A kubeconfig that leads here."""
        file = folder / "kubeconfig"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": self.server.url}}],
            "users": [{"name": "u", "user": {"token": TOKEN}}],
        }
        file.write_text(yaml.safe_dump(document))
        return file


@asynccontextmanager
async def fake_kubernetes(*pods: dict[str, Any], **knobs: Any) -> AsyncIterator[FakeKubernetes]:
    fake = FakeKubernetes(list(pods), **knobs)
    async with serving(fake.handle) as server:
        fake.server = server
        yield fake
