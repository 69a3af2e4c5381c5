"""Alertmanager's files before amtool: the configuration, where each alert goes, and what people read, hostile values too."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from typer.testing import CliRunner

from tailkeeper.cli import app
from tailkeeper_alerts.alertmanager import CONFIGURATION_PATH, RECEIVERS_PATH, TEMPLATES, TEMPLATES_FOLDER, render, templates
from tailkeeper_alerts.notifications.receivers import parse
from tailkeeper_watchdog.alerting import Links
from tailkeeper_watchdog.model import FindingKind, Severity, Share
from tests.e2e.real_programs import binary
from tests.unit.test_notify_receivers import ALL_KINDS
from tests.unit.told import alerts, finding, lease, score

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]
STARTS, ENDS, OPEN = "2026-11-30T03:12:00Z", "2026-11-30T03:18:10Z", "0001-01-01T00:00:00Z"
LINKS = Links("https://console.example/", "https://grafana.example", "https://docs.example/runbook")


def _run(*argv: str | Path) -> str:
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _written(folder: Path, receivers: str) -> Path:
    for path, text in render(parse(receivers)).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder / CONFIGURATION_PATH


# The files


@pytest.mark.parametrize("path", sorted(render()))
def test_the_committed_file_is_what_is_generated(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == render()[path]


def test_every_template_of_the_folder_is_listed_and_no_other_is_committed() -> None:
    assert set(templates()) == set(TEMPLATES) == {file.name for file in (ROOT / TEMPLATES_FOLDER).iterdir()}


@pytest.mark.parametrize("receivers", ["", ALL_KINDS], ids=["default", "every kind"])
def test_amtool_accepts_the_configuration_with_its_templates(tmp_path: Path, receivers: str) -> None:
    said = _run(binary("amtool"), "check-config", _written(tmp_path, receivers))
    assert "1 templates" in said


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ({"severity": "page", "backend": "a"}, "watchdog,slack,email,pagerduty,opsgenie"),
        ({"severity": "ticket", "backend": "a"}, "watchdog,slack,email"),
        ({"severity": "info", "backend": "a"}, "watchdog"),
        ({"severity": "info", "backend": "emb-1"}, "watchdog,webhook"),
        ({"severity": "page", "alertname": "WatchdogDown"}, "watchdog,slack,email,pagerduty,opsgenie"),
        ({"severity": "ticket", "backend": "a", "score_band": "0.6"}, "watchdog,slack,slack-again,email,email-again"),
        (
            {"severity": "page", "backend": "a", "score_band": "0.2"},
            "watchdog,slack,slack-again,email,email-again,pagerduty,opsgenie",
        ),
        ({"backend": "somebody else's"}, "watchdog"),
    ],
)
def test_each_alert_goes_where_its_severity_and_backend_say(tmp_path: Path, labels: dict[str, str], told: str) -> None:
    words = [f"{name}={value}" for name, value in labels.items()]
    routed = _run(binary("amtool"), "config", "routes", "test", f"--config.file={_written(tmp_path, ALL_KINDS)}", *words)
    assert routed.strip() == told


def test_generate_writes_the_receivers_of_the_folder_and_leaves_their_file_alone(tmp_path: Path) -> None:
    runner = CliRunner()
    first = runner.invoke(app, ["generate", "--alertmanager", "--out", str(tmp_path)])
    assert first.exit_code == 0, first.output
    edited = tmp_path / RECEIVERS_PATH
    edited.write_text(ALL_KINDS, encoding="utf-8")
    assert runner.invoke(app, ["generate", "--alertmanager", "--check", "--out", str(tmp_path)]).exit_code == 1
    assert runner.invoke(app, ["generate", "--alertmanager", "--out", str(tmp_path)]).exit_code == 0
    assert runner.invoke(app, ["generate", "--alertmanager", "--check", "--out", str(tmp_path)]).exit_code == 0
    assert edited.read_text(encoding="utf-8") == ALL_KINDS
    assert '"slack-again"' in (tmp_path / CONFIGURATION_PATH).read_text(encoding="utf-8")
    _run(binary("amtool"), "check-config", tmp_path / CONFIGURATION_PATH)


def test_generate_refuses_a_wrong_receiver_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / RECEIVERS_PATH).parent.mkdir(parents=True)
    (tmp_path / RECEIVERS_PATH).write_text("receivers: [{kind: slack}]", encoding="utf-8")
    refused = CliRunner().invoke(app, ["generate", "--alertmanager", "--out", str(tmp_path)])
    assert refused.exit_code == 2
    assert f"{tmp_path / RECEIVERS_PATH}: receivers.0.slack.channel: Field required" in refused.output
    assert not (tmp_path / CONFIGURATION_PATH).exists()


# What people read


def _alert(labels: dict[str, str], annotations: dict[str, str], ended: bool = False) -> dict[str, Any]:
    status, ends = ("resolved", ENDS) if ended else ("firing", OPEN)
    return {"status": status, "labels": labels, "annotations": annotations, "startsAt": STARTS, "endsAt": ends}


def _hung(ended: bool = False) -> dict[str, Any]:
    """As the watchdog tells it."""
    shares = (Share("stage", "prefill", 0.64, 0.9), Share("tenant", "premium", 0.36, 0.9))
    found = finding(summary="a is hung: 9 running; no token for 10 s", shares=shares, until_unix_s=1.7e9 + 370 if ended else None)
    (told,) = alerts(found, scores={"a": score(0.9)}, leases=(lease(),), links=LINKS)
    return _alert(told["labels"], told["annotations"], ended)


def _pressure(ended: bool = False) -> dict[str, Any]:
    """As a rule tells it: what is to be done, and a runbook that is no address."""
    labels = {"alertname": "MemoryPressure", "severity": "ticket", "backend": "a"}
    texts = {
        "summary": "a is running out of memory",
        "impact": "Users of a queue.",
        "causes": "Long prompts.",
        "actions": "Send new work elsewhere.",
        "dashboard_url": "https://grafana.example/d/tailkeeper-fleet?var-backend=a",
        "runbook_url": "docs/runbook.md#memorypressure",
    }
    return _alert(labels, texts, ended)


def _group(*told: dict[str, Any], backend: str = "a") -> dict[str, Any]:
    common = set.intersection(*(set(alert["labels"].items()) for alert in told)) if told else set()
    return {
        "receiver": "people",
        "status": "firing" if any(alert["status"] == "firing" for alert in told) else "resolved",
        "alerts": list(told),
        "groupLabels": {"backend": backend} if backend else {},
        "commonLabels": dict(common),
        "commonAnnotations": {},
        "externalURL": "https://alerts.example",
    }


_number = itertools.count()


def _rendered(tmp_path: Path, group: dict[str, Any], name: str, kind: str = "text") -> str:
    data = tmp_path / f"{next(_number)}.json"
    data.write_text(json.dumps(group), encoding="utf-8")
    return _run(
        *(binary("amtool"), "template", "render", f"--template.glob={ROOT / TEMPLATES_FOLDER}/*.tmpl"),
        *(f"--template.type={kind}", f"--template.data={data}", "--template.text", f'{{{{ template "tailkeeper.{name}" . }}}}'),
    )


def test_a_page_says_what_whom_since_why_done_and_where(tmp_path: Path) -> None:
    group = _group(_hung())
    assert _rendered(tmp_path, group, "title") == "[PAGE] a is hung: 9 running; no token for 10 s"
    assert _rendered(tmp_path, group, "email.text").splitlines() == [
        "a is hung: 9 running; no token for 10 s",
        "Whom it hurts  Users of m on pool edge:llm,west:llm. Requests on it get no answer, and new ones neither while it is in "
        "the pool. Mostly tenant premium (36%).",
        "Since          22:13 UTC, for 1 min",
        "Why            stage prefill 64%, tenant premium 36%; confidence high",
        "Done           drained at edge since 22:13 UTC by gpu_health_gate (lease until 22:18 UTC)",
        "",
        "You can",
        "  open the board      https://grafana.example/d/tailkeeper-root-cause?var-backend=a&from=1699999100000&to=now",
        "  hold or release it  https://console.example/",
        "  silence it          https://alerts.example/#/silences/new?filter=%7Bbackend%3D%22a%22%7D",
        "  read the runbook    https://docs.example/runbook#backendhung",
    ]


def test_slack_says_the_same_in_its_own_markup(tmp_path: Path) -> None:
    group = _group(_hung())
    assert _rendered(tmp_path, group, "slack.color") == "#c62828"
    text = _rendered(tmp_path, group, "slack.text")
    assert text.startswith("*Whom it hurts*  Users of m on pool")
    assert "\n*Done*  drained at edge since" in text
    assert text.endswith(
        "*You can*  <https://grafana.example/d/tailkeeper-root-cause?var-backend=a&from=1699999100000&to=now|open the board>"
        " · <https://console.example/|hold or release it>"
        " · <https://alerts.example/#/silences/new?filter=%7Bbackend%3D%22a%22%7D|silence it>"
        " · <https://docs.example/runbook#backendhung|read the runbook>"
    )


def test_a_rule_says_what_to_do_and_the_template_since_when(tmp_path: Path) -> None:
    text = _rendered(tmp_path, _group(_pressure()), "email.text")
    assert "\nSince          03:12 UTC, 30 Nov\n" in text
    assert "\nDo             Send new work elsewhere.\n" in text
    assert text.endswith("  read the runbook    docs/runbook.md#memorypressure\n")
    assert "hold or release" not in text


def test_an_end_says_what_it_was_and_how_long_users_felt_it(tmp_path: Path) -> None:
    assert _rendered(tmp_path, _group(_hung(True)), "title") == (
        "[RESOLVED] a is hung: 9 running; no token for 10 s; users felt it for 6 min"
    )
    by_rule = _rendered(tmp_path, _group(_pressure(True)), "email.text")
    assert "03:12 to 03:18 UTC, 30 Nov; users felt it for 6 min" in by_rule
    assert "silence it" not in by_rule
    assert _rendered(tmp_path, _group(_hung(True)), "slack.color") == "#2e7d32"


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ("03:12:07", "7 s"),
        ("03:13:00", "1 min"),
        ("03:12:59.9", "1 min"),
        ("03:22:00", "10 min"),
        ("04:12:20", "1 h"),
        ("05:32:00", "2 h 20 min"),
        ("13:12:00", "10 h"),
    ],
)
def test_how_long_it_lasted_is_in_words(tmp_path: Path, ends: str, said: str) -> None:
    over = {**_pressure(True), "endsAt": f"2026-11-30T{ends}Z"}
    assert _rendered(tmp_path, _group(over), "title").endswith(f"users felt it for {said}")


def test_an_end_of_several_names_the_page_that_users_felt(tmp_path: Path) -> None:
    for name in ("title", "slack.title"):
        said = _rendered(tmp_path, _group(_pressure(True), _hung(True)), name)
        assert said == "[RESOLVED] a is hung: 9 running; no token for 10 s; users felt it for 6 min"


@pytest.mark.parametrize(
    "labels", [{"alertname": name} for name in ("TelemetryLost", "WatchdogDown", "TailkeeperTest")] + [{"kind": "advice"}]
)
def test_of_what_nobody_felt_an_end_says_how_long_it_lasted(tmp_path: Path, labels: dict[str, str]) -> None:
    group = _group(_alert(labels, {"summary": "a cannot be seen any more"}, ended=True))
    for name, kind in (
        ("title", "text"),
        ("email.text", "text"),
        ("email.html", "html"),
        ("slack.title", "text"),
        ("slack.text", "text"),
    ):
        said = _rendered(tmp_path, group, name, kind)
        assert "it lasted 6 min" in said
        assert "felt" not in said


@pytest.mark.parametrize(
    ("about", "named", "wanted"),
    [
        ({"backend": "a: b+", "cluster": "eu"}, {}, '{backend="a: b+",cluster="eu"}'),
        ({"backend": "a"}, {}, '{backend="a"}'),
        (
            {"alertname": "WatchdogDown", "cluster": "eu"},
            {"alertname": "WatchdogDown"},
            '{alertname="WatchdogDown",cluster="eu"}',
        ),
    ],
)
def test_the_silence_is_of_this_incident_and_of_no_other_clusters(
    tmp_path: Path, about: dict[str, str], named: dict[str, str], wanted: str
) -> None:
    group = {**_group(_alert({}, {})), "groupLabels": about, "commonLabels": named}
    before, _, said = _rendered(tmp_path, group, "silence_url").partition("?filter=")
    assert unquote(said.strip()) == wanted
    (link,) = (link for link in _Page(_rendered(tmp_path, group, "email.html", "html")).links if link.startswith(before))
    assert unquote(link.partition("?filter=")[2]) == wanted


def test_of_several_the_page_comes_first_and_its_links_are_the_watchdogs(tmp_path: Path) -> None:
    group = _group(_pressure(), _hung())
    assert _rendered(tmp_path, group, "title") == "[PAGE] a is hung: 9 running; no token for 10 s (and 1 more)"
    text = _rendered(tmp_path, group, "email.text")
    assert text.index("a is hung") < text.index("a is running out of memory")
    assert text.count("You can") == 1
    assert "tailkeeper-root-cause" in text
    assert _rendered(tmp_path, group, "board_url").startswith("https://grafana.example/d/tailkeeper-root-cause")


def test_a_new_band_or_cause_is_no_end_of_anything(tmp_path: Path) -> None:
    """The alert under its former labels is over, the one under the new ones goes on: it is one incident."""
    group = _group(_hung(), _hung(True))
    for name in ("email.text", "slack.text"):
        assert "Over" not in _rendered(tmp_path, group, name)
    assert "Over" in _rendered(tmp_path, _group(_hung(), _pressure(True)), "email.text")


def _loud(level: Severity, **labels: str) -> dict[str, Any]:
    (told,) = alerts(finding(severity=level), links=LINKS)
    return _group(_alert(told["labels"] | labels, told["annotations"]))


@pytest.mark.parametrize(
    ("group", "pagerduty", "opsgenie"),
    [
        (_loud(Severity.PAGE, score_band="0.2"), "critical", "P1"),
        (_loud(Severity.PAGE), "critical", "P1"),
        (_loud(Severity.PAGE, score_band="0.4"), "critical", "P2"),
        (_loud(Severity.TICKET), "warning", "P3"),
        (_loud(Severity.TICKET, kind=FindingKind.ADVICE), "warning", "P4"),
        (_loud(Severity.PAGE, severity="info"), "info", "P5"),
        (_loud(Severity.PAGE, alertname="TailkeeperTest"), "critical", "P5"),
        (_group(_pressure(), _hung()), "critical", "P1"),
    ],
)
def test_a_pager_is_as_loud_as_the_loudest(tmp_path: Path, group: dict[str, Any], pagerduty: str, opsgenie: str) -> None:
    assert _rendered(tmp_path, group, "pagerduty.severity") == pagerduty
    assert _rendered(tmp_path, group, "opsgenie.priority") == opsgenie


class _Page(HTMLParser):
    """The tags of a page, and where its links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.handlers: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name == "href"]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


HOSTILE = '<b>{{ x }}</b>"&|<!channel> $(reboot) \\ `'


@pytest.mark.parametrize(
    "group",
    [
        _group(),
        _group(_alert({}, {}), backend=""),
        _group(_alert({}, {}, ended=True)),
        _group(_alert({"alertname": HOSTILE, "backend": HOSTILE}, {}), backend=HOSTILE),
        _group(_alert({"severity": "page", "backend": HOSTILE}, dict.fromkeys(("summary", "impact", "causes"), HOSTILE))),
        _group(_alert({"severity": "page"}, dict.fromkeys(("dashboard_url", "console", "runbook_url"), "javascript:alert(1)"))),
        _group(_alert({"severity": "page"}, dict.fromkeys(("dashboard_url", "console", "runbook_url"), f"http://x/{HOSTILE}"))),
        _group(*(_alert({"severity": "page", "n": str(n)}, {"summary": f"number {n}"}) for n in range(200))),
        _group(*(_alert({"n": str(n)}, {"summary": f"number {n}"}, ended=True) for n in range(200))),
    ],
    ids=["nothing", "bare", "bare and over", "names", "texts", "scripts", "addresses", "200", "200 over"],
)
def test_whatever_an_alert_holds_it_is_rendered_and_does_nothing(tmp_path: Path, group: dict[str, Any]) -> None:
    for name in ("title", "email.text", "slack.title", "slack.text", "pagerduty.severity", "opsgenie.priority", "silence_url"):
        said = _rendered(tmp_path, group, name)
        assert "<no value>" not in said
        if name.startswith("slack"):
            assert "<!channel>" not in said
            assert len(re.findall("<", said)) == len(re.findall(r"<https?://[^<>|\s]*\|[a-z ]+>", said))
        assert len(said) < 12_000
    html = _rendered(tmp_path, group, "email.html", "html")
    page = _Page(html)
    assert not {"b", "script"} & set(page.tags)
    assert page.handlers == []
    assert all(re.match("https?://", link) for link in page.links)
    assert len(html) < 60_000


def test_of_two_hundred_alerts_ten_are_told_and_the_rest_counted(tmp_path: Path) -> None:
    group = _group(*(_alert({"severity": "page", "n": str(n)}, {"summary": f"number {n}"}) for n in range(200)))
    assert _rendered(tmp_path, group, "title") == "[PAGE] number 0 (and 199 more)"
    assert "… and 190 more" in _rendered(tmp_path, group, "email.text")
    assert "… and 190 more" in _rendered(tmp_path, group, "email.html", "html")
    assert "… and 195 more" in _rendered(tmp_path, group, "slack.text")
