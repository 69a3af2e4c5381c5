"""Latency drift: baselines, the load-normalised block test ``block_e``, its form for bucket counts, and fleets of it.

Pure: NumPy and scipy.special, no I/O, no clock. `docs/drift.md` says what is measured of it.
"""

from __future__ import annotations

from tailkeeper_watchdog.drift.baseline import Baseline, fit, from_document
from tailkeeper_watchdog.drift.block_e import Alarm, BlockE, Counts
from tailkeeper_watchdog.drift.bucket_blocks import BucketReading
from tailkeeper_watchdog.drift.bucket_e import (
    BucketBaseline,
    BucketCollector,
    BucketE,
    bucket_baseline,
    bucket_baseline_from_document,
)
from tailkeeper_watchdog.drift.collector import Collector
from tailkeeper_watchdog.drift.design import AS_WRITTEN, BLOCK_E, DESIGNS, PACED, Design
from tailkeeper_watchdog.drift.fleet import FleetE, discoveries, page_evidence, pages
from tailkeeper_watchdog.drift.rows import COLUMNS, Rows

__all__ = [
    "AS_WRITTEN",
    "BLOCK_E",
    "COLUMNS",
    "DESIGNS",
    "PACED",
    "Alarm",
    "Baseline",
    "BlockE",
    "BucketBaseline",
    "BucketCollector",
    "BucketE",
    "BucketReading",
    "Collector",
    "Counts",
    "Design",
    "FleetE",
    "Rows",
    "bucket_baseline",
    "bucket_baseline_from_document",
    "discoveries",
    "fit",
    "from_document",
    "page_evidence",
    "pages",
]
