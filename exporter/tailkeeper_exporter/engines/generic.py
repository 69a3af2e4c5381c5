"""Any server with an OpenAI-compatible API: liveness by our own probe and its health page, and no engine metrics but a tap's.

There is no table, because nothing is known of its page. With `metrics_url` a page is read all the same: for the process's
start time and CPU time, and as a sign of life.
"""

from __future__ import annotations

from tailkeeper_exporter.engines.base import Engine

GENERIC = Engine(
    name="generic",
    metrics_path=None,
    health_path="/health",
    sources=(),
    cannot_tell=(
        "anything about its requests, tokens or latencies without a tap; and with a health page that still answers, a full "
        "server from a frozen one, unless a tap sees streams that had begun and have stopped: its state is then unknown, and "
        "no action follows."
    ),
)
