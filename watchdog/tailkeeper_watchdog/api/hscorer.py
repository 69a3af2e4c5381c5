"""``/api/v1/hscorer/config``: the weights of the HScore, who changed them, and changing them. Refusals name field and value."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BeforeValidator, ValidationError, WithJsonSchema, model_validator

from tailkeeper_exporter import strict_json
from tailkeeper_watchdog.api.errors import Strict
from tailkeeper_watchdog.api.strict import StrictJson
from tailkeeper_watchdog.model import WeightsChange
from tailkeeper_watchdog.settings import check_sum
from tailkeeper_watchdog.weighing import BY_FILE, Weighing

PATH = "/api/v1/hscorer/config"
NAME_LIMIT_CHARS = 128
_SHOWN_CHARS = 80


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."


def _share(value: Any) -> Any:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 <= value <= 1:
        raise ValueError(f"{_shown(value)} is refused; allowed is a number from 0 to 1")
    return value


def _name(value: Any) -> Any:
    good = isinstance(value, str) and value.isprintable() and value.strip() == value and 0 < len(value) <= NAME_LIMIT_CHARS
    if not good:
        raise ValueError(f"{_shown(value)} is refused; allowed is a name of 1 to {NAME_LIMIT_CHARS} printable characters")
    if value == BY_FILE:
        raise ValueError(f"{BY_FILE!r} is refused; it stands for the configuration file, give the name of a person or a tool")
    return value


Share = Annotated[float, BeforeValidator(_share), WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1})]
Name = Annotated[str, BeforeValidator(_name), WithJsonSchema({"type": "string", "minLength": 1, "maxLength": NAME_LIMIT_CHARS})]


class GivenWeights(Strict):
    """All four, from 0 to 1 each, with the sum 1."""

    latency: Share
    error_rate: Share
    cpu_usage: Share
    uptime: Share

    @model_validator(mode="before")
    @classmethod
    def _all_four(cls, given: Any) -> Any:
        if not isinstance(given, dict) or (missing := sorted(set(cls.model_fields) - set(given))):
            wrong = f"{', '.join(missing)} missing" if isinstance(given, dict) else f"{_shown(given)} is refused"
            raise ValueError(f"{wrong}; allowed are numbers for all of {', '.join(cls.model_fields)}, with the sum 1")
        return given

    @model_validator(mode="after")
    def _sum_to_one(self) -> GivenWeights:
        check_sum(self.latency, self.error_rate, self.cpu_usage, self.uptime)
        return self


class ConfigRequest(Strict):
    """``by`` is who changes them, for the history."""

    weights: GivenWeights
    by: Name


def add_weights(api: FastAPI, weighing: Weighing, noted: Callable[[], Awaitable[None]]) -> None:
    """``noted`` waits until a change outlives the process."""

    @api.get(PATH)
    async def config() -> Response:
        return StrictJson(_document(weighing))

    # The body is read here, because FastAPI takes the last of two equal keys, and NaN.
    @api.put(PATH, openapi_extra=_described())
    async def change(request: Request) -> Response:
        wanted = _wanted(await request.body())
        weighing.change(wanted.weights.model_dump(), wanted.by)
        await noted()
        return StrictJson(_document(weighing))


def _wanted(body: bytes) -> ConfigRequest:
    """Raises RequestValidationError, which is answered with 422."""
    try:
        return ConfigRequest.model_validate(strict_json.loads(body))
    except ValidationError as error:
        raise RequestValidationError([{**row, "loc": ("body", *row["loc"])} for row in error.errors()]) from None
    except ValueError as error:
        raise RequestValidationError([{"loc": ("body",), "msg": f"not strict JSON: {error}", "type": "json_invalid"}]) from None


def _described() -> dict[str, Any]:
    """The body for ``/openapi.json``."""
    schema = ConfigRequest.model_json_schema()
    schema["properties"]["weights"] = schema.pop("$defs")[GivenWeights.__name__]
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _document(weighing: Weighing) -> dict[str, Any]:
    return {"weights": dict(weighing.in_force), "history": [_change(made) for made in weighing.history()]}


def _change(made: WeightsChange) -> dict[str, Any]:
    return {"time": made.time_unix_s, "by": made.by, "from": dict(made.before), "to": dict(made.after)}
