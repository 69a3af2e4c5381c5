"""The one console command. Parses, loads the configuration, and hands over; heavy parts are imported when used.

Exit codes: 0 done, 1 failed at run time, 2 wrong usage or configuration.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from tailkeeper import __version__
from tailkeeper.config import Config, ConfigError, effective, load, weights_in
from tailkeeper.logs import LogFormat, set_up
from tailkeeper_exporter.change_rights import read_token
from tailkeeper_exporter.settings import check_address, is_loopback, is_same_server
from tailkeeper_watchdog.weights_file import WeightsFile

if TYPE_CHECKING:
    from tailkeeper_alerts.notifications.receivers import Receivers
    from tailkeeper_exporter.discovery import Discoverer
    from tailkeeper_watchdog.leadership import Leadership
    from tailkeeper_watchdog.settings import WatchedBackend

app = typer.Typer(
    name="tailkeeper",
    help="Keeps the tail latency of self-hosted LLM inference inside its SLA.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

USAGE = 2
FAILED = 1

ConfigFile = Annotated[Path, typer.Option("-c", "--config", help="The configuration file (YAML).")]
Listen = Annotated[str | None, typer.Option("--listen", metavar="HOST:PORT", help="Instead of the configured address.")]
Format = Annotated[LogFormat | None, typer.Option("--log-format", help="Default: text on a terminal, else json.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tailkeeper {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", is_eager=True, callback=_print_version)
    ] = False,
    log_format: Format = None,
) -> None:
    """Keeps the tail latency of self-hosted LLM inference inside its SLA."""
    set_up(log_format)


def fail(code: int, *lines: str) -> NoReturn:
    """Say what was wrong on stderr and end."""
    for line in lines:
        typer.echo(f"tailkeeper: {line}", err=True)
    raise typer.Exit(code)


def _load(path: Path) -> Config:
    try:
        return load(path)
    except ConfigError as error:
        fail(USAGE, *(f"{path}: {problem}" for problem in error.problems))


def _address(listen: str | None, default: str) -> str:
    try:
        return check_address(listen) if listen else default
    except ValueError as error:
        fail(USAGE, f"--listen: {error} (given: {listen!r})")


def _run(work: Any) -> None:
    """Run a service to its end; what stops it is one line, not a traceback."""
    from tailkeeper_exporter.clients import CredentialError

    try:
        asyncio.run(work)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
    except CredentialError as error:
        fail(USAGE, str(error))
    except OSError as error:
        fail(FAILED, f"{error.strerror or error}")


def _need(extra: str, error: ImportError) -> NoReturn:
    fail(FAILED, f"this command needs more than is installed ({error.name}): pip install 'tailkeeper[{extra}]'")


def _watchdog(file: WeightsFile, config: Config, discoverer: Discoverer[WatchedBackend] | None) -> Any:
    """A watchdog, over what is listed and what ``discoverer`` finds; who calls runs both. ``file`` is followed.

    It is built once no other one leads that has the same ledger.
    """
    try:
        import tailkeeper_watchdog.app  # noqa: F401 - now, for who takes over a dead leader's place has no second for it
        from tailkeeper_watchdog.leader_lease import KubernetesLeadership, new_identity
        from tailkeeper_watchdog.leadership import AllOf, FileLock
        from tailkeeper_watchdog.standby import TRY_EVERY_S, TRY_SERVER_EVERY_S, Standby
    except ImportError as error:
        _need("watchdog", error)
    settings = config.watchdog
    lock = FileLock(settings.state, settings.listen, time.time)
    try:
        token = read_token(settings.token_file, "watchdog.token_file")
    except (ValueError, OSError) as error:
        fail(USAGE, str(error))
    try:
        lock.check()
    except OSError as error:
        fail(FAILED, f"watchdog.state: {settings.state}: {error.strerror}; is the folder there and writable?")
    lease = settings.leader
    leadership = lock if lease is None else AllOf(lock, KubernetesLeadership(lease, new_identity()))
    build = partial(_built, file, config, discoverer, leadership)
    every_s = TRY_EVERY_S if lease is None else TRY_SERVER_EVERY_S
    return Standby(leadership, build, settings.listen, settings.state, token, every_s)


def _built(file: WeightsFile, config: Config, discoverer: Discoverer[WatchedBackend] | None, leadership: Leadership) -> Any:
    from tailkeeper_watchdog.actuators.calls import CallError
    from tailkeeper_watchdog.app import Watchdog
    from tailkeeper_watchdog.ledger import LedgerError

    try:
        found = None if discoverer is None else lambda: discoverer.backends
        return Watchdog(config.for_watchdog(), found, file, leadership)
    except LedgerError as error:
        fail(FAILED, f"watchdog.state: {error}")
    except (ValueError, OSError, CallError) as error:
        fail(USAGE, str(error))


@app.command()
def exporter(
    config: ConfigFile,
    backend: Annotated[
        list[str] | None, typer.Option("--backend", help="Only this listed backend, and no discovery; may be repeated.")
    ] = None,
    listen: Listen = None,
    log_format: Format = None,
) -> None:
    """Run the exporter for some or all backends of the file."""
    from tailkeeper.together import with_discovery
    from tailkeeper_exporter.app import serve

    set_up(log_format)
    loaded = _load(config)
    known = {b.name: b for b in loaded.backends}
    for name in backend or ():
        if name not in known:
            fail(USAGE, f"--backend: no backend {name!r} in {config}; known: {', '.join(known) or 'none'}")
    chosen = tuple(known[name] for name in dict.fromkeys(backend)) if backend else loaded.backends
    address = _address(listen, loaded.exporter.listen)
    collector = loaded.exporter.otlp.endpoint
    if collector is not None and is_same_server(collector, address):
        fail(USAGE, f"--listen: {address} is where exporter.otlp.endpoint leads ({collector}): spans would go round for ever")
    if backend and loaded.discovery:
        typer.echo("tailkeeper: --backend: only what it names is watched; discovery is off", err=True)
    discoverer = None if backend else loaded.discoverer()
    _run(with_discovery(discoverer, serve(chosen, loaded.exporter.model_copy(update={"listen": address}), discoverer)))


@app.command()
def watchdog(config: ConfigFile, listen: Listen = None, log_format: Format = None) -> None:
    """Run the watchdog."""
    from tailkeeper.together import with_discovery

    set_up(log_format)
    file = WeightsFile(config, weights_in)
    loaded = _load(config)
    address = _address(listen, loaded.watchdog.listen)
    if not is_loopback(address) and loaded.watchdog.token_file is None:
        fail(USAGE, f"--listen: {address} is not loopback; set watchdog.token_file, or listen on 127.0.0.1")
    discoverer = loaded.discoverer()
    _run(with_discovery(discoverer, _watchdog(file, loaded.listening_at(address), discoverer).run()))


@app.command()
def up(config: ConfigFile, log_format: Format = None) -> None:
    """Run exporter and watchdog together, in direct mode: no Prometheus is needed."""
    from tailkeeper.together import run_together

    set_up(log_format)
    file = WeightsFile(config, weights_in)
    loaded = _load(config)
    _run(run_together(loaded, partial(_watchdog, file)))


@app.command("check-config")
def check_config(config: ConfigFile) -> None:
    """Validate the file; print what each policy can do at each backend, and what each discovery finds now."""
    from tailkeeper.support import found_now, support_table

    loaded = _load(config)
    _check_baselines(loaded.watchdog.baselines)
    typer.echo(support_table(loaded))
    for line in found_now(loaded):
        typer.echo(line)
    typer.echo(f"{config}: good, {len(loaded.backends)} backends, {len(loaded.gateways)} gateways")


def _check_baselines(path: Path | None) -> None:
    if path is None:
        return
    try:
        from tailkeeper_watchdog.baseline_store import BaselineFileError, read_file
    except ImportError as error:
        _need("watchdog", error)
    try:
        read_file(path)
    except BaselineFileError as error:
        fail(USAGE, str(error))


@app.command("config")
def show_config(config: ConfigFile) -> None:
    """Print the configuration in force, with its defaults and without secrets."""
    typer.echo(effective(_load(config)), nl=False)


@app.command()
def generate(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail where a file differs.")] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Write under this folder.")] = None,
    alertmanager: Annotated[
        bool, typer.Option("--alertmanager", help="Only Alertmanager's files, from receivers.yaml under the folder.")
    ] = False,
    config: Annotated[
        Path | None, typer.Option("-c", "--config", help="Take the SLO, weights and addresses from this configuration file.")
    ] = None,
) -> None:
    """Write dashboards, rules, the Alertmanager configuration and the metric documentation."""
    from tailkeeper.files import differences, write
    from tailkeeper.receivers import keep_or_write_default, receivers_in
    from tailkeeper_alerts.alertmanager import render as render_alertmanager
    from tailkeeper_alerts.notifications.receivers import ReceiverFileError

    base = out or Path.cwd()
    try:
        receivers = receivers_in(base)
    except ReceiverFileError as error:
        fail(USAGE, *str(error).splitlines())
    loaded = None if config is None else _load(config)
    rendered = render_alertmanager(receivers) if alertmanager else _all_documents(receivers, loaded)
    if check:
        wrong = differences(rendered, base)
        if wrong:
            fail(FAILED, *wrong, "run `tailkeeper generate` and commit what it wrote")
        typer.echo(f"{len(rendered)} generated files are as they should be")
        return
    write(rendered, base)
    keep_or_write_default(base)
    typer.echo(f"{len(rendered)} files written under {base}")


def _all_documents(receivers: Receivers, config: Config | None) -> dict[str, str]:
    try:
        from tailkeeper.generate import documents
    except ImportError as error:
        _need("dashboards", error)
    return documents(receivers, config)


@app.command("notify-test")
def notify_test(
    config: ConfigFile,
    severity: Annotated[str, typer.Option(help="page, ticket or info: it goes where such an alert goes.")] = "ticket",
    backend: Annotated[str, typer.Option(help="As if it were about this backend.")] = "notify-test",
    wait_s: Annotated[
        float, typer.Option("--wait", min=0, max=600, help="Seconds until it ends; longer than Alertmanager's group_wait.")
    ] = 20,
) -> None:
    """Send one marked test notification through Alertmanager, say whom it reached, and end it."""
    from tailkeeper.notify_test import NotifyTestError, Trial, run

    settings = _load(config).watchdog.alertmanager
    try:
        run(Trial.of(settings, severity, backend, wait_s), typer.echo)
    except NotifyTestError as error:
        fail(error.code, str(error))


@app.command()
def status(
    url: Annotated[str, typer.Option("--url", help="The watchdog.")] = "http://127.0.0.1:8088",
    as_json: Annotated[bool, typer.Option("--json", help="The fleet document as it is.")] = False,
) -> None:
    """The fleet at a glance, and why nothing happened where nothing happened."""
    from tailkeeper.status import fetch_fleet, fleet_table

    try:
        fleet = fetch_fleet(url)
    except (OSError, ValueError) as error:
        fail(FAILED, f"{url}: {error}")
    typer.echo(json.dumps(fleet, indent=2) if as_json else fleet_table(fleet))


@app.command("release-all")
def release_all(config: ConfigFile) -> None:
    """Undo every change that this watchdog made at any gateway, and nothing else."""
    from tailkeeper.release import release_everything

    loaded = _load(config)
    lines, failed = release_everything(loaded)
    for line in lines:
        typer.echo(line)
    if failed:
        fail(FAILED, f"{failed} could not be given back; see above, and run this again")


@app.command()
def replay(
    config: Annotated[Path | None, typer.Option("-c", "--config", help="Decide by this file.")] = None,
    records: Annotated[Path | None, typer.Option("--records", metavar="FILE", help="Ticks that a watchdog recorded.")] = None,
    prometheus: Annotated[str | None, typer.Option("--prometheus", metavar="URL", help="Ask this server.")] = None,
    start: Annotated[str | None, typer.Option("--start", metavar="T", help="RFC 3339, epoch seconds, or -2d.")] = None,
    end: Annotated[str | None, typer.Option("--end", metavar="T", help="Likewise, or now.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, for machines.")] = False,
) -> None:
    """What would have been found and done, over recorded ticks or over the history in a Prometheus. Changes nothing."""
    try:
        from tailkeeper.replay import NothingToReplayError, UsageError, run, wanted
        from tailkeeper_watchdog.replay.words import text
    except ImportError as error:
        _need("watchdog", error)
    try:
        what = wanted(records, prometheus, start, end, time.time())
        loaded = None if config is None else _load(config)
        report = run(what, loaded, str(config), lambda line: typer.echo(f"tailkeeper: {line}", err=True))
    except UsageError as error:
        fail(USAGE, str(error))
    except NothingToReplayError as error:
        fail(FAILED, str(error))
    except OSError as error:
        fail(FAILED, f"{error.filename or records}: {error.strerror or error}")
    typer.echo(json.dumps(report, indent=2) if as_json else text(report))


DEMO_FAULTS = "hang, slow, oom, errors, restart, flap, throttle, blind"
DEMO_MIXES = "online, rlhf (rollouts beside users), sft (evaluations beside users)"
"""Said here, because the demo is an optional part and may not be installed."""


@app.command()
def demo(
    duration: Annotated[float | None, typer.Option(min=30, max=86_400, help="Seconds; default: until Ctrl-C.")] = None,
    fault: Annotated[str, typer.Option(help=f"The fault to inject: {DEMO_FAULTS}.")] = "hang",
    mix: Annotated[str, typer.Option(help=f"Kind of load: {DEMO_MIXES}.")] = "online",
    port: Annotated[int, typer.Option(min=1024, max=65_535, help="Where the console listens.")] = 8088,
    no_color: Annotated[bool, typer.Option("--no-color")] = False,
) -> None:
    """A simulated fleet, a gateway, load, a fault, and Tailkeeper at work. Exit 0 when the story ended well."""
    try:
        from tailkeeper_demo.story import DemoError, run_demo
    except ImportError as error:
        _need("demo", error)
    set_up(LogFormat.JSON)
    try:
        from tailkeeper_alerts.render import RULES_PATH, render

        color = not no_color and sys.stdout.isatty()
        rules = {Path(RULES_PATH).name: render()[RULES_PATH]}
        well = run_demo(duration, fault, mix, port, color=color, rules=rules)
    except DemoError as error:
        fail(error.code, str(error))
    raise typer.Exit(0 if well else FAILED)


bench = typer.Typer(help="The project's own benchmarks, figures as JSON.", no_args_is_help=True)
app.add_typer(bench, name="bench")


def _benchmarks() -> Any:
    try:
        from tailkeeper import bench as benchmarks
    except ImportError as error:
        _need("watchdog", error)
    return benchmarks


Json = Annotated[bool, typer.Option("--json", help="JSON is always printed; accepted for scripts.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]


@bench.command("tick")
def bench_tick(
    backends: Annotated[int, typer.Option(min=1, max=10_000)] = 1_000,
    ticks: Annotated[int, typer.Option(min=3, max=10_000)] = 20,
    as_json: Json = False,
    seed: Seed = 1,
) -> None:
    """Whole ticks over a synthetic fleet."""
    typer.echo(json.dumps(_benchmarks().tick_bench(backends, ticks, seed)))


@bench.command("p99")
def bench_p99(as_json: Json = False, seed: Seed = 1) -> None:
    """An exact sliding P99 beside its peers, at windows of 1,000, 10,000 and 100,000 samples."""
    try:
        from tailkeeper.bench_p99 import p99_bench
    except ImportError as error:
        _need("watchdog", error)
    try:
        typer.echo(json.dumps(p99_bench(seed)))
    except RuntimeError as error:
        fail(FAILED, str(error))


@bench.command("exporter")
def bench_exporter(as_json: Json = False, seed: Seed = 1, seconds: Annotated[float, typer.Option(min=2, max=600)] = 10) -> None:
    """Parsing against prometheus_client in one run, and CPU per backend at one read a second."""
    typer.echo(json.dumps(_benchmarks().exporter_bench(seconds)))


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
        _need("watchdog", error)
    typer.echo(json.dumps(forecast_bench(hours, backends, seed)))


@bench.command("tap")
def bench_tap(
    streams: Annotated[int, typer.Option(min=1, max=2_000)] = 200,
    seconds: Annotated[float, typer.Option(min=0.5, max=600, help="Of each round, direct and tapped each.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, max=100)] = 3,
    as_json: Json = False,
    seed: Seed = 1,
) -> None:
    """Streams straight from an engine and through the tap, in turns: added first-token time, throughput, CPU."""
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
        _need("watchdog", error)
    if records is not None:
        try:
            typer.echo(json.dumps(drift.input_bench(records, baseline)))
        except (ValueError, OSError) as error:
            fail(USAGE, f"--input {records}: {error}")
        return
    figures = drift.stream_bench(drift.QUICK if quick else drift.Size(streams), seed)
    typer.echo(json.dumps(figures) if as_json else drift.table(figures))


def main() -> None:
    """Entry point."""
    app()


if __name__ == "__main__":
    main()
