"""Names by which logs, traces and Kubernetes events say the same thing, and the closed sets of their values.

Standard library only: boards and the collector's configuration are generated from it.
"""

from __future__ import annotations

from enum import StrEnum

from tailkeeper_watchdog.alert_terms import NONE

SERVICE_NAME = "tailkeeper-watchdog"
KUBERNETES_SERVICE_NAME = "kubernetes-events"
"""Under this service the collector puts the events of a cluster."""

STRATEGY = "strategy_id"
"""The policy; an alert has the same value in its label ``self_heal_strategy``."""
TRIGGER = "trigger_reason"
PHASE = "phase"
BACKEND = "backend"
KNOB = "knob"
FROM, TO = "from", "to"
VERDICT = "verdict"
REFUSAL = "refusal"
GATEWAY, SERVER = "gateway", "server"
TICK = "tick"
DECISION_ID, FINDING_ID = "decision_id", "finding_id"
LEASE_EXPIRES = "lease_expires"
"""Epoch seconds, as in the API."""
KIND, SEVERITY, SIGNAL = "kind", "severity", "signal"

NO_STRATEGY = NONE
"""As an alert says it."""

ANNOTATION_PREFIX = "tailkeeper.io/"
ANNOTATED = (STRATEGY, TRIGGER, PHASE, BACKEND, KNOB, FROM, TO, VERDICT, DECISION_ID)
"""What an event in Kubernetes carries as annotations."""


class Phase(StrEnum):
    """How far a matter has come."""

    TRIGGERED = "triggered"
    APPLIED = "applied"
    RESOLVED = "resolved"


class Trigger(StrEnum):
    """What set it off. Every kind of finding is one of them, by the same name."""

    GROWTH = "growth"
    DISTORTION = "distortion"
    ZSCORE = "zscore"
    BLOCK_E = "block_e"
    SLO_BURN = "slo_burn"
    IMPROVED_BUT_BROKEN = "improved_but_broken"
    TELEMETRY_LOST = "telemetry_lost"
    HUNG = "hung"
    DOWN = "down"
    MEMORY_PRESSURE = "memory_pressure"
    COMMON_CAUSE = "common_cause"
    CONTENDED = "contended"
    ADVICE = "advice"
    ERRORS = "errors"
    GPU_LOST = "gpu_lost"
    SLOW = "slow"
    LONG_CONTEXTS = "long_contexts"
    SPEED = "token_speed"
    ARRIVALS = "arrivals"
    RECOVERED = "recovered"
    UNKNOWN = "unknown"


class Step(StrEnum):
    """The steps of a tick, in their order: the children of its span."""

    COLLECT = "collect"
    SCORE = "score"
    DETECT = "detect"
    DECIDE = "decide"
    GUARD = "guard"
    ACT = "act"
    ATTRIBUTE = "attribute"
    RECORD = "record"
