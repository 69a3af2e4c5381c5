"""The one console command. Parses, loads the configuration, and hands over; heavy parts are imported when used.

Exit codes are those of ``ending``; the benchmarks' commands are in ``cli_bench``.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailkeeper import __version__, auth_options, credential_checks
from tailkeeper.cli_bench import bench
from tailkeeper.config import Config, ConfigError, credential_places, effective, load, weights_in
from tailkeeper.ending import FAILED, USAGE, fail, need
from tailkeeper.logs import LogFormat, set_up
from tailkeeper.watchdog_process import watchdog_of
from tailkeeper_exporter.counted import plural
from tailkeeper_exporter.settings import check_address, is_loopback, is_same_server
from tailkeeper_watchdog.weights_file import WeightsFile

if TYPE_CHECKING:
    from tailkeeper.sharding import Sharded
    from tailkeeper_alerts.notifications.receivers import Receivers

app = typer.Typer(
    name="tailkeeper",
    help="Keeps the tail latency of self-hosted LLM inference inside its SLA.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ConfigFile = Annotated[Path, typer.Option("-c", "--config", help="The configuration file (YAML).")]
Listen = Annotated[str | None, typer.Option("--listen", metavar="HOST:PORT", help="Instead of the configured address.")]
PrometheusAuth = Annotated[list[str] | None, typer.Option("--auth", metavar="KEY=FILE", help=auth_options.HELP)]
ShardOption = Annotated[
    str | None,
    typer.Option(
        "--shard", metavar="INDEX/NUMBER", help="Only the pools that fall to this one of NUMBER shards, counted from 0: 0/3."
    ),
]
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


def _load(path: Path) -> Config:
    try:
        return load(path)
    except ConfigError as error:
        fail(USAGE, *(f"{path}: {problem}" for problem in error.problems))


def _part(config: Config, shard: str | None) -> Sharded | None:
    """The part of the file that ``--shard`` names; None without it."""
    if shard is None:
        return None
    from tailkeeper.sharding import SplitPoolsError, sharded
    from tailkeeper_watchdog.shard import shard_named

    try:
        return sharded(config, shard_named(shard))
    except SplitPoolsError as error:
        fail(USAGE, str(error))
    except ValueError as error:
        fail(USAGE, f"--shard: {error} (given: {shard!r})")


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


@app.command()
def exporter(
    config: ConfigFile,
    backend: Annotated[
        list[str] | None, typer.Option("--backend", help="Only this listed backend, and no discovery; may be repeated.")
    ] = None,
    listen: Listen = None,
    shard: ShardOption = None,
    log_format: Format = None,
) -> None:
    """Run the exporter for some or all backends of the file."""
    from tailkeeper.together import with_discovery
    from tailkeeper_exporter.app import serve

    set_up(log_format)
    loaded = _load(config)
    part = _part(loaded, shard)
    loaded = loaded if part is None else part.config
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
    discoverer = None if backend else loaded.discoverer() if part is None else part.discoverer
    _run(with_discovery(discoverer, serve(chosen, loaded.exporter.model_copy(update={"listen": address}), discoverer)))


@app.command()
def watchdog(config: ConfigFile, listen: Listen = None, shard: ShardOption = None, log_format: Format = None) -> None:
    """Run the watchdog."""
    from tailkeeper.together import with_discovery

    set_up(log_format)
    file = WeightsFile(config, weights_in)
    loaded = _load(config)
    address = _address(listen, loaded.watchdog.listen)
    if not is_loopback(address) and loaded.watchdog.token_file is None:
        fail(USAGE, f"--listen: {address} is not loopback; set watchdog.token_file, or listen on 127.0.0.1")
    part = _part(loaded, shard)
    loaded, discoverer = (loaded, loaded.discoverer()) if part is None else (part.config, part.discoverer)
    _run(with_discovery(discoverer, watchdog_of(file, loaded.listening_at(address), discoverer, part).run()))


@app.command()
def up(config: ConfigFile, shard: ShardOption = None, log_format: Format = None) -> None:
    """Run exporter and watchdog together, in direct mode: no Prometheus is needed."""
    from tailkeeper.together import run_together

    set_up(log_format)
    file = WeightsFile(config, weights_in)
    loaded = _load(config)
    part = _part(loaded, shard)
    loaded, discoverer = (loaded, loaded.discoverer()) if part is None else (part.config, part.discoverer)
    _run(run_together(loaded, partial(watchdog_of, file, part=part), discoverer))


@app.command("check-config")
def check_config(
    config: ConfigFile,
    every: Annotated[bool, typer.Option("--all", help="A line for each backend, also where the same is true of many.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, for programs.")] = False,
) -> None:
    """Validate the file; print what each policy can do at which backends, and what each discovery finds now."""
    from tailkeeper.support import found_now, policies, support_table

    loaded = _load(config)
    _check_baselines(loaded.watchdog.baselines)
    for warning in credential_checks.warnings(credential_places(loaded)):
        typer.echo(f"tailkeeper: warning: {warning}", err=True)
    table, found = policies(loaded), found_now(loaded)
    backends, gateways = len(loaded.backends), len(loaded.gateways)
    if as_json:
        document = {"file": str(config), "backends": backends, "gateways": gateways, "policies": table, "discovery": found}
        typer.echo(json.dumps(document, indent=2))
        return
    width = shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else None
    typer.echo(support_table(table, width, every=every))
    for line in found:
        typer.echo(line)
    typer.echo(f"{config}: good, {plural(backends, 'backend')}, {plural(gateways, 'gateway')}")


def _check_baselines(path: Path | None) -> None:
    if path is None:
        return
    try:
        from tailkeeper_watchdog.baseline_store import BaselineFileError, read_file
    except ImportError as error:
        need("watchdog", error)
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
    typer.echo(f"{plural(len(rendered), 'file')} written under {base}")


def _all_documents(receivers: Receivers, config: Config | None) -> dict[str, str]:
    try:
        from tailkeeper.generate import documents
    except ImportError as error:
        need("dashboards", error)
    return documents(receivers, config)


@app.command()
def init(
    prometheus: Annotated[str | None, typer.Option(metavar="URL", help="Ask this Prometheus what it scrapes, too.")] = None,
    auth: PrometheusAuth = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write; it must not exist.")] = Path("tailkeeper.yaml"),
) -> None:
    """Find engines and gateways here and in a Prometheus, and write a commented configuration in observe mode."""
    from tailkeeper.init import InitError, Wanted, run

    try:
        lines = run(Wanted.of(prometheus, out, auth or ()), lambda line: typer.echo(f"tailkeeper: {line}", err=True))
    except InitError as error:
        fail(error.code, str(error))
    for line in lines:
        typer.echo(line)


@app.command()
def doctor(
    config: ConfigFile,
    prometheus: Annotated[str | None, typer.Option(metavar="URL", help="Check this Prometheus, too.")] = None,
    auth: PrometheusAuth = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: every check and every finding.")] = False,
) -> None:
    """Check every connection of the file, end to end, and say what to do. Changes nothing. Exit 1 where something is wrong."""
    from tailkeeper.doctor.command import ProgressLine, run, server_of

    loaded = _load(config)
    try:
        also = server_of(prometheus, auth or ())
    except ValueError as error:
        fail(USAGE, str(error))
    said, wrong = run(loaded, str(config), also, as_json, ProgressLine(sys.stderr))
    typer.echo(said)
    raise typer.Exit(FAILED if wrong else 0)


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
    every: Annotated[bool, typer.Option("--all", help="Every backend of a large fleet, on a terminal, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The fleet document as it is.")] = False,
) -> None:
    """The fleet at a glance, and why nothing happened where nothing happened."""
    from tailkeeper.status import UrlError, fetch_fleet, fleet_table

    try:
        fleet = fetch_fleet(url)
    except UrlError as error:
        fail(USAGE, f"--url: {error}")
    except (OSError, ValueError) as error:
        fail(FAILED, f"{url}: {error}")
    on_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size((80, 24)).columns if on_terminal else 200
    typer.echo(json.dumps(fleet, indent=2) if as_json else fleet_table(fleet, width, every=every or not on_terminal))


@app.command("release-all")
def release_all(config: ConfigFile, shard: ShardOption = None, listen: Listen = None) -> None:
    """Undo every change that this watchdog made at any gateway, and nothing else."""
    from tailkeeper.progress import OneLine
    from tailkeeper.release import release_everything

    loaded = _load(config)
    part = _part(loaded, shard)
    loaded = (loaded if part is None else part.config).listening_at(_address(listen, loaded.watchdog.listen))
    progress = OneLine(sys.stderr)
    lines, failed = release_everything(loaded, progress.say)
    progress.end()
    for line in lines:
        typer.echo(line)
    if failed:
        fail(FAILED, f"{failed} could not be given back; see above, and run this again")


@app.command()
def replay(
    config: Annotated[Path | None, typer.Option("-c", "--config", help="Decide by this file.")] = None,
    records: Annotated[Path | None, typer.Option("--records", metavar="FILE", help="Ticks that a watchdog recorded.")] = None,
    prometheus: Annotated[str | None, typer.Option("--prometheus", metavar="URL", help="Ask this server.")] = None,
    auth: PrometheusAuth = None,
    start: Annotated[str | None, typer.Option("--start", metavar="T", help="RFC 3339, epoch seconds, or -2d.")] = None,
    end: Annotated[str | None, typer.Option("--end", metavar="T", help="Likewise, or now.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, for machines.")] = False,
) -> None:
    """What would have been found and done, over recorded ticks or over the history in a Prometheus. Changes nothing."""
    try:
        from tailkeeper.replay import NothingToReplayError, UsageError, run, wanted
        from tailkeeper_watchdog.replay.words import text
    except ImportError as error:
        need("watchdog", error)
    try:
        what = wanted(records, prometheus, start, end, time.time(), auth or ())
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
        need("demo", error)
    set_up(LogFormat.JSON)
    try:
        from tailkeeper_alerts.render import RULES_PATH, render

        color = not no_color and sys.stdout.isatty()
        rules = {Path(RULES_PATH).name: render()[RULES_PATH]}
        well = run_demo(duration, fault, mix, port, color=color, rules=rules)
    except DemoError as error:
        fail(error.code, str(error))
    raise typer.Exit(0 if well else FAILED)


app.add_typer(bench, name="bench")


def main() -> None:
    """Entry point."""
    app()


if __name__ == "__main__":
    main()
