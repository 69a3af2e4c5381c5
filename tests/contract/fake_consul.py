"""A fake Consul for tests: its key-value store, sessions and ACLs as its HTTP API documentation and source describe them.

There was no Consul to be had, so this is what the actuator was held against. Time does not pass by itself: a test lets a session
end with ``end``. Its faults are switched on by name, one at a time.
"""

from __future__ import annotations

import base64
import json
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.e2e.tiny_servers import answer, body_of, serving

Answer = tuple[int, Any]
KV = "/v1/kv/"


@dataclass
class Key:
    value: bytes
    create_index: int
    modify_index: int
    lock_index: int = 0
    flags: int = 0
    session: str = ""


@dataclass
class FakeConsul:
    """``keys`` is the truth. ``history`` has the keys after each change that came over HTTP, ``asked`` every request."""

    url: str = ""
    tokens: Mapping[str, str] = field(default_factory=dict)
    """``read``, ``write`` or ``none`` by token; empty: there are no ACLs."""
    lying: bool = False
    """Answers true to a PUT and does nothing."""
    delay_s: float = 0.0
    failing: str = ""
    """A part of `METHOD path?query` that is answered with 500 `No cluster leader`."""
    keys: dict[str, Key] = field(default_factory=dict)
    sessions: dict[str, dict[str, Any]] = field(default_factory=dict)
    renewed: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    history: list[dict[str, str]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    _index: int = 10
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def by_hand(self, key: str, value: str) -> None:
        """As `consul kv put KEY VALUE`: no check, and the flags are gone."""
        with self._lock:
            self._put(key, value.encode(), 0)

    def text(self, key: str, otherwise: str) -> str:
        return self.keys[key].value.decode() if key in self.keys else otherwise

    def end(self, session: str) -> None:
        """The TTL of a session has run out: what it held is deleted or released, as it was made."""
        with self._lock:
            behaviour = self.sessions.pop(session)["Behavior"]
            for name in [name for name, key in self.keys.items() if key.session == session]:
                if behaviour == "delete":
                    del self.keys[name]
                else:
                    self.keys[name].session = ""

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        with self._lock:
            self.asked.append(f"{handler.command} {handler.path}")
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        time.sleep(self.delay_s)
        body = body_of(handler)
        with self._lock:
            status, document, more = self._answer(handler, body)
            self.at_once -= 1
        text = b"" if document is None else (document.encode() if isinstance(document, str) else json.dumps(document).encode())
        answer(handler, status, text, Content_Type="application/json", **more)

    def _answer(self, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, Any, dict[str, str]]:
        if self.failing and self.failing in f"{handler.command} {handler.path}":
            return 500, "No cluster leader", {}
        parts = urlsplit(handler.path)
        query = {key: values[-1] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        rights = self._rights(handler)
        if rights == "unknown":
            return 403, "ACL not found", {}
        if parts.path.startswith("/v1/session/"):
            return (403, "Permission denied", {}) if rights != "write" else (*self._session(parts.path, body), {})
        if not parts.path.startswith(KV):
            return 404, "Invalid URL path: not a recognized HTTP API endpoint", {}
        key = unquote(parts.path.removeprefix(KV))
        if handler.command == "GET":
            return self._get(key, query, rights)
        if rights != "write":
            return 403, f"Permission denied: token with AccessorID 'x' lacks permission 'key:write' on \"{key}\"", {}
        return (*self._change(handler.command, key, query, body), {})

    def _rights(self, handler: BaseHTTPRequestHandler) -> str:
        if not self.tokens:
            return "write"
        bearer = (handler.headers.get("Authorization") or "").removeprefix("Bearer ")
        return self.tokens.get(handler.headers.get("X-Consul-Token") or bearer, "unknown")

    def _get(self, key: str, query: Mapping[str, str], rights: str) -> tuple[int, Any, dict[str, str]]:
        found = {name: k for name, k in self.keys.items() if (name.startswith(key) if "recurse" in query else name == key)}
        if rights == "none":  # a list is thinned out, and says so in a header only
            return 404, None, {"X_Consul_Results_Filtered_By_ACLs": "true"} if found else {}
        return (200, [self._row(n, k) for n, k in sorted(found.items())], {}) if found else (404, None, {})

    def _row(self, name: str, key: Key) -> dict[str, Any]:
        row = {
            "LockIndex": key.lock_index,
            "Key": name,
            "Flags": key.flags,
            "Value": base64.b64encode(key.value).decode() or None,
        }
        row |= {"CreateIndex": key.create_index, "ModifyIndex": key.modify_index}
        return row | ({"Session": key.session} if key.session else {})

    def _change(self, method: str, key: str, query: Mapping[str, str], body: bytes) -> Answer:
        if len(query.keys() & {"cas", "acquire", "release"}) > 1:
            return 400, "Conflicting flags"
        if self.lying:
            return 200, True
        done = self._delete(key, query) if method == "DELETE" else self._written(key, query, body)
        if isinstance(done, bool):
            if done:
                self.history.append({name: k.value.decode() for name, k in self.keys.items()})
            return 200, done
        return done

    def _delete(self, key: str, query: Mapping[str, str]) -> bool:
        there = self.keys.get(key)
        if "cas" in query and there is not None and there.modify_index != int(query["cas"]):
            return False
        self.keys.pop(key, None)
        return True

    def _written(self, key: str, query: Mapping[str, str], body: bytes) -> bool | Answer:
        there, flags = self.keys.get(key), int(query.get("flags", 0))
        if "cas" in query:
            if (there.modify_index if there else 0) != int(query["cas"]):
                return False
            self._put(key, body, flags)
            return True
        if session := query.get("acquire"):
            if session not in self.sessions:
                return 500, f'rpc error making call: invalid session "{session}"'
            if there is not None and there.session not in ("", session):
                return False
            self._put(key, body, flags)
            self.keys[key].session = session
            self.keys[key].lock_index += 1
            return True
        self._put(key, body, flags)
        return True

    def _put(self, key: str, value: bytes, flags: int) -> None:
        self._index += 1
        there = self.keys.get(key)
        if there is None:
            self.keys[key] = Key(value, self._index, self._index, flags=flags)
        elif (there.value, there.flags) != (value, flags):
            there.value, there.flags, there.modify_index = value, flags, self._index

    def _session(self, path: str, body: bytes) -> Answer:
        if path == "/v1/session/create":
            made = {"Behavior": "release", "LockDelay": "15s"} | json.loads(body or b"{}")
            seconds = float(made["TTL"].removesuffix("s"))
            if not 10 <= seconds <= 86_400:
                return 500, f"Invalid Session TTL '{seconds}', must be between [10s=24h0m0s]"
            session = str(uuid.uuid4())
            self.sessions[session] = made
            return 200, {"ID": session}
        session = path.rpartition("/")[2]
        if session not in self.sessions:
            return 404, f"Session id '{session}' not found"
        self.renewed.append(session)
        return 200, [{"ID": session, **self.sessions[session]}]


@contextmanager
def fake_consul(tokens: Mapping[str, str] | None = None) -> Iterator[FakeConsul]:
    consul = FakeConsul(tokens=tokens or {})
    with serving(consul.handle) as port:
        consul.url = f"http://127.0.0.1:{port}"
        yield consul
