"""Changes in the text of a document: everything else stays as it stands, and what cannot be done is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tailkeeper_watchdog.actuators import document_text
from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.contract import ErrorKind
from tailkeeper_watchdog.actuators.document_text import GONE, edited, parsed

PEOPLE_WROTE = """\
# the pool
pool:
  - name: a    # the first
    weight: 1  # one
  - {name: "b"}
  - name: c
    state: HEALTHY
other: [x, 'y',  "z"]
"""


def test_a_change_in_yaml_touches_its_own_words_only() -> None:
    edits = {("pool", 0, "weight"): 18, ("pool", 1, "weight"): 100, ("pool", 2, "state"): "DRAINING", ("pool", 2, "mark", "w"): 1}
    assert edited(PEOPLE_WROTE, edits, is_json=False) == (
        PEOPLE_WROTE.replace("weight: 1 ", "weight: 18 ")
        .replace('{name: "b"}', '{weight: 100, name: "b"}')
        .replace("state: HEALTHY", "state: DRAINING")
        .replace("- name: c\n", '- mark: {"w": 1}\n    name: c\n')
    )


def test_taking_back_what_was_changed_gives_the_very_same_text() -> None:
    there = edited(PEOPLE_WROTE, {("pool", 0, "weight"): 18, ("pool", 1, "weight"): 100, ("pool", 2, "mark", "w"): 1}, False)
    back = edited(there, {("pool", 0, "weight"): 1, ("pool", 1, "weight"): GONE, ("pool", 2, "mark", "w"): GONE}, False)
    assert back == PEOPLE_WROTE


def test_what_another_program_has_dumped_anew_is_taken_back_in_its_new_form() -> None:
    there = edited(PEOPLE_WROTE, {("pool", 1, "weight"): 100, ("pool", 2, "mark", "w"): 1}, False)
    for dumped in (yaml.safe_dump(yaml.safe_load(there)), yaml.safe_dump(yaml.safe_load(there), sort_keys=False)):
        back = edited(dumped, {("pool", 1, "weight"): GONE, ("pool", 2, "mark", "w"): GONE}, False)
        assert yaml.safe_load(back) == yaml.safe_load(PEOPLE_WROTE)


DUMPED = """\
pool:
- name: a
  mark:
    w:
    - 1
# theirs
- name: b
"""


def test_a_block_is_replaced_and_taken_away_without_the_comment_that_follows_it() -> None:
    at = ("pool", 0, "mark")
    assert edited(DUMPED, {at: {"w": 2}}, False) == DUMPED.replace("w:\n    - 1", '{"w": 2}')
    assert edited(DUMPED, {at: GONE}, False) == DUMPED.replace("  mark:\n    w:\n    - 1\n", "")


@pytest.mark.parametrize("nothing", ["", " null", " ~", " {}", "  # nobody's\n    "])
def test_a_key_without_a_value_is_as_one_that_is_not_there(nothing: str) -> None:
    text = f"pool:\n  - metadata:{nothing}\n    name: a\n"
    there = edited(text, {("pool", 0, "metadata", "filter", "mark"): {"w": 1}}, is_json=False)
    assert yaml.safe_load(there) == {"pool": [{"metadata": {"filter": {"mark": {"w": 1}}}, "name": "a"}]}
    back = edited(there, {("pool", 0, "metadata", "filter", "mark"): GONE}, is_json=False)
    assert yaml.safe_load(back) == {"pool": [{"name": "a"}]}


def test_a_null_in_json_is_as_a_key_that_is_not_there() -> None:
    there = edited('{"pool": [{"metadata": null}]}', {("pool", 0, "metadata", "filter", "mark"): 1}, is_json=True)
    assert there == '{"pool": [{"metadata": {"filter": {"mark": 1}}}]}'


@pytest.mark.parametrize("layout", [{}, {"indent": 2}, {"indent": 4}, {"indent": "\t"}, {"separators": (",", ":")}])
@pytest.mark.parametrize("end", ["", "\n"])
def test_json_keeps_its_layout(layout: dict[str, Any], end: str) -> None:
    def dumped(weight: int) -> str:
        return json.dumps({"pool": [{"name": "é", "weight": weight, "big": 1.0}], "none": None}, **layout) + end

    assert edited(dumped(1), {("pool", 0, "weight"): 18}, is_json=True) == dumped(18)


@pytest.mark.parametrize(
    "text",
    [
        "pool:\n  - &x {name: a, weight: 1}\n  - *x\n",
        "pool:\n  - {name: a, weight: &w 1}\n  - {name: b, weight: *w}\n",
    ],
    ids=["one server twice by an alias", "one weight for two"],
)
def test_a_place_that_is_shared_is_refused(text: str) -> None:
    with pytest.raises(CallError, match="write aliases and merges out") as caught:
        edited(text, {("pool", 0, "weight"): 18}, is_json=False)
    assert caught.value.kind is ErrorKind.REFUSED


@pytest.mark.parametrize("text", ["a: [", "a: b: c", "\t- x", "- &a [*a]", "a: *b", "[" * 3_000, "a: 1\n---\nb: 2\n", "\x00"])
def test_garbage_is_an_error_in_words(text: str) -> None:
    with pytest.raises(CallError, match="cannot be parsed") as caught:
        parsed(text, is_json=False)
    assert caught.value.kind is ErrorKind.PROTOCOL


def test_aliases_of_aliases_are_not_expanded_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_text, "MAX_NODES", 10_000)
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(CallError, match="more than"):
        parsed("\n".join(lines), is_json=False)


def test_yaml_that_would_take_longer_than_any_deadline_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_text, "YAML_LIMIT_CHARS", len(PEOPLE_WROTE) - 1)
    with pytest.raises(CallError, match="or use JSON") as caught:
        parsed(PEOPLE_WROTE, is_json=False)
    assert caught.value.kind is ErrorKind.REFUSED


scalars = st.none() | st.booleans() | st.integers(-9, 999) | st.text(max_size=8)
documents = st.recursive(scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3))


@settings(max_examples=40)
@given(st.lists(documents, min_size=1, max_size=3), st.booleans(), st.booleans(), st.data())
def test_whatever_else_is_in_the_document_it_is_the_same_afterwards(
    rest: list[Any], flow: bool, is_json: bool, data: st.DataObject
) -> None:
    document = {"pool": [{"name": n, "rest": r} for n, r in enumerate(rest)], "z": rest}
    at = data.draw(st.integers(0, len(rest) - 1))
    text = json.dumps(document) if is_json else yaml.safe_dump(document, default_flow_style=flow, allow_unicode=True)

    there = edited(text, {("pool", at, "weight"): 18, ("pool", at, "meta", "mark"): {"w": None}}, is_json)
    wanted = parsed(text, is_json)
    wanted["pool"][at] |= {"weight": 18, "meta": {"mark": {"w": None}}}
    assert parsed(there, is_json) == wanted

    back = edited(there, {("pool", at, "weight"): GONE, ("pool", at, "meta", "mark"): GONE}, is_json)
    assert back == text
