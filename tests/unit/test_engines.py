"""The contract of every engine's table: its rows match a page of that engine, and what a page does not say is absent."""

from __future__ import annotations

import re

import pytest

from tailkeeper_exporter import catalog
from tailkeeper_exporter.counters import CounterMemory
from tailkeeper_exporter.engines import ENGINES, Engine, engine_named
from tailkeeper_exporter.exposition import PageParser, SeriesKey, canonical
from tailkeeper_exporter.normalise import Normalised, normalise, wanted_by
from tests.unit.engine_pages import PAGES, PageOf
from tests.unit.test_normalise import CAPTURED, SCRAPES

FILES = {engine.name: [page.file for page in PAGES if page.engine == engine.name] for engine in ENGINES} | {
    "vllm": list(CAPTURED)
}


def read(engine: Engine, text: str) -> Normalised:
    return normalise(PageParser(wanted_by(engine)).parse(text.encode()), engine, CounterMemory(), 1.0)


def matches(key: SeriesKey, where: tuple[tuple[str, tuple[str, ...]], ...]) -> bool:
    return all(key.label(label) in values or (not values and key.label(label) != "") for label, values in where)


def without(text: str, names: set[str]) -> str:
    """The page without the series of these canonical names, and with one line that no engine wants."""

    def family(line: str) -> str:
        return canonical(re.split(r"[{ ]", line, maxsplit=1)[0])

    ends = ("", "_bucket", "_sum", "_count")
    kept = [line for line in text.splitlines() if not any(family(line) == name + end for name in names for end in ends)]
    return "\n".join([*kept, "other 1", ""])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.file)
def test_a_page_gives_what_was_counted_on_it_by_hand_and_nothing_else(page: PageOf) -> None:
    result = read(engine_named(page.engine), (SCRAPES / page.file).read_text())
    assert {output: reading.value for output, reading in result.values.items()} == pytest.approx(page.values)
    found = {output: reading.value for output, reading in result.histograms.items()}
    assert {o: (h.count, round(h.sum, 6)) for o, h in found.items() if h is not None} == {
        output: (count, total) for output, (count, total) in page.histograms.items()
    }
    assert result.progress == page.progress
    assert result.missing == page.missing
    assert result.problems == {}


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_every_row_of_a_table_matches_a_page_of_that_engine(engine: Engine) -> None:
    pages = [PageParser(wanted_by(engine)).parse((SCRAPES / file).read_bytes()) for file in FILES[engine.name]]
    samples = [key for page in pages for key, _ in page.samples]
    for source in engine.sources:
        found = [key for key in samples if key.name in source.names]
        assert any(matches(key, source.where) for key in found), source
    for progress in engine.progress:
        found = [key for key in samples if key.name == progress.name]
        assert any(matches(key, progress.where) for key in found), progress


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_a_metric_whose_series_are_not_on_the_page_is_absent_and_never_zero(engine: Engine) -> None:
    for file in FILES[engine.name]:
        text = (SCRAPES / file).read_text()
        for metric in dict.fromkeys(source.metric for source in engine.sources):
            names = {name for source in engine.sources if source.metric is metric for name in source.names}
            result = read(engine, without(text, names))
            assert not [output for output in (*result.values, *result.histograms) if output[0] == metric.name], metric.name


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_an_engine_says_what_it_cannot_tell_and_each_fixture_has_its_version_in_its_name(engine: Engine) -> None:
    assert engine.cannot_tell.endswith(".")
    for file in FILES[engine.name]:
        assert re.fullmatch(rf"{engine.name}-[^-]+(-[a-z-]+)?\.prom", file)
        says_so = (SCRAPES / file).read_text().startswith("# Written from the documentation, not captured")
        assert says_so is file.endswith("-from-docs.prom")


def test_an_old_llamacpp_page_that_does_not_count_cached_tokens_knows_nothing_of_look_ups() -> None:
    text = without((SCRAPES / "llamacpp-b11669.prom").read_text(), {"llamacpp_prompt_tokens_cached_total"})
    result = read(engine_named("llamacpp"), text)
    assert result.value(catalog.PROMPT_TOKENS).value == 98
    assert not result.value(catalog.KV_QUERIES).is_present
    assert not result.value(catalog.KV_HITS).is_present
    assert result.missing == ()


def test_a_name_that_no_engine_has_is_none() -> None:
    with pytest.raises(KeyError):
        engine_named("of tomorrow")


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_a_server_of_several_models_is_asked_about_the_one_that_is_configured(engine: Engine) -> None:
    assert engine.health_path_of(None) == engine.health_path
    asked = engine.health_path_of("team/llama 3")
    assert ("team%2Fllama%203" in asked) == (engine.model_health_path is not None)
    assert asked == engine.health_path or engine.model_health_path is not None


def test_what_becomes_of_requests_is_told_by_each_engine_in_its_own_measure() -> None:
    told = {engine.name: engine.outcomes for engine in ENGINES}
    assert told["vllm"] == catalog.OUTCOMES
    assert told["sglang"] == ("ok", "aborted")
    assert told["llamacpp"] == ()
