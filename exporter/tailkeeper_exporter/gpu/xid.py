"""What an XID number says about the GPU: a table, and nothing else. Pure.

An XID counts against a GPU only where the GPU is at fault: most XIDs seen on healthy nodes are a program's own mistake, or the
driver clearing up after a job that ended (field report B4). The classes are our reading of NVIDIA's Xid catalogue
(docs.nvidia.com/deploy/xid-errors) by its immediate action (restart the application, reset the GPU, contact support), and of what
NVIDIA's device plugin for Kubernetes ignores (13, 31, 43, 45, 68, 109). Not every driver reports every XID: none is no proof.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class XidSeverity(StrEnum):
    """Whose fault it is, and so who has to do something."""

    APPLICATION = "application"
    """The program's, or clean-up after it: the GPU is well. Look at the engine's log."""
    WATCH = "watch"
    """The GPU's, and dealt with by it: reset it at the next opportunity, and look when it repeats."""
    GPU = "gpu"
    """The GPU's, and not dealt with: take it out of service, reset it, and have it replaced if it returns."""
    UNKNOWN = "unknown"
    """Not in the table: look it up in NVIDIA's catalogue."""


@dataclass(frozen=True, slots=True)
class Xid:
    """One row: the severity, and in a few words what happened."""

    severity: XidSeverity
    meaning: str


_A, _W, _G = XidSeverity.APPLICATION, XidSeverity.WATCH, XidSeverity.GPU
XIDS: Mapping[int, Xid] = {
    8: Xid(_A, "a kernel ran past the channel's time limit"),
    13: Xid(_A, "a kernel made an illegal access or instruction"),
    31: Xid(_A, "a kernel touched memory that is not mapped"),
    32: Xid(_W, "a command stream arrived corrupted; PCIe where it repeats"),
    43: Xid(_A, "the program's channel was stopped after its own fault"),
    45: Xid(_A, "clean-up of a program that ended or was killed"),
    46: Xid(_G, "the GPU stopped processing"),
    48: Xid(_G, "a double-bit memory error that could not be corrected"),
    61: Xid(_G, "breakpoint of the GPU's internal micro-controller"),
    62: Xid(_G, "halt of the GPU's internal micro-controller"),
    63: Xid(_W, "a memory row was marked for remapping; a reset makes it so"),
    64: Xid(_G, "a memory row could not be marked for remapping"),
    68: Xid(_A, "fault of the video decoder's channel"),
    69: Xid(_A, "a class error of the program's graphics channel"),
    74: Xid(_G, "NVLink error"),
    79: Xid(_G, "the GPU has fallen off the bus"),
    92: Xid(_W, "many single-bit memory errors"),
    94: Xid(_W, "an uncorrectable memory error, contained: only that program was lost"),
    95: Xid(_G, "an uncorrectable memory error, not contained"),
    109: Xid(_A, "a program did not give way to a context switch in time"),
    119: Xid(_G, "the GPU's system processor (GSP) did not answer"),
    120: Xid(_G, "fault of the GPU's system processor (GSP)"),
    140: Xid(_G, "ECC error that could not be recovered from"),
    143: Xid(_G, "the GPU could not be initialised"),
    154: Xid(_W, "the driver names a new recovery action; nvidia-smi tells it"),
}
_UNKNOWN = Xid(XidSeverity.UNKNOWN, "not in our table; see NVIDIA's Xid catalogue")


def xid_named(number: int) -> Xid:
    """The row of a number, or the one that says that it is not known here."""
    return XIDS.get(number, _UNKNOWN)
