"""What the containers of a running stack are: small, not root, with a root that nobody writes to. Run by compose_probe.py."""

from __future__ import annotations

import json
from typing import Any

from tests.e2e.compose_stack import compose, docker

LIMITS_MB = {"exporter": 60, "watchdog": 350}
"""Of what is installed, by service: an exporter is on every GPU node."""

_INSTALLED = """
import os, sysconfig
root = sysconfig.get_path("purelib")
print(sum(os.lstat(os.path.join(at, name)).st_size for at, _, names in os.walk(root) for name in names))
"""


def installed_mb(service: str) -> float:
    """Megabytes of Python packages in a service's image."""
    return int(compose("exec", "-T", service, "python", "-c", _INSTALLED)) / 1e6


def images_are_small() -> tuple[bool, object]:
    found = {service: round(installed_mb(service), 1) for service in LIMITS_MB}
    print(f"      installed, MB: {found}", flush=True)
    return all(found[service] < limit for service, limit in LIMITS_MB.items()), found


def containers_are_hardened() -> tuple[bool, object]:
    """As Docker runs them, and not only as the file says it."""
    wrong = [problem for ident in compose("ps", "-q").split() for problem in _problems(ident)]
    return not wrong, wrong


def _problems(ident: str) -> list[str]:
    (told,) = json.loads(docker("inspect", ident))
    name, host = told["Config"]["Labels"]["com.docker.compose.service"], told["HostConfig"]
    rows = docker("top", ident, "-eo", "pid,uid").splitlines()[1:]  # Docker finds the container's processes by their pid
    uids = {row.split()[1] for row in rows}
    wrong = {
        "its root can be written to": not host["ReadonlyRootfs"],
        "it has capabilities": host["CapDrop"] != ["ALL"] or bool(host["CapAdd"]),
        "it may get new privileges": not any("no-new-privileges" in option for option in host["SecurityOpt"] or ()),
        "its memory has no limit": host["Memory"] == 0,
        f"it runs as {sorted(uids)}": not uids or "0" in uids,
        f"it publishes {_published(told)} beyond this machine": any(ip != "127.0.0.1" for ip in _published(told)),
    }
    return [f"{name}: {what}" for what, is_so in wrong.items() if is_so]


def _published(told: Any) -> set[str]:
    ports = told["HostConfig"]["PortBindings"] or {}
    return {binding["HostIp"] for bindings in ports.values() for binding in bindings}
