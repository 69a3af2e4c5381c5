"""LiteLLM's proxy through its management API: weight and admission of a deployment, by its id. Nothing is remembered.

Relied on here, from LiteLLM's documentation and source (no proxy with a database was at hand):

* Only deployments in its database can be changed while it runs; those of its config.yaml cannot, and without a database none.
* ``PATCH /model/ID/update`` changes the fields that are given and reloads them at once in the process that answers; other
  workers and replicas read the database every few seconds.
* ``model_info.blocked`` takes a deployment out of every choice. Where all of a model are blocked its requests are 403.
* ``litellm_params.weight`` is looked at by the strategy simple-shuffle alone, and only where the first deployment has one: so
  every deployment of a model needs a weight. All at 0 is an error for every request.
* There is one weight, and no second one that says what was configured. So the normal weight is noted in the deployment's own
  ``model_info`` in the same change, and the note goes when the weight is normal again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tailkeeper_watchdog.actuators.calls import CallError, excerpt, turn
from tailkeeper_watchdog.actuators.contract import Actuator, ErrorKind, ServerState, Support
from tailkeeper_watchdog.actuators.http_calls import Answer, JsonHttp
from tailkeeper_watchdog.gateways import Gateway, LitellmGateway
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, KnobValue

KIND = "litellm"
ANSWER_LIMIT_BYTES = 64 * 1024 * 1024
"""A deployment is some 6 kB in ``/model/info``, prices of all kinds among it; 10,000 of them are 60 MB."""
STRATEGY = "simple-shuffle"
NOTE = "tailkeeper_normal_weight"
"""In ``model_info``; 0 is none, for a PATCH can change a field and not remove it."""
MAX_UNITS = 1_000_000
COARSE_ERROR = 0.1
"""A share that rounding would change by more than this part of itself is refused."""
_NO_DATABASE = "LiteLLM runs without a database (database: false), and then nothing of it can be changed while it runs"
_CONFIGURED = (
    "the deployment is not in LiteLLM's database but in its config.yaml, which is read at its start alone; "
    "add it with /model/new, which needs a database and STORE_MODEL_IN_DB"
)
_NO_PLACE = ("DB not connected", "No DB Connected", "STORE_MODEL_IN_DB")
"""In the 500 of a proxy without a database, as 1.108.7 says it in its newer and its older endpoints."""
_ONLY = "LiteLLM's management API is used for weight and admission only"


@dataclass(frozen=True, slots=True)
class Deployment:
    """One row of ``/model/info``. Units are LiteLLM's own weights; ``noted`` is the normal one where we have changed it."""

    id: str
    group: str
    units: float | None
    noted: float | None
    in_database: bool
    blocked: bool

    @property
    def normal(self) -> float | None:
        return self.noted or self.units


def parse_deployments(document: Mapping[str, Any]) -> Mapping[str, Deployment]:
    """``GET /model/info`` by id; rows without an id are nobody's server. Raises CallError(PROTOCOL)."""
    data = document.get("data")
    if not isinstance(data, list):
        raise CallError(ErrorKind.PROTOCOL, "/model/info has no list `data`")
    return {deployment.id: deployment for deployment in _deployments(data)}


def _deployments(data: list[Any]) -> Iterator[Deployment]:
    for row in data:
        info, params = (row.get(key) for key in ("model_info", "litellm_params")) if isinstance(row, dict) else (None, None)
        if not isinstance(info, dict) or not isinstance(params, dict):
            # Its parameters may hold the key of a provider, so nothing of the row is repeated.
            raise CallError(
                ErrorKind.PROTOCOL, "/model/info has a row without `model_info` and `litellm_params`, so no deployment"
            )
        if isinstance(name := info.get("id"), str):
            units, noted = _weight(params.get("weight"), name), _weight(info.get(NOTE), name)
            group = str(row.get("model_name"))
            yield Deployment(name, group, units, noted, info.get("db_model") is True, info.get("blocked") is True)


def _weight(value: object, name: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MAX_UNITS:
        raise CallError(ErrorKind.PROTOCOL, f"/model/info gives {excerpt(name)} the weight {excerpt(repr(value))}")
    return float(value)


def strategy_of(document: Mapping[str, Any]) -> str:
    """The routing strategy in ``GET /router/settings``; empty where it is not told."""
    fields = document.get("fields")
    rows = [row for row in fields if isinstance(row, dict)] if isinstance(fields, list) else []
    return next((str(row.get("field_value") or "") for row in rows if row.get("field_name") == "routing_strategy"), "")


def why_no_weight(deployment: Deployment, everyone: Mapping[str, Deployment], strategy: str) -> str:
    """Empty where a weight can be set and is looked at."""
    if not deployment.in_database:
        return _CONFIGURED
    if strategy != STRATEGY:
        return f"LiteLLM's routing strategy is {strategy or 'not told'}, and only {STRATEGY} looks at weights"
    bare = next((d.id for d in everyone.values() if d.group == deployment.group and d.units is None), None)
    if bare is not None:
        return (
            f"LiteLLM goes by weights only where every deployment of a model has one, and {excerpt(bare)} has none; give it 100"
        )
    return "" if deployment.normal else "its configured weight is 0, of which there are no shares; give it 100"


def state_of(deployment: Deployment, everyone: Mapping[str, Deployment], strategy: str) -> ServerState:
    values: dict[Knob, KnobValue] = {Knob.ADMISSION: DRAIN if deployment.blocked else SERVE}
    cannot = {} if deployment.in_database else {Knob.ADMISSION: _CONFIGURED}
    if why_not := why_no_weight(deployment, everyone, strategy):
        cannot[Knob.WEIGHT] = why_not
    elif deployment.units is not None and deployment.normal:
        values[Knob.WEIGHT] = deployment.units / deployment.normal
    return ServerState(values, in_service=deployment.units != 0, normal_weight=1.0, cannot=cannot)


def units_for(share: KnobValue, normal: float) -> float:
    """A share in LiteLLM's units: whole where the normal weight is whole. Raises CallError(REFUSED)."""
    if isinstance(share, (str, bool)) or not math.isfinite(share) or share < 0:
        raise CallError(ErrorKind.REFUSED, f"weight {share!r} is not a share; it must be a number from 0 up")
    if share * normal > MAX_UNITS:
        raise CallError(ErrorKind.REFUSED, f"weight {share:g} of {normal:g} is above {MAX_UNITS}")
    if share == 0 or normal != int(normal):
        return share * normal
    units = max(1, round(share * normal))
    if abs(units / normal - share) > COARSE_ERROR * share:
        words = f"weight {share:g} cannot be expressed: the normal weight is {normal:g}, so it would become {units / normal:.2g}"
        raise CallError(ErrorKind.REFUSED, f"{words}; give this deployment and its peers the weight 100")
    return units


def patch_for(
    deployment: Deployment, values: Mapping[Knob, KnobValue], everyone: Mapping[str, Deployment], strategy: str
) -> Mapping[str, Any]:
    """What to send; empty where nothing is to do. One change, so no traffic is let in before its weight. Raises CallError."""
    patch: dict[str, Any] = {}
    for knob, value in values.items():
        if knob is Knob.ADMISSION:
            if value not in (SERVE, DRAIN):
                raise CallError(ErrorKind.REFUSED, f"admission {value!r} is not known; allowed: {SERVE}, {DRAIN}")
            if not deployment.in_database:
                raise CallError(ErrorKind.REFUSED, _CONFIGURED)
            patch |= {} if deployment.blocked == (value == DRAIN) else {"blocked": value == DRAIN}
        else:
            patch |= _weight_patch(deployment, value, why_no_weight(deployment, everyone, strategy))
    return patch


def _weight_patch(deployment: Deployment, share: KnobValue, why_not: str) -> Mapping[str, Any]:
    normal = deployment.normal
    if why_not or normal is None:
        raise CallError(ErrorKind.REFUSED, why_not)
    units = units_for(share, normal)
    noted = 0.0 if units == normal else normal
    if units == deployment.units and noted == (deployment.noted or 0.0):
        return {}
    # Without its id the deployment would get a new one: LiteLLM fills what a `model_info` leaves out.
    info = {"id": deployment.id, "db_model": True, NOTE: _plain(noted)}
    return {"litellm_params": {"weight": _plain(units)}, "model_info": info}


def _plain(number: float) -> float:
    """Whole numbers without a decimal point: LiteLLM documents weights as whole."""
    return int(number) if number == int(number) else number


class LitellmActuator:
    """One LiteLLM proxy. Satisfies ``Actuator``."""

    kind = KIND

    def __init__(self, settings: LitellmGateway) -> None:
        self.name = settings.name
        self._database = settings.database
        self._http = JsonHttp(settings.url, settings.auth, ANSWER_LIMIT_BYTES)
        self._lock = asyncio.Lock()

    def supports(self, knob: Knob) -> Support:
        if knob not in (Knob.WEIGHT, Knob.ADMISSION):
            return Support(False, _ONLY)
        return Support(True) if self._database else Support(False, _NO_DATABASE)

    async def read(self, servers: tuple[str, ...], deadline_s: float) -> Mapping[str, ServerState]:
        async with turn(self._lock, self.name, "*", deadline_s) as ends_at, asyncio.timeout_at(ends_at):
            everyone, strategy = await self._everyone()
        return {server: state_of(everyone[server], everyone, strategy) for server in servers if server in everyone}

    async def write(self, server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
        async with turn(self._lock, self.name, server, deadline_s) as ends_at, asyncio.timeout_at(ends_at):
            for knob in values:
                if not (support := self.supports(knob)).enforceable:
                    raise CallError(ErrorKind.REFUSED, f"{knob.value}: {support.why_not}")
            everyone, strategy = await self._everyone()
            if server not in everyone:
                raise CallError(ErrorKind.NOT_FOUND, "LiteLLM has no deployment with that id; see model_info.id in /model/info")
            patch = patch_for(everyone[server], values, everyone, strategy)
            if patch:
                check_change(await self._http.call("PATCH", f"/model/{quote(server, safe='')}/update", patch))

    async def _everyone(self) -> tuple[Mapping[str, Deployment], str]:
        models = (await self._http.call("GET", "/model/info")).checked()
        settings = await self._http.call("GET", "/router/settings")
        strategy = strategy_of(_object(settings.checked().json())) if settings.status != 404 else ""
        return await models.parsed(lambda document: parse_deployments(_object(document))), strategy

    async def close(self) -> None:
        await self._http.close()


def _object(document: object) -> Mapping[str, Any]:
    """Raises CallError(PROTOCOL)."""
    if not isinstance(document, dict):
        raise CallError(ErrorKind.PROTOCOL, f"the answer must be a JSON object, not {type(document).__name__}")
    return document


def check_change(answer: Answer) -> None:
    """Raises CallError for what is not 2xx. LiteLLM answers 500 where it has no database, which no repeating helps."""
    words = answer.words()
    if answer.status == 500 and any(sign in words for sign in _NO_PLACE):
        raise CallError(ErrorKind.REFUSED, f"500: LiteLLM cannot keep a change: {words}")
    answer.checked()


def create(settings: Gateway) -> Actuator:
    """Raises TypeError for another gateway's settings."""
    if not isinstance(settings, LitellmGateway):
        raise TypeError(f"litellm cannot be made from {type(settings).__name__}")
    return LitellmActuator(settings)
