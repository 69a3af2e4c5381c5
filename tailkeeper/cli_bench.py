"""``tailkeeper bench …``: each command parses, runs its benchmark, which is imported when used, and prints figures."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tailkeeper.ending import FAILED, USAGE, fail, need

bench = typer.Typer(help="The project's own benchmarks, figures as JSON.", no_args_is_help=True)


def _benchmarks() -> Any:
    try:
        from tailkeeper import bench as benchmarks
    except ImportError as error:
        need("watchdog", error)
    return benchmarks


Json = Annotated[bool, typer.Option("--json", help="JSON is always printed; accepted for scripts.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]


Backends = Annotated[
    list[str] | None,
    typer.Option("--backends", metavar="N[,N…]", help="1 to 10,000, default 1000; of several, how the cost grows."),
]
DEFAULT_BACKENDS = "1000"


@bench.command("tick")
def bench_tick(
    backends: Backends = None,
    ticks: Annotated[int, typer.Option(min=3, max=10_000)] = 20,
    as_json: Json = False,
    seed: Seed = 1,
) -> None:
    """Whole ticks over a synthetic fleet. Of one size its figures, of several `{"runs": [...], "growth_exponents": [...]}`."""
    try:
        from tailkeeper import bench_sizes
    except ImportError as error:
        need("watchdog", error)
    try:
        sizes = bench_sizes.sizes_in(backends or [DEFAULT_BACKENDS])
    except ValueError as error:
        fail(USAGE, f"--backends: {error}")
    typer.echo(json.dumps(bench_sizes.ticks_of(sizes, ticks, seed)))


@bench.command("p99")
def bench_p99(as_json: Json = False, seed: Seed = 1) -> None:
    """An exact sliding P99 beside its peers, at windows of 1,000, 10,000 and 100,000 samples."""
    try:
        from tailkeeper.bench_p99 import p99_bench
    except ImportError as error:
        need("watchdog", error)
    try:
        typer.echo(json.dumps(p99_bench(seed)))
    except RuntimeError as error:
        fail(FAILED, str(error))


@bench.command("exporter")
def bench_exporter(as_json: Json = False, seed: Seed = 1, seconds: Annotated[float, typer.Option(min=2, max=600)] = 10) -> None:
    """Parsing and writing pages against prometheus_client in one run, and CPU per backend at one read a second."""
    figures = _benchmarks().exporter_bench(seconds)
    from tailkeeper.bench_render import render_bench

    try:
        typer.echo(json.dumps(figures | {"render": render_bench()}))
    except RuntimeError as error:
        fail(FAILED, str(error))


@bench.command("loop")
def bench_loop(
    trials: Annotated[int, typer.Option(min=1, max=1_000)] = 20,
    tick_s: Annotated[float, typer.Option(min=0.1, max=10)] = 0.5,
    peers: Annotated[bool, typer.Option("--peers", help="Beside it Envoy and HAProxy alone.")] = False,
    as_json: Json = False,
    seed: Seed = 1,
) -> None:
    """From the first exporter page that reports the state to the changed weight read at the gateway; GPU faults; shedding."""
    try:
        typer.echo(json.dumps(_benchmarks().loop_bench(trials, tick_s, seed, peers)))
    except (RuntimeError, TimeoutError) as error:
        fail(FAILED, str(error) or "a gateway was never changed: a trial ended after 30 s")


@bench.command("forecast")
def bench_forecast(
    hours: Annotated[float, typer.Option(min=1, max=100, help="Simulated, of each stream.")] = 4,
    backends: Annotated[int, typer.Option(min=1, max=100)] = 4,
    as_json: Json = False,
    seed: Seed = 1,
) -> None:
    """Forecasts of the next 30 s against the last value, on simulated queues."""
    try:
        from tailkeeper.bench_forecast import forecast_bench
    except ImportError as error:
        need("watchdog", error)
    typer.echo(json.dumps(forecast_bench(hours, backends, seed)))


@bench.command("tap")
def bench_tap(
    streams: Annotated[int, typer.Option(min=1, max=2_000)] = 200,
    seconds: Annotated[float, typer.Option(min=0.5, max=600, help="Of each round, direct and tapped each.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, max=100)] = 3,
    as_json: Json = False,
    seed: Seed = 1,
) -> None:
    """Streams straight from an engine, through the tap, and through HAProxy alone, in turns: first tokens, throughput, CPU."""
    from tailkeeper.bench_tap import run

    try:
        typer.echo(json.dumps(asyncio.run(run(streams, seconds, rounds, seed))))
    except RuntimeError as error:
        fail(FAILED, str(error))


@bench.command("drift")
def bench_drift(
    as_json: Annotated[bool, typer.Option("--json", help="Figures instead of tables; a file always gives JSON.")] = False,
    seed: Seed = 1,
    records: Annotated[Path | None, typer.Option("--input", help="CSV of request records to run every detector over.")] = None,
    baseline: Annotated[int, typer.Option(min=1, help="With --input: so many first rows are the baseline.")] = 20_000,
    streams: Annotated[int, typer.Option(min=1, max=50, help="Simulated streams of each kind, with and without drift.")] = 4,
    quick: Annotated[bool, typer.Option("--quick", help="One short stream of each kind: a look, not a measurement.")] = False,
) -> None:
    """Drift detectors: false alarms, share of drifts found and delay, on simulated streams or a file."""
    try:
        from tailkeeper import bench_drift as drift
    except ImportError as error:
        need("watchdog", error)
    if records is not None:
        try:
            typer.echo(json.dumps(drift.input_bench(records, baseline)))
        except (ValueError, OSError) as error:
            fail(USAGE, f"--input {records}: {error}")
        return
    figures = drift.stream_bench(drift.QUICK if quick else drift.Size(streams), seed)
    typer.echo(json.dumps(figures) if as_json else drift.table(figures))


@bench.command("attribution")
def bench_attribution(as_json: Json = False, seed: Seed = 1) -> None:
    """The causes of one finding, by how many requests are looked at, and their exact shares beside enumeration."""
    try:
        from tailkeeper.bench_attribution import attribution_bench
    except ImportError as error:
        need("watchdog", error)
    try:
        typer.echo(json.dumps(attribution_bench(seed)))
    except RuntimeError as error:
        fail(FAILED, str(error))


@bench.command("prometheus")
def bench_prometheus(
    backends: Annotated[str, typer.Option(help="Sizes of the fleet, with commas between them.")] = "10,100,1000,10000",
    rounds: Annotated[int, typer.Option(min=1, max=100)] = 3,
    as_json: Json = False,
    seed: Seed = 1,
) -> None:
    """Whole fleets read through a real Prometheus server: queries a tick by its own count, time, CPU and memory of both."""
    try:
        from tailkeeper.bench_prometheus import prometheus_bench, sizes_of
    except ImportError as error:
        need("watchdog", error)
    try:
        sizes = sizes_of(backends)
    except ValueError as error:
        fail(USAGE, f"--backends: {error}")
    try:
        typer.echo(json.dumps(asyncio.run(prometheus_bench(sizes, rounds))))
    except RuntimeError as error:
        fail(FAILED, str(error))


@bench.command("ledger")
def bench_ledger(
    folder: Annotated[Path | None, typer.Option(help="On the disk that is meant; default: the one for temporary files.")] = None,
    as_json: Json = False,
    seed: Seed = 1,
) -> None:
    """Writing changes down, beside bare SQLite with the same care for the disk and with none, in turns."""
    try:
        from tailkeeper.bench_ledger import ledger_bench
        from tailkeeper_watchdog.ledger import LedgerError
    except ImportError as error:
        need("watchdog", error)
    try:
        typer.echo(json.dumps(ledger_bench(folder)))
    except (LedgerError, OSError) as error:
        fail(FAILED, str(error))


@bench.command("replay")
def bench_replay(as_json: Json = False, seed: Seed = 1) -> None:
    """`tailkeeper replay` over fleets recorded here: how much faster than life."""
    try:
        from tailkeeper.bench_replay import replay_bench
    except ImportError as error:
        need("watchdog", error)
    try:
        typer.echo(json.dumps(replay_bench(seed)))
    except RuntimeError as error:
        fail(FAILED, str(error))
