"""Whatever an engine's counters do, what is published does not fall, and absent is never zero."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_exporter import catalog
from tailkeeper_exporter.counters import CounterMemory
from tailkeeper_exporter.engines import ENGINES
from tailkeeper_exporter.engines.base import Engine, Source
from tailkeeper_exporter.exposition import PageError, PageParser
from tailkeeper_exporter.normalise import Normalised, normalise, wanted_by

ENGINE = Engine(
    name="test",
    metrics_path="/metrics",
    health_path="/health",
    sources=(
        Source(catalog.GENERATED_TOKENS, ("tokens_total",)),
        Source(catalog.TTFT, ("first_seconds",)),
        Source(catalog.KV_USAGE, ("kv_new", "kv_old")),
    ),
)

RANKS = st.dictionaries(st.integers(0, 2), st.integers(0, 50), max_size=3)
STARTS = st.sampled_from([None, 1e9, 1e9 + 0.3, 1e9 + 100])
STEPS = st.lists(st.tuples(RANKS, STARTS), min_size=2, max_size=12)


def page_of(ranks: dict[int, int], start_s: float | None) -> bytes:
    lines = ["other 1"] + ([] if start_s is None else [f"process_start_time_seconds {start_s}"])
    for rank, value in ranks.items():
        lines.append(f'tokens_total{{rank="{rank}"}} {value}')
        counts = (value // 3, value // 2, value)
        lines += [
            f'first_seconds_bucket{{rank="{rank}",le="{le}"}} {n}' for le, n in zip(("0.1", "1", "+Inf"), counts, strict=True)
        ]
        lines += [f'first_seconds_sum{{rank="{rank}"}} {value * 0.05}', f'first_seconds_count{{rank="{rank}"}} {value}']
    return ("\n".join(lines) + "\n").encode()


def results(steps: list[tuple[dict[int, int], float | None]]) -> list[Normalised]:
    memory, parser = CounterMemory(), PageParser(wanted_by(ENGINE))
    return [normalise(parser.parse(page_of(*step)), ENGINE, memory, float(now)) for now, step in enumerate(steps)]


@given(STEPS)
def test_published_counters_and_buckets_never_fall_and_lose_nothing(steps: list[tuple[dict[int, int], float | None]]) -> None:
    floor, buckets = 0.0, (0.0, 0.0, 0.0)
    for (ranks, _), result in zip(steps, results(steps), strict=True):
        tokens, first = result.value(catalog.GENERATED_TOKENS), result.histogram(catalog.TTFT)
        assert tokens.is_present is bool(ranks)
        assert first.is_present is bool(ranks)
        if tokens.value is not None and first.value is not None:
            assert tokens.value >= floor
            assert tokens.value >= sum(ranks.values())
            assert all(new >= old for new, old in zip(first.value.counts, buckets, strict=True))
            assert list(first.value.counts) == sorted(first.value.counts)
            assert first.value.count == tokens.value
            floor, buckets = tokens.value, (first.value.counts[0], first.value.counts[1], first.value.counts[2])


@given(STEPS)
def test_the_same_pages_give_the_same_readings(steps: list[tuple[dict[int, int], float | None]]) -> None:
    assert results(steps) == results(steps)


@given(st.dictionaries(st.sampled_from(["kv_new", "kv_old"]), st.lists(st.floats(0, 1), min_size=1, max_size=4)))
def test_a_ratio_is_the_largest_of_the_newest_name_that_is_offered(usages: dict[str, list[float]]) -> None:
    lines = ["other 1"] + [f'{name}{{rank="{i}"}} {value!r}' for name, values in usages.items() for i, value in enumerate(values)]
    page = PageParser(wanted_by(ENGINE)).parse(("\n".join(lines) + "\n").encode())
    reading = normalise(page, ENGINE, CounterMemory(), 0.0).value(catalog.KV_USAGE)
    chosen = usages.get("kv_new") or usages.get("kv_old")
    assert reading.value == (max(chosen) if chosen else None)


ANY_VALUE = st.one_of(st.floats(width=32), st.integers(-5, 10**12)).map(repr)
LABEL = st.sampled_from(["le", "model_name", "model", "tp_rank", "engine", "reason", "status_code", "finished_reason", "method"])
LABELS = st.dictionaries(
    LABEL, st.sampled_from(["", "0", "1", "+Inf", "stop", "error", "decode", "200", "REJECTED", "x"]), max_size=4
)


@st.composite
def pages_of_an_engine(draw: st.DrawFn) -> tuple[Engine, list[bytes]]:
    """Some engine, and pages with its own names and any labels and values at all."""
    engine = draw(st.sampled_from(ENGINES))
    names = st.sampled_from(sorted(wanted_by(engine)))
    series = st.tuples(names, st.sampled_from(["", "_bucket", "_sum", "_count"]), LABELS, ANY_VALUE)
    pages = draw(st.lists(st.lists(series, max_size=12), min_size=1, max_size=4))
    return engine, [b"".join(_line(*one) for one in [("other", "", {}, "1"), *page]) for page in pages]


def _line(name: str, end: str, labels: dict[str, str], value: str) -> bytes:
    inside = ",".join(f'{label}="{text}"' for label, text in labels.items())
    return f"{name}{end}{{{inside}}} {value}\n".encode()


@given(pages_of_an_engine())
def test_every_engines_table_takes_any_page_without_raising_and_publishes_no_negative(drawn: tuple[Engine, list[bytes]]) -> None:
    engine, pages = drawn
    memory, parser = CounterMemory(), PageParser(wanted_by(engine))
    steps = dict.fromkeys((progress.name for progress in engine.progress), 0.0)
    for now, body in enumerate(pages):
        try:
            page = parser.parse(body)
        except PageError:
            continue
        result = normalise(page, engine, memory, float(now))
        assert all(reading.value is None or reading.value >= 0 for reading in result.values.values())
        assert all(value >= steps[name] for name, value in result.progress.items())
        steps |= result.progress
