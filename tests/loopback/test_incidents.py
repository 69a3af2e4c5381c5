"""The published table of docs/attribution.md: 200 simulated incidents, whose cause is named first, and how fast."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tailkeeper_watchdog.attribution.combine import attribute
from tailkeeper_watchdog.attribution.request_log import RequestLog
from tailkeeper_watchdog.model import RequestRecord
from tests.incidents import FAULTS, incident

FIRST_SEED = 20_000
"""Never used while the method was made."""
INCIDENTS = 200


def test_the_planted_cause_of_200_incidents_is_named_first_in_95_of_100() -> None:
    right: Counter[str] = Counter()
    took_s = []
    wrong = []
    for seed in range(FIRST_SEED, FIRST_SEED + INCIDENTS):
        planted = incident(FAULTS[seed % len(FAULTS)], seed)
        began = time.thread_time()
        first = attribute(planted.given, seed).shares[0]
        took_s.append(time.thread_time() - began)
        if (first.dimension, first.value) == planted.expected:
            right[planted.fault] += 1
        else:
            wrong.append((seed, planted.fault, planted.view, planted.given.signal, first))
    print(dict(right), wrong, f"median {1e3 * sorted(took_s)[INCIDENTS // 2]:.0f} ms of CPU")
    assert right.total() >= 0.95 * INCIDENTS, wrong


def test_ten_thousand_records_take_nothing_like_a_second() -> None:
    """The best of five on one core: what else the machine does is not what is measured."""
    for fault in FAULTS:
        logs = RequestLog()
        for sample, at in ((incident(fault, 1).given.baseline, 1.0), (incident(fault, 1).given.current, 3.0)):
            assert sample is not None
            logs.extend([_record(row, sample.names) for row in np.resize(sample.rows, 5_000)], at, 10_000)
        given = replace(incident(fault, 1).given, baseline=logs.between(0.0, 2.0), current=logs.between(2.0, 4.0))
        took_s = []
        for _ in range(5):
            began = time.thread_time()
            attribute(given, 1)
            took_s.append(time.thread_time() - began)
        print(fault, f"{1e3 * min(took_s):.0f} ms")
        assert min(took_s) < 1.0, "of the order of 50 ms (docs/attribution.md); a second is another algorithm"


def _record(row: Any, names: Mapping[str, tuple[str, ...]]) -> RequestRecord:
    numbers = ("ttft_s", "itl_s", "e2e_s", "queue_s", "prefill_s", "prompt_tokens", "backlog_tokens")
    words = {label: names[label][row[label]] for label in ("tenant", "model", "modality", "canary_revision")}
    known: dict[str, Any] = {n: None if np.isnan(row[n]) else float(row[n]) for n in numbers}
    return RequestRecord("a", "ok", operation="chat", start_unix_s=float(row["start"]), **known, **words)
