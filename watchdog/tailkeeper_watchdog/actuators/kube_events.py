"""An Event beside what was changed in a cluster, for ``kubectl describe`` and for whoever collects events. Best effort.

Written after the change and beside the loop, over a connection of its own: an event that cannot be written fails no change and
delays none. The same event twice is one, because its name is made from what it tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

from tailkeeper_watchdog.actuators.kube_api import Ask, ConflictError, KubeApi, Resource
from tailkeeper_watchdog.actuators.kube_objects import Place, part
from tailkeeper_watchdog.actuators.kube_steps import WORKLOADS, found

EVENTS = Resource("", "v1", "events")
COMPONENT = "tailkeeper-watchdog"
MAX_MESSAGE_BYTES = 1_024
"""The API server refuses a longer one."""
_MAX_NAME_CHARS = 230
"""Of the object, in the event's name, which may have 253."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """What is told. ``reason`` is one word in CamelCase; ``key`` is the same for the same event."""

    reason: str
    message: str
    is_warning: bool
    at_unix_s: float
    annotations: Mapping[str, str]
    key: str


async def announce(api: KubeApi, place: Place, told: Announcement) -> bool:
    """Write the event; False where the object is gone, and there is nothing to write it at. Raises CallError."""
    kind, thing = await found(api, place)
    if thing is None:
        return False
    try:
        await api.call(Ask("create", EVENTS, place.namespace, body=event_of(place, kind, thing, told)))
    except ConflictError:
        return True  # it is there already
    return True


def event_of(place: Place, kind: str, thing: Mapping[str, Any], told: Announcement) -> dict[str, Any]:
    """The document of one event at ``thing``."""
    at = datetime.fromtimestamp(told.at_unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    about = part(thing, "metadata")
    group = WORKLOADS[kind][0] if kind in WORKLOADS else None
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{place.name[:_MAX_NAME_CHARS].rstrip('.-')}.{blake2b(told.key.encode(), digest_size=8).hexdigest()}",
            "namespace": place.namespace,
            "annotations": dict(told.annotations),
        },
        "involvedObject": {
            "apiVersion": "v1" if group is None else f"{group.group}/{group.version}",
            "kind": WORKLOADS[kind][1] if kind in WORKLOADS else "Pod",
            "name": place.name,
            "namespace": place.namespace,
            **{key: about[key] for key in ("uid", "resourceVersion") if about.get(key)},
        },
        "reason": told.reason,
        "message": _cut(told.message),
        "type": "Warning" if told.is_warning else "Normal",
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": COMPONENT,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


def _cut(text: str) -> str:
    return text.encode("utf-8", "replace")[:MAX_MESSAGE_BYTES].decode("utf-8", "ignore")
