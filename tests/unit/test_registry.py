"""What becomes of lists that fail, lie, flood or contradict each other. A table of lists in, backends out; no clock."""

from __future__ import annotations

import pytest

from tailkeeper_exporter.discovery import DiscoveryError, Found, Listing, Registry
from tailkeeper_exporter.discovery.registry import MISSES, MISSES_OF_MANY

FAILED = DiscoveryError("no answer")


def of(*names: str, at: str = "http://") -> Listing:
    return Listing(tuple(Found(name, at + name) for name in names))


def names(registry: Registry) -> list[str]:
    return [found.name for found in registry.current]


@pytest.mark.parametrize(
    ("lists", "left"),
    [
        ([of("a", "b", "c"), of("a", "b")], ["a", "b", "c"]),
        ([of("a", "b", "c"), *[of("a", "b")] * MISSES], ["a", "b"]),
        ([of("a", "b", "c"), of("a", "b"), of("a", "b", "c"), of("a", "b")], ["a", "b", "c"]),
        ([of("a", "b", "c"), of("a", "b"), FAILED, FAILED, FAILED], ["a", "b", "c"]),
        ([of("a", "b", "c"), *[FAILED] * 50], ["a", "b", "c"]),
        ([of("a"), *[of()] * MISSES], []),
        ([of("a", "b", "c", "d"), *[of("a")] * MISSES], ["a", "b", "c", "d"]),
        ([of("a", "b", "c", "d"), *[of("a")] * MISSES_OF_MANY], ["a"]),
        ([of("a", "b", "c", "d"), *[of()] * (MISSES_OF_MANY - 1), of("a", "b", "c", "d")], ["a", "b", "c", "d"]),
        ([FAILED, of("a")], ["a"]),
    ],
    ids=[
        "one list without it is not enough",
        "two are",
        "missing must be in a row",
        "a failed list says nothing",
        "stale is not gone",
        "the only one goes like any other",
        "most at once need more lists",
        "most at once go in the end",
        "most at once come back before that",
        "a source that failed first is believed later",
    ],
)
def test_a_backend_goes_only_when_good_lists_say_so_often_enough(lists: list[Listing | DiscoveryError], left: list[str]) -> None:
    registry = Registry(["s"], {})
    for listing in lists:
        registry.take("s", listing)
    assert names(registry) == left


def test_one_source_that_fails_or_empties_costs_the_others_nothing() -> None:
    registry = Registry(["s", "t"], {})
    registry.take("s", of("a"))
    registry.take("t", of("b"))
    registry.take("t", FAILED)
    for _ in range(MISSES):
        registry.take("s", of())
    assert names(registry) == ["b"]


def test_the_configured_backend_wins_over_a_found_one_of_its_name_or_its_address() -> None:
    registry = Registry(["s"], {"a": "http://a", "b": "http://elsewhere"})
    changes = registry.take("s", of("a", "b", "c"))
    assert names(registry) == ["c"]
    assert changes.added == ("c",)
    assert len(changes.left_out) == 1  # the same engine known twice is nothing to speak of; the same name is
    assert "'b' at http://b is left out: the configuration" in changes.left_out[0]


@pytest.mark.parametrize("order", [("s", "t"), ("t", "s")])
def test_of_two_found_backends_of_one_name_the_earlier_discovery_wins_whoever_was_listed_first(order: tuple[str, str]) -> None:
    registry = Registry(["s", "t"], {})
    for source in order:
        registry.take(source, of("a", at=f"http://{source}-"))
    assert [found.url for found in registry.current] == ["http://s-a"]


def test_one_engine_found_by_two_sources_is_one_backend() -> None:
    registry = Registry(["s", "t"], {})
    registry.take("s", Listing((Found("pod", "http://x"),)))
    registry.take("t", Listing((Found("x", "http://x"),)))
    assert names(registry) == ["pod"]


def test_two_of_one_name_on_one_list_are_one_and_the_other_is_said() -> None:
    registry = Registry(["s"], {})
    changes = registry.take("s", Listing((Found("a", "http://x"), Found("a", "http://y"), Found("b", "http://z"))))
    assert [found.url for found in registry.current] == ["http://x", "http://z"]
    assert "'a' at http://y is left out" in changes.notes[0]


def test_a_backend_at_another_address_is_another_at_once() -> None:
    registry = Registry(["s"], {})
    registry.take("s", of("a"))
    changes = registry.take("s", of("a", at="http://new-"))
    assert changes.changed == ("a",)
    assert registry.current[0].url == "http://new-a"


def test_a_flood_is_taken_in_by_pieces_and_the_rest_is_said_to_wait() -> None:
    registry = Registry(["s"], {}, max_changes=3)
    flood = of(*(f"b{n}" for n in range(8)))
    counts = [(len(registry.take("s", flood).added), len(registry.current)) for _ in range(4)]
    assert counts == [(3, 3), (3, 6), (2, 8), (0, 8)]
    assert registry.take("s", flood).waiting == 0


def test_a_whole_fleet_that_goes_goes_by_pieces() -> None:
    registry = Registry(["s"], {}, max_changes=3)
    for _ in range(3):
        registry.take("s", of(*(f"b{n}" for n in range(8))))
    counts = [len(registry.take("s", of()).removed) for _ in range(MISSES_OF_MANY + 2)]
    assert counts == [0] * (MISSES_OF_MANY - 1) + [3, 3, 2]


def test_no_more_are_found_than_there_is_room_for_and_configured_ones_count() -> None:
    registry = Registry(["s"], {"c": "http://c"}, max_backends=3)
    changes = registry.take("s", of("x", "y", "z"))
    assert names(registry) == ["x", "y"]
    assert "only 2 found backends" in changes.left_out[0]
