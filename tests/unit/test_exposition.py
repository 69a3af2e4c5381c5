"""The page parser: real pages, hostile pages, and what each bad line costs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tailkeeper_exporter import exposition
from tailkeeper_exporter import page as page_module
from tailkeeper_exporter.bench import bench_parse
from tailkeeper_exporter.catalog import Kind
from tailkeeper_exporter.exposition import Page, PageError, PageParser, Part, Reason, SeriesKey, page_of

SCRAPES = Path(__file__).parents[1] / "fixtures" / "scrapes"
PAGES = ("vllm-0.32.0.prom", "vllm-0.32.0-idle.prom", "vllm-0.32.0-preempted.prom", "vllm-0.32.0-lora-queue.prom")
WANTED = {"g": Kind.GAUGE, "c_total": Kind.COUNTER, "h": Kind.HISTOGRAM, "vllm_kv_cache_usage_perc": Kind.GAUGE}


def parse(body: str | bytes, *, open_metrics: bool = False) -> Page:
    return PageParser(WANTED).parse(body.encode() if isinstance(body, str) else body, open_metrics)


def values(page: Page) -> dict[tuple[str, exposition.Labels], float]:
    return {(key.name, key.labels): value for key, value in page.samples}


def refusal(body: str | bytes, *, open_metrics: bool = False) -> Reason:
    with pytest.raises(PageError) as caught:
        parse(body, open_metrics=open_metrics)
    return caught.value.reason


@pytest.mark.parametrize("name", PAGES)
def test_every_sample_of_a_captured_page_is_read_as_prometheus_client_reads_it(name: str) -> None:
    body = (SCRAPES / name).read_bytes()
    theirs = {
        (exposition.canonical(sample.name), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }
    page = PageParser().parse(body)
    assert values(page) == theirs
    assert page.series == len(theirs)
    assert not page.problems
    assert not page.dropped


def test_a_second_reading_of_the_same_page_gives_the_same_samples() -> None:
    body = (SCRAPES / PAGES[0]).read_bytes()
    parser = PageParser()
    assert parser.parse(body) == parser.parse(body)


def test_a_colon_and_an_underscore_are_the_same_name() -> None:
    for text in ("vllm:kv_cache_usage_perc 0.4\n", "vllm_kv_cache_usage_perc 0.4\n"):
        assert values(parse(text)) == {("vllm_kv_cache_usage_perc", ()): 0.4}


def test_a_histogram_comes_in_parts_with_its_bound_as_a_number() -> None:
    page = parse(
        'h_bucket{le="1",a="x"} 2\nh_bucket{le="+Inf",a="x"} 3\nh_sum{a="x"} 1.5\nh_count{a="x"} 3\nh_created{a="x"} 1e9\n'
    )
    assert [(key.part, key.le, value) for key, value in page.samples] == [
        (Part.BUCKET, 1.0, 2.0),
        (Part.BUCKET, math.inf, 3.0),
        (Part.SUM, None, 1.5),
        (Part.COUNT, None, 3.0),
    ]
    assert {key.labels for key, _ in page.samples} == {(("a", "x"),)}
    assert page.offered == {"h"}
    assert page.series == 5


def test_two_spellings_of_one_bucket_bound_are_one_series() -> None:
    page = parse('h_bucket{le="1"} 2\nh_bucket{le="1.0"} 3\n')
    assert [value for _, value in page.samples] == [2.0]
    assert page.problems == {Reason.DUPLICATE: 1}


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        ("g 1", (), 1.0),
        ("g\t1", (), 1.0),
        ("  g   1  ", (), 1.0),
        ("g -1.5e-3", (), -0.0015),
        ("g 1 1395066363000", (), 1.0),
        ("g 1 1395066363.123", (), 1.0),
        ('g{a="b"} 1 # {trace_id="0af7"} 0.67 1520879607.789', (("a", "b"),), 1.0),
        ("g{} 1", (), 1.0),
        ('g {a="b"} 1', (("a", "b"),), 1.0),
        ('g{ a = "b" , } 1', (("a", "b"),), 1.0),
        ('g{b="2",a="1"} 1', (("a", "1"), ("b", "2")), 1.0),
        (r'g{a="x\\y\"z\nw"} 1', (("a", 'x\\y"z\nw'),), 1.0),
        (r'g{a="\q"} 1', (("a", r"\q"),), 1.0),
        ('g{a="x y} z,{w"} 1', (("a", "x y} z,{w"),), 1.0),
        ('{"g",a="b"} 1', (("a", "b"),), 1.0),
        ('{"g","a.b"="c"} 1', (("a.b", "c"),), 1.0),
    ],
)
def test_every_legal_form_of_a_line_is_read(line: str, labels: exposition.Labels, value: float) -> None:
    page = parse(f"{line}\n")
    assert values(page) == {("g", labels): value}
    assert not page.problems


@pytest.mark.parametrize(
    "line",
    [
        "g",
        "g{",
        'g{a="b} 1',
        'g{a="b"',
        "g{a=b} 1",
        'g{a="1" b="2"} 1',
        'g{a="1",a="2"} 1',
        "g{,} 1",
        "g one",
        "g 1_000",
        "g ١",
        "g 1 2 3",
        "g-1",
        'g{"other"} 1',
        'h_bucket{le="x"} 1',
        "h_bucket 1",
        'h_bucket{le="NaN"} 1',
        "1 1",
        "{} 1",
        "\x00\x01",
    ],
)
def test_a_malformed_line_costs_itself_and_is_counted(line: str) -> None:
    page = parse(f"g 7\n{line}\nc_total 8\n")
    assert values(page) == {("g", ()): 7.0, ("c_total", ()): 8.0}
    assert page.problems == {Reason.MALFORMED: 1}


@pytest.mark.parametrize("first_seen_good", [False, True])
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("g NaN", Reason.NON_FINITE),
        ("g +Inf", Reason.NON_FINITE),
        ("c_total -1", Reason.NEGATIVE),
        ('h_bucket{le="1"} -1', Reason.NEGATIVE),
        ("h_count -1", Reason.NEGATIVE),
    ],
)
def test_an_impossible_value_is_dropped_counted_and_named(line: str, reason: Reason, first_seen_good: bool) -> None:
    parser = PageParser(WANTED)
    if first_seen_good:
        parser.parse(f"{line.rpartition(' ')[0]} 1\n".encode())
    page = parser.parse(f"h_sum 5\n{line}\n".encode())
    assert [(key.part, value) for key, value in page.samples] == [(Part.SUM, 5.0)]
    assert page.problems == {reason: 1}
    assert [why for _, why in page.dropped] == [reason]
    assert {key.name for key, _ in page.dropped} <= page.offered


@pytest.mark.parametrize("text", ["1_000", "١", "one"])
def test_a_number_that_only_python_takes_is_refused_also_on_a_known_series(text: str) -> None:
    parser = PageParser(WANTED)
    parser.parse(b"g 1\nc_total 1\n")
    page = parser.parse(f"g {text}\nc_total 2\n".encode())
    assert values(page) == {("c_total", ()): 2.0}
    assert page.problems == {Reason.MALFORMED: 1}
    assert page.dropped == ((SeriesKey("g"), Reason.MALFORMED),)


def test_a_gauge_and_a_histogram_sum_may_be_negative() -> None:
    assert [value for _, value in parse("g -1\nh_sum -2\n").samples] == [-1.0, -2.0]


def test_of_a_duplicate_series_the_first_value_counts() -> None:
    page = parse('g{a="1",b="2"} 1\ng{b="2",a="1"} 2\ng{a="1",b="2"} 3\n')
    assert [value for _, value in page.samples] == [1.0]
    assert page.problems == {Reason.DUPLICATE: 2}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", Reason.EMPTY),
        (b" \r\n\n", Reason.EMPTY),
        (b"# HELP g Text.\n# TYPE g gauge\n", Reason.EMPTY),
        (b"<html>502</html>", Reason.NOT_EXPOSITION),
        (b"\xef\xbb\xbf<html>\n<body>1 2\n</html>\n", Reason.NOT_EXPOSITION),
        (json.dumps("# HELP g Text.\ng 1\n").encode(), Reason.NOT_EXPOSITION),
        (b'{"status": "ok"}', Reason.NOT_EXPOSITION),
        (b'{\n  "g": 1\n}\n', Reason.NOT_EXPOSITION),
        (b'[{"g": 1}]\n', Reason.NOT_EXPOSITION),
        (b"Service temporarily unavailable.\n", Reason.NOT_EXPOSITION),
        ("g 1\n".encode("utf-16"), Reason.NOT_EXPOSITION),
        (b"\x1f\x8b\x08\x00\x00\n\xff\xfe\n", Reason.NOT_EXPOSITION),
        (b"g 1\nc_tot", Reason.TRUNCATED),
        (b"g 1\nc_total 12", Reason.TRUNCATED),
        (b"# HELP g Tex", Reason.TRUNCATED),
        (b"g 1\n" * (page_module.MAX_LINES + 1), Reason.TOO_MANY_SERIES),
        (b"#" * (exposition.MAX_BYTES + 1), Reason.TOO_LARGE),
    ],
)
def test_a_body_that_is_not_a_whole_page_is_refused_with_its_reason(body: bytes, reason: Reason) -> None:
    assert refusal(body) is reason


def test_a_page_cut_anywhere_inside_a_line_is_never_taken_for_complete() -> None:
    body = (SCRAPES / PAGES[0]).read_bytes()[:4_000]
    parser = PageParser()
    for end in range(1, len(body)):
        if body[end - 1 : end] != b"\n":
            with pytest.raises(PageError):
                parser.parse(body[:end])


def test_only_the_end_marker_may_end_a_page_without_a_line_feed() -> None:
    assert values(parse("g 1\n# EOF")) == {("g", ()): 1.0}


def test_an_openmetrics_page_without_its_end_marker_is_truncated() -> None:
    assert refusal("g 1\n", open_metrics=True) is Reason.TRUNCATED
    assert values(parse("g 1\n# EOF\n", open_metrics=True)) == {("g", ()): 1.0}


def test_a_json_page_label_does_not_make_a_text_page_json() -> None:
    assert values(parse('{"g"} 1\n')) == {("g", ()): 1.0}


def test_a_line_with_a_huge_label_is_left_out_and_the_rest_is_used() -> None:
    huge = "x" * (page_module.MAX_LINE_CHARS + 1)
    page = parse(f'g 1\nc_total{{config="{huge}"}} 5\n')
    assert values(page) == {("g", ()): 1.0}
    assert page.problems == {Reason.LINE_TOO_LONG: 1}


def test_bytes_that_are_not_utf8_are_replaced_and_cost_nothing() -> None:
    assert values(parse(b'g{a="\xff"} 1\n')) == {("g", (("a", "�"),)): 1.0}


def test_windows_line_ends_and_a_byte_order_mark_are_accepted() -> None:
    assert values(parse(b"\xef\xbb\xbfg 1\r\nc_total 2\r\n")) == {("g", ()): 1.0, ("c_total", ()): 2.0}


def test_unwanted_samples_are_counted_and_not_kept() -> None:
    page = parse("other 1\nother_total NaN\ng 1\n")
    assert values(page) == {("g", ()): 1.0}
    assert page.series == 3


def test_the_memory_of_series_is_emptied_when_full_and_results_stay_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "MAX_CACHED", 50)
    parser = PageParser(WANTED)
    for generation in range(5):
        body = "".join(f'g{{a="{generation}-{i}"}} {i}\n' for i in range(120)) + f'g{{a="{generation}-0"}} 9\n'
        page = parser.parse(body.encode())
        assert [value for _, value in page.samples] == [float(i) for i in range(120)]
        assert page.problems == {Reason.DUPLICATE: 1}
        assert len(parser._cache) <= 50
        assert len(parser._interned) <= 50


def test_the_memory_of_series_is_bounded_in_characters_too(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = PageParser(WANTED)
    monkeypatch.setattr(exposition, "MAX_BYTES", 100_000)
    for i in range(20):
        parser.parse(f'g{{a="{"x" * 40_000}{i}"}} 1\n'.encode())
        assert sum(map(len, parser._cache)) <= 100_000


def test_a_key_equals_another_of_the_same_series_and_knows_its_labels() -> None:
    key = SeriesKey("g", (("a", "1"),))
    assert key == SeriesKey("g", (("a", "1"),))
    assert hash(key) == hash(SeriesKey("g", (("a", "1"),)))
    assert key.label("a") == "1"
    assert key.label("b") == ""


def test_every_reason_has_a_sentence() -> None:
    assert all(reason.sentence for reason in Reason)
    assert "12 bytes" in str(PageError(Reason.TOO_LARGE, "12 bytes"))


def test_a_steady_page_is_read_ten_times_faster_than_by_prometheus_client() -> None:
    result = bench_parse((SCRAPES / PAGES[0]).read_bytes(), rounds=15)
    assert (result["page_bytes"], result["samples"]) == (79_181, 771)
    # The fastest of each: on a busy machine the median measures the neighbours.
    assert result["prometheus_client_ms"]["min"] / result["ours_ms"]["min"] >= 10
    assert result["ours_ms"]["min"] <= result["ours_ms"]["median"]


def test_samples_that_somebody_else_parsed_are_judged_as_if_they_stood_on_a_page() -> None:
    key, other = SeriesKey("up", (("job", "x"),)), SeriesKey("requests_total", (), Kind.COUNTER)
    page = page_of([(key, 1.0), (key, 2.0), (other, -1.0)])
    assert page.samples == ((key, 1.0),)
    assert page.problems == {Reason.DUPLICATE: 1, Reason.NEGATIVE: 1}
    assert page.dropped == ((other, Reason.NEGATIVE),)
