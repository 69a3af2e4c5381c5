"""Made-up request rows with a known load model, and baselines fitted on them: minutes of a fleet in milliseconds."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from tailkeeper_exporter.readings import Histogram
from tailkeeper_watchdog.drift import Baseline, BucketBaseline, Rows, bucket_baseline, fit
from tailkeeper_watchdog.drift.bucket_blocks import BucketBlock
from tailkeeper_watchdog.model import RequestRecord
from tests.unit.watched_fleet import BOUNDS, record

BLOCK_S = 10.0
PER_BLOCK = 60


def requests(
    rng: random.Random, start_unix_s: float, *, name: str = "a", factor: float = 1.0, most_running: int = 10, load: bool = True
) -> list[RequestRecord]:
    """One block of requests. What the load explains: 20 ms, 10 ms for each running request, 50 µs a token; noise of 15 %."""
    made = []
    for number in range(PER_BLOCK):
        running, prompt = rng.randint(1, most_running), rng.randint(100, 2_000)
        ttft_s = factor * (0.02 + 0.01 * running + 5e-5 * prompt) * rng.lognormvariate(0.0, 0.15)
        seen: dict[str, Any] = {"prompt_tokens": prompt, "running": running, "waiting": 0, "backlog_tokens": 0} if load else {}
        made.append(record(ttft_s, name, start_unix_s=start_unix_s + number * BLOCK_S / PER_BLOCK - ttft_s, **seen))
    return made


@cache
def rows_baseline(blocks: int = 400, *, load: bool = True, model: str = "m") -> Baseline:
    from tailkeeper_watchdog.detectors.block_e import rows_of

    rng = random.Random(7)
    told = [r for block in range(blocks) for r in requests(rng, 1e6 + block * BLOCK_S, load=load)]
    return fit(Rows.of(rows_of(told, 0.0)), model_id=model, created_at_s=1e9)


@cache
def bucket_baseline_of(blocks: int = 400, model: str = "m") -> BucketBaseline:
    rng = random.Random(8)
    made = []
    for _ in range(blocks):
        values = [rng.lognormvariate(-1.6, 0.4) for _ in range(50)]
        counts = tuple(float(sum(v <= b for v in values)) for b in BOUNDS)
        made.append(BucketBlock(Histogram(BOUNDS, counts, sum(values)), (rng.uniform(2.0, 4.0), 0.0, rng.uniform(400.0, 600.0))))
    return bucket_baseline(made, model_id=model, created_at_s=1e9)
