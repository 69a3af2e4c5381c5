"""A fake vLLM on loopback that counts, answers or keeps silent as a test says. Its page has vLLM's names, few of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.unit.loopback import Handler, Seen, Server, head, reply, serving, silence

TOKEN = b'data: {"choices":[{"index":0,"text":" yes","finish_reason":null}]}\n\n'
LENGTH = b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\n'
DONE = b"data: [DONE]\n\n"
BOUNDS = ("0.1", "1.0", "10.0", "+Inf")


@dataclass
class FakeEngine:
    """The knobs. ``page``, ``health`` and ``probe`` are replaced by other handlers to break that part."""

    model: str = "tiny"
    generated: float = 0
    prompt: float = 0
    finished: float = 0
    preemptions: float = 0
    queries: float = 0
    hits: float = 0
    running: float = 0
    waiting: float = 0
    kv: float = 0
    ttft_counts: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0, 0.0])
    started: float = 1000
    cpu_s: float | None = None
    page: Handler | None = None
    health: Handler | None = None
    probe: Handler | None = None
    tokens_per_page: float = 0
    """Counted at each page read: an engine at work."""
    counts_probes: bool = True
    server: Server = field(default_factory=lambda: Server(""))

    @property
    def url(self) -> str:
        return self.server.url

    def silent(self) -> None:
        """A stopped process: accepts, and answers nothing."""
        self.page = self.health = self.probe = silence

    def well(self) -> None:
        self.page = self.health = self.probe = None

    def restart(self) -> None:
        """Another process: a later start time, and all counters from the beginning."""
        self.started += 1_000
        self.generated = self.prompt = self.finished = self.preemptions = self.queries = self.hits = 0
        self.ttft_counts = [0.0] * len(BOUNDS)

    def asked(self, path: str) -> int:
        return sum(request.path == path for request in self.server.requests)

    async def handle(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        answers: dict[str, Callable[[], Handler]] = {
            "/metrics": lambda: self.page or self._metrics,
            "/health": lambda: self.health or reply(200),
            "/v1/completions": lambda: self.probe or self._complete,
        }
        answer = answers.get(seen.path)
        await (answer() if answer else reply(404, {"detail": "Not Found"}))(seen, writer)

    async def _metrics(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        self.generated += self.tokens_per_page
        await reply(200, self.text(), "content-type: text/plain; version=0.0.4")(seen, writer)

    async def _complete(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        if self.counts_probes:
            self.generated, self.prompt, self.finished = self.generated + 1, self.prompt + 9, self.finished + 1
            self.ttft_counts = [count + 1 for count in self.ttft_counts]
        writer.write(head(200, "content-type: text/event-stream") + TOKEN + LENGTH + DONE)
        await writer.drain()
        writer.close()

    def text(self) -> str:
        """The page as it stands."""
        own = f'engine="0",model_name="{self.model}"'
        lines = [
            f"process_start_time_seconds {self.started}",
            *([] if self.cpu_s is None else [f"process_cpu_seconds_total {self.cpu_s}"]),
            f"vllm:num_requests_running{{{own}}} {self.running}",
            f"vllm:num_requests_waiting{{{own}}} {self.waiting}",
            f"vllm:kv_cache_usage_perc{{{own}}} {self.kv}",
            f"vllm:generation_tokens_total{{{own}}} {self.generated}",
            f"vllm:prompt_tokens_total{{{own}}} {self.prompt}",
            f"vllm:num_preemptions_total{{{own}}} {self.preemptions}",
            f"vllm:prefix_cache_queries_total{{{own}}} {self.queries}",
            f"vllm:prefix_cache_hits_total{{{own}}} {self.hits}",
            f'vllm:request_success_total{{{own},finished_reason="length"}} {self.finished}',
            *(
                f'vllm:time_to_first_token_seconds_bucket{{{own},le="{bound}"}} {count}'
                for bound, count in zip(BOUNDS, self.ttft_counts, strict=True)
            ),
            f"vllm:time_to_first_token_seconds_count{{{own}}} {self.ttft_counts[-1]}",
            f"vllm:time_to_first_token_seconds_sum{{{own}}} {self.ttft_counts[-1] * 0.05}",
        ]
        return "\n".join(lines) + "\n"


@asynccontextmanager
async def engine(**knobs: object) -> AsyncIterator[FakeEngine]:
    """A running fake engine."""
    fake = FakeEngine(**knobs)  # type: ignore[arg-type]
    async with serving(fake.handle) as server:
        fake.server = server
        yield fake
