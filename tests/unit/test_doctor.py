"""What `tailkeeper doctor` makes of single answers, and how it says it: at 80 columns, as JSON, with every entry documented."""

from __future__ import annotations

import asyncio
import io
import re
from functools import partial
from pathlib import Path

import pytest

from tailkeeper.asking import Clock, ask_error, clock_by
from tailkeeper.doctor import report
from tailkeeper.doctor.command import ProgressLine
from tailkeeper.doctor.findings import Check, Checked, Finding, Findings, Mistake, Report, Severity
from tailkeeper.doctor.people import _receivers
from tailkeeper.doctor.running import run_checks
from tailkeeper.doctor.sentences import skewed, unreachable
from tailkeeper_exporter.fetch import FetchError
from tailkeeper_exporter.page import Reason
from tailkeeper_exporter.tls import TlsCode

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"


def finding(
    mistake: Mistake = Mistake.METRICS_OFF, where: str = "backends.0.url", severity: Severity = Severity.WRONG
) -> Finding:
    return Finding(
        mistake, where, "http://127.0.0.1:8000/metrics answers 404", "start SGLang with --enable-metrics", severity, "a"
    )


def test_every_mistake_has_its_entry_in_the_documentation_and_no_entry_is_about_nothing() -> None:
    entries = set(re.findall(r"^### ([a-z0-9-]+)$", PAGE.read_text(), re.M))
    assert entries == {mistake.value for mistake in Mistake}


def test_every_entry_says_what_it_looks_like_and_what_to_do() -> None:
    for entry in PAGE.read_text().split("\n### ")[1:]:
        name, _, body = entry.partition("\n")
        body = body.partition("\n## ")[0]
        assert "**Do**" in body, name
        assert len(body.split()) > 12, name


@pytest.mark.parametrize("width", [20, 80, 300])
def test_a_report_fits_its_terminal_and_says_where_what_and_what_to_do(width: int) -> None:
    long = Finding(Mistake.TLS_FAILED, "gateways.0", "the certificate of it is not trusted " * 5, "name its authority " * 9)
    checks = (Checked("backends", "backends.0", (finding(),)), Checked("gateways", "gateways.0", (long,)), Checked("x", "y", ()))
    said = report.text(Report(checks, 1.25), "tailkeeper.yaml", width)
    assert max(len(line) for line in said.splitlines()) <= max(60, min(width, 100))
    for words in ("WRONG    backends.0.url (a)", "do: start SGLang with --enable-metrics", "docs/troubleshooting.md#metrics-off"):
        assert words in said
    assert said.endswith("tailkeeper.yaml: 2 wrong; 3 checks in 1.2 s. Nothing was changed.") or width < 80


def test_what_is_wrong_comes_before_what_is_only_worth_knowing() -> None:
    warning, wrong = finding(Mistake.PROBE_SLOW, severity=Severity.WARNING), finding(Mistake.CLOCK_SKEW)
    both = Report((Checked("a", "b", (warning, wrong)),), 0.0)
    assert both.findings == (wrong, warning)
    assert both.wrong == 1


def test_a_fleet_with_one_mistake_everywhere_does_not_fill_the_screen() -> None:
    many = tuple(Checked("backends", f"backends.{n}", (finding(where=f"backends.{n}.url"),)) for n in range(200))
    said = report.text(Report(many, 1.0), "t.yaml", 80)
    assert "and 195 more of this kind" in said
    assert len(said.splitlines()) < 50
    assert len(report.document(Report(many, 1.0))["findings"]) == 200
    assert [line.split()[1] for line in said.splitlines() if line.startswith("WRONG")] == [f"backends.{n}.url" for n in range(5)]


def test_the_document_has_every_finding_with_its_place_and_its_page() -> None:
    document = report.document(Report((Checked("backends", "backends.0", (finding(),)),), 0.5))
    assert (document["wrong"], document["warnings"]) == (1, 0)
    (row,) = document["findings"]
    assert row["id"] == "metrics-off"
    assert row["backend"] == "a"
    assert row["see"] == "docs/troubleshooting.md#metrics-off"


async def returning(findings: Findings) -> Findings:
    return findings


async def hanging() -> Findings:
    await asyncio.Event().wait()
    return []


async def crashing() -> Findings:
    raise RuntimeError("our own mistake")


async def test_a_check_that_hangs_or_crashes_costs_the_others_nothing() -> None:
    checks = [Check("x", "hang", hanging), Check("x", "crash", crashing), Check("x", "well", partial(returning, [finding()]))]
    done: list[int] = []
    result = await run_checks(checks, lambda n, of: done.append(n), each_s=0.05)
    hung, crashed, well = result.checks
    assert hung.findings[0].mistake is Mistake.NOT_CHECKED
    assert "given up after 0.05 s" in hung.findings[0].what
    assert "RuntimeError: our own mistake" in crashed.findings[0].what
    assert well.findings == (finding(),)
    assert done == [1, 2, 3]


async def test_what_does_not_fit_into_the_time_for_all_is_told() -> None:
    result = await run_checks(
        [Check("x", "hang", hanging), Check("x", "well", partial(returning, []))], lambda n, of: None, 9, 0.05
    )
    assert [len(check.findings) for check in result.checks] == [1, 0]
    assert "was not checked" in result.findings[0].what


@pytest.mark.parametrize(
    ("date", "sent", "received", "ahead"),
    [
        ("Mon, 30 Nov 2026 08:00:00 GMT", 0.4, 0.6, 0.0),
        ("Mon, 30 Nov 2026 08:00:00 GMT", 0.9, 1.1, 0.0),  # the header counts whole seconds
        ("Mon, 30 Nov 2026 08:00:10 GMT", 0.4, 0.6, 9.4),
        ("Mon, 30 Nov 2026 07:59:50 GMT", 0.4, 0.6, -9.4),
        ("Mon, 30 Nov 2026 08:00:10 GMT", 0.0, 60.0, 0.0),  # an answer that took a minute proves nothing
    ],
)
def test_a_clock_counts_as_different_only_by_what_is_sure(date: str, sent: float, received: float, ahead: float) -> None:
    began = 1_796_025_600.0  # 30 November 2026, 08:00:00 UTC
    clock = clock_by(date, began + sent, began + received)
    assert clock is not None
    assert clock.ahead_s == pytest.approx(ahead)


@pytest.mark.parametrize("date", ["", "yesterday", "Mon, 99 Nov 2026 08:00:00 GMT", "Mon, 30 Nov 99999999 08:00:00 GMT"])
def test_a_date_that_is_none_tells_no_time(date: str) -> None:
    assert clock_by(date, 0.0, 1.0) is None


@pytest.mark.parametrize(
    ("clock", "said"),
    [
        (None, ""),
        (Clock(-0.5, 0.5), ""),
        (Clock(1.5, 2.6), ""),
        (Clock(30.0, 31.0), "at least 30 s ahead of"),
        (Clock(-31.0, -30.0), "at least 30 s behind"),
    ],
)
def test_a_clock_that_differs_by_seconds_is_told(clock: Clock | None, said: str) -> None:
    found = skewed(clock, "x", "Prometheus")
    assert [said in f.what for f in found] == ([True] if said else [])


@pytest.mark.parametrize(
    ("code", "what", "do"),
    [
        (TlsCode.EXPIRED, "its certificate has expired", "renew it there"),
        (TlsCode.WRONG_NAME, "its certificate is for another name", "write a name that it holds into the url"),
        (TlsCode.CERTIFICATE_WANTED, "it wants a client certificate", "name one in backends.0.auth.cert_file"),
        (TlsCode.PLAIN, "it does not speak TLS there", "is it http://"),
        (TlsCode.OTHER, "TLS failed", "name its certificate's authority in backends.0.auth.ca_file"),
    ],
)
def test_tls_that_fails_is_told_with_what_mends_that_failure(code: TlsCode, what: str, do: str) -> None:
    error = ask_error(FetchError(Reason.TLS, code.sentence, tls=code), 3.0)
    found = unreachable(error, Mistake.BACKEND_UNREACHABLE, "x", "https://a:8000", "the engine", "backends.0.api_key_file")
    assert found.mistake is Mistake.TLS_FAILED
    assert (what in found.what, found.do.startswith(do)) == (True, True), found


@pytest.mark.parametrize(
    ("receivers", "mistakes"),
    [
        ("receivers: [{name: none}]", [Mistake.NO_RECEIVER]),
        ("receivers: [{name: w, webhook_configs: [{url: 'http://127.0.0.1:8088/api/v1/alerts'}]}]", [Mistake.NO_RECEIVER]),
        ("receivers: [{name: s, slack_configs: [{channel: x}]}]", []),
        ("receivers: [{name: s, webhook_configs: [{url: <secret>}]}]", []),
        ("receivers: [{name: s, email_configs: []}]", [Mistake.NO_RECEIVER]),
        ("- not a configuration", []),
        ("{", []),
        ("receivers: [3]", []),
    ],
)
def test_a_receiver_for_people_is_told_from_one_that_nobody_reads(receivers: str, mistakes: list[Mistake]) -> None:
    assert [found.mistake for found in _receivers(receivers)] == mistakes


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_that_is_written_over_and_one_line_at_all_where_nobody_looks() -> None:
    for stream, lines in ((Terminal(), 0), (io.StringIO(), 1)):
        progress = ProgressLine(stream)
        for done in range(1, 4):
            progress(done, 3)
        progress.end()
        assert stream.getvalue().count("\n") == lines
        assert "3" in stream.getvalue()
