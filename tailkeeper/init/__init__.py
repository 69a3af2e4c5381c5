"""``tailkeeper init``: finds what is there and writes a commented configuration in mode observe.

Asks a Prometheus, where one is named, and this machine; writes one new file and never over an old one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import yaml

from tailkeeper.asking import AskError, Trouble
from tailkeeper.auth_options import auth_in
from tailkeeper.config import ConfigError, parse
from tailkeeper.ending import FAILED, USAGE
from tailkeeper.init import on_machine, through_prometheus
from tailkeeper.init.found import Discovered, joined
from tailkeeper.init.writing import comment, is_complete, sentences, usable, written
from tailkeeper_exporter.counted import plural
from tailkeeper_exporter.hiding import hidden
from tailkeeper_exporter.settings import Auth, check_url

HINTS = {
    Trouble.DENIED: "name a file with what it accepts: --auth bearer_file=FILE, basic_file=FILE or headers_file=FILE.",
    Trouble.TLS: "name its certificate's authority: --auth ca_file=FILE; where it asks for yours, cert_file and key_file, too.",
}
"""What to do about a Prometheus that cannot be asked."""
MAX_NAMED = 8
"""Engines and gateways that are named on the terminal; the file has all."""

Say = Callable[[str], None]


class InitError(Exception):
    """What went wrong, where, and what to do. ``code`` is the exit code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Wanted:
    """Where to look and where to write."""

    prometheus_url: str | None
    out: Path
    auth: Auth = field(default_factory=Auth)

    @classmethod
    def of(cls, prometheus: str | None, out: Path, auth: Sequence[str] = ()) -> Wanted:
        """``auth`` are credentials for that Prometheus, as KEY=FILE. Raises InitError: what is wrong is said before anybody is
        asked anything."""
        # os.path answers False where the system does not tell, as for a folder that may not be entered.
        if os.path.lexists(out):
            raise InitError(USAGE, f"--out: {out} exists, and is left as it is; name another file, or move that one away")
        folder = out.resolve().parent
        if not os.path.isdir(folder):
            raise InitError(USAGE, f"--out: the folder {folder} does not exist or may not be entered; name another file")
        try:
            url = check_url(prometheus)
        except ValueError as error:
            raise InitError(USAGE, f"--prometheus: {error} (given: {hidden(prometheus or '')!r})") from None
        try:
            return cls(url, out, auth_in(auth, url))
        except ValueError as error:
            raise InitError(USAGE, str(error)) from None


def run(wanted: Wanted, say: Say) -> list[str]:
    """Find, write, and say at the end what was found, what not, and what comes next. Raises InitError."""
    found = asyncio.run(find(wanted, say))
    text = written(found, f"Written by `tailkeeper init` on {datetime.now(UTC):%d %B %Y %H:%M} UTC.")
    check(text)
    try:
        with wanted.out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InitError(USAGE, f"--out: {wanted.out} exists by now, and is left as it is; name another file") from None
    except OSError as error:
        raise InitError(FAILED, f"--out: {wanted.out} cannot be written: {error.strerror}") from None
    return list(summary(found, wanted.out))


async def find(wanted: Wanted, say: Say) -> Discovered:
    """Both ways of looking. Raises InitError where the Prometheus that was named cannot be asked."""
    if wanted.prometheus_url is None:
        return await on_machine.look(say)
    try:
        told = await through_prometheus.look(wanted.prometheus_url, wanted.auth, say)
    except AskError as error:
        more = HINTS.get(error.trouble, "is it the server's address, as reached from here?")
        raise InitError(FAILED, f"--prometheus: {wanted.prometheus_url} {error}; {more} Nothing was written.") from None
    return joined(told, await on_machine.look(say))


def check(text: str) -> None:
    """Raises InitError where what we would write is no configuration: then nothing is written."""
    try:
        parse(yaml.safe_load(text))
    except (ConfigError, yaml.YAMLError) as error:
        said = comment(str(error))
        raise InitError(FAILED, f"what was found makes no valid configuration, so nothing was written: {said}") from None


def summary(found: Discovered, out: Path) -> Iterator[str]:
    """The end of the command, for people."""
    yield from _found(found)
    if found.not_found:
        yield "Not found"
        yield from (f"  {comment(sentence)}" for sentence in found.not_found)
    engines = usable(found)[0]
    yield f"Written: {out}, all policies in mode observe: nothing is ever changed by it"
    yield from (f"  {sentence}" for sentence in sentences(found))
    yield "Next"
    if not engines:
        yield f"  edit {out}: no engine was found, so it holds an example to fill in"
    else:
        yield f"  look through {out}; lines marked EDIT want you"
    if not engines and found.prometheus_url is not None:
        yield f"  or let your Prometheus tell: tailkeeper init --prometheus {comment(found.prometheus_url)}"
    yield f"  tailkeeper doctor -c {out}   is everything in it to be reached?"
    yield f"  tailkeeper up -c {out}       watch; the console is at its watchdog.listen"


def _found(found: Discovered) -> Iterator[str]:
    rows: list[tuple[str, str]] = []
    engines = usable(found)[0]
    for engine in engines[:MAX_NAMED]:
        serving = f", serving {', '.join(engine.models[:3])}" if engine.models else ""
        rows.append((engine.found.key("engine") or "generic", f"{engine.found.url}{serving}"))
    if len(engines) > MAX_NAMED:
        rows.append(("", f"and {len(engines) - MAX_NAMED} more engines, all in the file"))
    for gateway in found.gateways[:MAX_NAMED]:
        known = f"{plural(len(gateway.servers), 'server')} known" if gateway.servers else "its servers are not known"
        rows.append((gateway.kind, f"{gateway.where}; {known}" + ("" if is_complete(gateway) else "; to be filled in")))
    if len(found.gateways) > MAX_NAMED:
        rows.append(("", f"and {len(found.gateways) - MAX_NAMED} more gateways, all in the file"))
    rows += [("GPU", device) for device in (found.gpus.devices[:MAX_NAMED] if found.gpus else ())]
    rows += [("Prometheus", found.prometheus_url)] if found.prometheus_url else []
    rows += [("Alertmanager", found.alertmanager_url)] if found.alertmanager_url else []
    rows += [("Tailkeeper", f"an exporter at {url}") for url in found.exporters[:MAX_NAMED]]
    rows += [("Kubernetes", f"namespace {found.kubernetes_namespace}")] if found.kubernetes_namespace else []
    if rows:
        yield "Found"
    yield from (f"  {kind:<14}{comment(words)}" for kind, words in rows)
