"""In which words people are told, under which labels Alertmanager knows it, and that neither says what is not known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import present
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.alert_terms import OWN_LABELS, WATCHDOG_LABELS
from tailkeeper_watchdog.alerting import MAX_ALERTS, Links, lately_closed, score_band
from tailkeeper_watchdog.findings import Book
from tailkeeper_watchdog.model import (
    Backend,
    BackendObservation,
    DesiredState,
    FindingKind,
    HealthScore,
    Knob,
    Mode,
    Refusal,
    Severity,
    Share,
    Target,
    Verdict,
)
from tests.unit.told import CONTRACT_LABELS, LINKS, NOW, alerts, finding, lease, score, wish

# Labels


@pytest.mark.parametrize(
    ("hscore", "band"),
    [(None, ""), (1.0, ""), (0.6, ""), (0.599, "0.6"), (0.4, "0.6"), (0.399, "0.4"), (0.2, "0.4"), (0.199, "0.2"), (0.0, "0.2")],
)
def test_a_score_falls_into_the_band_it_is_below(hscore: float | None, band: str) -> None:
    assert score_band(hscore) == band


@pytest.mark.parametrize("kind", list(FindingKind))
@pytest.mark.parametrize("backend", ["a", "lonely", "edge:llm"])
def test_every_alert_carries_every_label_with_a_value(kind: FindingKind, backend: str) -> None:
    for alert in alerts(finding(kind, backend), scores={"a": score(0.1)}):
        assert set(alert["labels"]) >= CONTRACT_LABELS
        assert {"alertname", *WATCHDOG_LABELS} <= set(alert["labels"]) <= OWN_LABELS, (
            "else a configured label could take its place"
        )
        assert all(alert["labels"].values()), "Alertmanager drops a label whose value is empty"
        assert {"summary", "impact", "causes", "actions", "score", "console", "runbook_url"} <= set(alert["annotations"])


def test_a_hung_backend_is_told_with_its_pools_and_the_policy_that_acts() -> None:
    (alert,) = alerts(finding(), desired=(wish(),))
    assert alert["labels"] == {
        "alertname": "BackendHung",
        "severity": "page",
        "backend": "a",
        "pool": "edge:llm,west:llm",
        "dominant_factor": "none",
        "score_band": "none",
        "self_heal_strategy": "gpu_health_gate",
        "cause": "none",
        "action": "none",
        "source": "watchdog",
        "kind": "hung",
    }
    assert alert["annotations"]["actions"] == "gpu_health_gate wants admission drain (mode enforce)"
    assert alert["startsAt"] == "2023-11-14T22:13:20+00:00"
    assert "endsAt" not in alert


@pytest.mark.parametrize(("rule", "name"), [("fast", "SLOBurnFast"), ("slow", "SLOBurnSlow"), ("trickle", "SLOTrickle")])
def test_a_burn_is_told_by_the_rule_that_holds_and_each_signal_is_an_alert_of_its_own(rule: str, name: str) -> None:
    found = [replace(finding(FindingKind.SLO_BURN), evidence={"rule": rule}, signal=signal) for signal in ("ttft", "itl", "")]
    told = alerts(*found)
    assert {alert["labels"]["alertname"] for alert in told} == {name}
    assert [alert["labels"].get("signal") for alert in told] == ["ttft", "itl", None]


def test_a_policy_that_only_observes_is_no_strategy() -> None:
    (alert,) = alerts(finding(), desired=(wish(Mode.OBSERVE),))
    assert alert["labels"]["self_heal_strategy"] == "none"
    assert "mode observe" in alert["annotations"]["actions"]


def test_an_end_is_told_for_some_minutes_in_the_order_of_the_ends() -> None:
    closed = tuple(replace(finding(backend=f"b{n}"), until_unix_s=float(n)) for n in range(1_000))
    told = lately_closed(Book(closed=closed), 1_000.0)
    assert [f.until_unix_s for f in told] == [float(n) for n in range(701, 1_000)]
    assert len(lately_closed(Book(closed=closed), 0.0)) == MAX_ALERTS, "no more than one post has, also after a clock step"


def test_information_is_no_alert() -> None:
    assert alerts(finding(severity=Severity.INFO)) == []


def test_the_largest_shares_are_named_as_causes() -> None:
    shares = (Share("stage", "queue", 0.2, 0.9), Share("stage", "prefill", 0.64, 0.9), Share("tenant", "x", 0.16, 0.5))
    (alert,) = alerts(finding(FindingKind.GROWTH, shares=shares))
    assert alert["annotations"]["causes"] == "stage prefill 64%, stage queue 20%, tenant x 16%; confidence high"


def test_a_common_cause_names_its_pool() -> None:
    (alert,) = alerts(finding(FindingKind.COMMON_CAUSE, "edge:llm", evidence={"pool": "edge:llm"}))
    assert alert["labels"]["pool"] == "edge:llm"
    assert alert["annotations"]["actions"].startswith("nothing, on purpose"), "policies do want changes, and are refused"


@pytest.mark.parametrize(("hscore", "severity"), [(0.5, "ticket"), (0.3, "page"), (0.1, "page")])
def test_a_degraded_score_is_told_with_its_band_and_its_dominant_factor(hscore: float, severity: str) -> None:
    (alert,) = alerts(scores={"a": score(hscore)})
    labels = alert["labels"]
    assert (labels["alertname"], labels["severity"], labels["dominant_factor"]) == ("HealthDegraded", severity, "latency")
    assert labels["score_band"] == score_band(hscore)
    assert str(hscore) not in "".join(v for k, v in labels.items() if k != "score_band"), "a score as a label splits alerts"


@pytest.mark.parametrize("score", [score(None), score(0.6), score(0.0, veto=State.HUNG)])
def test_an_unknown_a_good_and_a_vetoed_score_are_not_degraded(score: HealthScore) -> None:
    assert alerts(scores={"a": score}) == []


def test_an_end_never_lies_before_its_start() -> None:
    (alert,) = alerts(finding(until_unix_s=1.6e9))
    assert alert["endsAt"] == alert["startsAt"]


def test_two_pieces_of_advice_are_two_alerts_and_nobody_is_said_to_wait_for_them() -> None:
    told = alerts(*(finding(FindingKind.ADVICE, signal=signal) for signal in ("gate:admission", "quarantine")))

    assert len({tuple(alert["labels"].items()) for alert in told}) == 2
    assert {alert["labels"]["alertname"] for alert in told} == {"HealthDegraded"}
    assert "wait longer" not in told[0]["annotations"]["impact"]


# Whom it hurts, since when, why, what was done, where to look


def _on(backend: str, running: float | None, waiting: float | None = None) -> BackendObservation:
    counts = {catalog.RUNNING.name: running, catalog.WAITING.name: waiting}
    return BackendObservation(backend, State.HUNG, 0.5, readings={n: present(v, 0.5) for n, v in counts.items() if v is not None})


POOL = tuple(Backend(name, "llama-3-8b", (Target("edge", name, "llm"),)) for name in ("a", "b"))


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ({"a": _on("a", 7, 2), "b": _on("b", 5, 0)}, "9 of the 14 requests that its pool has now are on it."),
        ({"a": _on("a", 9, 0), "b": _on("b", None)}, "9 requests are on it now."),
        ({"a": _on("a", 9, 0), "b": _on("b", 5)}, "9 requests are on it now."),
        ({"a": _on("a", 9), "b": _on("b", 5, 0)}, "while it is in the pool."),
        ({"a": _on("a", None), "b": _on("b", 5, 0)}, "while it is in the pool."),
        ({}, "while it is in the pool."),
    ],
)
def test_whom_it_hurts_is_counted_where_it_is_known(seen: dict[str, BackendObservation], said: str) -> None:
    (alert,) = alerts(finding(), backends=POOL, observations=seen)
    impact = alert["annotations"]["impact"]
    assert impact.startswith("Users of llama-3-8b on pool edge:llm. Requests on it get no answer")
    assert impact.endswith(said)


def test_the_tenant_that_is_hit_most_is_named() -> None:
    shares = (Share("stage", "prefill", 0.6, 0.9), Share("tenant", "premium", 0.4, 0.9))
    (alert,) = alerts(finding(FindingKind.BLOCK_E, shares=shares))
    assert alert["annotations"]["impact"].endswith("Mostly tenant premium (40%).")


@pytest.mark.parametrize(
    ("ago_s", "said"),
    [(5, "22:14 UTC, for 5 s"), (61, "22:13 UTC, for 1 min"), (3_700, "21:12 UTC, for 1 h 2 min"), (-30, "22:14 UTC, for 0 s")],
)
def test_since_says_when_and_for_how_long(ago_s: float, said: str) -> None:
    (alert,) = alerts(finding(since_unix_s=NOW - ago_s))
    assert alert["annotations"]["since"] == said


def test_what_began_yesterday_has_a_date() -> None:
    (alert,) = alerts(finding(since_unix_s=NOW - 86_400 - 7_200))
    assert alert["annotations"]["since"] == "20:14 UTC, 13 Nov, for 1 d 2 h"


def test_an_end_says_how_long_users_felt_it() -> None:
    (alert,) = alerts(finding(until_unix_s=1.7e9 + 370))
    assert (alert["annotations"]["lasted"], alert["annotations"]["since"]) == ("6 min", "22:13 UTC, for 6 min")


@pytest.mark.parametrize(
    ("given", "said", "label"),
    [
        (lease(), "drained at edge since 22:13 UTC by gpu_health_gate (lease until 22:18 UTC)", "drain"),
        (lease(Knob.WEIGHT, 25.0, 100.0), "weight 25% at edge since", "weight"),
        (lease(Knob.WEIGHT, 0.25, 0.0), "weight 0.25 at edge since", "weight"),
        (lease(Knob.CONCURRENCY_LIMIT, 128.0, 0.0), "concurrency_limit 128 at edge since", "concurrency_limit"),
        (lease(Knob.CACHE_MODE, "tenant", "off"), "cache_mode tenant at edge since", "cache_mode"),
        (lease(confirmed=False), "(lease until 22:18 UTC, not read back yet)", "drain"),
    ],
)
def test_what_is_in_force_is_told_with_its_lease(given: Any, said: str, label: str) -> None:
    (alert,) = alerts(finding(), desired=(wish(),), leases=(given,))
    assert said in alert["annotations"]["actions"]
    assert ("wants admission" in alert["annotations"]["actions"]) == (given.knob is not Knob.ADMISSION)
    assert alert["labels"]["action"] == label


def test_a_refusal_is_told_with_its_reason() -> None:
    wanted = wish()
    (alert,) = alerts(finding(), desired=(wanted,), verdicts=(Verdict(wanted, Refusal.CAP, "1 of 1 out"),))
    assert alert["annotations"]["actions"] == (
        "gpu_health_gate wants admission drain (mode enforce), "
        "not done: cap: as many backends of the pool as allowed are acted on already (1 of 1 out)"
    )
    assert alert["labels"]["action"] == "none"


@pytest.mark.parametrize(
    ("shares", "cause"),
    [
        ((Share("stage", "prefill", 0.6, 0.9), Share("stage", "queue", 0.4, 0.9)), "stage:prefill"),
        ((Share("stage", "prefill", 0.45, 0.9), Share("stage", "queue", 0.55, 0.4)), "none"),
        ((Share("stage", "prefill", 0.4, 0.9), Share("stage", "queue", 0.3, 0.9), Share("stage", "decode", 0.3, 0.9)), "none"),
        ((Share("unknown", "unknown", 1.0, 0.9),), "none"),
        ((), "none"),
    ],
)
def test_a_cause_is_a_label_only_where_it_is_clear(shares: tuple[Share, ...], cause: str) -> None:
    (alert,) = alerts(finding(FindingKind.BLOCK_E, shares=shares))
    assert alert["labels"]["cause"] == cause


def test_links_lead_to_the_root_cause_board_at_the_time_of_the_trouble() -> None:
    links = Links("https://console.example/", "https://grafana.example", "https://docs.example/runbook")
    going_on, over = alerts(finding(backend="a/b c&d"), finding(until_unix_s=1.7e9 + 60), links=links)
    assert going_on["annotations"]["dashboard_url"] == (
        "https://grafana.example/d/tailkeeper-root-cause?var-backend=a%2Fb%20c%26d&from=1699999100000&to=now"
    )
    assert over["annotations"]["dashboard_url"].endswith("&from=1699999100000&to=1700000360000")
    assert going_on["annotations"]["runbook_url"] == "https://docs.example/runbook#backendhung"
    assert going_on["annotations"]["console"] == going_on["generatorURL"] == "https://console.example/"


def test_of_two_clusters_the_board_shows_the_alerts_own() -> None:
    (alert,) = alerts(finding(), links=Links("http://c/", "http://g"), labels={"cluster": "eu 1"})
    assert "?var-backend=a&var-cluster=eu%201&from=" in alert["annotations"]["dashboard_url"]


def test_without_grafana_no_board_is_linked() -> None:
    assert "dashboard_url" not in alerts(finding())[0]["annotations"]


def test_configured_labels_are_on_every_alert_and_win_over_none_of_ours() -> None:
    for alert in alerts(finding(), scores={"a": score(0.1)}, labels={"cluster": "eu-1"}):
        assert alert["labels"]["cluster"] == "eu-1"
        assert set(alert["labels"]) >= CONTRACT_LABELS


_TEXT = st.text(max_size=20)


@given(
    st.sampled_from(FindingKind),
    _TEXT,
    _TEXT,
    st.lists(st.builds(Share, _TEXT, _TEXT, st.floats(0, 1), st.floats(0, 1)), max_size=3),
    st.floats(-1e6, 1e9),
)
def test_whatever_a_finding_holds_it_is_told(
    kind: FindingKind, backend: str, text: str, shares: list[Share], ago_s: float
) -> None:
    found = finding(kind, backend, summary=text, shares=tuple(shares), signal=text, since_unix_s=NOW - ago_s)
    links = replace(LINKS, grafana="https://grafana.example")
    (alert,) = alerts(found, desired=(DesiredState("p", backend, Knob.WEIGHT, 0.5, text, Mode.ENFORCE),), links=links)
    assert all(alert["labels"].values())
    assert alert["annotations"]["dashboard_url"].isascii()


@pytest.mark.parametrize(("confidence", "told"), [(0.25, 0), (0.3, 1), (1.0, 1)])
def test_a_low_score_that_rests_on_cpu_and_uptime_alone_is_told_to_nobody(confidence: float, told: int) -> None:
    assert len(alerts(scores={"a": score(0.4, confidence=confidence)})) == told
