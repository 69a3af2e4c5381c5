"""A running compose stack, as the probe asks it: docker compose, the services by name, Prometheus. Standard library only."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from functools import cache
from typing import Any

Look = Callable[[], tuple[bool, object]]
"""Whether something holds, and what was seen of it."""

# Runs in the watchdog's container, where every service can be reached by name.
_CALL = """
import sys, urllib.request
method, url, body = sys.argv[1:4]
request = urllib.request.Request(url, body.encode() or None, {"Content-Type": "application/json"}, method=method)
print(urllib.request.urlopen(request, timeout=5).read().decode())
"""


class StepError(Exception):
    """A step that did not become true in time."""


def compose(*arguments: str, limit_s: float = 60) -> str:
    """Output of one docker compose command. Raises StepError with its error output."""
    return docker("compose", *arguments, limit_s=limit_s)


def docker(*arguments: str, limit_s: float = 60) -> str:
    """Output of one docker command. Raises StepError with its error output, or after ``limit_s``."""
    words = " ".join(("docker", *arguments[:2]))
    try:
        done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise StepError(f"{words}: not done within {limit_s:g} s") from None
    if done.returncode != 0:
        raise StepError(f"{words}: {done.stderr.strip()[-500:]}")
    return done.stdout


def inside(script: str, *arguments: str) -> str:
    """Output of a Python script run in the watchdog's container, where every service can be reached by name."""
    return compose("exec", "-T", "watchdog", "python", "-c", script, *arguments)


def call(method: str, url: str, body: object = None) -> Any:
    """JSON that a service answers another one. Raises StepError where it does not answer 2xx."""
    return json.loads(inside(_CALL, method, url, "" if body is None else json.dumps(body)))


def published(service: str, port: int, path: str) -> Any:
    """JSON from a published port, as a user of this machine would read it. Raises OSError."""
    with urllib.request.urlopen(f"http://{_address(service, port)}{path}", timeout=5) as response:
        return json.load(response)


@cache
def _address(service: str, port: int) -> str:
    """Asked once: there are hundreds of queries, and docker compose takes longer to say it than Prometheus to answer."""
    return compose("port", service, str(port)).strip()


def query(expr: str) -> list[Any]:
    """The series that Prometheus finds for ``expr`` now. Raises OSError where it refuses the expression."""
    path = "/api/v1/query?" + urllib.parse.urlencode({"query": expr})
    result: list[Any] = published("prometheus", 9090, path)["data"]["result"]
    return result


def until(step: str, limit_s: float, look: Look) -> None:
    """Repeat ``look`` until it holds. Raises StepError after ``limit_s``, with what was last seen."""
    started, seen = time.monotonic(), object()
    while time.monotonic() - started < limit_s:
        try:
            holds, seen = look()
        except (StepError, OSError, ValueError, KeyError) as error:
            holds, seen = False, error
        if holds:
            print(f"probe [{time.monotonic() - started:5.1f}s] {step}", flush=True)
            return
        time.sleep(0.5)
    raise StepError(f"{step}: not within {limit_s:g} s; last seen: {seen}")
