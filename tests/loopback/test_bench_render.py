"""``tailkeeper bench exporter``, its own page, of a small exporter: the page of a real one is the same by both writers."""

from __future__ import annotations

from tailkeeper.bench_render import render_bench


def test_the_page_of_a_real_exporter_is_measured_by_both_writers() -> None:
    figures = render_bench(backends=2, rounds=3, settle_s=0.1)
    assert figures["backends"] == 2
    assert figures["series"] > 2 * 100, "the histograms of two engines"
    assert figures["ours_ms"] > 0.0
    assert figures["prometheus_client_ms"] > 0.0
