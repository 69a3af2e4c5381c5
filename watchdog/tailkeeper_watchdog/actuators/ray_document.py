"""The document of Ray Serve: what it says of one deployment, and the whole of it with one setting changed. Pure.

``GET /api/serve/applications/`` tells what is deployed and how it does; ``PUT`` of the same address takes the whole declared
configuration, and removes every application that is not in it. So what is put is made from all that was told. Seen with 2.60.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from tailkeeper_watchdog.actuators.calls import CallError, excerpt
from tailkeeper_watchdog.actuators.contract import ErrorKind, ServerState
from tailkeeper_watchdog.model import Knob, KnobValue

Document = Mapping[str, Any]
WAIT_KEY = "batch_wait_timeout_s"
BATCH_KEY = "max_batch_size"
WINDOW_LIMIT_S = 3_600.0
"""No window is longer; beyond it a number is a mistake of units."""
MOST_REPLICAS = 10_000
TOP_KEYS = ("proxy_location", "http_options", "grpc_options", "target_capacity")
"""What is declared beside the applications, where it is told."""
SCALING = frozenset({"UPSCALING", "DOWNSCALING"})
ALIVE = frozenset({"RUNNING", "UPDATING", "RECOVERING", "PENDING_MIGRATION"})
"""States of a replica that has started; one that takes other settings is UPDATING meanwhile."""
FAILED = frozenset({"UNHEALTHY", "DEPLOY_FAILED"})
SETTLED = SCALING | FAILED | {"HEALTHY"}
DEPLOYING, DELETING = "DEPLOYING", "DELETING"

WHY_NOT: Mapping[Knob, str] = {
    Knob.WEIGHT: "Ray Serve spreads requests over the replicas of a deployment by itself",
    Knob.ADMISSION: "Ray Serve can only remove an application, and then requests fail: that is no drain",
    Knob.CONCURRENCY_LIMIT: "Ray Serve's max_ongoing_requests holds for each replica, and is not the limit of a backend",
    Knob.CACHE_MODE: "Ray Serve keeps no answers",
    Knob.DEGRADE_LEVEL: "Ray Serve knows no kinds of work to shed",
    Knob.TAINT: "Ray Serve knows nothing of cluster nodes",
    Knob.ANNOTATION: "Ray Serve keeps no notes",
}
"""Every other knob can be turned."""
BY_CODE = "it was deployed by code (serve.run) and not through the REST API, so there is no document of it to change"


class Place:
    """One deployment in a document. Raises CallError: NOT_FOUND where it is not there, PROTOCOL where it cannot be read."""

    def __init__(self, document: Document, server: str) -> None:
        self.name, _, self.deployment = server.partition("/")
        self.app = _child(applications(document), self.name)
        self.details = _child(_child(self.app, "deployments"), self.deployment)
        self.effective = _child(self.details, "deployment_config")
        self.declared = _declared(self.app.get("deployed_app_config"), self.deployment)

    @property
    def status(self) -> str:
        return str(self.details.get("status"))

    @property
    def failed(self) -> str:
        """Why it has failed, by Ray's own words; empty where it has not."""
        for of in (self.details, self.app):
            if str(of.get("status")) in FAILED:
                return excerpt(f"{of.get('status')}: {of.get('message') or 'no message'}")
        return ""

    def state(self) -> ServerState:
        values: dict[Knob, KnobValue] = {}
        cannot: dict[Knob, str] = {}
        for knob in (Knob.BATCH_WINDOW_S, Knob.REPLICAS):
            answer = self._setting(knob)
            if isinstance(answer, str):
                cannot[knob] = answer
            else:
                values[knob] = answer
        return ServerState(values, self.runs, doubt=self._doubt(), cannot=cannot)

    def _setting(self, knob: Knob) -> float | str:
        """The declared value, or why there is none that can be changed."""
        if self.app.get("deployed_app_config") is None:
            return BY_CODE
        return self._window() if knob is Knob.BATCH_WINDOW_S else self._replicas()

    def _window(self) -> float | str:
        settings = (self.declared or {}).get("user_config")
        if not isinstance(settings, dict) or WAIT_KEY not in settings:
            return f"its user_config has no {WAIT_KEY}: put it there, and have reconfigure() set it on the batch method"
        batch = settings.get(BATCH_KEY, 1)
        if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
            return (
                f"its user_config.{BATCH_KEY} is {excerpt(repr(batch))}, with which requests hang or fail: put that right first"
            )
        wait = settings[WAIT_KEY]
        if not _is_seconds(wait):
            return f"its user_config.{WAIT_KEY} is {excerpt(repr(wait))} and no number of seconds: put that right first"
        return float(wait)

    def _replicas(self) -> float | str:
        count = (self.declared or {}).get("num_replicas")
        if self.effective.get("autoscaling_config") is not None or count == "auto":
            return "Ray's own autoscaler sets the number (autoscaling_config), and two hands on it would fight"
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            return "its num_replicas is not in the deployed document: put it there"
        return float(count)

    @property
    def runs(self) -> bool:
        """Whether some replica has started; True where nothing is told of replicas."""
        replicas = self.details.get("replicas")
        if not isinstance(replicas, list):
            return True
        return any(isinstance(replica, dict) and str(replica.get("state")) in ALIVE for replica in replicas)

    def _doubt(self) -> str:
        """Empty where what is declared is in force. Replicas that are still to come or go are on their way, and no doubt."""
        if self.failed:
            return f"the deployment has failed: {self.failed}"
        if self.status != "HEALTHY" and self.status not in SCALING:
            return f"the deployment is {self.status}"
        settings = (self.declared or {}).get("user_config")
        if settings is not None and self.effective.get("user_config") != settings:
            return "the declared user_config is not in force yet"
        target, count = self.details.get("target_num_replicas"), self._replicas()
        if isinstance(count, float) and target is not None and target != count:
            return "the declared num_replicas is not in force yet"
        return ""


def applications(document: Document) -> dict[str, Any]:
    """By their names. Raises CallError(PROTOCOL) for what is no document of Ray Serve."""
    apps = document.get("applications")
    if not isinstance(apps, dict) or not all(isinstance(app, dict) for app in apps.values()):
        raise CallError(ErrorKind.PROTOCOL, "the answer tells no applications, so it is not Ray Serve's")
    return apps


def _child(parent: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Raises CallError: NOT_FOUND where there is nothing, PROTOCOL where it is no object."""
    if key not in parent:
        raise CallError(ErrorKind.NOT_FOUND, f"Ray Serve has no {excerpt(key)!r} there; a server is APPLICATION/DEPLOYMENT")
    if not isinstance(parent[key], dict):
        raise CallError(ErrorKind.PROTOCOL, f"{excerpt(key)!r} must be an object, not {type(parent[key]).__name__}")
    return dict(parent[key])


def _declared(config: object, deployment: str) -> dict[str, Any] | None:
    """The deployment in an application's declared configuration; None where it is left to the code."""
    listed = config.get("deployments") if isinstance(config, dict) else None
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, dict) and entry.get("name") == deployment:
            return entry
    return None


def _is_seconds(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= WINDOW_LIMIT_S


def _is_count(value: object) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 1 <= value <= MOST_REPLICAS and value == int(value)  # type: ignore[operator, call-overload]


_RULES: Mapping[Knob, tuple[Callable[[object], bool], str]] = {
    Knob.BATCH_WINDOW_S: (_is_seconds, f"seconds from 0 to {WINDOW_LIMIT_S:g}"),
    Knob.REPLICAS: (_is_count, f"a whole number from 1 to {MOST_REPLICAS}"),
}


def checked(values: Mapping[Knob, KnobValue]) -> Mapping[Knob, KnobValue]:
    """``values`` as Ray takes them. Raises CallError(REFUSED): Ray takes whatever it is told, and then requests hang."""
    for knob, value in values.items():
        if knob in WHY_NOT:
            raise CallError(ErrorKind.REFUSED, WHY_NOT[knob])
        holds, allowed = _RULES[knob]
        if not holds(value):
            raise CallError(ErrorKind.REFUSED, f"{knob.value}: {excerpt(repr(value))} is refused; it must be {allowed}")
    return {knob: int(value) if knob is Knob.REPLICAS else float(value) for knob, value in values.items()}


def declared_with(document: Document, server: str, values: Mapping[Knob, KnobValue]) -> dict[str, Any]:
    """The whole document to put, with ``values`` of one deployment in it and everything else as it was told.

    An application that somebody is removing is left out: put once more it would come back. Raises CallError(REFUSED) where it is
    the server's own, or where the deployment is not declared any more.
    """
    told = (app.get("deployed_app_config") for app in applications(document).values() if app.get("status") != DELETING)
    whole: dict[str, Any] = {key: document[key] for key in TOP_KEYS if document.get(key) is not None}
    whole["applications"] = deepcopy([config for config in told if config is not None])
    name, _, deployment = server.partition("/")
    entry = _declared(next((config for config in whole["applications"] if _is_of(config, name)), None), deployment)
    if entry is None or (Knob.BATCH_WINDOW_S in values and not isinstance(entry.get("user_config"), dict)):
        raise CallError(ErrorKind.REFUSED, "it is being removed, or not declared as it was any more, so nothing was sent")
    if Knob.BATCH_WINDOW_S in values:
        entry["user_config"][WAIT_KEY] = values[Knob.BATCH_WINDOW_S]
    if Knob.REPLICAS in values:
        entry["num_replicas"] = values[Knob.REPLICAS]
    return whole


def deploying(document: Document) -> str:
    """The applications that somebody is deploying right now, for people; empty where there are none. To scale is no deploy."""
    return ", ".join(sorted(excerpt(name) for name, app in applications(document).items() if _is_deploying(app)))


def _is_deploying(app: Mapping[str, Any]) -> bool:
    deployments = app.get("deployments")
    found = deployments.values() if isinstance(deployments, dict) else ()
    settled = bool(found) and all(isinstance(each, dict) and str(each.get("status")) in SETTLED for each in found)
    return app.get("status") == DEPLOYING and not settled


def not_told(document: Document) -> str:
    """The declared applications whose configuration is not told, for people: a put without it would remove them."""
    declared = {
        name: app
        for name, app in applications(document).items()
        if app.get("source") == "declarative" and app.get("status") != DELETING
    }
    return ", ".join(sorted(excerpt(name) for name, app in declared.items() if not _is_of(app.get("deployed_app_config"), name)))


def _is_of(config: object, name: str) -> bool:
    return isinstance(config, dict) and config.get("name") == name
