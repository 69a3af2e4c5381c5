"""Faults at random for an hour, on the real programs, and an eye that looks whether what is promised holds throughout.

    python -m tools.chaos [--minutes 60] [--every-s 20] [--seed 1] [--rate 8] [--scale 1] [--out DIR] [--keep DIR]

Prints each fault and each violation as it comes, then the figures as JSON; with ``--out`` they go to chaos.json in DIR instead.
Exit 1 where anything was violated, or the town was not as before at the end. Linux; root for the disk that is filled.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from tools.chaos.eye import Eye
from tools.chaos.faults import Faults
from tools.chaos.gpus import Gpus
from tools.chaos.receiver import receiving
from tools.chaos.report import Run, figures
from tools.chaos.settling import settle
from tools.chaos.town import Town, build
from tools.results import envelope

CALM_S = 10.0
"""Before the first fault: everything has been read a few times by then."""
STEP_S = 0.05
NO_GPU_FILE = "gpus.json cannot be read"
"""A configured file that is missing ends a start with 2, as documented; whoever runs an exporter starts it anew, and so do we."""
KILLS_SHARE = 0.5
"""Of the run; after it our own processes are stopped and starved, and killed no more."""


def rampage(town: Town, faults: Faults, eye: Eye, seconds: float, every_s: float) -> None:
    """A fault every ``every_s``; each ends when its time has come."""
    next_s, end_s = faults.now_s + every_s, faults.now_s + seconds
    while faults.now_s < end_s:
        if faults.now_s >= next_s:
            next_s += every_s
            begun = faults.begin_one()
            if begun is not None:
                lasts_s = begun.until_s - begun.at_s
                print(f"{begun.at_s:8.1f}  {begun.kind} at {begun.target}: {begun.detail}, {lasts_s:.1f} s", flush=True)
        faults.end_due()
        check(town, eye)
        time.sleep(STEP_S)


def check(town: Town, eye: Eye) -> None:
    """Nobody ends by itself; who does is started again, so that the run goes on."""
    for program in town.programs.values():
        told = program.check()
        if told is None:
            continue
        if program.name.startswith("exporter") and NO_GPU_FILE in told:
            eye.counts["starts refused for a GPU file that was not there (documented, exit 2)"] += 1
        else:
            eye.wrong("nobody ends by itself", told)
        program.start()


def chaos(
    folder: Path, minutes: float, every_s: float, seed: int, rate: float, scale: float = 1.0, calm_s: float = CALM_S
) -> Run:
    """The whole run; ``scale`` shortens every fault, ``calm_s`` is the time before the first one.

    Raises RuntimeError where something cannot be started.
    """
    with receiving() as receiver:
        town = build(folder, receiver.url, seed, rate)
        gpus = Gpus(folder, town.names, seed)
        gpus.start()
        try:
            town.start()
            began = time.monotonic()
            faults = Faults(town, gpus, random.Random(seed), began, calm_s + KILLS_SHARE * 60.0 * minutes, scale)
            eye = Eye(town, faults)
            eye.start()
            time.sleep(calm_s)
            rampage(town, faults, eye, 60.0 * minutes, every_s)
            faults.end_due(everything=True)
            print(f"{faults.now_s:8.1f}  everything is healed", flush=True)
            settled = settle(town, eye, lambda: check(town, eye))
            eye.close()
            return Run(town, faults, eye, settled, receiver, seed, every_s, time.monotonic() - began)
        finally:
            gpus.close()
            town.end()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every-s", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=8.0, help="requests a second")
    parser.add_argument("--scale", type=float, default=1.0, help="of how long faults last")
    parser.add_argument("--out", type=Path, default=None, help="folder for chaos.json")
    parser.add_argument("--keep", type=Path, default=None, help="folder for the run's files, which are kept")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # whatever ends us, the programs end too
    with tempfile.TemporaryDirectory(prefix="chaos-") as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            run = chaos(folder, given.minutes, given.every_s, given.seed, given.rate, given.scale)
        except RuntimeError as error:
            print(f"chaos cannot begin: {error}", file=sys.stderr)
            return 1
        command = f"make chaos ARGS='--minutes {given.minutes:g} --every-s {given.every_s:g} --seed {given.seed}'"
        found = figures(run)
    if given.out is None:
        print(json.dumps(found, indent=1))
    else:
        print(envelope.write("chaos", command, found, given.out))
    print("nothing was violated" if run.good else f"{len(run.eye.violations)} violations were told", file=sys.stderr)
    return 0 if run.good else 1


if __name__ == "__main__":
    sys.exit(main())
