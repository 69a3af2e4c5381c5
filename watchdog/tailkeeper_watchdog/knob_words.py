"""What a change of a knob is called, alike in alerts, findings, the decision log and the API. Pure."""

from __future__ import annotations

from tailkeeper_watchdog.model import DRAIN, Knob, KnobValue


def shown(value: KnobValue) -> str:
    """A value by itself: whole numbers in full, others to four digits, ``none`` for a text that is empty."""
    if isinstance(value, str):
        return value or "none"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.4g}"


def setting(knob: Knob, value: KnobValue, normal: KnobValue = 1.0) -> str:
    """``admission drain``, ``weight 40%``, ``concurrency_limit 128``. A weight is a share of ``normal``, as a wish is."""
    if knob is Knob.WEIGHT and not isinstance(value, str) and not isinstance(normal, str) and normal:
        return f"{knob.value} {value / normal:.0%}"
    return f"{knob.value} {shown(value)}"


def done(knob: Knob, value: KnobValue, normal: KnobValue = 1.0) -> str:
    """The same of what is in force: ``drained``, ``weight 40%``."""
    return "drained" if knob is Knob.ADMISSION and value == DRAIN else setting(knob, value, normal)
