"""The loop of discovery: what it publishes, what it logs and how often, and that one source never holds up another."""

from __future__ import annotations

import asyncio
from typing import Any

from structlog.testing import CapturingLogger

from tailkeeper_exporter.discovery import Discoverer, DiscoveryError, Found, Listing, Source
from tailkeeper_exporter.discovery.discoverer import pause_s
from tailkeeper_exporter.settings import BackendSettings

FAILED = DiscoveryError("refused")


def of(*names: str, **keys: str) -> Listing:
    return Listing(tuple(Found(name, f"http://{name}", tuple(keys.items())) for name in names))


class Scripted:
    """A lister that gives its answers one after another and then the last one for ever; ``None`` never answers."""

    def __init__(self, *answers: Listing | DiscoveryError | None) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def list(self, deadline_s: float) -> Listing:
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, DiscoveryError):
            raise answer
        assert isinstance(answer, Listing)
        return answer


def compose(found: Found) -> BackendSettings:
    if found.name == "bad":
        raise ValueError("engine: field required")
    return BackendSettings(name=found.name, url=found.url, engine="vllm", labels=dict(found.labels))


def discoverer(*sources: Source, log: Any = None, **more: Any) -> Discoverer[BackendSettings]:
    return Discoverer(sources, (), compose, log=log or CapturingLogger(), **more)


def source(lister: Scripted, name: str = "s", interval_s: float = 0.01) -> Source:
    return Source(name, lister, interval_s)


def names(finding: Discoverer[BackendSettings]) -> list[str]:
    return [backend.name for backend in finding.backends]


async def test_a_source_that_hangs_holds_up_no_other_and_those_who_wait_are_woken() -> None:
    finding = discoverer(source(Scripted(None), "hung", 5), source(Scripted(of("b", "a")), "good"))
    assert list(finding.unlisted) == ["hung", "good"]
    running = asyncio.create_task(finding.run())
    async with asyncio.timeout(2):
        both = await asyncio.gather(finding.changed(()), finding.changed(()))
    assert [backend.name for backend in both[0]] == ["a", "b"]
    assert both[0] is both[1]
    assert list(finding.unlisted) == ["hung"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_failed_first_listing_is_a_listing_that_has_ended() -> None:
    finding = discoverer(source(Scripted(FAILED)))
    finding.take("s", FAILED)
    assert finding.unlisted == ()
    assert finding.backends == ()


async def test_what_is_published_is_replaced_only_by_something_else() -> None:
    finding = discoverer(source(Scripted()))
    finding.take("s", of("a"))
    first = finding.backends
    finding.take("s", of("a"))
    finding.take("s", FAILED)
    assert finding.backends is first


async def test_a_found_backend_that_cannot_be_composed_is_left_out_and_the_others_are_not() -> None:
    log = CapturingLogger()
    finding = discoverer(source(Scripted()), log=log)
    finding.take("s", of("a", "bad", "c"))
    assert names(finding) == ["a", "c"]
    finding.take("s", of("a", "bad", "c", "d"))
    said = [call for call in log.calls if call.args == ("found backends left out",)]
    assert [call.kwargs["what"] for call in said] == [(1, "bad: engine: field required")]


async def test_a_name_that_is_there_twice_is_said_once_and_not_by_the_discovery_that_does_not_have_it() -> None:
    log = CapturingLogger()
    finding = discoverer(source(Scripted(), "s"), source(Scripted(), "t"), log=log)
    finding.take("s", Listing((Found("a", "http://x"), Found("b", "http://y"))))
    finding.take("t", Listing((Found("a", "http://z"),)))
    for _ in range(3):
        finding.take("s", Listing((Found("a", "http://x"), Found("b", "http://y"))))
    warned = [call.kwargs for call in log.calls if call.method_name == "warning"]
    assert warned == [{"source": "all", "what": ("'a' at http://z is left out: s has another of that name",)}]


async def test_a_failure_is_logged_when_it_begins_changes_and_ends_and_a_change_is_one_line() -> None:
    log = CapturingLogger()
    finding = discoverer(source(Scripted()), log=log)
    for answer in (FAILED, FAILED, DiscoveryError("timeout"), of("a", "b"), of("a", "b"), of("a", "b")):
        finding.take("s", answer)
    assert [(call.method_name, call.args[0]) for call in log.calls] == [
        ("warning", "discovery failed"),
        ("warning", "discovery failed"),
        ("info", "discovery failed: over"),
        ("info", "backends found"),
    ]
    assert log.calls[-1].kwargs == {"source": "s", "now": 2, "waiting": 0, "added": ["a", "b"]}


async def test_a_line_about_many_backends_names_a_few_of_them() -> None:
    log = CapturingLogger()
    finding = discoverer(source(Scripted()), log=log)
    finding.take("s", of(*(f"b{n}" for n in range(300))))
    assert log.calls[-1].kwargs["added"] == ["b0", "b1", "b2", "b3", "b4", "…"]
    assert log.calls[-1].kwargs["added_count"] == 300


async def test_a_source_is_asked_again_and_again_with_jitter() -> None:
    asked: list[tuple[float, float]] = []
    thrice = asyncio.Event()

    def uniform(low: float, high: float) -> float:
        asked.append((low, high))
        if len(asked) == 3:
            thrice.set()
        return 0.0

    running = asyncio.create_task(discoverer(source(Scripted(of("a")), interval_s=30), uniform=uniform).run())
    async with asyncio.timeout(5):
        await thrice.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert set(asked) == {(0.9, 1.1)}


async def test_a_flood_leaves_changes_waiting_and_the_next_listing_comes_sooner() -> None:
    waiting = discoverer(source(Scripted())).take("s", of(*(f"b{n}" for n in range(600))))
    assert waiting == 100
    assert (pause_s(30, waiting), pause_s(30, 0), pause_s(1, waiting)) == (5, 30, 1)


async def test_a_bug_in_taking_a_list_in_costs_that_turn_and_keeps_what_is_known() -> None:
    calls = 0

    def compose_badly(found: Found) -> BackendSettings:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise RuntimeError("nobody had foreseen this")
        return compose(found)

    lister, log = Scripted(of("a"), of("a", "b"), of("a", "b", "c")), CapturingLogger()
    finding: Discoverer[BackendSettings] = Discoverer((source(lister),), (), compose_badly, log=log)
    running = asyncio.create_task(finding.run())
    async with asyncio.timeout(5):
        while "c" not in names(finding):
            await finding.changed(finding.backends)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert names(finding) == ["a", "b", "c"]
    assert [call.method_name for call in log.calls].count("exception") == 1
