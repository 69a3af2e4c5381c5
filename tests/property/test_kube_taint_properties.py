"""A node's taints under any order of our holders coming and going, and of other hands."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_watchdog.actuators.kube_objects import notes_from, notes_of, notes_patch, notes_text
from tailkeeper_watchdog.actuators.kube_taints import HOLDINGS, TAINTED, node_patch, node_taints, taint_from

OURS = taint_from("gpu-mem-pressure=high:NoSchedule")
FOREIGN: list[dict[str, Any]] = [
    {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
    {"key": "gpu-mem-pressure", "value": "high", "effect": "PreferNoSchedule"},
    {"key": "maintenance", "effect": "NoExecute", "timeAdded": "2026-11-29T00:00:00Z"},
]
HOLDERS = ["llm/a", "llm/b", "other/a"]


def applied(node: dict[str, Any], patch: Any) -> dict[str, Any]:
    """A merge patch on metadata and taints, as an API server does it."""
    if patch is None:
        return node
    about = node["metadata"]
    merged = {
        key: {**(about.get(key) or {}), **{k: v for k, v in patch["metadata"][key].items() if v is not None}}
        for key in ("annotations", "labels")
    }
    for key, changes in ((key, patch["metadata"][key]) for key in merged):
        merged[key] = {k: v for k, v in merged[key].items() if changes.get(k, v) is not None}
    return {"metadata": {**about, **merged}, "spec": {"taints": patch["spec"]["taints"]}}


@given(
    st.lists(st.sampled_from(FOREIGN), unique_by=lambda row: row["key"] + row["effect"]),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(HOLDERS), st.booleans()), max_size=12),
)
def test_the_taint_is_there_while_somebody_holds_it_and_nothing_else_is_ever_touched(
    foreign: list[dict[str, Any]], before_us: bool, turns: list[tuple[str, bool]]
) -> None:
    start = [*foreign, *([dict(OURS.row)] if before_us else [])]
    node: dict[str, Any] = {
        "metadata": {"name": "n", "labels": {"zone": "1"}, "annotations": {"a": "b"}},
        "spec": {"taints": start},
    }
    holding: set[str] = set()
    for holder, takes in turns:
        before = node_taints(node)
        node = applied(node, node_patch(node, before, before.only(holder, OURS) if takes else before.let_go(holder)))
        holding = holding | {holder} if takes else holding - {holder}
        rows = node["spec"]["taints"]
        assert [row for row in rows if not OURS.is_at(row)] == foreign
        assert any(OURS.is_at(row) for row in rows) == (bool(holding) or before_us)
        assert all((node_taints(node).of(one) == OURS.text) == (one in holding) for one in HOLDERS)
        assert (TAINTED in node["metadata"]["labels"]) == bool(holding) == (HOLDINGS in node["metadata"]["annotations"])
    assert node["metadata"]["labels"]["zone"] == "1"
    assert node["metadata"]["annotations"]["a"] == "b"


NOTES = st.dictionaries(
    st.from_regex(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,20}[A-Za-z0-9])?", fullmatch=True),
    st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters=","), max_size=20),
    max_size=5,
)


@given(NOTES, NOTES, st.dictionaries(st.sampled_from(["other.io/x", "plain", "tailkeeper/model"]), st.text(max_size=5)))
def test_notes_are_written_as_asked_and_nobody_elses_annotation_is_in_the_patch(
    there: dict[str, str], wanted: dict[str, str], foreign: dict[str, str]
) -> None:
    annotations = {**{f"tailkeeper.io/{key}": text for key, text in there.items()}, **foreign}
    patch = notes_patch({"metadata": {"annotations": annotations}}, wanted)
    changes = {} if patch is None else patch["metadata"]["annotations"]
    after = {key: text for key, text in {**annotations, **changes}.items() if text is not None}
    assert notes_of({"metadata": {"annotations": after}}) == wanted
    assert not changes.keys() & foreign.keys()
    assert notes_from(notes_text(wanted)) == wanted
