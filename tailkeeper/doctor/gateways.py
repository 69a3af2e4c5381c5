"""One gateway, as its own actuator reads it: reached, allowed, and knowing the servers that the file names. Writes nothing.

What would be needed to write is looked at without writing: the level of HAProxy's socket (`show cli level`), the rights on the
folder of Envoy's and Traefik's file. Only ``read`` of an actuator is called, never ``write``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from tailkeeper.doctor.findings import Finding, Findings, Mistake, Severity
from tailkeeper.doctor.rights import may, names, user
from tailkeeper.doctor.sentences import tls_failed
from tailkeeper_watchdog.actuators import build_looker
from tailkeeper_watchdog.actuators.calls import CallError, excerpt
from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind, ServerState
from tailkeeper_watchdog.actuators.haproxy import ask, parse_servers_state
from tailkeeper_watchdog.gateways import EnvoyGateway, Gateway, HaproxyGateway, TraefikGateway

READ_S = 5.0
MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class Named:
    """A server that the file names: of which backend, and under which key."""

    server: str
    backend: str
    key: str


async def check_gateway(gateway: Gateway, path: str, named: tuple[Named, ...]) -> Findings:
    """``path`` is the gateway's in the file, `gateways.0`."""
    actuator = build_looker(gateway)
    try:
        states = await actuator.read(tuple(dict.fromkeys(n.server for n in named)), READ_S)
    except ActuatorError as error:
        return _not_read(gateway, path, error)
    finally:
        await actuator.close()
    found = [*_unknown(named, states, await _known_names(gateway)), *_of_states(named, states, _replicas(gateway))]
    return found + await _rights(gateway, path)


def _not_read(gateway: Gateway, path: str, error: ActuatorError) -> Findings:
    """Why nothing could be read, sorted by what to do."""
    said = excerpt(str(error).removeprefix(f"{gateway.name}/*: "))
    if isinstance(gateway, HaproxyGateway):
        broken = [
            f for n, s in enumerate((gateway.socket, *gateway.replicas)) if (f := _socket(s, _socket_key(path, n))) is not None
        ]
        if broken:
            return broken
    lower = said.lower()
    if "certificate" in lower or "ssl" in lower or "tls" in lower:
        return [tls_failed(path, f"{path}.auth", said)]
    if error.kind is ErrorKind.UNAUTHORIZED:
        do = f"put a token that this {gateway.kind} accepts into a file, and name it in {path}.auth"
        return [Finding(Mistake.TOKEN_MISSING, f"{path}.auth", said, do)]
    if error.kind in (ErrorKind.UNREACHABLE, ErrorKind.TIMEOUT):
        do = f"start it, or correct its address in {path}; in a container 127.0.0.1 is the container itself"
        return [Finding(Mistake.GATEWAY_UNREACHABLE, path, said, do)]
    do = f"correct {path}: something answers there, and not as {gateway.kind} does; docs/gateways.md#{gateway.kind}"
    return [Finding(Mistake.GATEWAY_UNREADABLE, path, said, do)]


def _socket_key(path: str, number: int) -> str:
    return f"{path}.socket" if number == 0 else f"{path}.replicas.{number - 1}"


def _socket(address: str, key: str) -> Finding | None:
    """What is the matter with a Unix socket, where that is to be seen; None for HOST:PORT and for one that looks well."""
    if not address.startswith(("/", ".")):
        return None
    file = Path(address)
    try:
        status = file.stat()
    except PermissionError:
        what = f"{address} is in a folder that user {user()} may not enter"
        return Finding(Mistake.GATEWAY_SOCKET_PERMISSION, key, what, _let_in(str(file.parent), None))
    except OSError:
        do = "put `stats socket PATH mode 660 level admin` under `global` in haproxy.cfg, and reload HAProxy; or correct the path"
        return Finding(Mistake.GATEWAY_UNREACHABLE, key, f"there is no {address}", do)
    if not file.is_socket():
        return Finding(
            Mistake.GATEWAY_UNREACHABLE, key, f"{address} is no socket", "name the path of `stats socket` in haproxy.cfg"
        )
    if may(file, os.R_OK | os.W_OK):
        do = "start HAProxy: nobody listens at the socket, which an earlier one may have left behind"
        return Finding(Mistake.GATEWAY_UNREACHABLE, key, f"{address} is there, and HAProxy does not answer at it", do)
    owner, group = names(status.st_uid, status.st_gid)
    what = f"{address} belongs to {owner}:{group}, mode {status.st_mode & 0o777:o}, and user {user()} may not open it"
    return Finding(Mistake.GATEWAY_SOCKET_PERMISSION, key, what, _let_in(address, group))


def _let_in(address: str, group: str | None) -> str:
    joined = (
        f"add the user to the group {group} (`usermod -aG {group} {user()}`, then log in anew)" if group else "open the folder"
    )
    return f"{joined}, or write `mode 660 group GROUP` behind `stats socket {address}` in haproxy.cfg, and reload HAProxy"


async def _known_names(gateway: Gateway) -> tuple[str, ...]:
    """All servers that a HAProxy has, to say which one may be meant; of other kinds no list is to be had."""
    if not isinstance(gateway, HaproxyGateway):
        return ()
    try:
        return tuple(parse_servers_state(await ask(gateway.socket, "show servers state")))
    except CallError:
        return ()


def _unknown(named: Iterable[Named], states: Mapping[str, ServerState], known: tuple[str, ...]) -> Findings:
    return [
        Finding(
            Mistake.GATEWAY_SERVER_UNKNOWN,
            n.key,
            f"the gateway knows no server {n.server!r}",
            _meant(n.server, known),
            backend=n.backend,
        )
        for n in named
        if n.server not in states
    ]


def _meant(server: str, known: tuple[str, ...]) -> str:
    near = get_close_matches(server, known, 1, 0.5)
    if near:
        return f"is {near[0]!r} meant? Write the name exactly as the gateway's own configuration does"
    if known:
        more = ", …" if len(known) > MAX_NAMED else ""
        return f"write one of its servers: {', '.join(known[:MAX_NAMED])}{more}"
    return "write the server as the gateway's own configuration does; docs/gateways.md says what a name is for each kind"


_DOUBTS = {
    True: (Mistake.REPLICAS_DIFFER, "make the replicas alike; until then no change counts as done"),
    False: (Mistake.GATEWAY_IN_DOUBT, "look into it at the gateway; until then no change there counts as done"),
}
"""Of a gateway with replicas and of one without."""


def _replicas(gateway: Gateway) -> bool:
    return bool(getattr(gateway, "replicas", ()))


def _of_states(named: Iterable[Named], states: Mapping[str, ServerState], replicated: bool) -> Findings:
    found: Findings = []
    for n in named:
        state = states.get(n.server)
        if state is None:
            continue
        if state.doubt:
            mistake, do = _DOUBTS[replicated]
            found.append(Finding(mistake, n.key, state.doubt, do, Severity.WARNING, n.backend))
        for knob, why in state.cannot.items():
            what = f"{knob.value} cannot be turned: {why}"
            do = "nothing, where no policy needs it here; else see docs/gateways.md"
            found.append(Finding(Mistake.GATEWAY_CANNOT, n.key, what, do, Severity.WARNING, n.backend))
    return found


async def _rights(gateway: Gateway, path: str) -> Findings:
    """Whether a change could be written, as far as that is to be seen without writing one."""
    if isinstance(gateway, HaproxyGateway):
        addresses = enumerate((gateway.socket, *gateway.replicas))
        return [f for n, address in addresses if (f := await _level(address, _socket_key(path, n))) is not None]
    if isinstance(gateway, EnvoyGateway):
        return _folders([(f"{path}.eds_file", gateway.eds_file), *_replica_files(path, [r.eds_file for r in gateway.replicas])])
    if isinstance(gateway, TraefikGateway):
        return _folders([(f"{path}.file", gateway.file), *_replica_files(path, [r.file for r in gateway.replicas])])
    return []


def _replica_files(path: str, files: Iterable[Path | None]) -> list[tuple[str, Path]]:
    return [(f"{path}.replicas.{n}", file) for n, file in enumerate(files) if file is not None]


async def _level(address: str, key: str) -> Finding | None:
    try:
        level = (await ask(address, "show cli level")).strip()
    except CallError:
        return None  # what cannot be reached has been told already
    if level not in ("operator", "user"):
        return None
    what = f"the socket has level {level}: it may be read, and no weight changed"
    return Finding(
        Mistake.GATEWAY_READ_ONLY, key, what, "write `level admin` behind `stats socket` in haproxy.cfg, and reload HAProxy"
    )


def _folders(files: Iterable[tuple[str, Path]]) -> Findings:
    return [
        Finding(
            Mistake.GATEWAY_READ_ONLY,
            key,
            f"{file} cannot be changed: user {user()} may not write into {file.parent}",
            f"let the user write into {file.parent}: the file is replaced by renaming, so the file's own rights are not enough",
        )
        for key, file in files
        if not may(file.parent, os.W_OK | os.X_OK)
    ]
