"""A wire with an ear: passes bytes on to a server, both ways, and keeps what the client sent. A thread for each connection."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_READ_BYTES = 65_536


@dataclass
class Heard:
    """What came from the client so far, connection by connection. ``where`` is a path, or HOST:PORT."""

    where: str = ""
    connections: list[bytearray] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Lines in the order of their connections: commands of HAProxy's socket, or HTTP's heads and bodies."""
        return [line for said in self.connections for line in said.decode("latin-1").replace("\r\n", "\n").split("\n") if line]

    def methods(self) -> set[str]:
        """Of HTTP requests, kept-alive connections included."""
        return {line.split()[0] for line in self.lines() if line.endswith(" HTTP/1.1")}


def _pass_on(source: socket.socket, sink: socket.socket, heard: bytearray | None) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_READ_BYTES):
            if heard is not None:
                heard.extend(data)
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@contextmanager
def recorder(target: str | tuple[str, int], listen: Path | None = None) -> Iterator[Heard]:
    """Before ``target``: a Unix socket's path, then ``listen`` is the path of ours, or HOST and PORT, then ours is free."""
    heard = Heard()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            said = bytearray()
            heard.connections.append(said)
            family = socket.AF_UNIX if isinstance(target, str) else socket.AF_INET
            with socket.socket(family) as theirs:
                theirs.connect(target)
                answers = threading.Thread(target=_pass_on, args=(theirs, self.request, None), daemon=True)
                answers.start()
                _pass_on(self.request, theirs, said)
                answers.join()

    server: Any
    if listen is not None:
        server, heard.where = socketserver.ThreadingUnixStreamServer(str(listen), Handler), str(listen)
    else:
        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        heard.where = f"127.0.0.1:{server.server_address[1]}"
    server.daemon_threads = True
    server.block_on_close = False
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield heard
    finally:
        server.shutdown()
        server.server_close()
