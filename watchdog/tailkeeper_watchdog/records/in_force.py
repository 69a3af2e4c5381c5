"""The configuration that was in force, as it stands in the records, and back. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from pydantic import ValidationError

from tailkeeper_watchdog.core import PolicySetting, Rules
from tailkeeper_watchdog.model import Slo
from tailkeeper_watchdog.settings import GuardsSettings, PoliciesSettings


class RecordedConfigurationError(ValueError):
    """The recorded configuration cannot be used: another version wrote it, or a hand changed it."""


@dataclass(frozen=True, slots=True)
class InForce:
    """What decides, beside the evidence."""

    rules: Rules
    guards: GuardsSettings
    tick_s: float

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> InForce:
        """From a recorded configuration; keys that are not known are passed over. Raises RecordedConfigurationError."""
        try:
            known = {f.name for f in fields(Slo)}
            rules = Rules(
                slo=Slo(**{k: float(v) for k, v in document["slo"].items() if k in known}),
                weights={str(k): float(v) for k, v in document["weights"].items()},
                policies=_policies(document["policies"]),
                stale_after_s=float(document["stale_after_s"]),
            )
            given = {k: v for k, v in document["guards"].items() if k in GuardsSettings.model_fields}
            return cls(rules, GuardsSettings.model_validate(given), float(document["tick_s"]))
        except (KeyError, TypeError, ValueError, AttributeError, ValidationError) as error:
            raise RecordedConfigurationError(f"the recorded configuration cannot be used: {error}") from error


def _policies(document: Mapping[str, Any]) -> dict[str, PolicySetting]:
    """The policies of this version that the record names: one that was not there then decided nothing."""
    found: dict[str, PolicySetting] = {}
    for name, setting in PoliciesSettings():
        said = document.get(name)
        if said is not None:
            known = type(setting.params).model_fields
            given = type(setting).model_validate(
                {"mode": said["mode"], "params": {k: v for k, v in said["params"].items() if k in known}}
            )
            found[name] = PolicySetting(given.mode, given.params)
    return found


def written_down(rules: Rules, guards: GuardsSettings, tick_s: float) -> dict[str, Any]:
    """The configuration in force as plain values. Nothing secret is in any part of it."""
    return {
        "slo": asdict(rules.slo),
        "weights": dict(rules.weights),
        "policies": {
            name: {"mode": setting.mode.value, "params": setting.params.model_dump(mode="json")}
            for name, setting in rules.policies.items()
        },
        "stale_after_s": rules.stale_after_s,
        "guards": guards.model_dump(mode="json"),
        "tick_s": tick_s,
    }
