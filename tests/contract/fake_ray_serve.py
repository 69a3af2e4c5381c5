"""A small fake of Ray Serve's REST API at a dashboard, for tests: one document, read and put whole.

A faithful fake: Ray itself listens beyond loopback and takes ten thousand ports, so the tests do not run it. Its answers are
those of Ray 2.60 as captured; like Ray it takes whatever it is told, removes what a document leaves out, and gets there a
little later.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.e2e.tiny_servers import answer, body_of, serving

TOLD: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "fixtures" / "gateways" / "ray-serve-2.60.0-applications.json").read_text()
)
"""As told of one application with one deployment, LLM, that scales itself."""
PATH = "/api/serve/applications/"


def application(name: str, replicas: int | None = 2, source: str = "declarative", **user_config: Any) -> dict[str, Any]:
    """What is told of an application with the deployment LLM; without ``replicas`` it scales itself."""
    app: dict[str, Any] = deepcopy(TOLD["applications"]["app1"])
    app |= {"name": name, "source": source, "route_prefix": f"/{name}"}
    config, details = app["deployed_app_config"], app["deployments"]["LLM"]
    config |= {"name": name, "route_prefix": f"/{name}"}
    for deployment in (config["deployments"][0], details["deployment_config"]):
        deployment["user_config"] = {**deployment["user_config"], **user_config}
        if replicas is not None:
            deployment.pop("autoscaling_config")
            deployment["num_replicas"] = replicas
    if replicas is not None:
        details["target_num_replicas"] = replicas
    if source == "imperative":
        app["deployed_app_config"] = None
    return app


@dataclass
class FakeRayServe:
    """``told`` is the truth; ``puts`` every document that was put. ``reads_to_get_there``: how many reads a change takes."""

    told: dict[str, Any]
    token: str = ""
    lying: bool = False
    """Answers 200 to a put and does nothing."""
    fails: bool = False
    """A put that changes a deployment makes it UNHEALTHY, once it got there."""
    dies: bool = False
    """A put that changes a deployment ends its replicas, which do not start again before the next put."""
    reads_to_get_there: int = 1
    url: str = ""
    puts: list[dict[str, Any]] = field(default_factory=list)
    most_at_once: int = 0
    _at_once: int = 0
    _reads_left: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def details(self, app: str = "a") -> dict[str, Any]:
        found: dict[str, Any] = self.told["applications"][app]["deployments"]["LLM"]
        return found

    def declared(self, app: str = "a") -> dict[str, Any]:
        found: dict[str, Any] = self.told["applications"][app]["deployed_app_config"]["deployments"][0]
        return found

    def change(self, app: str, **user_config: Any) -> None:
        """Somebody else deploys it with other settings, and it is there."""
        for deployment in (self.declared(app), self.details(app)["deployment_config"]):
            deployment["user_config"] = {**deployment["user_config"], **user_config}

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            status, body = self._answer(handler, body_of(handler))
            self._at_once -= 1
        answer(handler, status, body, Content_Type="application/json; charset=utf-8")

    def _answer(self, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        if handler.path != PATH:
            return 404, b"404: Not Found"
        allowed = not self.token or handler.headers.get("Authorization") == f"Bearer {self.token}"
        if handler.command == "GET":
            self._get_there()
            return 200, json.dumps(self.told).encode()
        return self._put(json.loads(body)) if allowed else (403, b"Unauthorized: Invalid authentication token")

    def _put(self, document: dict[str, Any]) -> tuple[int, bytes]:
        self.puts.append(document)
        for number, app in enumerate(document["applications"]):
            if "import_path" not in app:
                return (
                    400,
                    f"1 validation error for ServeDeploySchema\napplications.{number}.import_path\n  Field required".encode(),
                )
        if self.lying:
            return 200, b""
        named = {app["name"]: app for app in document["applications"]}
        kept = {
            name: app
            for name, app in self.told["applications"].items()
            if app["source"] == "imperative" or name in named  # what was declared before and is not any more is removed
        }
        self.told["applications"] = kept
        for name, config in named.items():
            if kept[name]["deployed_app_config"] != config:
                kept[name] |= {"deployed_app_config": config, "status": "DEPLOYING"}
                kept[name]["deployments"]["LLM"] |= {"status": "UPDATING", "status_trigger": "CONFIG_UPDATE_STARTED"}
                for replica in kept[name]["deployments"]["LLM"]["replicas"]:
                    replica["state"] = "STARTING" if self.dies else "RUNNING"
        self._reads_left, self.dies = self.reads_to_get_there + (1_000 if self.dies else 0), False
        return 200, b""

    def _get_there(self) -> None:
        """What was put is in force, or has failed, some reads later."""
        self._reads_left -= 1
        if self._reads_left > 0:
            return
        for app in self.told["applications"].values():
            if app["status"] != "DEPLOYING":
                continue
            declared, details = app["deployed_app_config"]["deployments"][0], app["deployments"]["LLM"]
            details["deployment_config"] |= {"user_config": deepcopy(declared["user_config"])}
            if "num_replicas" in declared:
                details |= {"target_num_replicas": declared["num_replicas"]}
            if self.fails:
                self.fails = False
                app["status"] = "UNHEALTHY"
                details |= {"status": "UNHEALTHY", "message": "RuntimeError: reconfigure() raised\nTypeError: not a window"}
            else:
                app["status"] = "RUNNING"
                details |= {"status": "HEALTHY", "status_trigger": "CONFIG_UPDATE_COMPLETED", "message": ""}


@contextmanager
def fake_ray_serve(*apps: dict[str, Any]) -> Iterator[FakeRayServe]:
    ray = FakeRayServe({**deepcopy(TOLD), "applications": {app["name"]: app for app in apps}})
    with serving(ray.handle) as port:
        ray.url = f"http://127.0.0.1:{port}"
        yield ray
