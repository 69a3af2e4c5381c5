"""What the exporter sends of a few requests, for tests of the doubles that answer from it."""

from __future__ import annotations

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tailkeeper_exporter.otlp.spans import log_of, spans_of
from tailkeeper_exporter.tap.exchange import Exchange
from tests.unit.tap_exchanges import exchange
from tools.doubles.store import Store

AT_S = 1_800_000_000
"""When request 0 began; each next one began a second later."""
GPU = "GPU-51a00000-0000-0000-0000-00000000000b"


def request(number: int, *, backend: str = "sim-b", outcome: str = "ok", ttft_s: float = 0.2) -> Exchange:
    """Lasts a second and a half. Its ids begin with zeros, which Tempo's answers leave out."""
    ids = {"request_id": f"r-{number}", "trace_id": f"{number + 1:032x}", "span_id": f"{number + 1:016x}"}
    times = {"start_unix_s": AT_S + number, "first_token_s": ttft_s, "last_token_s": ttft_s + 1.0, "end_s": ttft_s + 1.3}
    error = "refused" if outcome == "error" else ""
    return exchange(**ids, **times, backend=backend, outcome=outcome, model="llama", prompt_tokens=100 + number, error=error)


def spans(*exchanges: Exchange) -> list[ExportTraceServiceRequest]:
    return [found for one in exchanges if (found := spans_of(one, GPU, "vllm")) is not None]


def logs(*exchanges: Exchange) -> list[ExportLogsServiceRequest]:
    return [log_of(one, GPU) for one in exchanges]


def store(*exchanges: Exchange) -> Store:
    """A store that was sent these requests."""
    made = Store()
    for traces in spans(*exchanges):
        made.add_spans(traces)
    for lines in logs(*exchanges):
        made.add_logs(lines)
    return made
