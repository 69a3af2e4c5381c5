"""`tailkeeper replay`: what is replayed and by whose configuration, from the command line. No decision is made here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from tailkeeper.auth_options import auth_in
from tailkeeper_exporter.hiding import hidden
from tailkeeper_exporter.settings import Auth, check_url
from tailkeeper_watchdog.actuators import build_actuator
from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.contract import Support
from tailkeeper_watchdog.app import in_force
from tailkeeper_watchdog.model import Knob
from tailkeeper_watchdog.replay.from_prometheus import Range, replay
from tailkeeper_watchdog.replay.own import again, decided_by
from tailkeeper_watchdog.replay.simulated import Decider, NothingToReplayError
from tailkeeper_watchdog.replay.times import parse_time
from tailkeeper_watchdog.settings import Configuration
from tailkeeper_watchdog.whole_fleet import backend_of

if TYPE_CHECKING:
    from tailkeeper.config import Config

__all__ = ["NothingToReplayError", "UsageError", "Wanted", "run", "wanted"]


class UsageError(ValueError):
    """The command line asks for nothing that can be done. The message says what is allowed."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to replay: ``records``, or else the range of a Prometheus server."""

    records: Path | None
    range: Range | None


def wanted(
    records: Path | None, url: str | None, start: str | None, end: str | None, now_unix_s: float, auth: Sequence[str] = ()
) -> Wanted:
    """The options, checked; ``auth`` are credentials as KEY=FILE. Raises UsageError."""
    if (records is None) == (url is None):
        raise UsageError("give either --records FILE or --prometheus URL, and not both")
    if url is None:
        _given(auth, url)
        if start is not None or end is not None:
            raise UsageError("--start and --end belong to --prometheus; records are replayed as a whole")
        return Wanted(records, None)
    if start is None or end is None:
        raise UsageError("--prometheus needs --start T and --end T, for example --start -1d --end now")
    times = {}
    for option, text in (("--start", start), ("--end", end)):
        try:
            times[option] = parse_time(text, now_unix_s)
        except ValueError as error:
            raise UsageError(f"{option}: {error}") from error
    if not times["--start"] < times["--end"]:
        raise UsageError(f"--start must be before --end (given: {start!r} and {end!r})")
    if times["--start"] >= now_unix_s:
        raise UsageError(f"--start must be in the past (given: {start!r})")
    try:
        asked = str(check_url(url))
    except ValueError as error:
        raise UsageError(f"--prometheus: {error} (given: {hidden(url)!r})") from error
    return Wanted(None, Range(asked, times["--start"], min(times["--end"], now_unix_s), auth=_given(auth, url)))


def _given(auth: Sequence[str], url: str | None) -> Auth:
    try:
        return auth_in(auth, url)
    except ValueError as error:
        raise UsageError(str(error)) from error


def run(what: Wanted, config: Config | None, name: str, say: Callable[[str], None]) -> dict[str, Any]:
    """The report. ``name`` is the configuration's, ``say`` takes lines about the progress.

    Raises NothingToReplayError, OSError, and UsageError where the configuration's gateways cannot be set up.
    """
    # What the loop would log live is in the report.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    decider = None if config is None else _decider(config, name)
    if what.range is not None:
        given = what.range.auth
        auth = given if config is None or given != Auth() else _auth(config, what.range.url)
        return asyncio.run(replay(replace(what.range, auth=auth), decider, say))
    assert what.records is not None
    if decider is None:
        return asyncio.run(again(what.records))
    return asyncio.run(decided_by(what.records, decider))


def _auth(config: Config, url: str) -> Auth:
    """The credentials that the file has for this server, whatever it reads there otherwise."""
    for entry in (config.watchdog.source, *config.discovery):
        if entry.kind == "prometheus" and entry.url.rstrip("/") == url.rstrip("/"):
            return entry.auth
    return Auth()


def _decider(config: Config, name: str) -> Decider:
    watched = config.for_watchdog()
    try:
        able = _abilities(watched)
    except (CallError, ValueError, OSError) as error:
        raise UsageError(f"{name}: gateways: {error}") from error
    fleet = {b.name: backend_of(b, config.gateway_kinds) for b in config.backends}
    return Decider(name, in_force(watched), fleet, able, config.backends)


def _abilities(config: Configuration) -> dict[str, Callable[[Knob], Support]]:
    """What each configured gateway can do; none of them is asked."""
    return {gateway.name: build_actuator(gateway).supports for gateway in config.gateways}
