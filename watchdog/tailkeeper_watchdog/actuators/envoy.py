"""Envoy through an EDS file: weights and health of endpoints are written there, and read at Envoy's admin interface.

Seen on Envoy 1.40 and relied on here:

* Only a rename into the folder is noticed (8 ms); a write in place is not, so an edit of another hand in place waits there
  until somebody renames, which may be us.
* Weight 0 is rejected, the whole file with it (`update_rejected`; `update_failure` where it cannot be parsed), and the old
  one stays. A left-out weight is 1. So weight 0 is a drain here too, told from one by a mark in the endpoint's metadata.
* DRAINING is left out of the count that leads to panic, UNHEALTHY is not. In panic everybody gets traffic, drained or not:
  that is why the last one is refused, and why a drain is doubted while too few of the others are healthy.
* Requests in flight end at a drained endpoint in peace; its connections are kept.
* `lb_policy: RANDOM` ignores weights. Nothing is remembered here: a restart of ours or of Envoy changes nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators.calls import CallError, turn
from tailkeeper_watchdog.actuators.config_file import RESERVE_S, ConfigFile, Written
from tailkeeper_watchdog.actuators.contract import Actuator, ErrorKind, ServerState, Support
from tailkeeper_watchdog.actuators.document_text import edited, parsed
from tailkeeper_watchdog.actuators.envoy_admin import (
    RANDOM_WHY_NOT,
    Seen,
    configs_of,
    parse_clusters,
    with_cluster,
    with_endpoints,
)
from tailkeeper_watchdog.actuators.envoy_endpoints import DRAINING, Endpoint, edits, endpoints_of_file, pool_of, wanted
from tailkeeper_watchdog.actuators.file_weights import Entry, changed, place
from tailkeeper_watchdog.actuators.http_calls import JsonHttp
from tailkeeper_watchdog.actuators.replicas import replicated
from tailkeeper_watchdog.gateways import EnvoyGateway, Gateway
from tailkeeper_watchdog.model import Knob, KnobValue

KIND = "envoy"
ANSWER_LIMIT_BYTES = 32 * 1024 * 1024
"""A host is some 1.2 KB in `/clusters?format=json`, so 10,000 are 12 MB."""
POLL_S = 0.01
"""Envoy takes a renamed file in 8 ms."""
SETTLE_S = 0.1
"""A rejection may be of what another hand wrote just before; ours is taken within this time, if at all."""
_WHY_NOT = "an EDS file has weights and health of endpoints; this one is used for weight and admission only"


class EnvoyActuator:
    """One Envoy: the EDS file of one cluster, and its admin interface. Satisfies ``Actuator``."""

    kind = KIND

    def __init__(self, name: str, cluster: str, file: Path, admin_url: str, auth: Auth) -> None:
        self.name = name
        self._cluster = cluster
        self._file = ConfigFile(file)
        self._admin = JsonHttp(admin_url, auth, ANSWER_LIMIT_BYTES)
        self._lock = asyncio.Lock()

    def supports(self, knob: Knob) -> Support:
        return Support(True) if knob in (Knob.WEIGHT, Knob.ADMISSION) else Support(False, _WHY_NOT)

    async def read(self, servers: tuple[str, ...], deadline_s: float) -> Mapping[str, ServerState]:
        async with turn(self._lock, self.name, "*", deadline_s) as ends_at, asyncio.timeout_at(ends_at):
            seen = await self._seen()
        return {server: seen.state(place(server)) for server in servers if place(server) in seen.hosts}

    async def write(self, server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
        async with turn(self._lock, self.name, server, deadline_s) as ends_at, asyncio.timeout_at(ends_at):
            if refused := [knob.value for knob in values if not self.supports(knob).enforceable]:
                raise CallError(ErrorKind.REFUSED, f"{refused[0]}: {_WHY_NOT}")
            seen = await self._seen()
            if seen.random and Knob.WEIGHT in values:
                raise CallError(ErrorKind.REFUSED, f"weight: {RANDOM_WHY_NOT}")
            refused_before = await self._refused(seen)
            making = _Making(seen, place(server), values, is_json=self._file.path.suffix == ".json")
            written = await self._file.changed(making, ends_at)
            if written.before == written.after and not making.is_in_force(seen):
                written = await self._file.changed(making, ends_at, republish=True)
            if not making.is_in_force(seen):
                await self._until_taken(making, written, refused_before, ends_at)
            if making.refusal is not None:
                raise making.refusal

    async def _until_taken(self, making: _Making, written: Written, refused_before: int, ends_at: float) -> None:
        """Until Envoy has what was written. Raises CallError; a file that Envoy refused or did not take is put back as it was."""
        try:
            async with asyncio.timeout_at(ends_at - RESERVE_S):
                if await self._is_taken(making, refused_before):
                    return
        except TimeoutError:
            words = (
                f"Envoy has not taken {self._file.path}: is it the file of this cluster's `path_config_source`, and does "
                f"`watched_directory` name its folder? {await self._file.taken_back(making, written)}"
            )
            raise CallError(ErrorKind.TIMEOUT, words) from None
        except CallError as error:
            if error.kind is not ErrorKind.UNREACHABLE:
                raise
            words = f"{self._file.path} is written, and then Envoy's admin interface was not to be reached: the effect is unknown"
            raise CallError(ErrorKind.PROTOCOL, words) from error
        end = await self._file.taken_back(making, written)
        raise CallError(ErrorKind.REFUSED, f"Envoy rejected {self._file.path} (its log says why); {end}")

    async def _is_taken(self, making: _Making, refused_before: int) -> bool:
        """Waits until it is, or is refused. Has no end of its own."""
        clock = asyncio.get_running_loop().time
        refused_at: float | None = None
        while True:
            seen = await self._seen()
            if making.is_in_force(seen):
                return True
            if refused_at is None and await self._refused(seen) > refused_before:
                refused_at = clock()
            if refused_at is not None and clock() - refused_at > SETTLE_S:
                return False
            await asyncio.sleep(POLL_S)

    async def _seen(self) -> Seen:
        """Three answers of Envoy; none is remembered, because clusters come and go."""
        get = self._admin.json
        seen = parse_clusters(await get("/clusters?format=json"), self._cluster)
        of_cluster = quote(re.escape(self._cluster), safe="")
        found: list[Any] = []
        for resource in ("static_clusters", "dynamic_active_clusters"):
            path = f"/config_dump?resource={resource}&name_regex={of_cluster}"
            found += configs_of(await get(path)) if not found else []
        endpoints: list[Any] = []
        for resource in ("static_endpoint_configs", "dynamic_endpoint_configs"):
            path = f"/config_dump?include_eds&resource={resource}&name_regex={quote(re.escape(seen.service), safe='')}"
            endpoints += configs_of(await get(path)) if not endpoints else []
        return with_cluster(with_endpoints(seen, {"configs": endpoints}), {"configs": found}, self._cluster)

    async def _refused(self, seen: Seen) -> int:
        """How often Envoy did not want an update of the cluster's endpoints: it was wrong, or not even readable."""
        prefix = f"cluster.{seen.stat_name.replace(':', '_')}.update_"
        pattern = quote(f"^{re.escape(prefix)}(rejected|failure)$", safe="")
        answer = await self._admin.json(f"/stats?format=json&filter={pattern}")
        try:
            counts = {stat["name"].removeprefix(prefix): int(stat["value"]) for stat in answer["stats"] if "name" in stat}
            return counts["rejected"] + counts["failure"]
        except (TypeError, KeyError, ValueError, OverflowError, AttributeError):
            raise CallError(ErrorKind.PROTOCOL, "Envoy's `/stats` lacks the updates of this cluster") from None

    async def close(self) -> None:
        await self._admin.close()


class _Making:
    """One change in the making: from the text that is there to the text that is wanted, as often as it must be made anew."""

    def __init__(self, seen: Seen, server: str, values: Mapping[Knob, KnobValue], is_json: bool) -> None:
        self._seen = seen
        self._server = server
        self._values = values
        self._is_json = is_json
        self.refusal: CallError | None = None
        self._wanted: Endpoint | None = None
        self._before: Entry | None = None

    def text(self, found: str) -> str:
        """Raises CallError."""
        document = parsed(found, self._is_json)
        endpoints = endpoints_of_file(document, self._seen.service)
        pool = pool_of(endpoints)
        if self._server not in pool:
            raise CallError(ErrorKind.NOT_FOUND, "the EDS file has no such endpoint; write host:port as it stands there")
        self._before = pool[self._server]
        pool, self.refusal = changed(pool, self._server, self._values, self._seen.serving)
        if self.refusal is not None and pool == pool_of(endpoints):
            raise self.refusal
        made = wanted(endpoints, pool)
        self._wanted = next(endpoint for endpoint in made if endpoint.server == self._server)
        return edited(found, edits(endpoints, made), self._is_json, document)

    def undone(self, found: str) -> str:
        """The text without what was made last, where it still stands there. Raises CallError."""
        document = parsed(found, self._is_json)
        endpoints = endpoints_of_file(document, self._seen.service)
        pool, before, made = pool_of(endpoints), self._before, self._wanted
        if before is None or made is None or pool.get(self._server) != made.entry:
            return found
        return edited(found, edits(endpoints, wanted(endpoints, {**pool, self._server: before})), self._is_json, document)

    def is_in_force(self, seen: Seen) -> bool:
        """Whether Envoy has what was made last."""
        host, wanted_there = seen.hosts.get(self._server), self._wanted
        if host is None or wanted_there is None or seen.pool[self._server] != wanted_there.entry:
            return False
        return host.units == (wanted_there.units or 1) and (host.health == DRAINING) == (wanted_there.health == DRAINING)


def create(settings: Gateway) -> Actuator:
    """Raises TypeError for another gateway's settings."""
    if not isinstance(settings, EnvoyGateway):
        raise TypeError(f"envoy cannot be made from {type(settings).__name__}")
    files = {settings.admin_url: settings.eds_file} | {r.admin_url: r.eds_file or settings.eds_file for r in settings.replicas}

    def one(name: str, admin_url: str) -> Actuator:
        return EnvoyActuator(name, settings.cluster, files[admin_url], admin_url, settings.auth)

    return replicated(settings.name, tuple(files), one)
