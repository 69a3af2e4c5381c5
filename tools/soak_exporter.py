"""Ten thousand scrapes of a real exporter over ten backends: is its memory small, and does it stay flat?

``python tools/soak_exporter.py [--scrapes 10000] [--rate 20]`` starts ``tailkeeper exporter`` as a process over ten engines of
a real page whose counters move, among them one that answers rubbish and one that refuses connections, scrapes it in both
dialects, posts spans to it, and reads its resident memory from ``/proc``. Prints JSON; exit 1 above the limits. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import yaml

from tailkeeper_exporter.bench_loop import moving_engines

LIMIT_BYTES = 120 * 1024 * 1024
"""The product's limit for ten backends."""
FLAT = 0.02
"""How much the last quarter may be above the second: the request ring has filled by then, and Python's heap has settled."""
PAGE = Path(__file__).parent.parent / "tests/fixtures/scrapes/vllm-0.32.0.prom"
OPEN_METRICS = "application/openmetrics-text;version=1.0.0"
MARK_EVERY = 100


def configuration(folder: Path, engines: str, rubbish: str, listen: str) -> Path:
    """Ten backends: eight good ones, one whose page is rubbish, one where nobody listens."""
    backends = [{"name": f"b{n}", "engine": "vllm", "model": "tiny", "url": engines} for n in range(8)]
    backends += [
        {"name": "rubbish", "engine": "vllm", "url": rubbish},
        {"name": "refused", "engine": "vllm", "url": "http://127.0.0.1:9"},
    ]
    file = folder / "soak.yaml"
    file.write_text(yaml.safe_dump({"backends": backends, "exporter": {"listen": listen, "gpu": {"source": "none"}}}))
    return file


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def spans(number: int) -> dict[str, object]:
    """Twenty finished requests as vLLM tells them, so that the ring of requests fills and turns over."""
    now = time.time_ns()
    made = [
        {
            "traceId": f"{number:024x}{n:08x}",
            "spanId": f"{number * 20 + n + 1:016x}",
            "name": "llm_request",
            "startTimeUnixNano": str(now - 10**9),
            "endTimeUnixNano": str(now),
            "attributes": [
                {"key": "gen_ai.request.id", "value": {"stringValue": f"cmpl-{number}-{n}"}},
                {"key": "tailkeeper.backend", "value": {"stringValue": f"b{n % 8}"}},
                {"key": "gen_ai.latency.time_to_first_token", "value": {"doubleValue": 0.2}},
            ],
        }
        for n in range(20)
    ]
    return {"resourceSpans": [{"scopeSpans": [{"spans": made}]}]}


def scrape(client: httpx.Client, number: int) -> None:
    page = client.get("/metrics", headers={"accept": OPEN_METRICS if number % 2 else "text/plain"})
    page.raise_for_status()
    assert page.text.count("llm_backend_state{") == 70, "a backend is missing on the page"
    if number % 10 == 0:
        client.get("/healthz")
        client.post("/v1/traces", json=spans(number)).raise_for_status()


def soak(base: str, pid: int, scrapes: int, rate: float) -> list[int]:
    """Resident memory at every hundredth scrape."""
    found = []
    with httpx.Client(base_url=base, timeout=10, trust_env=False) as client:
        started = time.monotonic()
        for number in range(scrapes):
            scrape(client, number)
            if number % MARK_EVERY == MARK_EVERY - 1:
                found.append(rss_bytes(pid))
            if number % 1_000 == 999:
                print(f"{number + 1} scrapes, {found[-1] / 1e6:.1f} MB", file=sys.stderr, flush=True)
            time.sleep(max(0.0, started + (number + 1) / rate - time.monotonic()))
    return found


def wait_until_ready(base: str) -> None:
    for _ in range(200):
        try:
            if httpx.get(base + "/readyz", timeout=1, trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise SystemExit("the exporter did not become ready")


def verdict(found: list[int], scrapes: int) -> dict[str, object]:
    quarter = len(found) // 4
    early, late = max(found[quarter : 2 * quarter]), max(found[3 * quarter :])
    good = late <= LIMIT_BYTES and late <= early * (1 + FLAT)
    return {
        "scrapes": scrapes,
        "rss_second_quarter_bytes": early,
        "rss_last_quarter_bytes": late,
        "limit_bytes": LIMIT_BYTES,
        "good": good,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scrapes", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=20.0, help="scrapes a second")
    parser.add_argument("--port", type=int, default=19_400)
    given = parser.parse_args()
    listen = f"127.0.0.1:{given.port}"
    with (
        tempfile.TemporaryDirectory() as folder,
        moving_engines(PAGE.read_text()) as good,
        moving_engines("<html>rubbish</html>") as bad,
    ):
        config = configuration(Path(folder), f"http://127.0.0.1:{good.port}", f"http://127.0.0.1:{bad.port}", listen)
        command = [sys.executable, "-m", "tailkeeper.cli", "exporter", "-c", str(config)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:  # noqa: S603  our own command
            try:
                wait_until_ready(f"http://{listen}")
                result = verdict(soak(f"http://{listen}", process.pid, given.scrapes, given.rate), given.scrapes)
            finally:
                process.terminate()
    print(json.dumps(result))
    return 0 if result["good"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
