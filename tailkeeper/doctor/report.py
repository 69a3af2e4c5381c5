"""The report for people, at the width of their terminal, and as JSON. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from tailkeeper.doctor.findings import Finding, Report, Severity
from tailkeeper_exporter.counted import plural

MAX_OF_A_KIND = 5
"""Findings of one kind that are written out; of a fleet of which all are alike one is enough to know what to do."""
MIN_WIDTH, MAX_WIDTH = 60, 100
_LABELS = {Severity.WRONG: "WRONG", Severity.WARNING: "warning"}


def text(report: Report, file: str, width: int) -> str:
    """Lines of text: what was checked, then each finding with what to do, then one sentence."""
    width = min(max(width, MIN_WIDTH), MAX_WIDTH)
    return "\n".join([*_areas(report, width), "", *_findings(report, width), *_end(report, file, width)])


def _areas(report: Report, width: int) -> Iterator[str]:
    yield f"{'checked':<20}{'':>5}  result"
    for area in dict.fromkeys(check.area for check in report.checks):
        checks = [check for check in report.checks if check.area == area]
        found = [finding for check in checks for finding in check.findings]
        wrong = sum(finding.severity is Severity.WRONG for finding in found)
        parts = [f"{wrong} wrong"] if wrong else []
        parts += [f"{len(found) - wrong} warnings" if len(found) - wrong > 1 else "1 warning"] if len(found) > wrong else []
        yield f"{area:<20}{len(checks):>5}  {', '.join(parts) or 'well'}"[:width]


def _findings(report: Report, width: int) -> Iterator[str]:
    for _, group in groupby(report.findings, key=lambda finding: (finding.severity, finding.mistake)):
        alike = list(group)
        for finding in alike[:MAX_OF_A_KIND]:
            yield from _finding(finding, width)
        if len(alike) > MAX_OF_A_KIND:
            yield f"         and {len(alike) - MAX_OF_A_KIND} more of this kind; --json has all"
            yield ""


def _finding(finding: Finding, width: int) -> Iterator[str]:
    about = f" ({finding.backend})" if finding.backend else ""
    yield f"{_LABELS[finding.severity]:<9}{finding.where}{about}"
    yield from _wrapped(finding.what, "         ", "         ", width)
    yield from _wrapped(finding.do, "         do: ", "             ", width)
    yield f"         {finding.see}"
    yield ""


def _wrapped(words: str, first: str, rest: str, width: int) -> list[str]:
    """A path or URL is never cut: it must be copied whole."""
    return textwrap.wrap(
        words, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def _end(report: Report, file: str, width: int) -> Iterator[str]:
    warnings = len(report.findings) - report.wrong
    said = f"{report.wrong} wrong" if report.wrong else "nothing is wrong"
    if warnings:
        said += f", {plural(warnings, 'warning')}"
    yield from _wrapped(
        f"{file}: {said}; {plural(len(report.checks), 'check')} in {report.seconds:.1f} s. Nothing was changed.", "", "", width
    )


def document(report: Report) -> dict[str, Any]:
    """The same for programs."""
    return {
        "wrong": report.wrong,
        "warnings": len(report.findings) - report.wrong,
        "seconds": round(report.seconds, 3),
        "checks": [
            {"area": check.area, "where": check.where, "findings": [f.mistake.value for f in check.findings]}
            for check in report.checks
        ],
        "findings": [
            {
                "id": finding.mistake.value,
                "severity": finding.severity.value,
                "where": finding.where,
                "backend": finding.backend or None,
                "what": finding.what,
                "do": finding.do,
                "see": finding.see,
            }
            for finding in report.findings
        ],
    }
