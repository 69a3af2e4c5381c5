"""Writes the watchdog's API token, once: a random one for each installation, so that no known token is ever in use.

    python make_token.py /run/tailkeeper/token [/run/fleet/gpus.json]

An existing token is kept. Readable by its owner and group, by nobody else; never printed. The second file gets no GPUs where it
is not there yet: the simulated fleet's configuration names it, and no exporter starts without a file that is named.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

TOKEN_BYTES = 32
MODE = 0o440
NO_GPUS = '{"driver": "none", "gpus": []}\n'


def make(path: Path) -> bool:
    """Whether a token was written. Raises OSError where the folder cannot be written."""
    if path.exists():
        return False
    # Written beside and renamed: who reads it sees no token or a whole one.
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(file.fileno(), MODE)
        file.write(secrets.token_urlsafe(TOKEN_BYTES) + "\n")
    draft.replace(path)
    return True


def without_gpus(path: Path) -> None:
    """A GPU file of a machine that has none, unless there is one."""
    if not path.exists():
        path.write_text(NO_GPUS, encoding="utf-8")


if __name__ == "__main__":
    print("token written" if make(Path(sys.argv[1])) else "token kept")
    for gpu_file in sys.argv[2:]:
        without_gpus(Path(gpu_file))
