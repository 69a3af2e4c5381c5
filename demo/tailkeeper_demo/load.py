"""Open-loop load: completions whose arrivals and lengths come from the packaged trace, streamed to users, whole for batches.

    python -m tailkeeper_demo.load --target http://127.0.0.1:8000 --rate 10 --duration 60 --stats-file load.json

Requests are sent when the trace says so, whatever became of earlier ones; only `--max-in-flight` holds them back, and what is
held back is counted as refused. Time to first token is taken at the first event with content. One connection a request.
A user's request is judged by its first token, a batch's by its whole answer.
Data flows trace → `mix` → `LoadGenerator` → `_Exchange` per request → `LoadStats` → file.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO
from urllib.parse import urlsplit

from tailkeeper_demo.http1 import BodyDecoder, ProtocolError, parse_head
from tailkeeper_demo.json_file import write_json
from tailkeeper_demo.lifetime import until_told
from tailkeeper_demo.load_stats import LoadStats, Outcome
from tailkeeper_demo.mix import Mix, rate_per_s, requests
from tailkeeper_demo.trace import Caps, Source, TraceRow

_CONTENT = re.compile(rb'"(?:text|content)":"[^"]')
"""The first non-empty piece of text in a stream event; the role event of a chat has an empty one."""
_DONE = b"data: [DONE]"
_TAIL_BYTES = 64
"""Kept from one read to the next, so that a marker cut in two is found."""
_REPORT_PERIOD_S = 0.5
SLO_WHOLE_S = 30.0
"""The configuration's own default of `slo.latency.e2e_p99_s`."""


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """One run. Times in seconds; `duration_s` None runs until told to stop."""

    host: str
    port: int
    rate_per_s: float
    duration_s: float | None
    seed: int
    slo_ttft_s: float
    timeout_s: float
    max_in_flight: int
    model: str
    caps: Caps
    mix: Mix = Mix.ONLINE
    slo_whole_s: float = SLO_WHOLE_S
    """Service level of answers that are not streamed: seconds until they are complete."""
    timeout_whole_s: float = 60.0


class _Exchange(asyncio.Protocol):
    """One request and its answer: streamed for `Source.ONLINE`, else whole."""

    def __init__(self, generator: LoadGenerator, request: bytes, source: Source, sent_s: float) -> None:
        self._generator = generator
        self._request = request
        self._source = source
        self._streamed = source is Source.ONLINE
        self.sent_s = sent_s
        self.transport: asyncio.Transport | None = None
        self._head = b""
        self._body: BodyDecoder | None = None
        self._tail = b""
        self._content = False
        self._judged_s: float | None = None
        self._within = False
        self._ttft_s: float | None = None
        self._over = False
        loop = generator.loop
        settings = generator.settings
        limit_s, patience_s = settings.slo_ttft_s, settings.timeout_s
        if not self._streamed:
            limit_s, patience_s = settings.slo_whole_s, settings.timeout_whole_s
        self._limit = loop.call_at(sent_s + limit_s, self._judge, False)
        self._patience = loop.call_at(sent_s + patience_s, self.end, Outcome.TIMEOUT)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self._over:
            transport.abort()
        else:
            transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        try:
            self._take(data)
        except ProtocolError:
            self.end(Outcome.ERROR, "protocol")

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(Outcome.ERROR, "truncated")

    def _take(self, data: bytes) -> None:
        if self._body is None:
            raw, found, data = (self._head + data).partition(b"\r\n\r\n")
            if not found:
                self._head = raw
                return
            head = parse_head(raw)
            if head.status != 200:
                self.end(Outcome.ERROR, f"http_{head.status}")
                return
            self._body = BodyDecoder.for_headers(head.headers, response=True)
        window = self._tail + self._body.feed(data)
        if not self._content and _CONTENT.search(window):
            self._first_content()
        if self._body.done or (self._streamed and _DONE in window):
            self._complete(self._content and (not self._streamed or _DONE in window))
        self._tail = window[-_TAIL_BYTES:]

    def _complete(self, whole: bool) -> None:
        if whole and not self._streamed:
            settings, now_s = self._generator.settings, self._generator.loop.time()
            self._judge(now_s - self.sent_s <= settings.slo_whole_s)
        self.end(Outcome.OK if whole else Outcome.ERROR, "truncated")

    def _first_content(self) -> None:
        self._content = True
        if not self._streamed:
            return
        now_s = self._generator.loop.time()
        ttft_s = now_s - self.sent_s
        self._ttft_s = ttft_s
        self._generator.stats.first_content(self._generator.run_s(now_s), ttft_s)
        self._judge(ttft_s <= self._generator.settings.slo_ttft_s)

    def _judge(self, within: bool) -> None:
        if self._judged_s is None:
            self._judged_s, self._within = self._generator.run_s(), within
            self._limit.cancel()
            self._generator.stats.verdict(self._generator.run_s(), within=within, source=self._source)

    def end(self, outcome: Outcome, kind: str | None = None) -> None:
        """Close the books on this request; the first call counts. A run that stops judges nothing."""
        if self._over:
            return
        self._over = True
        if outcome is not Outcome.ABORTED:
            self._judge(False)
        self._limit.cancel()
        self._patience.cancel()
        if self.transport is not None:
            self.transport.close() if outcome is Outcome.OK else self.transport.abort()
        self._generator.ended(self, outcome, kind)

    def record(self, outcome: Outcome) -> dict[str, object]:
        """Wall-clock seconds of its start, its end and its verdict, and what came of it."""
        generator, judged_s = self._generator, self._judged_s
        return {
            "start_s": generator.unix_s(generator.run_s(self.sent_s)),
            "end_s": generator.unix_s(generator.run_s()),
            "judged_s": generator.unix_s(generator.run_s() if judged_s is None else judged_s),
            "ttft_s": self._ttft_s,
            "within": self._within,
            "outcome": outcome.value,
        }


class LoadGenerator:
    """Sends, and collects what came of it."""

    def __init__(self, settings: LoadSettings, rows: Iterator[TraceRow], stats: LoadStats, record: TextIO | None = None) -> None:
        """``record`` gets a line of JSON for each request that ended."""
        self.settings = settings
        self.stats = stats
        self._record = record
        self.loop = asyncio.get_running_loop()
        self._rows = rows
        self._start_s = self.loop.time()
        self._flying: set[_Exchange] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._number = 0
        self._all_sent = False
        self._idle = asyncio.Event()

    def run_s(self, now_s: float | None = None) -> float:
        """Seconds since the run began."""
        return (self.loop.time() if now_s is None else now_s) - self._start_s

    async def run(self) -> None:
        """Send every request when it is due, then wait until the last one ended."""
        for row in self._rows:
            wait_s = row.at_s - self.run_s()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            self._send(row)
        self._all_sent = True
        if self._flying:
            await self._idle.wait()

    def stop(self) -> None:
        """Cut what is in flight."""
        for exchange in tuple(self._flying):
            exchange.end(Outcome.ABORTED)
        for task in tuple(self._connecting):
            task.cancel()

    def ended(self, exchange: _Exchange, outcome: Outcome, kind: str | None) -> None:
        self._flying.discard(exchange)
        if self._all_sent and not self._flying:
            self._idle.set()
        self.stats.ended(self.run_s(), outcome, kind)
        if self._record is not None:
            self._record.write(json.dumps(exchange.record(outcome)) + "\n")

    def unix_s(self, run_s: float) -> float:
        """Wall-clock time of a moment of the run."""
        return self.stats.started_unix_s + run_s

    def _send(self, row: TraceRow) -> None:
        now_s = self.loop.time()
        if len(self._flying) >= self.settings.max_in_flight:
            self.stats.refused(self.run_s(now_s))
            return
        self._number += 1
        exchange = _Exchange(self, self._request(row), row.source, now_s)
        self._flying.add(exchange)
        self.stats.sent(self.run_s(now_s))
        task = self.loop.create_task(self._connect(exchange))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, exchange: _Exchange) -> None:
        try:
            await self.loop.create_connection(lambda: exchange, self.settings.host, self.settings.port)
        except OSError:
            exchange.end(Outcome.ERROR, "connect")

    def _request(self, row: TraceRow) -> bytes:
        settings = self.settings
        body = json.dumps(
            {
                "model": settings.model,
                "prompt": "Keep the tail short.",
                "max_tokens": max(settings.caps.output_tokens, row.output_tokens),
                "stream": row.source is Source.ONLINE,
                "x_prompt_tokens": row.prompt_tokens,
                "x_output_tokens": row.output_tokens,
                # How long the prompt was is told with the last token, to a tap too.
                **({"stream_options": {"include_usage": True}} if row.source is Source.ONLINE else {}),
            }
        ).encode()
        lines = (
            "POST /v1/completions HTTP/1.1",
            f"host: {settings.host}:{settings.port}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            f"x-request-id: load-{settings.seed}-{self._number}",
            f"x-operation: {row.source}",
            "connection: close",
            *(() if row.source is Source.ONLINE else ("x-priority: low",)),
            *(() if row.prompt_key is None else (f"x-simulated-prompt: {row.prompt_key}",)),
        )
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def _report(path: Path, generator: LoadGenerator) -> None:
    while True:
        write_json(path, generator.stats.document(generator.run_s(), done=False))
        await asyncio.sleep(_REPORT_PERIOD_S)


def _positive(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


@dataclass(frozen=True, slots=True)
class _Files:
    """Where results go, and whose end is ours."""

    stats: Path | None
    requests: Path | None
    parent_pid: int | None


def _settings(argv: list[str] | None) -> tuple[LoadSettings, _Files]:
    parser = argparse.ArgumentParser(prog="python -m tailkeeper_demo.load", description="Trace-driven load on an LLM endpoint.")
    parser.add_argument("--target", required=True, help="http://HOST:PORT")
    parser.add_argument("--rate", type=_positive, default=10.0, help="users' requests a second on average; fewer beside batches")
    parser.add_argument("--mix", type=Mix, choices=list(Mix), default=Mix.ONLINE, help="users alone, or beside batches")
    parser.add_argument("--duration", type=_positive, default=None, help="seconds; without it, until told to stop")
    parser.add_argument("--seed", type=int, default=1, help="chooses the part of the trace")
    parser.add_argument("--slo-ttft", type=_positive, default=1.2, help="seconds to the first token")
    parser.add_argument(
        "--slo-whole", type=_positive, default=SLO_WHOLE_S, help="seconds to the whole answer, where it is not streamed"
    )
    parser.add_argument("--timeout", type=_positive, default=20.0, help="seconds until a user gives up")
    parser.add_argument("--timeout-whole", type=_positive, default=60.0, help="seconds until a batch gives up on an answer")
    parser.add_argument("--max-in-flight", type=int, default=400)
    parser.add_argument("--max-prompt-tokens", type=int, default=3000)
    parser.add_argument("--max-output-tokens", type=int, default=200)
    parser.add_argument("--model", default="llama-3-8b")
    parser.add_argument("--stats-file", type=Path, default=None)
    parser.add_argument("--requests-file", type=Path, default=None, help="a line of JSON for each request that ended")
    parser.add_argument("--parent-pid", type=int, default=None, help="end when this process is gone")
    given = parser.parse_args(argv)
    target = urlsplit(given.target)
    if target.scheme != "http" or target.hostname is None:
        parser.error(f"--target {given.target!r} is not http://HOST:PORT")
    for name in ("max_in_flight", "max_prompt_tokens", "max_output_tokens"):
        if getattr(given, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    settings = LoadSettings(
        host=target.hostname,
        port=target.port or 80,
        rate_per_s=given.rate,
        duration_s=given.duration,
        seed=given.seed,
        slo_ttft_s=given.slo_ttft,
        timeout_s=given.timeout,
        max_in_flight=given.max_in_flight,
        model=given.model,
        caps=Caps(given.max_prompt_tokens, given.max_output_tokens),
        mix=given.mix,
        slo_whole_s=given.slo_whole,
        timeout_whole_s=given.timeout_whole,
    )
    return settings, _Files(given.stats_file, given.requests_file, given.parent_pid)


async def _run(settings: LoadSettings, files: _Files) -> int:
    with contextlib.ExitStack() as stack:
        try:
            record = stack.enter_context(files.requests.open("w", buffering=1)) if files.requests is not None else None
        except OSError as error:
            print(f"cannot write the requests file {files.requests}: {error}", file=sys.stderr)
            return 1
        return await _load(settings, files, record)


async def _load(settings: LoadSettings, files: _Files, record: TextIO | None) -> int:
    stats_file = files.stats
    rate = rate_per_s(settings.mix, settings.rate_per_s)
    stats = LoadStats(rate_per_s=rate, slo_ttft_s=settings.slo_ttft_s, started_unix_s=time.time())
    rows = requests(
        settings.mix, users_per_s=settings.rate_per_s, duration_s=settings.duration_s, seed=settings.seed, caps=settings.caps
    )
    generator = LoadGenerator(settings, rows, stats, record)
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(generator.run()), loop.create_task(until_told(files.parent_pid))]
    if stats_file is not None:
        tasks.append(loop.create_task(_report(stats_file, generator)))
    try:
        finished, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in finished:
            task.result()
    except OSError as error:
        print(f"cannot write the stats file {stats_file}: {error}", file=sys.stderr)
        return 1
    finally:
        generator.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    final = stats.document(generator.run_s(), done=True)
    if stats_file is not None:
        write_json(stats_file, final)
    print(json.dumps(final["totals"]))
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run the load. Returns the exit code: 0, 1 when the stats file cannot be written, 2 on wrong usage."""
    settings, files = _settings(argv)
    with contextlib.suppress(BrokenPipeError):
        return asyncio.run(_run(settings, files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
