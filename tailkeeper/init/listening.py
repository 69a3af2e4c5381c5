"""Which TCP ports and HAProxy sockets there are on this machine, by the kernel's own tables. Pure but for reading /proc.

Connects to nothing. Where there is no /proc (another system than Linux) the usual ports of engines and gateways are named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

LISTEN = "0A"
_ANY = frozenset({"00000000", "0" * 32})
_V6_LOOPBACK = "0" * 24 + "01000000"
FIRST_PORT = 1024
"""Below it are the system's own services."""
NOT_HTTP = {
    2379: "etcd",
    3306: "MySQL",
    5432: "PostgreSQL",
    5672: "RabbitMQ",
    6379: "Redis",
    9042: "Cassandra",
    9092: "Kafka",
    11211: "memcached",
    26379: "Redis Sentinel",
    27017: "MongoDB",
}
"""Never asked: they take an HTTP request for an attack, log it, or count it against our address."""
USUAL_PORTS = (8000, 8001, 8002, 8080, 8081, 8088, 3000, 9400, 9901, 10001, 30000)
MAX_PORTS = 256
MAX_SOCKETS = 8
SOCKETS = ("/run/haproxy/admin.sock", "/var/run/haproxy/admin.sock", "/run/haproxy.sock", "/var/lib/haproxy/stats")
"""Where distributions and HAProxy's own documentation put the stats socket."""
PROXIES = frozenset({"haproxy", "envoy", "traefik", "nginx", "caddy"})
"""Processes that answer with the pages of others."""
_OURS = re.compile(rb"tailkeeper_exporter|tailkeeper\.cli|/tailkeeper\x00")
"""In a command line: the exporter with its taps, or the watchdog."""
MAX_PROCESSES = 4_096
_BOUND = re.compile(r"\.\d+\.tmp$")
"""HAProxy binds a socket under another name and renames it: the kernel goes on calling it by the first."""


def listening_ports(proc: Path = Path("/proc/net")) -> tuple[tuple[str, int], ...]:
    """Host and port of what listens on loopback or on every address, lowest port first; at most ``MAX_PORTS``."""
    tables = [text for name in ("tcp", "tcp6") if (text := _text(proc / name)) is not None]
    found = ports_in(tables) if tables else tuple(("127.0.0.1", port) for port in USUAL_PORTS)
    return found[:MAX_PORTS]


def ports_in(tables: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """As ``listening_ports``, of the texts of /proc/net/tcp and tcp6."""
    hosts: dict[int, str] = {}
    for line in (line for table in tables for line in table.splitlines()[1:]):
        columns = line.split()
        if len(columns) < 4 or columns[3] != LISTEN:
            continue
        address, _, port = columns[1].partition(":")
        host = _host(address)
        if host is not None and re.fullmatch(r"[0-9A-F]{4}", port):
            number = int(port, 16)
            # Of a port that both families have, the older one is asked.
            hosts[number] = host if number not in hosts else min(host, hosts[number])
    return tuple((host, port) for port, host in sorted(hosts.items()) if port >= FIRST_PORT and port not in NOT_HTTP)


def _host(address: str) -> str | None:
    """The address to ask; None for one that is not of this machine alone, nor of every address."""
    if address in _ANY or (len(address) == 8 and address.endswith("7F")):  # 127.0.0.0/8, its bytes in reverse
        return "127.0.0.1" if address in _ANY else ".".join(str(int(address[i : i + 2], 16)) for i in (6, 4, 2, 0))
    return "[::1]" if address == _V6_LOOPBACK else None


def passing_on(proc: Path = Path("/proc")) -> frozenset[int]:
    """Ports at which a proxy or a tap of ours listens, as far as we may see whose they are: our own processes, or all as root."""
    inodes = frozenset(inode for process in _processes(proc) if _passes_on(process) for inode in _sockets(process))
    tables = [text for name in ("tcp", "tcp6") if (text := _text(proc / "net" / name)) is not None]
    return frozenset(_ports_of(inodes, tables))


def _processes(proc: Path) -> list[Path]:
    try:
        return [folder for folder in proc.iterdir() if folder.name.isdigit()][:MAX_PROCESSES]
    except OSError:
        return []


def _passes_on(process: Path) -> bool:
    if (_text(process / "comm") or "").strip() in PROXIES:
        return True
    try:
        with (process / "cmdline").open("rb") as file:
            return _OURS.search(file.read(4_096)) is not None
    except OSError:
        return False


def _sockets(process: Path) -> list[str]:
    """Inodes of the sockets that a process has open."""
    found: list[str] = []
    with suppress(OSError):
        for link in (process / "fd").iterdir():
            with suppress(OSError):
                target = str(link.readlink())
                found += [target[8:-1]] if target.startswith("socket:[") else []
    return found


def _ports_of(inodes: frozenset[str], tables: Iterable[str]) -> Iterator[int]:
    for columns in (line.split() for table in tables for line in table.splitlines()[1:]):
        if len(columns) > 9 and columns[3] == LISTEN and columns[9] in inodes:
            yield int(columns[1].rpartition(":")[2], 16)


def haproxy_sockets(proc: Path = Path("/proc/net"), usual: Iterable[str] = SOCKETS) -> tuple[str, ...]:
    """Paths of Unix sockets that may be HAProxy's, each once; at most ``MAX_SOCKETS``."""
    named = [line.split()[-1] for line in (_text(proc / "unix") or "").splitlines()[1:] if "haproxy" in line and " /" in line]
    paths = [*usual, *sorted({_BOUND.sub("", path) for path in named})]
    there = {str(Path(path).resolve()): path for path in reversed(paths) if _exists(path)}
    return tuple(sorted(there.values()))[:MAX_SOCKETS]


def _exists(path: str) -> bool:
    """A socket in a folder that we may not enter counts as there: that is worth telling."""
    try:
        return Path(path).is_socket()
    except OSError:
        return True


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
