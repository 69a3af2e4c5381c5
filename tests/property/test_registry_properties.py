"""The registry under any sequence of lists: bounded at each step, never moved by a failure, and right in the end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_exporter.discovery import DiscoveryError, Found, Listing, Registry
from tailkeeper_exporter.discovery.base import MAX_LABELS, bounded_labels
from tailkeeper_exporter.discovery.file_sd import parse_groups
from tailkeeper_exporter.discovery.registry import MISSES, MISSES_OF_MANY

SOURCES = ("s", "t")
NAMES = st.sampled_from([f"b{n}" for n in range(12)])
URLS = st.sampled_from([f"http://h{n}" for n in range(12)])
LISTS = st.lists(st.builds(Found, NAMES, URLS), max_size=14).map(lambda found: Listing(tuple(found)))
ANSWERS = st.tuples(st.sampled_from(SOURCES), LISTS | st.just(DiscoveryError("x")))
CONFIGURED = st.dictionaries(NAMES, URLS, max_size=3)
ROOM, STEP = 9, 4


def registry_of(configured: dict[str, str]) -> Registry:
    return Registry(SOURCES, configured, max_backends=ROOM, max_changes=STEP)


@given(CONFIGURED, st.lists(ANSWERS, max_size=25))
def test_every_step_is_bounded_and_true_to_what_it_says(
    configured: dict[str, str], answers: list[tuple[str, Listing | DiscoveryError]]
) -> None:
    registry = registry_of(configured)
    for source, answer in answers:
        before = {found.name: found for found in registry.current}
        changes = registry.take(source, answer)
        now = {found.name: found for found in registry.current}
        assert len(now) == len(registry.current) <= ROOM - len(configured)
        assert not set(now) & set(configured)
        assert set(changes.added) == set(now) - set(before)
        assert set(changes.removed) == set(before) - set(now)
        assert set(changes.changed) == {name for name in set(now) & set(before) if now[name] != before[name]}
        assert len(changes.added) <= STEP
        assert len(changes.removed) + len(changes.changed) <= STEP


@given(CONFIGURED, st.lists(ANSWERS, max_size=20), st.integers(1, 20))
def test_while_all_fail_nothing_moves_once_what_waited_is_through(
    configured: dict[str, str], answers: list[tuple[str, Listing | DiscoveryError]], failures: int
) -> None:
    registry = registry_of(configured)
    for source, answer in answers:
        registry.take(source, answer)
    while registry.take("s", DiscoveryError("x")).waiting:
        pass
    before = registry.current
    for _ in range(failures):
        assert not registry.take("t", DiscoveryError("x")).any
    assert registry.current == before


@given(CONFIGURED, st.lists(ANSWERS, max_size=20), LISTS, LISTS)
def test_whatever_came_before_lists_that_stay_as_they_are_are_what_is_there_in_the_end(
    configured: dict[str, str], answers: list[tuple[str, Listing | DiscoveryError]], last_s: Listing, last_t: Listing
) -> None:
    registry, fresh = registry_of(configured), registry_of(configured)
    for source, answer in answers:
        registry.take(source, answer)
    for _ in range(MISSES_OF_MANY + 2 * ROOM):
        for each in (registry, fresh):
            each.take("s", last_s)
            each.take("t", last_t)
    assert registry.current == fresh.current
    assert len({found.url for found in registry.current}) == len(registry.current)


@given(LISTS, st.integers(1, MISSES - 1))
def test_one_list_without_it_never_takes_a_backend_away(listing: Listing, without: int) -> None:
    registry = Registry(SOURCES, {})
    registry.take("s", listing)
    before = registry.current
    for _ in range(without):
        registry.take("s", Listing(()))
    assert registry.current == before


@given(st.dictionaries(st.text(), st.text(), max_size=40))
def test_labels_stay_bounded_and_readable_whatever_a_cluster_says(labels: dict[str, str]) -> None:
    kept, _ = bounded_labels(labels)
    assert len(kept) <= MAX_LABELS
    assert list(kept) == sorted(dict(kept).items())
    assert all(name.isascii() and name.replace("_", "a").isalnum() for name, _ in kept)
    assert bounded_labels(dict(kept)) == (kept, ())


@given(st.sampled_from(["a.json", "a.yml"]), st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_content_of_a_file_does_anything_but_parse_or_explain_itself(name: str, content: bytes) -> None:
    groups, said = None, ""
    try:
        groups = parse_groups(name, content)
    except DiscoveryError as error:
        said = str(error)
    assert said or all(isinstance(target, str) for group in groups or () for target in group.targets)
