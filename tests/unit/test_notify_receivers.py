"""Who is told, how often and which alert silences which: receivers.yaml, the routes and the inhibitions that come of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_alerts import groups
from tailkeeper_alerts.alertmanager import RECEIVERS_PATH, configuration, default_receivers
from tailkeeper_alerts.groups.health import SCORE_BANDS
from tailkeeper_alerts.model import Alert, RuleSettings
from tailkeeper_alerts.notifications.inhibition import INHIBITIONS
from tailkeeper_alerts.notifications.receivers import MAX_RECEIVERS, ReceiverFileError, Receivers, parse
from tailkeeper_alerts.notifications.routes import REMINDER_GROUP_INTERVALS, REPEAT_INTERVALS
from tailkeeper_watchdog.detectors.slo_burn import Burn
from tailkeeper_watchdog.model import FindingKind
from tests.unit.told import alerts, finding, score

Labels = dict[str, str]
ROOT = Path(__file__).parents[2]
RULES = tuple(rule for build in groups.GROUPS for rule in build(RuleSettings()).rules if isinstance(rule, Alert))
BURN = {"alertname": "SLOBurnFast"}
RULES_OF_BURN = tuple(rule.value for rule in Burn)
BY_SIGNAL = (FindingKind.SLO_BURN, FindingKind.ADVICE, FindingKind.CONTENDED)
ALL_KINDS = """
receivers:
  - {kind: slack, channel: "#llm", api_url_file: slack_url}
  - {kind: email, to: a@example.com, sender: b@example.com, smarthost: "mail:587", username: u, password_file: /run/secrets/smtp}
  - {kind: pagerduty, routing_key_file: pd}
  - {kind: opsgenie, api_key_file: og, team: llm, api_url: https://api.eu.opsgenie.com}
  - {kind: webhook, url: "https://example.com/a", credentials_file: token, severities: [page, ticket, info], backends: "emb-.*"}
"""


def _document(text: str) -> Any:
    return yaml.safe_load(configuration(parse(text)))


def _uncommented(text: str) -> str:
    """The default file with every receiver turned on, as an editor does it: the `#` goes, and what is left is valid."""
    return re.sub(r"(?m)^#(  (?:- |  \S))", r"\1", text)


# receivers.yaml


def test_the_default_file_turns_nobody_on() -> None:
    assert parse(default_receivers()).receivers == ()
    assert [r["name"] for r in _document(default_receivers())["receivers"]] == ["watchdog"]


def test_the_committed_file_is_the_default_one() -> None:
    assert (ROOT / RECEIVERS_PATH).read_text(encoding="utf-8") == default_receivers()


def test_every_example_of_the_default_file_works_when_its_comment_marks_go() -> None:
    kinds = [receiver.kind for receiver in parse(_uncommented(default_receivers())).receivers]
    assert kinds == ["slack", "email", "pagerduty", "opsgenie", "webhook", "slack"]


@pytest.mark.parametrize("text", ["", "receivers:", "receivers: []", "# nothing"])
def test_an_empty_file_is_no_receiver(text: str) -> None:
    assert parse(text) == Receivers()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "is no YAML"),
        ("- a", "must be a mapping with the key `receivers`"),
        ("recievers: []", "recievers: Extra inputs"),
        ("receivers: [{kind: sms}]", "receivers.0: Input tag 'sms'"),
        ("receivers: [{kind: slack, channel: a}]", "receivers.0.slack.api_url_file: Field required"),
        ("receivers: [{kind: slack, channel: a, api_url: b}]", "receivers.0.slack.api_url: Extra inputs"),
        ("receivers: [{kind: webhook, url: example.com}]", "must be an http:// or https:// URL"),
        ("receivers: [{kind: webhook, url: 'https://u:hunter2@example.com'}]", "must carry no user and password"),
        ("receivers: [{kind: webhook, url: 'http://a', backends: '('}]", "is no regular expression"),
        ("receivers: [{kind: webhook, url: 'http://a', severities: []}]", "receivers.0.webhook.severities"),
        ("receivers: [{kind: webhook, url: 'http://a', severities: [warn]}]", "'page', 'ticket' or 'info'"),
        (
            "receivers: [{kind: webhook, url: 'http://a'}, {kind: webhook, url: 'http://b'}]",
            "two receivers have the name",
        ),
        ("receivers: [{kind: webhook, url: 'http://a', name: watchdog}]", "the name 'watchdog' is taken"),
        ("receivers: [{kind: webhook, url: 'http://a', name: a-again}]", "the name 'a-again' is taken"),
        ("receivers: [{kind: webhook, url: 'http://a', name: 'A b'}]", "receivers.0.webhook.name"),
        ("receivers: [{kind: email, to: a, sender: b, smarthost: 'm:25', username: u}]", "give both or none"),
        ("receivers: [{kind: email, to: a, sender: b, smarthost: mail}]", "receivers.0.email.smarthost"),
    ],
)
def test_a_wrong_file_is_refused_with_its_key_and_without_its_values(text: str, said: str) -> None:
    with pytest.raises(ReceiverFileError) as caught:
        parse(text)
    assert said in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "expression",
    ["(?!emb).*", ".*(?<!a)", r"(a)\1", r"(?P<x>a)(?P=x)", "a++", "a{2}+", r"a\Z", "(?x) a", "(?>a)", "a{2000}", r"\u0061"],
)
def test_an_expression_that_python_knows_and_alertmanager_refuses_is_refused_here(expression: str) -> None:
    """Else Alertmanager would not start with the file that was written, and nobody would be told of anything."""
    re.compile(expression)
    with pytest.raises(ValueError, match="RE2"):
        Receivers.model_validate({"receivers": [{"kind": "webhook", "url": "http://a", "backends": expression}]})


def test_the_number_of_receivers_is_bounded() -> None:
    many = ", ".join(f"{{kind: webhook, url: 'http://a', name: r{i}}}" for i in range(MAX_RECEIVERS + 1))
    with pytest.raises(ReceiverFileError, match="receivers"):
        parse(f"receivers: [{many}]")


@given(st.text(max_size=60))
def test_whatever_the_file_holds_it_is_parsed_or_refused(text: str) -> None:
    with suppress(ReceiverFileError):
        assert isinstance(parse(text), Receivers)


def test_secrets_are_paths_and_nothing_else() -> None:
    text = configuration(parse(ALL_KINDS))
    files = set(re.findall(r"_file: \"(.*)\"", text))
    assert files == {
        "/etc/alertmanager/secrets/slack_url",
        "/run/secrets/smtp",
        "/etc/alertmanager/secrets/pd",
        "/etc/alertmanager/secrets/og",
        "/etc/alertmanager/secrets/token",
        "/run/tailkeeper/token",
    }
    assert not re.search(
        r"(?m)^\s*(api_url|auth_password|routing_key|service_key|api_key|credentials): (?!\"https://api\.eu)", text
    )


# Routes


def _routes(text: str) -> list[Any]:
    routes: list[Any] = _document(text)["route"]["routes"]
    return routes


def test_the_watchdog_hears_of_everything_and_no_receiver_ends_the_search() -> None:
    first, *people = _routes(ALL_KINDS)
    assert first["receiver"] == "watchdog"
    assert "matchers" not in first
    assert all(route["continue"] is True for route in (first, *people))


def test_the_worse_the_score_the_sooner_people_hear_again() -> None:
    assert REPEAT_INTERVALS == {"0.2": "5m", "0.4": "15m", "0.6": "1h"}
    assert set(REPEAT_INTERVALS) == set(SCORE_BANDS)
    told = {r["matchers"][-1]: r["repeat_interval"] for r in _routes(ALL_KINDS) if r["receiver"] == "slack-again"}
    assert told == {f'score_band="{band}"': interval for band, interval in REPEAT_INTERVALS.items()}
    watchdog = {r["matchers"][0]: r["repeat_interval"] for r in _routes("")[0]["routes"]}
    assert watchdog == told


def test_a_reminder_waits_for_one_interval_and_never_speaks_of_the_end() -> None:
    document = _document(ALL_KINDS)
    reminders = [r for r in document["route"]["routes"] if r["receiver"].endswith("-again")]
    assert {r["receiver"] for r in reminders} == {"slack-again", "email-again", "webhook-again"}, "pagers escalate by themselves"
    for route in reminders:
        band = route["matchers"][-1].split('"')[1]
        assert route["group_wait"] == route["group_interval"] == REMINDER_GROUP_INTERVALS[band]
    again = [c for r in document["receivers"] if r["name"].endswith("-again") for key in r if key != "name" for c in r[key]]
    assert len(again) == 3
    assert not any(config["send_resolved"] for config in again)


def test_one_incident_is_one_group_whatever_its_severity_band_or_cause() -> None:
    document = _document(ALL_KINDS)
    assert document["route"]["group_by"] == ["cluster", "backend"]
    own = [r.get("group_by") for r in document["route"]["routes"]]
    assert own == [None] * len(own)


def test_alerts_about_no_backend_are_not_one_incident() -> None:
    slack = next(r for r in _routes(ALL_KINDS) if r["receiver"] == "slack")
    (alone,) = slack["routes"]
    assert alone["group_by"] == ["cluster", "alertname"]
    for about_none in [{}, *(labels for labels in _of_rules("") if labels["severity"] == "page")]:
        assert _matches(alone["matchers"], about_none)
    assert not _matches(alone["matchers"], {"backend": "a"})


@pytest.mark.parametrize("expression", ["no.*", ".*", "|none"])
def test_a_receiver_of_chosen_backends_hears_of_no_alert_about_none(expression: str) -> None:
    slack = f"receivers: [{{kind: slack, channel: x, api_url_file: f, backends: '{expression}'}}]"
    for route in _routes(slack):
        if route["receiver"] != "watchdog":
            assert not [labels for labels in _of_rules("") if _matches(route["matchers"], labels)]


@pytest.mark.parametrize("expression", ['a"b', "a\\.b", "a|b", "{{ x }}", "ünï.*", r"\++", r"\\1", "(?i)a", "(?:a|b){2,9}?"])
def test_an_expression_for_backends_stays_one_value(expression: str) -> None:
    receivers = Receivers.model_validate(
        {"receivers": [{"kind": "webhook", "url": "http://a", "backends": expression, "severities": ["page"]}]}
    )
    routes = yaml.safe_load(configuration(receivers))["route"]["routes"]
    text = next(m for r in routes if r["receiver"] == "webhook" for m in r["matchers"] if m.startswith("backend=~"))
    inside = text.removeprefix('backend=~"').removesuffix('"')
    assert inside.replace('\\"', '"').replace("\\\\", "\\") == expression


# Inhibitions


def _matches(matchers: list[str], labels: Labels) -> bool:
    """Alertmanager's rule: a label that is missing is an empty one; expressions match the whole value."""
    parsed = [re.fullmatch(r'(\w+)(=~|!~|=)"(.*)"', matcher) for matcher in matchers]
    assert all(parsed)
    pairs = [(labels.get(match[1], ""), match[2], match[3]) for match in parsed if match]
    holds: dict[str, Callable[[str, str], bool]] = {
        "=": lambda v, w: v == w,
        "=~": lambda v, w: bool(re.fullmatch(w, v)),
        "!~": lambda v, w: not re.fullmatch(w, v),
    }
    return all(holds[operator](value, wanted) for value, operator, wanted in pairs)


INHIBIT_RULES: list[Any] = _document("")["inhibit_rules"]


def _pairs(instances: list[Labels]) -> list[tuple[Labels, Labels]]:
    """Who silences whom: (source, target) of every rule."""
    found = []
    for rule in INHIBIT_RULES:
        sources = [labels for labels in instances if _matches(rule["source_matchers"], labels)]
        targets = [labels for labels in instances if _matches(rule["target_matchers"], labels)]
        equal = rule["equal"]
        found += [(one, other) for one, other in product(sources, targets) if all(one.get(n) == other.get(n) for n in equal)]
    return found


def _of_rules(backend: str) -> list[Labels]:
    """The rules' alerts as they arrive; those about no backend once."""
    about = {"backend": backend} if backend else {}
    chosen = [rule for rule in RULES if rule.per_backend == bool(backend)]
    return [{"alertname": rule.name, **rule.all_labels(), **about} for rule in chosen]


def _of_watchdog(backend: str) -> list[Labels]:
    """The watchdog's alerts: every kind of finding, every band."""
    scores = [alerts(scores={backend: score(value)})[-1]["labels"] for value in (0.1, 0.3, 0.5)]
    burns = [{"signal": signal, "evidence": {"rule": rule}} for signal in ("", "ttft", "itl", "e2e") for rule in RULES_OF_BURN]
    found = [finding(kind, backend, **more) for kind in FindingKind for more in (burns if kind in BY_SIGNAL else burns[:1])]
    told = [a["labels"] for one in found for a in alerts(one)]
    return [{**labels, "backend": backend} for labels in (*scores, *told)]


def _instances() -> list[Labels]:
    """Every alert of both sources, of two backends in two clusters and in none."""
    plain = [*_of_rules(""), *(labels for backend in "ab" for labels in (*_of_rules(backend), *_of_watchdog(backend)))]
    return [*plain, *({**labels, "cluster": cluster} for labels in plain for cluster in ("eu", "us"))]


@pytest.fixture(scope="module")
def instances() -> list[Labels]:
    return _instances()


def test_each_inhibition_demands_every_label_that_it_compares_so_a_missing_one_never_counts_as_equal() -> None:
    assert len(INHIBIT_RULES) == 2 * len(INHIBITIONS)
    for rule in INHIBIT_RULES:
        for side in ("source_matchers", "target_matchers"):
            assert {f'{label}=~".+"' for label in rule["equal"]} <= set(rule[side])
        assert "backend" in rule["equal"]
        assert ("cluster" in rule["equal"]) != ('cluster=""' in rule["source_matchers"])


def test_no_alert_silences_another_backend_another_cluster_or_the_fleet(instances: list[Labels]) -> None:
    silenced = _pairs(instances)
    assert silenced
    for source, target in silenced:
        assert source["backend"] == target["backend"] != ""
        assert source.get("cluster") == target.get("cluster")


def test_no_two_alerts_silence_each_other_and_none_its_equal(instances: list[Labels]) -> None:
    pairs = {tuple(tuple(sorted(labels.items())) for labels in pair) for pair in _pairs(instances)}
    assert not [(one, other) for one, other in pairs if one == other or (other, one) in pairs]


@pytest.mark.parametrize(
    ("source", "target", "silenced"),
    [
        ({"score_band": "0.2"}, {"score_band": "0.4"}, True),
        ({"score_band": "0.2"}, {"score_band": "0.6"}, True),
        ({"score_band": "0.4"}, {"score_band": "0.6"}, True),
        ({"score_band": "0.6"}, {"score_band": "0.4"}, False),
        ({"alertname": "BackendHung"}, {}, True),
        ({"alertname": "BackendHung", "backend": "b"}, {}, False),
        ({"alertname": "BackendHung", "cluster": "eu"}, {"cluster": "us"}, False),
        ({"alertname": "BackendHung", "cluster": "eu"}, {"cluster": "eu"}, True),
        ({"alertname": "BackendHung", "cluster": "eu"}, {}, False),
        ({"alertname": "BackendHung", "backend": ""}, {"backend": ""}, False),
        ({"source": "watchdog"}, {}, True),
        ({"source": "watchdog", "severity": "ticket"}, {}, False),
        ({"source": "watchdog", "kind": "advice"}, {}, False),
        ({"source": "watchdog", "kind": "common_cause"}, {}, False),
        ({"source": "watchdog", "kind": "slo_burn"}, {}, False),  # a burst is no bad score
        ({**BURN, "source": "watchdog", "kind": "slo_burn"}, BURN, True),
        ({**BURN, "source": "watchdog", "kind": "slo_burn", "signal": "ttft"}, {**BURN, "signal": "ttft"}, True),
        ({**BURN, "source": "watchdog", "kind": "slo_burn", "signal": "ttft"}, {**BURN, "signal": "itl"}, False),
        ({**BURN, "source": "watchdog", "kind": "slo_burn", "signal": "ttft"}, BURN, False),
        ({**BURN, "source": "watchdog", "kind": "slo_burn"}, {**BURN, "signal": "ttft"}, False),
        ({**BURN, "source": "watchdog", "kind": "slo_burn"}, {"alertname": "SLOBurnSlow"}, False),
        ({**BURN, "source": "watchdog", "kind": "slo_burn"}, {**BURN, "backend": "b"}, False),
        ({**BURN, "source": "watchdog", "kind": "slo_burn", "cluster": "eu"}, {**BURN, "cluster": "eu"}, True),
        (BURN, {**BURN, "source": "watchdog", "kind": "slo_burn"}, False),
    ],
)
def test_who_silences_whom(source: Labels, target: Labels, silenced: bool) -> None:
    common = {"alertname": "HealthDegraded", "severity": "page", "backend": "a"}
    one, other = common | source, common | target
    assert ((one, other) in _pairs([one, other])) is silenced


def test_an_alert_outlives_those_of_other_names_that_it_silences() -> None:
    stays = {rule.name: rule.keep_firing_for_s for rule in RULES}
    assert stays["BackendHung"] >= stays["HealthDegraded"] + 60
