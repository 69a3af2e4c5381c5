"""The kinds of load the demo knows: users alone, or users beside the rollouts of reinforcement learning, or beside an evaluation.

Lengths are those of the packaged Azure trace (`traces/README.md`): users take its rows as they come; rollouts take the lengths of
its long answers, 250 tokens and more (median 408 out, 1,070 in); evaluations those of its long prompts with short answers, 1,500
tokens and more in and at most 32 out (median 2,800 in, 18 out), which is what fine-tuning's checks of a checkpoint look like: a
long example, a short verdict. The trace says nothing of when such batches come: size and pace of the waves are ours, chosen so
that four engines, and three of the four, keep everybody within the service level (a test runs them).
Pure, apart from reading the packaged trace. Data flows trace rows → `requests` → load generator.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from tailkeeper_demo.trace import Caps, Source, TraceRow, arrivals, load_trace


class Mix(StrEnum):
    """Names of the public contract."""

    ONLINE = "online"
    RLHF = "rlhf"
    SFT = "sft"


@dataclass(frozen=True, slots=True)
class Waves:
    """Batches: every `period_s` seconds `prompts` prompts at once, `samples` answers asked of each."""

    source: Source
    period_s: float
    prompts: int
    samples: int
    least_prompt_tokens: int
    output_tokens: tuple[int, int]
    """Least and most; rows of the trace outside are not of this kind."""
    caps: Caps

    @property
    def rate_per_s(self) -> float:
        return self.prompts * self.samples / self.period_s

    def fits(self, row: TraceRow) -> bool:
        """Whether a row of the trace is of this kind."""
        least, most = self.output_tokens
        return row.prompt_tokens >= self.least_prompt_tokens and least <= row.output_tokens <= most

    def at_s(self, wave: int) -> float:
        """When a wave comes: never with the very first request, or the fleet's first second would be all prefill."""
        return (wave + 0.5) * self.period_s


_USERS_BESIDE_PER_S = 6.0
"""Users' requests beside batches: enough to judge four seconds by."""
_WAVES = {
    Mix.RLHF: Waves(Source.ROLLOUT, 12.0, 4, 8, 1, (250, 1000), Caps(2000, 600)),
    Mix.SFT: Waves(Source.EVALUATION, 4.0, 8, 1, 1500, (1, 32), Caps(4000, 32)),
}


def rate_per_s(mix: Mix, users_per_s: float) -> float:
    """Requests per second of all kinds, on average; `users_per_s` is what users alone would send."""
    waves = _WAVES.get(mix)
    return users_per_s if waves is None else min(users_per_s, _USERS_BESIDE_PER_S) + waves.rate_per_s


def requests(
    mix: Mix, *, users_per_s: float, duration_s: float | None, seed: int, caps: Caps | None = None
) -> Iterator[TraceRow]:
    """All requests of a mix in order of arrival; endless where `duration_s` is None."""
    rows, waves = load_trace(), _WAVES.get(mix)
    if waves is None:
        return arrivals(rows, rate_per_s=users_per_s, duration_s=duration_s, seed=seed, caps=caps)
    beside = min(users_per_s, _USERS_BESIDE_PER_S)
    users = arrivals(rows, rate_per_s=beside, duration_s=duration_s, seed=seed, caps=caps)
    return heapq.merge(users, batches(rows, waves, duration_s, seed), key=lambda row: row.at_s)


def batches(rows: Sequence[TraceRow], waves: Waves, duration_s: float | None, seed: int) -> Iterator[TraceRow]:
    """The waves alone. The answers to one prompt share its text (`prompt_key`) and differ in length, as samples do."""
    rng = random.Random(seed)
    fitting = [row for row in rows if waves.fits(row)]
    for wave in itertools.count():
        at_s = waves.at_s(wave)
        if duration_s is not None and at_s >= duration_s:
            return
        for prompt in range(waves.prompts):
            tokens = rng.choice(fitting).prompt_tokens
            for row in rng.choices(fitting, k=waves.samples):
                yield _batched(row, waves, at_s, tokens, f"{waves.source}-{seed}-{wave}-{prompt}")


def _batched(row: TraceRow, waves: Waves, at_s: float, prompt_tokens: int, key: str) -> TraceRow:
    alone = waves.samples == 1
    prompt = min(row.prompt_tokens if alone else prompt_tokens, waves.caps.prompt_tokens)
    output = min(row.output_tokens, waves.caps.output_tokens)
    return replace(
        row, at_s=at_s, prompt_tokens=prompt, output_tokens=output, source=waves.source, prompt_key=None if alone else key
    )
